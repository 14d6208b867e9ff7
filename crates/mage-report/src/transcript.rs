//! Transcripts: trajectories in readable form.

use mage_core::{EpisodeEnding, RequestKind, RequestRecord, Role, Trajectory};
use mage_env::{End, Hash, ParsedAction};
use serde::Serialize;

/// One meta-episode in readable form.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// Index of its result in the report; `None` for training rollouts.
    pub result: Option<usize>,
    /// Method or run.
    pub method: String,
    /// Update of a training rollout.
    pub update: Option<u64>,
    /// Environment.
    pub env: String,
    /// First digits of the task's hash.
    pub task: String,
    /// Label of its seed.
    pub seed: String,
    /// Opponent.
    pub opponent: Option<String>,
    /// Seat of the agent.
    pub seat: u8,
    /// Episodes.
    pub episodes: Vec<TranscriptEpisode>,
    /// Reason of a failed meta-episode.
    pub error: Option<String>,
}

/// One episode of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranscriptEpisode {
    /// `won`, `draw`, `lost` or `truncated`.
    pub ending: EpisodeEnding,
    /// Score in the environment's unit.
    pub score: f32,
    /// First observation.
    pub start: String,
    /// Requests in order, including those before and after play.
    pub steps: Vec<TranscriptStep>,
}

/// One request and its effect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranscriptStep {
    /// Kind of the request.
    pub kind: RequestKind,
    /// Prompt.
    pub prompt: String,
    /// Completion.
    pub completion: String,
    /// Action in the environment.
    pub action: Option<String>,
    /// Reason why the completion was rejected.
    pub invalid: Option<String>,
    /// Observation after the action.
    pub observation: Option<String>,
}

impl Transcript {
    pub(super) fn new(trajectory: &Trajectory, method: &str, seed: String, limit: usize) -> Self {
        let episodes = trajectory.episodes.iter().enumerate().map(|(n, episode)| {
            let mut steps: Vec<TranscriptStep> = Vec::new();
            for request in trajectory.requests.iter().filter(|c| c.episode as usize == n) {
                steps.push(step(request, episode.turns.iter().find(|t| t.request == request.id), limit));
            }
            TranscriptEpisode {
                ending: episode.end.unwrap_or(End::Truncated).into(),
                score: episode.score(),
                start: truncate(&episode.start.text, limit),
                steps,
            }
        });
        Transcript {
            result: None,
            method: method.to_owned(),
            update: None,
            env: trajectory.task.env.to_string(),
            task: trajectory.key.task.to_string()[..8].to_owned(),
            seed,
            opponent: trajectory.task.opponent.as_ref().map(|o| o.name.clone()),
            seat: trajectory.task.seat,
            episodes: episodes.collect(),
            error: trajectory.error.as_ref().map(|e| truncate(e, limit)),
        }
    }

    /// Whether an episode was won.
    pub fn won(&self) -> bool {
        self.episodes.iter().any(|e| e.ending == EpisodeEnding::Won)
    }
}

fn step(request: &RequestRecord, turn: Option<&mage_core::episode::Turn>, limit: usize) -> TranscriptStep {
    let prompt: Vec<String> = request
        .messages
        .iter()
        .map(|m| match m.role {
            Role::User => m.content.clone(),
            Role::System => format!("[system] {}", m.content),
            Role::Assistant => format!("[assistant] {}", m.content),
        })
        .collect();
    let action = turn.map(|t| match &t.action {
        ParsedAction::Act(action) => truncate(action, limit),
        ParsedAction::Invalid { .. } => "(invalid)".to_owned(),
    });
    TranscriptStep {
        kind: request.kind,
        prompt: truncate(&prompt.join("\n\n"), limit),
        completion: truncate(&request.completion.text, limit),
        action,
        invalid: request.invalid.as_ref().map(|i| truncate(i, limit)),
        observation: turn.map(|t| truncate(&t.observation.text, limit)),
    }
}

/// At most `limit` characters, followed by the number of omitted ones.
pub(super) fn truncate(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} … ({} more characters)", &text[..end], text[end..].chars().count()),
    }
}

/// Sample of meta-episodes, with as many won as other ones. Selected by hash, so that the order of arrival does not
/// matter.
pub(super) struct TranscriptSample {
    limit: usize,
    won: Vec<(Hash, Transcript)>,
    other: Vec<(Hash, Transcript)>,
    seen: u64,
}

impl TranscriptSample {
    pub(super) fn new(limit: usize) -> Self {
        TranscriptSample { limit, won: Vec::new(), other: Vec::new(), seen: 0 }
    }

    pub(super) fn offer(&mut self, hash: Hash, won: bool, make: impl FnOnce() -> Transcript) {
        self.seen += 1;
        let list = if won { &mut self.won } else { &mut self.other };
        let index = list.partition_point(|(h, _)| *h < hash);
        if index < self.limit {
            list.insert(index, (hash, make()));
            list.truncate(self.limit);
        }
    }

    /// The sample, alternating between won and other meta-episodes, and the number of meta-episodes offered.
    pub(super) fn finish(self) -> (Vec<Transcript>, u64) {
        let (won, other) = (self.won.into_iter(), self.other.into_iter());
        let limit = self.limit;
        let (mut won, mut other) = (won.map(|(_, t)| t), other.map(|(_, t)| t));
        let mut kept = Vec::new();
        loop {
            let before = kept.len();
            kept.extend(other.next());
            kept.extend(won.next());
            if kept.len() == before || kept.len() >= limit {
                kept.truncate(limit);
                return (kept, self.seen);
            }
        }
    }
}
