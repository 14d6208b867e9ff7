//! `mage runs`: a list of runs, and the differences of two.

use crate::{
    cli::{RunsArgs, RunsCommand},
    output::Output,
    table::{below_memoryless, columns, duration, score, table},
    text::shorten,
    usage,
};
use mage_core::{MeanEstimate, gap_closed};
use mage_env::Hash;
use mage_report::{EvalPoint, TrainingRun, find_runs, read_run};
use mage_train::{
    recipe::differences,
    run_dir::{RunDir, best, failure, is_running, last_episode_optima, update_seconds},
};
use serde::Serialize;
use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

pub(crate) fn run(args: &RunsArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        Some(RunsCommand::Diff { a, b }) => diff(a, b, out),
        None => list(&args.dir, out),
    }
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum RunState {
    /// A process trains it.
    Running,
    /// It has its result.
    Finished,
    /// An error ended the last attempt.
    Failed,
    /// None of these.
    Stopped,
    /// Its files cannot be read.
    Unreadable,
}

impl RunState {
    fn name(self) -> &'static str {
        match self {
            RunState::Running => "running",
            RunState::Finished => "finished",
            RunState::Failed => "failed",
            RunState::Stopped => "stopped",
            RunState::Unreadable => "unreadable",
        }
    }
}

/// A run, as printed with `--json`.
#[derive(Serialize)]
struct RunSummary {
    /// Path; characters that are not UTF-8 are replaced.
    run: String,
    state: RunState,
    /// Why the run failed or cannot be read.
    error: Option<String>,
    /// Seconds since 1970 of the last change of its files.
    modified: Option<f64>,
    #[serde(flatten)]
    info: Option<RunRow>,
}

/// What is known about a readable run.
#[derive(Serialize)]
struct RunRow {
    env: String,
    /// Method, followed by its ablation.
    method: String,
    seed: u64,
    updates: u64,
    total_updates: u64,
    unit: String,
    /// Score of the last episode in the last evaluation.
    last_score: Option<f64>,
    /// Score of the last episode in the best evaluation.
    best_score: Option<f64>,
    /// Number of updates before the best evaluation.
    best_update: Option<u64>,
    /// Fraction of the gap between memoryless and Bayes-adaptive optimum that the last evaluation closes.
    gap_closed: Option<f64>,
    #[serde(skip)]
    gap: Option<MeanEstimate>,
    /// Seconds spent on updates.
    seconds: f64,
    /// Damaged parts of the files, which were skipped.
    notes: Vec<String>,
}

impl RunSummary {
    fn read(run: &Path) -> Self {
        let (state, error, info) = match RunRow::read(run) {
            Err(e) => (RunState::Unreadable, Some(e.to_string()), None),
            Ok((info, finished)) => {
                let failure = failure(run);
                let (state, error) = match failure {
                    _ if is_running(run) => (RunState::Running, None),
                    _ if finished => (RunState::Finished, None),
                    Some(error) => (RunState::Failed, Some(error)),
                    None => (RunState::Stopped, None),
                };
                (state, error, Some(info))
            }
        };
        RunSummary { run: run.display().to_string(), state, error, modified: modified(run), info }
    }

    /// Cells of the table, in the order of [`HEADER`].
    fn row(&self) -> Option<Vec<String>> {
        let info = self.info.as_ref()?;
        let [last, best, gap] = info.scores();
        Some(vec![
            self.run.clone(),
            self.state.name().to_owned(),
            format!("{}/{}", info.updates, info.total_updates),
            last,
            gap,
            info.method.clone(),
            info.env.clone(),
            best,
            info.seed.to_string(),
            duration(info.seconds),
        ])
    }
}

impl RunRow {
    /// Reads a run; whether it is finished.
    fn read(path: &Path) -> mage_train::Result<(Self, bool)> {
        let mut notes = Vec::new();
        let run: TrainingRun = read_run(path, &mut |note| notes.push(note))?;
        let best = best(path).unwrap_or_else(|e| {
            notes.push(e.to_string());
            None
        });
        let last = run.eval_curve.last();
        let last_score = last.map(|point| point.score);
        let optima = run.last_episode_ceiling.or_else(|| last_episode_optima(path));
        let gap = optima.zip(last).and_then(|((low, high), point)| gap_closed(EvalPoint::estimate(point), low, high));
        // A result of fewer updates is that of the run before its recipe was extended.
        let finished = run.finished && run.updates >= run.total_updates;
        let info = RunRow {
            method: run.name(),
            gap_closed: gap.and_then(|gap| gap.mean),
            gap,
            env: run.env,
            seed: run.seed,
            updates: run.updates,
            total_updates: run.total_updates,
            unit: run.unit,
            last_score,
            best_score: best.and_then(|b| b.score),
            best_update: best.map(|b| b.update),
            seconds: update_seconds(path),
            notes,
        };
        Ok((info, finished))
    }

