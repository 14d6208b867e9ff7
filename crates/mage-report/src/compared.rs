//! Which of two methods is better on the same tasks?
//!
//! On every panel one method is the measure of all others: the paper's own where it played, else the first that is no rule.

use super::{Entry, paper};
use mage_core::{Bootstrap, MetaEpisodeResult, PairedEpisode, compare_paired};
use mage_env::Hash;
use serde::Serialize;

/// Two entries on the tasks that both played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The place of the first among the report's entries.
    pub first: usize,
    /// The place of the second.
    pub second: usize,
    /// First minus second, by episode.
    pub by_episode: Vec<PairedEpisode>,
}

/// An entry's results, each with the number of its task, which is the same in all entries.
pub(super) struct Side {
    pub(super) entry: usize,
    pub(super) panel: Hash,
    pub(super) results: Vec<(usize, MetaEpisodeResult)>,
}

/// The measure of its panel beside each other entry there.
pub(super) fn comparisons(entries: &[Entry], sides: &[Side]) -> Vec<Comparison> {
    let (best, _) = paper::TABLE[paper::TABLE.len() - 1];
    let rank = |side: &&Side| {
        let e = &entries[side.entry];
        (e.method != best || e.ablation.is_some(), e.player == "scripted", side.entry)
    };
    let measure = |panel: Hash| sides.iter().filter(|s| s.panel == panel).min_by_key(rank);
    let compared = |second: &Side| {
        let first = measure(second.panel).filter(|first| first.entry != second.entry)?;
        let episodes = entries[first.entry].episodes.min(entries[second.entry].episodes);
        let by_episode = compare_paired(&first.results, &second.results, episodes, Bootstrap::default());
        let met = by_episode.first().is_some_and(|at| at.pass_at_k.tasks > 0);
        met.then_some(Comparison { first: first.entry, second: second.entry, by_episode })
    };
    sides.iter().filter_map(compared).collect()
}
