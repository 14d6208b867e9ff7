//! `mage sweep`: runs all cells of a grid of training runs and evaluations.

use super::train::{stop_on_ctrl_c, train_env};
use crate::{
    App,
    cli::{Cli, Command, SweepArgs},
    command::{
        eval::{self, CeilingCache},
        recipe::{self, compose},
    },
    interrupt::Interrupted,
    output::{BOLD, Output, styled},
    table::{columns, duration, score},
    text::shell_quote,
    usage,
};
use anyhow::{Context, anyhow};
use clap::Parser;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use mage_core::prompt::PromptForm;
use mage_remote::Endpoint;
use mage_train::{
    ResourcePlan,
    run_dir::RunDir,
    sweep::{CellScore, CellWork, RUN, SCALES, Sweep, SweepCell, archive, orphaned, preset_names, preset_text},
    train::{Resumed, TrainEvent, Training, changed_since},
};
use serde_json::json;
use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

/// Longest name of a default directory.
const MAX_FOLDER_NAME: usize = 120;

/// Smallest finished part of a sweep from which the remaining time is estimated.
const MIN_ESTIMATED_PART: f64 = 0.02;

pub(crate) fn run(app: &App, args: &SweepArgs, out: &Output) -> anyhow::Result<()> {
    match (args.sweep.as_str(), &args.shown) {
        ("list", _) => return list(out),
        ("show", Some(name)) => {
            let text =
                preset_text(name).ok_or_else(|| usage(mage_env::Error::unknown("preset", name, preset_names())))?;
            return if out.json { out.object(&Sweep::find(name).map_err(usage)?) } else { out.line(text.trim_end()) };
        }
        ("show", None) => return Err(usage("`show` requires a preset, such as `mage sweep show table1`")),
        (_, Some(more)) => return Err(usage(format!("unexpected argument {more}: one sweep at a time"))),
        _ => {}
    }
    let mut sweep = Sweep::find(&args.sweep).map_err(usage)?;
    sweep.apply(&args.set).map_err(usage)?;
    let dir = args.out.clone().map_or_else(|| default_dir(&args.sweep, &args.set), Ok)?;
    let mut cells = sweep.cells();
    check_cells(&args.sweep, &sweep, &cells)?;
    for cell in cells.iter_mut().filter(|c| c.work == CellWork::Prompt) {
        if let Some(model) = &args.remote.model {
            cell.info.policy.clone_from(model);
            // Results depend on these options, so a change of any of them invalidates the cell.
            let remote = &args.remote;
            let address = |url: &Option<String>, model: &Option<String>| match (url, model) {
                (Some(url), Some(model)) => {
                    Endpoint::new(url, model).map(|e| Some(e.address().to_owned())).map_err(usage)
                }
                _ => Ok(None),
            };
            let endpoint = address(&remote.endpoint, &remote.model)?;
            let embedding_endpoint = address(&remote.embedding_endpoint, &remote.embedding_model)?;
            let options = [
                ("--endpoint", endpoint),
                ("--model", Some(model.clone())),
                ("--embedding-endpoint", embedding_endpoint),
                ("--embedding-model", remote.embedding_model.clone()),
            ];
            let extra_body = remote.extra_body.iter().map(|field| ("--extra-body", Some(field.clone())));
            let all =
                options.into_iter().chain(extra_body).filter_map(|(option, value)| Some([option.to_owned(), value?]));
            cell.info.command.extend(all.flatten());
        }
    }
    if args.dry_run {
        return dry_run(app, &sweep, &cells, &dir, args, out);
    }
    let stop = stop_on_ctrl_c("stopping after the current step; press Ctrl-C again to stop immediately")?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let _lock = lock(&dir)?;
    SweepRunner { app, args, out, dir, sweep, stop, ceilings: CeilingCache::default() }.run(&cells)
}

