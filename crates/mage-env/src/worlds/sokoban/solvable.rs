//! Can it still be solved?
//!
//! The reference searches after every step. Here all solvable states of a room are listed once ([`Table`]) and looked up.
//! A level with too many placements of its boxes for that is searched with A* when a state is new, and every state on the
//! way to a solution is remembered.

use super::{
    board::{Board, State},
    solver::{Cost, Verdict, solve},
    table::{Table, placements},
};
use std::collections::HashMap;

/// States one search may store for a level too large for a table. A search that ends there proves nothing, and the level
/// counts as solvable.
const SEARCH_STATES: usize = 200_000;

/// Knows of every state of a board whether it can be solved.
pub struct Solvable {
    most_moves: u32,
    method: Option<Method>,
    narrow: Table<u64>,
    wide: Table<u128>,
    /// By state, the player in the lowest cell of its region.
    verdicts: HashMap<State, bool>,
}

#[derive(Clone, Copy)]
enum Method {
    NarrowTable,
    WideTable,
    Search,
}

impl Solvable {
    /// Solutions of more than `most_moves` moves do not count, as with the reference's search depth. (In levels too large
    /// for a table they do: there the number of moves is not looked at.)
    pub fn new(most_moves: u32) -> Self {
        Solvable { most_moves, method: None, narrow: Table::new(), wide: Table::new(), verdicts: HashMap::new() }
    }

    /// Makes ready for another board, keeping the memory.
    pub fn clear(&mut self) {
        self.method = None;
        self.verdicts.clear();
    }

    /// Whether the state can be solved. All questions until [`clear`](Solvable::clear) are about one board.
    pub fn check(&mut self, board: &Board, s: &State) -> bool {
        let method = match self.method {
            Some(method) => method,
            None => self.learn(board),
        };
        match method {
            Method::NarrowTable => self.narrow.has(s),
            Method::WideTable => self.wide.has(s),
            Method::Search => self.search(board, s),
        }
    }

    fn learn(&mut self, board: &Board) -> Method {
        let method = match placements(board) {
            None => Method::Search,
            Some(_) if board.is_narrow() => {
                self.narrow.fill(board, self.most_moves);
                Method::NarrowTable
            }
            Some(_) => {
                self.wide.fill(board, self.most_moves);
                Method::WideTable
            }
        };
        self.method = Some(method);
        method
    }

    fn search(&mut self, board: &Board, s: &State) -> bool {
        let key = |s: &State| {
            let region = board.view::<u128>().region(s.player, s.boxes);
            State { player: region.trailing_zeros() as u8, ..*s }
        };
        if let Some(known) = self.verdicts.get(&key(s)) {
            return *known;
        }
        match solve(board, *s, Cost::Pushes, SEARCH_STATES) {
            Verdict::Impossible => {
                self.verdicts.insert(key(s), false);
                false
            }
            Verdict::GaveUp(_) => {
                self.verdicts.insert(key(s), true);
                true
            }
            Verdict::Solved(solution) => {
                let mut at = *s;
                self.verdicts.insert(key(&at), true);
                for way in solution.moves {
                    board.go(&mut at, way);
                    self.verdicts.insert(key(&at), true);
                }
                true
            }
        }
    }
}
