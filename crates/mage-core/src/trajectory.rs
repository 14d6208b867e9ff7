//! Trajectories: the record of one meta-episode.
//!
//! Training, evaluation, reports and the board share this format: plain data, one JSON line per trajectory. Other
//! crates read and write the files.

use crate::{Completion, Error, Message, RequestId, RequestKind, Result, episode::Episode};
use mage_env::{Hash, Seed, Task};
use serde::{Deserialize, Serialize};

/// The record of one meta-episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// The identity of the trajectory.
    pub key: TrajectoryKey,
    /// The task.
    pub task: Task,
    /// Whether it stopped at the first win.
    pub stopped_early: bool,
    /// The episodes, in order.
    pub episodes: Vec<Episode>,
    /// The requests, in order.
    pub requests: Vec<RequestRecord>,
    /// The failure, if the meta-episode could not be finished. Such a trajectory counts as an error, never as a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The identity of a trajectory: equal keys imply equal trajectories.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrajectoryKey {
    /// The task set.
    pub task_set: Hash,
    /// The task.
    pub task: Hash,
    /// The prompt method: a hash of its configuration.
    pub method: Hash,
    /// The weights: a name and version, or the name of a scripted agent.
    pub weights: String,
    /// The seed of the agent's randomness.
    pub seed: Seed,
}

/// A request and its completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Index within the meta-episode.
    pub id: RequestId,
    /// The purpose.
    pub kind: RequestKind,
    /// The episode it belongs to.
    pub episode: u32,
    /// The turn within the episode.
    pub turn: u32,
    /// Whether the completion becomes a training sample.
    pub trainable: bool,
    /// The prompt.
    pub messages: Vec<Message>,
    /// The legal completions, if the completion was constrained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// The completion.
    pub completion: Completion,
    /// Why the completion could not be used, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
}

impl Trajectory {
    /// The trajectory as one line of JSON, without a line break.
    pub fn to_json_line(&self) -> String {
        serde_json::to_string(self).expect("a trajectory is plain data")
    }

    /// Parses one line of JSON.
    pub fn from_json_line(line: &str) -> Result<Self> {
        serde_json::from_str(line).map_err(|e| Error::InvalidTrajectory { problem: e.to_string() })
    }

    /// Counts actions: (invalid, all).
    pub fn invalid_actions(&self) -> (u32, u32) {
        let turns = self.episodes.iter().flat_map(|e| &e.turns);
        turns.fold((0, 0), |(invalid, all), t| (invalid + u32::from(!t.valid), all + 1))
    }
}
