//! Exact solvers on Nim: a public, deterministic game with many transpositions.

use mage_env::{
    ActionId, ActionList, ActionProbs, CurrentPlayer, Deal, Game, MAX_PLAYERS, Opponent, OpponentSchedule, Rng,
    Strategy, UniformOpponent,
    solvers::{BayesAdaptiveSolver, Candidate, HistoryTree, ScoreObjective, best_response},
};
use smallvec::smallvec;
use std::sync::Arc;

/// Players take one to three from a pile; the player who takes the last one wins. With `full_history`, the state
/// contains the history, so no two histories share a state.
#[derive(Clone, Copy)]
struct Nim {
    pile: u8,
    full_history: bool,
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
        if self.full_history {
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

/// Always takes this many, or all that are left.
struct Takes(u16);

impl Opponent<Nim> for Takes {
    fn policy(&self, game: &Nim, s: &Pile, _seat: u8) -> Option<ActionProbs> {
        let max = game.legal(s).len() as u16;
        Some(smallvec![(ActionId(self.0.min(max)), 1.0)])
    }
}

fn opponents() -> Vec<Strategy<Nim>> {
    vec![Arc::new(Takes(1)), Arc::new(Takes(2)), Arc::new(Takes(3)), Arc::new(UniformOpponent)]
}

fn solve(full_history: bool, seat: u8, episodes: u32) -> BayesAdaptiveSolver {
    let candidates: Vec<_> = opponents()
        .into_iter()
        .enumerate()
        .map(|(i, s)| Candidate {
            name: i.to_string(),
            probability: 0.25,
            schedule: OpponentSchedule::stationary("x", s),
        })
        .collect();
    BayesAdaptiveSolver::new(&Nim { pile: 9, full_history }, seat, Deal::Fresh, &candidates, episodes).unwrap()
}

#[test]
fn best_responses_equal_those_on_the_history_tree() {
    let game = Nim { pile: 9, full_history: true };
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
fn transpositions_do_not_change_values() {
    for seat in 0..2 {
        let (merged, unmerged) = (solve(false, seat, 3), solve(true, seat, 3));
        for objective in [ScoreObjective::Last, ScoreObjective::Sum] {
            let rows = merged.curve(objective).by_episode.iter().zip(&unmerged.curve(objective).by_episode);
            rows.for_each(|(a, b)| assert!((a - b).abs() < 1e-9, "{a} is not {b}"));
        }
        let memoryless = merged.memoryless().by_episode[0];
        assert!((memoryless - unmerged.memoryless().by_episode[0]).abs() < 1e-9);
        assert!(
            merged.curve(ScoreObjective::Sum).last() > memoryless + 0.01
                || merged.full_info().last() < memoryless + 1e-9
        );
    }
}

#[test]
fn best_action_and_likelihood_follow_a_game() {
    let bayes = solve(true, 0, 2);
    let belief = bayes.prior();
    let start = "9 0 []";
    let first = bayes.best_action(&belief, 2, ScoreObjective::Sum, &[start]).unwrap().unwrap().0;
    let next = format!("{} 0 {:?}", 9 - first - 2, [first, 2]);
    assert!(bayes.best_action(&belief, 2, ScoreObjective::Sum, &[start, &next]).unwrap().is_some());
    let unfinished = bayes.likelihood(&[start, &next]).unwrap_err().to_string();
    assert!(unfinished.contains("is not a terminal observation"), "{unfinished}");
    // Three, two, three, one: probability 1 under the second opponent; 1/3 under the random one, whose last move is forced.
    let seen = [start, "4 0 [3, 2]", "0 0 [3, 2, 3, 1]"];
    let likelihood = bayes.likelihood(&seen).unwrap();
    let expected = [0.0, 1.0, 0.0, 1.0 / 3.0];
    likelihood.iter().zip(expected).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{likelihood:?}"));
}

/// Observations without the agent's own actions are rejected with a reason.
#[test]
fn observations_must_include_own_actions() {
    let bayes = solve(false, 0, 2);
    let error =
        bayes.best_action(&bayes.prior(), 1, ScoreObjective::Sum, &["9 0 []", "5 0 []"]).unwrap_err().to_string();
    assert!(error.contains("does not reveal the agent's own action"), "{error}");
}
