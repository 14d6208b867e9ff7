//! Which of two is better on the same tasks?

use super::{
    Played,
    report::{mean, percent},
};
use crate::{
    output::{BOLD, DIM, Output, styled},
    table::{score, table},
};
use mage_core::{Bootstrap, Mean, Pair, PairedAt, PairedRate, compare};
use serde::Serialize;
use std::collections::HashMap;

/// Two entrants, task by task.
#[derive(Serialize)]
pub(super) struct Versus<'a> {
    first: &'a str,
    second: &'a str,
    pairs: usize,
    by_episode: Vec<PairedAt>,
}

impl<'a> Versus<'a> {
    pub(super) fn new(
        first: &'a str,
        ours: &[Played],
        second: &'a str,
        theirs: &[Played],
        episodes: u32,
        bootstrap: Bootstrap,
    ) -> Self {
        let theirs: HashMap<_, _> = theirs.iter().map(|p| ((p.task, p.seed), &p.result)).collect();
        let pairs: Vec<Pair<'_>> = ours
            .iter()
            .filter_map(|p| {
                let second = *theirs.get(&(p.task, p.seed))?;
                Some(Pair { task: p.task, first: &p.result, second })
            })
            .collect();
        Versus { first, second, pairs: pairs.len(), by_episode: compare(&pairs, episodes, bootstrap) }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        let (first, second) = (styled(BOLD, self.first), styled(BOLD, self.second));
        out.line(format!("\n{first} against {second}, task by task: {} pairs; first minus second", self.pairs))?;
        let rate = |r: &PairedRate| {
            let difference = difference(&r.difference);
            vec![difference, format!("{}:{}", r.only_first, r.only_second), format!("{:.3}", r.p_value)]
        };
        let rows = self.by_episode.iter().map(|at| {
            let mut row = vec![at.k.to_string(), mean(&at.score)];
            row.extend(rate(&at.won));
            row.extend(rate(&at.pass_at_k));
            row
        });
        let header = ["episode", "score", "won", "only one", "p", "won by then (Pass@k)", "only one", "p"];
        out.line(format!("\n{}", table(&header, rows)))?;
        out.line(styled(DIM, "p is McNemar's exact test on the tasks that only one of them won"))
    }
}

/// A difference of rates, in points.
fn difference(m: &Mean) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", percent(x), percent(i.low), percent(i.high)),
        (Some(x), None) => score(100.0 * x),
        (None, _) => "-".to_owned(),
    }
}
