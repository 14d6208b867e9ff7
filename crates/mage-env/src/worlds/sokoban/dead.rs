//! Where is a box lost, and how far does it have to go?

use super::{
    bits::Bits,
    board::{Board, Move, NOWHERE, View},
};

/// No way.
const NEVER: u16 = u16::MAX;

/// Up to this many boxes the best assignment to targets is found exactly; beyond, each box goes to its nearest target.
const MAX_MATCHED: usize = 8;

/// How many pushes a box needs from each cell to each target when no other box is in the way.
pub(super) struct Distances {
    /// By target, then by cell.
    pushes: Vec<[u16; 128]>,
    alive: u128,
}

impl Distances {
    pub(super) fn new(board: &Board) -> Self {
        let pushes: Vec<_> = board.targets.cells().map(|target| from_target(board, target)).collect();
        let alive = (0..board.cells() as u8)
            .filter(|c| pushes.iter().any(|d| d[usize::from(*c)] != NEVER))
            .fold(0, |set, c| set | 1 << c);
        Distances { pushes, alive }
    }

    /// The cells from which a box can still get to some target.
    pub(super) fn alive(&self) -> u128 {
        self.alive
    }

    /// The fewest pushes that could bring all boxes home, each to a target of its own; `None` if there is no way.
    pub(super) fn to_go<B: Bits>(&self, boxes: B) -> Option<u16> {
        let count = self.pushes.len();
        if count > MAX_MATCHED {
            return boxes.cells().try_fold(0_u16, |sum, cell| {
                let nearest = self.pushes.iter().map(|d| d[usize::from(cell)]).min()?;
                (nearest != NEVER).then(|| sum.saturating_add(nearest))
            });
        }
        // best[set of targets]: the cheapest way to send the first boxes to exactly these targets.
        let mut best = [NEVER; 1 << MAX_MATCHED];
        best[0] = 0;
        let all = (1_usize << count) - 1;
        for (i, cell) in boxes.cells().enumerate() {
            for set in (0..=all).filter(|s| s.count_ones() as usize == i) {
                if best[set] == NEVER {
                    continue;
                }
                for (t, d) in self.pushes.iter().enumerate() {
                    let with = set | 1 << t;
                    if with != set && d[usize::from(cell)] != NEVER {
                        best[with] = best[with].min(best[set] + d[usize::from(cell)]);
                    }
                }
            }
        }
        Some(best[all]).filter(|d| *d != NEVER)
    }

    /// Whether the box just pushed to `cell` can never move again, along with others, one of them off target.
    pub(super) fn frozen<B: Bits>(&self, board: &Board, view: &View<B>, boxes: B, cell: u8) -> bool {
        let mut fixed = B::NONE;
        self.stuck(board, boxes, cell, &mut fixed) && fixed & !view.targets != B::NONE
    }

    /// Whether a box is stuck in both directions; boxes found so are added to `fixed`, which stand like walls.
    fn stuck<B: Bits>(&self, board: &Board, boxes: B, cell: u8, fixed: &mut B) -> bool {
        let before = *fixed;
        *fixed |= B::one(cell);
        let held = [[Move::Up, Move::Down], [Move::Left, Move::Right]]
            .into_iter()
            .all(|axis| self.blocked(board, boxes, cell, axis, fixed));
        if !held {
            *fixed = before; // whatever leaned on this box is not held either
        }
        held
    }

    fn blocked<B: Bits>(&self, board: &Board, boxes: B, cell: u8, axis: [Move; 2], fixed: &mut B) -> bool {
        let beside = axis.map(|way| board.beside(cell, way));
        let wall = |n: u8| n == NOWHERE || fixed.has(n);
        let useless = |n: u8| n != NOWHERE && self.alive >> n & 1 == 0;
        if beside.into_iter().any(wall) || beside.into_iter().all(useless) {
            return true;
        }
        beside.into_iter().any(|n| boxes.has(n) && self.stuck(board, boxes, n, fixed))
    }
}

/// Pulls one box away from a target, as if the player could stand on any floor.
fn from_target(board: &Board, target: u8) -> [u16; 128] {
    let mut pushes = [NEVER; 128];
    pushes[usize::from(target)] = 0;
    let mut queue = vec![target];
    let mut next = 0;
    while next < queue.len() {
        let cell = queue[next];
        next += 1;
        for way in Move::ALL {
            let before = board.beside(cell, way);
            let room_to_push = before != NOWHERE && board.beside(before, way) != NOWHERE;
            if room_to_push && pushes[usize::from(before)] == NEVER {
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
    use crate::sokoban::level::Level;

    fn board(text: &str) -> (Board, u64) {
        let (board, s) = Board::new(&Level::parse(text, "t").unwrap()).unwrap();
        (board, s.boxes as u64)
    }

    #[test]
    fn corners_and_walls_without_targets_are_dead() {
        let (board, boxes) = board("######\n#@   #\n# $. #\n#    #\n######");
        let d = Distances::new(&board);
        assert_eq!(d.alive(), 0b0000_0110_0000, "only the two inner cells");
        assert_eq!(d.to_go(boxes), Some(1));
        assert_eq!(d.to_go(1_u64), None);
    }

    #[test]
    fn boxes_go_to_targets_of_their_own() {
        let (board, boxes) = board("########\n#@     #\n# $ $..#\n#      #\n########");
        // The nearer box could take the nearer target only if the other walks past it: 1 + 4, or 2 + 3.
        assert_eq!(Distances::new(&board).to_go(boxes), Some(5));
    }

    #[test]
    fn blocks_of_boxes_freeze() {
        let (board, boxes) = board("#######\n#@ ...#\n#     #\n# $$  #\n# $   #\n#     #\n#######");
        let d = Distances::new(&board);
        let view = board.view::<u64>();
        let cell = |r: usize, c: usize| ((r - 1) * 5 + c - 1) as u8;
        assert!(!d.frozen(&board, &view, boxes, cell(3, 2)));
        let square = boxes | 1 << cell(4, 3);
        assert!(d.frozen(&board, &view, square, cell(4, 3)), "four in a square hold each other");
    }
}
