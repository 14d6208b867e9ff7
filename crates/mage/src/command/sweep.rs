//! `mage sweep`: everything a table or a figure takes, cell by cell.

use super::train::{setting, stop_on_ctrl_c};
use crate::{
    App,
    cli::{Cli, Command, SweepArgs},
    command::{
        eval::{self, Ceilings},
        recipe::compose,
    },
    interrupt::Interrupted,
    output::{BOLD, Output, styled},
    table::{columns, span},
    usage,
};
use anyhow::{Context, anyhow};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use mage_core::prompt::PromptForm;
use mage_remote::Endpoint;
use mage_train::{
    ResourcePlan,
    run_dir::RunDir,
    sweep::{CellWork, RUN, Sweep, SweepCell, archive, orphaned, preset_names, preset_text},
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

pub(crate) fn run(app: &App, args: &SweepArgs, out: &Output) -> anyhow::Result<()> {
    match (args.sweep.as_str(), &args.shown) {
        ("list", _) => return list(out),
        ("show", Some(name)) => {
            let unknown = || usage(format!("there is no preset {name} (presets: {})", preset_names().join(", ")));
            return out.line(preset_text(name).ok_or_else(unknown)?.trim_end());
        }
        ("show", None) => return Err(usage("show which? mage sweep show table1")),
        (_, Some(more)) => return Err(usage(format!("one sweep at a time: what is {more}?"))),
        _ => {}
    }
    let sweep = Sweep::find(&args.sweep).map_err(usage)?;
    let dir = args.out.clone().unwrap_or_else(|| folder(&args.sweep));
    let mut cells = sweep.cells();
    for cell in cells.iter_mut().filter(|c| c.work == CellWork::Prompt) {
        if let Some(model) = &args.remote.model {
            cell.info.policy.clone_from(model);
            // What the results depend on: another answer to any of these is another cell.
            let remote = &args.remote;
            let address = |url: &Option<String>, of: &Option<String>| match (url, of) {
                (Some(url), Some(model)) => {
                    Endpoint::new(url, model).map(|e| Some(e.address().to_owned())).map_err(usage)
                }
                _ => Ok(None),
            };
            let answers = address(&remote.endpoint, &remote.model)?;
            let retrieves = address(&remote.embeddings, &remote.embedding_model)?;
            let said = [
                ("--endpoint", answers),
                ("--model", Some(model.clone())),
                ("--embeddings", retrieves),
                ("--embedding-model", remote.embedding_model.clone()),
            ];
            let requests = remote.extra_body.iter().map(|field| ("--extra-body", Some(field.clone())));
            let all = said.into_iter().chain(requests).filter_map(|(option, value)| Some([option.to_owned(), value?]));
            cell.info.command.extend(all.flatten());
        }
    }
    if args.dry_run {
        return dry_run(app, &sweep, &cells, &dir, args, out);
    }
    let stop = stop_on_ctrl_c("stopping after this step; press Ctrl-C again to stop at once")?;
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let _lock = lock(&dir)?;
    Runner { app, args, out, dir, sweep, stop, ceilings: Ceilings::default() }.run(&cells)
}

/// sweeps/table1 for `table1`, sweeps/paper-table1 for `paper/table1`, sweeps/mine for `here/mine.toml`.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(name);
    let own = match path.extension() {
        Some(_) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        None => name.replace('/', "-"),
    };
    Path::new("sweeps").join(own)
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(anyhow!("{} is being worked on by another process", dir.display())),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("cannot lock {}", path.display())),
    }
}

fn list(out: &Output) -> anyhow::Result<()> {
    let about = |name: &String| Sweep::find(name).map(|s| s.description).unwrap_or_default();
    let rows: Vec<Vec<String>> = preset_names().into_iter().map(|name| vec![name.clone(), about(&name)]).collect();
    if out.json {
        return out.object(&json!({ "presets": rows }));
    }
    out.line(columns(&["preset", "what it is for"], rows))
}

