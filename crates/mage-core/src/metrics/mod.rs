//! How well did it do, and did it get better from episode to episode?
//!
//! [`summarise`] turns what each meta-episode came to into curves over the episode index.

mod ceiling;
mod paired_comparison;

pub use ceiling::{Ceiling, CeilingComparison, EpisodeGap, compare_to_ceiling, gap_fraction};
pub use paired_comparison::{PairedEpisode, PairedRate, compare_paired};

use crate::{Bootstrap, MeanEstimate, RateEstimate};
use mage_env::{End, Outcome};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How one episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeEnding {
    /// The agent won.
    Won,
    /// Nobody won.
    Draw,
    /// The agent lost.
    Lost,
    /// The turns ran out.
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

/// What one episode came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeResult {
    /// How it ended.
    pub ending: EpisodeEnding,
    /// The result in the environment's own unit.
    pub score: f64,
    /// How many answers the agent gave in play.
    pub actions: u32,
    /// How many of them were no valid action.
    pub invalid: u32,
}

/// What one meta-episode came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetaEpisodeResult {
    /// Who sat opposite; absent in worlds.
    pub opponent: Option<String>,
    /// The agent's seat.
    pub seat: u8,
    /// The episodes played, in order.
    pub episodes: Vec<EpisodeResult>,
    /// Whether play stopped because an episode was won.
    pub stopped_after_win: bool,
}

impl MetaEpisodeResult {
    /// Whether the k-th episode (from 1) was not played because an earlier one was won. Takes an actual win: a flag
    /// without one is an unfinished meta-episode.
    fn spared(&self, k: usize) -> bool {
        self.stopped_after_win
            && self.episodes.len() < k
            && self.episodes.iter().any(|e| e.ending == EpisodeEnding::Won)
    }

    /// Whether one of the first k episodes ended as asked; `None` if that cannot be known.
    fn within(&self, k: usize, asked: impl Fn(EpisodeEnding) -> bool) -> Option<bool> {
        (self.episodes.len() >= k || self.spared(k)).then(|| self.episodes.iter().take(k).any(|e| asked(e.ending)))
    }

    /// Whether the k-th episode ended as asked; `None` if it does not count.
    fn at(&self, k: usize, unplayed: UnplayedEpisodes, asked: impl Fn(EpisodeEnding) -> bool) -> Option<bool> {
        match self.episodes.get(k - 1) {
            Some(e) => Some(asked(e.ending)),
            None => (unplayed == UnplayedEpisodes::NotWon && self.spared(k)).then_some(false),
        }
    }
}

/// What per-episode rates make of episodes that were not played because an earlier one was won.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnplayedEpisodes {
    /// They do not count.
    #[default]
    NotCounted,
    /// They count, as neither won nor drawn nor lost (the paper's "independent" rates).
    NotWon,
}

/// Curves over the episode index: overall, per opponent, per seat; made by [`summarise`].
///
/// Two kinds of rates stand side by side and must not be confused:
///
/// * **cumulative** (`pass_at_k`, `draw_or_win_at_k`): in at least one of the first k episodes. It rises even for an agent
///   that learns nothing, by retrying ([`pass_at_k`]).
/// * **per episode** (`won`, `draw_or_win`, `lost`, `truncated`, `score`): in the k-th episode alone. Only this can show
///   adaptation.
///
/// **Early stop.** A meta-episode that stopped after a win counts as won for every later k of the cumulative rates. Per
/// episode, the episodes it did not play are *not counted* ([`UnplayedEpisodes::NotCounted`]): rates and scores then describe
/// those who played on, who are the unlucky and the weak, and every number's count says how many they are. The paper counts
/// them as not won; [`UnplayedEpisodes::NotWon`] does the same for the per-episode rates (scores have nothing to count). For
/// curves that show adaptation, play without early stop.
///
/// A meta-episode that ended before k for any other reason (an error) is left out of everything at k.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// All meta-episodes.
    pub overall: MetricSlice,
    /// Those against each opponent.
    pub by_opponent: BTreeMap<String, MetricSlice>,
    /// Those in each seat.
    pub by_seat: BTreeMap<u8, MetricSlice>,
}

/// Some meta-episodes, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricSlice {
    /// How many there were.
    pub meta_episodes: u64,
    /// How many tasks they were of.
    pub tasks: u64,
    /// One entry per episode index.
    pub by_episode: Vec<EpisodeMetrics>,
    /// The score per episode, averaged over the episodes of each meta-episode, then over those of a task, then over tasks. A task
    /// is one observation, because its episodes are not independent.
    pub score: MeanEstimate,
    /// Answers that were no valid action, of all answers. The interval takes answers to be independent, which answers of
    /// one episode are not quite: read it as a lower bound on the uncertainty.
    pub invalid: RateEstimate,
}

/// One point of the curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeMetrics {
    /// The episode, from 1.
    pub k: u32,
    /// Cumulative: won at least one of the first k.
    pub pass_at_k: RateEstimate,
    /// Cumulative: won or drew at least one of the first k.
    pub draw_or_win_at_k: RateEstimate,
    /// Won the k-th.
    pub won: RateEstimate,
    /// Drew the k-th.
    pub drew: RateEstimate,
    /// Won or drew the k-th.
    pub draw_or_win: RateEstimate,
    /// Lost the k-th.
    pub lost: RateEstimate,
    /// Ran out of turns in the k-th.
    pub truncated: RateEstimate,
    /// Score of the k-th, in the environment's own unit.
    pub score: MeanEstimate,
    /// Invalid answers in the k-th, of all answers in it.
    pub invalid: RateEstimate,
}

/// A meta-episode with the number of its task.
type Numbered<'a> = (usize, &'a MetaEpisodeResult);

