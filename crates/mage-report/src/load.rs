//! Reads run directories, evaluation trajectories and summaries into a report.

use super::{
    ActionCounts, Report, ReportLimits, Transcript,
    action_counts::ActionCounter,
    comparison::{TaskResults, comparisons},
    input_files,
    lines::read_json,
    method_result::{CeilingCurves, MethodResult, MetricCurves, TokenBudget, compute_metrics, metrics_from_summary},
    paper_results,
    training_run::{self, OracleCeilings, TrainingRun},
    transcript::TranscriptSample,
};
use mage_core::{MetaEpisodeResult, MetricSummary, Trajectory};
use mage_env::{Hash, Seed};
use mage_train::{
    Result,
    eval::{agent_seed, store::read_trajectories},
    run_dir::{ModelAddress, RunDir},
    train::eval_seed,
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

/// The used fields of a file written by `mage eval --summary`.
#[derive(Deserialize)]
struct SummaryFile {
    env: String,
    preset: Option<String>,
    split: String,
    unit: String,
    episodes: u32,
    early_stop: bool,
    tasks: u64,
    task_set: Hash,
    seed: u64,
    seeds: u64,
    ceilings: Option<OracleCeilings>,
    policies: Vec<PolicySummary>,
}

#[derive(Deserialize)]
struct PolicySummary {
    name: String,
    policy: String,
    prompt_method: Option<String>,
    method: Hash,
    weights: String,
    /// Absent for scripted agents.
    sampling: Option<serde_json::Value>,
    /// Parsed only if there are no trajectories.
    summary: serde_json::Value,
    errors: u64,
}

/// Identifies a [`MethodResult`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ResultKey {
    env: String,
    task_set: String,
    method: String,
    ablation: Option<String>,
    policy: String,
    hash: Hash,
}

/// Description of trajectories by a summary file.
struct SummaryEntry {
    key: ResultKey,
    details: ResultDetails,
    errors: u64,
    summary: serde_json::Value,
    seeds: SeedLabels,
    file: String,
    /// Whether it belongs to a cell of a sweep, whose seeds are pooled.
    in_sweep: bool,
    /// Whether trajectories were found.
    has_trajectories: bool,
}

/// What a summary file states about a result.
#[derive(Clone, Default)]
struct ResultDetails {
    unit: String,
    episodes: u32,
    early_stop: bool,
    ceiling: Option<CeilingCurves>,
    budget: Option<TokenBudget>,
}

/// Maps the agent seed of a trajectory to the seed on the command line.
#[derive(Default)]
struct SeedLabels {
    /// The seed with which the policy was trained.
    trained: Option<u64>,
    seeds: HashMap<Seed, u64>,
}

/// Number of agent seeds up to which seeds are labelled.
const MAX_LABELLED_SEEDS: u64 = 1 << 18;

impl SeedLabels {
    fn new(trained: Option<u64>, first: u64, num_seeds: u64, tasks: u64) -> Self {
        let mut seeds = HashMap::new();
        if num_seeds.saturating_mul(tasks) <= MAX_LABELLED_SEEDS {
            for seed in (0..num_seeds).map(|i| first.wrapping_add(i)) {
                seeds.extend((0..tasks).map(|task| (agent_seed(eval_seed(seed), task as usize), seed)));
            }
        }
        SeedLabels { trained, seeds }
    }

    /// Label of a trajectory's seed; its hash if no summary describes the trajectory.
    fn label(&self, seed: Seed) -> String {
        let label = self
            .seeds
            .get(&seed)
            .map_or_else(|| format!("seed hash {}", &Hash::of(&seed).to_string()[..6]), |s| format!("seed {s}"));
        match self.trained {
            Some(trained) => format!("trained with seed {trained}, {label}"),
            None => label,
        }
    }
}

/// Accumulates the trajectories of one result.
struct ResultBuilder {
    details: ResultDetails,
    results: Vec<(usize, MetaEpisodeResult)>,
    failed: HashSet<Hash>,
    finished: HashSet<Hash>,
    actions: ActionCounter,
    transcripts: TranscriptSample,
    files: BTreeSet<String>,
}

impl ResultBuilder {
    fn new(limits: ReportLimits) -> Self {
        ResultBuilder {
            details: ResultDetails { unit: "score".to_owned(), ..ResultDetails::default() },
            results: Vec::new(),
            failed: HashSet::new(),
            finished: HashSet::new(),
            actions: ActionCounter::default(),
            transcripts: TranscriptSample::new(limits.transcripts),
            files: BTreeSet::new(),
        }
    }

