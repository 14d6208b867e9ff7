//! Best responses and exploitability on a game's history tree.
//!
//! Values are exact for games of perfect recall: [`Game::observe`] includes a player's own past actions, so the best
//! action in an information set depends only on what follows it.

use super::{HistoryTree, TabularPolicy};
use crate::{CurrentPlayer, Error, Game, MAX_PLAYERS, Opponent, Result};

/// A best response and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct BestResponse {
    /// Expected return.
    pub value: f64,
    /// The policy in each information set of the seat (ties: the first action).
    pub policy: TabularPolicy,
}

/// The best response of `seat` while `others` plays all other seats (see [`super::Profile`] for one strategy per seat).
pub fn best_response<G: Game>(
    game: &G,
    tree: &HistoryTree<G>,
    seat: u8,
    others: &dyn Opponent<G>,
) -> Result<BestResponse> {
    let probs = edge_probabilities(game, tree, others, Some(seat))?;
    let mut reach = vec![0.0; tree.nodes().len()];
    reach[0] = 1.0;
    for (id, node) in tree.nodes().iter().enumerate() {
        for (e, p) in node.edges.iter().zip(&probs[id]) {
            reach[e.child] = reach[id] * p;
        }
    }
    let mut search = BestResponseSearch {
        tree,
        seat,
        probs: &probs,
        reach: &reach,
        choice: vec![None; tree.info_sets().len()],
        value: vec![None; tree.nodes().len()],
    };
    let value = search.value_of(0);
    let mut policy = TabularPolicy::default();
    for (id, set) in tree.info_sets().iter().enumerate().filter(|(_, s)| s.player == seat) {
        let best = search.choose(id);
        let probs = set.actions.iter().enumerate().map(|(i, a)| (*a, f64::from(u8::from(i == best))));
        policy.insert(seat, set.observation.clone(), probs.collect());
    }
    Ok(BestResponse { value, policy })
}

/// Expected return of each seat when `all` plays every seat.
pub fn expected_returns<G: Game>(game: &G, tree: &HistoryTree<G>, all: &dyn Opponent<G>) -> Result<[f64; MAX_PLAYERS]> {
    let probs = edge_probabilities(game, tree, all, None)?;
    let mut value: Vec<[f64; MAX_PLAYERS]> = tree.nodes().iter().map(|n| n.returns).collect();
    for (id, node) in tree.nodes().iter().enumerate().rev().filter(|(_, n)| n.current_player != CurrentPlayer::Terminal)
    {
        let mut mean = [0.0; MAX_PLAYERS];
        for (e, p) in node.edges.iter().zip(&probs[id]) {
            mean.iter_mut().zip(value[e.child]).for_each(|(m, v)| *m += p * v);
        }
        value[id] = mean;
    }
    Ok(value[0])
}

/// Exploitability: the gain of a best response over the current policy, averaged over seats; 0 at an equilibrium.
pub fn exploitability<G: Game>(game: &G, tree: &HistoryTree<G>, all: &dyn Opponent<G>) -> Result<f64> {
    let current = expected_returns(game, tree, all)?;
    let mut gain = 0.0;
    for seat in 0..tree.players() {
        gain += best_response(game, tree, seat, all)?.value - current[usize::from(seat)];
    }
    Ok(gain / f64::from(tree.players()))
}

/// Probability of each edge. Edges of `free`'s own actions get 1, which leaves them out of reach products.
fn edge_probabilities<G: Game>(
    game: &G,
    tree: &HistoryTree<G>,
    players: &dyn Opponent<G>,
    free: Option<u8>,
) -> Result<Vec<Vec<f64>>> {
    let row = |node: &super::HistoryNode<G::State>| match node.current_player {
        CurrentPlayer::Terminal => Ok(Vec::new()),
        CurrentPlayer::Chance => Ok(node.edges.iter().map(|e| e.probability.unwrap_or(0.0)).collect()),
        CurrentPlayer::Player(p) if Some(p) == free => Ok(vec![1.0; node.edges.len()]),
        CurrentPlayer::Player(p) => {
            let policy = players.policy(game, &node.state, p).ok_or_else(|| missing_policy(game, &node.state, p))?;
            let of = |a| policy.iter().find(|(b, _)| *b == a).map_or(0.0, |(_, p)| *p);
            Ok(node.edges.iter().map(|e| of(e.action)).collect())
        }
    };
    tree.nodes().iter().map(row).collect()
}

/// Error for an opponent without action probabilities.
pub(in crate::solvers) fn missing_policy<G: Game>(game: &G, s: &G::State, seat: u8) -> Error {
    Error::invalid(
        "oracle",
        format!(
            "the strategy in seat {seat} has no action probabilities at `{}`; exact solvers need them",
            game.observe(s, seat)
        ),
    )
}

struct BestResponseSearch<'a, G: Game> {
    tree: &'a HistoryTree<G>,
    seat: u8,
    probs: &'a [Vec<f64>],
    reach: &'a [f64],
    choice: Vec<Option<usize>>,
    value: Vec<Option<f64>>,
}

impl<G: Game> BestResponseSearch<'_, G> {
    fn value_of(&mut self, id: usize) -> f64 {
        if let Some(v) = self.value[id] {
            return v;
        }
        let tree = self.tree;
        let node = &tree.nodes()[id];
        let v = match (node.current_player, node.info_set) {
            (CurrentPlayer::Terminal, _) => node.returns[usize::from(self.seat)],
            (CurrentPlayer::Player(p), Some(set)) if p == self.seat => {
                let best = self.choose(set);
                self.value_of(node.edges[best].child)
            }
            _ => {
                let mut sum = 0.0;
                for (e, p) in node.edges.iter().zip(&self.probs[id]).filter(|(_, p)| **p > 0.0) {
                    sum += p * self.value_of(e.child);
                }
                sum
            }
        };
        self.value[id] = Some(v);
        v
    }

    fn choose(&mut self, set: usize) -> usize {
        if let Some(best) = self.choice[set] {
            return best;
        }
        let tree = self.tree;
        let info = &tree.info_sets()[set];
        let mut best = (0, f64::NEG_INFINITY);
        for i in 0..info.actions.len() {
            let mut total = 0.0;
            for id in &info.nodes {
                total += self.reach[*id] * self.value_of(tree.nodes()[*id].edges[i].child);
            }
            if total > best.1 {
                best = (i, total);
            }
        }
        self.choice[set] = Some(best.0);
        best.0
    }
}
