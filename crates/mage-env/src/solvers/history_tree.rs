//! The tree of all histories of a small game, with its information sets.
//!
//! Equilibria ([`super::Cfr`]) and best responses ([`super::best_response()`]) are computed on it. Larger games are
//! rejected; the belief solver ([`super::BayesAdaptiveSolver`]) works on states, of which there are far fewer.

use crate::{ActionId, ActionList, CurrentPlayer, Error, Game, MAX_PLAYERS, Result, Seed};
use std::collections::HashMap;

/// Maximum number of histories. Tic-Tac-Toe's 549,946 fit.
const MAX_HISTORIES: usize = 2_000_000;

/// Every history of a game. Parents precede their children, so backward iteration is bottom-up.
pub struct HistoryTree<G: Game> {
    nodes: Vec<HistoryNode<G::State>>,
    info_sets: Vec<HistoryInfoSet>,
    players: u8,
}

/// One history.
pub struct HistoryNode<S> {
    /// The state after the history.
    pub state: S,
    /// The player to move.
    pub current_player: CurrentPlayer,
    /// The mover's information set, as an index into [`HistoryTree::info_sets`].
    pub info_set: Option<usize>,
    /// Edges to the next histories.
    pub edges: Vec<HistoryEdge>,
    /// Returns of each seat so far.
    pub returns: [f64; MAX_PLAYERS],
}

/// An edge to the next history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryEdge {
    /// The action of a player or of chance.
    pub action: ActionId,
    /// The history after it.
    pub child: usize,
    /// Probability of a chance action; `None` for a player's.
    pub probability: Option<f64>,
}

/// An information set: the histories that the player to move cannot distinguish.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryInfoSet {
    /// The player to move.
    pub player: u8,
    /// The player's observation ([`Game::observe`]).
    pub observation: String,
    /// The legal actions.
    pub actions: ActionList,
    /// Its histories.
    pub nodes: Vec<usize>,
}

impl<G: Game> HistoryTree<G> {
    /// Enumerates a game. Fails for more than two million histories.
    pub fn new(game: &G) -> Result<Self> {
        Self::with_limit(game, MAX_HISTORIES)
    }

    /// Enumerates a game. Fails for more than `limit` histories.
    pub(crate) fn with_limit(game: &G, limit: usize) -> Result<Self> {
        let mut builder =
            HistoryTreeBuilder { game, limit, nodes: Vec::new(), info_sets: Vec::new(), index: HashMap::new() };
        builder.add(game.initial(&mut Seed::new(0).rng()))?;
        Ok(HistoryTree { nodes: builder.nodes, info_sets: builder.info_sets, players: game.players() })
    }

    /// All histories; the first is the root.
    pub fn nodes(&self) -> &[HistoryNode<G::State>] {
        &self.nodes
    }

    /// The information sets of all players.
    pub fn info_sets(&self) -> &[HistoryInfoSet] {
        &self.info_sets
    }

    /// Number of seats.
    pub fn players(&self) -> u8 {
        self.players
    }
}

struct HistoryTreeBuilder<'g, G: Game> {
    game: &'g G,
    limit: usize,
    nodes: Vec<HistoryNode<G::State>>,
    info_sets: Vec<HistoryInfoSet>,
    index: HashMap<(u8, String), usize>,
}

impl<G: Game> HistoryTreeBuilder<'_, G> {
    fn add(&mut self, state: G::State) -> Result<usize> {
        let id = self.nodes.len();
        if id >= self.limit {
            return Err(Error::invalid(
                "game tree",
                format!("more than {} histories; this solver supports smaller games only", self.limit),
            ));
        }
        let current_player = self.game.current_player(&state);
        let steps: Vec<(ActionId, Option<f64>)> = match current_player {
            CurrentPlayer::Terminal => Vec::new(),
            CurrentPlayer::Chance => self.game.chance(&state).into_iter().map(|(a, p)| (a, Some(p))).collect(),
            CurrentPlayer::Player(_) => self.game.legal(&state).into_iter().map(|a| (a, None)).collect(),
        };
        let info_set = match current_player {
            CurrentPlayer::Player(p) => {
                Some(self.add_to_info_set(&state, p, id, steps.iter().map(|(a, _)| *a).collect())?)
            }
            _ => None,
        };
        let returns = self.game.returns(&state).map(f64::from);
        self.nodes.push(HistoryNode {
            state: state.clone(),
            current_player,
            info_set,
            edges: Vec::with_capacity(steps.len()),
            returns,
        });
        for (action, probability) in steps {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            let child = self.add(next)?;
            self.nodes[id].edges.push(HistoryEdge { action, child, probability });
        }
        Ok(id)
    }

    fn add_to_info_set(&mut self, state: &G::State, player: u8, node: usize, actions: ActionList) -> Result<usize> {
        let observation = self.game.observe(state, player);
        let fresh = self.info_sets.len();
        let id = *self.index.entry((player, observation.clone())).or_insert(fresh);
        if id == fresh {
            self.info_sets.push(HistoryInfoSet { player, observation, actions, nodes: vec![node] });
        } else if self.info_sets[id].actions == actions {
            self.info_sets[id].nodes.push(node);
        } else {
            return Err(Error::invalid(
                "game tree",
                format!(
                    "seat {player} observes `{observation}` in states with different legal actions; `observe` must distinguish them"
                ),
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
    fn parents_precede_children_and_info_sets_cover_all_decisions() {
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
