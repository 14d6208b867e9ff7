//! *What does the agent see, and what was each step worth?*
//!
//! Meta-episodes, prompts, memory, parsing, rewards, returns, advantages, metrics: pure functions over data. Nothing here
//! does I/O, reads a clock, starts a thread or knows an engine's insides.

mod row;

pub use row::{Phase, Row};
