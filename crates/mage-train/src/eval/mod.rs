//! Evaluation of policies on fixed task sets.

pub mod evaluator;
mod exact;
mod replay;
mod result;
pub mod store;
pub mod task_set;

pub use evaluator::{Evaluator, agent_seed};
pub use result::EvalResult;
