//! Kuhn poker: three cards, one bet, and everything there is to know about bluffing.
//!
//! Jack < Queen < King, one card each, an ante of one chip. Seat 0 passes or bets one chip; seat 1 answers. A pass after a
//! bet folds, a bet after a bet calls; pass-bet gives seat 0 one more decision. The rules and the numbering (0 pass,
//! 1 bet; cards 0, 1, 2) are OpenSpiel's, and all 58 positions are tested against it.

mod facts;
mod opponents;
mod rules;
mod scripted_agents;
mod spec;
mod text;

pub use facts::{likelihood_from_facts, observations_from_facts, update_from_facts};
pub use opponents::{AGGRESSIVE, CONSERVATIVE, INTERMEDIATE, StrategyTable, equilibrium, opponent_kinds};
pub use rules::{BET, Card, Hand, Kuhn, PASS};
pub use spec::{KuhnOptions, KuhnSpec};
pub use text::{REFLECTION_WORDS, facts};
