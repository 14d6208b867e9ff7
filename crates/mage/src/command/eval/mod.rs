//! `mage eval`: evaluation of policies on a fixed task set.

mod ceilings;
mod comparison;
mod policies;
mod preset;
mod report;
mod request_stats;

pub(crate) use ceilings::CeilingCache;

use super::train::stop_on_ctrl_c;
use crate::{
    App, cli::EvalArgs, interrupt::Interrupted, output::Output, task_selection::print_warnings, task_selection::select,
    usage,
};
use anyhow::{Context, anyhow};
use comparison::PolicyComparison;
use mage_core::{Bootstrap, MetaEpisodeResult, Trajectory};
use mage_env::{Hash, Seed, solvers::OracleReport};
use mage_train::{
    TaskSet,
    eval::runtime,
    eval::store::{TrajectoryStore, read_trajectories},
};
use policies::{EvalPolicy, EvalSetup, policies, prices};
use report::PolicyReport;
use request_stats::RequestStats;
use serde::Serialize;
use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, atomic::AtomicU8},
};
use tokio::runtime::{Handle, Runtime};

/// Result of one meta-episode.
pub(super) struct FinishedTask {
    /// Index of the task in the task set.
    task: usize,
    /// Index of the seed.
    seed: usize,
    result: MetaEpisodeResult,
}

/// Results of one policy.
#[derive(Default)]
pub(super) struct PolicyResults {
    finished: Vec<FinishedTask>,
    requests: RequestStats,
    /// Number of failed meta-episodes.
    errors: u64,
}

impl PolicyResults {
    /// The selected results, each with the index of its task.
    fn by_task(&self, select: impl Fn(&FinishedTask) -> bool) -> Vec<(usize, MetaEpisodeResult)> {
        self.finished.iter().filter(|r| select(r)).map(|r| (r.task, r.result.clone())).collect()
    }
}

pub(crate) fn run(app: &App, args: &EvalArgs, out: &Output) -> anyhow::Result<()> {
    let stop = stop_on_ctrl_c("stopping; press Ctrl-C again to stop immediately")?;
    run_until(app, args, out, &stop, &CeilingCache::default())
}

/// Runs an evaluation until it is finished or `stop` is not 0.
pub(crate) fn run_until(
    app: &App,
    args: &EvalArgs,
    out: &Output,
    stop: &Arc<AtomicU8>,
    cache: &CeilingCache,
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
    let plot_format = args.plot.as_deref().map(PlotFormat::of_path).transpose()?;
    // Checked here rather than after the evaluation.
    for path in [&args.plot, &args.summary].into_iter().flatten() {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|p| !p.is_dir()) {
            return Err(usage(format!("{}: the directory {} does not exist", path.display(), folder.display())));
        }
    }
    check_policies(args)?;
    let (env_spec, population) = select(app, &args.env, &args.selection)?;
    let (env_info, split) = (env_spec.info(), args.selection.split());
    print_warnings(&*env_spec, &population, split, out)?;
    let max_turns = match args.max_turns {
        Some(turns) => turns,
        None => env_spec.max_turns(&population, split)?,
    };
    let prices = prices(&args.remote)?;
    let seed = Seed::new(args.seed);
    let task_set = TaskSet::new(&population, split, env_info.seats, usize::try_from(args.tasks)?, seed)?;
    let task_set = task_set.without_replacement(&*env_spec, seed)?;
    let setup = EvalSetup {
        env_spec,
        population,
        prompts: app.prompts.get(&args.env)?,
        task_set,
        max_turns,
        stop: Arc::clone(stop),
    };
    let runtime = BackgroundRuntime(Some(runtime(0)?));
    let all = out.engine_spinner(|| policies(args, &setup, &runtime.handle()))?;
    // Building a task reads the files that the options name, so that errors are reported before the evaluation.
    if let Some(task) = setup.task_set.tasks().first() {
        setup.env_spec.build(task)?;
    }
    let mut results = Vec::new();
    for policy in &all {
        results.push(evaluate(policy, args.trajectories.as_deref(), out)?);
    }
    let ceilings = {
        let (env_spec, population) = (&setup.env_spec, &setup.population);
        let work = || cache.of(&**env_spec, population, split, args.episodes);
        let ceilings = out.spinner("computing upper bounds", work);
        // The results are reported without upper bounds.
        ceilings.unwrap_or_else(|e| {
            out.warn(format!("cannot compute upper bounds: {e}"));
            None
        })
    };
    if args.early_stop && ceilings.is_some() {
        out.hint(
            "With --early-stop, scores have no upper bounds: bounds cover all tasks, later episodes only the tasks not yet won.",
        );
    }
    let reports: Vec<PolicyReport<'_>> = all
        .iter()
        .zip(&results)
        .map(|(policy, results)| PolicyReport::new(args, policy, &env_info.unit, results, ceilings.as_ref(), prices))
        .collect();
    // The same resampling as in `mage report`, so that both give equal intervals.
    let bootstrap = Bootstrap::default();
    let comparisons: Vec<PolicyComparison<'_>> = (1..all.len())
        .map(|i| {
            let [first, second] = [0, i].map(|i| (all[i].name.as_str(), &results[i]));
            PolicyComparison::new(first, second, args.episodes, args.seeds, bootstrap)
        })
        .collect();
    if let (Some(path), Some(format)) = (&args.plot, plot_format) {
        let bytes = format.encode(report::plot(&reports, args.early_stop))?;
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        out.hint(format!("plot: {}", path.display()));
    }
    if let Some(path) = &args.summary {
        let summary = EvalSummary {
            format: 3,
            env: &args.env,
            preset: args.preset.as_deref(),
            split,
            unit: &env_info.unit,
            episodes: args.episodes,
            early_stop: args.early_stop,
            tasks: args.tasks,
            seed: args.seed,
            seeds: args.seeds,
            task_set: setup.task_set.hash(),
            population: Hash::of(&setup.population),
            ceilings: ceilings.as_ref(),
            policies: &reports,
            comparisons: &comparisons,
        };
        let text = serde_json::to_string_pretty(&summary)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        out.hint(format!("summary: {}", path.display()));
    }
    for report in &reports {
        if out.json { out.object(report)? } else { report.print(out)? }
    }
    for comparison in &comparisons {
        if out.json { out.object(comparison)? } else { comparison.print(out)? }
    }
    let failed: u64 = results.iter().map(|r| r.errors).sum();
    match (failed, &args.trajectories) {
        (0, _) => Ok(()),
        (n, Some(_)) => Err(anyhow!("{n} meta-episodes failed; run the command again to retry them")),
        (n, None) => {
            Err(anyhow!("{n} meta-episodes failed; with --trajectories FILE, the same command retries only these"))
        }
    }
}

