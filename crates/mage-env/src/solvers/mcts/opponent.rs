//! An opponent that plays by Monte-Carlo tree search.

use super::{Mcts, SearchTree};
use crate::{ActionId, ActionProbs, Game, Opponent, Rng};
use std::sync::{Mutex, PoisonError};

/// An opponent that searches before each move. The caller's RNG drives the search.
#[derive(Debug)]
pub struct MctsOpponent {
    search: Mcts,
    /// Idle trees, for reuse.
    spare: Mutex<Vec<SearchTree>>,
}

impl MctsOpponent {
    /// An opponent with these search parameters.
    pub fn new(search: Mcts) -> Self {
        MctsOpponent { search, spare: Mutex::new(Vec::new()) }
    }

    /// The search parameters.
    pub fn settings(&self) -> Mcts {
        self.search
    }

    fn with_tree<T>(&self, work: impl FnOnce(&mut SearchTree) -> T) -> T {
        // A search resets its tree first, so a tree left by a panicked thread is harmless.
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tree = spare().pop().unwrap_or_default();
        let result = work(&mut tree);
        spare().push(tree);
        result
    }
}

impl<G: Game> Opponent<G> for MctsOpponent {
    /// `None`: the action probabilities of a search are unknown.
    fn policy(&self, _game: &G, _s: &G::State, _seat: u8) -> Option<ActionProbs> {
        None
    }

    fn act(&self, game: &G, s: &G::State, _seat: u8, rng: &mut Rng) -> ActionId {
        self.with_tree(|tree| self.search.choose(game, s, tree, rng))
    }
}
