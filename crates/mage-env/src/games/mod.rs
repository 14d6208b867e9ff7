//! Two-player games with opponents to adapt to.

pub mod kuhn;
pub mod tictactoe;
