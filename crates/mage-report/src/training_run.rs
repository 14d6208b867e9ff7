//! Training runs: metrics by update, evaluations and recent trajectories.

use super::{
    lines::{read_json, read_lines},
    method_result::CeilingCurves,
};
use mage_core::{ConfidenceInterval, MeanEstimate, Method, Trajectory};
use mage_env::Hash;
use mage_train::{
    Error, Result,
    recipe::{Recipe, key_values},
    run_dir::{RunDir, last_episode_optima},
    sweep::CellInfo,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingRun {
    /// Run directory.
    pub path: String,
    /// The same, with characters that are not UTF-8.
    #[serde(skip)]
    pub(super) dir: PathBuf,
    /// Name in figures and tables: the method; if runs of a method differ in more than the seed, also the run and the
    /// differing recipe keys.
    pub label: String,
    /// Recipe keys with their values, without the seed.
    #[serde(skip)]
    pub(super) recipe: BTreeMap<String, String>,
    /// Hash of the population, if the run has its file.
    #[serde(skip)]
    pub(super) population: Option<Hash>,
    /// Environment.
    pub env: String,
    /// Method.
    pub method: String,
    /// Deviation from the method, in ablations.
    pub ablation: Option<String>,
    /// Seed of the run.
    pub seed: u64,
    /// Unit of the score.
    pub unit: String,
    /// Number of completed updates.
    pub updates: u64,
    /// Number of updates of the recipe.
    pub total_updates: u64,
    /// Whether the run is finished.
    pub finished: bool,
    /// Score of the last episode on the run's task set, by update.
    pub eval_curve: Vec<EvalPoint>,
    /// Metrics of the updates, and the seconds of their phases as `seconds/PHASE`.
    #[serde(skip)]
    pub(super) metrics: BTreeMap<String, MetricByUpdate>,
    /// Memoryless and Bayes-adaptive optimum of the last episode, if known.
    pub last_episode_ceiling: Option<(f64, f64)>,
    /// By episode: score before training, after training, and after training without memory.
    pub episode_scores: Vec<[Option<MeanEstimate>; 3]>,
    /// Upper limits by episode.
    pub ceiling: Option<CeilingCurves>,
}

/// Values of a metric by update.
pub(super) type MetricByUpdate = BTreeMap<u64, f64>;

/// Evaluation of a run at one update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvalPoint {
    /// Number of completed updates.
    pub update: u64,
    /// Mean score.
    pub score: f64,
    /// Standard error of the score.
    pub se: f64,
}

impl EvalPoint {
    /// The score with a 95 % interval.
    pub fn estimate(&self) -> MeanEstimate {
        let half = 1.96 * self.se;
        let interval = (half > 0.0).then_some(ConfidenceInterval { low: self.score - half, high: self.score + half });
        MeanEstimate { count: 0, mean: Some(self.score), se: Some(self.se), interval }
    }
}

#[derive(Deserialize)]
struct EvalScores {
    score: Vec<MeanEstimate>,
}

/// The used fields of `result.json`.
#[derive(Deserialize)]
struct RunResult {
    unit: String,
    updates: Option<u64>,
    before: Option<EvalScores>,
    after: Option<EvalScores>,
    without_memory: Option<EvalScores>,
    ceilings: Option<OracleCeilings>,
}

