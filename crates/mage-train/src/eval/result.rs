//! The result of a policy on a task set.

use mage_core::{EpisodeEnding, MeanEstimate, MetaEpisodeResult, MetricSlice, Trajectory, UnplayedEpisodes, summarise};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scores of a policy on a task set by episode index. Scores and wins are exact expectations where the game can be
/// enumerated, otherwise those of the played episodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// Score by episode index, in the environment's unit.
    pub score: Vec<MeanEstimate>,
    /// Fraction of episodes won, by episode index.
    pub won: Vec<MeanEstimate>,
    /// Score by opponent, by episode index.
    pub by_opponent: BTreeMap<String, Vec<MeanEstimate>>,
    /// Score by seat, by episode index.
    pub by_seat: BTreeMap<u8, Vec<MeanEstimate>>,
    /// Whether scores are exact expectations, given the memories that occurred.
    pub exact: bool,
    /// Failed tasks.
    pub errors: u64,
    /// Failed tasks by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, u64>,
    /// Fraction of invalid actions.
    pub invalid: f64,
}

impl EvalResult {
    /// The result of trajectories, each with the index of its task.
    pub fn new<'t>(trajectories: impl IntoIterator<Item = (usize, &'t Trajectory)>, episodes: u32) -> Self {
        let (mut results, mut failures) = (Vec::new(), BTreeMap::<String, u64>::new());
        for (task, trajectory) in trajectories {
            match trajectory.result() {
                Some(result) => results.push((task, result)),
                None => *failures.entry(trajectory.error.clone().unwrap_or_default()).or_default() += 1,
            }
        }
        let summary = summarise(&results, episodes, UnplayedEpisodes::NotCounted);
        let score = |slice: &MetricSlice| slice.by_episode.iter().map(|at| at.score).collect();
        EvalResult {
            score: score(&summary.overall),
            won: (0..episodes as usize).map(|n| win_probability(&results, n)).collect(),
            by_opponent: summary.by_opponent.iter().map(|(name, slice)| (name.clone(), score(slice))).collect(),
            by_seat: summary.by_seat.iter().map(|(seat, slice)| (*seat, score(slice))).collect(),
            exact: summary.overall.exact,
            errors: failures.values().sum(),
            failures,
            invalid: summary.overall.invalid.rate.unwrap_or(0.0),
        }
    }
}

/// Mean probability to win the episode at index `n`, or fraction of wins where it is not known.
fn win_probability(results: &[(usize, MetaEpisodeResult)], n: usize) -> MeanEstimate {
    MeanEstimate::by_task(results.iter().filter_map(|(task, result)| {
        let episode = result.episodes.get(n)?;
        let won = f64::from(u8::from(episode.ending == EpisodeEnding::Won));
        Some((*task, (result.opponent.as_deref(), result.seat), episode.expected.map_or(won, |e| e.won)))
    }))
}