/// How many episodes a training cell plays; none of its business where the recipe makes no sense.
fn train_episodes(cell: &SweepCell) -> u64 {
    let CellWork::Train { recipes, set } = &cell.work else { return 0 };
    compose(recipes, set)
        .map_or(0, |r| r.optim.updates * (r.rollout.groups * r.rollout.group_size) as u64 * u64::from(r.play.episodes))
}

/// Where a cell stands.
#[derive(Clone, Debug, PartialEq)]
enum Stand {
    Finished,
    ToDo,
    /// What is there was made with something else.
    Changed(String),
    /// For --endpoint; what is there may have been made with something else.
    Waits(Option<String>),
}

impl Stand {
    /// For tables and programs.
    fn name(&self) -> &'static str {
        match self {
            Stand::Finished => "finished",
            Stand::ToDo => "to do",
            Stand::Changed(_) => "changed: to do again",
            Stand::Waits(None) => "waits for --endpoint",
            Stand::Waits(Some(_)) => "changed: waits for --endpoint",
        }
    }

    fn is_work(&self) -> bool {
        matches!(self, Stand::ToDo | Stand::Changed(_))
    }
}

/// Where all cells stand. A policy that is to be trained is to be measured as well.
fn stands(app: &App, cells: &[SweepCell], dir: &Path, args: &SweepArgs) -> anyhow::Result<Vec<Stand>> {
    let mut untrained: HashSet<&str> = HashSet::new();
    let mut all = Vec::new();
    for cell in cells {
        let mut changed = cell.changed(dir);
        if let (CellWork::Train { recipes, set }, None) = (&cell.work, &changed) {
            changed = other_recipe(app, recipes, set, &cell.folder(dir).join(RUN))?;
        }
        if let (CellWork::Policy { trained_by: of }, None, true) = (&cell.work, &changed, cell.result(dir).exists()) {
            changed = untrained.contains(of.as_str()).then(|| "its policy is trained again".to_owned());
        }
        let stand = match (changed, cell.result(dir).exists()) {
            (None, true) => Stand::Finished,
            (changed, _) if cell.work == CellWork::Prompt && args.remote.endpoint.is_none() => Stand::Waits(changed),
            (None, false) => Stand::ToDo,
            (Some(what), _) => Stand::Changed(what),
        };
        if stand.is_work() {
            untrained.insert(&cell.id);
        }
        all.push(stand);
    }
    Ok(all)
}

/// What a run was started with that is something else now: a recipe's or a population's file may have changed under its name.
fn other_recipe(app: &App, recipes: &[String], set: &[String], run: &Path) -> anyhow::Result<Option<String>> {
    if !RunDir::is_run(run) {
        return Ok(None);
    }
    let recipe = compose(recipes, set)?;
    let changed = match changed_since(run, &recipe, &setting(app, &recipe)?.population) {
        Ok(changed) => changed,
        Err(e) => return Ok(Some(format!("what it was started with cannot be read: {e}"))),
    };
    Ok(changed.first().map(|(key, then, now)| {
        let more = if changed.len() > 1 { format!(" and {} more", changed.len() - 1) } else { String::new() };
        format!("{key} was {then}, is {now}{more}")
    }))
}

