//! How well could one possibly do?
//!
//! Everything here is exact and knows only [`Game`](crate::Game) and [`Opponent::policy`](crate::Opponent::policy), so it
//! works for any small game and for opponents of any making:
//!
//! - [`Tree`] writes a game out; [`Cfr`] finds an equilibrium on it, [`best_response`] and [`exploitability`] measure
//!   strategies.
//! - [`Bayes`] is the optimum of a learner who meets a hidden opponent again and again, stationary or switching.
//! - [`ceilings`] puts the ceilings of a population together in an [`OracleReport`].

mod bayes;
mod best_response;
mod ceilings;
mod cell;
mod cfr;
mod fences;
mod hidden;
mod pass;
mod report;
mod search;
mod solve;
mod tabular;
mod told;
mod tree;
mod view;

pub use bayes::Bayes;
pub use best_response::{BestResponse, best_response, expected_returns, exploitability};
pub use ceilings::{Setting, ceilings};
pub use cfr::Cfr;
pub use hidden::{Candidate, HiddenType};
pub use report::{Curve, NamedValue, OracleReport, Sampled, SeatOracle, how_known, is_lower_bound};
pub use search::Objective;
pub use tabular::{Profile, TabularPolicy};
pub use tree::{Edge, InfoSet, MAX_HISTORIES, Node, Tree};
