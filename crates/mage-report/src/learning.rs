//! How did training go?

use super::entry::Lines;
use mage_core::{Method, Trajectory};
use mage_train::{Error, Result, recipe::Recipe, run_dir::RunDir, sweep::CellInfo};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Where it lives.
    pub path: String,
    /// The environment.
    pub env: String,
    /// The method.
    pub method: String,
    /// What was changed, in ablations.
    pub ablation: Option<String>,
    /// The seed.
    pub seed: u64,
    /// What a score is counted in.
    pub unit: String,
    /// Updates done.
    pub updates: u64,
    /// Updates in all.
    pub of: u64,
    /// Whether it is finished.
    pub finished: bool,
    /// Score of the last episode on the panel, by update.
    pub panel: Vec<Judged>,
    /// Score of the last episode in training, by update.
    pub training: Vec<(u64, f64)>,
    /// What the last episode can come to, where that is known: without memory, and for the best learner.
    pub ceiling: Option<(f64, f64)>,
    /// By episode, before training, after it, and after it with memory blanked: score and standard error.
    pub table: Vec<[Option<(f64, f64)>; 3]>,
    /// The same lines by episode.
    pub lines: Option<Lines>,
}

/// The panel at an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// After so many updates.
    pub update: u64,
    /// Mean score.
    pub score: f64,
    /// Its standard error.
    pub se: f64,
}

#[derive(Deserialize)]
struct Estimate {
    mean: f64,
    se: f64,
}

#[derive(Deserialize)]
struct Judgement {
    score: Vec<Estimate>,
}

#[derive(Deserialize)]
struct Outcome {
    unit: String,
    before: Option<Judgement>,
    after: Option<Judgement>,
    without_memory: Option<Judgement>,
    ceilings: Option<Ceilings>,
}

