//! Static board (walls, targets) and dynamic state (player, boxes).
//!
//! Cells are indexed row by row within the bounding rectangle of the floor; everything outside it is wall.

use super::{
    bitboard::Bitboard,
    level::{SokobanLevel, Tile},
};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Maximum number of cells in the bounding rectangle of the floor: one less than the widest bitboard, so that no shift
/// by a row's length overflows.
pub const MAX_CELLS: usize = 127;

/// Sentinel for "no floor cell": a wall or beyond the edge.
pub(super) const NO_CELL: u8 = u8::MAX;

/// A move of the player, numbered as in the reference implementation (1 to 4; its 0, a no-op, is not a move).
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
    /// In the reference's order, which is also the expansion order of searches.
    pub const ALL: [Move; 4] = [Move::Up, Move::Down, Move::Left, Move::Right];

    /// The opposite direction.
    #[must_use]
    pub(crate) fn opposite(self) -> Move {
        [Move::Down, Move::Up, Move::Right, Move::Left][self as usize]
    }

    /// The action word.
    pub fn word(self) -> &'static str {
        ["up", "down", "left", "right"][self as usize]
    }

    /// The reference's action code.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The move for a reference action code; `None` for 0 and unknown codes.
    pub fn from_code(code: u8) -> Option<Move> {
        Move::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

/// Positions of the player and the boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SokobanState {
    /// The boxes, one bit per cell.
    pub boxes: u128,
    /// The player's cell.
    pub player: u8,
}

/// Effect of a move on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveEffect {
    /// The state did not change: a wall, or a box that cannot be pushed.
    Blocked,
    /// The player moved.
    Walked,
    /// The player moved and pushed a box.
    Pushed,
}

/// The static part of a level: walls and targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SokobanBoard {
    rows: usize,
    cols: usize,
    top: usize,
    left: usize,
    width: usize,
    cells: usize,
    /// Floor cells, targets included.
    pub(super) floor: u128,
    /// Target cells.
    pub(super) targets: u128,
    first_col: u128,
    last_col: u128,
    neighbours: [[u8; 4]; MAX_CELLS],
    coords: [(u8, u8); MAX_CELLS],
}

impl SokobanBoard {
    /// Builds the board of a level and its initial state.
    pub fn new(level: &SokobanLevel) -> Result<(SokobanBoard, SokobanState)> {
        let (rows, cols) = (level.rows(), level.cols());
        let open = |r: usize, c: usize| level.at(r, c) != Tile::Wall;
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
        let mut board = SokobanBoard {
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
            neighbours: [[NO_CELL; 4]; MAX_CELLS],
            coords: [(0, 0); MAX_CELLS],
        };
        let mut start = SokobanState { boxes: 0, player: NO_CELL };
        for i in 0..board.cells {
            let bit = 1_u128 << i;
            let cell = level.at(top + i / width, left + i % width);
            if cell != Tile::Wall {
                board.floor |= bit;
            }
            if matches!(cell, Tile::Target | Tile::BoxOnTarget | Tile::PlayerOnTarget) {
                board.targets |= bit;
            }
            if matches!(cell, Tile::Box | Tile::BoxOnTarget) {
                start.boxes |= bit;
            }
            if matches!(cell, Tile::Player | Tile::PlayerOnTarget) {
                start.player = i as u8;
            }
            if i % width == 0 {
                board.first_col |= bit;
            }
            if i % width == width - 1 {
                board.last_col |= bit;
            }
        }
        board.compute_neighbours();
        Ok((board, start))
    }

    fn compute_neighbours(&mut self) {
        for i in 0..self.cells {
            let (r, c) = (i / self.width, i % self.width);
            self.coords[i] = (r as u8, c as u8);
            let adjacent = [
                (r > 0).then(|| i - self.width),
                (i + self.width < self.cells).then_some(i + self.width),
                (c > 0).then(|| i - 1),
                (c + 1 < self.width).then_some(i + 1),
            ];
            for (to, cell) in self.neighbours[i].iter_mut().zip(adjacent) {
                *to = cell.filter(|n| self.floor >> n & 1 == 1).map_or(NO_CELL, |n| n as u8);
            }
        }
    }

    /// The floor cell adjacent to `cell`, or [`NO_CELL`].
    pub(super) fn neighbour(&self, cell: u8, direction: Move) -> u8 {
        self.neighbours[usize::from(cell)][direction as usize]
    }

    /// Number of indexed cells, walls included.
    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    /// Row and column of a cell within the bounding rectangle.
    pub(super) fn coords_of(&self, cell: u8) -> (u8, u8) {
        self.coords[usize::from(cell)]
    }

    /// Number of rows of the level.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns of the level.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of boxes, which equals the number of targets.
    pub fn boxes(&self) -> u32 {
        self.targets.count_ones()
    }

    /// Number of boxes on targets.
    pub(crate) fn boxes_on_targets(&self, s: &SokobanState) -> u32 {
        (s.boxes & self.targets).count_ones()
    }

    /// Whether every box is on a target.
    pub fn is_solved(&self, s: &SokobanState) -> bool {
        s.boxes == self.targets
    }

