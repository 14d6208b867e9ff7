//! Result of one method on one task set, over all its seeds.

use super::{ActionCounts, IntervalEstimate};
use mage_core::{MeanEstimate, MetaEpisodeResult, MetricSlice, MetricSummary, UnplayedEpisodes, gap_closed, summarise};
use mage_env::solvers::{bound_label, is_lower_bound};
use serde::Serialize;

/// One method on one task set, over all its seeds.
#[derive(Clone, Debug, Serialize)]
pub struct MethodResult {
    /// Environment.
    pub env: String,
    /// Task set.
    pub task_set: String,
    /// First digits of the task set's hash.
    pub task_set_hash: String,
    /// Files with its trajectories; its summary if there are none.
    pub files: Vec<String>,
    /// Method, or the name of a scripted agent.
    pub method: String,
    /// Deviation from the method, in ablations.
    pub ablation: Option<String>,
    /// Policy that was evaluated.
    pub policy: String,
    /// Token budget of a model, if known.
    pub budget: Option<TokenBudget>,
    /// Unit of the score.
    pub unit: String,
    /// Episodes per task.
    pub episodes: u32,
    /// Whether tasks stop after their first win.
    pub early_stop: bool,
    /// Number of finished meta-episodes.
    pub meta_episodes: u64,
    /// Number of tasks with a finished meta-episode.
    pub tasks: u64,
    /// Number of failed meta-episodes.
    pub errors: u64,
    /// Metrics by episode.
    pub curve: Vec<CurvePoint>,
    /// Score of the last episode minus that of the first, by task.
    pub gain: IntervalEstimate,
    /// Results by opponent.
    pub opponents: Vec<SliceResult>,
    /// Results by seat.
    pub seats: Vec<SliceResult>,
    /// Upper limits of the score, if known.
    pub ceiling: Option<CeilingCurves>,
    /// Frequencies of states and actions.
    #[serde(skip)]
    pub actions: ActionCounts,
}

/// Token budget and sampling parameters of a model. Scores under different ones are not comparable without reservation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TokenBudget {
    /// Maximum tokens of an action response.
    pub play_tokens: u64,
    /// Maximum tokens of a reflection.
    pub reflect_tokens: u64,
    /// Whether the model thinks before it responds, `on` or `off`; `None` if that was left to an endpoint.
    pub thinking: Option<String>,
    /// Sampling parameters, such as `temperature 0.7, top-p 0.8`.
    pub sampling: String,
}

impl TokenBudget {
    /// The budget in the field `sampling` of a summary.
    pub(super) fn of_sampling(sampling: &serde_json::Value) -> Option<Self> {
        let tokens = |key: &str| sampling["params"][key].as_u64();
        let (play_tokens, reflect_tokens) = (tokens("play_tokens")?, tokens("reflect_tokens")?);
        let thinking = sampling["thinking"].as_str().map(str::to_owned);
        let params = [("temperature", "temperature"), ("top_p", "top-p"), ("top_k", "top-k"), ("min_p", "min-p")];
        let named =
            params.iter().filter_map(|(key, name)| Some(format!("{name} {}", sampling["params"][key].as_f64()?)));
        let sampling = named.collect::<Vec<_>>().join(", ");
        Some(TokenBudget { play_tokens, reflect_tokens, thinking, sampling })
    }
}

/// Metrics of one episode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Episode, from 1.
    pub k: u32,
    /// Rate of tasks with a win among the first k episodes (Pass@k).
    pub pass: IntervalEstimate,
    /// Rate of tasks with a draw or a win among the first k episodes.
    pub draw_or_win: IntervalEstimate,
    /// Win rate of episode k.
    pub won: IntervalEstimate,
    /// Score of episode k.
    pub score: IntervalEstimate,
}

/// Result on the tasks with one opponent or one seat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceResult {
    /// Opponent's name, or number of the seat.
    pub name: String,
    /// Score of the first episode.
    pub first_score: IntervalEstimate,
    /// Score of the last episode; with early stopping, over the tasks not won before.
    pub last_score: IntervalEstimate,
    /// Rate of tasks with a win.
    pub pass: IntervalEstimate,
}

impl SliceResult {
    fn new(name: String, slice: &MetricSlice) -> Self {
        let none = IntervalEstimate::default();
        SliceResult {
            name,
            first_score: slice.by_episode.first().map_or(none, |at| (&at.score).into()),
            last_score: slice.by_episode.last().map_or(none, |at| (&at.score).into()),
            pass: slice.by_episode.last().map_or(none, |at| (&at.pass_at_k).into()),
        }
    }
}