/// There is no default policy, and a prompt method needs a model.
fn check_policies(args: &EvalArgs) -> anyhow::Result<()> {
    if !args.policy.is_empty() || args.remote.endpoint.is_some() {
        return Ok(());
    }
    let reason = match args.method.as_slice() {
        [] => "no policy",
        _ => "--method requires a model",
    };
    Err(usage(format!(
        "{reason}: add --policy NAME, RUN or MODEL, or --endpoint URL and --model NAME for a model behind an endpoint"
    )))
}

/// File format of a plot.
#[derive(Clone, Copy)]
enum PlotFormat {
    Svg,
    Png,
}

impl PlotFormat {
    /// The format of the file's extension.
    fn of_path(path: &Path) -> anyhow::Result<Self> {
        match path.extension().and_then(|e| e.to_str()).map(str::to_lowercase).as_deref() {
            Some("svg") => Ok(PlotFormat::Svg),
            Some("png") => Ok(PlotFormat::Png),
            _ => Err(usage(format!("--plot {}: expected a file name that ends with .svg or .png", path.display()))),
        }
    }

    fn encode(self, svg: String) -> anyhow::Result<Vec<u8>> {
        Ok(match self {
            PlotFormat::Svg => svg.into_bytes(),
            PlotFormat::Png => mage_report::PngRenderer::default().png(&svg)?,
        })
    }
}

/// A runtime that shuts down in the background: a blocking thread that awaits embeddings would otherwise delay the
/// exit.
struct BackgroundRuntime(Option<Runtime>);

impl BackgroundRuntime {
    fn handle(&self) -> Handle {
        self.0.as_ref().expect("present until drop").handle().clone()
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        self.0.take().expect("dropped once").shutdown_background();
    }
}

/// Contents of the file written by `--summary`.
#[derive(Serialize)]
struct EvalSummary<'a> {
    /// Version of the file format.
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
    task_set: Hash,
    population: Hash,
    ceilings: Option<&'a OracleReport>,
    policies: &'a [PolicyReport<'a>],
    comparisons: &'a [PolicyComparison<'a>],
}

/// Evaluates the task set with all seeds, except for meta-episodes that are already in the file.
fn evaluate(policy: &EvalPolicy, trajectories: Option<&Path>, out: &Output) -> anyhow::Result<PolicyResults> {
    let mut all = PolicyResults::default();
    let tasks = policy.evaluations.first().map_or(0, |e| e.task_set.tasks().len());
    let bar = out.progress((tasks * policy.evaluations.len()) as u64, "evaluating");
    let mut store = trajectories.map(TrajectoryStore::open).transpose()?;
    if let Some(store) = store.as_ref().filter(|s| s.repaired_bytes() > 0) {
        out.warn(format!("{}: removed an incomplete record at the end", store.path().display()));
    }
    for (seed, evaluation) in policy.evaluations.iter().enumerate() {
        let mut pending: HashMap<_, usize> =
            evaluation.task_set.tasks().iter().enumerate().map(|(i, t)| (evaluation.key(i, t), i)).collect();
        // A task counts once, when it is finished.
        let mut each = |record: &Trajectory| {
            if record.error.is_some() {
                return;
            }
            if let Some(task) = pending.remove(&record.key) {
                bar.inc(1);
                all.requests.add(record);
                all.finished.extend(record.result().map(|result| FinishedTask { task, seed, result }));
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
            let resume = trajectories.map_or_else(
                || "no results were stored; use --trajectories FILE to be able to resume".to_owned(),
                |path| format!("finished meta-episodes are in {}; run the command again to resume", path.display()),
            );
            if matches!(e, mage_train::Error::Interrupted) {
                out.hint(resume);
                return Err(Interrupted.into());
            }
            return Err(anyhow::Error::new(e).context(resume));
        }
        all.errors += pending.len() as u64;
    }
    bar.finish_and_clear();
    Ok(all)
}
