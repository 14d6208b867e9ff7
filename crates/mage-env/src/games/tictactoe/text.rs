//! Text of Tic-Tac-Toe: sentences for language models and people, compact words for small models.
//!
//! The reader is X and the opponent O, regardless of who moves first, as in the paper.

use super::rules::{Board, BoardCell, CELLS, TicTacToe, WinLine};
use crate::{ActionId, Observation, TextGame};

/// Words of a factual compact reflection: the outcome, and the moves in order.
pub const REFLECTION_WORDS: usize = 1 + CELLS;

/// Every word of the compact form.
pub(super) fn compact_words() -> Vec<String> {
    let cells = BoardCell::all().map(cell_name);
    [".", "X", "O", "first", "second", "won", "lost", "draw"].map(str::to_owned).into_iter().chain(cells).collect()
}

impl TextGame for TicTacToe {
    fn describe(&self, s: &Board, player: u8) -> Observation {
        Observation { text: sentences(s, player), compact: compact(s, player) }
    }

    fn action_name(&self, a: ActionId) -> String {
        cell_name(BoardCell::of(a))
    }

    fn read_action(&self, s: &Board, text: &str) -> Result<ActionId, String> {
        let (row, column) = read_pair(text)
            .ok_or_else(|| "the answer names no cell; write (row, column), such as (2, 3)".to_owned())?;
        let within = |n: i64| u8::try_from(n).ok();
        let cell = within(row).zip(within(column)).and_then(|(r, c)| BoardCell::new(r, c));
        let cell =
            cell.ok_or_else(|| format!("({row}, {column}) is not on the board; rows and columns go from 1 to 3"))?;
        match s.mark(cell) {
            None => Ok(cell.action()),
            // The error must not depend on the reader, so it does not name the owner of the mark.
            Some(_) => Err(format!("{} is taken; choose an empty cell", cell_name(cell))),
        }
    }

    /// The board alone, three rows of `.`, `X` and `O`.
    fn anchor(&self, s: &Board, player: u8) -> String {
        grid(s, player)
    }

    /// 1 for a win, 0 otherwise: mean scores are win rates, as in the paper and the ceilings.
    fn score(&self, s: &Board, player: u8) -> f32 {
        f32::from(u8::from(s.winner() == Some(player)))
    }

    /// The board with coordinates and the last move; a completed line is in brackets.
    fn render(&self, s: &Board, player: u8) -> Option<String> {
        let won: Vec<BoardCell> = (0..2).flat_map(|seat| s.lines_of(seat)).flat_map(WinLine::cells).collect();
        let mut text = "      1   2   3\n    ┌───┬───┬───┐\n".to_owned();
        for row in 1..=3 {
            text.push_str(&format!("  {row} │"));
            for cell in BoardCell::all().filter(|c| c.row() == row) {
                let sign = match mark(s, cell, player) {
                    '.' => ' ',
                    other => other,
                };
                let (open, close) = if won.contains(&cell) { ('[', ']') } else { (' ', ' ') };
                text.extend([open, sign, close, '│']);
            }
            text.push_str(if row < 3 {
                "\n    ├───┼───┼───┤\n"
            } else {
                "\n    └───┴───┴───┘"
            });
        }
        let caption = caption(s, player);
        if !caption.is_empty() {
            text.push_str(&format!("\n\n{caption}"));
        }
        Some(text)
    }
}

/// The name of a cell in one word: `(2,3)` is the last cell of the second row.
fn cell_name(cell: BoardCell) -> String {
    format!("({},{})", cell.row(), cell.column())
}

/// `X` for the reader's mark, `O` for the opponent's, `.` for none.
fn mark(s: &Board, cell: BoardCell, player: u8) -> char {
    match s.mark(cell) {
        None => '.',
        Some(seat) if seat == player => 'X',
        Some(_) => 'O',
    }
}

/// Three lines of marks, separated by spaces.
fn grid(s: &Board, player: u8) -> String {
    let mut text = String::with_capacity(2 * CELLS);
    for cell in BoardCell::all() {
        text.push(mark(s, cell, player));
        text.push(if cell.column() < 3 { ' ' } else { '\n' });
    }
    text.pop();
    text
}

/// The last move and the result, then the board.
fn sentences(s: &Board, player: u8) -> String {
    let caption = caption(s, player);
    let lead = if caption.is_empty() { "The board is empty:" } else { " The board:" };
    format!("{caption}{lead}\n{}", grid(s, player))
}

