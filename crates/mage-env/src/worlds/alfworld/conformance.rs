//! Conformance test against recordings of the original.
//!
//! A recording is a JSON lines file, plain or gzipped. Each line holds the path of a game below the data directory and its
//! steps: command (none for the reset), observation, admissible commands, and whether the game is won.

use super::{
    dataset::{GameDataset, find_data},
    text,
    world::HouseholdWorld,
};
use crate::{Conformance, Error, Result, files::recorded_lines};
use serde::Deserialize;
use std::path::Path;

/// One recorded episode.
#[derive(Deserialize)]
struct GameTrace {
    game: String,
    #[serde(default)]
    kind: String,
    steps: Vec<GameTraceStep>,
}

/// One recorded step.
#[derive(Deserialize)]
struct GameTraceStep {
    cmd: Option<String>,
    obs: String,
    admissible: Vec<String>,
    won: bool,
    #[serde(default)]
    score: Option<f64>,
    #[serde(default)]
    done: Option<bool>,
}

/// Replays a recording.
pub(super) fn conform(golden: &Path, data: Option<&Path>) -> Result<Conformance> {
    let traces = read_traces(golden)?;
    let data = GameDataset::open(&find_data(data)?)?;
    let worlds = data.worlds(traces.iter().map(|t| t.game.as_str()))?;
    let mut report = Conformance::default();
    for (number, trace) in traces.iter().enumerate() {
        replay(&worlds[&trace.game], trace, number + 1, &mut report);
    }
    Ok(report)
}

fn replay(world: &HouseholdWorld, trace: &GameTrace, line: usize, report: &mut Conformance) {
    let mut state = world.start().clone();
    *report.compared.entry("episodes".to_owned()).or_default() += 1;
    for (i, step) in trace.steps.iter().enumerate() {
        let location = |part: &str| {
            let (game, kind) = (&trace.game, &trace.kind);
            let command = step.cmd.as_deref().unwrap_or("(reset)");
            format!("line {line}, {game} {kind}, step {i} `{command}`, {part}")
        };
        let seen = match &step.cmd {
            None => {
                state = world.start().clone();
                text::initial_observation(world)
            }
            Some(command) => world.step(&mut state, command).0,
        };
        let admissible: Vec<String> =
            world.admissible_commands(&state).into_iter().map(|c| world.format_command(c)).collect();
        let won = world.won(&state);
        *report.compared.entry("steps".to_owned()).or_default() += 1;
        report.compare("observations", || location("observation"), &step.obs, &seen);
        report.compare("admissible lists", || location("admissible commands"), &step.admissible, &admissible);
        report.compare("won flags", || location("won"), &step.won, &won);
        if let Some(score) = step.score {
            report.compare("scores", || location("score"), &score, &f64::from(u8::from(won)));
        }
        if let Some(done) = step.done {
            report.compare("done flags", || location("done"), &done, &won);
        }
    }
}

fn read_traces(golden: &Path) -> Result<Vec<GameTrace>> {
    let read = |line: Result<(usize, String)>| {
        let (number, line) = line?;
        let location = || format!("{}, line {number}", golden.display());
        serde_json::from_str(&line).map_err(|e| Error::invalid(location(), format!("not a recorded episode: {e}")))
    };
    recorded_lines(golden)?.map(read).collect()
}
