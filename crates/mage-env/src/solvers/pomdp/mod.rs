//! Optimal adaptation to a hidden opponent, as a partially observable Markov decision process.
//!
//! The hidden state is the opponent, its phase, and a fixed deal; the agent holds a belief over it.
//! [`BayesAdaptiveSolver`] solves the problem exactly where few beliefs are reachable, and by heuristic search value
//! iteration (HSVI) where there are many.

mod bayes;
mod belief_key;
mod belief_search;
mod full_info_bound;
mod hidden_type;
mod hsvi;
mod pass_at_k;
mod seat_view;
mod value_bounds;

pub use bayes::BayesAdaptiveSolver;
pub use belief_search::ScoreObjective;
pub use hidden_type::{Candidate, HiddenType};
pub(super) use seat_view::states_probabilities;
