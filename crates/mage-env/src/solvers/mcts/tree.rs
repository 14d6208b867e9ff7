//! What has a search found out so far?

use crate::{ActionId, CurrentPlayer, Game, MAX_PLAYERS, Rng};
use rand::RngExt;

/// What a search found; its memory serves the next search too.
#[derive(Debug, Default)]
pub struct SearchTree {
    /// The root first; siblings together.
    pub(super) nodes: Vec<SearchNode>,
    /// From the root to the leaf of the current simulation.
    pub(super) path: Vec<u32>,
}

/// A way the game may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchNode {
    /// What each seat gets, when proven.
    pub(super) outcome: [f32; MAX_PLAYERS],
    /// The returns of whoever chose the action that led here, added up.
    pub(super) total: f64,
    pub(super) visits: u32,
    first_child: u32,
    pub(super) children: u16,
    pub(super) action: ActionId,
    /// Whoever chose the action that led here; at the root, whoever moves.
    pub(super) player: u8,
    pub(super) proven: bool,
}

/// Stands for nature where a player's number is kept.
pub(super) const NATURE: u8 = u8::MAX;

/// A tree this large is not reserved ahead, but grows.
const RESERVE_AT_MOST: usize = 1 << 17;

/// One of the root's actions and what the search thinks of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActionStats {
    /// The action.
    pub action: ActionId,
    /// How often it was tried.
    pub visits: u32,
    /// The mover's mean return; not a number when never tried.
    pub mean: f64,
    /// The mover's return, when proven.
    pub proven: Option<f32>,
}

impl SearchTree {
    /// The root's actions, in no particular order.
    pub fn action_stats(&self) -> impl Iterator<Item = ActionStats> + '_ {
        self.children_of(0).iter().map(SearchNode::action_stats)
    }

    /// The mover's return at the root, when proven.
    pub fn proven(&self) -> Option<f32> {
        let root = self.nodes.first()?;
        root.proven.then(|| root.own_outcome())
    }

    /// The action to play: by proven return (0 when not proven), then visits, then total return.
    pub(super) fn best(&self) -> Option<&SearchNode> {
        let key = |n: &SearchNode| (if n.proven { n.own_outcome() } else { 0.0 }, n.visits, n.total);
        let mut best: Option<&SearchNode> = None;
        for node in self.children_of(0) {
            if best.is_none_or(|b| key(node) > key(b)) {
                best = Some(node);
            }
        }
        best
    }

    pub(super) fn plant(&mut self, mover: u8, simulations: u32, actions: usize) {
        self.nodes.clear();
        self.nodes.reserve((1 + simulations as usize * actions).min(RESERVE_AT_MOST));
        self.nodes.push(SearchNode::new(ActionId(0), mover));
    }

    fn children_of(&self, at: usize) -> &[SearchNode] {
        match self.nodes.get(at) {
            Some(n) => &self.nodes[n.first_child as usize..][..usize::from(n.children)],
            None => &[],
        }
    }

    /// Makes the children of a node, in random order so that ties favour no action.
    pub(super) fn expand<G: Game>(&mut self, at: usize, game: &G, state: &G::State, rng: &mut Rng) {
        let player = match game.current_player(state) {
            CurrentPlayer::Player(p) => p,
            _ => NATURE,
        };
        let mut actions = game.legal(state);
        for i in (1..actions.len()).rev() {
            actions.swap(i, rng.random_range(0..=i));
        }
        self.nodes[at].first_child = self.nodes.len() as u32;
        self.nodes[at].children = actions.len() as u16;
        self.nodes.extend(actions.into_iter().map(|a| SearchNode::new(a, player)));
    }

    pub(super) fn child_by(&self, at: usize, action: ActionId) -> usize {
        let i = self.children_of(at).iter().position(|n| n.action == action).expect("nature's actions are legal");
        self.nodes[at].first_child as usize + i
    }

    /// The child with the largest upper confidence bound; a proven one counts for what it is.
    pub(super) fn most_promising(&self, at: usize, uct_c: f64) -> usize {
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

    /// The result of a node, if its children prove one: all are proven, or one is as good as can be for whoever
    /// chooses. Nature's choice proves a result only when all of them lead to it.
    pub(super) fn proof(&self, at: usize, best_return: f32) -> Option<[f32; MAX_PLAYERS]> {
        let children = self.children_of(at);
        let chooser = children[0].player;
        if chooser == NATURE {
            let first = children[0].outcome;
            return children.iter().all(|n| n.proven && n.outcome == first).then_some(first);
        }
        let proven = children.iter().filter(|n| n.proven);
        let best = proven.max_by(|a, b| a.own_outcome().total_cmp(&b.own_outcome()))?;
        let settled = best.own_outcome() >= best_return || children.iter().all(|n| n.proven);
        settled.then_some(best.outcome)
    }
}

impl SearchNode {
    fn new(action: ActionId, player: u8) -> Self {
        SearchNode {
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