/// Refuses invalid recipes and task sets before anything runs.
fn check_cells(name: &str, sweep: &Sweep, cells: &[SweepCell]) -> anyhow::Result<()> {
    for cell in cells {
        // The recipes of the other seeds differ in nothing else.
        if let (CellWork::Train { recipes, set }, true) = (&cell.work, cell.info.seed == sweep.seeds[0]) {
            recipe::check(recipes, set).map_err(|e| usage(format!("{name}: {}: {e:#}", cell.id)))?;
        }
    }
    for task_set in sweep.env.iter().flat_map(|env| &env.task_sets) {
        eval::check_preset(task_set).map_err(|e| usage(format!("{name}: {e:#}")))?;
    }
    Ok(())
}

/// The default directory: sweeps/table1 for `table1`, sweeps/paper-table1 for `paper/table1`, sweeps/mine for
/// `dir/mine.toml`. Settings follow, so that a changed sweep does not replace the results of the original.
fn default_dir(name: &str, settings: &[String]) -> anyhow::Result<PathBuf> {
    let path = Path::new(name);
    let mut folder = match path.extension() {
        Some(_) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        None => name.replace('/', "-"),
    };
    for setting in settings {
        let plain = |c: char| {
            if c.is_alphanumeric() || "-_.=".contains(c) { Some(c) } else { Some('-').filter(|_| !c.is_whitespace()) }
        };
        folder = format!("{folder}-{}", setting.chars().filter_map(plain).collect::<String>().trim_matches('-'));
    }
    if folder.len() > MAX_FOLDER_NAME {
        return Err(usage("the settings are too long for the name of a directory; name one with --out"));
    }
    Ok(Path::new("sweeps").join(folder))
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(anyhow!("{} is in use by another process", dir.display())),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn list(out: &Output) -> anyhow::Result<()> {
    let description = |name: &String| Sweep::find(name).map(|s| s.description).unwrap_or_default();
    let of_scale =
        |scale: &'static str| preset_names().into_iter().filter(move |name| name.starts_with(&format!("{scale}/")));
    if out.json {
        let preset =
            |(name, needs): (String, &str)| json!({ "name": name, "description": description(&name), "needs": needs });
        let all = SCALES.into_iter().flat_map(|(scale, needs)| of_scale(scale).map(move |name| (name, needs)));
        return out.object(&json!({ "presets": all.map(preset).collect::<Vec<_>>() }));
    }
    for (i, (scale, needs)) in SCALES.into_iter().enumerate() {
        let break_before = if i > 0 { "\n" } else { "" };
        out.line(format!("{break_before}{} {needs}", styled(BOLD, format!("{scale}/:"))))?;
        let rows = of_scale(scale).map(|name| vec![name.clone(), description(&name)]);
        out.line(columns(&["preset", "description"], rows))?;
    }
    out.hint("the prefix tiny/ may be omitted; cells that prompt a model also need --endpoint");
    Ok(())
}

/// Number of training episodes of a cell; 0 if it does not train or its recipe is invalid.
fn train_episodes(cell: &SweepCell) -> u64 {
    let CellWork::Train { recipes, set } = &cell.work else { return 0 };
    compose(recipes, set)
        .map_or(0, |r| r.optim.updates * (r.rollout.groups * r.rollout.group_size) as u64 * u64::from(r.play.episodes))
}

/// State of a cell.
#[derive(Clone, Debug, PartialEq)]
enum CellState {
    Finished,
    Pending,
    /// Its result was made with another configuration; the difference.
    Changed(String),
    /// Requires --endpoint; the difference if its result was made with another configuration.
    NeedsEndpoint(Option<String>),
}

impl CellState {
    /// Name for tables and JSON.
    fn name(&self) -> &'static str {
        match self {
            CellState::Finished => "finished",
            CellState::Pending => "pending",
            CellState::Changed(_) => "pending (changed)",
            CellState::NeedsEndpoint(None) => "needs --endpoint",
            CellState::NeedsEndpoint(Some(_)) => "needs --endpoint (changed)",
        }
    }

    fn is_pending(&self) -> bool {
        matches!(self, CellState::Pending | CellState::Changed(_))
    }
}

