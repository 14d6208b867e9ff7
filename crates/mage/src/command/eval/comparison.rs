//! Paired comparison of two policies on the same tasks.

use super::{
    PolicyResults,
    report::{mean, percent},
};
use crate::{
    output::{BOLD, DIM, Output, styled},
    table::{score, table},
};
use mage_core::{MeanEstimate, PairedEpisode, PairedRate, compare_paired};
use mage_report::p_value;
use serde::Serialize;

/// Paired comparison of two policies.
#[derive(Serialize)]
pub(super) struct PolicyComparison<'a> {
    first: &'a str,
    second: &'a str,
    /// Number of tasks that both finished.
    tasks: u64,
    seeds: u64,
    by_episode: Vec<PairedEpisode>,
}

impl<'a> PolicyComparison<'a> {
    pub(super) fn new(
        (first, first_results): (&'a str, &PolicyResults),
        (second, second_results): (&'a str, &PolicyResults),
        episodes: u32,
        seeds: u64,
    ) -> Self {
        let by_episode = compare_paired(&first_results.by_task(|_| true), &second_results.by_task(|_| true), episodes);
        let tasks = by_episode.first().map_or(0, |at| at.pass_at_k.tasks);
        PolicyComparison { first, second, tasks, seeds, by_episode }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        let (first, second) = (styled(BOLD, self.first), styled(BOLD, self.second));
        let seeds = if self.seeds > 1 { format!(" with {} seeds each", self.seeds) } else { String::new() };
        out.line(format!("\n{first} compared with {second}: {} tasks{seeds}; first minus second", self.tasks))?;
        let rate = |r: &PairedRate| {
            let difference = difference(&r.difference);
            vec![difference, format!("{}:{}", r.first_ahead, r.second_ahead), p_value(r.p_value)]
        };
        let rows = self.by_episode.iter().map(|at| {
            let mut row = vec![at.k.to_string(), mean(&at.score)];
            row.extend(rate(&at.won));
            row.extend(rate(&at.pass_at_k));
            row
        });
        let header = ["episode", "score", "won", "ahead", "p", "Pass@k", "ahead", "p"];
        out.line(format!("\n{}", table(&header, rows)))?;
        let seeds = if self.seeds > 1 { "; a task with all its seeds counts once" } else { "" };
        out.line(styled(DIM, format!("ahead: number of tasks that one won more often; p: McNemar's test{seeds}")))
    }
}

/// A difference of rates in percentage points.
fn difference(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", percent(x), percent(i.low), percent(i.high)),
        (Some(x), None) => score(100.0 * x),
        (None, _) => "-".to_owned(),
    }
}
