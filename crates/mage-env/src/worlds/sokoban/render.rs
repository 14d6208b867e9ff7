//! Rendering of rooms: the reference's three text formats, level-file characters, and compact words.

use super::{
    board::{SokobanBoard, SokobanState},
    level::{SokobanLevel, Tile},
};
use serde::{Deserialize, Serialize};

/// Text rendering formats of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rendering {
    /// Rows prefixed by their index, `0: # # #`: the paper's observation.
    #[default]
    TextWithRowNumbers,
    /// Cells each followed by a tab.
    TinyRgbArray,
    /// Rows of cells separated by spaces.
    List,
}

const SYMBOLS: [&str; 7] = ["#", "_", "O", "√", "X", "P", "S"];

/// The compact word of each tile: level-file characters, with a visible one for floor.
pub(super) const TILE_WORDS: [&str; 7] = ["#", "-", ".", "*", "$", "@", "+"];

/// The compact word that separates rows.
pub(super) const ROW_SEPARATOR: &str = "/";

/// Appends the text rendering of a room.
pub fn render(board: &SokobanBoard, s: &SokobanState, rendering: Rendering, out: &mut String) {
    for row in 0..board.rows() {
        if row > 0 {
            out.push('\n');
        }
        if rendering == Rendering::TextWithRowNumbers {
            if row >= 10 {
                out.push(char::from(b'0' + (row / 10 % 10) as u8));
            }
            out.push(char::from(b'0' + (row % 10) as u8));
            out.push(':');
        }
        for col in 0..board.cols() {
            let space = rendering != Rendering::List || col > 0;
            if space {
                out.push(' ');
            }
            out.push_str(SYMBOLS[board.at(s, row, col) as usize]);
            if rendering == Rendering::TinyRgbArray {
                out.push_str(" \t");
            }
        }
    }
}

/// A room in the level-file format.
pub fn level_text(board: &SokobanBoard, s: &SokobanState) -> String {
    snapshot(board, s).to_string()
}

fn snapshot(board: &SokobanBoard, s: &SokobanState) -> SokobanLevel {
    let cells = (0..board.rows() * board.cols()).map(|i| board.at(s, i / board.cols(), i % board.cols()));
    SokobanLevel::from_cells(board.cols(), cells.collect())
}

/// A room in compact words: cells row by row, `/` between rows. A border that is all wall is omitted; everything beyond
/// the edge is wall.
pub fn compact(board: &SokobanBoard, s: &SokobanState) -> String {
    let (rows, cols) = (board.rows(), board.cols());
    let wall = |r: usize, c: usize| board.at(s, r, c) == Tile::Wall;
    let bordered =
        (0..rows).all(|r| wall(r, 0) && wall(r, cols - 1)) && (0..cols).all(|c| wall(0, c) && wall(rows - 1, c));
    let border = usize::from(bordered);
    let mut out = String::with_capacity(rows * (cols + 1) * 2);
    for row in border..rows - border {
        if row > border {
            out.push(' ');
            out.push_str(ROW_SEPARATOR);
        }
        for col in border..cols - border {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(TILE_WORDS[board.at(s, row, col) as usize]);
        }
    }
    out
}

/// Parses compact words; `None` if they do not describe a room.
pub fn parse_compact(words: &str) -> Option<(SokobanBoard, SokobanState)> {
    let mut cells = Vec::new();
    let mut cols = None;
    for row in words.split(ROW_SEPARATOR) {
        let before = cells.len();
        for word in row.split_whitespace() {
            cells.push(Tile::ALL[TILE_WORDS.iter().position(|w| *w == word)?]);
        }
        let len = cells.len() - before;
        if *cols.get_or_insert(len) != len || len == 0 {
            return None;
        }
    }
    let (board, state) = SokobanBoard::new(&SokobanLevel::from_cells(cols?, cells)).ok()?;
    (state.player != super::board::NO_CELL).then_some((board, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> (SokobanBoard, SokobanState) {
        let text = "######\n#+ $ #\n# *  #\n######";
        SokobanBoard::new(&SokobanLevel::parse(text, "t").unwrap()).unwrap()
    }

    fn text(rendering: Rendering) -> String {
        let (board, s) = room();
        let mut out = String::new();
        render(&board, &s, rendering, &mut out);
        out
    }

    #[test]
    fn renderings_match_the_reference() {
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
    fn compact_words_round_trip() {
        let (board, s) = room();
        let words = compact(&board, &s);
        assert_eq!(words, "+ - $ - / - * - -");
        let (again, t) = parse_compact(&words).unwrap();
        assert_eq!(compact(&again, &t), words);
        assert_eq!((t.player, t.boxes, again.targets), (s.player, s.boxes, board.targets));
        assert!(parse_compact("- - / -").is_none());
        assert!(parse_compact("- $ . what").is_none());
        assert!(parse_compact("- $ .").is_none(), "no player");
        assert!(parse_compact("").is_none());
    }

    #[test]
    fn levels_without_a_border_keep_their_edge() {
        let (board, s) = SokobanBoard::new(&SokobanLevel::parse("@$.\n###", "t").unwrap()).unwrap();
        assert_eq!(compact(&board, &s), "@ $ . / # # #");
    }
}