    fn add(&mut self, trajectory: &Trajectory, task: usize, source: (&str, &SeedLabels), limits: ReportLimits) {
        let id = Hash::of(&trajectory.key);
        let Some(result) = trajectory.result() else {
            self.failed.insert(id);
            return;
        };
        if !self.finished.insert(id) {
            return;
        }
        self.details.episodes = self.details.episodes.max(result.episodes.len() as u32);
        self.details.early_stop |= result.stopped_after_win;
        self.actions.add(trajectory);
        let won = result.episodes.iter().any(|e| e.ending == mage_core::EpisodeEnding::Won);
        let (method, seeds) = source;
        self.transcripts
            .offer(id, won, || Transcript::new(trajectory, method, seeds.label(trajectory.key.seed), limits.text));
        self.results.push((task, result));
    }
}

/// Reads all inputs under the paths. Unreadable inputs are skipped with a note; a path that does not exist is an error.
pub fn load_report(paths: &[PathBuf], limits: ReportLimits) -> Result<Report> {
    let found = input_files::find(paths)?;
    let mut report = Report::default();
    let mut notes = Vec::new();
    for path in &found.unknown {
        notes.push(format!(
            "{}: not a run directory, and neither trajectories nor a summary of an evaluation; skipped",
            path.display()
        ));
    }
    let mut summaries = read_summaries(&found.summaries, &mut notes);
    let mut builders: BTreeMap<ResultKey, ResultBuilder> = BTreeMap::new();
    let mut tasks = HashMap::new();
    for path in &found.trajectories {
        read_store(path, &mut summaries, &mut builders, &mut tasks, limits, &mut notes)?;
    }
    if found.replaced > 0 {
        notes.push(format!("skipped {} superseded results of sweeps", found.replaced));
    }
    let mut transcripts = Vec::new();
    let mut omitted = 0;
    let mut task_results = Vec::new();
    for (key, builder) in builders {
        let errors = builder.failed.difference(&builder.finished).count() as u64;
        let (kept, seen) = builder.transcripts.finish();
        omitted += seen - kept.len() as u64;
        if builder.results.is_empty() {
            notes.push(format!("{} on {}: no finished meta-episode, {errors} failed", key.method, key.task_set));
            continue;
        }
        let index = report.results.len();
        transcripts.push(kept.into_iter().map(|t| Transcript { result: Some(index), ..t }).collect::<Vec<_>>());
        let metrics = compute_metrics(&builder.results, builder.details.episodes);
        let actions = builder.actions.finish();
        task_results.push(TaskResults { result: index, task_set: key.hash, results: builder.results });
        let files = builder.files.into_iter().collect();
        report.results.push(MethodResult { actions, files, ..method_result(key, builder.details, metrics, errors) });
    }
    report.comparisons = comparisons(&report.results, &task_results);
    let without_trajectories: Vec<SummaryEntry> = summaries.into_values().filter(|s| !s.has_trajectories).collect();
    for entry in without_trajectories {
        let summary: MetricSummary = match serde_json::from_value(entry.summary) {
            Ok(summary) => summary,
            Err(e) => {
                let (method, task_set) = (entry.key.method, entry.key.task_set);
                notes.push(format!(
                    "{method} on {task_set}: no trajectories, and the summary is of another version ({e}); skipped"
                ));
                continue;
            }
        };
        notes.push(format!("{} on {}: no trajectories; read from the summary", entry.key.method, entry.key.task_set));
        let metrics = metrics_from_summary(&summary);
        let files = vec![entry.file];
        report.results.push(MethodResult { files, ..method_result(entry.key, entry.details, metrics, entry.errors) });
    }
    for path in &found.runs {
        match training_run::read_run(path, &mut |note| notes.push(note)) {
            Ok(run) => report.runs.push(run),
            Err(e) => notes.push(format!("{e}; skipped")),
        }
    }
    report.runs.sort_by(|a, b| (&a.env, a.name(), a.seed, &a.path).cmp(&(&b.env, b.name(), b.seed, &b.path)));
    training_run::label_runs(&mut report.runs);
    for run in &report.runs {
        let (kept, seen) = training_transcripts(run, limits, &mut notes);
        omitted += seen - kept.len() as u64;
        transcripts.push(kept);
    }
    for run in report.runs.iter().filter(|r| !r.finished) {
        notes.push(format!("{}: in progress, {} of {} updates", run.path, run.updates, run.total_updates));
    }
    report.transcripts = limit_bytes(transcripts, limits.bytes, &mut omitted);
    if omitted > 0 {
        notes.push(format!("{omitted} more meta-episodes are included in all results but not in the transcripts"));
    }
    report.notes = notes;
    Ok(report)
}

