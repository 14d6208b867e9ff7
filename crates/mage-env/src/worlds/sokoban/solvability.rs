//! Solvability of states.
//!
//! The reference searches after every step. Here the solvable states of a room are tabulated once ([`SolvableTable`]).
//! Levels with too many box placements are searched with A* per new state; all states along a found solution are
//! cached.

use super::{
    board::{SokobanBoard, SokobanState},
    solvable_table::{SolvableTable, placements},
    solver::{SearchCost, SearchResult, solve},
};
use std::collections::HashMap;

/// State limit of one search in a level too large for a table. A search that reaches it is inconclusive, and the state
/// counts as solvable.
const MAX_SEARCH_STATES: usize = 200_000;

/// Decides for the states of one board whether they can be solved.
pub struct SolvabilityChecker {
    max_moves: u32,
    method: Option<SolvabilityMethod>,
    table64: SolvableTable<u64>,
    table128: SolvableTable<u128>,
    /// Keyed by the state with the player in the lowest reachable cell.
    verdicts: HashMap<SokobanState, bool>,
}

#[derive(Clone, Copy)]
enum SolvabilityMethod {
    Table64,
    Table128,
    PushSearch,
}

impl SolvabilityChecker {
    /// Solutions longer than `max_moves` do not count, like the reference's search depth. Levels too large for a table
    /// ignore this limit.
    pub fn new(max_moves: u32) -> Self {
        SolvabilityChecker {
            max_moves,
            method: None,
            table64: SolvableTable::new(),
            table128: SolvableTable::new(),
            verdicts: HashMap::new(),
        }
    }

    /// Prepares for another board, keeping the buffers.
    pub fn clear(&mut self) {
        self.method = None;
        self.verdicts.clear();
    }

    /// Whether the state can be solved. All calls until [`clear`](SolvabilityChecker::clear) must pass the same board.
    pub fn check(&mut self, board: &SokobanBoard, s: &SokobanState) -> bool {
        let method = match self.method {
            Some(method) => method,
            None => self.select_method(board),
        };
        match method {
            SolvabilityMethod::Table64 => self.table64.contains(s),
            SolvabilityMethod::Table128 => self.table128.contains(s),
            SolvabilityMethod::PushSearch => self.search(board, s),
        }
    }

    fn select_method(&mut self, board: &SokobanBoard) -> SolvabilityMethod {
        let method = match placements(board) {
            None => SolvabilityMethod::PushSearch,
            Some(_) if board.fits_in_64_bits() => {
                self.table64.fill(board, self.max_moves);
                SolvabilityMethod::Table64
            }
            Some(_) => {
                self.table128.fill(board, self.max_moves);
                SolvabilityMethod::Table128
            }
        };
        self.method = Some(method);
        method
    }

    fn search(&mut self, board: &SokobanBoard, s: &SokobanState) -> bool {
        let key = |s: &SokobanState| {
            let region = board.masks::<u128>().reachable(s.player, s.boxes);
            SokobanState { player: region.trailing_zeros() as u8, ..*s }
        };
        if let Some(known) = self.verdicts.get(&key(s)) {
            return *known;
        }
        match solve(board, *s, SearchCost::Pushes, MAX_SEARCH_STATES) {
            SearchResult::Unsolvable => {
                self.verdicts.insert(key(s), false);
                false
            }
            SearchResult::StateLimit(_) => {
                self.verdicts.insert(key(s), true);
                true
            }
            SearchResult::Solved(solution) => {
                let mut at = *s;
                self.verdicts.insert(key(&at), true);
                for direction in solution.moves {
                    board.apply(&mut at, direction);
                    self.verdicts.insert(key(&at), true);
                }
                true
            }
        }
    }
}
