//! Are rooms and steps those of the reference?
//!
//! A recording is JSON lines, plain or gzipped, one room each: how it was asked for, the room, its first view, a shortest
//! solution, and steps `[action, view, reward, done, effective, won]`. Rooms that came through the reference's reseeding from
//! a salted hash cannot be made again; their steps can still be replayed. A record may lack what it was not made to show; what
//! could not be compared for that reason is counted, and so are keys that are not known.

use super::{
    board::{Board, Move, Moved},
    generate::{Generator, RoomSettings},
    level::Level,
    path::shortest_path,
    render::{Rendering, render},
    rules::Play,
    solvable::Solvable,
};
use crate::{Conformance, Error, Result};
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, de::IgnoredAny};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Read, Seek},
    path::Path,
};

#[derive(Deserialize)]
struct Recording {
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
    obs: View,
    shortest: Option<Vec<u8>>,
    steps: Option<Vec<RecordedStep>>,
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

/// Action, view, reward, done, effective, won.
type RecordedStep = (u8, View, f64, bool, bool, bool);

// The reference's class defaults, which recordings leave out.
fn class_min_steps() -> u32 {
    3
}

fn class_max_sol_steps() -> u32 {
    15
}

/// A room as printed: one text, or a list of rows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum View {
    Text(String),
    Rows(Vec<String>),
}

impl View {
    fn rendering(&self) -> Rendering {
        match self {
            View::Rows(_) => Rendering::List,
            View::Text(text) if text.contains('\t') => Rendering::TinyRgbArray,
            View::Text(_) => Rendering::TextWithRowNumbers,
        }
    }

    fn of(board: &Board, play: &Play, how: Rendering) -> View {
        let mut text = String::new();
        render(board, &play.state, how, &mut text);
        match how {
            Rendering::List => View::Rows(text.lines().map(str::to_owned).collect()),
            _ => View::Text(text),
        }
    }
}

/// What one step showed.
#[derive(PartialEq)]
struct Shown {
    view: View,
    reward: f64,
    done: bool,
    effective: bool,
    won: bool,
}

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shown { view, reward, done, effective, won } = self;
        writeln!(f, "reward {reward}, done {done}, effective {effective}, won {won}")?;
        match view {
            View::Text(text) => f.write_str(text),
            View::Rows(rows) => f.write_str(&rows.join("\n")),
        }
    }
}

/// A room, printed in level files' letters when it differs.
#[derive(PartialEq)]
struct Printed(String);

impl std::fmt::Debug for Printed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replays a recording.
pub fn conform(golden: &Path) -> Result<Conformance> {
    let mut result = Conformance::default();
    for (i, line) in lines(golden)?.enumerate() {
        let line = line.map_err(|source| Error::Read { path: golden.to_owned(), source })?;
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("{}, line {}", golden.display(), i + 1);
        let recording: Recording = serde_json::from_str(&line).map_err(|e| {
            Error::invalid(&place, format!("not a recorded room: {e}; expected dim, boxes, seed, room_fixed, …"))
        })?;
        let what = format!(
            "{place} (seed {}, {} by {}, {} boxes)",
            recording.seed, recording.dim[0], recording.dim[1], recording.boxes
        );
        replay(&recording, &what, &mut result)?;
    }
    Ok(result)
}

/// The lines of a file, gunzipped where it begins as gzip does.
fn lines(path: &Path) -> Result<Box<dyn Iterator<Item = std::io::Result<String>>>> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut magic = Vec::new();
    file.by_ref().take(2).read_to_end(&mut magic).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(match magic[..] {
        [0x1f, 0x8b] => Box::new(BufReader::new(MultiGzDecoder::new(file)).lines()),
        _ => Box::new(BufReader::new(file).lines()),
    })
}

fn replay(r: &Recording, place: &str, result: &mut Conformance) -> Result<()> {
    result.ignore(r.others.keys());
    let recorded = Level::from_codes(&r.room_fixed, &r.room_state, place)?;
    if r.retried_with_hash_seed {
        result.skip("rooms the reference reseeded from a salted hash");
    } else {
        let settings = RoomSettings {
            rows: r.dim[0],
            cols: r.dim[1],
            boxes: r.boxes,
            search_depth: r.search_depth,
            min_solution: r.min_steps,
            max_solution: r.max_sol_steps,
            keep_misfits: true,
        };
        let made = Generator::new(settings)?.room(r.seed)?;
        let printed = |level: &Level| Printed(level.to_string());
        result.compare("rooms", || place.to_owned(), &printed(&recorded), &printed(&made.level));
    }
    // Whatever our room is, views and steps are compared from the recorded one.
    let (board, start) = Board::new(&recorded)?;
    let mut play = Play::new(&board, start);
    let how = r.obs.rendering();
    result.compare("first views", || place.to_owned(), &r.obs, &View::of(&board, &play, how));
    if r.shortest.is_none() {
        result.skip("shortest solutions of records without `shortest`");
    }
    if r.steps.is_none() {
        result.skip("steps of records without `steps`");
    }
    if let Some(shortest) = &r.shortest {
        let path = shortest_path(&board, start, r.search_depth).unwrap_or_default();
        let codes: Vec<u8> = path.into_iter().map(Move::code).collect();
        result.compare("shortest solutions", || place.to_owned(), shortest, &codes);
    }
    let mut solvable = Solvable::new(r.search_depth);
    for (i, (action, view, reward, done, effective, won)) in r.steps.iter().flatten().enumerate() {
        let at = || format!("{place}, step {} (action {action}) from\n{}", i + 1, super::drawing(&board, &play.state));
        if *action > 4 {
            return Err(Error::invalid(at(), "actions are 0 (still) and 1 to 4 (up, down, left, right)"));
        }
        let expected = Shown { view: view.clone(), reward: *reward, done: *done, effective: *effective, won: *won };
        let place = at();
        let moment = play.step(&board, Move::from_code(*action), r.max_steps, &mut solvable);
        let actual = Shown {
            view: View::of(&board, &play, how),
            reward: moment.reward,
            done: moment.over.is_some(),
            effective: moment.moved != Moved::Nothing,
            won: moment.solved,
        };
        if !result.compare("steps", || place, &expected, &actual) {
            break; // what follows would differ because this did
        }
    }
    Ok(())
}