/// A sample of the trajectories of a run's last stored update, and their number.
fn training_transcripts(run: &TrainingRun, limits: ReportLimits, notes: &mut Vec<String>) -> (Vec<Transcript>, u64) {
    let mut sample = TranscriptSample::new(limits.transcripts);
    let method = format!("{}, training, seed {}", run.label, run.seed);
    training_run::newest_trajectories(&run.dir, &mut |note| notes.push(note), |update, trajectory| {
        let seed = SeedLabels::default().label(trajectory.key.seed);
        let transcript =
            || Transcript { update: Some(update), ..Transcript::new(trajectory, &method, seed, limits.text) };
        let won = trajectory.episodes.iter().any(mage_core::episode::Episode::won);
        sample.offer(Hash::of(&trajectory.key), won, transcript);
    });
    sample.finish()
}

/// Finished runs whose policies Table 1 lacks: a run stores no trajectories on the paper's task sets, so these need an
/// evaluation.
pub fn unevaluated_runs(report: &Report) -> Vec<&TrainingRun> {
    let evaluated = |run: &&TrainingRun| {
        let same = |r: &&MethodResult| (&r.env, &r.method, &r.ablation) == (&run.env, &run.method, &run.ablation);
        report.results.iter().filter(same).any(|r| r.task_set == run.env)
    };
    let in_table = |run: &&TrainingRun| paper_results::ENVS.iter().any(|(env, _)| *env == run.env);
    report.runs.iter().filter(|r| r.finished).filter(in_table).filter(|r| !evaluated(r)).collect()
}

fn method_result(key: ResultKey, details: ResultDetails, metrics: MetricCurves, errors: u64) -> MethodResult {
    let ResultDetails { unit, episodes, early_stop, ceiling, budget } = details;
    MethodResult {
        env: key.env,
        task_set: key.task_set,
        task_set_hash: key.hash.to_string()[..8].to_owned(),
        files: Vec::new(),
        method: key.method,
        ablation: key.ablation,
        policy: key.policy,
        budget,
        unit,
        episodes,
        early_stop,
        meta_episodes: metrics.meta_episodes,
        tasks: metrics.tasks,
        errors,
        curve: metrics.curve,
        gain: metrics.gain,
        opponents: metrics.opponents,
        seats: metrics.seats,
        ceiling,
        actions: ActionCounts::default(),
    }
}

/// Takes transcripts from the lists in turn until the size limit is reached.
fn limit_bytes(lists: Vec<Vec<Transcript>>, bytes: usize, omitted: &mut u64) -> Vec<Transcript> {
    let mut remaining = bytes;
    let mut kept: Vec<(usize, Transcript)> = Vec::new();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    for _ in 0..longest {
        for (i, list) in lists.iter_mut().enumerate() {
            let Some(transcript) = list.next() else { continue };
            let size = serde_json::to_string(&transcript).map_or(0, |t| t.len());
            if size <= remaining {
                remaining -= size;
                kept.push((i, transcript));
            } else {
                *omitted += 1;
            }
        }
    }
    kept.sort_by_key(|(i, _)| *i);
    kept.into_iter().map(|(_, t)| t).collect()
}

/// Hash of the task set, hash of the method, weights.
type TrajectoryIdentity = (Hash, Hash, String);

fn read_summaries(files: &[PathBuf], notes: &mut Vec<String>) -> BTreeMap<TrajectoryIdentity, SummaryEntry> {
    let mut entries = BTreeMap::new();
    for path in files {
        let file: SummaryFile = match read_json(path) {
            Ok(file) => file,
            Err(problem) => {
                notes.push(format!("{}: {problem}; skipped", path.display()));
                continue;
            }
        };
        let cell = training_run::cell_info(path);
        // A preset is a task set of the paper and is identified by its name alone.
        let task_set = file.preset.clone().unwrap_or_else(|| format!("{} {}", file.env, file.split));
        let ceiling = file.ceilings.map(OracleCeilings::into_curves);
        for policy in file.policies {
            let (method, policy_name) = match &cell {
                Some(cell) => (cell.method.clone(), cell.policy.clone()),
                None => method_and_policy(&policy),
            };
            let key = ResultKey {
                env: file.env.clone(),
                task_set: task_set.clone(),
                method,
                ablation: cell.as_ref().and_then(|c| c.ablation.clone()),
                policy: policy_name,
                hash: file.task_set,
            };
            let identity = (file.task_set, policy.method, policy.weights);
            let is_run = policy.prompt_method.is_none() && policy.sampling.is_some();
            let trained = cell.as_ref().map(|c| c.seed).filter(|_| is_run);
            let entry = SummaryEntry {
                key,
                details: ResultDetails {
                    unit: file.unit.clone(),
                    episodes: file.episodes,
                    early_stop: file.early_stop,
                    ceiling: ceiling.clone(),
                    budget: policy.sampling.as_ref().and_then(TokenBudget::of_sampling),
                },
                errors: policy.errors,
                summary: policy.summary,
                seeds: SeedLabels::new(trained, file.seed, file.seeds, file.tasks),
                file: path.display().to_string(),
                in_sweep: cell.is_some(),
                has_trajectories: false,
            };
            entries.insert(identity, entry);
        }
    }
    distinguish(&mut entries);
    entries
}

