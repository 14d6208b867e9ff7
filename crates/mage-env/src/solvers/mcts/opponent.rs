//! Who searches before each move?

use super::{Mcts, SearchTree};
use crate::{ActionId, ActionProbs, Game, Opponent, Rng};
use std::sync::{Mutex, PoisonError};

/// An opponent that searches before each move, with luck from the generator it is given.
#[derive(Debug)]
pub struct MctsOpponent {
    search: Mcts,
    /// Trees not in use, for whoever moves next.
    spare: Mutex<Vec<SearchTree>>,
}

impl MctsOpponent {
    /// Searches like this.
    pub fn new(search: Mcts) -> Self {
        MctsOpponent { search, spare: Mutex::new(Vec::new()) }
    }

    /// How it searches.
    pub fn settings(&self) -> Mcts {
        self.search
    }

    fn with_tree<T>(&self, work: impl FnOnce(&mut SearchTree) -> T) -> T {
        // A tree is rewritten before use, so one left behind by a panic elsewhere does no harm.
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tree = spare().pop().unwrap_or_default();
        let result = work(&mut tree);
        spare().push(tree);
        result
    }
}

impl<G: Game> Opponent<G> for MctsOpponent {
    /// None: how likely each move is can only be found by playing.
    fn policy(&self, _game: &G, _s: &G::State, _seat: u8) -> Option<ActionProbs> {
        None
    }

    fn act(&self, game: &G, s: &G::State, _seat: u8, rng: &mut Rng) -> ActionId {
        self.with_tree(|tree| self.search.choose(game, s, tree, rng))
    }
}