    /// The tile at a row and column of the level.
    pub fn at(&self, s: &SokobanState, row: usize, col: usize) -> Tile {
        let (Some(r), Some(c)) = (row.checked_sub(self.top), col.checked_sub(self.left)) else { return Tile::Wall };
        let i = r * self.width + c;
        if c >= self.width || i >= self.cells {
            return Tile::Wall;
        }
        let bit = 1_u128 << i;
        let target = self.targets & bit != 0;
        if self.floor & bit == 0 {
            Tile::Wall
        } else if s.boxes & bit != 0 {
            if target { Tile::BoxOnTarget } else { Tile::Box }
        } else if usize::from(s.player) == i {
            if target { Tile::PlayerOnTarget } else { Tile::Player }
        } else if target {
            Tile::Target
        } else {
            Tile::Floor
        }
    }

    /// Applies a move: walks, or pushes a box if the cell behind it is free.
    pub fn apply(&self, s: &mut SokobanState, direction: Move) -> MoveEffect {
        let to = self.neighbour(s.player, direction);
        if to == NO_CELL {
            return MoveEffect::Blocked;
        }
        if s.boxes >> to & 1 == 0 {
            s.player = to;
            return MoveEffect::Walked;
        }
        let behind = self.neighbour(to, direction);
        if behind == NO_CELL || s.boxes >> behind & 1 == 1 {
            return MoveEffect::Blocked;
        }
        s.boxes ^= 1 << to | 1 << behind;
        s.player = to;
        MoveEffect::Pushed
    }

    /// The static bitboards at the width a search uses.
    pub(super) fn masks<B: Bitboard>(&self) -> BoardMasks<B> {
        BoardMasks {
            floor: B::truncate(self.floor),
            targets: B::truncate(self.targets),
            not_first: !B::truncate(self.first_col),
            not_last: !B::truncate(self.last_col),
            width: self.width as u32,
        }
    }

    /// Whether 64 bits hold all cells, and a shift by a row's length does not overflow.
    pub(super) fn fits_in_64_bits(&self) -> bool {
        self.cells <= 64 && self.width < 64
    }
}

/// Static bitboards of a level, for set-wise operations.
#[derive(Clone, Copy)]
pub(super) struct BoardMasks<B> {
    pub(super) floor: B,
    pub(super) targets: B,
    not_first: B,
    not_last: B,
    width: u32,
}

impl<B: Bitboard> BoardMasks<B> {
    /// Shifts every cell of the set by one; cells that leave the bounding rectangle or wrap around are dropped, walls are not.
    pub(super) fn shift(&self, set: B, direction: Move) -> B {
        match direction {
            Move::Up => set >> self.width,
            Move::Down => set << self.width,
            Move::Left => (set & self.not_first) >> 1,
            Move::Right => (set & self.not_last) << 1,
        }
    }

    /// All cells adjacent to a cell of the set.
    pub(super) fn dilate(&self, set: B) -> B {
        self.shift(set, Move::Up)
            | self.shift(set, Move::Down)
            | self.shift(set, Move::Left)
            | self.shift(set, Move::Right)
    }

    /// The cells the player can walk to from `from` (included) without pushing a box.
    pub(super) fn reachable(&self, from: u8, boxes: B) -> B {
        let free = self.floor & !boxes;
        let mut region = B::single(from);
        loop {
            let wider = (region | self.dilate(region)) & free;
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

    fn board(text: &str) -> (SokobanBoard, SokobanState) {
        SokobanBoard::new(&SokobanLevel::parse(text, "test").unwrap()).unwrap()
    }

    #[test]
    fn moves_walk_push_or_are_blocked() {
        let (b, start) = board("#######\n#@$ $.#\n#.    #\n#######");
        let mut s = start;
        assert_eq!(b.apply(&mut s, Move::Up), MoveEffect::Blocked);
        assert_eq!(b.apply(&mut s, Move::Right), MoveEffect::Pushed);
        assert_eq!(b.apply(&mut s, Move::Right), MoveEffect::Blocked, "two boxes in a row do not move");
        assert_eq!(b.apply(&mut s, Move::Down), MoveEffect::Walked);
        assert_eq!(b.at(&s, 2, 2), Tile::Player);
        assert_eq!(b.at(&s, 1, 3), Tile::Box);
        assert_eq!(b.at(&s, 0, 0), Tile::Wall);
        assert_eq!(b.at(&s, 9, 9), Tile::Wall);
    }

    #[test]
    fn bitboard_shifts_do_not_wrap_around_edges() {
        // No surrounding wall: the edge of the text is the edge of the board.
        let (b, s) = board("  @\n$ .\n   ");
        let v = b.masks::<u64>();
        assert_eq!(v.reachable(s.player, s.boxes as u64), 0b111_110_111);
        for direction in Move::ALL {
            let back = v.shift(v.shift(0b000_010_000, direction), direction.opposite());
            assert_eq!(back, 0b000_010_000);
        }
        assert_eq!(v.shift(0b001_001_001, Move::Left), 0);
        assert_eq!(v.shift(0b100_100_100, Move::Right), 0);
        assert_eq!(v.shift(0b000_000_111, Move::Up), 0);
    }
}
