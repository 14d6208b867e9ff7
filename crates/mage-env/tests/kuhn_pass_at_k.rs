//! Pass@k ceilings of Kuhn poker, compared with recorded values and with brute force.

use crate::kuhn_support::{paper_mix, report, row};
use mage_env::{
    CurrentPlayer, Game, Opponent, OptionMap, Population, Seed,
    kuhn::{self, Card, Kuhn, StrategyTable},
};
use std::collections::BTreeMap;

/// With a fixed deal, the deal determines whether a hand can be won, and always betting wins every winnable hand. The
/// ceilings equal the paper pool's recorded win rates from the first episode on.
#[test]
fn with_fixed_deals_pass_at_k_is_constant() {
    let population = Population { options: OptionMap::default().with("deal", "fixed"), ..paper_mix() };
    let r = report(&population, "in-domain", 10);
    row(&r.seats[0].pass_at_k, &[0.617; 10], 3);
    row(&r.seats[1].pass_at_k, &[0.55; 10], 3);
    row(&r.mean.pass_at_k, &[(0.617 + 0.55) / 2.0; 10], 3);
}

/// Every deterministic policy of one seat: bets by card without a bet to call and facing a bet.
fn deterministic_policies() -> impl Iterator<Item = StrategyTable> {
    (0..64_u32).map(|bits| {
        let bet = |i: u32| f64::from(bits >> i & 1);
        StrategyTable::by_role([bet(0), bet(1), bet(2)], [bet(3), bet(4), bet(5)])
    })
}

/// A hand between two deterministic players. Returns whether `seat` won, and its terminal observation.
fn showdown(seat: u8, own: &StrategyTable, other: &StrategyTable, deal: (Card, Card)) -> (bool, String) {
    let mut hand = Kuhn.initial(&mut Seed::new(0).rng());
    let mut cards = [(0, deal.0), (1, deal.1)].into_iter();
    loop {
        let action = match Kuhn.current_player(&hand) {
            CurrentPlayer::Terminal => break,
            CurrentPlayer::Chance => {
                let (to, card) = cards.next().expect("two cards are dealt");
                let deals_card = |a: &mage_env::ActionId| {
                    let mut after = hand;
                    Kuhn.apply(&mut after, *a);
                    after.card(to) == Some(card)
                };
                Kuhn.legal(&hand).into_iter().find(deals_card).expect("every card can be dealt once")
            }
            CurrentPlayer::Player(mover) => {
                let player = if mover == seat { own } else { other };
                let policy = player.policy(&Kuhn, &hand, mover).expect("tables have action probabilities");
                policy.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are actions").0
            }
        };
        Kuhn.apply(&mut hand, action);
    }
    (Kuhn.returns(&hand)[usize::from(seat)] > 0.0, Kuhn.observe(&hand, seat))
}

/// Two fresh hands by brute force: every deterministic policy in the first, and the best one for the observation in the
/// second.
#[test]
fn pass_at_two_agrees_with_brute_force() {
    let pool = [(0.3, kuhn::CONSERVATIVE), (0.3, kuhn::AGGRESSIVE), (0.4, kuhn::INTERMEDIATE)];
    let pairs = || Card::ALL.into_iter().flat_map(|a| Card::ALL.map(|b| (a, b)));
    let deals: Vec<(Card, Card)> = pairs().filter(|(a, b)| a != b).collect();
    let r = report(&paper_mix(), "in-domain", 2);
    for seat in [0, 1] {
        let chance = |own: &StrategyTable, other: &StrategyTable| {
            deals.iter().filter(|d| showdown(seat, own, other, **d).0).count() as f64 / deals.len() as f64
        };
        let chances: Vec<[f64; 3]> =
            deterministic_policies().map(|own| pool.each_ref().map(|(_, other)| chance(&own, other))).collect();
        let best_for = |belief: &[f64; 3]| {
            let of = |c: &[f64; 3]| c.iter().zip(belief).map(|(c, b)| c * b).sum::<f64>();
            chances.iter().map(of).fold(0.0, f64::max)
        };
        let of_first = |own: StrategyTable| {
            let (mut won, mut missed) = (0.0, BTreeMap::<String, [f64; 3]>::new());
            for (i, (share, other)) in pool.iter().enumerate() {
                for deal in &deals {
                    let weight = share / deals.len() as f64;
                    match showdown(seat, &own, other, *deal) {
                        (true, _) => won += weight,
                        (false, seen) => missed.entry(seen).or_default()[i] += weight,
                    }
                }
            }
            won + missed.values().map(best_for).sum::<f64>()
        };
        let twice = deterministic_policies().map(of_first).fold(0.0, f64::max);
        let found = &r.seats[usize::from(seat)].pass_at_k;
        assert!((found[0] - best_for(&[0.3, 0.3, 0.4])).abs() < 1e-9, "{found:?}");
        assert!((found[1] - twice).abs() < 1e-9, "{found:?}, by brute force {twice}");
    }
}