/// The used fields of an oracle's report.
#[derive(Deserialize)]
pub(super) struct OracleCeilings {
    mean: MeanCeilings,
    #[serde(default)]
    episodes: u32,
    #[serde(default)]
    seats: Vec<SeatGaps>,
    #[serde(default)]
    sampled_opponents: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct MeanCeilings {
    memoryless: Vec<f64>,
    sum: BayesAdaptiveCurve,
    #[serde(default)]
    pass_at_k: Vec<f64>,
    #[serde(default)]
    best_response: Vec<OpponentValue>,
}

#[derive(Deserialize)]
struct BayesAdaptiveCurve {
    by_episode: Vec<f64>,
}

#[derive(Deserialize)]
struct OpponentValue {
    name: String,
    value: f64,
}

#[derive(Deserialize)]
struct SeatGaps {
    last_gap: f64,
    sum_gap: f64,
}

impl OracleCeilings {
    pub(super) fn into_curves(self) -> CeilingCurves {
        let max_gap = |s: &SeatGaps| s.last_gap.max(s.sum_gap / f64::from(self.episodes.max(1)));
        CeilingCurves {
            error: self.seats.iter().map(max_gap).fold(0.0, f64::max),
            estimated: !self.sampled_opponents.is_empty(),
            memoryless: self.mean.memoryless,
            bayes_adaptive: self.mean.sum.by_episode,
            pass_at_k: self.mean.pass_at_k,
            best_response: self.mean.best_response.into_iter().map(|o| (o.name, o.value)).collect(),
        }
    }
}

/// The sweep cell that a file or directory belongs to, from the `cell.json` in the same directory.
pub(super) fn cell_info(path: &Path) -> Option<CellInfo> {
    read_json(&path.parent()?.join("cell.json")).ok()
}

/// The name of a recipe's method, or `custom` if it matches none of the named methods.
pub(super) fn method_name(recipe: &Recipe) -> String {
    let matches = |name: &&str| {
        Method::named(name).is_ok_and(|mut m| {
            // These are environment settings, which do not identify a method.
            m.credit.gamma_step = recipe.method.credit.gamma_step;
            m.credit.gamma_traj = recipe.method.credit.gamma_traj;
            m.credit.omit_previous_return = recipe.method.credit.omit_previous_return;
            m == recipe.method
        })
    };
    let name = Method::NAMES.into_iter().find(matches).unwrap_or("custom");
    super::paper_results::canonical_name(name).map_or_else(|| name.replace('_', "-"), str::to_owned)
}

/// Reads a run. Problems with its files are passed to `note`.
pub fn read_run(path: &Path, note: &mut dyn FnMut(String)) -> Result<TrainingRun> {
    let recipe = RunDir::recipe(path)?;
    let cell = cell_info(path);
    let mut metrics = read_metrics(&path.join("metrics.jsonl"), "", note)?;
    let of_eval = |metric: &str| format!("eval/episode_{}/{metric}", recipe.eval.episodes);
    let (scores, errors) = (metrics.get(&of_eval("score")), metrics.get(&of_eval("se")));
    let se = |update: &u64| errors.and_then(|errors| errors.get(update)).copied().unwrap_or(0.0);
    let mut eval_curve: Vec<EvalPoint> = scores
        .into_iter()
        .flatten()
        .map(|(update, score)| EvalPoint { update: *update, score: *score, se: se(update) })
        .collect();
    let updates = metrics.get("update").and_then(|all| all.keys().last()).copied().unwrap_or(0);
    metrics.extend(read_metrics(&path.join("timing.jsonl"), "seconds/", note)?);
    let result = read_result(&path.join("result.json"), note);
    let unit = result.as_ref().map_or_else(|| "score".to_owned(), |r| r.unit.clone());
    // A result of fewer updates is that of the run before its recipe was extended.
    let finished = updates >= recipe.optim.updates && result.as_ref().is_some_and(|r| r.after.is_some());
    let score_of = |scores: Option<&EvalScores>, n: usize| scores.and_then(|s| s.score.get(n)).copied();
    let mut episode_scores = Vec::new();
    if let Some(r) = &result {
        let episodes = r.after.as_ref().map_or(0, |s| s.score.len());
        episode_scores.extend(
            (0..episodes)
                .map(|n| [r.before.as_ref(), r.after.as_ref(), r.without_memory.as_ref()].map(|s| score_of(s, n))),
        );
        let ends = [(0, r.before.as_ref()), (r.updates.unwrap_or(updates), r.after.as_ref())];
        for (update, scores) in ends {
            let last = scores.and_then(|s| s.score.last());
            if let Some((last, score)) = last.and_then(|e| Some((e, e.mean?))) {
                // The final evaluation has more tasks than that of the last update.
                eval_curve.retain(|point| point.update != update);
                eval_curve.push(EvalPoint { update, score, se: last.se.unwrap_or(0.0) });
            }
        }
        eval_curve.sort_by_key(|point| point.update);
    }
    let ceiling = result.and_then(|r| r.ceilings).map(OracleCeilings::into_curves);
    let last_episode_ceiling = ceiling.as_ref().and_then(|c| Some((*c.memoryless.last()?, *c.bayes_adaptive.last()?)));
    let last_episode_ceiling = last_episode_ceiling.or_else(|| last_episode_optima(path));
    let method = cell.as_ref().map_or_else(|| method_name(&recipe), |c| c.method.clone());
    let mut keys = key_values(&recipe);
    keys.remove("seed");
    Ok(TrainingRun {
        path: path.display().to_string(),
        dir: path.to_owned(),
        label: method.clone(),
        recipe: keys,
        population: RunDir::population(path).ok().map(|population| Hash::of(&population)),
        env: cell.as_ref().map_or_else(|| recipe.env.name.clone(), |c| c.env.clone()),
        method,
        ablation: cell.and_then(|c| c.ablation),
        seed: recipe.seed,
        unit,
        updates,
        total_updates: recipe.optim.updates,
        finished,
        eval_curve,
        metrics,
        last_episode_ceiling,
        episode_scores,
        ceiling,
    })
}

fn read_result(file: &Path, note: &mut dyn FnMut(String)) -> Option<RunResult> {
    if !file.exists() {
        return None;
    }
    match read_json(file) {
        Ok(result) => Some(result),
        Err(e) => {
            note(format!("{}: {e}; the run is reported as in progress", file.display()));
            None
        }
    }
}

/// The metrics of all updates in a file, with a prefix to their names. The last line of an update replaces earlier ones:
/// an interrupted run repeats updates.
fn read_metrics(file: &Path, prefix: &str, note: &mut dyn FnMut(String)) -> Result<BTreeMap<String, MetricByUpdate>> {
    let mut metrics: BTreeMap<String, MetricByUpdate> = BTreeMap::new();
    let opened = match File::open(file) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(metrics),
        opened => opened.map_err(Error::io(file))?,
    };
    let mut damaged = Vec::new();
    let read = read_lines(BufReader::new(opened), |number, line| {
        match serde_json::from_str::<BTreeMap<String, Option<f64>>>(line) {
            Err(e) => damaged.push(format!("line {number}: {e}")),
            Ok(line) => {
                let Some(update) = line.get("update").copied().flatten() else { return };
                let values = line.into_iter().filter_map(|(key, value)| Some((format!("{prefix}{key}"), value?)));
                values.for_each(|(key, value)| _ = metrics.entry(key).or_default().insert(update as u64, value));
            }
        }
    });
    damaged.extend(read.err());
    if let Some(first) = damaged.first() {
        let more = if damaged.len() > 1 { format!(", and {} more", damaged.len() - 1) } else { String::new() };
        note(format!("{}, {first}{more}; skipped", file.display()));
    }
    Ok(metrics)
}

