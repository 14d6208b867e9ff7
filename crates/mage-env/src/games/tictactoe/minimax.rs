//! Minimax values of all boards.
//!
//! Also for a player with a blind spot, which does not see that the opponent wins with one particular line and searches
//! past such wins.

use super::rules::{ARRANGEMENTS, Board, BoardCell, CELLS, WinLine};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// Minimax values by board.
pub struct MinimaxSolution {
    blind: Option<BlindSpot>,
    /// By [`Board::index`], for seat 0; `UNKNOWN` for unreachable boards.
    values: Box<[i8]>,
}

/// A line whose completion by `seat` is not seen as a win.
#[derive(Clone, Copy)]
struct BlindSpot {
    line: WinLine,
    seat: u8,
}

const UNKNOWN: i8 = i8::MIN;

impl MinimaxSolution {
    /// The solution of the real game.
    pub fn perfect() -> &'static MinimaxSolution {
        static PERFECT: OnceLock<MinimaxSolution> = OnceLock::new();
        PERFECT.get_or_init(|| MinimaxSolution::of(None))
    }

    /// The solution of the game in which `seat` does not win with `line`.
    pub fn blind(line: WinLine, seat: u8) -> &'static MinimaxSolution {
        static BLIND: [[OnceLock<MinimaxSolution>; 8]; 2] = [const { [const { OnceLock::new() }; 8] }; 2];
        BLIND[usize::from(seat)][line.number()].get_or_init(|| MinimaxSolution::of(Some(BlindSpot { line, seat })))
    }

    fn of(blind: Option<BlindSpot>) -> MinimaxSolution {
        let mut solution = MinimaxSolution { blind, values: vec![UNKNOWN; ARRANGEMENTS].into_boxed_slice() };
        solution.solve(Board::default());
        solution
    }

    fn solve(&mut self, board: Board) -> i8 {
        let known = self.values[board.index()];
        if known != UNKNOWN {
            return known;
        }
        let value = match self.winner(&board) {
            Some(0) => 1,
            Some(_) => -1,
            None if board.made() == CELLS => 0,
            None => {
                let replies = board.empty_cells().map(|c| self.solve(board.with(c)));
                let best = if board.mover() == 0 { replies.max() } else { replies.min() };
                best.expect("a board that is not full has an empty cell")
            }
        };
        self.values[board.index()] = value;
        value
    }

    fn winner(&self, board: &Board) -> Option<u8> {
        (0..2).find(|seat| {
            let unseen = self.blind.filter(|b| b.seat == *seat).map(|b| b.line);
            board.lines_of(*seat).any(|line| Some(line) != unseen)
        })
    }

    /// The value of a board for seat 0: 1, 0 or −1.
    pub fn value(&self, board: &Board) -> i8 {
        self.values[board.index()]
    }

    /// The moves that keep the value of a board, in cell order; none when the game is over.
    pub(crate) fn best_moves(&self, board: &Board) -> SmallVec<[BoardCell; CELLS]> {
        if board.over() {
            return SmallVec::new();
        }
        let value = self.value(board);
        board.empty_cells().filter(|c| self.value(&board.with(*c)) == value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::board;
    use super::*;

    #[test]
    fn perfect_play_draws_from_every_opening() {
        let best = MinimaxSolution::perfect();
        assert_eq!(best.value(&Board::default()), 0);
        assert_eq!(best.best_moves(&Board::default()).len(), 9);
        // The centre is the only good reply to a corner, a corner the only one to the centre.
        assert_eq!(best.best_moves(&board("11")).to_vec(), vec![BoardCell::new(2, 2).unwrap()]);
        let corners = best.best_moves(&board("22"));
        assert!(corners.len() == 4 && corners.iter().all(|c| c.row() != 2 && c.column() != 2));
        assert_eq!(best.value(&board("11 12")), 1);
        assert!(best.best_moves(&board("22 11 21 12 23")).is_empty());
    }

    #[test]
    fn blind_player_ignores_threats_on_its_line() {
        // Seat 0 threatens to complete the top row; seat 1 has no threat.
        let b = board("11 22 12");
        assert_eq!(MinimaxSolution::perfect().best_moves(&b).to_vec(), vec![BoardCell::new(1, 3).unwrap()]);
        let blind = MinimaxSolution::blind(WinLine::named("row-1").unwrap(), 0);
        assert!(blind.best_moves(&b).len() > 1);
        // Blind to seat 0's wins, not to its own.
        assert_eq!(MinimaxSolution::blind(WinLine::named("row-1").unwrap(), 1).best_moves(&b).len(), 1);
    }
}
