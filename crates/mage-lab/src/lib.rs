//! *Run it, measure it, survive it.*
//!
//! Evaluation of agents on fixed panels of tasks, and the store their records are kept in.

mod error;
pub mod evaluate;
mod panel;
mod player;
pub mod store;

pub use error::{Error, Result};
pub use panel::Panel;
pub use player::Player;
