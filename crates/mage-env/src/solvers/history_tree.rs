//! What can happen in this game, all of it?
//!
//! [`HistoryTree`] lists every history of a small game, with the information sets they fall into. Equilibria ([`super::Cfr`]) and
//! plain best responses ([`super::best_response`]) are computed on it. Games too large to write out are refused; the
//! belief solver ([`super::BayesAdaptiveSolver`]) works on positions instead, of which there are far fewer.

use crate::{ActionId, ActionList, CurrentPlayer, Error, Game, MAX_PLAYERS, Result, Seed};
use std::collections::HashMap;

/// The most histories a tree may have: Tic-Tac-Toe's 549,946 fit.
pub const MAX_HISTORIES: usize = 2_000_000;

/// Every history of a game. Parents come before their children, so that walking backwards goes bottom up.
pub struct HistoryTree<G: Game> {
    nodes: Vec<HistoryNode<G::State>>,
    sets: Vec<HistoryInfoSet>,
    players: u8,
}

/// One history.
pub struct HistoryNode<S> {
    /// The position it leads to.
    pub state: S,
    /// Who moves next.
    pub turn: CurrentPlayer,
    /// What the player who moves next knows, as an index into [`HistoryTree::sets`].
    pub set: Option<usize>,
    /// What may happen next.
    pub edges: Vec<HistoryEdge>,
    /// What each seat has won so far.
    pub returns: [f64; MAX_PLAYERS],
}

/// One thing that may happen next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryEdge {
    /// The action, a player's or nature's.
    pub action: ActionId,
    /// The history after it.
    pub child: usize,
    /// How likely nature takes it; `None` where a player decides.
    pub chance: Option<f64>,
}

/// All histories that look the same to the player who has to move.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryInfoSet {
    /// Who moves.
    pub player: u8,
    /// What the player knows ([`Game::observe`]).
    pub text: String,
    /// What the player may do.
    pub actions: ActionList,
    /// The histories.
    pub nodes: Vec<usize>,
}

impl<G: Game> HistoryTree<G> {
    /// Writes the game out. Refuses a game of more than [`MAX_HISTORIES`].
    pub fn new(game: &G) -> Result<Self> {
        Self::with_limit(game, MAX_HISTORIES)
    }

    /// Writes the game out, unless it has more than `limit` histories.
    pub fn with_limit(game: &G, limit: usize) -> Result<Self> {
        let mut builder = Builder { game, limit, nodes: Vec::new(), sets: Vec::new(), index: HashMap::new() };
        builder.add(game.initial(&mut Seed::new(0).rng()))?;
        Ok(HistoryTree { nodes: builder.nodes, sets: builder.sets, players: game.players() })
    }

    /// The histories; the first is the start of the game.
    pub fn nodes(&self) -> &[HistoryNode<G::State>] {
        &self.nodes
    }

    /// The information sets of all players.
    pub fn info_sets(&self) -> &[HistoryInfoSet] {
        &self.sets
    }

    /// How many seats the game has.
    pub fn players(&self) -> u8 {
        self.players
    }
}

struct Builder<'g, G: Game> {
    game: &'g G,
    limit: usize,
    nodes: Vec<HistoryNode<G::State>>,
    sets: Vec<HistoryInfoSet>,
    index: HashMap<(u8, String), usize>,
}

impl<G: Game> Builder<'_, G> {
    fn add(&mut self, state: G::State) -> Result<usize> {
        let id = self.nodes.len();
        if id >= self.limit {
            return Err(Error::invalid(
                "game tree",
                format!("more than {} histories; this oracle is for smaller games", self.limit),
            ));
        }
        let turn = self.game.current_player(&state);
        let steps: Vec<(ActionId, Option<f64>)> = match turn {
            CurrentPlayer::Terminal => Vec::new(),
            CurrentPlayer::Chance => self.game.chance(&state).into_iter().map(|(a, p)| (a, Some(p))).collect(),
            CurrentPlayer::Player(_) => self.game.legal(&state).into_iter().map(|a| (a, None)).collect(),
        };
        let set = match turn {
            CurrentPlayer::Player(p) => Some(self.set_of(&state, p, id, steps.iter().map(|(a, _)| *a).collect())?),
            _ => None,
        };
        let returns = self.game.returns(&state).map(f64::from);
        self.nodes.push(HistoryNode {
            state: state.clone(),
            turn,
            set,
            edges: Vec::with_capacity(steps.len()),
            returns,
        });
        for (action, chance) in steps {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            let child = self.add(next)?;
            self.nodes[id].edges.push(HistoryEdge { action, child, chance });
        }
        Ok(id)
    }

    fn set_of(&mut self, state: &G::State, player: u8, node: usize, actions: ActionList) -> Result<usize> {
        let text = self.game.observe(state, player);
        let fresh = self.sets.len();
        let id = *self.index.entry((player, text.clone())).or_insert(fresh);
        if id == fresh {
            self.sets.push(HistoryInfoSet { player, text, actions, nodes: vec![node] });
        } else if self.sets[id].actions == actions {
            self.sets[id].nodes.push(node);
        } else {
            return Err(Error::invalid(
                "game tree",
                format!("seat {player} sees `{text}` in positions with different legal actions; `observe` must tell"),
            ));
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kuhn::Kuhn;

    #[test]
    fn parents_come_first_and_sets_cover_all_decisions() {
        let tree = HistoryTree::new(&Kuhn).unwrap();
        assert_eq!(tree.nodes().len(), 58);
        assert_eq!(tree.info_sets().len(), 12);
        assert_eq!(tree.info_sets().iter().map(|s| s.nodes.len()).sum::<usize>(), 24);
        for (id, node) in tree.nodes().iter().enumerate() {
            assert!(node.edges.iter().all(|e| e.child > id));
        }
    }

    #[test]
    fn large_games_are_refused() {
        let error = HistoryTree::with_limit(&Kuhn, 57).err().unwrap().to_string();
        assert!(error.contains("more than 57 histories"), "{error}");
    }
}
