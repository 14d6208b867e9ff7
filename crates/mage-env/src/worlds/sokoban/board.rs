//! What does not move, and what does?
//!
//! A [`Board`] is a level's walls and targets; a [`State`] is where the player and the boxes are. Cells are numbered row by
//! row within the smallest rectangle that holds all floor; everything outside it is wall, so nothing is lost.

use super::{
    bits::Bits,
    level::{Cell, Level},
};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The most cells the rectangle around the floor may have: one less than the bits of the widest set, so that no shift by
/// a row's length overflows.
pub const MAX_CELLS: usize = 127;

/// No cell: a wall, or beyond the edge.
pub(super) const NOWHERE: u8 = u8::MAX;

/// One step of the player, numbered as in the reference (1 to 4; its 0, standing still, is no step).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// One column left.
    Left,
    /// One column right.
    Right,
}

impl Move {
    /// In the reference's order, in which searches try them.
    pub const ALL: [Move; 4] = [Move::Up, Move::Down, Move::Left, Move::Right];

    /// The way back.
    #[must_use]
    pub fn opposite(self) -> Move {
        [Move::Down, Move::Up, Move::Right, Move::Left][self as usize]
    }

    /// The word agents use.
    pub fn word(self) -> &'static str {
        ["up", "down", "left", "right"][self as usize]
    }

    /// The reference's number of this move.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The move of a reference number other than 0.
    pub fn from_code(code: u8) -> Option<Move> {
        Move::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

/// Where the player and the boxes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The boxes, one bit a cell.
    pub boxes: u128,
    /// The player's cell.
    pub player: u8,
}

/// What a move changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Nothing: a wall, or a box that cannot be pushed.
    Nothing,
    /// The player.
    Player,
    /// The player and a box.
    Box,
}

/// Walls and targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    rows: usize,
    cols: usize,
    top: usize,
    left: usize,
    width: usize,
    cells: usize,
    /// Where one can stand.
    pub(super) floor: u128,
    /// Where boxes belong.
    pub(super) targets: u128,
    first_col: u128,
    last_col: u128,
    near: [[u8; 4]; MAX_CELLS],
    places: [(u8, u8); MAX_CELLS],
}

impl Board {
    /// The board of a level, and its start.
    pub fn new(level: &Level) -> Result<(Board, State)> {
        let (rows, cols) = (level.rows(), level.cols());
        let open = |r: usize, c: usize| level.at(r, c) != Cell::Wall;
        let rows_open = (0..rows).filter(|r| (0..cols).any(|c| open(*r, c)));
        let cols_open = (0..cols).filter(|c| (0..rows).any(|r| open(r, *c)));
        let span = |lines: &mut dyn Iterator<Item = usize>| {
            let first = lines.next().unwrap_or(0);
            (first, lines.last().unwrap_or(first) - first + 1)
        };
        let (top, height) = span(&mut { rows_open });
        let (left, width) = span(&mut { cols_open });
        if height * width > MAX_CELLS {
            return Err(Error::invalid(
                "level",
                format!(
                    "its floor spans {height} rows and {width} columns; rows times columns may be {MAX_CELLS} at most"
                ),
            ));
        }
        let mut board = Board {
            rows,
            cols,
            top,
            left,
            width,
            cells: height * width,
            floor: 0,
            targets: 0,
            first_col: 0,
            last_col: 0,
            near: [[NOWHERE; 4]; MAX_CELLS],
            places: [(0, 0); MAX_CELLS],
        };
        let mut start = State { boxes: 0, player: NOWHERE };
        for i in 0..board.cells {
            let bit = 1_u128 << i;
            let cell = level.at(top + i / width, left + i % width);
            if cell != Cell::Wall {
                board.floor |= bit;
            }
            if matches!(cell, Cell::Target | Cell::BoxOnTarget | Cell::PlayerOnTarget) {
                board.targets |= bit;
            }
            if matches!(cell, Cell::Box | Cell::BoxOnTarget) {
                start.boxes |= bit;
            }
            if matches!(cell, Cell::Player | Cell::PlayerOnTarget) {
                start.player = i as u8;
            }
            if i % width == 0 {
                board.first_col |= bit;
            }
            if i % width == width - 1 {
                board.last_col |= bit;
            }
        }
        board.link();
        Ok((board, start))
    }

    fn link(&mut self) {
        for i in 0..self.cells {
            let (r, c) = (i / self.width, i % self.width);
            self.places[i] = (r as u8, c as u8);
            let beside = [
                (r > 0).then(|| i - self.width),
                (i + self.width < self.cells).then_some(i + self.width),
                (c > 0).then(|| i - 1),
                (c + 1 < self.width).then_some(i + 1),
            ];
            for (to, cell) in self.near[i].iter_mut().zip(beside) {
                *to = cell.filter(|n| self.floor >> n & 1 == 1).map_or(NOWHERE, |n| n as u8);
            }
        }
    }

    /// The floor cell next to `cell`, or [`NOWHERE`].
    pub(super) fn beside(&self, cell: u8, way: Move) -> u8 {
        self.near[usize::from(cell)][way as usize]
    }

    /// How many cells are numbered, walls among them included.
    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    /// Row and column of a cell within the floor's rectangle.
    pub(super) fn place(&self, cell: u8) -> (u8, u8) {
        self.places[usize::from(cell)]
    }

