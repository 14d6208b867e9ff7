//! How well did one method do on one panel?

use super::{Measured, Moves};
use mage_core::{Bootstrap, MetaEpisodeResult, MetricSlice, MetricSummary, UnplayedEpisodes, summarise};
use mage_env::solvers::{bound_label, is_lower_bound};
use serde::Serialize;

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
    pub opponents: Vec<Part>,
    /// By seat.
    pub seats: Vec<Part>,
    /// What is possible, where that is known.
    pub ceiling: Option<Lines>,
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

/// The tasks against one opponent, or from one seat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// The opponent's name, or the seat's number.
    pub name: String,
    /// Score of the first episode.
    pub first: Measured,
    /// Score of the last; with an early stop, of the tasks not yet won.
    pub last: Measured,
    /// Won at least one episode.
    pub pass: Measured,
}

impl Part {
    fn new(name: String, slice: &MetricSlice) -> Self {
        let none = Measured::default();
        Part {
            name,
            first: slice.by_episode.first().map_or(none, |at| (&at.score).into()),
            last: slice.by_episode.last().map_or(none, |at| (&at.score).into()),
            pass: slice.by_episode.last().map_or(none, |at| (&at.pass_at_k).into()),
        }
    }
}

/// What is possible, by episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lines {
    /// The best policy without memory.
    pub memoryless: Vec<f64>,
    /// The best possible learner.
    pub learner: Vec<f64>,
    /// The best chance of having won within 1, 2, … episodes; empty where it is not known.
    pub pass_at: Vec<f64>,
    /// The best answer to each opponent, known from the start.
    pub best_response: Vec<(String, f64)>,
    /// How far the best learner may lie above its line.
    pub error: f64,
    /// Whether opponents could only be asked for their moves, so that everything rests on samples.
    pub estimated: bool,
}

impl Lines {
    /// How the best learner's scores are known.
    pub(super) fn known(&self) -> &'static str {
        bound_label(self.estimated, is_lower_bound(self.error))
    }

    /// How all else is.
    pub(super) fn rest_known(&self) -> &'static str {
        bound_label(self.estimated, false)
    }
}

/// What is measured, whatever it came from.
pub(super) struct Curves {
    pub(super) curve: Vec<Point>,
    pub(super) opponents: Vec<Part>,
    pub(super) seats: Vec<Part>,
    pub(super) meta_episodes: u64,
    pub(super) tasks: u64,
}

/// From results, each with the number of its task.
pub(super) fn measure(results: &[(usize, MetaEpisodeResult)], episodes: u32) -> Curves {
    from_summary(&summarise(results, episodes, UnplayedEpisodes::NotCounted, Bootstrap::default()))
}

/// From a summary, which may be all that is at hand.
pub(super) fn from_summary(summary: &MetricSummary) -> Curves {
    let curve = summary.overall.by_episode.iter().map(|at| Point {
        k: at.k,
        pass: (&at.pass_at_k).into(),
        draw_or_win: (&at.draw_or_win_at_k).into(),
        won: (&at.won).into(),
        score: (&at.score).into(),
    });
    Curves {
        curve: curve.collect(),
        opponents: summary.by_opponent.iter().map(|(name, slice)| Part::new(name.clone(), slice)).collect(),
        seats: summary.by_seat.iter().map(|(seat, slice)| Part::new(seat.to_string(), slice)).collect(),
        meta_episodes: summary.overall.meta_episodes,
        tasks: summary.overall.tasks,
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

    /// The ceilings of scores, where every episode was played: with an early stop the later ones are of tasks not yet won, and
    /// ceilings are for all.
    pub fn score_ceiling(&self) -> Option<&Lines> {
        self.ceiling.as_ref().filter(|_| !self.early_stop)
    }

    /// The best chance of having won within k episodes, where it is known.
    pub fn best_pass(&self, k: u32) -> Option<f64> {
        self.ceiling.as_ref()?.pass_at.get(k as usize - 1).copied()
    }
}
