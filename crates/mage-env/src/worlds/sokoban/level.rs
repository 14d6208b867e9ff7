//! Levels and the text format of level files.
//!
//! One character per cell: `#` wall, space, `-` or `_` floor, `.` target, `$` box, `*` box on a target, `@` player, `+`
//! player on a target. A file may contain several levels, separated by empty lines or by comment lines that start with
//! `;`. Boxoban uses this format. All rows of a level have the same length; everything beyond the edge is wall.

use super::board::SokobanBoard;
use crate::{Error, Result};
use std::fmt;

/// Content of a cell, numbered as in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tile {
    /// Impassable.
    Wall,
    /// Free floor.
    Floor,
    /// A target without a box.
    Target,
    /// A box on a target.
    BoxOnTarget,
    /// A box on plain floor.
    Box,
    /// The player on plain floor.
    Player,
    /// The player on a target.
    PlayerOnTarget,
}

impl Tile {
    /// All tiles, in numeric order.
    pub const ALL: [Tile; 7] =
        [Tile::Wall, Tile::Floor, Tile::Target, Tile::BoxOnTarget, Tile::Box, Tile::Player, Tile::PlayerOnTarget];

    /// The character used in level files.
    pub(crate) fn to_char(self) -> char {
        ['#', ' ', '.', '*', '$', '@', '+'][self as usize]
    }

    /// The tile of a level file's character.
    pub(crate) fn from_char(c: char) -> Option<Tile> {
        match c {
            '-' | '_' => Some(Tile::Floor),
            _ => Tile::ALL.into_iter().find(|t| t.to_char() == c),
        }
    }
}

/// The initial configuration of a level: one player, at least one box off target, as many targets as boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SokobanLevel {
    cols: usize,
    cells: Vec<Tile>,
}

impl SokobanLevel {
    /// Parses a text that contains exactly one level; `origin` names the source in errors.
    pub fn parse(text: &str, origin: &str) -> Result<SokobanLevel> {
        let mut levels = Self::parse_all(text, origin)?;
        match levels.pop() {
            Some(level) if levels.is_empty() => Ok(level),
            _ => Err(Error::invalid(origin, format!("expected one level, found {}", levels.len() + 1))),
        }
    }

