//! Kuhn poker: three cards and one bet, the smallest game with bluffing.
//!
//! Jack < Queen < King, one card each, an ante of one chip. Seat 0 passes or bets one chip; seat 1 responds. A pass
//! after a bet folds, a bet after a bet calls; after pass-bet, seat 0 decides once more. Rules and numbering (0 pass, 1
//! bet; cards 0, 1, 2) are OpenSpiel's, and all 58 histories are tested against it.

mod opponents;
mod rules;
mod spec;
mod text;

pub use opponents::{AGGRESSIVE, CONSERVATIVE, INTERMEDIATE, StrategyTable, equilibrium, opponent_kinds};
pub use rules::{BET, Card, Hand, Kuhn, PASS};
pub use spec::KuhnSpec;