fn caption(s: &Board, player: u8) -> String {
    let Some(last) = s.moves().next_back() else { return String::new() };
    // Also correct after an invalid action, which leaves the board unchanged.
    let whose = if s.mover() == player { "The opponent's" } else { "Your" };
    let end = match s.winner() {
        Some(seat) if seat == player => " You have three in a row: you win.",
        Some(_) => " The opponent has three in a row: you lose.",
        None if s.over() => " The board is full: a draw.",
        None => "",
    };
    format!("{whose} last move: {}.{end}", cell_name(last))
}

/// While playing: the nine cells. At the end: the seat, the outcome, and nine slots for the moves in order.
fn compact(s: &Board, player: u8) -> String {
    if !s.over() {
        return BoardCell::all().map(|c| mark(s, c, player).to_string()).collect::<Vec<_>>().join(" ");
    }
    let seat = if player == 0 { "first" } else { "second" };
    format!("{seat} {}", facts(s, player))
}

/// The factual reflection on a finished game, in compact words: the outcome, and the moves in order.
pub fn facts(s: &Board, player: u8) -> String {
    let mut words = vec![outcome_word(s, player).to_owned()];
    words.extend(s.moves().map(cell_name));
    words.resize(REFLECTION_WORDS, "_".to_owned());
    words.join(" ")
}

fn outcome_word(s: &Board, player: u8) -> &'static str {
    match s.winner() {
        Some(seat) if seat == player => "won",
        Some(_) => "lost",
        None => "draw",
    }
}

/// Parses a compact observation in which the reader, X, is to move. The order of moves is not preserved.
pub fn read_board(compact: &str) -> Option<Board> {
    let words: Vec<&str> = compact.split(' ').collect();
    let with =
        |sign: &str| BoardCell::all().zip(&words).filter(|(_, w)| **w == sign).map(|(c, _)| c).collect::<Vec<_>>();
    let (own, other, empty) = (with("X"), with("O"), with("."));
    if words.len() != CELLS || own.len() + other.len() + empty.len() != CELLS {
        return None;
    }
    let (first, second) = match other.len().checked_sub(own.len())? {
        0 => (own, other),
        1 => (other, own),
        _ => return None,
    };
    let mut board = Board::default();
    for i in 0..first.len() + second.len() {
        board.play(if i % 2 == 0 { first[i / 2] } else { second[i / 2] });
    }
    Some(board)
}

/// Parses the finished game of a factual reflection.
pub fn read_facts(text: &str) -> Option<Board> {
    let mut words = text.split(' ');
    let outcome = words.next()?;
    let moves: Option<Vec<BoardCell>> =
        words.take_while(|w| *w != "_").map(|w| BoardCell::all().find(|c| cell_name(*c) == w)).collect();
    let board = Board::after(moves?).filter(Board::over)?;
    (0..2).any(|player| outcome_word(&board, player) == outcome).then_some(board)
}

/// The first `(integer, integer)` in the text, or the two integers of which it consists.
fn read_pair(text: &str) -> Option<(i64, i64)> {
    let in_brackets = text.match_indices('(').find_map(|(at, _)| {
        let inside = &text[at + 1..];
        let (row, column) = inside[..inside.find(')')?].split_once(',')?;
        Some((row.trim().parse().ok()?, column.trim().parse().ok()?))
    });
    in_brackets.or_else(|| {
        let mut integers = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|w| !w.is_empty());
        let pair = (integers.next()?.parse().ok()?, integers.next()?.parse().ok()?);
        integers.next().is_none().then_some(pair)
    })
}

#[cfg(test)]
mod tests {
    use super::super::rules::tests::board;
    use super::*;

    #[test]
    fn sentences_show_the_reader_as_x() {
        let text = |moves, player| TicTacToe.describe(&board(moves), player).text;
        assert_eq!(text("", 0), "The board is empty:\n. . .\n. . .\n. . .");
        assert_eq!(text("22", 1), "The opponent's last move: (2,2). The board:\n. . .\n. O .\n. . .");
        assert_eq!(text("22 11", 0), "The opponent's last move: (1,1). The board:\nO . .\n. X .\n. . .");
        assert_eq!(
            text("22 11 21 12 23", 0),
            "Your last move: (2,3). You have three in a row: you win. The board:\nO O .\nX X X\n. . ."
        );
        assert_eq!(
            text("22 11 21 12 23", 1),
            "The opponent's last move: (2,3). The opponent has three in a row: you lose. The board:\nX X .\nO O O\n. . ."
        );
        assert_eq!(
            text("22 11 13 31 21 23 12 32 33", 0).lines().next().unwrap(),
            "Your last move: (3,3). The board is full: a draw. The board:"
        );
    }

