//! Evaluation of agents on fixed task sets.
//!
//! [`Evaluation`] plays a task set with any agent and stores the trajectories (`mage eval`). [`evaluator`] measures the
//! policy of a training run between updates.

mod concurrent;
mod evaluation;
pub mod evaluator;
mod model_agent;
pub mod store;
pub mod task_set;

pub use crate::train::runtime;
pub use evaluation::*;
pub use model_agent::{Answerer, DecodingConfig, ModelAgent, run_episode_config};
