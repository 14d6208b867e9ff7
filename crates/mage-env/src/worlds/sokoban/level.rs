//! How is a level written down?
//!
//! As text, one character a cell: `#` wall, space, `-` or `_` floor, `.` target, `$` box, `*` box on a target, `@` player,
//! `+` player on a target. A file may hold many levels, set apart by empty lines or by comment lines that begin with `;`.
//! Boxoban's files are of this form. Rows of a level are of equal length; what lies beyond the edge is wall.

use super::board::Board;
use crate::{Error, Result};
use std::fmt;

/// What a cell holds, numbered as in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Nothing gets in.
    Wall,
    /// Free floor.
    Floor,
    /// A target without a box.
    Target,
    /// A box where it belongs.
    BoxOnTarget,
    /// A box anywhere else.
    Box,
    /// The player on plain floor.
    Player,
    /// The player on a target.
    PlayerOnTarget,
}

impl Cell {
    /// All cells, by number.
    pub const ALL: [Cell; 7] =
        [Cell::Wall, Cell::Floor, Cell::Target, Cell::BoxOnTarget, Cell::Box, Cell::Player, Cell::PlayerOnTarget];

    /// The character of level files.
    pub fn letter(self) -> char {
        ['#', ' ', '.', '*', '$', '@', '+'][self as usize]
    }

    /// The cell of a level file's character.
    pub fn from_letter(letter: char) -> Option<Cell> {
        match letter {
            '-' | '_' => Some(Cell::Floor),
            _ => Cell::ALL.into_iter().find(|c| c.letter() == letter),
        }
    }
}

/// A level at its start: one player, at least one box off target, as many targets as boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    cols: usize,
    cells: Vec<Cell>,
}

impl Level {
    /// Reads a text that holds one level; `place` says where it is from, for errors.
    pub fn parse(text: &str, place: &str) -> Result<Level> {
        let mut levels = Self::parse_all(text, place)?;
        match levels.pop() {
            Some(level) if levels.is_empty() => Ok(level),
            _ => Err(Error::invalid(place, format!("{} levels where one was expected", levels.len() + 1))),
        }
    }

    /// Reads a text that holds any number of levels, but at least one.
    pub fn parse_all(text: &str, place: &str) -> Result<Vec<Level>> {
        let mut levels = Vec::new();
        let mut rows: Vec<&str> = Vec::new();
        let mut first = 0;
        // One empty line past the end closes the last level.
        for (i, line) in text.lines().chain([""]).enumerate() {
            if line.is_empty() || line.starts_with(';') {
                if !rows.is_empty() {
                    levels.push(Self::from_rows(&rows, place, first)?);
                    rows.clear();
                }
                continue;
            }
            if rows.is_empty() {
                first = i + 1;
            }
            rows.push(line);
        }
        if levels.is_empty() {
            return Err(Error::invalid(place, "no level in it; a level is lines of # wall, $ box, . target, @ player"));
        }
        Ok(levels)
    }

    fn from_rows(rows: &[&str], place: &str, first: usize) -> Result<Level> {
        let cols = rows[0].chars().count();
        let mut cells = Vec::with_capacity(rows.len() * cols);
        for (i, row) in rows.iter().enumerate() {
            let at = || format!("{place}, line {}", first + i);
            for (c, letter) in row.chars().enumerate() {
                cells.push(Cell::from_letter(letter).ok_or_else(|| {
                    let problem = format!(
                        "`{}` in column {} is not part of a level; use # wall, space floor, . target, $ box, * box on \
                         target, @ player, + player on target, and ; before a comment",
                        letter.escape_default(),
                        c + 1
                    );
                    Error::invalid(at(), problem)
                })?);
            }
            let len = cells.len() - i * cols;
            if len != cols {
                let problem = format!(
                    "the row has {len} cells, but the level's first row has {cols}; fill short rows up with # or spaces"
                );
                return Err(Error::invalid(at(), problem));
            }
        }
        let level = Level { cols, cells };
        level.check().map_err(|problem| Error::invalid(format!("{place}, level at line {first}"), problem))?;
        Ok(level)
    }

    /// A level of the reference's two number matrices: what is fixed, and what stands on it.
    pub fn from_codes(fixed: &[Vec<u8>], state: &[Vec<u8>], place: &str) -> Result<Level> {
        let cols = fixed.first().map_or(0, Vec::len);
        let same_shape = fixed.len() == state.len() && fixed.iter().chain(state).all(|row| row.len() == cols);
        if cols == 0 || !same_shape {
            return Err(Error::invalid(place, "the fixed and the movable matrix must be of one rectangular shape"));
        }
        let cells = fixed.iter().flatten().zip(state.iter().flatten()).map(|(fixed, state)| match (fixed, state) {
            (2, 5) => Ok(Cell::PlayerOnTarget),
            (0, 0) | (1, 1 | 4 | 5) | (2, 2 | 3) => Ok(Cell::ALL[usize::from(*state)]),
            _ => Err(Error::invalid(
                place,
                format!("a cell is {state} on {fixed}, which cannot be: walls are 0, floor 1, targets 2, boxes 3 on a target and 4 beside it, the player 5"),
            )),
        });
        let level = Level { cols, cells: cells.collect::<Result<_>>()? };
        level.check().map_err(|problem| Error::invalid(place, problem))?;
        Ok(level)
    }

