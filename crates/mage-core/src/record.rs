//! What is kept of a meta-episode?
//!
//! The one record that training, evaluation, reports and the board share. It is plain data, one JSON line each; files are
//! the business of others.

use crate::{Completion, Error, Message, RequestId, RequestKind, Result, history::Episode};
use mage_env::{Hash, Seed, Task};
use serde::{Deserialize, Serialize};

/// Everything that happened in one meta-episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// What it is found by.
    pub key: TrajectoryKey,
    /// The task.
    pub task: Task,
    /// Whether it ended at the first win.
    pub stopped_early: bool,
    /// The episodes, in order.
    pub episodes: Vec<Episode>,
    /// The calls, in order.
    pub calls: Vec<RequestRecord>,
    /// What went wrong, if it could not be finished. Such a record counts as an error, never as a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What identifies a record: equal keys, equal records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrajectoryKey {
    /// The list of tasks it belongs to.
    pub panel: Hash,
    /// The task.
    pub task: Hash,
    /// How it was played: a hash of the method's settings.
    pub method: Hash,
    /// The weights that played: a name and version, or the name of a rule.
    pub weights: String,
    /// The agent's own luck.
    pub seed: Seed,
}

/// One call and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Its number.
    pub id: RequestId,
    /// What it was for.
    pub purpose: RequestKind,
    /// The episode it belongs to.
    pub episode: u32,
    /// The turn.
    pub turn: u32,
    /// Whether it is to be learned from.
    pub trainable: bool,
    /// The prompt.
    pub messages: Vec<Message>,
    /// The only answers that were allowed, where the answer was constrained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// The answer.
    pub answer: Completion,
    /// Why the answer could not be used, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

impl Trajectory {
    /// The record as one line of JSON, without the line break.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("records are plain data")
    }

    /// Reads one line.
    pub fn from_line(line: &str) -> Result<Self> {
        serde_json::from_str(line).map_err(|e| Error::Record { problem: e.to_string() })
    }

    /// The share of actions that could not be carried out, as (invalid, all).
    pub fn invalid_actions(&self) -> (u32, u32) {
        let turns = self.episodes.iter().flat_map(|e| &e.turns);
        turns.fold((0, 0), |(bad, all), t| (bad + u32::from(!t.valid), all + 1))
    }
}