    /// Last score, best score and gap closed.
    fn scores(&self) -> [String; 3] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        [
            or_dash(self.last_score.map(score)),
            or_dash(self.best_score.map(score)),
            or_dash(self.gap.map(|gap| match gap {
                gap if below_memoryless(gap) => "below".to_owned(),
                gap => format!("{:.0} %", 100.0 * gap.mean.unwrap_or(f64::NAN)),
            })),
        ]
    }
}

/// Time of the last change of the files in a run directory.
fn modified(run: &Path) -> Option<f64> {
    let time = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let files = fs::read_dir(run).into_iter().flatten().filter_map(|entry| time(&entry.ok()?.path()));
    let last: SystemTime = files.chain(time(run)).max()?;
    Some(last.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

fn list(dir: &Path, out: &Output) -> anyhow::Result<()> {
    if !dir.exists() {
        return Err(usage(format!("{} does not exist; name a directory with runs", dir.display())));
    }
    let mut runs: Vec<RunSummary> = find_runs(dir).map_err(usage)?.iter().map(|run| RunSummary::read(run)).collect();
    runs.sort_by(|a, b| b.modified.unwrap_or(0.0).total_cmp(&a.modified.unwrap_or(0.0)));
    if out.json {
        return out.object(&runs);
    }
    let rows: Vec<Vec<String>> = runs.iter().filter_map(RunSummary::row).collect();
    if !rows.is_empty() {
        out.line(table(&HEADER, rows))?;
    }
    for run in runs.iter().filter(|run| run.state == RunState::Unreadable) {
        let error: Vec<&str> = run.error.iter().flat_map(|e| e.lines()).map(str::trim).collect();
        out.line(format!("{}: unreadable: {}", run.run, error.join(" ")))?;
    }
    for run in runs.iter().filter(|run| run.state == RunState::Failed) {
        out.hint(format!("{} failed: {}", run.run, run.error.as_deref().unwrap_or_default()));
    }
    runs.iter().filter_map(|run| run.info.as_ref()).flat_map(|info| &info.notes).for_each(|note| out.warn(note));
    if runs.is_empty() {
        out.hint(format!("no runs in {}", dir.display()));
    }
    Ok(())
}

/// The least important columns come last: a narrow terminal does not show them.
const HEADER: [&str; 10] = ["run", "state", "updates", "last", "gap", "method", "env", "best", "seed", "time"];

/// A recipe key in which two runs differ, as printed with `--json`.
#[derive(Serialize)]
struct KeyDifference {
    key: String,
    a: String,
    b: String,
}

fn diff(a: &Path, b: &Path, out: &Output) -> anyhow::Result<()> {
    let recipes = (RunDir::recipe(a).map_err(usage)?, RunDir::recipe(b).map_err(usage)?);
    let differing = differences(&recipes.0, &recipes.1).into_iter();
    let mut keys: Vec<KeyDifference> = differing.map(|(key, a, b)| KeyDifference { key, a, b }).collect();
    // A population may have changed under the same name.
    let [hash_a, hash_b] = [a, b].map(|run| RunDir::population(run).map(|p| Hash::of(&p).to_string()[..8].to_owned()));
    let (hash_a, hash_b) = (hash_a.map_err(usage)?, hash_b.map_err(usage)?);
    if hash_a != hash_b {
        keys.push(KeyDifference { key: "hash of population.toml".to_owned(), a: hash_a, b: hash_b });
    }
    let runs = [a, b].map(RunSummary::read);
    if let Some(error) = runs.iter().find(|run| run.state == RunState::Unreadable).and_then(|run| run.error.as_ref()) {
        return Err(usage(error));
    }
    if out.json {
        return out.object(&serde_json::json!({ "a": runs[0], "b": runs[1], "differences": keys }));
    }
    let name = |run: &str| shorten(run, 30, true);
    let [name_a, name_b] = [&runs[0].run, &runs[1].run].map(|run| name(run));
    let in_recipe = |header: &str| ["env", "method", "seed"].contains(&header);
    let rows = runs.iter().filter_map(|run| {
        let mut row = run.row()?;
        row[0] = name(&run.run);
        Some(row.into_iter().zip(HEADER).filter(|(_, h)| !in_recipe(h)).map(|(cell, _)| cell).collect())
    });
    let header: Vec<&str> = HEADER.into_iter().filter(|h| !in_recipe(h)).collect();
    out.line(table(&header, rows))?;
    if keys.is_empty() {
        return out.line("\nthe recipes are equal");
    }
    let rows = keys.iter().map(|k| vec![k.key.clone(), shorten(&k.a, 30, false), k.b.clone()]);
    out.line(format!("\n{}", columns(&["key", &name_a, &name_b], rows)))
}
