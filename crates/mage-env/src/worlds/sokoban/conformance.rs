//! Conformance test against recordings of the reference implementation.
//!
//! A recording is a JSON lines file, plain or gzipped, one room per line: generator parameters, the room, its first
//! observation, a shortest solution, and steps `[action, observation, reward, done, effective, won]`. Rooms that the
//! reference reseeded from a salted hash cannot be regenerated; their steps can still be replayed. Optional fields may
//! be absent; comparisons skipped for that reason and unknown keys are counted.

use super::{
    bfs::shortest_path,
    board::{Move, MoveEffect, SokobanBoard},
    generator::{Generator, RoomConfig},
    level::SokobanLevel,
    render::{Rendering, render},
    rules::SokobanEpisode,
    solvability::SolvabilityChecker,
};
use crate::{Conformance, Error, Result, files::recorded_lines};
use serde::{Deserialize, de::IgnoredAny};
use std::{collections::BTreeMap, path::Path};

#[derive(Deserialize)]
struct RecordedRoom {
    dim: [usize; 2],
    boxes: usize,
    search_depth: u32,
    max_steps: u32,
    seed: u32,
    #[serde(default)]
    retried_with_hash_seed: bool,
    #[serde(default = "class_min_steps")]
    min_steps: u32,
    #[serde(default = "class_max_sol_steps")]
    max_sol_steps: u32,
    room_fixed: Vec<Vec<u8>>,
    room_state: Vec<Vec<u8>>,
    obs: StepRendering,
    shortest: Option<Vec<u8>>,
    steps: Option<Vec<RecordedStep>>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

/// Action, observation, reward, done, effective, won.
type RecordedStep = (u8, StepRendering, f64, bool, bool, bool);

// The reference's class defaults, which recordings omit.
fn class_min_steps() -> u32 {
    3
}

fn class_max_sol_steps() -> u32 {
    15
}

/// A rendered room: one text, or a list of rows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum StepRendering {
    Text(String),
    Rows(Vec<String>),
}

impl StepRendering {
    fn rendering(&self) -> Rendering {
        match self {
            StepRendering::Rows(_) => Rendering::List,
            StepRendering::Text(text) if text.contains('\t') => Rendering::TinyRgbArray,
            StepRendering::Text(_) => Rendering::TextWithRowNumbers,
        }
    }

    fn render(board: &SokobanBoard, play: &SokobanEpisode, rendering: Rendering) -> StepRendering {
        let mut text = String::new();
        render(board, &play.state, rendering, &mut text);
        match rendering {
            Rendering::List => StepRendering::Rows(text.lines().map(str::to_owned).collect()),
            _ => StepRendering::Text(text),
        }
    }
}

/// Observation and flags of one step.
#[derive(PartialEq)]
struct StepView {
    view: StepRendering,
    reward: f64,
    done: bool,
    effective: bool,
    won: bool,
}

impl std::fmt::Debug for StepView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepView { view, reward, done, effective, won } = self;
        writeln!(f, "reward {reward}, done {done}, effective {effective}, won {won}")?;
        match view {
            StepRendering::Text(text) => f.write_str(text),
            StepRendering::Rows(rows) => f.write_str(&rows.join("\n")),
        }
    }
}

/// A room in the level-file format, for difference reports.
#[derive(PartialEq)]
struct RoomText(String);

impl std::fmt::Debug for RoomText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replays a recording.
pub fn conform(golden: &Path) -> Result<Conformance> {
    let mut result = Conformance::default();
    for line in recorded_lines(golden)? {
        let (number, line) = line?;
        let origin = format!("{}, line {number}", golden.display());
        let recording: RecordedRoom = serde_json::from_str(&line).map_err(|e| {
            Error::invalid(
                &origin,
                format!("not a recorded room: {e}; expected the keys dim, boxes, seed, room_fixed, …"),
            )
        })?;
        let origin = format!(
            "{origin} (seed {}, {} by {}, {} boxes)",
            recording.seed, recording.dim[0], recording.dim[1], recording.boxes
        );
        replay(&recording, &origin, &mut result)?;
    }
    Ok(result)
}

fn replay(r: &RecordedRoom, origin: &str, result: &mut Conformance) -> Result<()> {
    result.ignore(r.others.keys());
    let recorded = SokobanLevel::from_codes(&r.room_fixed, &r.room_state, origin)?;
    if r.retried_with_hash_seed {
        result.skip("rooms the reference reseeded from a salted hash");
    } else {
        let config = RoomConfig {
            rows: r.dim[0],
            cols: r.dim[1],
            boxes: r.boxes,
            search_depth: r.search_depth,
            min_solution: r.min_steps,
            max_solution: r.max_sol_steps,
            keep_out_of_window: true,
        };
        let generated = Generator::new(config)?.room(r.seed)?;
        let printed = |level: &SokobanLevel| RoomText(level.to_string());
        result.compare("rooms", || origin.to_owned(), &printed(&recorded), &printed(&generated.level));
    }
    // Observations and steps are always compared from the recorded room.
    let (board, start) = SokobanBoard::new(&recorded)?;
    let mut play = SokobanEpisode::new(&board, start);
    let rendering = r.obs.rendering();
    result.compare("first views", || origin.to_owned(), &r.obs, &StepRendering::render(&board, &play, rendering));
    if r.shortest.is_none() {
        result.skip("shortest solutions of records without `shortest`");
    }
    if r.steps.is_none() {
        result.skip("steps of records without `steps`");
    }
    if let Some(shortest) = &r.shortest {
        let path = shortest_path(&board, start, r.search_depth).unwrap_or_default();
        let codes: Vec<u8> = path.into_iter().map(Move::code).collect();
        result.compare("shortest solutions", || origin.to_owned(), shortest, &codes);
    }
    let mut solvable = SolvabilityChecker::new(r.search_depth);
    for (i, (action, view, reward, done, effective, won)) in r.steps.iter().flatten().enumerate() {
        let at =
            || format!("{origin}, step {} (action {action}) from\n{}", i + 1, super::level_text(&board, &play.state));
        if *action > 4 {
            return Err(Error::invalid(at(), "actions are 0 (no-op) and 1 to 4 (up, down, left, right)"));
        }
        let expected = StepView { view: view.clone(), reward: *reward, done: *done, effective: *effective, won: *won };
        let context = at();
        let outcome = play.step(&board, Move::from_code(*action), r.max_steps, &mut solvable);
        let actual = StepView {
            view: StepRendering::render(&board, &play, rendering),
            reward: outcome.reward,
            done: outcome.termination.is_some(),
            effective: outcome.effect != MoveEffect::Blocked,
            won: outcome.solved,
        };
        if !result.compare("steps", || context, &expected, &actual) {
            break; // later steps would differ for the same reason
        }
    }
    Ok(())
}
