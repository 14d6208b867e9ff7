//! What can be set?

use super::{
    generate::RoomSettings,
    render::Rendering,
    world::{TurnRules, WorldSettings},
};
use crate::{Error, OptionDoc, Result};
use serde::Deserialize;
use std::path::PathBuf;

/// Settings of Sokoban.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SokobanOptions {
    /// Rows of a generated room, walls around included.
    pub rows: usize,
    /// Columns of a generated room, walls around included.
    pub cols: usize,
    /// Boxes in a generated room: a number, or several that tasks draw from.
    pub boxes: Several,
    /// Generated rooms have seeds from the first number up to, not including, the second.
    pub seeds: [u64; 2],
    /// The fewest moves a generated room's shortest solution may take.
    pub min_solution: u32,
    /// The most moves a generated room's shortest solution may take.
    pub max_solution: u32,
    /// A level file or folder to play instead of generated rooms.
    pub levels: Option<PathBuf>,
    /// Only this level of the files, from 0.
    pub level: Option<usize>,
    /// Beyond how many moves a solution does not count.
    pub search_depth: Option<u32>,
    /// After how many moves a room is over.
    pub max_steps: Option<u32>,
    /// How many moves a turn may have.
    pub moves_per_turn: usize,
    /// How many moves the turns of an episode amount to, unless their number is set.
    pub budget: Option<u32>,
    /// How the moves of a turn make one step.
    pub turns: TurnRules,
    /// How a room is printed.
    pub render: Rendering,
}

/// A number, or several.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Several {
    /// Always this.
    One(usize),
    /// Each equally often.
    Many(Vec<usize>),
}

impl Several {
    /// The choices.
    pub fn choices(&self) -> &[usize] {
        match self {
            Several::One(n) => std::slice::from_ref(n),
            Several::Many(all) => all,
        }
    }
}

/// How many moves an episode has with level files, whose solutions are long.
pub(super) const LEVEL_BUDGET: u32 = 300;

/// Seeds the reference trains on.
pub(super) const TRAIN_SEEDS: [u64; 2] = [0, (1 << 16) - 1];
/// Seeds the reference validates on.
pub(super) const VALIDATION_SEEDS: [u64; 2] = [1 << 16, (1 << 32) - 1];

impl Default for SokobanOptions {
    fn default() -> Self {
        let room = RoomSettings::default();
        SokobanOptions {
            rows: room.rows,
            cols: room.cols,
            boxes: Several::One(room.boxes),
            seeds: TRAIN_SEEDS,
            min_solution: room.min_solution,
            max_solution: room.max_solution,
            levels: None,
            level: None,
            search_depth: None,
            max_steps: None,
            moves_per_turn: 3,
            budget: None,
            turns: TurnRules::default(),
            render: Rendering::default(),
        }
    }
}

impl SokobanOptions {
    /// What is wrong with them, short of reading level files.
    pub fn check(&self) -> Result<()> {
        let bad = |problem: String| Err(Error::invalid("options of sokoban", problem));
        if self.boxes.choices().is_empty() {
            return bad("`boxes` is an empty list; give at least one number".to_owned());
        }
        let [first, end] = self.seeds;
        if first >= end || end > 1 << 32 {
            return bad(format!(
                "`seeds` = [{first}, {end}] holds no seed; seeds are from 0 to 4294967295, first < second"
            ));
        }
        if self.moves_per_turn == 0 || self.moves_per_turn > 100 {
            return bad(format!("`moves_per_turn` = {}; a turn has 1 to 100 moves", self.moves_per_turn));
        }
        if self.budget == Some(0) {
            return bad("`budget` = 0; an episode has at least one move".to_owned());
        }
        if self.max_steps == Some(0) {
            return bad("`max_steps` = 0; a room takes at least one".to_owned());
        }
        if self.level.is_some() && self.levels.is_none() {
            return bad("`level` chooses among `levels`, which is not set".to_owned());
        }
        Ok(())
    }

    /// What is asked of generated rooms with so many boxes.
    pub fn room(&self, boxes: usize) -> RoomSettings {
        RoomSettings {
            rows: self.rows,
            cols: self.cols,
            boxes,
            search_depth: self.search_depth.unwrap_or(RoomSettings::default().search_depth),
            min_solution: self.min_solution,
            max_solution: self.max_solution,
            keep_misfits: self.turns == TurnRules::Faithful,
        }
    }

    /// How many turns an episode has unless somebody says otherwise: enough for the longest solution a generated room may
    /// have, seven turns of three moves in the paper; with level files, enough for the moves such levels take.
    pub fn max_turns(&self) -> u32 {
        let moves = self.budget.unwrap_or(if self.levels.is_some() { LEVEL_BUDGET } else { self.max_solution });
        moves.div_ceil(self.moves_per_turn.max(1) as u32).max(1)
    }

    /// What rooms are played by. Level files have no limits of their own unless they are set: their solutions are long.
    pub fn world(&self) -> WorldSettings {
        let limit = |set: Option<u32>, rooms: u32| match (set, &self.levels) {
            (Some(n), _) => n,
            (None, None) => rooms,
            (None, Some(_)) => u32::MAX,
        };
        WorldSettings {
            turns: self.turns,
            moves_per_turn: self.moves_per_turn,
            max_steps: limit(self.max_steps, 30),
            search_depth: limit(self.search_depth, RoomSettings::default().search_depth),
            render: self.render,
        }
    }
}

/// A line about each setting.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc(
            "boxes",
            "2 (default), or a list such as [1, 3]",
            "boxes in a generated room; of a list, each task draws one",
        ),
        doc("rows", "6 (default)", "rows of a generated room, walls included"),
        doc("cols", "6 (default)", "columns of a generated room, walls included"),
        doc(
            "seeds",
            "[0, 65535] (default)",
            "range of room seeds, the end not included; the reference's training range",
        ),
        doc("min_solution", "5 (default)", "fewest moves of a generated room's shortest solution"),
        doc("max_solution", "21 (default)", "most moves of a generated room's shortest solution"),
        doc(
            "levels",
            "a file or folder",
            "play these levels instead; also looked for in the folder sokoban under MAGE_DATA (else data)",
        ),
        doc("level", "a number from 0", "only this one of the levels"),
        doc(
            "search_depth",
            "100 (default; none with levels)",
            "depth of the generator, and length beyond which no solution counts",
        ),
        doc("max_steps", "30 (default; none with levels)", "moves after which a room is over"),
        doc("moves_per_turn", "3 (default)", "how many moves a turn may have"),
        doc(
            "budget",
            "max_solution (default; 300 with levels)",
            "how many moves the turns of an episode amount to; --max-turns and recipes may set another number of turns",
        ),
        doc(
            "turns",
            "corrected (default) | faithful",
            "stop a turn at its end and add its points up, or as released: all moves are made and the last one counts; \
             faithful also keeps rooms whose solution is too short or too long when ten in a row were",
        ),
        doc(
            "render",
            "text_with_row_numbers (default) | tiny_rgb_array | list",
            "the reference's three ways to print a room",
        ),
    ]
}
