//! Exact solvers and search for games.
//!
//! The exact solvers use only [`Game`](crate::Game) and [`Opponent::policy`](crate::Opponent::policy), so they apply to
//! any small game and any opponent with known action probabilities:
//!
//! - [`HistoryTree`] enumerates a game's histories; [`Cfr`] approximates an equilibrium on it, [`best_response()`] and
//!   [`exploitability`] evaluate strategies.
//! - [`BayesAdaptiveSolver`] computes the optimum of an agent that meets a hidden opponent repeatedly, stationary or
//!   switching.
//! - [`ceilings()`] collects the ceilings of a population in an [`OracleReport`].
//!
//! [`mcts`] is Monte-Carlo tree search, which needs no opponent probabilities and scales to larger games.

mod best_response;
mod ceilings;
mod cfr;
pub(crate) mod game_tree;
mod history_tree;
pub mod mcts;
mod oracle_report;
mod pomdp;
mod tabular_policy;

pub use best_response::{BestResponse, best_response, expected_returns, exploitability};
pub use ceilings::{CeilingQuery, ceilings};
pub use cfr::Cfr;
pub use history_tree::{HistoryEdge, HistoryInfoSet, HistoryNode, HistoryTree};
pub use oracle_report::{
    NamedValue, OracleReport, SampledOpponent, ScoreCurve, SeatOracle, bound_label, is_lower_bound,
};
pub use pomdp::{BayesAdaptiveSolver, Candidate, HiddenType, ScoreObjective};
pub use tabular_policy::{Profile, TabularPolicy};
