//! Table of all solvable states, built by retrograde analysis.
//!
//! A breadth-first search runs backwards from the solved states, one move per level. All player cells that share a box
//! placement are one bitboard, so that a level costs a few operations per placement. Solvability is then a lookup.

use super::{
    bitboard::Bitboard,
    board::{Move, NO_CELL, SokobanBoard, SokobanState},
};

/// Maximum number of box placements in a table.
pub(super) const MAX_PLACEMENTS: u32 = 1 << 20;

/// Up to this many placements a table keeps its working buffers for the next room.
const MAX_RETAINED_PLACEMENTS: usize = 1 << 14;

/// Maximum number of boxes in a table.
const MAX_BOXES: usize = 16;

/// Binomial coefficients: `CHOOSE[k][n]` is n choose k, saturating at 32 bits.
static CHOOSE: [[u32; 129]; MAX_BOXES + 1] = {
    let mut c = [[0_u32; 129]; MAX_BOXES + 1];
    let mut n = 0;
    while n < 129 {
        c[0][n] = 1;
        let mut k = 1;
        while k <= MAX_BOXES && n > 0 {
            c[k][n] = c[k - 1][n - 1].saturating_add(c[k][n - 1]);
            k += 1;
        }
        n += 1;
    }
    c
};

/// Number of box placements of a board, if a table can hold them.
pub(super) fn placements(board: &SokobanBoard) -> Option<usize> {
    let row = CHOOSE.get(board.boxes() as usize)?;
    Some(row[board.cells()]).filter(|n| *n <= MAX_PLACEMENTS).map(|n| n as usize)
}

/// Rank of a set among all sets of its size (combinatorial number system).
fn rank<B: Bitboard>(set: B) -> usize {
    set.cells().enumerate().map(|(i, cell)| CHOOSE[i + 1][usize::from(cell)] as usize).sum()
}

/// All states of a board that can be solved within a number of moves.
pub(super) struct SolvableTable<B> {
    /// Per placement: player cells reached so far.
    solvable: Vec<B>,
    /// Per placement: player cells reached in the previous level.
    frontier: Vec<B>,
    /// Per placement: player cells reached in the current level.
    next_frontier: Vec<B>,
    /// Placements with cells in `frontier`.
    active: Vec<(u32, B)>,
    /// Placements with cells in `next_frontier`.
    next: Vec<(u32, B)>,
}

impl<B: Bitboard> SolvableTable<B> {
    pub(super) fn new() -> Self {
        SolvableTable {
            solvable: Vec::new(),
            frontier: Vec::new(),
            next_frontier: Vec::new(),
            active: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Initialises the table with the solved states. [`placements`] of the board must not be `None`.
    pub(super) fn reset(&mut self, board: &SokobanBoard) {
        let size = placements(board).expect("checked by the caller");
        let view = board.masks::<B>();
        for cells in [&mut self.solvable, &mut self.frontier, &mut self.next_frontier] {
            cells.clear();
            cells.resize(size, B::EMPTY);
        }
        self.next.clear();
        self.active.clear();
        let solved = rank(view.targets);
        let players = view.floor & !view.targets;
        self.solvable[solved] = players;
        self.frontier[solved] = players;
        self.active.push((solved as u32, view.targets));
    }

    /// Adds the states one move further from the goal; `false` if there are none.
    pub(super) fn expand(&mut self, board: &SokobanBoard) -> bool {
        let view = board.masks::<B>();
        let mut active = std::mem::take(&mut self.active);
        for (placement, boxes) in active.drain(..) {
            let players = std::mem::take(&mut self.frontier[placement as usize]);
            let free = view.floor & !boxes;
            self.add(placement, boxes, view.dilate(players) & free);
            for direction in Move::ALL {
                // A push in this direction left a box in front of the player, who came from behind.
                let pushed = players & view.shift(boxes, direction.opposite()) & view.shift(free, direction);
                for player in pushed.cells() {
                    let front = board.neighbour(player, direction);
                    let behind = board.neighbour(player, direction.opposite());
                    debug_assert!(front != NO_CELL && behind != NO_CELL);
                    let before = boxes ^ B::single(front) ^ B::single(player);
                    self.add(rank(before) as u32, before, B::single(behind));
                }
            }
        }
        // The drained list becomes the next level's, so that nothing is allocated once both have grown.
        self.active = std::mem::replace(&mut self.next, active);
        std::mem::swap(&mut self.frontier, &mut self.next_frontier);
        !self.active.is_empty()
    }

    fn add(&mut self, placement: u32, boxes: B, players: B) {
        let i = placement as usize;
        let new = players & !self.solvable[i];
        if new == B::EMPTY {
            return;
        }
        self.solvable[i] |= new;
        if self.next_frontier[i] == B::EMPTY {
            self.next.push((placement, boxes));
        }
        self.next_frontier[i] |= new;
    }

    /// Whether the state was reached.
    pub(super) fn contains(&self, s: &SokobanState) -> bool {
        self.solvable[rank(B::truncate(s.boxes))].contains(s.player)
    }

    /// Length of the shortest solution of a state, if at most `max_moves`; expands the table to that depth.
    pub(super) fn distance(&mut self, board: &SokobanBoard, s: &SokobanState, max_moves: u32) -> Option<u32> {
        self.reset(board);
        for moves in 0..=max_moves {
            if self.contains(s) {
                return Some(moves);
            }
            if moves == max_moves || !self.expand(board) {
                return None;
            }
        }
        None
    }

    /// Expands the table to every state that can be solved in `max_moves` moves.
    pub(super) fn fill(&mut self, board: &SokobanBoard, max_moves: u32) {
        self.reset(board);
        for _ in 0..max_moves {
            if !self.expand(board) {
                break;
            }
        }
        if self.solvable.len() > MAX_RETAINED_PLACEMENTS {
            // Levels are played for many episodes: free the buffers that only the search needs.
            (self.frontier, self.next_frontier) = (Vec::new(), Vec::new());
            (self.active, self.next) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sokoban::{bfs::shortest_path, level::SokobanLevel};

    #[test]
    fn ranks_are_a_bijection() {
        let mut seen = [false; 35];
        for set in (0_u64..1 << 7).filter(|s| s.count_ones() == 3) {
            assert!(!std::mem::replace(&mut seen[rank(set)], true));
        }
        assert!(seen.iter().all(|s| *s));
    }

    #[test]
    fn distances_equal_those_of_a_forward_search() {
        let text = "######\n#   ##\n# $. #\n#@$  #\n## . #\n######";
        let (board, start) = SokobanBoard::new(&SokobanLevel::parse(text, "t").unwrap()).unwrap();
        let (mut narrow, mut wide) = (SolvableTable::<u64>::new(), SolvableTable::<u128>::new());
        let (mut solvable, mut dead) = (0, 0);
        let mut ends = vec![start];
        let mut seen = std::collections::HashSet::from([start]);
        while let Some(s) = ends.pop() {
            let forward = shortest_path(&board, s, 100).map(|p| p.len() as u32);
            assert_eq!(narrow.distance(&board, &s, 100), forward);
            assert_eq!(wide.distance(&board, &s, 100), forward);
            match forward {
                Some(d) if d > 0 => {
                    solvable += 1;
                    assert_eq!(narrow.distance(&board, &s, d - 1), None);
                }
                Some(_) => {}
                None => dead += 1,
            }
            for direction in Move::ALL {
                let mut t = s;
                board.apply(&mut t, direction);
                if seen.insert(t) {
                    ends.push(t);
                }
            }
        }
        assert!(solvable > 50 && dead > 500, "{solvable} {dead}");
    }
}
