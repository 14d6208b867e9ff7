//! How is a room shown?
//!
//! In the reference's three ways, in level files' letters for people, and in compact words for small models.

use super::{
    board::{Board, State},
    level::{Cell, Level},
};
use serde::{Deserialize, Serialize};

/// The reference's ways to print a room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendering {
    /// Rows with their numbers, `0: # # #`: what the paper's agents see.
    #[default]
    TextWithRowNumbers,
    /// Cells with a tab after each.
    TinyRgbArray,
    /// Rows of cells with blanks between.
    List,
}

const SYMBOLS: [&str; 7] = ["#", "_", "O", "√", "X", "P", "S"];

/// The compact word of each cell: level files' letters, with a visible one for floor.
pub(super) const WORDS: [&str; 7] = ["#", "-", ".", "*", "$", "@", "+"];

/// The compact word between rows.
pub(super) const ROW_END: &str = "/";

/// Appends a room as text.
pub fn render(board: &Board, s: &State, how: Rendering, out: &mut String) {
    for row in 0..board.rows() {
        if row > 0 {
            out.push('\n');
        }
        if how == Rendering::TextWithRowNumbers {
            if row >= 10 {
                out.push(char::from(b'0' + (row / 10 % 10) as u8));
            }
            out.push(char::from(b'0' + (row % 10) as u8));
            out.push(':');
        }
        for col in 0..board.cols() {
            let blank = how != Rendering::List || col > 0;
            if blank {
                out.push(' ');
            }
            out.push_str(SYMBOLS[board.at(s, row, col) as usize]);
            if how == Rendering::TinyRgbArray {
                out.push_str(" \t");
            }
        }
    }
}

/// A room as level files write it.
pub fn drawing(board: &Board, s: &State) -> String {
    snapshot(board, s).to_string()
}

fn snapshot(board: &Board, s: &State) -> Level {
    let cells = (0..board.rows() * board.cols()).map(|i| board.at(s, i / board.cols(), i % board.cols()));
    Level::from_cells(board.cols(), cells.collect())
}

/// A room in compact words: cells row by row, `/` between rows. The outermost rows and columns are left out where all of
/// them are wall; beyond the edge there is wall anyway.
pub fn compact(board: &Board, s: &State) -> String {
    let (rows, cols) = (board.rows(), board.cols());
    let wall = |r: usize, c: usize| board.at(s, r, c) == Cell::Wall;
    let framed =
        (0..rows).all(|r| wall(r, 0) && wall(r, cols - 1)) && (0..cols).all(|c| wall(0, c) && wall(rows - 1, c));
    let frame = usize::from(framed);
    let mut out = String::with_capacity(rows * (cols + 1) * 2);
    for row in frame..rows - frame {
        if row > frame {
            out.push(' ');
            out.push_str(ROW_END);
        }
        for col in frame..cols - frame {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(WORDS[board.at(s, row, col) as usize]);
        }
    }
    out
}

/// Reads compact words back; `None` if they are not a room.
pub fn from_compact(words: &str) -> Option<(Board, State)> {
    let mut cells = Vec::new();
    let mut cols = None;
    for row in words.split(ROW_END) {
        let before = cells.len();
        for word in row.split_whitespace() {
            cells.push(Cell::ALL[WORDS.iter().position(|w| *w == word)?]);
        }
        let len = cells.len() - before;
        if *cols.get_or_insert(len) != len || len == 0 {
            return None;
        }
    }
    let (board, state) = Board::new(&Level::from_cells(cols?, cells)).ok()?;
    (state.player != super::board::NOWHERE).then_some((board, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> (Board, State) {
        let text = "######\n#+ $ #\n# *  #\n######";
        Board::new(&Level::parse(text, "t").unwrap()).unwrap()
    }

    fn text(how: Rendering) -> String {
        let (board, s) = room();
        let mut out = String::new();
        render(&board, &s, how, &mut out);
        out
    }

    #[test]
    fn the_three_renderings() {
        assert_eq!(
            text(Rendering::TextWithRowNumbers),
            "0: # # # # # #\n1: # S _ X _ #\n2: # _ √ _ _ #\n3: # # # # # #"
        );
        assert_eq!(text(Rendering::List), "# # # # # #\n# S _ X _ #\n# _ √ _ _ #\n# # # # # #");
        let tiny = text(Rendering::TinyRgbArray);
        assert!(tiny.starts_with(" # \t # \t # \t # \t # \t # \t\n # \t S \t _ \t X \t _ \t # \t\n"));
        assert!(tiny.ends_with(" # \t"));
    }

    #[test]
    fn compact_words_come_back_as_the_same_room() {
        let (board, s) = room();
        let words = compact(&board, &s);
        assert_eq!(words, "+ - $ - / - * - -");
        let (again, t) = from_compact(&words).unwrap();
        assert_eq!(compact(&again, &t), words);
        assert_eq!((t.player, t.boxes, again.targets), (s.player, s.boxes, board.targets));
        assert!(from_compact("- - / -").is_none());
        assert!(from_compact("- $ . what").is_none());
        assert!(from_compact("- $ .").is_none(), "nobody there");
        assert!(from_compact("").is_none());
    }

    #[test]
    fn unframed_levels_keep_their_edge() {
        let (board, s) = Board::new(&Level::parse("@$.\n###", "t").unwrap()).unwrap();
        assert_eq!(compact(&board, &s), "@ $ . / # # #");
    }
}