fn dry_run(
    app: &App,
    sweep: &Sweep,
    cells: &[SweepCell],
    dir: &Path,
    args: &SweepArgs,
    out: &Output,
) -> anyhow::Result<()> {
    let gone = orphaned(dir, cells);
    if !gone.is_empty() {
        out.warn(format!("no longer in the sweep, to be put aside: {}", gone.join(", ")));
    }
    let stands = stands(app, cells, dir, args)?;
    let mut tried: HashMap<(String, String, Option<String>), Option<f64>> = HashMap::new();
    let (mut seconds, mut untried) = (0.0, Vec::new());
    // What was tried, and what else there is of known weight: one second of the former is as much as of the latter.
    let (mut trained, mut played, mut unknown) = (0.0, 0.0, 0);
    for (cell, _) in cells.iter().zip(&stands).filter(|(_, stand)| stand.is_work()) {
        let CellWork::Train { recipes, set } = &cell.work else {
            match &cell.work {
                CellWork::Policy { trained_by: of } if untried.contains(of) => unknown += 1,
                CellWork::Prompt => unknown += 1,
                _ => played += sweep.weight(cell, 0),
            }
            continue;
        };
        let about = &cell.info;
        let key = (about.env.clone(), about.method.clone(), about.ablation.clone());
        let known = tried.get(&key).copied();
        let each = match known {
            Some(each) => each,
            None => {
                let recipe = compose(recipes, &[&set[..], &here(args)].concat())?;
                // A checkpoint that is to be had elsewhere is not fetched for an estimate.
                let each = match recipe.play.form {
                    PromptForm::Compact => {
                        let setting = setting(app, &recipe)?;
                        out.waiting("trying an update of each recipe", || ResourcePlan::new(&recipe, &setting))?
                            .total_seconds
                    }
                    PromptForm::Full => None,
                };
                tried.insert(key, each);
                each
            }
        };
        match each {
            Some(each) => {
                seconds += each;
                trained += sweep.weight(cell, train_episodes(cell));
            }
            None => untried.push(cell.id.clone()),
        }
    }
    // Nothing tried is nothing known.
    let training = (trained > 0.0).then_some(seconds);
    let play = training.map(|seconds| seconds * played / trained);
    if out.json {
        let list =
            cells.iter().zip(&stands).map(|(c, stand)| json!({ "id": c.id, "state": stand.name(), "about": c.info }));
        return out.object(&json!({
            "out": dir, "cells": list.collect::<Vec<_>>(), "training_seconds": training, "play_seconds": play,
            "untried": untried.len(), "unknown": unknown,
        }));
    }
    out.line(format!("{}: {}", styled(BOLD, dir.display()), sweep.description))?;
    let row = |(c, stand): (&SweepCell, &Stand)| vec![c.id.clone(), stand.name().to_owned(), c.info.command.join(" ")];
    out.line(columns(&["cell", "state", "mage"], cells.iter().zip(&stands).map(row)))?;
    let left = stands.iter().filter(|stand| stand.is_work()).count();
    let time = match (training, play) {
        (Some(training), Some(play)) if left > 0 => format!(
            "; on this machine, as busy as it is now, about {} of training and {} of play",
            span(training),
            span(play)
        ),
        _ if left > 0 => "; how long they take is not known".to_owned(),
        _ => String::new(),
    };
    out.line(format!("\n{left} of {} cells to do{time}", cells.len()))?;
    let top = if training.is_some() { ", and come on top" } else { "" };
    if !untried.is_empty() {
        out.line(format!("{} training cells were not tried{top}: their model is large, or elsewhere", untried.len()))?;
    }
    if unknown > 0 {
        out.line(format!("{unknown} cells are played by models that were not tried{top}"))?;
    }
    tell_changes(cells, &stands, out);
    out.hint("nothing was written; leave out --dry-run to begin");
    Ok(())
}

/// So many changes are told one by one.
const TOLD: usize = 6;

/// What the sweep asks for now is not what was done: said before anything is done again.
fn tell_changes(cells: &[SweepCell], stands: &[Stand], out: &Output) {
    let changes = cells.iter().zip(stands).filter_map(|(cell, stand)| match stand {
        Stand::Changed(what) => {
            Some(format!("{}: changed since ({what}): is done again, what was there is kept", cell.id))
        }
        Stand::Waits(Some(what)) => Some(format!("{}: changed since ({what}); waits for --endpoint", cell.id)),
        _ => None,
    });
    let changes: Vec<String> = changes.collect();
    changes.iter().take(TOLD).for_each(|change| out.warn(change));
    if changes.len() > TOLD {
        out.warn(format!("and {} more cells changed since", changes.len() - TOLD));
    }
}

