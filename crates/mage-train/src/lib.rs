//! *Run it, measure it, survive it.*
//!
//! Training from a [`recipe`] in a run directory that survives anything, evaluation of agents on fixed panels of tasks, and
//! the store their records are kept in.

mod embeddings;
pub mod engine;
mod error;
pub mod evaluate;
mod hosted;
mod hub;
pub mod judge;
pub mod learn;
mod meter;
mod panel;
mod plan;
mod player;
pub mod recipe;
pub mod remote_engine;
pub mod rollout;
pub mod run_dir;
pub mod speech;
pub mod store;
pub mod sweep;
mod talk;
pub mod tensorboard;
pub mod train;
pub mod transcripts;
pub mod warmstart;
pub mod watch;

pub use embeddings::EndpointEmbeddings;
pub use error::{Error, Result};
pub use hosted::Hosted;
pub use hub::Hub;
pub use panel::Panel;
pub use plan::{Plan, longest_sequence};
pub use player::Player;
