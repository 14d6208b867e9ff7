//! Do the oracles hold for a game that is not poker: public, deterministic, with positions that come about in many ways?

use mage_env::{
    ActionId, ActionList, ActionProbs, CurrentPlayer, Deal, Game, MAX_PLAYERS, Opponent, OpponentSchedule, Rng,
    Strategy, UniformOpponent,
    solvers::{BayesAdaptiveSolver, Candidate, HistoryTree, ScoreObjective, best_response},
};
use smallvec::smallvec;
use std::sync::Arc;

/// Take one to three from a pile; whoever takes the last wins. With `remembers`, a position knows how it came about, so
/// that no two histories share one.
#[derive(Clone, Copy)]
struct Nim {
    pile: u8,
    remembers: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Pile {
    left: u8,
    mover: u8,
    past: Vec<u16>,
}

impl Game for Nim {
    type State = Pile;

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> Pile {
        Pile { left: self.pile, mover: 0, past: Vec::new() }
    }

    fn current_player(&self, s: &Pile) -> CurrentPlayer {
        if s.left == 0 { CurrentPlayer::Terminal } else { CurrentPlayer::Player(s.mover) }
    }

    fn legal(&self, s: &Pile) -> ActionList {
        (1..=u16::from(s.left.min(3))).map(ActionId).collect()
    }

    fn apply(&self, s: &mut Pile, a: ActionId) {
        s.left -= a.0 as u8;
        s.mover = 1 - s.mover;
        if self.remembers {
            s.past.push(a.0);
        }
    }

    fn returns(&self, s: &Pile) -> [f32; MAX_PLAYERS] {
        let first = if s.left > 0 { 0.0 } else { f32::from(s.mover) * 2.0 - 1.0 };
        [first, -first, 0.0, 0.0]
    }

    fn observe(&self, s: &Pile, _player: u8) -> String {
        format!("{} {} {:?}", s.left, s.mover, s.past)
    }
}

/// Always takes so many, or the rest.
struct Takes(u16);

impl Opponent<Nim> for Takes {
    fn policy(&self, game: &Nim, s: &Pile, _seat: u8) -> Option<ActionProbs> {
        let most = game.legal(s).len() as u16;
        Some(smallvec![(ActionId(self.0.min(most)), 1.0)])
    }
}

fn opponents() -> Vec<Strategy<Nim>> {
    vec![Arc::new(Takes(1)), Arc::new(Takes(2)), Arc::new(Takes(3)), Arc::new(UniformOpponent)]
}

fn solve(remembers: bool, seat: u8, episodes: u32) -> BayesAdaptiveSolver {
    let candidates: Vec<_> = opponents()
        .into_iter()
        .enumerate()
        .map(|(i, s)| Candidate {
            name: i.to_string(),
            probability: 0.25,
            schedule: OpponentSchedule::stationary("x", s),
        })
        .collect();
    BayesAdaptiveSolver::new(&Nim { pile: 9, remembers }, seat, Deal::Fresh, &candidates, episodes).unwrap()
}

#[test]
fn best_responses_equal_those_on_the_tree() {
    let game = Nim { pile: 9, remembers: true };
    let tree = HistoryTree::new(&game).unwrap();
    for seat in 0..2 {
        let ours = solve(false, seat, 1).best_response_values();
        for (value, opponent) in ours.iter().zip(opponents()) {
            let on_tree = best_response(&game, &tree, seat, opponent.as_ref()).unwrap().value;
            assert!((value - on_tree).abs() < 1e-12, "{value} is not {on_tree}");
        }
    }
}

#[test]
fn positions_that_come_about_in_many_ways_change_nothing_but_the_work() {
    for seat in 0..2 {
        let (merged, apart) = (solve(false, seat, 3), solve(true, seat, 3));
        for objective in [ScoreObjective::Last, ScoreObjective::Sum] {
            let rows = merged.curve(objective).by_episode.iter().zip(&apart.curve(objective).by_episode);
            rows.for_each(|(a, b)| assert!((a - b).abs() < 1e-9, "{a} is not {b}"));
        }
        let blind = merged.memoryless().by_episode[0];
        assert!((blind - apart.memoryless().by_episode[0]).abs() < 1e-9);
        assert!(merged.curve(ScoreObjective::Sum).last() > blind + 0.01 || merged.full_info().last() < blind + 1e-9);
    }
}

#[test]
fn questions_are_answered_along_a_game() {
    let bayes = solve(true, 0, 2);
    let belief = bayes.prior();
    let start = "9 0 []";
    let first = bayes.best_action(&belief, 2, ScoreObjective::Sum, &[start]).unwrap().unwrap().0;
    let next = format!("{} 0 {:?}", 9 - first - 2, [first, 2]);
    assert!(bayes.best_action(&belief, 2, ScoreObjective::Sum, &[start, &next]).unwrap().is_some());
    let unfinished = bayes.likelihood(&[start, &next]).unwrap_err().to_string();
    assert!(unfinished.contains("is not a terminal observation"), "{unfinished}");
    // Three, two, three, one: the second opponent would have done so, and the random one in three times a third.
    let seen = [start, "4 0 [3, 2]", "0 0 [3, 2, 3, 1]"];
    let likelihood = bayes.likelihood(&seen).unwrap();
    let expected = [0.0, 1.0, 0.0, 1.0 / 3.0];
    likelihood.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{likelihood:?}"));
}

/// Positions that hide the agent's own actions cannot be asked about, and the error says what is missing.
#[test]
fn own_actions_must_be_visible() {
    let bayes = solve(false, 0, 2);
    let error =
        bayes.best_action(&bayes.prior(), 1, ScoreObjective::Sum, &["9 0 []", "5 0 []"]).unwrap_err().to_string();
    assert!(error.contains("does not reveal the agent's own action"), "{error}");
}
