//! Which boards are the same but for turning and mirroring?

use super::rules::{Board, BoardCell, CELLS};

/// One of the eight ways to turn or mirror a board: where each cell goes.
pub(super) type Turned = [BoardCell; CELLS];

/// All eight, the one that changes nothing first.
pub(super) fn all() -> [Turned; 8] {
    let mut out = [[BoardCell::numbered(0); CELLS]; 8];
    for (i, turned) in out.iter_mut().enumerate() {
        for cell in BoardCell::all() {
            let (mut row, mut column) = (cell.row(), cell.column());
            if i & 4 != 0 {
                (row, column) = (column, row);
            }
            if i & 2 != 0 {
                row = 4 - row;
            }
            if i & 1 != 0 {
                column = 4 - column;
            }
            turned[cell.number()] = BoardCell::new(row, column).expect("turning stays on the board");
        }
    }
    out
}

/// The board that stands for all that are the same as this one, and how to get there.
pub(super) fn representative(board: &Board) -> (Board, Turned) {
    let boards = all().map(|t| (board.turned(&t), t));
    boards.into_iter().min_by_key(|(b, _)| b.index()).expect("there are eight ways")
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::board;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_eight_different_ways_and_765_different_boards() {
        assert_eq!(all().iter().collect::<HashSet<_>>().len(), 8);
        let mut seen = HashSet::new();
        let mut open = vec![Board::default()];
        while let Some(b) = open.pop() {
            let (b, _) = representative(&b);
            if seen.insert(b.index()) && !b.over() {
                open.extend(b.empty_cells().map(|c| b.with(c)));
            }
        }
        assert_eq!(seen.len(), 765);
    }

    #[test]
    fn turning_keeps_the_order_of_moves() {
        let corner = board("13 22 31");
        let (to, way) = representative(&corner);
        assert_eq!(to.index(), representative(&board("33 22 11")).0.index());
        assert_eq!(to.moves().collect::<Vec<_>>(), corner.moves().map(|c| way[c.number()]).collect::<Vec<_>>());
    }
}