/// Upper limits by episode, from an oracle.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CeilingCurves {
    /// Score of the best memoryless policy.
    pub memoryless: Vec<f64>,
    /// Score of the Bayes-adaptive optimum.
    pub bayes_adaptive: Vec<f64>,
    /// Highest Pass@1, Pass@2, …; empty if unknown.
    pub pass_at_k: Vec<f64>,
    /// Score of the best response to each opponent.
    pub best_response: Vec<(String, f64)>,
    /// Upper bound on the error of `bayes_adaptive`.
    pub error: f64,
    /// Whether opponents were sampled, so that all values are estimates.
    pub estimated: bool,
}

impl CeilingCurves {
    /// Qualifier of `bayes_adaptive`, such as `exact` or `at least`.
    pub(super) fn bayes_qualifier(&self) -> &'static str {
        bound_label(self.estimated, is_lower_bound(self.error))
    }

    /// Qualifier of the other values.
    pub(super) fn qualifier(&self) -> &'static str {
        bound_label(self.estimated, false)
    }
}

/// Metrics of a set of meta-episodes.
pub(super) struct MetricCurves {
    pub(super) curve: Vec<CurvePoint>,
    pub(super) gain: IntervalEstimate,
    pub(super) opponents: Vec<SliceResult>,
    pub(super) seats: Vec<SliceResult>,
    pub(super) meta_episodes: u64,
    pub(super) tasks: u64,
}

/// Computes metrics from results, each with the index of its task.
pub(super) fn compute_metrics(results: &[(usize, MetaEpisodeResult)], episodes: u32) -> MetricCurves {
    let gains = results.iter().filter_map(|(task, r)| {
        let (first, last) = (r.episodes.first()?, r.episodes.get(episodes as usize - 1)?);
        let stratum = (r.opponent.as_deref(), r.seat);
        Some((*task, stratum, last.estimated_score() - first.estimated_score()))
    });
    let gain = IntervalEstimate::from(&MeanEstimate::by_task(gains));
    MetricCurves { gain, ..metrics_from_summary(&summarise(results, episodes, UnplayedEpisodes::NotCounted)) }
}

/// Converts a stored summary, for evaluations whose trajectories are missing.
pub(super) fn metrics_from_summary(summary: &MetricSummary) -> MetricCurves {
    let curve = summary.overall.by_episode.iter().map(|at| CurvePoint {
        k: at.k,
        pass: (&at.pass_at_k).into(),
        draw_or_win: (&at.draw_or_win_at_k).into(),
        won: (&at.won).into(),
        score: (&at.score).into(),
    });
    let curve: Vec<CurvePoint> = curve.collect();
    let ends = curve.first().zip(curve.last()).map(|(first, last)| (first.score, last.score));
    let gain = ends.and_then(|(first, last)| Some(last.value? - first.value?));
    MetricCurves {
        curve,
        // The interval of a difference by task is not in a summary.
        gain: IntervalEstimate { value: gain, interval: None, n: ends.map_or(0, |(_, last)| last.n) },
        opponents: summary.by_opponent.iter().map(|(name, slice)| SliceResult::new(name.clone(), slice)).collect(),
        seats: summary.by_seat.iter().map(|(seat, slice)| SliceResult::new(seat.to_string(), slice)).collect(),
        meta_episodes: summary.overall.meta_episodes,
        tasks: summary.overall.tasks,
    }
}

impl MethodResult {
    /// The method, followed by its ablation.
    pub fn name(&self) -> String {
        match &self.ablation {
            None => self.method.clone(),
            Some(ablation) => format!("{}, {ablation}", self.method),
        }
    }

    /// Upper limits of the score. `None` with early stopping: later episodes then cover only the tasks not yet won, but
    /// the limits cover all tasks.
    pub(crate) fn score_ceiling(&self) -> Option<&CeilingCurves> {
        self.ceiling.as_ref().filter(|_| !self.early_stop)
    }

    /// Fraction of the gap between memoryless and Bayes-adaptive optimum that the last episode closes, if it says
    /// something.
    pub(super) fn gap_closed(&self) -> Option<MeanEstimate> {
        let (ceiling, last) = (self.score_ceiling()?, self.curve.last()?);
        let at = |curve: &[f64]| curve.get(last.k as usize - 1).copied();
        gap_closed(last.score.to_mean(), at(&ceiling.memoryless)?, at(&ceiling.bayes_adaptive)?)
    }

    /// Upper limit of Pass@k, if known.
    pub(crate) fn best_pass(&self, k: u32) -> Option<f64> {
        self.ceiling.as_ref()?.pass_at_k.get(k as usize - 1).copied()
    }
}
