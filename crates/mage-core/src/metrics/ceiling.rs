//! How much of what was possible was reached?
//!
//! Two exact lines give a score its meaning: the best that can be done **without memory**, and what a **Bayes-adaptive**
//! agent reaches in each episode. The way from the first to the second is the room for adaptation; the distance to the
//! second is the regret.

use super::MetaEpisodeResult;
use crate::{Bootstrap, MeanEstimate};
use serde::{Deserialize, Serialize};

/// The two lines, by episode index, in the score's unit and for the same mix of opponents and seats as the results: an
/// average over opponents says nothing of the results against one of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// The best expected score without memory.
    pub memoryless: Vec<f64>,
    /// The Bayes-adaptive optimum's expected score.
    pub adaptive: Vec<f64>,
}

/// Results next to a [`Ceiling`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingComparison {
    /// One entry per episode index that has both results and ceilings.
    pub by_episode: Vec<EpisodeGap>,
    /// Regret summed over those episodes, of the meta-episodes that played them all.
    pub total_regret: MeanEstimate,
}

/// One episode index next to its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeGap {
    /// The episode, from 1.
    pub k: u32,
    /// How far from memoryless (0) to Bayes-adaptive (1) the mean score is; absent where there is no way between the two,
    /// as in a first episode. Noise can take it below 0 and above 1.
    pub gap_fraction: Option<MeanEstimate>,
    /// Adaptive score minus mean score.
    pub regret: MeanEstimate,
}

/// Compares the scores of meta-episodes, each with its task's number, with what was possible.
///
/// ```
/// use mage_core::{Bootstrap, Ceiling, EpisodeEnding, EpisodeResult, MetaEpisodeResult, compare_to_ceiling};
///
/// let episode = |score| EpisodeResult { ending: EpisodeEnding::Won, score, actions: 1, invalid: 0 };
/// let result = MetaEpisodeResult {
///     opponent: None, seat: 0, episodes: vec![episode(0.25), episode(0.5)], stopped_after_win: false,
/// };
/// let ceiling = Ceiling { memoryless: vec![0.25, 0.25], adaptive: vec![0.25, 0.75] };
/// let seen = compare_to_ceiling(&[(0, result)], &ceiling, Bootstrap::default());
/// assert!(seen.by_episode[0].gap_fraction.is_none()); // no room in the first episode
/// assert_eq!(seen.by_episode[1].gap_fraction.unwrap().mean, Some(0.5));
/// assert_eq!(seen.total_regret.mean, Some(0.25));
/// ```
pub fn compare_to_ceiling(
    results: &[(usize, MetaEpisodeResult)],
    ceiling: &Ceiling,
    bootstrap: Bootstrap,
) -> CeilingComparison {
    let played = results.iter().map(|(_, r)| r.episodes.len()).max().unwrap_or(0);
    let episodes = played.min(ceiling.adaptive.len()).min(ceiling.memoryless.len());
    let by_episode = (0..episodes)
        .map(|i| {
            let (low, high) = (ceiling.memoryless[i], ceiling.adaptive[i]);
            let scores = results.iter().filter_map(|(task, r)| Some((*task, r.episodes.get(i)?.score)));
            let score = bootstrap.child("ceiling").at(i as u64).mean_by_task(scores);
            // The share is a straight line through the score, so its interval is the score's under the same line.
            let share = gap_fraction(low, low, high).map(|_| score.map(|x| (x - low) / (high - low)));
            EpisodeGap { k: i as u32 + 1, gap_fraction: share, regret: score.map(|x| high - x) }
        })
        .collect();
    let regret = |r: &MetaEpisodeResult| {
        let pairs = || r.episodes.iter().zip(&ceiling.adaptive).take(episodes);
        (pairs().count() == episodes).then(|| pairs().map(|(e, best)| best - e.score).sum())
    };
    let finished = results.iter().filter(|_| episodes > 0).filter_map(|(task, r)| Some((*task, regret(r)?)));
    CeilingComparison { by_episode, total_regret: bootstrap.child("total regret").mean_by_task(finished) }
}

/// How far `score` is on the way from `memoryless` (0) to `adaptive` (1); `None` unless the way leads up by more than
/// rounding.
pub fn gap_fraction(score: f64, memoryless: f64, adaptive: f64) -> Option<f64> {
    let gap = adaptive - memoryless;
    (gap > 1e-9 * (1.0 + adaptive.abs())).then(|| (score - memoryless) / gap)
}