    /// How many rows the level has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns the level has.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How many targets, and so boxes, there are.
    pub fn boxes(&self) -> u32 {
        self.targets.count_ones()
    }

    /// How many boxes are on targets.
    pub fn placed(&self, s: &State) -> u32 {
        (s.boxes & self.targets).count_ones()
    }

    /// Whether every box is on a target.
    pub fn solved(&self, s: &State) -> bool {
        s.boxes == self.targets
    }

    /// What stands in a row and column of the level.
    pub fn at(&self, s: &State, row: usize, col: usize) -> Cell {
        let (Some(r), Some(c)) = (row.checked_sub(self.top), col.checked_sub(self.left)) else { return Cell::Wall };
        let i = r * self.width + c;
        if c >= self.width || i >= self.cells {
            return Cell::Wall;
        }
        let bit = 1_u128 << i;
        let target = self.targets & bit != 0;
        if self.floor & bit == 0 {
            Cell::Wall
        } else if s.boxes & bit != 0 {
            if target { Cell::BoxOnTarget } else { Cell::Box }
        } else if usize::from(s.player) == i {
            if target { Cell::PlayerOnTarget } else { Cell::Player }
        } else if target {
            Cell::Target
        } else {
            Cell::Floor
        }
    }

    /// Moves the player, pushing a box where there is one with room behind it.
    pub fn go(&self, s: &mut State, way: Move) -> Moved {
        let to = self.beside(s.player, way);
        if to == NOWHERE {
            return Moved::Nothing;
        }
        if s.boxes >> to & 1 == 0 {
            s.player = to;
            return Moved::Player;
        }
        let behind = self.beside(to, way);
        if behind == NOWHERE || s.boxes >> behind & 1 == 1 {
            return Moved::Nothing;
        }
        s.boxes ^= 1 << to | 1 << behind;
        s.player = to;
        Moved::Box
    }

    /// The fixed parts at the width searches use.
    pub(super) fn view<B: Bits>(&self) -> View<B> {
        View {
            floor: B::narrow(self.floor),
            targets: B::narrow(self.targets),
            not_first: !B::narrow(self.first_col),
            not_last: !B::narrow(self.last_col),
            width: self.width as u32,
        }
    }

    /// Whether 64 bits hold all cells (and a shift by a row's length does not overflow).
    pub(super) fn is_narrow(&self) -> bool {
        self.cells <= 64 && self.width < 64
    }
}

/// A board as sets of cells, for moving whole sets at once.
#[derive(Clone, Copy)]
pub(super) struct View<B> {
    pub(super) floor: B,
    pub(super) targets: B,
    not_first: B,
    not_last: B,
    width: u32,
}

impl<B: Bits> View<B> {
    /// Every cell of the set one step further; what leaves the floor's rectangle or wraps around is dropped, walls are not.
    pub(super) fn shift(&self, set: B, way: Move) -> B {
        match way {
            Move::Up => set >> self.width,
            Move::Down => set << self.width,
            Move::Left => (set & self.not_first) >> 1,
            Move::Right => (set & self.not_last) << 1,
        }
    }

    /// The cells beside any of the set.
    pub(super) fn around(&self, set: B) -> B {
        self.shift(set, Move::Up)
            | self.shift(set, Move::Down)
            | self.shift(set, Move::Left)
            | self.shift(set, Move::Right)
    }

    /// All cells that can be walked to from `from` (itself included) without pushing.
    pub(super) fn region(&self, from: u8, boxes: B) -> B {
        let free = self.floor & !boxes;
        let mut region = B::one(from);
        loop {
            let wider = (region | self.around(region)) & free;
            if wider == region {
                return region;
            }
            region = wider;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(text: &str) -> (Board, State) {
        Board::new(&Level::parse(text, "test").unwrap()).unwrap()
    }

    #[test]
    fn moves_walk_push_and_stop() {
        let (b, start) = board("#######\n#@$ $.#\n#.    #\n#######");
        let mut s = start;
        assert_eq!(b.go(&mut s, Move::Up), Moved::Nothing);
        assert_eq!(b.go(&mut s, Move::Right), Moved::Box);
        assert_eq!(b.go(&mut s, Move::Right), Moved::Nothing, "two boxes in a row do not move");
        assert_eq!(b.go(&mut s, Move::Down), Moved::Player);
        assert_eq!(b.at(&s, 2, 2), Cell::Player);
        assert_eq!(b.at(&s, 1, 3), Cell::Box);
        assert_eq!(b.at(&s, 0, 0), Cell::Wall);
        assert_eq!(b.at(&s, 9, 9), Cell::Wall);
    }

    #[test]
    fn sets_do_not_wrap_around_edges() {
        // No wall around: the edge of the text is the edge of the world.
        let (b, s) = board("  @\n$ .\n   ");
        let v = b.view::<u64>();
        assert_eq!(v.region(s.player, s.boxes as u64), 0b111_110_111);
        for way in Move::ALL {
            let back = v.shift(v.shift(0b000_010_000, way), way.opposite());
            assert_eq!(back, 0b000_010_000);
        }
        assert_eq!(v.shift(0b001_001_001, Move::Left), 0);
        assert_eq!(v.shift(0b100_100_100, Move::Right), 0);
        assert_eq!(v.shift(0b000_000_111, Move::Up), 0);
    }
}
