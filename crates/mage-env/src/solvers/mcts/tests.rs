//! Tests of MCTS on small games: Nim, Kuhn poker with open cards, and a game with chance nodes.

use super::*;
use crate::{
    ActionList, ActionProbs, Opponent, Seed,
    kuhn::{Card, Hand, Kuhn},
};

/// Players take one to three stones; the player who takes the last one wins. Multiples of four lose.
struct Nim;

impl Game for Nim {
    type State = (u8, u8);

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> (u8, u8) {
        (11, 0)
    }

    fn current_player(&self, &(stones, mover): &(u8, u8)) -> CurrentPlayer {
        if stones == 0 { CurrentPlayer::Terminal } else { CurrentPlayer::Player(mover) }
    }

    fn legal(&self, &(stones, _): &(u8, u8)) -> ActionList {
        (1..=stones.min(3)).map(|n| ActionId(u16::from(n))).collect()
    }

    fn apply(&self, s: &mut (u8, u8), a: ActionId) {
        *s = (s.0 - a.0 as u8, 1 - s.1);
    }

    fn returns(&self, &(stones, mover): &(u8, u8)) -> [f32; MAX_PLAYERS] {
        match (stones, mover) {
            (0, 1) => [1.0, -1.0, 0.0, 0.0],
            (0, _) => [-1.0, 1.0, 0.0, 0.0],
            _ => [0.0; MAX_PLAYERS],
        }
    }

    fn observe(&self, s: &(u8, u8), _player: u8) -> String {
        format!("{s:?}")
    }
}

/// A gamble for one player. Action 0 returns 0.5. Action 1 returns 3 with probability 0.25, otherwise −1. Action 2
/// returns 0.75 by two equally likely chance outcomes.
struct Gamble;

impl Game for Gamble {
    type State = Vec<u16>; // a state that owns memory

    fn players(&self) -> u8 {
        1
    }

    fn initial(&self, _rng: &mut Rng) -> Vec<u16> {
        Vec::new()
    }

    fn current_player(&self, s: &Vec<u16>) -> CurrentPlayer {
        match s[..] {
            [] => CurrentPlayer::Player(0),
            [1 | 2] => CurrentPlayer::Chance,
            _ => CurrentPlayer::Terminal,
        }
    }

    fn legal(&self, s: &Vec<u16>) -> ActionList {
        let n = [3, 2, 0][s.len()];
        (0..n).map(ActionId).collect()
    }

    fn chance(&self, s: &Vec<u16>) -> ActionProbs {
        let heads = if s[0] == 1 { 0.25 } else { 0.5 };
        [(ActionId(0), heads), (ActionId(1), 1.0 - heads)].into_iter().collect()
    }

    fn apply(&self, s: &mut Vec<u16>, a: ActionId) {
        s.push(a.0);
    }

    fn returns(&self, s: &Vec<u16>) -> [f32; MAX_PLAYERS] {
        let value = match s[..] {
            [0] => 0.5,
            [1, 0] => 3.0,
            [1, 1] => -1.0,
            [2, _] => 0.75,
            _ => 0.0,
        };
        [value, 0.0, 0.0, 0.0]
    }

    fn observe(&self, s: &Vec<u16>, _player: u8) -> String {
        format!("{s:?}")
    }
}

fn solve<G: Game>(game: &G, s: &G::State) -> [f32; MAX_PLAYERS] {
    let CurrentPlayer::Player(p) = game.current_player(s) else { return game.returns(s) };
    let outcomes = game.legal(s).into_iter().map(|a| {
        let mut next = s.clone();
        game.apply(&mut next, a);
        solve(game, &next)
    });
    outcomes.max_by(|a, b| a[usize::from(p)].total_cmp(&b[usize::from(p)])).unwrap()
}