    #[test]
    fn compact_words_have_fixed_positions() {
        let compact = |moves, player| TicTacToe.describe(&board(moves), player).compact;
        assert_eq!(compact("", 0), ". . . . . . . . .");
        assert_eq!(compact("22 11", 0), "O . . . X . . . .");
        assert_eq!(compact("22", 1), ". . . . O . . . .");
        assert_eq!(compact("22 11 21 12 23", 1), "second lost (2,2) (1,1) (2,1) (1,2) (2,3) _ _ _ _");
        assert_eq!(facts(&board("22 11 21 12 23"), 0), "won (2,2) (1,1) (2,1) (1,2) (2,3) _ _ _ _");
        let full = board("22 11 13 31 21 23 12 32 33");
        assert_eq!(facts(&full, 0).split(' ').count(), REFLECTION_WORDS);
        let known = compact_words();
        for b in ["", "22 11", "22 11 21 12 23"] {
            for player in 0..2 {
                assert!(compact(b, player).split(' ').all(|w| w == "_" || known.iter().any(|k| k == w)));
            }
        }
    }

    #[test]
    fn compact_words_round_trip() {
        for (moves, player) in [("", 0), ("22", 1), ("22 11", 0), ("22 11 21", 1), ("22 11 13 31 21 23 12 32", 0)] {
            let b = board(moves);
            assert_eq!(read_board(&TicTacToe.describe(&b, player).compact), Some(b.in_reading_order()), "{moves}");
        }
        for moves in ["22 11 21 12 23", "22 11 13 31 21 23 12 32 33"] {
            let b = board(moves);
            assert_eq!(read_facts(&facts(&b, 0)), Some(b));
            assert_eq!(read_facts(&facts(&b, 1)), Some(b));
        }
        for wrong in ["", "X X X . . . . . .", ". . .", "O O . . . . . . .", "first won (1,1)"] {
            assert_eq!(read_board(wrong), None, "{wrong}");
        }
        for wrong in ["", "won", "won (1,1) _", "won (1,1) (1,1) _", "draw (2,2) (1,1) (2,1) (1,2) (2,3) _ _ _ _"] {
            assert_eq!(read_facts(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn read_action_accepts_pairs_and_explains_errors() {
        let b = board("22");
        let read = |text: &str| TicTacToe.read_action(&b, text).map(|a| cell_name(BoardCell::of(a)));
        for text in ["(1,3)", "( 1 , 3 )", "I take (1, 3).", "1 3", " 1, 3\n", "(top right) is (1,3), not (2,1)"] {
            assert_eq!(read(text).as_deref(), Ok("(1,3)"), "{text}");
        }
        for text in ["", "corner", "(1;3)", "1", "1 2 3", "(one, two)", "(1,"] {
            assert!(read(text).unwrap_err().contains("names no cell"), "{text}");
        }
        for text in ["(0, 1)", "(4, 1)", "(-1, -1)", "(1, 300)"] {
            assert!(read(text).unwrap_err().contains("is not on the board"), "{text}");
        }
        assert_eq!(read("(2, 2)").unwrap_err(), "(2,2) is taken; choose an empty cell");
    }

    #[test]
    fn rendering_marks_the_winning_line() {
        let drawn = TicTacToe.render(&board("22 11 21 12 23"), 0).unwrap();
        let expected = [
            "      1   2   3",
            "    ┌───┬───┬───┐",
            "  1 │ O │ O │   │",
            "    ├───┼───┼───┤",
            "  2 │[X]│[X]│[X]│",
            "    ├───┼───┼───┤",
            "  3 │   │   │   │",
            "    └───┴───┴───┘",
            "",
            "Your last move: (2,3). You have three in a row: you win.",
        ];
        assert_eq!(drawn.lines().collect::<Vec<_>>(), expected);
    }
}