/// States of all cells. If a policy is trained again, its evaluations are pending, too.
fn cell_states(app: &App, cells: &[SweepCell], dir: &Path, args: &SweepArgs) -> anyhow::Result<Vec<CellState>> {
    let mut untrained: HashSet<&str> = HashSet::new();
    let mut all = Vec::new();
    for cell in cells {
        let mut changed = cell.changed(dir);
        if let (CellWork::Train { recipes, set }, None) = (&cell.work, &changed) {
            changed = recipe_change(app, recipes, set, &cell.folder(dir).join(RUN))?;
        }
        if let (CellWork::Policy { trained_by: of }, None, true) = (&cell.work, &changed, cell.result(dir).exists()) {
            changed = untrained.contains(of.as_str()).then(|| "its policy will be trained again".to_owned());
        }
        let state = match (changed, cell.result(dir).exists()) {
            (None, true) => CellState::Finished,
            (changed, _) if cell.work == CellWork::Prompt && args.remote.endpoint.is_none() => {
                CellState::NeedsEndpoint(changed)
            }
            (None, false) => CellState::Pending,
            (Some(change), _) => CellState::Changed(change),
        };
        if state.is_pending() {
            untrained.insert(&cell.id);
        }
        all.push(state);
    }
    Ok(all)
}

/// The difference between a run's stored recipe and population and the current ones, whose files may have changed.
fn recipe_change(app: &App, recipes: &[String], set: &[String], run: &Path) -> anyhow::Result<Option<String>> {
    if !RunDir::is_run(run) {
        return Ok(None);
    }
    let recipe = compose(recipes, set)?;
    let changed = match changed_since(run, &recipe, &train_env(app, &recipe)?.population) {
        Ok(changed) => changed,
        Err(e) => return Ok(Some(format!("its stored recipe cannot be read: {e}"))),
    };
    Ok(changed.first().map(|(key, then, now)| {
        let more = if changed.len() > 1 { format!(" and {} more", changed.len() - 1) } else { String::new() };
        format!("{key} changed from {then} to {now}{more}")
    }))
}

/// The result of a finished cell: `, score 0.21`, or for an evaluation its Pass@k.
fn result_text(cell: &SweepCell, dir: &Path, sweep: &Sweep) -> String {
    match cell.score(dir) {
        Some(CellScore::Score(mean)) => format!(", score {}", score(mean)),
        Some(CellScore::PassAtK(rate)) => format!(", Pass@{} {:.1} %", sweep.episodes, 100.0 * rate),
        None => String::new(),
    }
}