#[test]
fn nim_is_proven_and_played_optimally() {
    let search = Mcts { best_return: 1.0, ..Mcts::new(20_000) };
    let mut tree = SearchTree::default();
    for stones in 1..=15 {
        let action = search.choose(&Nim, &(stones, 0), &mut tree, &mut Seed::new(u64::from(stones)).rng());
        let won = stones % 4 != 0;
        assert_eq!(tree.proven(), Some(if won { 1.0 } else { -1.0 }), "{stones} stones");
        assert!(!won || action.0 == u16::from(stones % 4), "{stones} stones, took {}", action.0);
    }
}

#[test]
fn nim_win_rate_grows_with_simulations() {
    let wins = |simulations: u32| {
        let player = MctsOpponent::new(Mcts { best_return: 1.0, ..Mcts::new(simulations) });
        let won = |i: u64| {
            let mut rng = Seed::new(i).rng();
            let mut s = Nim.initial(&mut rng);
            while Nim.current_player(&s) != CurrentPlayer::Terminal {
                let legal = Nim.legal(&s);
                let a = if s.1 == 0 { player.act(&Nim, &s, 0, &mut rng) } else { sample_uniform(&legal, &mut rng) };
                Nim.apply(&mut s, a);
            }
            Nim.returns(&s)[0] > 0.0
        };
        (0..500).filter(|i| won(*i)).count()
    };
    let (few, many) = (wins(8), wins(200));
    assert!(few > 300 && many > few && many > 490, "{few} and {many} of 500");
}

#[test]
fn kuhn_poker_with_open_cards_is_solved() {
    // The search reads both cards, so this is the perfect-information variant of Kuhn poker.
    for first in 0..3 {
        for second in (0..3).filter(|c| *c != first) {
            let hand = Hand::dealt(Card(first), Card(second));
            let mut tree = SearchTree::default();
            Mcts::new(2_000).search(&Kuhn, &hand, &mut tree, &mut Seed::new(5).rng());
            assert_eq!(tree.proven(), Some(solve(&Kuhn, &hand)[0]), "{first} against {second}");
        }
    }
}

#[test]
fn chance_nodes_are_averaged() {
    let mut tree = SearchTree::default();
    let action = Mcts::new(4_000).choose(&Gamble, &vec![], &mut tree, &mut Seed::new(2).rng());
    assert_eq!(action, ActionId(2));
    let of = |a: u16| tree.action_stats().find(|c| c.action == ActionId(a)).unwrap();
    assert_eq!(of(0).proven, Some(0.5));
    assert_eq!(of(2).proven, Some(0.75));
    assert_eq!(of(1).proven, None);
    assert!((of(1).mean - 0.0).abs() < 0.5, "the gamble's mean is 0, got {}", of(1).mean);
}

#[test]
fn same_seed_gives_the_same_move_in_a_reused_tree() {
    let search = Mcts::new(50);
    let fresh = |seed| search.choose(&Nim, &(13, 0), &mut SearchTree::default(), &mut Seed::new(seed).rng());
    let mut used = SearchTree::default();
    for seed in 0..50 {
        search.search(&Nim, &(15, 1), &mut used, &mut Seed::new(99).rng());
        assert_eq!(search.choose(&Nim, &(13, 0), &mut used, &mut Seed::new(seed).rng()), fresh(seed));
    }
    assert!((0..50).any(|s| fresh(s) != fresh(0)), "the seed must matter");
}

#[test]
fn one_simulation_returns_a_legal_move() {
    let a = Mcts::new(1).choose(&Nim, &(7, 0), &mut SearchTree::default(), &mut Seed::new(1).rng());
    assert!((1..=3).contains(&a.0));
}

#[test]
fn nothing_is_proven_without_the_solver() {
    let mut tree = SearchTree::default();
    let search = Mcts { solve: false, ..Mcts::new(3_000) };
    let action = search.choose(&Nim, &(7, 0), &mut tree, &mut Seed::new(4).rng());
    assert_eq!(action, ActionId(3));
    assert!(tree.proven().is_none() && tree.action_stats().all(|c| c.proven.is_none()));
}
