//! Paired comparison of methods on the same tasks.
//!
//! Each task set has one baseline to which all other methods are compared: the paper's method if it was evaluated,
//! otherwise the first that is not a scripted agent.

use super::{MethodResult, paper_results};
use mage_core::{MetaEpisodeResult, PairedEpisode, compare_paired};
use mage_env::Hash;
use serde::Serialize;

/// Comparison of two results on their common tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodComparison {
    /// Index of the first result in the report.
    pub first: usize,
    /// Index of the second result in the report.
    pub second: usize,
    /// First minus second, by episode.
    pub by_episode: Vec<PairedEpisode>,
}

/// Meta-episodes of one result, each with an index of its task that is the same in all results.
pub(super) struct TaskResults {
    pub(super) result: usize,
    pub(super) task_set: Hash,
    pub(super) results: Vec<(usize, MetaEpisodeResult)>,
}

/// Compares the baseline of each task set with every other result.
pub(super) fn comparisons(method_results: &[MethodResult], task_results: &[TaskResults]) -> Vec<MethodComparison> {
    let (paper_method, _) = paper_results::TABLE[paper_results::TABLE.len() - 1];
    let rank = |of: &&TaskResults| {
        let r = &method_results[of.result];
        (r.method != paper_method || r.ablation.is_some(), r.policy == "scripted", of.result)
    };
    let baseline = |task_set: Hash| task_results.iter().filter(|r| r.task_set == task_set).min_by_key(rank);
    let compare_with_baseline = |second: &TaskResults| {
        let first = baseline(second.task_set).filter(|first| first.result != second.result)?;
        let episodes = method_results[first.result].episodes.min(method_results[second.result].episodes);
        let by_episode = compare_paired(&first.results, &second.results, episodes);
        let has_common_tasks = by_episode.first().is_some_and(|at| at.pass_at_k.tasks > 0);
        has_common_tasks.then_some(MethodComparison { first: first.result, second: second.result, by_episode })
    };
    task_results.iter().filter_map(compare_with_baseline).collect()
}