/// Calls `each` with the trajectories of the last update for which the run stored any, and with that update.
pub(super) fn newest_trajectories(run: &Path, note: &mut dyn FnMut(String), mut each: impl FnMut(u64, &Trajectory)) {
    #[derive(Deserialize)]
    struct StoredTrajectory {
        trajectory: Trajectory,
    }
    let files = fs::read_dir(run.join("trajectories")).into_iter().flatten();
    let by_update = files.filter_map(|entry| {
        let path = entry.ok()?.path();
        let update: u64 = path.file_name()?.to_str()?.strip_suffix(".jsonl.zst")?.parse().ok()?;
        Some((update, path))
    });
    let Some((update, newest)) = by_update.max() else { return };
    let mut read = || -> std::result::Result<(), String> {
        let file = File::open(&newest).map_err(|e| e.to_string())?;
        let decoder = ruzstd::decoding::StreamingDecoder::new(file).map_err(|e| e.to_string())?;
        let mut damaged = None;
        let read =
            read_lines(BufReader::new(decoder), |number, line| match serde_json::from_str::<StoredTrajectory>(line) {
                Ok(stored) => each(update, &stored.trajectory),
                Err(e) => damaged = damaged.take().or(Some(format!("line {number}: {e}"))),
            });
        read.and(damaged.map_or(Ok(()), Err))
    };
    if let Err(problem) = read() {
        note(format!("{}: {problem}; not all of its trajectories were read", newest.display()));
    }
}

