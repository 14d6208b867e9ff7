//! Rotations and reflections of the board.

use super::rules::{Board, BoardCell, CELLS};

/// A symmetry of the board: the image of each cell.
pub(super) type CellPermutation = [BoardCell; CELLS];

/// All eight symmetries, the identity first.
pub(super) fn all() -> [CellPermutation; 8] {
    let mut out = [[BoardCell::numbered(0); CELLS]; 8];
    for (i, permutation) in out.iter_mut().enumerate() {
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
            permutation[cell.number()] = BoardCell::new(row, column).expect("symmetries map the board to itself");
        }
    }
    out
}

/// The canonical board of the equivalence class, and the symmetry that leads to it.
pub(super) fn canonical(board: &Board) -> (Board, CellPermutation) {
    let boards = all().map(|t| (board.permuted(&t), t));
    boards.into_iter().min_by_key(|(b, _)| b.index()).expect("there are eight symmetries")
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::board;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn there_are_8_symmetries_and_765_canonical_boards() {
        assert_eq!(all().iter().collect::<HashSet<_>>().len(), 8);
        let mut seen = HashSet::new();
        let mut open = vec![Board::default()];
        while let Some(b) = open.pop() {
            let (b, _) = canonical(&b);
            if seen.insert(b.index()) && !b.over() {
                open.extend(b.empty_cells().map(|c| b.with(c)));
            }
        }
        assert_eq!(seen.len(), 765);
    }

    #[test]
    fn symmetries_keep_the_order_of_moves() {
        let corner = board("13 22 31");
        let (canonical_board, symmetry) = canonical(&corner);
        assert_eq!(canonical_board.index(), canonical(&board("33 22 11")).0.index());
        assert_eq!(
            canonical_board.moves().collect::<Vec<_>>(),
            corner.moves().map(|c| symmetry[c.number()]).collect::<Vec<_>>()
        );
    }
}
