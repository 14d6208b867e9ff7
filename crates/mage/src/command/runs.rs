//! `mage runs`: a list of runs, and the differences of two.

use crate::{
    cli::{RunsArgs, RunsCommand},
    output::{BOLD, Output, styled},
    table::{below_memoryless, duration, score, table},
    text::{shorten, stdout_width},
    usage,
};
use mage_core::{ConfidenceInterval, MeanEstimate, gap_closed};
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
            info.env.clone(),
            info.method.clone(),
            info.seed.to_string(),
            format!("{}/{}", info.updates, info.total_updates),
            last,
            best,
            gap,
            duration(info.seconds),
            self.state.name().to_owned(),
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
        let gap = optima.zip(last).and_then(|((low, high), point)| gap_closed(estimate(point), low, high));
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

/// A point of the learning curve with a 95 % interval.
fn estimate(point: &EvalPoint) -> MeanEstimate {
    let half = 1.96 * point.se;
    let interval = (half > 0.0).then_some(ConfidenceInterval { low: point.score - half, high: point.score + half });
    MeanEstimate { count: 0, mean: Some(point.score), se: Some(point.se), interval }
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
        out.line(fit(&HEADER, rows, stdout_width().unwrap_or(80)))?;
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

const HEADER: [&str; 10] = ["run", "env", "method", "seed", "updates", "last", "best", "gap", "time", "state"];
/// Columns with text, which are left-aligned.
const TEXT: [usize; 4] = [0, 1, 2, 9];
/// Least width of the first column and of the method.
const MIN_WIDTH: [(usize, usize); 2] = [(0, 11), (2, 6)];

/// Columns that are left out of a table that does not fit, in this order.
const OPTIONAL: [usize; 6] = [8, 3, 6, 1, 2, 7];

/// Lays out the table within `limit` columns: with narrower gaps, then shorter names of runs, then of methods, then
/// fewer columns.
fn fit(header: &[&str], rows: Vec<Vec<String>>, limit: usize) -> String {
    let rows: Vec<Vec<String>> =
        std::iter::once(header.iter().map(|h| (*h).to_owned()).collect()).chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let mut widths: Vec<usize> =
        (0..header.len()).map(|i| rows.iter().map(|row| length(&row[i])).max().unwrap_or(0)).collect();
    let mut shown: Vec<usize> = (0..header.len()).collect();
    let total = |widths: &[usize], shown: &[usize], gap: usize| {
        shown.iter().map(|i| widths[*i]).sum::<usize>() + gap * (shown.len() - 1)
    };
    let gap = if total(&widths, &shown, 2) <= limit { 2 } else { 1 };
    for (column, least) in MIN_WIDTH {
        let excess = total(&widths, &shown, gap).saturating_sub(limit);
        widths[column] = widths[column].saturating_sub(excess).max(least.min(widths[column]));
    }
    for column in OPTIONAL {
        if total(&widths, &shown, gap) > limit {
            shown.retain(|i| *i != column);
        }
    }
    let lines = rows.iter().enumerate().map(|(n, row)| {
        let cells = shown.iter().map(|&i| {
            let w = widths[i];
            let cell = shorten(&row[i], w, i == 0);
            if TEXT.contains(&i) { format!("{cell:<w$}") } else { format!("{cell:>w$}") }
        });
        let line = cells.collect::<Vec<_>>().join(&" ".repeat(gap));
        if n == 0 { styled(BOLD, line.trim_end()) } else { line.trim_end().to_owned() }
    });
    lines.collect::<Vec<_>>().join("\n")
}

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
    let rows = runs.iter().filter_map(|run| {
        let mut row = run.row()?;
        row[0] = name(&run.run);
        // Environment, method and seed are keys of the recipe.
        row.drain(1..4);
        Some(row)
    });
    let header: Vec<&str> = HEADER.iter().enumerate().filter(|(i, _)| !(1..4).contains(i)).map(|(_, h)| *h).collect();
    out.line(table(&header, rows))?;
    if keys.is_empty() {
        return out.line("\nthe recipes are equal");
    }
    let width = |cell: &dyn Fn(&KeyDifference) -> &String, least: usize, most: usize| {
        keys.iter().map(|key| cell(key).chars().count()).max().unwrap_or(0).clamp(least, most)
    };
    let (key_width, a_width) = (width(&|k| &k.key, 3, 40), width(&|k| &k.a, name_a.chars().count(), 30));
    let line = |key: &str, a: &str, b: &str| format!("{key:<key_width$}  {a:<a_width$}  {b}");
    out.line(format!("\n{}", styled(BOLD, line("key", &name_a, &name_b))))?;
    keys.iter().try_for_each(|k| out.line(line(&k.key, &k.a, &k.b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(run: &str, env: &str, method: &str) -> Vec<String> {
        let cells = [run, env, method, "1", "300/300", "-0.123", "-0.120", "-100 %", "12.3 min", "finished"];
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn the_table_fits_the_width_and_keeps_the_end_of_a_name() {
        let rows = vec![
            row("sweeps/a-long-name/table1/kuhn/MAGE-0/run", "tictactoe", "own-episode, omit the previous return"),
            row("runs/kuhn-1", "kuhn", "MAGE"),
        ];
        let text = fit(&HEADER, rows.clone(), 80);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert!(lines[0].starts_with('…') && lines[0].contains("MAGE-0/run "), "{text}");
        assert!(lines[1].starts_with("runs/kuhn-1 "), "{text}");
        for limit in [40, 60] {
            let text = fit(&HEADER, rows.clone(), limit);
            assert!(text.lines().skip(1).all(|line| line.chars().count() <= limit), "{text}");
            assert!(text.contains("-0.123") && text.contains("finished"), "{text}");
        }
        // Nothing is shortened without need.
        let text = fit(&HEADER, rows.clone(), 200);
        assert!(rows.iter().flatten().all(|cell| text.contains(cell)), "{text}");
        assert_eq!([shorten("abcdef", 4, true), shorten("abcdef", 4, false)], ["…def", "abc…"]);
    }
}
