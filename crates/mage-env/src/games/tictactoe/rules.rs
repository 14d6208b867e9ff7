//! The rules of Tic-Tac-Toe.

use crate::{ActionId, ActionList, CurrentPlayer, Game, MAX_PLAYERS, Rng};

/// Number of cells.
pub const CELLS: usize = 9;

/// Number of arrangements of marks, reachable or not: one [`Board::index`] each.
pub const ARRANGEMENTS: usize = 19_683;

const FULL: u16 = 0x1ff;

/// One of the nine cells, row by row from the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoardCell(u8);

impl BoardCell {
    /// The cell in this row and column, both from 1 to 3.
    pub fn new(row: u8, column: u8) -> Option<Self> {
        ((1..=3).contains(&row) && (1..=3).contains(&column)).then(|| BoardCell((row - 1) * 3 + column - 1))
    }

    /// The cell of an action.
    pub fn of(action: ActionId) -> Self {
        BoardCell(action.0 as u8)
    }

    /// All of them, row by row.
    pub fn all() -> impl DoubleEndedIterator<Item = BoardCell> + Clone {
        (0..CELLS as u8).map(BoardCell)
    }

    /// The action that marks this cell.
    pub fn action(self) -> ActionId {
        ActionId(u16::from(self.0))
    }

    /// From 1 to 3, top to bottom.
    pub fn row(self) -> u8 {
        self.0 / 3 + 1
    }

    /// From 1 to 3, left to right.
    pub fn column(self) -> u8 {
        self.0 % 3 + 1
    }

    /// From 0 to 8, row by row.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    pub(super) const fn numbered(number: u8) -> Self {
        BoardCell(number)
    }

    const fn bit(self) -> u16 {
        1 << self.0
    }
}

/// One of the eight lines that win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WinLine(u8);

/// Rows from the top, columns from the left, then the diagonal from the top left and the one from the top right.
const LINES: [u16; 8] = [0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124];
const LINE_NAMES: [&str; 8] =
    ["row-1", "row-2", "row-3", "column-1", "column-2", "column-3", "diagonal-1", "diagonal-2"];

impl WinLine {
    /// Three rows, three columns, two diagonals.
    pub fn all() -> impl Iterator<Item = WinLine> {
        (0..LINES.len() as u8).map(WinLine)
    }

    /// The line with this name: `row-2`, `column-1`, `diagonal-1` (from the top left), `diagonal-2` (from the top
    /// right), ….
    pub fn named(name: &str) -> Option<Self> {
        WinLine::all().find(|l| l.name() == name)
    }

    /// The name, as read by [`named`](WinLine::named).
    pub fn name(self) -> &'static str {
        LINE_NAMES[self.number()]
    }

    /// Its three cells.
    pub fn cells(self) -> impl Iterator<Item = BoardCell> {
        BoardCell::all().filter(move |c| self.bits() & c.bit() != 0)
    }

    /// From 0 to 7, in the order of [`all`](WinLine::all).
    pub fn number(self) -> usize {
        usize::from(self.0)
    }

    const fn bits(self) -> u16 {
        LINES[self.0 as usize]
    }
}

/// Bit `n % 64` of word `n / 64` is set when the marks `n` hold a line.
const HAS_LINE: [u64; 8] = {
    let mut table = [0; 8];
    let mut marks = 0;
    while marks < 512 {
        let mut line = 0;
        while line < 8 {
            if marks & LINES[line] as usize == LINES[line] as usize {
                table[marks / 64] |= 1 << (marks % 64);
            }
            line += 1;
        }
        marks += 1;
    }
    table
};

fn has_line(marks: u16) -> bool {
    HAS_LINE[usize::from(marks / 64)] >> (marks % 64) & 1 == 1
}

/// The sum of 3^cell over the cells in a set.
const TERNARY: [u16; 512] = {
    let mut table = [0; 512];
    let mut set = 1;
    while set < 512 {
        let lowest = (set as u32).trailing_zeros();
        table[set] = table[set & (set - 1)] + 3_u16.pow(lowest);
        set += 1;
    }
    table
};

/// A game in progress: the marks by seat and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Board {
    /// Bit masks by seat.
    marks: [u16; 2],
    /// The moves, four bits each, the first lowest.
    order: u64,
    /// Number of moves made.
    made: u8,
}