/// The part of an oracle's report that is drawn.
#[derive(Deserialize)]
pub(super) struct Ceilings {
    mean: Mean,
    #[serde(default)]
    episodes: u32,
    #[serde(default)]
    seats: Vec<Errors>,
    #[serde(default)]
    sampled_opponents: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Mean {
    memoryless: Vec<f64>,
    sum: Sum,
    #[serde(default)]
    pass_at_k: Vec<f64>,
    #[serde(default)]
    best_response: Vec<Named>,
}

#[derive(Deserialize)]
struct Sum {
    by_episode: Vec<f64>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    value: f64,
}

#[derive(Deserialize)]
struct Errors {
    last_gap: f64,
    sum_gap: f64,
}

impl Ceilings {
    pub(super) fn lines(self) -> Lines {
        let worst = |s: &Errors| s.last_gap.max(s.sum_gap / f64::from(self.episodes.max(1)));
        Lines {
            error: self.seats.iter().map(worst).fold(0.0, f64::max),
            estimated: !self.sampled_opponents.is_empty(),
            memoryless: self.mean.memoryless,
            learner: self.mean.sum.by_episode,
            pass_at: self.mean.pass_at_k,
            best_response: self.mean.best_response.into_iter().map(|n| (n.name, n.value)).collect(),
        }
    }
}

/// What the sweep says about the cell a file or folder belongs to.
pub(super) fn about(beside: &Path) -> Option<CellInfo> {
    let text = fs::read(beside.parent()?.join("cell.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The name of a recipe's method, if it is one of those with names.
pub(super) fn method_name(recipe: &Recipe) -> String {
    let same = |name: &&str| {
        Method::named(name).is_ok_and(|mut m| {
            // No method stands for these.
            m.credit.gamma_step = recipe.method.credit.gamma_step;
            m.credit.gamma_traj = recipe.method.credit.gamma_traj;
            m.credit.omit_previous_return = recipe.method.credit.omit_previous_return;
            m == recipe.method
        })
    };
    let name = Method::NAMES.into_iter().find(same).unwrap_or("own settings");
    super::paper::spelling(name).map_or_else(|| name.replace('_', "-"), str::to_owned)
}

/// Reads a run; `note` hears what is wrong with it.
pub(super) fn read_run(path: &Path, note: &mut dyn FnMut(String)) -> Result<Run> {
    let recipe = RunDir::recipe(path)?;
    let about = about(path);
    let file = path.join("metrics.jsonl");
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::io(&file)(e)),
    };
    let last_trained = format!("episode_{}/score", recipe.play.episodes);
    let judged = |what: &str| format!("eval/episode_{}/{what}", recipe.eval.episodes);
    let (judged_score, judged_se) = (judged("score"), judged("se"));
    let (mut panel, mut training, mut updates) = (Vec::new(), Vec::new(), 0);
    // A line that is still being written has no line break yet.
    for (n, line) in text.split_inclusive('\n').filter(|l| l.ends_with('\n')).enumerate() {
        let line: BTreeMap<String, Option<f64>> = match serde_json::from_str(line) {
            Ok(line) => line,
            Err(e) => {
                note(format!("{}, line {}: {e}; left out", file.display(), n + 1));
                continue;
            }
        };
        let at = |key: &str| line.get(key).copied().flatten();
        let Some(update) = at("update") else { continue };
        updates = update as u64;
        training.extend(at(&last_trained).map(|score| (updates, score)));
        panel.extend(at(&judged_score).map(|score| Judged {
            update: updates,
            score,
            se: at(&judged_se).unwrap_or(0.0),
        }));
    }
    let outcome = outcome(&path.join("result.json"), note);
    let unit = outcome.as_ref().map_or_else(|| "score".to_owned(), |o| o.unit.clone());
    let finished = outcome.as_ref().is_some_and(|o| o.after.is_some());
    let at = |j: Option<&Judgement>, n: usize| j.and_then(|j| j.score.get(n)).map(|e| (e.mean, e.se));
    let mut table = Vec::new();
    if let Some(o) = &outcome {
        let episodes = o.after.as_ref().map_or(0, |j| j.score.len());
        table.extend(
            (0..episodes).map(|n| [o.before.as_ref(), o.after.as_ref(), o.without_memory.as_ref()].map(|j| at(j, n))),
        );
        let ends = [(0, o.before.as_ref()), (updates, o.after.as_ref())];
        for (update, judgement) in ends {
            let last = judgement.and_then(|j| j.score.last());
            panel.extend(last.map(|e| Judged { update, score: e.mean, se: e.se }));
        }
        panel.sort_by_key(|j| j.update);
    }
    let lines = outcome.and_then(|o| o.ceilings).map(Ceilings::lines);
    let ceiling = lines.as_ref().and_then(|l| Some((*l.memoryless.last()?, *l.learner.last()?)));
    let method = about.as_ref().map_or_else(|| method_name(&recipe), |a| a.method.clone());
    Ok(Run {
        path: path.display().to_string(),
        env: about.as_ref().map_or_else(|| recipe.env.name.clone(), |a| a.env.clone()),
        method,
        ablation: about.and_then(|a| a.ablation),
        seed: recipe.seed,
        unit,
        updates,
        of: recipe.optim.updates,
        finished,
        panel,
        training,
        ceiling,
        table,
        lines,
    })
}

fn outcome(file: &Path, note: &mut dyn FnMut(String)) -> Option<Outcome> {
    let text = fs::read(file).ok()?;
    match serde_json::from_slice(&text) {
        Ok(outcome) => Some(outcome),
        Err(e) => {
            note(format!("{}: {e}; taken as a run in progress", file.display()));
            None
        }
    }
}

/// The newest trajectories in a run directory.
pub(super) fn newest_trajectories(run: &Path, note: &mut dyn FnMut(String)) -> Vec<Trajectory> {
    #[derive(Deserialize)]
    struct StoredTrajectory {
        trajectory: Trajectory,
    }
    let folder = run.join("trajectories");
    let files = fs::read_dir(&folder).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let packed = |p: &PathBuf| p.to_string_lossy().ends_with(".jsonl.zst");
    let Some(newest) = files.filter(packed).max() else { return Vec::new() };
    let unpack = || -> std::result::Result<Vec<Trajectory>, String> {
        let file = fs::File::open(&newest).map_err(|e| e.to_string())?;
        let mut text = String::new();
        let mut unpacked = ruzstd::decoding::StreamingDecoder::new(file).map_err(|e| e.to_string())?;
        unpacked.read_to_string(&mut text).map_err(|e| e.to_string())?;
        let read = |line: &str| {
            serde_json::from_str::<StoredTrajectory>(line).map(|s| s.trajectory).map_err(|e| e.to_string())
        };
        text.lines().map(read).collect()
    };
    unpack().unwrap_or_else(|problem| {
        note(format!("{}: {problem}; left out", newest.display()));
        Vec::new()
    })
}

impl Run {
    /// The method with what was changed.
    pub fn name(&self) -> String {
        match &self.ablation {
            None => self.method.clone(),
            Some(ablation) => format!("{}, {ablation}", self.method),
        }
    }
}