    /// Parses a text that contains one or more levels.
    pub fn parse_all(text: &str, origin: &str) -> Result<Vec<SokobanLevel>> {
        let mut levels = Vec::new();
        let mut rows: Vec<&str> = Vec::new();
        let mut first = 0;
        // An empty line after the end terminates the last level.
        for (i, line) in text.lines().chain([""]).enumerate() {
            if line.is_empty() || line.starts_with(';') {
                if !rows.is_empty() {
                    levels.push(Self::from_rows(&rows, origin, first)?);
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
            return Err(Error::invalid(
                origin,
                "contains no level; a level consists of lines of # wall, $ box, . target, @ player",
            ));
        }
        Ok(levels)
    }

    fn from_rows(rows: &[&str], origin: &str, first: usize) -> Result<SokobanLevel> {
        let cols = rows[0].chars().count();
        let mut cells = Vec::with_capacity(rows.len() * cols);
        for (i, row) in rows.iter().enumerate() {
            let at = || format!("{origin}, line {}", first + i);
            for (c, letter) in row.chars().enumerate() {
                cells.push(Tile::from_char(letter).ok_or_else(|| {
                    let problem = format!(
                        "`{}` in column {} is not a level character; use # wall, space floor, . target, $ box, * box on \
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
        let level = SokobanLevel { cols, cells };
        level.check().map_err(|problem| Error::invalid(format!("{origin}, level at line {first}"), problem))?;
        Ok(level)
    }

    /// Builds a level from the reference's two matrices, `room_fixed` and `room_state`.
    pub(crate) fn from_codes(fixed: &[Vec<u8>], state: &[Vec<u8>], origin: &str) -> Result<SokobanLevel> {
        let cols = fixed.first().map_or(0, Vec::len);
        let same_shape = fixed.len() == state.len() && fixed.iter().chain(state).all(|row| row.len() == cols);
        if cols == 0 || !same_shape {
            return Err(Error::invalid(origin, "room_fixed and room_state must have the same rectangular shape"));
        }
        let cells = fixed.iter().flatten().zip(state.iter().flatten()).map(|(fixed, state)| match (fixed, state) {
            (2, 5) => Ok(Tile::PlayerOnTarget),
            (0, 0) | (1, 1 | 4 | 5) | (2, 2 | 3) => Ok(Tile::ALL[usize::from(*state)]),
            _ => Err(Error::invalid(
                origin,
                format!("invalid cell {state} on {fixed}: walls are 0, floor 1, targets 2, boxes 3 on a target and 4 off target, the player 5"),
            )),
        });
        let level = SokobanLevel { cols, cells: cells.collect::<Result<_>>()? };
        level.check().map_err(|problem| Error::invalid(origin, problem))?;
        Ok(level)
    }

    /// Builds a level from its tiles, row by row; the caller guarantees the invariants of [`SokobanLevel`].
    pub(super) fn from_cells(cols: usize, cells: Vec<Tile>) -> SokobanLevel {
        SokobanLevel { cols, cells }
    }

    pub(super) fn into_cells(self) -> Vec<Tile> {
        self.cells
    }

    fn check(&self) -> std::result::Result<(), String> {
        let count = |wanted: &[Tile]| self.cells.iter().filter(|c| wanted.contains(c)).count();
        match count(&[Tile::Player, Tile::PlayerOnTarget]) {
            1 => {}
            0 => return Err("there is no player; mark the start with @ (or + on a target)".to_owned()),
            n => return Err(format!("there are {n} players; keep exactly one @ or +")),
        }
        let boxes = count(&[Tile::Box, Tile::BoxOnTarget]);
        let targets = count(&[Tile::Target, Tile::BoxOnTarget, Tile::PlayerOnTarget]);
        if boxes == 0 {
            return Err("there is no box to push; mark boxes with $ (or * on a target)".to_owned());
        }
        if boxes > targets {
            return Err(format!("more boxes than targets ({boxes} and {targets}): the level cannot be solved"));
        }
        if boxes < targets {
            return Err(format!("more targets than boxes ({targets} and {boxes}): every target needs a box"));
        }
        if count(&[Tile::Box]) == 0 {
            return Err("the level is already solved: every box is on a target".to_owned());
        }
        SokobanBoard::new(self).map(drop).map_err(|e| e.to_string())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.cells.len() / self.cols
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The tile at a row and column.
    pub fn at(&self, row: usize, col: usize) -> Tile {
        self.cells[row * self.cols + col]
    }
}

impl fmt::Display for SokobanLevel {
    /// Writes the format that [`SokobanLevel::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cells.chunks(self.cols).try_for_each(|row| {
            row.iter().try_for_each(|c| write!(f, "{}", c.to_char()))?;
            writeln!(f)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "#####\n#@$.#\n#####\n";

    #[test]
    fn written_levels_parse_back() {
        let text = "#######\n#+ $  #\n# *-_ #\n#######\n";
        let level = SokobanLevel::parse(text, "t").unwrap();
        assert_eq!((level.rows(), level.cols()), (4, 7));
        assert_eq!(level.to_string(), text.replace(['-', '_'], " "));
        assert_eq!(SokobanLevel::parse(&level.to_string(), "t").unwrap(), level);
    }

    #[test]
    fn a_file_may_contain_several_levels() {
        let text = format!("; 0\n{GOOD}\n; 1\n{GOOD}{}; the end", GOOD.replace('\n', "\r\n"));
        let levels = SokobanLevel::parse_all(&text, "t");
        assert!(levels.is_err(), "without a separator line two levels parse as one with two players");
        let text = format!("; 0\n{GOOD}\n; 1\n{}; the end", GOOD.replace('\n', "\r\n"));
        assert_eq!(SokobanLevel::parse_all(&text, "t").unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_file_and_line() {
        let err = |text: &str| SokobanLevel::parse_all(text, "mine.txt").unwrap_err().to_string();
        assert!(err("\n#####\n# $.#\n#####").starts_with("mine.txt, level at line 2: there is no player"));
        assert!(err("#####\n#@$.#\n####\n").starts_with("mine.txt, line 3: the row has 4 cells"));
        assert!(err("######\n#@$$.#\n######").contains("more boxes than targets (2 and 1)"));
        assert!(err("######\n#@$..#\n######").contains("more targets than boxes (2 and 1)"));
        assert!(err("#####\n#@@.$#\n").contains("mine.txt, line 2: the row has 6 cells"));
        assert!(err("#####\n#@x.#\n").contains("`x` in column 3 is not a level character"));
        assert!(err("######\n#@+$ #\n").contains("there are 2 players"));
        assert!(err("####\n#@ #\n").contains("there is no box"));
        assert!(err("####\n#@*#\n").contains("already solved"));
        assert!(err("; nothing here\n").contains("contains no level"));
        let wide = format!("@$.{}\n", " ".repeat(200));
        assert!(err(&wide).contains("spans 1 rows and 203 columns"));
        assert!(SokobanLevel::parse(&format!("{GOOD}\n{GOOD}"), "t").unwrap_err().to_string().contains("found 2"));
    }

    #[test]
    fn reference_matrices_are_converted() {
        let fixed = vec![vec![0, 0, 0, 0], vec![0, 2, 1, 0], vec![0, 1, 1, 0]];
        let state = vec![vec![0, 0, 0, 0], vec![0, 5, 4, 0], vec![0, 1, 1, 0]];
        let level = SokobanLevel::from_codes(&fixed, &state, "t").unwrap();
        assert_eq!(level.to_string(), "####\n#+$#\n#  #\n");
        assert!(SokobanLevel::from_codes(&fixed[..2], &state, "t").unwrap_err().to_string().contains("rectangular"));
        let odd = vec![vec![9; 4]; 3];
        assert!(SokobanLevel::from_codes(&fixed, &odd, "t").unwrap_err().to_string().contains("9 on "));
    }
}
