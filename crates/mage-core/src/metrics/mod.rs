//! Metrics: curves over the episode index.
//!
//! [`summarise`] aggregates the results of meta-episodes.

mod ceiling;
mod paired_comparison;

pub use ceiling::{Ceiling, CeilingComparison, EpisodeGap, compare_to_ceiling, gap_closed, gap_fraction};
pub use paired_comparison::{PairedEpisode, PairedRate, compare_paired};

use crate::{MeanEstimate, RateEstimate, episode::ExpectedValue};
use mage_env::{End, Outcome};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeEnding {
    /// The agent won.
    Won,
    /// A draw.
    Draw,
    /// The agent lost.
    Lost,
    /// The turn limit was reached.
    Truncated,
}

impl From<End> for EpisodeEnding {
    fn from(end: End) -> Self {
        match end {
            End::Terminated { outcome: Outcome::Won, .. } => EpisodeEnding::Won,
            End::Terminated { outcome: Outcome::Draw, .. } => EpisodeEnding::Draw,
            End::Terminated { outcome: Outcome::Lost, .. } => EpisodeEnding::Lost,
            End::Truncated => EpisodeEnding::Truncated,
        }
    }
}

/// The result of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeResult {
    /// How it ended.
    pub ending: EpisodeEnding,
    /// The score in the environment's unit.
    pub score: f64,
    /// Number of actions.
    pub actions: u32,
    /// Number of invalid actions.
    pub invalid: u32,
    /// Its expectation, where the game was enumerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedValue>,
}

impl EpisodeResult {
    /// The expected score if there is one, otherwise the played score: the observation that means of scores use.
    fn estimated_score(&self) -> f64 {
        self.expected.map_or(self.score, |e| e.score)
    }
}

/// The result of a meta-episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaEpisodeResult {
    /// The opponent; absent in single-agent environments.
    pub opponent: Option<String>,
    /// The agent's seat.
    pub seat: u8,
    /// The episodes, in order.
    pub episodes: Vec<EpisodeResult>,
    /// Whether it stopped because an episode was won.
    pub stopped_after_win: bool,
}

impl MetaEpisodeResult {
    /// The stratum of its task. Task sets contain opponents and seats in fixed proportions.
    fn stratum(&self) -> (Option<&str>, u8) {
        (self.opponent.as_deref(), self.seat)
    }

    /// Whether the k-th episode (from 1) was not played because an earlier one was won. Requires an actual win: the
    /// flag without a win means an unfinished meta-episode.
    fn skipped(&self, k: usize) -> bool {
        self.stopped_after_win
            && self.episodes.len() < k
            && self.episodes.iter().any(|e| e.ending == EpisodeEnding::Won)
    }

    /// Whether one of the first k episodes satisfies `ended`; `None` if unknown.
    fn within(&self, k: usize, ended: impl Fn(EpisodeEnding) -> bool) -> Option<bool> {
        (self.episodes.len() >= k || self.skipped(k)).then(|| self.episodes.iter().take(k).any(|e| ended(e.ending)))
    }

    /// Whether the k-th episode satisfies `ended`; `None` if it does not count.
    fn at(&self, k: usize, unplayed: UnplayedEpisodes, ended: impl Fn(EpisodeEnding) -> bool) -> Option<bool> {
        match self.episodes.get(k - 1) {
            Some(e) => Some(ended(e.ending)),
            None => (unplayed == UnplayedEpisodes::NotWon && self.skipped(k)).then_some(false),
        }
    }
}

/// Treatment of episodes that were not played because an earlier one was won, in per-episode rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnplayedEpisodes {
    /// They do not count.
    #[default]
    NotCounted,
    /// They count as neither won nor drawn nor lost (the paper's "independent" rates).
    NotWon,
}