/// Measures meta-episodes of up to `episodes` episodes, each with the number of its task: the curves have so many points, also
/// where all stopped before. Seeds of one task are one observation, overall as in every part. The result does not depend on
/// the order of the meta-episodes.
///
/// ```
/// use mage_core::{Bootstrap, EpisodeEnding, EpisodeResult, MetaEpisodeResult, UnplayedEpisodes, summarise};
///
/// let episode = |ending, score| EpisodeResult { ending, score, actions: 2, invalid: 0 };
/// let result = |seat, episodes, stopped_after_win| MetaEpisodeResult {
///     opponent: Some("aggressive".into()), seat, episodes, stopped_after_win,
/// };
/// let results = [
///     (0, result(0, vec![episode(EpisodeEnding::Won, 1.0)], true)), // stopped at once
///     (1, result(1, vec![episode(EpisodeEnding::Lost, -1.0), episode(EpisodeEnding::Won, 2.0)], true)),
/// ];
/// let summary = summarise(&results, 2, UnplayedEpisodes::NotCounted, Bootstrap::default());
/// let second = &summary.overall.by_episode[1];
/// assert_eq!((second.pass_at_k.hits, second.pass_at_k.of), (2, 2)); // both have won by then
/// assert_eq!((second.won.hits, second.won.of), (1, 1)); // one of them played it
/// assert_eq!(summary.by_seat[&1].score.mean, Some(0.5));
/// ```
pub fn summarise(
    results: &[(usize, MetaEpisodeResult)],
    episodes: u32,
    unplayed: UnplayedEpisodes,
    bootstrap: Bootstrap,
) -> MetricSummary {
    let slice = |of: &[Numbered<'_>], name: &str| measure(of, episodes, unplayed, bootstrap.child(name));
    let mut by_opponent: BTreeMap<&str, Vec<Numbered<'_>>> = BTreeMap::new();
    let mut by_seat: BTreeMap<u8, Vec<Numbered<'_>>> = BTreeMap::new();
    for (task, r) in results {
        if let Some(opponent) = &r.opponent {
            by_opponent.entry(opponent).or_default().push((*task, r));
        }
        by_seat.entry(r.seat).or_default().push((*task, r));
    }
    MetricSummary {
        overall: slice(&results.iter().map(|(task, r)| (*task, r)).collect::<Vec<_>>(), "overall"),
        by_opponent: by_opponent.iter().map(|(o, of)| ((*o).to_owned(), slice(of, &format!("opponent {o}")))).collect(),
        by_seat: by_seat.iter().map(|(s, of)| (*s, slice(of, &format!("seat {s}")))).collect(),
    }
}

fn measure(results: &[Numbered<'_>], episodes: u32, unplayed: UnplayedEpisodes, bootstrap: Bootstrap) -> MetricSlice {
    let by_episode =
        (1..=episodes as usize).map(|k| measure_at(results, k, unplayed, bootstrap.child("score"))).collect();
    let average = |(task, r): &Numbered<'_>| {
        let total = r.episodes.iter().map(|e| e.score).sum::<f64>();
        (!r.episodes.is_empty()).then(|| (*task, total / r.episodes.len() as f64))
    };
    MetricSlice {
        meta_episodes: results.len() as u64,
        tasks: results.iter().map(|(task, _)| task).collect::<BTreeSet<_>>().len() as u64,
        by_episode,
        score: bootstrap.child("overall score").mean_by_task(results.iter().filter_map(average)),
        invalid: invalid_rate(results.iter().flat_map(|(_, r)| &r.episodes)),
    }
}

fn measure_at(results: &[Numbered<'_>], k: usize, unplayed: UnplayedEpisodes, bootstrap: Bootstrap) -> EpisodeMetrics {
    let win = |e| e == EpisodeEnding::Won;
    let draw = |e| e == EpisodeEnding::Draw;
    let draw_or_win = |e| win(e) || draw(e);
    let rate = |of: &dyn Fn(&MetaEpisodeResult) -> Option<bool>| {
        RateEstimate::by_task(results.iter().filter_map(|(task, r)| Some((*task, of(r)?))))
    };
    let single = |asked: &dyn Fn(EpisodeEnding) -> bool| rate(&|r| r.at(k, unplayed, asked));
    let played = || results.iter().filter_map(|(task, r)| Some((*task, r.episodes.get(k - 1)?)));
    EpisodeMetrics {
        k: k as u32,
        pass_at_k: rate(&|r| r.within(k, win)),
        draw_or_win_at_k: rate(&|r| r.within(k, draw_or_win)),
        won: single(&win),
        drew: single(&draw),
        draw_or_win: single(&draw_or_win),
        lost: single(&|e| e == EpisodeEnding::Lost),
        truncated: single(&|e| e == EpisodeEnding::Truncated),
        score: bootstrap.at(k as u64).mean_by_task(played().map(|(task, e)| (task, e.score))),
        invalid: invalid_rate(played().map(|(_, e)| e)),
    }
}

fn invalid_rate<'a>(episodes: impl Iterator<Item = &'a EpisodeResult>) -> RateEstimate {
    let (invalid, answers) = episodes.fold((0, 0), |(i, a), e| (i + u64::from(e.invalid), a + u64::from(e.actions)));
    RateEstimate::new(invalid, answers)
}

/// Pass@k of an agent that wins each episode with probability `p` and learns nothing: what a measured Pass@k must beat
/// to show adaptation.
///
/// ```
/// assert!((mage_core::pass_at_k(0.105, 10) - 0.670).abs() < 1e-3);
/// ```
pub fn pass_at_k(p: f64, k: u32) -> f64 {
    1.0 - (1.0 - p).powf(f64::from(k))
}
