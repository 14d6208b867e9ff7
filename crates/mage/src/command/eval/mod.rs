//! `mage eval`: evaluation of policies on a fixed task set.

mod ceilings;
mod comparison;
mod policies;
mod preset;
mod progress;
mod report;
mod request_stats;
mod setup;

pub(crate) use ceilings::CeilingCache;
pub(crate) use preset::{check_preset, preset_names};
pub(crate) use report::sampling_line;

use super::train::stop_on_ctrl_c;
use crate::{App, cli::EvalArgs, interrupt::Interrupted, output::Output, output::write_file, usage};
use anyhow::anyhow;
use comparison::PolicyComparison;
use mage_core::{MetaEpisodeResult, Trajectory};
use mage_env::{Hash, solvers::OracleReport};
use mage_train::{
    eval::store::{TrajectoryStore, read_trajectories},
    train::runtime,
};
use policies::{EvalPolicy, policies, prices};
use progress::EvalProgress;
use report::PolicyReport;
use request_stats::RequestStats;
use serde::Serialize;
use setup::EvalSetup;
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, atomic::AtomicU8},
};
use tokio::runtime::{Handle, Runtime};

/// Result of one meta-episode.
pub(super) struct FinishedMetaEpisode {
    /// Index of the task in the task set.
    task: usize,
    /// Index of the seed.
    seed: usize,
    result: MetaEpisodeResult,
}

/// Results of one policy.
#[derive(Default)]
pub(super) struct PolicyResults {
    finished: Vec<FinishedMetaEpisode>,
    requests: RequestStats,
    /// Number of failed meta-episodes by reason.
    failures: BTreeMap<String, u64>,
}