    /// A level of its cells, row by row; the caller answers for what [`Level`] promises.
    pub(super) fn from_cells(cols: usize, cells: Vec<Cell>) -> Level {
        Level { cols, cells }
    }

    pub(super) fn into_cells(self) -> Vec<Cell> {
        self.cells
    }

    fn check(&self) -> std::result::Result<(), String> {
        let count = |wanted: &[Cell]| self.cells.iter().filter(|c| wanted.contains(c)).count();
        match count(&[Cell::Player, Cell::PlayerOnTarget]) {
            1 => {}
            0 => return Err("there is no player; mark where one starts with @ (or + on a target)".to_owned()),
            n => return Err(format!("there are {n} players; keep one @ or +")),
        }
        let boxes = count(&[Cell::Box, Cell::BoxOnTarget]);
        let targets = count(&[Cell::Target, Cell::BoxOnTarget, Cell::PlayerOnTarget]);
        if boxes == 0 {
            return Err("there is no box to push; mark boxes with $ (or * on a target)".to_owned());
        }
        if boxes > targets {
            return Err(format!("more boxes than targets ({boxes} and {targets}): it can never be solved"));
        }
        if boxes < targets {
            return Err(format!("more targets than boxes ({targets} and {boxes}): every target needs a box"));
        }
        if count(&[Cell::Box]) == 0 {
            return Err("it is solved already: every box is on a target".to_owned());
        }
        Board::new(self).map(drop).map_err(|e| e.to_string())
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.cells.len() / self.cols
    }

    /// How many columns it has.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// What stands in a row and column.
    pub fn at(&self, row: usize, col: usize) -> Cell {
        self.cells[row * self.cols + col]
    }
}

impl fmt::Display for Level {
    /// As [`Level::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cells.chunks(self.cols).try_for_each(|row| {
            row.iter().try_for_each(|c| write!(f, "{}", c.letter()))?;
            writeln!(f)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#####\n#@$.#\n#####\n";

    #[test]
    fn what_is_written_is_read_back() {
        let text = "#######\n#+ $  #\n# *-_ #\n#######\n";
        let level = Level::parse(text, "t").unwrap();
        assert_eq!((level.rows(), level.cols()), (4, 7));
        assert_eq!(level.to_string(), text.replace(['-', '_'], " "));
        assert_eq!(Level::parse(&level.to_string(), "t").unwrap(), level);
    }

    #[test]
    fn many_levels_in_a_file() {
        let text = format!("; 0\n{GOOD}\n; 1\n{GOOD}{}; the end", GOOD.replace('\n', "\r\n"));
        let levels = Level::parse_all(&text, "t");
        assert!(levels.is_err(), "two levels without a line between them make one with two players");
        let text = format!("; 0\n{GOOD}\n; 1\n{}; the end", GOOD.replace('\n', "\r\n"));
        assert_eq!(Level::parse_all(&text, "t").unwrap().len(), 2);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let err = |text: &str| Level::parse_all(text, "mine.txt").unwrap_err().to_string();
        assert!(err("\n#####\n# $.#\n#####").starts_with("mine.txt, level at line 2: there is no player"));
        assert!(err("#####\n#@$.#\n####\n").starts_with("mine.txt, line 3: the row has 4 cells"));
        assert!(err("######\n#@$$.#\n######").contains("more boxes than targets (2 and 1)"));
        assert!(err("######\n#@$..#\n######").contains("more targets than boxes (2 and 1)"));
        assert!(err("#####\n#@@.$#\n").contains("mine.txt, line 2: the row has 6 cells"));
        assert!(err("#####\n#@x.#\n").contains("`x` in column 3 is not part of a level"));
        assert!(err("######\n#@+$ #\n").contains("there are 2 players"));
        assert!(err("####\n#@ #\n").contains("there is no box"));
        assert!(err("####\n#@*#\n").contains("solved already"));
        assert!(err("; nothing here\n").contains("no level in it"));
        let wide = format!("@$.{}\n", " ".repeat(200));
        assert!(err(&wide).contains("spans 1 rows and 203 columns"));
        assert!(Level::parse(&format!("{GOOD}\n{GOOD}"), "t").unwrap_err().to_string().contains("2 levels"));
    }

    #[test]
    fn reference_matrices_are_read() {
        let fixed = vec![vec![0, 0, 0, 0], vec![0, 2, 1, 0], vec![0, 1, 1, 0]];
        let state = vec![vec![0, 0, 0, 0], vec![0, 5, 4, 0], vec![0, 1, 1, 0]];
        let level = Level::from_codes(&fixed, &state, "t").unwrap();
        assert_eq!(level.to_string(), "####\n#+$#\n#  #\n");
        assert!(Level::from_codes(&fixed[..2], &state, "t").unwrap_err().to_string().contains("rectangular"));
        let odd = vec![vec![9; 4]; 3];
        assert!(Level::from_codes(&fixed, &odd, "t").unwrap_err().to_string().contains("9 on "));
    }
}
