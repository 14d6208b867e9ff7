//! Single-agent environments: puzzles, web shopping and household tasks.

pub mod alfworld;
pub mod sokoban;
pub mod webshop;