struct Runner<'a> {
    app: &'a App,
    args: &'a SweepArgs,
    out: &'a Output,
    dir: PathBuf,
    sweep: Sweep,
    stop: Arc<AtomicU8>,
    ceilings: Ceilings,
}

impl Runner<'_> {
    fn run(&self, cells: &[SweepCell]) -> anyhow::Result<()> {
        for id in orphaned(&self.dir, cells) {
            let place = archive(&id, &self.dir)?;
            self.out.warn(format!("{id} is no longer in the sweep; what was there is kept in {}", place.display()));
        }
        let stands = stands(self.app, cells, &self.dir, self.args)?;
        tell_changes(cells, &stands, self.out);
        let todo: Vec<&SweepCell> = cells.iter().zip(&stands).filter(|(_, s)| s.is_work()).map(|(c, _)| c).collect();
        let waiting = stands.iter().filter(|s| matches!(s, Stand::Waits(_))).count();
        let changed = stands.iter().filter(|s| matches!(s, Stand::Changed(_))).count();
        let finished = cells.len() - todo.len() - waiting;
        if self.out.json {
            self.out.object(&json!({
                "event": "begin", "out": self.dir, "cells": cells.len(), "finished": finished, "to_do": todo.len(),
                "changed": changed, "waiting": waiting,
            }))?;
        }
        self.say(format!(
            "{finished} of {} cells are finished, {} to do, {waiting} wait for --endpoint",
            cells.len(),
            todo.len()
        ));
        let weights: Vec<f64> = todo.iter().map(|c| self.sweep.weight(c, train_episodes(c))).collect();
        let total: f64 = weights.iter().sum();
        let bar = self.bar(total);
        let (started, mut done, mut failed) = (Instant::now(), 0.0, Vec::new());
        for (n, (cell, weight)) in todo.iter().zip(&weights).enumerate() {
            if self.stopped() {
                break;
            }
            let of_cell = Instant::now();
            bar.set_message(format!("{}/{} {}", n + 1, todo.len(), cell.id));
            let outcome = self.cell(cell, &mut |share| bar.set_position((done + share * weight) as u64));
            done += weight;
            bar.set_position(done as u64);
            let took = of_cell.elapsed().as_secs_f64();
            let state = match &outcome {
                Ok(true) => "finished",
                Ok(false) => "stopped",
                Err(_) => "failed",
            };
            if self.out.json {
                let problem = outcome.as_ref().err().map(|e| format!("{e:#}"));
                self.out.object(&json!({
                    "event": "cell", "id": cell.id, "state": state, "seconds": took, "problem": problem,
                }))?;
            }
            if let Err(e) = outcome {
                bar.suspend(|| self.out.warn(format!("{}: {e:#}", cell.id)));
                failed.push(cell.id.clone());
            }
            let mut line = format!("[{}/{}] {} {state} after {}", n + 1, todo.len(), cell.id, span(took));
            if !self.stopped() {
                let left = started.elapsed().as_secs_f64() * (total - done) / done.max(1e-9);
                line += &format!("; about {} left", span(left));
            }
            bar.suspend(|| self.say(line));
        }
        bar.finish_and_clear();
        if self.out.json {
            self.out.object(&json!({
                "event": "end", "stopped": self.stopped(), "failed": failed, "waiting": waiting,
                "seconds": started.elapsed().as_secs_f64(),
            }))?;
        }
        if self.stopped() {
            self.say("stopped; the same command goes on from here".to_owned());
            return Err(Interrupted.into());
        }
        if !failed.is_empty() {
            return Err(anyhow!("{} of {} cells failed: {}", failed.len(), cells.len(), failed.join(", ")));
        }
        if !self.out.json {
            let next = format!("mage report {}", self.dir.display());
            self.out.line(format!("all cells that can be are finished; look at them with {}", styled(BOLD, next)))?;
        }
        Ok(())
    }

    fn bar(&self, total: f64) -> ProgressBar {
        let style = ProgressStyle::with_template("[{bar:30}] {percent} %, {eta} left  {msg}")
            .expect("the template is fixed")
            .progress_chars("=> ");
        self.out.progress(total.max(1.0) as u64, "").with_style(style)
    }

    fn say(&self, text: String) {
        self.out.hint(text);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) > 0
    }

    /// Does one cell; `false` when it was stopped on the way. `progress` hears the share that is done.
    fn cell(&self, cell: &SweepCell, progress: &mut dyn FnMut(f64)) -> anyhow::Result<bool> {
        let other = match &cell.work {
            CellWork::Train { recipes, set } => {
                other_recipe(self.app, recipes, set, &cell.folder(&self.dir).join(RUN))?
            }
            // Before the folder is claimed for weights that will not be the last.
            CellWork::Policy { trained_by: of } if !self.dir.join(of).join(RUN).join("result.json").exists() => {
                return Err(anyhow!("its policy is not trained: {of} is not finished"));
            }
            _ => None,
        };
        if cell.changed(&self.dir).or(other).is_some() {
            let place = cell.archive(&self.dir)?;
            self.say(format!("{}: what was there is kept in {}", cell.id, place.display()));
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
        let recipe = compose(recipes, &[set, &here(self.args)].concat())?;
        let setting = setting(self.app, &recipe)?;
        let (updates, stop, out) = (recipe.optim.updates, Arc::clone(&self.stop), self.out);
        // One warning says where to look; a run's own files have them all.
        let mut warned = false;
        let mut each = |event: TrainEvent| match event {
            TrainEvent::Updated { update, .. } => progress(update as f64 / updates.max(1) as f64),
            TrainEvent::Warning { text } if !std::mem::replace(&mut warned, true) => {
                out.warn(format!("{}: {text}", dir.display()));
            }
            _ => {}
        };
        let mut training = match RunDir::is_run(dir) {
            true => match Training::resume(recipe, setting, dir, false, stop, &mut each)? {
                Resumed::Finished(_) => return Ok(true),
                Resumed::Running(training) => training,
            },
            false => Box::new(Training::create(recipe, setting, dir, stop)?),
        };
        Ok(training.run(&mut each)?.after.is_some())
    }

    /// Plays a panel, or the rest of it. The summary takes its place when it is whole.
    fn evaluate(&self, cell: &SweepCell, policy: Option<&Path>) -> anyhow::Result<bool> {
        let folder = cell.folder(&self.dir);
        let unfinished = folder.join("summary.unfinished");
        let mut command: Vec<String> = cell.info.command.clone();
        if let (Some(policy), Some(place)) = (policy, command.iter().position(|a| a == "--policy")) {
            command[place + 1] = policy.display().to_string();
        }
        let paths = [("--records", folder.join("records.jsonl")), ("--summary", unfinished.clone())];
        command.extend(paths.into_iter().flat_map(|(option, path)| [option.to_owned(), path.display().to_string()]));
        let place = [("--threads", self.args.threads.to_string()), ("--device", self.args.device.to_string())];
        command.extend(place.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
        let cli = Cli::try_parse_from(std::iter::once("mage".to_owned()).chain(command)).map_err(usage)?;
        let Command::Eval(mut args) = cli.command else {
            return Err(anyhow!("a cell that plays must be an evaluation"));
        };
        if cell.work == CellWork::Prompt {
            args.remote = self.args.remote.clone();
        }
        match eval::run_until(self.app, &args, &Output::silent(), &self.stop, &self.ceilings) {
            Err(e) if e.is::<Interrupted>() => return Ok(false),
            outcome => outcome?,
        }
        let place = cell.result(&self.dir);
        fs::rename(&unfinished, &place).with_context(|| format!("cannot write {}", place.display()))?;
        Ok(true)
    }
}

/// Where training computes, as settings of a recipe.
fn here(args: &SweepArgs) -> [String; 2] {
    [format!("engine.threads={}", args.threads), format!("engine.device=\"{}\"", args.device)]
}
