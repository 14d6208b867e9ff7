//! `mage eval`: how good is an agent?

mod ceilings;
mod comparison;
mod policies;
mod preset;
mod report;
mod request_stats;

pub(crate) use ceilings::Ceilings;

use super::train::stop_on_ctrl_c;
use crate::{
    App, cli::EvalArgs, interrupt::Interrupted, output::Output, task_selection::print_warnings, task_selection::select,
    usage,
};
use anyhow::{Context, anyhow};
use comparison::Comparison;
use mage_core::{Bootstrap, MetaEpisodeResult, Trajectory};
use mage_env::{Hash, Seed, solvers::OracleReport};
use mage_train::{
    TaskSet,
    eval::runtime,
    eval::store::{TrajectoryStore, read_trajectories},
};
use policies::{EvalPolicy, EvalSetup, policies, prices};
use report::Report;
use request_stats::RequestStats;
use serde::Serialize;
use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicU8},
};
use tokio::runtime::{Handle, Runtime};

/// What one meta-episode of an entrant came to.
pub(super) struct Played {
    /// The task's number on the panel.
    task: usize,
    /// The number of the seed.
    seed: usize,
    result: MetaEpisodeResult,
}

/// What an entrant came to.
#[derive(Default)]
pub(super) struct Results {
    played: Vec<Played>,
    tally: RequestStats,
    /// How many tasks could not be finished.
    errors: u64,
}

impl Results {
    /// The results of some meta-episodes, with the numbers of their tasks.
    fn numbered(&self, which: impl Fn(&Played) -> bool) -> Vec<(usize, MetaEpisodeResult)> {
        self.played.iter().filter(|p| which(p)).map(|p| (p.task, p.result.clone())).collect()
    }
}

pub(crate) fn run(app: &App, args: &EvalArgs, out: &Output) -> anyhow::Result<()> {
    let stop = stop_on_ctrl_c("stopping; press Ctrl-C again to stop without cleaning up")?;
    run_until(app, args, out, &stop, &Ceilings::default())
}

/// The same, until somebody else says stop.
pub(crate) fn run_until(
    app: &App,
    args: &EvalArgs,
    out: &Output,
    stop: &Arc<AtomicU8>,
    known: &Ceilings,
) -> anyhow::Result<()> {
    if args.preset.as_deref() == Some("list") {
        return out.line(preset::list());
    }
    let mut args = args.clone();
    if let Some(name) = args.named.take() {
        args.env = name;
    }
    preset::apply(&mut args)?;
    let args = &args;
    let draw = args.plot.as_deref().map(Draw::into).transpose()?;
    // Better now than when all has been played.
    for path in [&args.plot, &args.summary].into_iter().flatten() {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|p| !p.is_dir()) {
            return Err(usage(format!("{}: there is no folder {}", path.display(), folder.display())));
        }
    }
    someone_plays(args)?;
    let (env_spec, population) = select(app, &args.env, &args.selection)?;
    let (env_info, split) = (env_spec.info(), args.selection.split());
    print_warnings(&*env_spec, &population, split, out)?;
    let max_turns = match args.max_turns {
        Some(turns) => turns,
        None => env_spec.max_turns(&population, split)?,
    };
    let prices = prices(&args.remote)?;
    let seed = Seed::new(args.seed);
    let panel = TaskSet::new(&population, split, env_info.seats, usize::try_from(args.tasks)?, seed)?;
    let panel = panel.without_replacement(&*env_spec, seed)?;
    let setup = EvalSetup {
        env_spec,
        population,
        prompts: app.prompts.get(&args.env)?,
        panel,
        max_turns,
        stop: Arc::clone(stop),
    };
    let runtime = Unwaited(Some(runtime(0)?));
    let all = out.starting(|| policies(args, &setup, &runtime.handle()))?;
    // Files that the options name are read here for the first time: better now than within the panel.
    if let Some(task) = setup.panel.tasks().first() {
        setup.env_spec.build(task)?;
    }
    let mut results = Vec::new();
    for entrant in &all {
        results.push(play(entrant, args.records.as_deref(), out)?);
    }
    let ceilings = {
        let (env_spec, population) = (&setup.env_spec, &setup.population);
        let work = || known.of(&**env_spec, population, split, args.episodes);
        let ceilings = out.waiting("working out the ceilings", work);
        // What was played is worth telling without them.
        ceilings.unwrap_or_else(|e| {
            out.warn(format!("no ceilings to compare with: {e}"));
            None
        })
    };
    if args.early_stop && ceilings.is_some() {
        out.hint("With --early-stop no ceilings of scores: they are for all tasks, its later episodes for those not yet won.");
    }
    let reports: Vec<Report<'_>> = all
        .iter()
        .zip(&results)
        .map(|(entrant, results)| Report::new(args, entrant, &env_info.unit, results, ceilings.as_ref(), prices))
        .collect();
    // As reports do, so that both say the same of the same records.
    let bootstrap = Bootstrap::default();
    let versus: Vec<Comparison<'_>> = (1..all.len())
        .map(|i| {
            let [first, second] = [0, i].map(|i| (all[i].name.as_str(), &results[i]));
            Comparison::new(first, second, args.episodes, args.seeds, bootstrap)
        })
        .collect();
    if let (Some(path), Some(draw)) = (&args.plot, draw) {
        let bytes = draw.bytes(report::drawing(&reports, args.early_stop))?;
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        out.hint(format!("drawn into {}", path.display()));
    }
    if let Some(path) = &args.summary {
        let summary = Summary {
            format: 2,
            env: &args.env,
            preset: args.preset.as_deref(),
            split,
            unit: &env_info.unit,
            episodes: args.episodes,
            early_stop: args.early_stop,
            tasks: args.tasks,
            seed: args.seed,
            seeds: args.seeds,
            panel: setup.panel.hash(),
            population: Hash::of(&setup.population),
            ceilings: ceilings.as_ref(),
            entrants: &reports,
            versus: &versus,
        };
        let text = serde_json::to_string_pretty(&summary)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        out.hint(format!("written to {}", path.display()));
    }
    for report in &reports {
        if out.json { out.object(report)? } else { report.print(out)? }
    }
    for versus in &versus {
        if out.json { out.object(versus)? } else { versus.print(out)? }
    }
    let unfinished: u64 = results.iter().map(|r| r.errors).sum();
    match (unfinished, &args.records) {
        (0, _) => Ok(()),
        (n, Some(_)) => {
            Err(anyhow!("{n} meta-episodes could not be finished; run the command again to try them again"))
        }
        (n, None) => Err(anyhow!("{n} meta-episodes could not be finished; with --records only these are tried again")),
    }
}