fn dry_run(
    app: &App,
    sweep: &Sweep,
    cells: &[SweepCell],
    dir: &Path,
    args: &SweepArgs,
    out: &Output,
) -> anyhow::Result<()> {
    let removed = orphaned(dir, cells);
    if !removed.is_empty() {
        out.warn(format!("no longer in the sweep, will be moved aside: {}", removed.join(", ")));
    }
    let states = cell_states(app, cells, dir, args)?;
    let mut measured: HashMap<(String, String, Option<String>), Option<f64>> = HashMap::new();
    let (mut seconds, mut unmeasured) = (0.0, Vec::new());
    // Weights of measured training cells and of scripted evaluations; both are assumed to take equal time per weight.
    let (mut train_weight, mut eval_weight, mut unknown) = (0.0, 0.0, 0);
    for (cell, _) in cells.iter().zip(&states).filter(|(_, state)| state.is_pending()) {
        let CellWork::Train { recipes, set } = &cell.work else {
            match &cell.work {
                CellWork::Policy { trained_by: of } if unmeasured.contains(of) => unknown += 1,
                CellWork::Prompt => unknown += 1,
                _ => eval_weight += sweep.weight(cell, 0),
            }
            continue;
        };
        let info = &cell.info;
        let key = (info.env.clone(), info.method.clone(), info.ablation.clone());
        let known = measured.get(&key).copied();
        let each = match known {
            Some(each) => each,
            None => {
                let recipe = compose(recipes, &[&set[..], &engine_overrides(args)].concat())?;
                // Checkpoints are not downloaded for an estimate.
                let each = match recipe.play.form {
                    PromptForm::Compact => {
                        let env = train_env(app, &recipe)?;
                        out.spinner("measuring an update of each recipe", || ResourcePlan::new(&recipe, &env))?
                            .total_seconds
                    }
                    PromptForm::Full => None,
                };
                measured.insert(key, each);
                each
            }
        };
        match each {
            Some(each) => {
                seconds += each;
                train_weight += sweep.weight(cell, train_episodes(cell));
            }
            None => unmeasured.push(cell.id.clone()),
        }
    }
    // Without a measured training cell, no time is known.
    let training = (train_weight > 0.0).then_some(seconds);
    let evaluation = training.map(|seconds| seconds * eval_weight / train_weight);
    if out.json {
        let list = cells.iter().zip(&states).map(|(c, state)| {
            let score = c.score(dir).filter(|_| *state == CellState::Finished);
            json!({ "id": c.id, "state": state.name(), "result": score, "cell": c.info })
        });
        return out.object(&json!({
            "out": dir, "cells": list.collect::<Vec<_>>(), "training_seconds": training,
            "evaluation_seconds": evaluation, "unmeasured_training_cells": unmeasured.len(),
            "unmeasured_evaluation_cells": unknown,
        }));
    }
    out.line(format!("{}: {}", styled(BOLD, dir.display()), sweep.description))?;
    let row = |(c, state): (&SweepCell, &CellState)| {
        let result = if *state == CellState::Finished { result_text(c, dir, sweep) } else { String::new() };
        vec![c.id.clone(), format!("{}{result}", state.name())]
    };
    out.line(columns(&["cell", "state"], cells.iter().zip(&states).map(row)))?;
    let pending = states.iter().filter(|state| state.is_pending()).count();
    let time = match (training, evaluation) {
        (Some(training), Some(evaluation)) if pending > 0 => format!(
            "; about {} of training and {} of evaluation on this machine under its current load",
            duration(training),
            duration(evaluation)
        ),
        _ if pending > 0 => "; the time is unknown".to_owned(),
        _ => String::new(),
    };
    out.line(format!("\n{pending} of {} cells are pending{time}", cells.len()))?;
    let extra = if training.is_some() { ", and take additional time" } else { "" };
    if !unmeasured.is_empty() {
        let count = unmeasured.len();
        out.line(format!("{count} training cells were not measured{extra}: their models are large or remote"))?;
    }
    if unknown > 0 {
        out.line(format!("{unknown} evaluation cells were not measured{extra}"))?;
    }
    warn_changes(cells, &states, out);
    out.hint("nothing was written; remove --dry-run to start; --json has the command of each cell");
    Ok(())
}

/// Maximum number of warnings about changed cells.
const MAX_CHANGE_WARNINGS: usize = 6;

/// Warns about cells whose results were made with another configuration, before they are repeated.
fn warn_changes(cells: &[SweepCell], states: &[CellState], out: &Output) {
    let changes = cells.iter().zip(states).filter_map(|(cell, state)| match state {
        CellState::Changed(change) => {
            Some(format!("{}: changed ({change}); the cell is repeated, the old result is kept", cell.id))
        }
        CellState::NeedsEndpoint(Some(change)) => Some(format!("{}: changed ({change}); needs --endpoint", cell.id)),
        _ => None,
    });
    let changes: Vec<String> = changes.collect();
    changes.iter().take(MAX_CHANGE_WARNINGS).for_each(|change| out.warn(change));
    if changes.len() > MAX_CHANGE_WARNINGS {
        out.warn(format!("{} more cells changed", changes.len() - MAX_CHANGE_WARNINGS));
    }
}

struct SweepRunner<'a> {
    app: &'a App,
    args: &'a SweepArgs,
    out: &'a Output,
    dir: PathBuf,
    sweep: Sweep,
    stop: Arc<AtomicU8>,
    ceilings: CeilingCache,
}