/// Largest number of differing keys in a label.
const MAX_KEYS: usize = 3;

/// Labels runs. Those whose recipes and populations differ in nothing but the seed share a label.
pub(super) fn label_runs(runs: &mut [TrainingRun]) {
    let same_variant = |a: &TrainingRun, b: &TrainingRun| a.recipe == b.recipe && a.population == b.population;
    let labels: Vec<String> = runs
        .iter()
        .map(|run| {
            let same_name: Vec<&TrainingRun> =
                runs.iter().filter(|r| r.env == run.env && r.name() == run.name()).collect();
            if same_name.iter().all(|r| same_variant(r, run)) {
                return run.name();
            }
            let first = same_name.iter().find(|r| same_variant(r, run)).map_or(run, |r| r);
            let differs = |key: &&String| same_name.iter().any(|r| r.recipe.get(*key) != run.recipe.get(*key));
            let mut keys: Vec<&String> = run.recipe.keys().filter(differs).collect();
            // First the keys that tell this run from most others.
            let equal = |key: &str| same_name.iter().filter(|r| r.recipe.get(key) == run.recipe.get(key)).count();
            keys.sort_by_key(|key| equal(key));
            let mut parts: Vec<String> =
                keys.iter().take(MAX_KEYS).map(|key| format!("{key} {}", run.recipe[*key])).collect();
            if keys.len() > MAX_KEYS {
                parts.push(format!("{} more keys", keys.len() - MAX_KEYS));
            }
            if same_name.iter().any(|r| r.population != run.population) {
                let hash = run.population.map(|hash| hash.to_string()).unwrap_or_default();
                parts.push(format!("population {}", hash.get(..8).unwrap_or("unknown")));
            }
            let folder =
                Path::new(&first.path).file_name().map_or_else(String::new, |f| f.to_string_lossy().into_owned());
            format!("{}, {folder}: {}", run.name(), parts.join(", "))
        })
        .collect();
    runs.iter_mut().zip(labels).for_each(|(run, label)| run.label = label);
}

impl TrainingRun {
    /// Score of the last episode before training.
    pub(super) fn before(&self) -> Option<MeanEstimate> {
        self.episode_scores.last()?[0]
    }

    /// Score of the last episode after training; in a run in progress, that of its last evaluation.
    pub(super) fn after(&self) -> Option<MeanEstimate> {
        let result = self.episode_scores.last().filter(|_| self.finished).and_then(|scores| scores[1]);
        result.or_else(|| self.eval_curve.last().map(EvalPoint::estimate))
    }

    /// Number of updates, such as `40` or `12 of 40`.
    pub(super) fn progress(&self) -> String {
        match self.finished {
            true => self.total_updates.to_string(),
            false => format!("{} of {}", self.updates, self.total_updates),
        }
    }

    /// The method, followed by its ablation.
    pub fn name(&self) -> String {
        match &self.ablation {
            None => self.method.clone(),
            Some(ablation) => format!("{}, {ablation}", self.method),
        }
    }
}