impl Board {
    /// The board after these moves, seat 0 first; `None` when one of them is not legal.
    pub fn after(moves: impl IntoIterator<Item = BoardCell>) -> Option<Self> {
        let mut board = Board::default();
        for cell in moves {
            if board.over() || !board.is_empty(cell) {
                return None;
            }
            board.play(cell);
        }
        Some(board)
    }

    /// Number of marks.
    pub fn made(&self) -> usize {
        usize::from(self.made)
    }

    /// The moves in order, seat 0's first.
    pub fn moves(&self) -> impl DoubleEndedIterator<Item = BoardCell> + '_ {
        (0..self.made).map(|i| BoardCell((self.order >> (4 * i) & 0xf) as u8))
    }

    /// The seat whose mark is in a cell.
    pub fn mark(&self, cell: BoardCell) -> Option<u8> {
        (0..2).find(|seat| self.marks[usize::from(*seat)] & cell.bit() != 0)
    }

    /// Whether a cell can still be played.
    pub fn is_empty(&self, cell: BoardCell) -> bool {
        (self.marks[0] | self.marks[1]) & cell.bit() == 0
    }

    /// The seat to move next, unless the game is over.
    pub fn mover(&self) -> u8 {
        self.made % 2
    }

    /// The seat that has a line.
    pub fn winner(&self) -> Option<u8> {
        (0..2).find(|seat| has_line(self.marks[usize::from(*seat)]))
    }

    /// The lines a seat has completed.
    pub(crate) fn lines_of(&self, seat: u8) -> impl Iterator<Item = WinLine> {
        let marks = self.marks[usize::from(seat)];
        WinLine::all().filter(move |l| marks & l.bits() == l.bits())
    }

    /// Whether a seat has won or the board is full.
    pub fn over(&self) -> bool {
        // Only the seat that moved last can have completed a line.
        usize::from(self.made) == CELLS || has_line(self.marks[usize::from(1 - self.mover())])
    }

    /// Index of this arrangement of marks, regardless of their order.
    pub fn index(&self) -> usize {
        usize::from(TERNARY[usize::from(self.marks[0])]) + 2 * usize::from(TERNARY[usize::from(self.marks[1])])
    }

    /// The canonical board of this arrangement: marks in reading order.
    #[must_use]
    pub(crate) fn in_reading_order(&self) -> Self {
        let mut cells = [0, 1].map(|seat| BoardCell::all().filter(move |c| self.mark(*c) == Some(seat)));
        let order = (0..self.made).fold(0, |order, i| {
            let cell = cells[usize::from(i % 2)].next().map_or(0, |c| c.0);
            order | u64::from(cell) << (4 * i)
        });
        Board { order, ..*self }
    }

    /// The board with its cells permuted; the order of moves is kept.
    pub(super) fn permuted(&self, to: &[BoardCell; CELLS]) -> Self {
        let mut board = Board::default();
        self.moves().for_each(|c| board.play(to[c.number()]));
        board
    }

    /// The cells without a mark, in order.
    pub(super) fn empty_cells(&self) -> impl Iterator<Item = BoardCell> + use<> {
        let mut remaining = FULL & !(self.marks[0] | self.marks[1]);
        std::iter::from_fn(move || {
            let cell = (remaining != 0).then(|| BoardCell(remaining.trailing_zeros() as u8));
            remaining &= remaining.wrapping_sub(1);
            cell
        })
    }

    pub(super) fn play(&mut self, cell: BoardCell) {
        self.marks[usize::from(self.mover())] |= cell.bit();
        self.order |= u64::from(cell.0) << (4 * self.made);
        self.made += 1;
    }

    /// The board after one more mark.
    pub(super) fn with(mut self, cell: BoardCell) -> Self {
        self.play(cell);
        self
    }
}

/// Tic-Tac-Toe: three in a row on a 3×3 board. A win returns 1, a loss −1, a draw 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct TicTacToe;

impl Game for TicTacToe {
    type State = Board;

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> Board {
        Board::default()
    }

    #[inline]
    fn current_player(&self, s: &Board) -> CurrentPlayer {
        if s.over() { CurrentPlayer::Terminal } else { CurrentPlayer::Player(s.mover()) }
    }

    #[inline]
    fn legal(&self, s: &Board) -> ActionList {
        if s.over() { ActionList::new() } else { s.empty_cells().map(BoardCell::action).collect() }
    }

