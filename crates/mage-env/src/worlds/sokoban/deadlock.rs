//! Deadlock detection (dead squares, freeze deadlocks) and the push lower bound used as the A* heuristic.

use super::{
    bitboard::Bitboard,
    board::{BoardMasks, Move, NO_CELL, SokobanBoard},
};

/// No push sequence leads to the target.
const UNREACHABLE: u16 = u16::MAX;

/// Up to this many boxes the minimum-cost assignment to targets is computed exactly; beyond, each box uses its nearest
/// target.
const MAX_MATCHED_BOXES: usize = 8;

/// Pushes a single box needs from each cell to each target, ignoring other boxes.
pub(super) struct PushDistances {
    /// Indexed by target, then by cell.
    pushes: Vec<[u16; 128]>,
    live_cells: u128,
}

impl PushDistances {
    pub(super) fn new(board: &SokobanBoard) -> Self {
        let pushes: Vec<_> = board.targets.cells().map(|target| push_distances_to(board, target)).collect();
        let live_cells = (0..board.cells() as u8)
            .filter(|c| pushes.iter().any(|d| d[usize::from(*c)] != UNREACHABLE))
            .fold(0, |set, c| set | 1 << c);
        PushDistances { pushes, live_cells }
    }

    /// Cells from which a box can reach some target; all others are dead squares.
    pub(super) fn live_cells(&self) -> u128 {
        self.live_cells
    }

    /// Lower bound on the pushes needed: minimum-cost assignment of boxes to targets; `None` if no assignment exists.
    pub(super) fn min_pushes<B: Bitboard>(&self, boxes: B) -> Option<u16> {
        let count = self.pushes.len();
        if count > MAX_MATCHED_BOXES {
            return boxes.cells().try_fold(0_u16, |sum, cell| {
                let nearest = self.pushes.iter().map(|d| d[usize::from(cell)]).min()?;
                (nearest != UNREACHABLE).then(|| sum.saturating_add(nearest))
            });
        }
        // best[set of targets]: minimum cost of assigning the first boxes to exactly these targets.
        let mut best = [UNREACHABLE; 1 << MAX_MATCHED_BOXES];
        best[0] = 0;
        let all = (1_usize << count) - 1;
        for (i, cell) in boxes.cells().enumerate() {
            for set in (0..=all).filter(|s| s.count_ones() as usize == i) {
                if best[set] == UNREACHABLE {
                    continue;
                }
                for (t, d) in self.pushes.iter().enumerate() {
                    let with = set | 1 << t;
                    if with != set && d[usize::from(cell)] != UNREACHABLE {
                        best[with] = best[with].min(best[set] + d[usize::from(cell)]);
                    }
                }
            }
        }
        Some(best[all]).filter(|d| *d != UNREACHABLE)
    }

    /// Whether the box just pushed to `cell` is frozen together with others, at least one of them off target.
    pub(super) fn is_freeze_deadlock<B: Bitboard>(
        &self,
        board: &SokobanBoard,
        view: &BoardMasks<B>,
        boxes: B,
        cell: u8,
    ) -> bool {
        let mut fixed = B::EMPTY;
        self.is_frozen(board, boxes, cell, &mut fixed) && fixed & !view.targets != B::EMPTY
    }

    /// Whether a box is blocked on both axes; frozen boxes are added to `fixed` and count as walls.
    fn is_frozen<B: Bitboard>(&self, board: &SokobanBoard, boxes: B, cell: u8, fixed: &mut B) -> bool {
        let before = *fixed;
        *fixed |= B::single(cell);
        let frozen = [[Move::Up, Move::Down], [Move::Left, Move::Right]]
            .into_iter()
            .all(|axis| self.is_blocked_on_axis(board, boxes, cell, axis, fixed));
        if !frozen {
            *fixed = before; // boxes blocked by this one are not frozen either
        }
        frozen
    }

    fn is_blocked_on_axis<B: Bitboard>(
        &self,
        board: &SokobanBoard,
        boxes: B,
        cell: u8,
        axis: [Move; 2],
        fixed: &mut B,
    ) -> bool {
        let adjacent = axis.map(|direction| board.neighbour(cell, direction));
        let wall = |n: u8| n == NO_CELL || fixed.contains(n);
        let dead = |n: u8| n != NO_CELL && self.live_cells >> n & 1 == 0;
        if adjacent.into_iter().any(wall) || adjacent.into_iter().all(dead) {
            return true;
        }
        adjacent.into_iter().any(|n| boxes.contains(n) && self.is_frozen(board, boxes, n, fixed))
    }
}

/// Breadth-first search that pulls one box away from the target, assuming the player can reach any floor cell.
fn push_distances_to(board: &SokobanBoard, target: u8) -> [u16; 128] {
    let mut pushes = [UNREACHABLE; 128];
    pushes[usize::from(target)] = 0;
    let mut queue = vec![target];
    let mut next = 0;
    while next < queue.len() {
        let cell = queue[next];
        next += 1;
        for direction in Move::ALL {
            let before = board.neighbour(cell, direction);
            let can_push = before != NO_CELL && board.neighbour(before, direction) != NO_CELL;
            if can_push && pushes[usize::from(before)] == UNREACHABLE {
                pushes[usize::from(before)] = pushes[usize::from(cell)] + 1;
                queue.push(before);
            }
        }
    }
    pushes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sokoban::level::SokobanLevel;

    fn board(text: &str) -> (SokobanBoard, u64) {
        let (board, s) = SokobanBoard::new(&SokobanLevel::parse(text, "t").unwrap()).unwrap();
        (board, s.boxes as u64)
    }

    #[test]
    fn corners_and_walls_without_targets_are_dead_squares() {
        let (board, boxes) = board("######\n#@   #\n# $. #\n#    #\n######");
        let d = PushDistances::new(&board);
        assert_eq!(d.live_cells(), 0b0000_0110_0000, "only the two inner cells are live");
        assert_eq!(d.min_pushes(boxes), Some(1));
        assert_eq!(d.min_pushes(1_u64), None);
    }

    #[test]
    fn boxes_are_assigned_to_distinct_targets() {
        let (board, boxes) = board("########\n#@     #\n# $ $..#\n#      #\n########");
        // Both assignments cost the same: 1 + 4 and 2 + 3.
        assert_eq!(PushDistances::new(&board).min_pushes(boxes), Some(5));
    }

    #[test]
    fn a_square_of_boxes_is_a_freeze_deadlock() {
        let (board, boxes) = board("#######\n#@ ...#\n#     #\n# $$  #\n# $   #\n#     #\n#######");
        let d = PushDistances::new(&board);
        let view = board.masks::<u64>();
        let cell = |r: usize, c: usize| ((r - 1) * 5 + c - 1) as u8;
        assert!(!d.is_freeze_deadlock(&board, &view, boxes, cell(3, 2)));
        let square = boxes | 1 << cell(4, 3);
        assert!(d.is_freeze_deadlock(&board, &view, square, cell(4, 3)), "four boxes in a square block each other");
    }
}