/// Names the weights or the settings of evaluations that have the same name but differ in them.
fn distinguish(entries: &mut BTreeMap<TrajectoryIdentity, SummaryEntry>) {
    let mut by_key: BTreeMap<ResultKey, Vec<TrajectoryIdentity>> = BTreeMap::new();
    for (identity, entry) in entries.iter().filter(|(_, entry)| !entry.in_sweep) {
        by_key.entry(entry.key.clone()).or_default().push(identity.clone());
    }
    for identities in by_key.values().filter(|identities| identities.len() > 1) {
        let same_weights = identities.iter().all(|(_, _, weights)| *weights == identities[0].2);
        for identity in identities {
            let (_, method, weights) = identity;
            let hash = if same_weights { method.to_string() } else { Hash::of(weights).to_string() };
            let what = if same_weights { "settings" } else { "weights" };
            if let Some(entry) = entries.get_mut(identity) {
                entry.key.policy += &format!(" [{what} {}]", &hash[..6]);
            }
        }
    }
}

/// Method and policy of an evaluation without a sweep cell. The method of a scripted agent is its own name, whatever
/// prompt method was selected: it does not represent that method.
fn method_and_policy(policy: &PolicySummary) -> (String, String) {
    if policy.sampling.is_none() {
        return (policy.policy.clone(), "scripted".to_owned());
    }
    let canonical = |name: &str| paper_results::canonical_name(name).map_or_else(|| name.to_owned(), str::to_owned);
    let run = ModelAddress::resolve(&policy.policy).ok().flatten().and_then(|address| address.run);
    match (&policy.prompt_method, run.and_then(|run| RunDir::recipe(&run).ok())) {
        (Some(method), _) => (canonical(method), policy.policy.clone()),
        (None, Some(recipe)) => (training_run::method_name(&recipe), policy.policy.clone()),
        (None, None) => (policy.name.clone(), "trained policy".to_owned()),
    }
}

fn read_store(
    path: &Path,
    summaries: &mut BTreeMap<TrajectoryIdentity, SummaryEntry>,
    builders: &mut BTreeMap<ResultKey, ResultBuilder>,
    tasks: &mut HashMap<Hash, usize>,
    limits: ReportLimits,
    notes: &mut Vec<String>,
) -> Result<()> {
    let mut damaged = 0;
    let no_seeds = SeedLabels::default();
    for trajectory in read_trajectories(path)? {
        let trajectory = match trajectory {
            Ok(trajectory) => trajectory,
            Err(e @ mage_train::Error::Line { .. }) => {
                damaged += 1;
                if damaged == 1 {
                    notes.push(format!("{e} (skipped)"));
                }
                continue;
            }
            Err(e) => return Err(e),
        };
        let identity = (trajectory.key.task_set, trajectory.key.method, trajectory.key.weights.clone());
        let mut summary = summaries.get_mut(&identity);
        let key = summary.as_ref().map_or_else(|| key_without_summary(&trajectory), |s| s.key.clone());
        let method = key.ablation.as_ref().map_or_else(|| key.method.clone(), |a| format!("{}, {a}", key.method));
        let builder = builders.entry(key).or_insert_with(|| ResultBuilder::new(limits));
        if let Some(summary) = summary.as_mut().filter(|s| !s.has_trajectories) {
            summary.has_trajectories = true;
            let (before, details) = (&mut builder.details, summary.details.clone());
            let (early_stop, episodes) =
                (before.early_stop | details.early_stop, before.episodes.max(details.episodes));
            *before = ResultDetails { early_stop, episodes, ..details };
        }
        builder.files.insert(path.display().to_string());
        let next = tasks.len();
        let task = *tasks.entry(trajectory.key.task).or_insert(next);
        builder.add(&trajectory, task, (&method, summary.map_or(&no_seeds, |s| &s.seeds)), limits);
    }
    if damaged > 1 {
        notes.push(format!("{}: skipped {} more damaged lines", path.display(), damaged - 1));
    }
    Ok(())
}

fn key_without_summary(trajectory: &Trajectory) -> ResultKey {
    ResultKey {
        env: trajectory.task.env.to_string(),
        task_set: format!("{} {}", trajectory.task.env, &trajectory.key.task_set.to_string()[..8]),
        method: format!("{} #{}", trajectory.key.weights, &trajectory.key.method.to_string()[..6]),
        ablation: None,
        policy: "unknown (no summary)".to_owned(),
        hash: trajectory.key.task_set,
    }
}