/// Curves over the episode index: overall, per opponent and per seat. Computed by [`summarise`].
///
/// There are two kinds of rates:
///
/// * **cumulative** (`pass_at_k`, `draw_or_win_at_k`): success in at least one of the first k episodes. Retrying alone
///   raises them, without any learning ([`pass_at_k`]).
/// * **per episode** (`won`, `draw_or_win`, `lost`, `truncated`, `score`): the k-th episode alone. Only these can show
///   adaptation.
///
/// **Early stop.** A meta-episode that stopped after a win counts as won for every later k of the cumulative rates. In
/// per-episode rates, the episodes that it did not play are *not counted* ([`UnplayedEpisodes::NotCounted`]): rates and
/// scores then describe the remaining meta-episodes, a biased sample of failures, and the counts show its size. The
/// paper counts them as not won; [`UnplayedEpisodes::NotWon`] does this for the per-episode rates (scores have no such
/// value). Use runs without early stop for curves that show adaptation.
///
/// A meta-episode that ended before k for any other reason (an error) is excluded at k.
///
/// **Expectations.** Where the game was enumerated, the observation of a score is its expectation ([`ExpectedValue`])
/// instead of the played score, and there are means of the probability of a win. All rates, cumulative and per episode,
/// are those of the played episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// All meta-episodes.
    pub overall: MetricSlice,
    /// By opponent.
    pub by_opponent: BTreeMap<String, MetricSlice>,
    /// By seat.
    pub by_seat: BTreeMap<u8, MetricSlice>,
}

/// Metrics of a set of meta-episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSlice {
    /// Number of meta-episodes.
    pub meta_episodes: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// Whether there are meta-episodes and all their episodes have an expectation: scores are then free of the noise of
    /// play.
    #[serde(default)]
    pub exact: bool,
    /// One entry per episode index.
    pub by_episode: Vec<EpisodeMetrics>,
    /// The score per episode (expected, otherwise played), averaged over the episodes of each meta-episode, then over
    /// the meta-episodes of a task, then over tasks. The task is one observation, because its episodes are not
    /// independent.
    pub score: MeanEstimate,
    /// Rate of invalid actions. The interval assumes independent actions, which actions of one episode are not: it is a
    /// lower bound on the uncertainty.
    pub invalid: RateEstimate,
}

/// Metrics at one episode index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeMetrics {
    /// The episode, from 1.
    pub k: u32,
    /// Cumulative: won at least one of the first k, as played.
    pub pass_at_k: RateEstimate,
    /// Cumulative: won or drew at least one of the first k, as played.
    pub draw_or_win_at_k: RateEstimate,
    /// Won the k-th, as played.
    pub won: RateEstimate,
    /// Probability of a win of the k-th; present if all counted episodes have an expectation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub win_probability: Option<MeanEstimate>,
    /// Drew the k-th.
    pub drew: RateEstimate,
    /// Won or drew the k-th.
    pub draw_or_win: RateEstimate,
    /// Lost the k-th.
    pub lost: RateEstimate,
    /// Ran out of turns in the k-th.
    pub truncated: RateEstimate,
    /// Score of the k-th, in the environment's unit: expected if the episode has an expectation, otherwise played.
    pub score: MeanEstimate,
    /// Rate of invalid actions in the k-th.
    pub invalid: RateEstimate,
}

/// A meta-episode with the index of its task.
type TaskResult<'a> = (usize, &'a MetaEpisodeResult);

