//! Options of the Sokoban environment.

use super::{
    env::{SokobanConfig, StepRules},
    generator::RoomConfig,
    render::Rendering,
};
use crate::{Error, OptionDoc, Result};
use serde::Deserialize;
use std::path::PathBuf;

/// Options of Sokoban.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SokobanOptions {
    /// Rows of a generated room, including the surrounding walls.
    pub rows: usize,
    /// Columns of a generated room, including the surrounding walls.
    pub cols: usize,
    /// Boxes in a generated room: a count, or a list that each task samples from.
    pub boxes: CountOrList,
    /// Half-open range of room seeds.
    pub seeds: [u64; 2],
    /// Minimum length of a generated room's shortest solution, in moves.
    pub min_solution: u32,
    /// Maximum length of a generated room's shortest solution, in moves.
    pub max_solution: u32,
    /// A level file or folder to play instead of generated rooms.
    pub levels: Option<PathBuf>,
    /// Index of the only level to play, from 0.
    pub level: Option<usize>,
    /// Maximum length of a solution, in moves; longer solutions do not count.
    pub search_depth: Option<u32>,
    /// Moves after which an episode is truncated.
    pub max_steps: Option<u32>,
    /// Maximum moves per action.
    pub moves_per_action: usize,
    /// Move budget of an episode, from which the default number of turns follows.
    pub budget: Option<u32>,
    /// How the moves of an action combine into one step.
    pub step_rules: StepRules,
    /// Text rendering of a room.
    pub render: Rendering,
}

/// A count, or a list of counts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CountOrList {
    /// A fixed value.
    One(usize),
    /// Uniformly sampled.
    Many(Vec<usize>),
}

impl CountOrList {
    /// The values to sample from.
    pub fn choices(&self) -> &[usize] {
        match self {
            CountOrList::One(n) => std::slice::from_ref(n),
            CountOrList::Many(all) => all,
        }
    }
}

/// Default move budget with level files, whose solutions are long.
pub(super) const LEVEL_BUDGET: u32 = 300;

/// Seeds the reference trains on.
pub(super) const TRAIN_SEEDS: [u64; 2] = [0, (1 << 16) - 1];
/// Seeds the reference validates on.
pub(super) const VALIDATION_SEEDS: [u64; 2] = [1 << 16, (1 << 32) - 1];

impl Default for SokobanOptions {
    fn default() -> Self {
        let room = RoomConfig::default();
        SokobanOptions {
            rows: room.rows,
            cols: room.cols,
            boxes: CountOrList::One(room.boxes),
            seeds: TRAIN_SEEDS,
            min_solution: room.min_solution,
            max_solution: room.max_solution,
            levels: None,
            level: None,
            search_depth: None,
            max_steps: None,
            moves_per_action: 3,
            budget: None,
            step_rules: StepRules::default(),
            render: Rendering::default(),
        }
    }
}

impl SokobanOptions {
    /// Validates the options without reading level files.
    pub fn check(&self) -> Result<()> {
        let bad = |problem: String| Err(Error::invalid("options of sokoban", problem));
        if self.boxes.choices().is_empty() {
            return bad("`boxes` is an empty list; specify at least one count".to_owned());
        }
        let [first, end] = self.seeds;
        if first >= end || end > 1 << 32 {
            return bad(format!(
                "`seeds` = [{first}, {end}] is an empty range; seeds are 0 to 4294967295 and the first must be less than the second"
            ));
        }
        if self.moves_per_action == 0 || self.moves_per_action > 100 {
            return bad(format!("`moves_per_action` = {} is out of range (1 to 100)", self.moves_per_action));
        }
        if self.budget == Some(0) {
            return bad("`budget` = 0; an episode needs at least one move".to_owned());
        }
        if self.max_steps == Some(0) {
            return bad("`max_steps` = 0; must be at least 1".to_owned());
        }
        if self.level.is_some() && self.levels.is_none() {
            return bad("`level` selects one of `levels`, which is not set".to_owned());
        }
        Ok(())
    }

    /// Generator configuration for rooms with this many boxes.
    pub fn room(&self, boxes: usize) -> RoomConfig {
        RoomConfig {
            rows: self.rows,
            cols: self.cols,
            boxes,
            search_depth: self.search_depth.unwrap_or(RoomConfig::default().search_depth),
            min_solution: self.min_solution,
            max_solution: self.max_solution,
            keep_out_of_window: self.step_rules == StepRules::Faithful,
        }
    }

    /// Default turn limit of an episode: enough for the longest solution a generated room may have (seven turns of three
    /// moves in the paper); with level files, enough for the move budget.
    pub fn max_turns(&self) -> u32 {
        let moves = self.budget.unwrap_or(if self.levels.is_some() { LEVEL_BUDGET } else { self.max_solution });
        moves.div_ceil(self.moves_per_action.max(1) as u32).max(1)
    }

    /// Configuration of the environment. Level files have no default limits, since their solutions are long.
    pub(crate) fn env_config(&self) -> SokobanConfig {
        let limit = |set: Option<u32>, rooms: u32| match (set, &self.levels) {
            (Some(n), _) => n,
            (None, None) => rooms,
            (None, Some(_)) => u32::MAX,
        };
        SokobanConfig {
            step_rules: self.step_rules,
            moves_per_action: self.moves_per_action,
            max_steps: limit(self.max_steps, 30),
            search_depth: limit(self.search_depth, RoomConfig::default().search_depth),
            render: self.render,
        }
    }
}

/// Documentation of each option.
pub(super) fn docs() -> Vec<OptionDoc> {
    let doc = OptionDoc::new;
    vec![
        doc(
            "boxes",
            "2 (default), or a list such as [1, 3]",
            "boxes in a generated room; with a list, each task samples one",
        ),
        doc("rows", "6 (default)", "rows of a generated room, walls included"),
        doc("cols", "6 (default)", "columns of a generated room, walls included"),
        doc(
            "seeds",
            "[0, 65535] (default)",
            "half-open range of room seeds; the default is the reference's training range",
        ),
        doc("min_solution", "5 (default)", "minimum length of a generated room's shortest solution, in moves"),
        doc("max_solution", "21 (default)", "maximum length of a generated room's shortest solution, in moves"),
        doc(
            "levels",
            "a file or folder",
            "play these levels instead of generated rooms; also searched for in $MAGE_DATA/sokoban (default data/sokoban)",
        ),
        doc("level", "an index from 0", "play only this level"),
        doc(
            "search_depth",
            "100 (default; none with levels)",
            "depth limit of the generator, and maximum length of a solution",
        ),
        doc("max_steps", "30 (default; none with levels)", "moves after which an episode is truncated"),
        doc("moves_per_action", "3 (default)", "maximum moves per action"),
        doc(
            "budget",
            "max_solution (default; 300 with levels)",
            "move budget of an episode, which determines the default number of turns",
        ),
        doc(
            "step_rules",
            "corrected (default) | faithful",
            "corrected: an action stops when the episode ends and its rewards add up; faithful: as released, all moves are \
            made and the last reward counts, and a room outside the window is kept if all ten rooms of its seed are",
        ),
        doc(
            "render",
            "text_with_row_numbers (default) | tiny_rgb_array | list",
            "text rendering of a room, as in the reference",
        ),
    ]
}
