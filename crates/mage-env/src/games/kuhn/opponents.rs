//! Opponents of Kuhn poker.

use super::rules::{BET, Card, Hand, Kuhn, PASS};
use crate::{
    ActionProbs, Error, Opponent, OpponentKinds, OptionMap, Result, Strategy,
    solvers::{Cfr, HistoryTree, TabularPolicy},
};
use serde::Deserialize;
use smallvec::smallvec;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A behaviour strategy for both seats: the bet probability in each of the twelve information sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrategyTable {
    /// By card, then by betting history: `""`, `pb` (seat 0), `p`, `b` (seat 1).
    bet: [[f64; 4]; 3],
}

const BET_HISTORIES: [&str; 4] = ["", "pb", "p", "b"];

/// Bets and calls with the King only.
pub const CONSERVATIVE: StrategyTable = StrategyTable::by_role([0.0, 0.0, 1.0], [0.0, 0.0, 1.0]);
/// Bets any card; folds only the Jack.
pub const AGGRESSIVE: StrategyTable = StrategyTable::by_role([1.0, 1.0, 1.0], [0.0, 1.0, 1.0]);
/// Bets Queen and King; calls with the King only.
pub const INTERMEDIATE: StrategyTable = StrategyTable::by_role([0.0, 1.0, 1.0], [0.0, 0.0, 1.0]);

impl StrategyTable {
    /// A strategy that plays alike in both seats: bet probabilities by card without a bet to call, and facing a bet.
    pub const fn by_role(open: [f64; 3], facing: [f64; 3]) -> Self {
        let mut bet = [[0.0; 4]; 3];
        let mut card = 0;
        while card < 3 {
            bet[card] = [open[card], facing[card], open[card], facing[card]];
            card += 1;
        }
        StrategyTable { bet }
    }

    /// From bet probabilities keyed by information set (`Q`, `Qpb`, `Qp`, `Qb`, …). Missing information sets pass.
    pub fn from_map(bets: &BTreeMap<String, f64>, source: &str) -> Result<Self> {
        let mut table = StrategyTable { bet: [[0.0; 4]; 3] };
        let keys = Card::ALL.into_iter().flat_map(|c| BET_HISTORIES.map(|s| format!("{}{s}", c.letter())));
        let keys: Vec<String> = keys.collect();
        for (key, p) in bets {
            let i = keys.iter().position(|k| k == key).ok_or_else(|| {
                Error::invalid(source, Error::unknown("information set", key, keys.iter().cloned()).to_string())
            })?;
            if !(0.0..=1.0).contains(p) {
                return Err(Error::invalid(source, format!("`{key}` = {p} is not a probability")));
            }
            table.bet[i / 4][i % 4] = *p;
        }
        Ok(table)
    }

    fn from_policy(policy: &TabularPolicy) -> Self {
        let bet = |probs: &ActionProbs| probs.iter().find(|(a, _)| *a == BET).map_or(0.0, |(_, p)| *p);
        let bets = policy.iter().map(|(_, text, probs)| (text.to_owned(), bet(probs))).collect();
        Self::from_map(&bets, "policy").expect("a policy has probabilities by information set")
    }