impl PolicyResults {
    /// Number of failed meta-episodes.
    fn errors(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The selected results, each with the index of its task.
    fn by_task(&self, select: impl Fn(&FinishedMetaEpisode) -> bool) -> Vec<(usize, MetaEpisodeResult)> {
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
        return preset::list(out);
    }
    let mut args = args.clone();
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
    check_policies(app, args)?;
    let prices = prices(&args.remote)?;
    let setup = EvalSetup::new(app, args, stop, out)?;
    let runtime = BackgroundRuntime(Some(runtime(0)?));
    let all = out.engine_spinner(|| policies(args, &setup, &runtime.handle(), out))?;
    let mut results = Vec::new();
    for policy in &all {
        results.push(evaluate(policy, &runtime.handle(), args.trajectories.as_deref(), out)?);
    }
    let ceilings = {
        let work = || cache.of(&*setup.env.env_spec, &setup.env.population, &setup.split, setup.episodes);
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
        .map(|(policy, results)| PolicyReport::new(args, &setup, policy, results, ceilings.as_ref(), prices))
        .collect();
    let comparisons: Vec<PolicyComparison<'_>> = (1..all.len())
        .map(|i| {
            let [first, second] = [0, i].map(|i| (all[i].name.as_str(), &results[i]));
            PolicyComparison::new(first, second, setup.episodes, setup.seeds)
        })
        .collect();
    let printed = print_results(&reports, &comparisons, out);
    // Files are written after the results are printed, so that a full disk does not lose them, and also if stdout is
    // closed.
    if let Some(path) = &args.summary {
        let unit = setup.env.env_spec.info().unit;
        let summary = EvalSummary {
            format: 3,
            env: &setup.env_name,
            preset: args.preset.as_deref(),
            split: &setup.split,
            unit: &unit,
            episodes: setup.episodes,
            early_stop: args.early_stop,
            tasks: setup.tasks,
            seed: setup.seed,
            seeds: setup.seeds,
            task_set: setup.task_set.hash(),
            population: Hash::of(&setup.env.population),
            ceilings: ceilings.as_ref(),
            policies: &reports,
            comparisons: &comparisons,
        };
        let text = serde_json::to_string_pretty(&summary)? + "\n";
        write_file(path, text.as_bytes())?;
        out.hint(format!("summary: {}", path.display()));
    }
    if let (Some(path), Some(format)) = (&args.plot, plot_format) {
        let bytes = format.encode(report::plot(&reports, args.early_stop))?;
        write_file(path, &bytes)?;
        out.hint(format!("plot: {}", path.display()));
    }
    printed?;
    failure_error(&results, args.trajectories.is_some()).map_or(Ok(()), Err)
}

/// Prints all tables, or with `--json` one object per policy and comparison.
fn print_results(
    reports: &[PolicyReport<'_>],
    comparisons: &[PolicyComparison<'_>],
    out: &Output,
) -> anyhow::Result<()> {
    if out.json {
        reports.iter().try_for_each(|report| out.object(report))?;
        return comparisons.iter().try_for_each(|comparison| out.object(comparison));
    }
    if reports.len() > 1 {
        out.line(report::summary_table(reports) + "\n")?;
    }
    reports.iter().enumerate().try_for_each(|(i, report)| report.print(out, i > 0))?;
    if let Some(text) = report::setting_differences(reports) {
        out.line(format!("\n{text}"))?;
    }
    comparisons.iter().try_for_each(|comparison| comparison.print(out))
}

/// The error of an evaluation with failed meta-episodes: their number, the most frequent reason, and how to retry them.
fn failure_error(results: &[PolicyResults], stored: bool) -> Option<anyhow::Error> {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for (reason, count) in results.iter().flat_map(|r| &r.failures) {
        *reasons.entry(reason).or_default() += count;
    }
    let failed: u64 = reasons.values().sum();
    let (reason, count) = reasons.iter().max_by_key(|(_, count)| **count)?;
    let reason = if *count == failed { (*reason).to_owned() } else { format!("{count} of them: {reason}") };
    let retry = match stored {
        true => "once the cause is removed, run the command again to retry them",
        false => "with --trajectories FILE, the same command retries only these",
    };
    let plural = if failed == 1 { "" } else { "s" };
    Some(anyhow!("{failed} meta-episode{plural} failed: {reason}; {retry}"))
}

/// There is no default policy, and a prompt method needs a model.
fn check_policies(app: &App, args: &EvalArgs) -> anyhow::Result<()> {
    if !args.policies.is_empty() || args.remote.endpoint.is_some() {
        return Ok(());
    }
    let reason = match args.method.as_slice() {
        [] => "no policy",
        _ => "--method requires a model",
    };
    let env_spec = app.registry.get(args.env.as_deref().unwrap_or("kuhn")).map_err(usage)?;
    let agents: Vec<String> = env_spec.scripted_agents().into_iter().map(|agent| agent.name).collect();
    Err(usage(format!(
        "{reason}: name a scripted agent (random, {}), a run (`mage runs` lists them) or a model, or add --endpoint URL \
         and --model NAME for a model behind an endpoint",
        agents.join(", ")
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
fn evaluate(
    policy: &EvalPolicy,
    runtime: &Handle,
    trajectories: Option<&Path>,
    out: &Output,
) -> anyhow::Result<PolicyResults> {
    let mut all = PolicyResults::default();
    let tasks = policy.evaluators.first().map_or(0, |e| e.task_set.tasks().len());
    let total = (tasks * policy.evaluators.len()) as u64;
    let named = &policy.evaluators[0].policy;
    let counter = named.decoding.is_some().then_some(&named.counter);
    let progress = EvalProgress::start(*out, &policy.name, total, counter, &policy.clients, runtime);
    let mut store = trajectories.map(TrajectoryStore::open).transpose()?;
    if let Some(store) = store.as_ref().filter(|s| s.repaired_bytes() > 0) {
        out.warn(format!("{}: removed an incomplete line at the end", store.path().display()));
    }
    for (seed, evaluator) in policy.evaluators.iter().enumerate() {
        // The last failure of each unfinished task.
        let mut failed: HashMap<usize, String> = HashMap::new();
        let mut finished = vec![false; tasks];
        let mut add = |task: usize, trajectory: &Trajectory, resumed: bool| {
            if let Some(problem) = &trajectory.error {
                progress.failed();
                failed.insert(task, problem.clone());
            } else if !std::mem::replace(&mut finished[task], true) {
                // A task counts once.
                failed.remove(&task);
                progress.finished(resumed);
                all.requests.add(trajectory);
                all.finished.extend(trajectory.result().map(|result| FinishedMetaEpisode { task, seed, result }));
            }
        };
        let outcome = match &mut store {
            None => evaluator.run(runtime, |task, trajectory| add(task, &trajectory, false)),
            Some(store) => {
                let tasks: HashMap<_, usize> = (0..tasks).map(|i| (evaluator.key(i), i)).collect();
                for trajectory in read_trajectories(store.path())? {
                    let trajectory = trajectory?;
                    if let Some(task) = tasks.get(&trajectory.key).filter(|_| trajectory.error.is_none()) {
                        add(*task, &trajectory, true);
                    }
                }
                evaluator.run_into(runtime, store, |task, trajectory| add(task, &trajectory, false))
            }
        };
        if let Err(e) = outcome {
            drop(progress);
            let resume = trajectories.map_or_else(
                || "no results were stored; use --trajectories FILE to be able to resume".to_owned(),
                |path| format!("finished meta-episodes are in {}; run the command again to resume", path.display()),
            );
            if matches!(e, mage_train::Error::Interrupted) {
                out.hint(resume);
                return Err(Interrupted.into());
            }
            if e.is_rejection() {
                return Err(anyhow::Error::new(e)
                    .context("the endpoint refuses requests; check --endpoint, --model and the API key"));
            }
            return Err(anyhow::Error::new(e).context(resume));
        }
        for problem in failed.into_values() {
            *all.failures.entry(problem).or_default() += 1;
        }
    }
    Ok(all)
}
