//! How well did one method do on one panel?

use super::{Measured, Moves};
use mage_core::{Bootstrap, MetaResult, Summary, Unplayed, pooled, summarise};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One method on one panel, over all its seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The environment.
    pub env: String,
    /// The panel's name.
    pub panel: String,
    /// The panel's hash, shortened.
    pub panel_hash: String,
    /// The method, or the name of a rule.
    pub method: String,
    /// What was changed, in ablations.
    pub ablation: Option<String>,
    /// Who answered.
    pub player: String,
    /// What a score is counted in.
    pub unit: String,
    /// Episodes per task.
    pub episodes: u32,
    /// Whether a task stopped at its first win.
    pub early_stop: bool,
    /// Finished meta-episodes.
    pub meta_episodes: u64,
    /// Tasks among them.
    pub tasks: u64,
    /// Meta-episodes that could not be finished.
    pub errors: u64,
    /// By episode.
    pub curve: Vec<Point>,
    /// By opponent.
    pub opponents: Vec<OpponentAt>,
    /// The scores that are possible, by episode, where they are known and every episode was played.
    pub ceiling: Option<Lines>,
    /// The best chance of having won within 1, 2, … episodes; empty where it is not known.
    pub pass_ceiling: Vec<f64>,
    /// What was done, where.
    #[serde(skip)]
    pub moves: Moves,
}

/// One point of the curves.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The episode, from 1.
    pub k: u32,
    /// Won at least one of the first k.
    pub pass: Measured,
    /// Won or drew at least one of the first k.
    pub draw_or_win: Measured,
    /// Won the k-th.
    pub won: Measured,
    /// Score of the k-th.
    pub score: Measured,
}

/// One opponent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpponentAt {
    /// Its name.
    pub name: String,
    /// Score of the first episode.
    pub first: Measured,
    /// Score of the last.
    pub last: Measured,
}

/// Exact lines by episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    /// The best policy without memory.
    pub memoryless: Vec<f64>,
    /// The best possible learner.
    pub learner: Vec<f64>,
}

/// What is measured, whatever it came from.
pub(super) struct Curves {
    pub(super) curve: Vec<Point>,
    pub(super) opponents: Vec<OpponentAt>,
    pub(super) meta_episodes: u64,
    pub(super) tasks: u64,
}

/// From results, each with the number of its task.
pub(super) fn measure(results: &[(usize, MetaResult)], episodes: u32) -> Curves {
    let bootstrap = Bootstrap::default();
    let plain: Vec<MetaResult> = results.iter().map(|(_, r)| r.clone()).collect();
    let summary = summarise(&plain, episodes, Unplayed::NotCounted, bootstrap);
    let tasks = results.iter().map(|(task, _)| *task).collect::<std::collections::BTreeSet<_>>().len();
    let mut curves = from_summary(&summary, tasks as u64);
    if tasks < results.len() {
        // Several seeds: tasks are what is independent, so intervals are over tasks.
        let by_task = pooled(results, episodes, Unplayed::NotCounted, bootstrap);
        for (point, at) in curves.curve.iter_mut().zip(&by_task) {
            point.pass = (&at.pass_at_k).into();
            point.won = (&at.won).into();
            point.score = (&at.score).into();
            point.draw_or_win = (&at.draw_or_win_at_k).into();
        }
        let mut apart: BTreeMap<&str, Vec<(usize, MetaResult)>> = BTreeMap::new();
        for (task, r) in results {
            if let Some(name) = &r.opponent {
                apart.entry(name).or_default().push((*task, r.clone()));
            }
        }
        for at in &mut curves.opponents {
            let of = pooled(&apart[at.name.as_str()], episodes, Unplayed::NotCounted, bootstrap);
            at.first = of.first().map_or_else(Measured::default, |p| (&p.score).into());
            at.last = of.last().map_or_else(Measured::default, |p| (&p.score).into());
        }
    }
    curves
}

/// From a summary whose records are not at hand.
pub(super) fn from_summary(summary: &Summary, tasks: u64) -> Curves {
    let curve = summary.overall.by_episode.iter().map(|at| Point {
        k: at.k,
        pass: (&at.pass_at_k).into(),
        draw_or_win: (&at.draw_or_win_at_k).into(),
        won: (&at.won).into(),
        score: (&at.score).into(),
    });
    let opponents = summary.by_opponent.iter().map(|(name, slice)| OpponentAt {
        name: name.clone(),
        first: slice.by_episode.first().map_or_else(Measured::default, |at| (&at.score).into()),
        last: slice.by_episode.last().map_or_else(Measured::default, |at| (&at.score).into()),
    });
    Curves {
        curve: curve.collect(),
        opponents: opponents.collect(),
        meta_episodes: summary.overall.meta_episodes,
        tasks,
    }
}

impl Entry {
    /// The method with what was changed.
    pub fn name(&self) -> String {
        match &self.ablation {
            None => self.method.clone(),
            Some(ablation) => format!("{}, {ablation}", self.method),
        }
    }

    /// The last point.
    pub fn last(&self) -> Option<&Point> {
        self.curve.last()
    }
}