    /// The deterministic strategy of the likeliest action (ties: pass).
    #[must_use]
    pub fn argmax(&self) -> Self {
        StrategyTable { bet: self.bet.map(|row| row.map(|p| f64::from(u8::from(p > 0.5)))) }
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

/// The average policy after this number of CFR iterations: an approximate equilibrium. Computed once per number of
/// iterations and cached.
pub fn equilibrium(iterations: u32) -> StrategyTable {
    static CACHE: Mutex<BTreeMap<u32, StrategyTable>> = Mutex::new(BTreeMap::new());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    *cache.entry(iterations).or_insert_with(|| {
        let tree = HistoryTree::new(&Kuhn).expect("Kuhn poker is small");
        let mut cfr = Cfr::new(&tree);
        cfr.run(iterations);
        StrategyTable::from_policy(&cfr.average_policy())
    })
}

/// The built-in opponent kinds of Kuhn poker. More can be added.
pub fn opponent_kinds() -> OpponentKinds<Kuhn> {
    let mut kinds = OpponentKinds::default();
    kinds.add_plain("conservative", "bets and calls with the King only", CONSERVATIVE);
    kinds.add_plain("aggressive", "bets any card, folds only the Jack", AGGRESSIVE);
    kinds.add_plain("intermediate", "bets Queen and King, calls with the King only", INTERMEDIATE);
    kinds.add("table", "bet probabilities by information set in `bet` (missing ones pass)", |params| {
        let p: TableParams = params.read("opponent of kind `table`")?;
        Ok(Arc::new(StrategyTable::from_map(&p.bet, "opponent of kind `table`: bet")?))
    });
    let mut cfr = |kind: &str, description: &str, transform: fn(StrategyTable) -> StrategyTable| {
        let source = format!("opponent of kind `{kind}`");
        let make = move |params: &OptionMap| -> Result<Strategy<Kuhn>> {
            let p: CfrParams = params.read(&source)?;
            if !(1..=MAX_ITERATIONS).contains(&p.iterations) {
                let problem = format!("`iterations` = {} is not between 1 and {MAX_ITERATIONS}", p.iterations);
                return Err(Error::invalid(source.clone(), problem));
            }
            Ok(Arc::new(transform(equilibrium(p.iterations))))
        };
        kinds.add(kind, description, make);
    };
    cfr("cfr_sampled", "samples the CFR average policy after `iterations` (default 1000)", |table| table);
    cfr(
        "cfr_argmax",
        "plays the most likely action of the CFR average policy, as in the paper; exploitable",
        |table| table.argmax(),
    );
    kinds
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableParams {
    bet: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CfrParams {
    #[serde(default = "default_iterations")]
    iterations: u32,
}

fn default_iterations() -> u32 {
    1000
}

/// Takes a few seconds.
const MAX_ITERATIONS: u32 = 1_000_000;

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
        let histories = ["", "pb", "p", "b"];
        let rows = |t: &StrategyTable| [0, 1, 2].map(|card| histories.map(|s| bet(t, card, s)));
        assert_eq!(rows(&CONSERVATIVE), [[0.0; 4], [0.0; 4], [1.0; 4]]);
        assert_eq!(rows(&AGGRESSIVE), [[1.0, 0.0, 1.0, 0.0], [1.0; 4], [1.0; 4]]);
        assert_eq!(rows(&INTERMEDIATE), [[0.0; 4], [1.0, 0.0, 1.0, 0.0], [1.0; 4]]);
    }

    #[test]
    fn cfr_kinds_share_one_equilibrium_and_validate_their_parameters() {
        use crate::{OpponentSpec, Seed};
        let kinds = opponent_kinds();
        let table = equilibrium(1000);
        let spec = |kind: &str, n: i64| OpponentSpec {
            params: OptionMap::default().with("iterations", n),
            ..OpponentSpec::of_kind(kind)
        };
        let at = |spec: &OpponentSpec, hand: &Hand| {
            let schedule = kinds.build(spec).unwrap();
            schedule.in_episode(Seed::new(0), 0).policy(&Kuhn, hand, 0).unwrap()[1].1
        };
        for card in Card::ALL {
            let hand = Hand::dealt(card, Card((card.0 + 1) % 3));
            let p = bet(&table, card.0, "");
            assert_eq!(at(&OpponentSpec::of_kind("cfr_sampled"), &hand), p);
            assert_eq!(at(&spec("cfr_sampled", 1000), &hand), p);
            assert_eq!(at(&OpponentSpec::of_kind("cfr_argmax"), &hand), f64::from(u8::from(p > 0.5)));
        }
        // First seat bets the King only and calls with Queen and King; second seat bets and calls with the King only.
        let by_history = BET_HISTORIES.map(|s| Card::ALL.map(|c| bet(&table.argmax(), c.0, s)));
        assert_eq!(by_history, [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]);
        assert!(kinds.build(&spec("cfr_argmax", 0)).err().unwrap().to_string().contains("not between 1 and"));
        let typo =
            OpponentSpec { params: OptionMap::default().with("iteration", 5), ..OpponentSpec::of_kind("cfr_argmax") };
        assert!(kinds.build(&typo).err().unwrap().to_string().contains("unknown field `iteration`"));
    }

    #[test]
    fn tables_are_read_from_toml_and_errors_name_the_key() {
        let table = |text: &str| {
            let bets: BTreeMap<String, f64> = toml::from_str(text).unwrap();
            StrategyTable::from_map(&bets, "here")
        };
        let t = table("Qpb = 0.25\nJp = 1.0").unwrap();
        assert_eq!(bet(&t, 1, "pb"), 0.25);
        assert_eq!(bet(&t, 0, "p"), 1.0);
        assert_eq!(bet(&t, 2, "b"), 0.0);
        assert!(table("Qpd = 0.5").unwrap_err().to_string().contains("unknown information set `Qpd`"));
        assert!(table("Q = 1.5").unwrap_err().to_string().contains("not a probability"));
    }
}
