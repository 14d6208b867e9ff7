//! Training runs: learning curves, final evaluation and recent trajectories.

use super::method_result::CeilingCurves;
use mage_core::{MeanEstimate, Method, Trajectory};
use mage_env::Hash;
use mage_train::{
    Error, Result,
    recipe::{Recipe, key_values},
    run_dir::RunDir,
    sweep::CellInfo,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingRun {
    /// Run directory.
    pub path: String,
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
    /// Score of the last episode of training rollouts, by update.
    pub rollout_curve: Vec<(u64, f64)>,
    /// Memoryless and Bayes-adaptive optimum of the last episode, if known.
    pub last_episode_ceiling: Option<(f64, f64)>,
    /// By episode: score and standard error before training, after training, and after training without memory.
    pub episode_scores: Vec<[Option<(f64, f64)>; 3]>,
    /// Upper limits by episode.
    pub ceiling: Option<CeilingCurves>,
}

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

#[derive(Deserialize)]
struct EvalScores {
    score: Vec<MeanEstimate>,
}

/// The used fields of `result.json`.
#[derive(Deserialize)]
struct RunResult {
    unit: String,
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
    let text = fs::read(path.parent()?.join("cell.json")).ok()?;
    serde_json::from_slice(&text).ok()
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
    let file = path.join("metrics.jsonl");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::io(&file)(e)),
    };
    let rollout_score = format!("episode_{}/score", recipe.play.episodes);
    let eval_key = |metric: &str| format!("eval/episode_{}/{metric}", recipe.eval.episodes);
    let (eval_score, eval_se) = (eval_key("score"), eval_key("se"));
    let (mut eval_curve, mut rollout_curve, mut updates) = (Vec::new(), Vec::new(), 0);
    // A line that is still being written has no line break yet.
    for (n, line) in text.split_inclusive('\n').filter(|l| l.ends_with('\n')).enumerate() {
        let line: BTreeMap<String, Option<f64>> = match serde_json::from_str(line) {
            Ok(line) => line,
            Err(e) => {
                note(format!("{}, line {}: {e}; skipped", file.display(), n + 1));
                continue;
            }
        };
        let metric = |key: &str| line.get(key).copied().flatten();
        let Some(update) = metric("update") else { continue };
        updates = update as u64;
        rollout_curve.extend(metric(&rollout_score).map(|score| (updates, score)));
        eval_curve.extend(metric(&eval_score).map(|score| EvalPoint {
            update: updates,
            score,
            se: metric(&eval_se).unwrap_or(0.0),
        }));
    }
    let result = read_result(&path.join("result.json"), note);
    let unit = result.as_ref().map_or_else(|| "score".to_owned(), |r| r.unit.clone());
    let finished = result.as_ref().is_some_and(|r| r.after.is_some());
    let mean_and_se = |e: &MeanEstimate| e.mean.map(|mean| (mean, e.se.unwrap_or(0.0)));
    let score_of = |scores: Option<&EvalScores>, n: usize| scores.and_then(|s| s.score.get(n)).and_then(mean_and_se);
    let mut episode_scores = Vec::new();
    if let Some(r) = &result {
        let episodes = r.after.as_ref().map_or(0, |s| s.score.len());
        episode_scores.extend(
            (0..episodes)
                .map(|n| [r.before.as_ref(), r.after.as_ref(), r.without_memory.as_ref()].map(|s| score_of(s, n))),
        );
        let ends = [(0, r.before.as_ref()), (updates, r.after.as_ref())];
        for (update, scores) in ends {
            let last = scores.and_then(|s| s.score.last()).and_then(mean_and_se);
            eval_curve.extend(last.map(|(score, se)| EvalPoint { update, score, se }));
        }
        eval_curve.sort_by_key(|point| point.update);
    }
    let ceiling = result.and_then(|r| r.ceilings).map(OracleCeilings::into_curves);
    let last_episode_ceiling = ceiling.as_ref().and_then(|c| Some((*c.memoryless.last()?, *c.bayes_adaptive.last()?)));
    let method = cell.as_ref().map_or_else(|| method_name(&recipe), |c| c.method.clone());
    let mut keys = key_values(&recipe);
    keys.remove("seed");
    Ok(TrainingRun {
        path: path.display().to_string(),
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
        rollout_curve,
        last_episode_ceiling,
        episode_scores,
        ceiling,
    })
}

fn read_result(file: &Path, note: &mut dyn FnMut(String)) -> Option<RunResult> {
    let text = fs::read(file).ok()?;
    match serde_json::from_slice(&text) {
        Ok(result) => Some(result),
        Err(e) => {
            note(format!("{}: {e}; the run is reported as in progress", file.display()));
            None
        }
    }
}

/// The trajectories of the last update for which the run stored any.
pub(super) fn newest_trajectories(run: &Path, note: &mut dyn FnMut(String)) -> Vec<Trajectory> {
    #[derive(Deserialize)]
    struct StoredTrajectory {
        trajectory: Trajectory,
    }
    let folder = run.join("trajectories");
    let files = fs::read_dir(&folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let compressed = |p: &PathBuf| p.to_string_lossy().ends_with(".jsonl.zst");
    let Some(newest) = files.filter(compressed).max() else { return Vec::new() };
    let read = || -> std::result::Result<Vec<Trajectory>, String> {
        let file = fs::File::open(&newest).map_err(|e| e.to_string())?;
        let mut text = String::new();
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(file).map_err(|e| e.to_string())?;
        decoder.read_to_string(&mut text).map_err(|e| e.to_string())?;
        let parse = |line: &str| {
            serde_json::from_str::<StoredTrajectory>(line).map(|s| s.trajectory).map_err(|e| e.to_string())
        };
        text.lines().map(parse).collect()
    };
    read().unwrap_or_else(|problem| {
        note(format!("{}: {problem}; skipped", newest.display()));
        Vec::new()
    })
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
            let keys: Vec<&String> = run.recipe.keys().filter(differs).collect();
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
    /// The method, followed by its ablation.
    pub fn name(&self) -> String {
        match &self.ablation {
            None => self.method.clone(),
            Some(ablation) => format!("{}, {ablation}", self.method),
        }
    }
}