/// Aggregates meta-episodes, each with the index of its task. Curves have `episodes` points, even if all meta-episodes
/// stopped earlier. The task is one observation, in every slice; means are stratified by opponent and seat. The result
/// does not depend on the order of the meta-episodes.
///
/// ```
/// use mage_core::{EpisodeEnding, EpisodeResult, MetaEpisodeResult, UnplayedEpisodes, summarise};
///
/// let episode = |ending, score| EpisodeResult { ending, score, actions: 2, invalid: 0, expected: None };
/// let result = |seat, episodes, stopped_after_win| MetaEpisodeResult {
///     opponent: Some("aggressive".into()), seat, episodes, stopped_after_win,
/// };
/// let results = [
///     (0, result(0, vec![episode(EpisodeEnding::Won, 1.0)], true)), // stopped after the first episode
///     (1, result(1, vec![episode(EpisodeEnding::Lost, -1.0), episode(EpisodeEnding::Won, 2.0)], true)),
/// ];
/// let summary = summarise(&results, 2, UnplayedEpisodes::NotCounted);
/// let second = &summary.overall.by_episode[1];
/// assert_eq!((second.pass_at_k.hits, second.pass_at_k.trials), (2, 2)); // both have won
/// assert_eq!((second.won.hits, second.won.trials), (1, 1)); // one played it
/// assert_eq!(summary.by_seat[&1].score.mean, Some(0.5));
/// ```
pub fn summarise(results: &[(usize, MetaEpisodeResult)], episodes: u32, unplayed: UnplayedEpisodes) -> MetricSummary {
    let all: Vec<TaskResult<'_>> = results.iter().map(|(task, r)| (*task, r)).collect();
    let slice = |of: &[TaskResult<'_>]| measure(of, episodes, unplayed);
    let mut by_opponent: BTreeMap<&str, Vec<TaskResult<'_>>> = BTreeMap::new();
    let mut by_seat: BTreeMap<u8, Vec<TaskResult<'_>>> = BTreeMap::new();
    for &(task, r) in &all {
        if let Some(opponent) = &r.opponent {
            by_opponent.entry(opponent).or_default().push((task, r));
        }
        by_seat.entry(r.seat).or_default().push((task, r));
    }
    MetricSummary {
        overall: slice(&all),
        by_opponent: by_opponent.into_iter().map(|(o, of)| (o.to_owned(), slice(&of))).collect(),
        by_seat: by_seat.into_iter().map(|(s, of)| (s, slice(&of))).collect(),
    }
}

fn measure(results: &[TaskResult<'_>], episodes: u32, unplayed: UnplayedEpisodes) -> MetricSlice {
    let played = || results.iter().filter(|(_, r)| !r.episodes.is_empty());
    let averages = played().map(|(task, r)| {
        let total = r.episodes.iter().map(EpisodeResult::estimated_score).sum::<f64>();
        (*task, r.stratum(), total / r.episodes.len() as f64)
    });
    let mut episodes_played = results.iter().flat_map(|(_, r)| &r.episodes);
    MetricSlice {
        meta_episodes: results.len() as u64,
        tasks: results.iter().map(|(task, _)| task).collect::<BTreeSet<_>>().len() as u64,
        exact: !results.is_empty() && episodes_played.all(|e| e.expected.is_some()),
        by_episode: (1..=episodes as usize).map(|k| measure_at(results, k, unplayed)).collect(),
        score: MeanEstimate::by_task(averages),
        invalid: invalid_rate(results.iter().flat_map(|(_, r)| &r.episodes)),
    }
}

fn measure_at(results: &[TaskResult<'_>], k: usize, unplayed: UnplayedEpisodes) -> EpisodeMetrics {
    let win = |e| e == EpisodeEnding::Won;
    let draw = |e| e == EpisodeEnding::Draw;
    let draw_or_win = |e| win(e) || draw(e);
    let rate = |of: &dyn Fn(&MetaEpisodeResult) -> Option<bool>| {
        RateEstimate::by_task(results.iter().filter_map(|(task, r)| Some((*task, of(r)?))))
    };
    let single = |ended: &dyn Fn(EpisodeEnding) -> bool| rate(&|r| r.at(k, unplayed, ended));
    let played = || results.iter().filter_map(|(task, r)| Some((*task, r.stratum(), r.episodes.get(k - 1)?)));
    // `None` if an episode has no expectation.
    let win_probabilities: Option<Vec<_>> =
        played().map(|(task, stratum, e)| Some((task, stratum, e.expected?.won))).collect();
    EpisodeMetrics {
        k: k as u32,
        pass_at_k: rate(&|r| r.within(k, win)),
        draw_or_win_at_k: rate(&|r| r.within(k, draw_or_win)),
        won: single(&win),
        win_probability: win_probabilities.filter(|of| !of.is_empty()).map(MeanEstimate::by_task),
        drew: single(&draw),
        draw_or_win: single(&draw_or_win),
        lost: single(&|e| e == EpisodeEnding::Lost),
        truncated: single(&|e| e == EpisodeEnding::Truncated),
        score: MeanEstimate::by_task(played().map(|(task, stratum, e)| (task, stratum, e.estimated_score()))),
        invalid: invalid_rate(played().map(|(_, _, e)| e)),
    }
}

fn invalid_rate<'a>(episodes: impl Iterator<Item = &'a EpisodeResult>) -> RateEstimate {
    let (invalid, actions) = episodes.fold((0, 0), |(i, a), e| (i + u64::from(e.invalid), a + u64::from(e.actions)));
    RateEstimate::new(invalid, actions)
}

/// Pass@k of an agent that wins each episode with probability `p`, independent of earlier episodes. A measured Pass@k
/// must exceed it to show adaptation.
///
/// ```
/// assert!((mage_core::pass_at_k(0.105, 10) - 0.670).abs() < 1e-3);
/// ```
pub fn pass_at_k(p: f64, k: u32) -> f64 {
    1.0 - (1.0 - p).powf(f64::from(k))
}