impl SweepRunner<'_> {
    fn run(&self, cells: &[SweepCell]) -> anyhow::Result<()> {
        for id in orphaned(&self.dir, cells) {
            let moved = archive(&id, &self.dir)?;
            self.out.warn(format!("{id} is no longer in the sweep; its result was moved to {}", moved.display()));
        }
        let states = cell_states(self.app, cells, &self.dir, self.args)?;
        warn_changes(cells, &states, self.out);
        let pending: Vec<&SweepCell> =
            cells.iter().zip(&states).filter(|(_, s)| s.is_pending()).map(|(c, _)| c).collect();
        let needs_endpoint = states.iter().filter(|s| matches!(s, CellState::NeedsEndpoint(_))).count();
        let changed = states.iter().filter(|s| matches!(s, CellState::Changed(_))).count();
        let finished = cells.len() - pending.len() - needs_endpoint;
        if self.out.json {
            self.out.object(&json!({
                "event": "start", "out": self.dir, "cells": cells.len(), "finished": finished, "pending": pending.len(),
                "changed": changed, "needs_endpoint": needs_endpoint,
            }))?;
        }
        self.out.hint(format!(
            "{finished} of {} cells are finished, {} pending, {needs_endpoint} need --endpoint",
            cells.len(),
            pending.len()
        ));
        let weights: Vec<f64> = pending.iter().map(|c| self.sweep.weight(c, train_episodes(c))).collect();
        let total: f64 = weights.iter().sum();
        let bar = self.bar(total);
        let (start, mut done, mut failed) = (Instant::now(), 0.0, Vec::new());
        for (n, (cell, weight)) in pending.iter().zip(&weights).enumerate() {
            if self.stopped() {
                break;
            }
            let cell_start = Instant::now();
            bar.set_message(format!("{}/{} {}", n + 1, pending.len(), cell.id));
            let outcome = self.run_cell(cell, &mut |fraction| bar.set_position((done + fraction * weight) as u64));
            done += weight;
            bar.set_position(done as u64);
            let seconds = cell_start.elapsed().as_secs_f64();
            let state = match &outcome {
                Ok(true) => "finished",
                Ok(false) => "stopped",
                Err(_) => "failed",
            };
            if self.out.json {
                let error = outcome.as_ref().err().map(|e| format!("{e:#}"));
                self.out.object(&json!({
                    "event": "cell", "id": cell.id, "state": state, "seconds": seconds, "error": error,
                }))?;
            }
            if let Err(e) = outcome {
                self.out.warn(format!("{}: {e:#}", cell.id));
                failed.push(cell.id.clone());
            }
            let result = if state == "finished" { result_text(cell, &self.dir, &self.sweep) } else { String::new() };
            let time = duration(seconds);
            let mut line = format!("[{}/{}] {} {state} after {time}{result}", n + 1, pending.len(), cell.id);
            // The first cells may be scripted evaluations, which say little about the time of trainings.
            if !self.stopped() && done >= MIN_ESTIMATED_PART * total {
                let left = start.elapsed().as_secs_f64() * (total - done) / done.max(1e-9);
                line += &format!("; about {} left", duration(left));
            }
            self.out.hint(line);
        }
        bar.finish_and_clear();
        if self.out.json {
            self.out.object(&json!({
                "event": "end", "stopped": self.stopped(), "failed": failed,
                "needs_endpoint": needs_endpoint, "seconds": start.elapsed().as_secs_f64(),
            }))?;
        }
        if self.stopped() {
            self.out.hint("stopped; the same command resumes");
            return Err(Interrupted.into());
        }
        if !failed.is_empty() {
            return Err(anyhow!("{} of {} cells failed: {}", failed.len(), cells.len(), failed.join(", ")));
        }
        if !self.out.json {
            let next = format!("mage report {}", shell_quote(&self.dir));
            let except = if needs_endpoint > 0 { ", except those that need --endpoint" } else { "" };
            self.out.line(format!(
                "all cells are finished{except}; build the report, which states where token budgets differ, with {}",
                styled(BOLD, next)
            ))?;
        }
        Ok(())
    }

    fn bar(&self, total: f64) -> ProgressBar {
        let style = ProgressStyle::with_template("[{bar:20}] {percent} %{time_left}  {wide_msg}")
            .expect("the template is valid")
            .with_key("time_left", |state: &ProgressState, to: &mut dyn std::fmt::Write| {
                if f64::from(state.fraction()) >= MIN_ESTIMATED_PART {
                    let _ = write!(to, ", {} left", duration(state.eta().as_secs_f64()));
                }
            })
            .progress_chars("=> ");
        self.out.progress(total.max(1.0) as u64, "").with_style(style)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) > 0
    }

    /// Runs one cell; `false` if it was stopped. `progress` receives the finished fraction.
    fn run_cell(&self, cell: &SweepCell, progress: &mut dyn FnMut(f64)) -> anyhow::Result<bool> {
        let recipe_change = match &cell.work {
            CellWork::Train { recipes, set } => {
                recipe_change(self.app, recipes, set, &cell.folder(&self.dir).join(RUN))?
            }
            // Checked before the directory is claimed, since the weights are not final.
            CellWork::Policy { trained_by: of } if !self.dir.join(of).join(RUN).join("result.json").exists() => {
                return Err(anyhow!("its policy is not trained yet: {of} is not finished"));
            }
            _ => None,
        };
        if cell.changed(&self.dir).or(recipe_change).is_some() {
            let moved = cell.archive(&self.dir)?;
            self.out.hint(format!("{}: the old result was moved to {}", cell.id, moved.display()));
        }
        cell.claim(&self.dir)?;
        match &cell.work {
            CellWork::Train { recipes, set } => self.train(recipes, set, &cell.folder(&self.dir).join(RUN), progress),
            CellWork::Policy { trained_by: of } => self.evaluate(cell, Some(&self.dir.join(of).join(RUN))),
            CellWork::Scripted | CellWork::Prompt => self.evaluate(cell, None),
        }
    }

    fn train(
        &self,
        recipes: &[String],
        set: &[String],
        dir: &Path,
        progress: &mut dyn FnMut(f64),
    ) -> anyhow::Result<bool> {
        let recipe = compose(recipes, &[set, &engine_overrides(self.args)].concat())?;
        let env = train_env(self.app, &recipe)?;
        let (updates, stop, out) = (recipe.optim.updates, Arc::clone(&self.stop), self.out);
        // Only the first warning is printed; the run directory has all of them.
        let mut warned = false;
        let mut on_event = |event: TrainEvent| match event {
            TrainEvent::Updated { update, .. } => progress(update as f64 / updates.max(1) as f64),
            TrainEvent::Warning { text } if !std::mem::replace(&mut warned, true) => {
                out.warn(format!("{}: {text}", dir.display()));
            }
            _ => {}
        };
        let mut training = match RunDir::is_run(dir) {
            true => match Training::resume(recipe, env, dir, false, stop, &mut on_event)? {
                Resumed::Finished(_) => return Ok(true),
                Resumed::Running(training) => training,
            },
            false => Box::new(Training::create(recipe, env, [dir.to_owned()], stop)?),
        };
        Ok(training.run(&mut on_event)?.after.is_some())
    }

    /// Runs or resumes an evaluation. The summary is renamed to its final name when it is complete.
    fn evaluate(&self, cell: &SweepCell, policy: Option<&Path>) -> anyhow::Result<bool> {
        let folder = cell.folder(&self.dir);
        let partial = folder.join("summary.partial");
        let mut command: Vec<String> = cell.info.command.clone();
        let paths = [("--trajectories", folder.join("trajectories.jsonl")), ("--summary", partial.clone())];
        command.extend(paths.into_iter().flat_map(|(option, path)| [option.to_owned(), path.display().to_string()]));
        let engine = [("--threads", self.args.threads.to_string()), ("--device", self.args.device.to_string())];
        command.extend(engine.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        let cli = Cli::try_parse_from(std::iter::once("mage".to_owned()).chain(command)).map_err(usage)?;
        let Command::Eval(mut args) = cli.command else {
            return Err(anyhow!("the command of an evaluation cell must be `mage eval`"));
        };
        if let Some(policy) = policy {
            args.policies = vec![policy.into()];
        }
        if cell.work == CellWork::Prompt {
            args.remote = self.args.remote.clone();
        }
        match eval::run_until(self.app, &args, &Output::silent(), &self.stop, &self.ceilings) {
            Err(e) if e.is::<Interrupted>() => return Ok(false),
            outcome => outcome?,
        }
        let result = cell.result(&self.dir);
        fs::rename(&partial, &result).with_context(|| format!("cannot write {}", result.display()))?;
        Ok(true)
    }
}

/// Threads and device as recipe overrides.
fn engine_overrides(args: &SweepArgs) -> [String; 2] {
    [format!("engine.threads={}", args.threads), format!("engine.device=\"{}\"", args.device)]
}
