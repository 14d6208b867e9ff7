//! From which states can a room be solved, and in how many moves?
//!
//! From the solved states a search goes backwards, one move at a time. All player cells that share a placement of the
//! boxes are held in one bit set and walk back together, so that a level of the search costs a few operations for each
//! placement. What a breadth-first search after every step would find out is then a look-up.

use super::{
    bits::Bits,
    board::{Board, Move, NOWHERE, State},
};

/// The most placements of boxes a table may have.
pub(super) const MAX_PLACEMENTS: u32 = 1 << 20;

/// Up to this many placements a table keeps its working memory for the next room.
const KEPT_PLACEMENTS: usize = 1 << 14;

/// Tables serve up to this many boxes.
const MAX_BOXES: usize = 16;

/// `CHOOSE[k][n]`: in how many ways `k` of `n` cells can be chosen, as far as 32 bits go.
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

/// How many placements the boxes of a board have, if a table can hold them.
pub(super) fn placements(board: &Board) -> Option<usize> {
    let row = CHOOSE.get(board.boxes() as usize)?;
    Some(row[board.cells()]).filter(|n| *n <= MAX_PLACEMENTS).map(|n| n as usize)
}

/// The place of a set of cells among all sets of its size (the combinatorial number system).
fn rank<B: Bits>(set: B) -> usize {
    set.cells().enumerate().map(|(i, cell)| CHOOSE[i + 1][usize::from(cell)] as usize).sum()
}

/// All states of a board that can be solved within some number of moves.
pub(super) struct Table<B> {
    /// By placement: the player cells reached so far.
    solvable: Vec<B>,
    /// By placement: the player cells reached in the last level.
    fresh: Vec<B>,
    /// By placement: the player cells reached in the level under way.
    coming: Vec<B>,
    /// The placements with fresh cells.
    active: Vec<(u32, B)>,
    /// The placements with coming cells.
    next: Vec<(u32, B)>,
}

impl<B: Bits> Table<B> {
    pub(super) fn new() -> Self {
        Table { solvable: Vec::new(), fresh: Vec::new(), coming: Vec::new(), active: Vec::new(), next: Vec::new() }
    }

    /// Holds the solved states alone. The board must have [`placements`].
    pub(super) fn restart(&mut self, board: &Board) {
        let size = placements(board).expect("asked before");
        let view = board.view::<B>();
        for cells in [&mut self.solvable, &mut self.fresh, &mut self.coming] {
            cells.clear();
            cells.resize(size, B::NONE);
        }
        self.next.clear();
        self.active.clear();
        let solved = rank(view.targets);
        let players = view.floor & !view.targets;
        self.solvable[solved] = players;
        self.fresh[solved] = players;
        self.active.push((solved as u32, view.targets));
    }

    /// Adds the states one move further from the goal; `false` when there are none.
    pub(super) fn grow(&mut self, board: &Board) -> bool {
        let view = board.view::<B>();
        let mut active = std::mem::take(&mut self.active);
        for (place, boxes) in active.drain(..) {
            let players = std::mem::take(&mut self.fresh[place as usize]);
            let free = view.floor & !boxes;
            self.add(place, boxes, view.around(players) & free);
            for way in Move::ALL {
                // Whoever pushed this way left a box in front and came from behind.
                let pushed = players & view.shift(boxes, way.opposite()) & view.shift(free, way);
                for player in pushed.cells() {
                    let front = board.beside(player, way);
                    let behind = board.beside(player, way.opposite());
                    debug_assert!(front != NOWHERE && behind != NOWHERE);
                    let before = boxes ^ B::one(front) ^ B::one(player);
                    self.add(rank(before) as u32, before, B::one(behind));
                }
            }
        }
        // The emptied list becomes the next level's: nothing is allocated once both have grown.
        self.active = std::mem::replace(&mut self.next, active);
        std::mem::swap(&mut self.fresh, &mut self.coming);
        !self.active.is_empty()
    }

    fn add(&mut self, place: u32, boxes: B, players: B) {
        let i = place as usize;
        let new = players & !self.solvable[i];
        if new == B::NONE {
            return;
        }
        self.solvable[i] |= new;
        if self.coming[i] == B::NONE {
            self.next.push((place, boxes));
        }
        self.coming[i] |= new;
    }

    /// Whether the state was reached so far.
    pub(super) fn has(&self, s: &State) -> bool {
        self.solvable[rank(B::narrow(s.boxes))].has(s.player)
    }

    /// How many moves the shortest solution of a state takes, if no more than `most`; leaves the table that far grown.
    pub(super) fn distance(&mut self, board: &Board, s: &State, most: u32) -> Option<u32> {
        self.restart(board);
        for moves in 0..=most {
            if self.has(s) {
                return Some(moves);
            }
            if moves == most || !self.grow(board) {
                return None;
            }
        }
        None
    }

    /// Holds every state that can be solved in `most` moves.
    pub(super) fn fill(&mut self, board: &Board, most: u32) {
        self.restart(board);
        for _ in 0..most {
            if !self.grow(board) {
                break;
            }
        }
        if self.solvable.len() > KEPT_PLACEMENTS {
            // A level is played for long: what only the search needed is given back.
            (self.fresh, self.coming) = (Vec::new(), Vec::new());
            (self.active, self.next) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sokoban::{level::Level, path::shortest_path};

    #[test]
    fn ranks_are_a_numbering() {
        let mut seen = [false; 35];
        for set in (0_u64..1 << 7).filter(|s| s.count_ones() == 3) {
            assert!(!std::mem::replace(&mut seen[rank(set)], true));
        }
        assert!(seen.iter().all(|s| *s));
    }

    #[test]
    fn distances_are_those_of_a_forward_search() {
        let text = "######\n#   ##\n# $. #\n#@$  #\n## . #\n######";
        let (board, start) = Board::new(&Level::parse(text, "t").unwrap()).unwrap();
        let (mut narrow, mut wide) = (Table::<u64>::new(), Table::<u128>::new());
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
            for way in Move::ALL {
                let mut t = s;
                board.go(&mut t, way);
                if seen.insert(t) {
                    ends.push(t);
                }
            }
        }
        assert!(solvable > 50 && dead > 500, "{solvable} {dead}");
    }
}
