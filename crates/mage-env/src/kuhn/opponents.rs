//! Whom one meets at Kuhn poker.

use super::rules::{BET, Card, Hand, Kuhn, PASS};
use crate::{ActionProbs, Error, Opponent, OpponentKinds, Result};
use serde::Deserialize;
use smallvec::smallvec;
use std::{collections::BTreeMap, sync::Arc};

/// A complete strategy for both seats: how likely a bet is in each of the twelve situations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrategyTable {
    /// By card, then by situation: `""`, `pb` (seat 0), `p`, `b` (seat 1).
    bet: [[f64; 4]; 3],
}

const SITUATIONS: [&str; 4] = ["", "pb", "p", "b"];

/// Bets and calls with the King only.
pub const CONSERVATIVE: StrategyTable = StrategyTable::by_role([0.0, 0.0, 1.0], [0.0, 0.0, 1.0]);
/// Bets with anything; folds only the Jack.
pub const AGGRESSIVE: StrategyTable = StrategyTable::by_role([1.0, 1.0, 1.0], [0.0, 1.0, 1.0]);
/// Bets Queen and King; calls with the King only.
pub const INTERMEDIATE: StrategyTable = StrategyTable::by_role([0.0, 1.0, 1.0], [0.0, 0.0, 1.0]);

impl StrategyTable {
    /// The same in both seats: bet probabilities by card when nobody has bet, and when facing a bet.
    pub const fn by_role(open: [f64; 3], facing: [f64; 3]) -> Self {
        let mut bet = [[0.0; 4]; 3];
        let mut card = 0;
        while card < 3 {
            bet[card] = [open[card], facing[card], open[card], facing[card]];
            card += 1;
        }
        StrategyTable { bet }
    }

    /// From bet probabilities keyed by information set (`Q`, `Qpb`, `Qp`, `Qb`, …). Situations left out pass.
    pub fn from_map(bets: &BTreeMap<String, f64>, place: &str) -> Result<Self> {
        let mut table = StrategyTable { bet: [[0.0; 4]; 3] };
        let keys = Card::ALL.into_iter().flat_map(|c| SITUATIONS.map(|s| format!("{}{s}", c.letter())));
        let keys: Vec<String> = keys.collect();
        for (key, p) in bets {
            let i = keys.iter().position(|k| k == key).ok_or_else(|| {
                Error::invalid(place, Error::unknown("situation", key, keys.iter().cloned()).to_string())
            })?;
            if !(0.0..=1.0).contains(p) {
                return Err(Error::invalid(place, format!("`{key}` = {p} is not a probability")));
            }
            table.bet[i / 4][i % 4] = *p;
        }
        Ok(table)
    }

    /// How likely a bet is with this card in this situation (`""`, `pb`, `p` or `b`).
    pub fn bet_probability(&self, card: Card, situation: &str) -> Option<f64> {
        SITUATIONS.iter().position(|s| *s == situation).map(|i| self.bet[usize::from(card.0)][i])
    }

    fn bet_in(&self, hand: &Hand, seat: u8) -> f64 {
        let card = hand.card(seat).expect("players act after the deal");
        self.bet[usize::from(card.0)][usize::from(seat) * 2 + usize::from(hand.facing_bet())]
    }
}

impl Opponent<Kuhn> for StrategyTable {
    fn policy(&self, _game: &Kuhn, s: &Hand, seat: u8) -> Option<ActionProbs> {
        let bet = self.bet_in(s, seat);
        Some(smallvec![(PASS, 1.0 - bet), (BET, bet)])
    }
}

/// The kinds of opponent Kuhn poker knows, to which others may be added.
pub fn opponent_kinds() -> OpponentKinds<Kuhn> {
    let mut kinds = OpponentKinds::default();
    kinds.add_plain("conservative", "bets and calls with the King only", CONSERVATIVE);
    kinds.add_plain("aggressive", "bets with anything, folds only the Jack", AGGRESSIVE);
    kinds.add_plain("intermediate", "bets Queen and King, calls with the King only", INTERMEDIATE);
    kinds.add("table", "bet probabilities by information set, in `bet` (left out: pass)", |params| {
        let p: TableParams = params.read("opponent of kind `table`")?;
        Ok(Arc::new(StrategyTable::from_map(&p.bet, "opponent of kind `table`: bet")?))
    });
    kinds
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableParams {
    bet: BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Game;

    fn bet(table: &StrategyTable, card: u8, line: &str) -> f64 {
        let mut hand = Hand::dealt(Card(card), Card((card + 1) % 3));
        if line.len() == 1 {
            hand = Hand::dealt(Card((card + 1) % 3), Card(card));
        }
        line.chars().for_each(|c| Kuhn.apply(&mut hand, if c == 'b' { BET } else { PASS }));
        let seat = (line.len() % 2) as u8;
        table.policy(&Kuhn, &hand, seat).unwrap()[1].1
    }

    #[test]
    fn archetypes_follow_the_paper() {
        let situations = ["", "pb", "p", "b"];
        let rows = |t: &StrategyTable| [0, 1, 2].map(|card| situations.map(|s| bet(t, card, s)));
        assert_eq!(rows(&CONSERVATIVE), [[0.0; 4], [0.0; 4], [1.0; 4]]);
        assert_eq!(rows(&AGGRESSIVE), [[1.0, 0.0, 1.0, 0.0], [1.0; 4], [1.0; 4]]);
        assert_eq!(rows(&INTERMEDIATE), [[0.0; 4], [1.0, 0.0, 1.0, 0.0], [1.0; 4]]);
    }

    #[test]
    fn tables_come_from_files_and_name_their_mistakes() {
        let table = |text: &str| {
            let bets: BTreeMap<String, f64> = toml::from_str(text).unwrap();
            StrategyTable::from_map(&bets, "here")
        };
        let t = table("Qpb = 0.25\nJp = 1.0").unwrap();
        assert_eq!(bet(&t, 1, "pb"), 0.25);
        assert_eq!(bet(&t, 0, "p"), 1.0);
        assert_eq!(bet(&t, 2, "b"), 0.0);
        assert!(table("Qpd = 0.5").unwrap_err().to_string().contains("unknown situation `Qpd`"));
        assert!(table("Q = 1.5").unwrap_err().to_string().contains("not a probability"));
    }
}