/// Nobody plays by default, and a method alone plays nothing.
fn someone_plays(args: &EvalArgs) -> anyhow::Result<()> {
    if !args.policy.is_empty() || args.remote.endpoint.is_some() {
        return Ok(());
    }
    let asked = match args.method.as_slice() {
        [] => String::new(),
        methods => format!("{} asks a model: ", methods.join(", ")),
    };
    Err(usage(format!(
        "{asked}say who plays: --policy NAME, RUN or MODEL, or --endpoint URL and --model NAME for a model behind an endpoint"
    )))
}

/// What a picture is written as.
#[derive(Clone, Copy)]
enum Draw {
    Svg,
    Png,
}

impl Draw {
    /// As the file's name says.
    fn into(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_lowercase).as_deref() {
            Some("svg") => Ok(Draw::Svg),
            Some("png") => Ok(Draw::Png),
            _ => Err(usage(format!("--plot {}: pictures are written as .svg or .png", path.display()))),
        }
    }

    fn bytes(self, drawing: String) -> anyhow::Result<Vec<u8>> {
        Ok(match self {
            Draw::Svg => drawing.into_bytes(),
            Draw::Png => mage_report::Painter::default().png(&drawing)?,
        })
    }
}

/// A runtime that ends without waiting for those who wait for a network: a thread that asks for embeddings would wait for answers that
/// nobody fetches any more.
struct Unwaited(Option<Runtime>);

impl Unwaited {
    fn handle(&self) -> Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle().clone()
    }
}

impl Drop for Unwaited {
    fn drop(&mut self) {
        self.0.take().expect("it is dropped once").shutdown_background();
    }
}

/// Everything an evaluation has to say, for programs.
#[derive(Serialize)]
struct Summary<'a> {
    /// What this file's form is called.
    format: u32,
    env: &'a str,
    preset: Option<&'a str>,
    split: &'a str,
    unit: &'a str,
    episodes: u32,
    early_stop: bool,
    tasks: u64,
    seed: u64,
    seeds: u64,
    panel: Hash,
    population: Hash,
    ceilings: Option<&'a OracleReport>,
    entrants: &'a [Report<'a>],
    versus: &'a [Comparison<'a>],
}

/// Plays the panel with all seeds, or what is missing of it in the record file.
fn play(entrant: &EvalPolicy, records: Option<&Path>, out: &Output) -> anyhow::Result<Results> {
    let mut all = Results::default();
    let tasks = entrant.evaluations.first().map_or(0, |e| e.task_set.tasks().len());
    let bar = out.progress((tasks * entrant.evaluations.len()) as u64, "playing");
    let mut store = records.map(TrajectoryStore::open).transpose()?;
    if let Some(store) = store.as_ref().filter(|s| s.repaired_bytes() > 0) {
        out.warn(format!("{}: dropped a record that was half written", store.path().display()));
    }
    for (seed, evaluation) in entrant.evaluations.iter().enumerate() {
        let mut numbers: HashMap<_, usize> =
            evaluation.task_set.tasks().iter().enumerate().map(|(i, t)| (evaluation.key(i, t), i)).collect();
        // A task counts once, and only when it is finished.
        let mut each = |record: &Trajectory| {
            if record.error.is_some() {
                return;
            }
            if let Some(task) = numbers.remove(&record.key) {
                bar.inc(1);
                all.tally.add(record);
                all.played.extend(record.result().map(|result| Played { task, seed, result }));
            }
        };
        let outcome = match &mut store {
            None => evaluation.run(&mut each),
            Some(store) => {
                for record in read_trajectories(store.path())? {
                    each(&record?);
                }
                evaluation.run_into(store, &mut each)
            }
        };
        if let Err(e) = outcome {
            bar.finish_and_clear();
            let kept = records.map_or_else(
                || "nothing was kept; give --records FILE to go on from there".to_owned(),
                |path| format!("what was finished is in {}; run the command again to go on", path.display()),
            );
            if matches!(e, mage_train::Error::Interrupted) {
                out.hint(kept);
                return Err(Interrupted.into());
            }
            return Err(anyhow::Error::new(e).context(kept));
        }
        all.errors += numbers.len() as u64;
    }
    bar.finish_and_clear();
    Ok(all)
}
