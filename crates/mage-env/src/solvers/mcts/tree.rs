//! The search tree of MCTS.

use crate::{ActionId, CurrentPlayer, Game, MAX_PLAYERS, Rng};
use rand::RngExt;

/// A search tree. Its memory is reused by the next search.
#[derive(Debug, Default)]
pub struct SearchTree {
    /// The root first; siblings are contiguous.
    pub(super) nodes: Vec<MctsNode>,
    /// Path of the current simulation from the root to the leaf.
    pub(super) path: Vec<u32>,
}

/// One node: a sequence of actions from the root.
#[derive(Clone, Copy, Debug)]
pub(super) struct MctsNode {
    /// Returns by seat, if proven.
    pub(super) outcome: [f32; MAX_PLAYERS],
    /// Sum of returns of the player who chose the action to this node.
    pub(super) total: f64,
    pub(super) visits: u32,
    first_child: u32,
    pub(super) children: u16,
    pub(super) action: ActionId,
    /// The player who chose the action to this node; at the root, the player to move.
    pub(super) player: u8,
    pub(super) proven: bool,
}

/// Player index of chance.
pub(super) const CHANCE: u8 = u8::MAX;

/// Capacity reserved in advance at most; larger trees grow on demand.
const MAX_RESERVED_NODES: usize = 1 << 17;

/// Search statistics of one root action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActionStats {
    /// The action.
    pub action: ActionId,
    /// Number of visits.
    pub visits: u32,
    /// Mean return of the player to move; NaN without visits.
    pub mean: f64,
    /// Return of the player to move, if proven.
    pub proven: Option<f32>,
}

impl SearchTree {
    /// Statistics of the root's actions, in no particular order.
    pub fn action_stats(&self) -> impl Iterator<Item = ActionStats> + '_ {
        self.children_of(0).iter().map(MctsNode::action_stats)
    }

    /// Return of the player to move at the root, if proven.
    pub fn proven(&self) -> Option<f32> {
        let root = self.nodes.first()?;
        root.proven.then(|| root.own_outcome())
    }

    /// The best root action: by proven return (0 if not proven), then visits, then total return.
    pub(super) fn best(&self) -> Option<&MctsNode> {
        let key = |n: &MctsNode| (if n.proven { n.own_outcome() } else { 0.0 }, n.visits, n.total);
        let mut best: Option<&MctsNode> = None;
        for node in self.children_of(0) {
            if best.is_none_or(|b| key(node) > key(b)) {
                best = Some(node);
            }
        }
        best
    }

    pub(super) fn reset(&mut self, mover: u8, simulations: u32, actions: usize) {
        self.nodes.clear();
        self.nodes.reserve((1 + simulations as usize * actions).min(MAX_RESERVED_NODES));
        self.nodes.push(MctsNode::new(ActionId(0), mover));
    }

    fn children_of(&self, at: usize) -> &[MctsNode] {
        match self.nodes.get(at) {
            Some(n) => &self.nodes[n.first_child as usize..][..usize::from(n.children)],
            None => &[],
        }
    }

    /// Creates the children of a node, in random order so that ties favour no action.
    pub(super) fn expand<G: Game>(&mut self, at: usize, game: &G, state: &G::State, rng: &mut Rng) {
        let player = match game.current_player(state) {
            CurrentPlayer::Player(p) => p,
            _ => CHANCE,
        };
        let mut actions = game.legal(state);
        for i in (1..actions.len()).rev() {
            actions.swap(i, rng.random_range(0..=i));
        }
        self.nodes[at].first_child = self.nodes.len() as u32;
        self.nodes[at].children = actions.len() as u16;
        self.nodes.extend(actions.into_iter().map(|a| MctsNode::new(a, player)));
    }

    pub(super) fn child_by(&self, at: usize, action: ActionId) -> usize {
        let i = self.children_of(at).iter().position(|n| n.action == action).expect("chance actions are legal");
        self.nodes[at].first_child as usize + i
    }

    /// The child with the largest upper confidence bound; a proven child counts with its return.
    pub(super) fn select_child(&self, at: usize, uct_c: f64) -> usize {
        let log_visits = f64::from(self.nodes[at].visits).ln();
        let mut best = (f64::NEG_INFINITY, 0);
        for (i, n) in self.children_of(at).iter().enumerate() {
            let value = if n.proven {
                f64::from(n.own_outcome())
            } else if n.visits == 0 {
                f64::INFINITY
            } else {
                let visits = f64::from(n.visits);
                n.total / visits + uct_c * (log_visits / visits).sqrt()
            };
            if value == f64::INFINITY {
                best = (value, i);
                break;
            }
            if value > best.0 {
                best = (value, i);
            }
        }
        self.nodes[at].first_child as usize + best.1
    }

    /// The result of a node if its children prove one: all are proven, or one has the maximum return for the player who
    /// chooses. A chance node is proven only if all children have the same result.
    pub(super) fn prove(&self, at: usize, best_return: f32) -> Option<[f32; MAX_PLAYERS]> {
        let children = self.children_of(at);
        let chooser = children[0].player;
        if chooser == CHANCE {
            let first = children[0].outcome;
            return children.iter().all(|n| n.proven && n.outcome == first).then_some(first);
        }
        let proven = children.iter().filter(|n| n.proven);
        let best = proven.max_by(|a, b| a.own_outcome().total_cmp(&b.own_outcome()))?;
        let decided = best.own_outcome() >= best_return || children.iter().all(|n| n.proven);
        decided.then_some(best.outcome)
    }
}

impl MctsNode {
    fn new(action: ActionId, player: u8) -> Self {
        MctsNode {
            outcome: [0.0; MAX_PLAYERS],
            total: 0.0,
            visits: 0,
            first_child: 0,
            children: 0,
            action,
            player,
            proven: false,
        }
    }

    fn own_outcome(&self) -> f32 {
        self.outcome[usize::from(self.player)]
    }

    fn action_stats(&self) -> ActionStats {
        ActionStats {
            action: self.action,
            visits: self.visits,
            mean: self.total / f64::from(self.visits),
            proven: self.proven.then(|| self.own_outcome()),
        }
    }
}
