//! Training, evaluation and run directories.
//!
//! A [`recipe`] describes a run. The [training loop](train) samples meta-episodes ([`rollout`]), builds training
//! samples, steps the optimiser of an [engine](engines) and writes everything into a [run directory](run_dir), from
//! which an interrupted run resumes. [`eval`] measures policies on fixed task sets and stores trajectories. [`sweep`]
//! expands a grid of recipes into runs and evaluations.

pub mod engines;
mod error;
pub mod eval;
mod hint;
mod hub;
pub mod limits;
pub mod policy;
pub mod recipe;
pub mod rollout;
pub mod run_dir;
pub mod sweep;
pub mod train;

pub use error::{Error, Result};
pub use eval::{Evaluator, task_set::TaskSet};
pub use hint::{explain, status_log};
pub use hub::Hub;
pub use policy::{EndpointEmbeddings, PolicyHost};
pub use rollout::{MetaEpisodeBuilder, Played, run_meta_episode};
pub use train::{ResourcePlan, longest_sequence};
