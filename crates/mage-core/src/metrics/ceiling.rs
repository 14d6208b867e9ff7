//! Comparison of scores with exact ceilings.
//!
//! Two exact curves put a score into perspective: the best score **without memory** and the **Bayes-adaptive** optimum
//! in each episode. The gap between them is the room for adaptation; the distance to the second is the regret.

use super::MetaEpisodeResult;
use crate::MeanEstimate;
use serde::{Deserialize, Serialize};

/// Exact ceilings by episode index, in the unit of the score. They must be for the same mix of opponents and seats as
/// the results: an average over opponents does not bound the results against one of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Best expected score without memory.
    pub memoryless: Vec<f64>,
    /// Expected score of the Bayes-adaptive optimum.
    pub adaptive: Vec<f64>,
}

/// Results compared with a [`Ceiling`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingComparison {
    /// One entry per episode index with results and ceilings.
    pub by_episode: Vec<EpisodeGap>,
    /// Regret summed over these episodes, for meta-episodes that played all of them.
    pub total_regret: MeanEstimate,
}

/// One episode index compared with its ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeGap {
    /// The episode, from 1.
    pub k: u32,
    /// Position of the mean score between memoryless (0) and Bayes-adaptive (1). Absent if both are equal, as in the
    /// first episode, or closer than the half width of the score's interval, or if played scores have no interval. Noise
    /// can move it below 0 or above 1.
    pub gap_fraction: Option<MeanEstimate>,
    /// Bayes-adaptive score minus mean score.
    pub regret: MeanEstimate,
}

/// Compares the scores of meta-episodes, each with the index of its task, with the ceiling. Episodes with an expectation
/// count with their expected score. Means are stratified by opponent and seat.
///
/// ```
/// use mage_core::{Ceiling, EpisodeEnding, EpisodeResult, MetaEpisodeResult, compare_to_ceiling, episode::ExpectedValue};
///
/// let episode = |score| {
///     let expected = Some(ExpectedValue { score: f64::from(score), won: 0.5 });
///     EpisodeResult { ending: EpisodeEnding::Won, score, actions: 1, invalid: 0, expected }
/// };
/// let result = MetaEpisodeResult {
///     opponent: None, seat: 0, episodes: vec![episode(0.25), episode(0.5)], stopped_after_win: false,
/// };
/// let ceiling = Ceiling { memoryless: vec![0.25, 0.25], adaptive: vec![0.25, 0.75] };
/// let comparison = compare_to_ceiling(&[(0, result)], &ceiling);
/// assert!(comparison.by_episode[0].gap_fraction.is_none()); // no gap in the first episode
/// assert_eq!(comparison.by_episode[1].gap_fraction.unwrap().mean, Some(0.5));
/// assert_eq!(comparison.total_regret.mean, Some(0.25));
/// ```
pub fn compare_to_ceiling(results: &[(usize, MetaEpisodeResult)], ceiling: &Ceiling) -> CeilingComparison {
    let played = results.iter().map(|(_, r)| r.episodes.len()).max().unwrap_or(0);
    let episodes = played.min(ceiling.adaptive.len()).min(ceiling.memoryless.len());
    let by_episode = (0..episodes)
        .map(|i| {
            let (low, high) = (ceiling.memoryless[i], ceiling.adaptive[i]);
            let scores =
                results.iter().filter_map(|(task, r)| Some((*task, r.stratum(), r.episodes.get(i)?.estimated_score())));
            let score = MeanEstimate::by_task(scores);
            // Played scores without an interval, such as that of a single task, have an unknown uncertainty.
            let exact = results.iter().filter_map(|(_, r)| r.episodes.get(i)).all(|e| e.expected.is_some());
            let gap_fraction = gap_closed(score, low, high).filter(|gap| exact || gap.interval.is_some());
            EpisodeGap { k: i as u32 + 1, gap_fraction, regret: score.map(|x| high - x) }
        })
        .collect();
    let regret = |r: &MetaEpisodeResult| {
        let pairs = || r.episodes.iter().zip(&ceiling.adaptive).take(episodes);
        (pairs().count() == episodes).then(|| pairs().map(|(e, best)| best - e.estimated_score()).sum())
    };
    let finished =
        results.iter().filter(|_| episodes > 0).filter_map(|(task, r)| Some((*task, r.stratum(), regret(r)?)));
    CeilingComparison { by_episode, total_regret: MeanEstimate::by_task(finished) }
}

/// Position of an estimated score between `memoryless` (0) and `adaptive` (1), with its interval. `None` without a gap, or
/// if the gap is smaller than the half width of the score's interval, since the position then says nothing, unless the
/// score is clearly below `memoryless`.
pub fn gap_closed(score: MeanEstimate, memoryless: f64, adaptive: f64) -> Option<MeanEstimate> {
    gap_fraction(memoryless, memoryless, adaptive)?;
    // The fraction is linear in the score, and so is its interval.
    let fraction = score.map(|x| (x - memoryless) / (adaptive - memoryless));
    Some(fraction).filter(|f| f.mean.is_some() && f.interval.is_none_or(|i| i.high - i.low < 2.0 || i.high < 0.0))
}

/// Position of `score` between `memoryless` (0) and `adaptive` (1); `None` unless `adaptive` exceeds `memoryless` by
/// more than rounding.
pub fn gap_fraction(score: f64, memoryless: f64, adaptive: f64) -> Option<f64> {
    let gap = adaptive - memoryless;
    (gap > 1e-9 * (1.0 + adaptive.abs())).then(|| (score - memoryless) / gap)
}
