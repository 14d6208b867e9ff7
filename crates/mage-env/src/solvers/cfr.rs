//! Counterfactual regret minimisation (Zinkevich et al., 2007) on a history tree.
//!
//! Plain regret matching with alternating updates; the average policy is weighted by the player's own reach
//! probability. It is OpenSpiel's `CFRSolver`, and the tests compare both.

use super::{HistoryTree, TabularPolicy};
use crate::{CurrentPlayer, Game, MAX_PLAYERS};
use smallvec::{SmallVec, smallvec};

/// A CFR solver.
pub struct Cfr<'t, G: Game> {
    tree: &'t HistoryTree<G>,
    /// Cumulative regret by information set and action.
    regret: Vec<Vec<f64>>,
    policy_sum: Vec<Vec<f64>>,
    current: Vec<Vec<f64>>,
}

/// Reach probability of a history by player; the last entry is chance.
type Reach = [f64; MAX_PLAYERS + 1];

impl<'t, G: Game> Cfr<'t, G> {
    /// Starts from the uniform policy.
    pub fn new(tree: &'t HistoryTree<G>) -> Self {
        let zeros: Vec<Vec<f64>> = tree.info_sets().iter().map(|s| vec![0.0; s.actions.len()]).collect();
        let current = zeros.iter().map(|row| vec![1.0 / row.len() as f64; row.len()]).collect();
        Cfr { tree, regret: zeros.clone(), policy_sum: zeros, current }
    }

    /// Runs `iterations` more iterations. Each updates every player once, in seat order.
    pub fn run(&mut self, iterations: u32) {
        for _ in 0..iterations {
            for player in 0..self.tree.players() {
                self.visit(0, player, &mut [1.0; MAX_PLAYERS + 1]);
                self.match_regrets(player);
            }
        }
    }

    /// The average policy of all iterations, which converges to an equilibrium in two-player zero-sum games.
    pub fn average_policy(&self) -> TabularPolicy {
        let mut out = TabularPolicy::default();
        for (set, sums) in self.tree.info_sets().iter().zip(&self.policy_sum) {
            let probs = normalised(sums);
            out.insert(set.player, set.observation.clone(), set.actions.iter().copied().zip(probs).collect());
        }
        out
    }

    /// Adds the regrets of player `updated` below a node and returns the node's value for every player.
    fn visit(&mut self, node: usize, updated: u8, reach: &mut Reach) -> [f64; MAX_PLAYERS] {
        let tree = self.tree;
        let n = &tree.nodes()[node];
        let players = usize::from(tree.players());
        match n.current_player {
            CurrentPlayer::Terminal => n.returns,
            CurrentPlayer::Chance => {
                let mut value = [0.0; MAX_PLAYERS];
                for e in &n.edges {
                    let p = e.probability.unwrap_or(0.0);
                    let child = self.step(e.child, updated, reach, MAX_PLAYERS, p);
                    (0..players).for_each(|i| value[i] += p * child[i]);
                }
                value
            }
            CurrentPlayer::Player(mover) => {
                if reach[..players].iter().all(|r| *r == 0.0) {
                    return [0.0; MAX_PLAYERS]; // all counterfactual and policy weights below are zero
                }
                let mover = usize::from(mover);
                let set = n.info_set.expect("a player's node has an information set");
                let mut value = [0.0; MAX_PLAYERS];
                let mut own: SmallVec<[f64; 16]> = smallvec![0.0; n.edges.len()];
                for (i, e) in n.edges.iter().enumerate() {
                    let p = self.current[set][i];
                    let child = self.step(e.child, updated, reach, mover, p);
                    (0..players).for_each(|j| value[j] += p * child[j]);
                    own[i] = child[mover];
                }
                if mover == usize::from(updated) {
                    let others: f64 = (0..=MAX_PLAYERS).filter(|i| *i != mover).map(|i| reach[i]).product();
                    for (i, child) in own.iter().enumerate() {
                        self.regret[set][i] += others * (child - value[mover]);
                        self.policy_sum[set][i] += reach[mover] * self.current[set][i];
                    }
                }
                value
            }
        }
    }

    fn step(&mut self, child: usize, updated: u8, reach: &mut Reach, player: usize, p: f64) -> [f64; MAX_PLAYERS] {
        let before = reach[player];
        reach[player] = before * p;
        let value = self.visit(child, updated, reach);
        reach[player] = before;
        value
    }

    fn match_regrets(&mut self, player: u8) {
        for (id, _) in self.tree.info_sets().iter().enumerate().filter(|(_, s)| s.player == player) {
            let positive: Vec<f64> = self.regret[id].iter().map(|r| r.max(0.0)).collect();
            self.current[id] = normalised(&positive);
        }
    }
}

/// Normalises weights; uniform if all are zero.
fn normalised(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    if total > 0.0 {
        weights.iter().map(|w| w / total).collect()
    } else {
        vec![1.0 / weights.len() as f64; weights.len()]
    }
}