    #[inline]
    fn apply(&self, s: &mut Board, a: ActionId) {
        s.play(BoardCell::of(a));
    }

    #[inline]
    fn returns(&self, s: &Board) -> [f32; MAX_PLAYERS] {
        let mut out = [0.0; MAX_PLAYERS];
        if let Some(winner) = s.winner() {
            out[usize::from(winner)] = 1.0;
            out[usize::from(1 - winner)] = -1.0;
        }
        out
    }

    /// The moves in order, as row and column digits (`22 11 13`), because their order is informative about the
    /// opponent. The board alone is [`TextGame::anchor`](crate::TextGame::anchor).
    fn observe(&self, s: &Board, _player: u8) -> String {
        let mut text = String::with_capacity(3 * CELLS);
        for cell in s.moves() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push(char::from(b'0' + cell.row()));
            text.push(char::from(b'0' + cell.column()));
        }
        text
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The board after moves written as row and column digits.
    pub(in crate::games::tictactoe) fn board(moves: &str) -> Board {
        let cells = moves.split_whitespace().map(|m| {
            let digits = m.as_bytes();
            BoardCell::new(digits[0] - b'0', digits[1] - b'0').unwrap()
        });
        Board::after(cells).unwrap()
    }

    #[derive(Default)]
    struct Census {
        positions: HashSet<usize>,
        first_wins: u32,
        second_wins: u32,
        draws: u32,
    }

    fn walk(s: Board, census: &mut Census) {
        census.positions.insert(s.index());
        if TicTacToe.current_player(&s) == CurrentPlayer::Terminal {
            assert!(TicTacToe.legal(&s).is_empty());
            match TicTacToe.returns(&s)[0] {
                1.0 => census.first_wins += 1,
                -1.0 => census.second_wins += 1,
                _ => census.draws += 1,
            }
        }
        for a in TicTacToe.legal(&s) {
            let mut next = s;
            TicTacToe.apply(&mut next, a);
            walk(next, census);
        }
    }

    #[test]
    fn game_tree_has_the_known_size() {
        let mut census = Census::default();
        walk(Board::default(), &mut census);
        assert_eq!(census.positions.len(), 5_478);
        assert_eq!((census.first_wins, census.second_wins, census.draws), (131_184, 77_904, 46_080));
        assert_eq!(census.first_wins + census.second_wins + census.draws, 255_168);
    }

    #[test]
    fn index_depends_on_the_arrangement_and_not_on_the_order() {
        assert_eq!(board("11 22 33").index(), board("33 22 11").index());
        assert_ne!(board("11 22 33").index(), board("11 33 22").index());
        assert_eq!(board("33 22 11").in_reading_order(), board("11 22 33").in_reading_order());
        assert_eq!(board("33 22 11").in_reading_order(), board("11 22 33"));
        assert!(board("11 12 13 21 22 23 31").index() < ARRANGEMENTS);
    }

    #[test]
    fn moves_are_returned_in_order() {
        let b = board("22 11 13 31 21 23 12 32 33");
        let text = TicTacToe.observe(&b, 0);
        assert_eq!(text, "22 11 13 31 21 23 12 32 33");
        assert_eq!(b.mark(BoardCell::new(2, 2).unwrap()), Some(0));
        assert_eq!(b.mark(BoardCell::new(1, 1).unwrap()), Some(1));
        assert!(Board::after([BoardCell(4), BoardCell(4)]).is_none());
        assert!(Board::after([0, 3, 1, 4, 2, 5].map(BoardCell)).is_none(), "no move after the end");
    }

    #[test]
    fn every_line_wins_the_game() {
        for line in WinLine::all() {
            assert_eq!(WinLine::named(line.name()), Some(line));
            let line_cells: Vec<BoardCell> = line.cells().collect();
            let others: Vec<BoardCell> = BoardCell::all().filter(|c| !line_cells.contains(c)).collect();
            // Two other cells never complete a line for the second seat.
            let moves = [line_cells[0], others[0], line_cells[1], others[1], line_cells[2]];
            let b = Board::after(moves).unwrap();
            assert_eq!(TicTacToe.current_player(&b), CurrentPlayer::Terminal);
            assert_eq!(TicTacToe.returns(&b)[..2], [1.0, -1.0]);
            assert_eq!(b.lines_of(0).collect::<Vec<_>>(), [line]);
        }
        assert_eq!(WinLine::named("row-4"), None);
    }
}
