//! What was said and done, turn by turn?

use mage_core::{EpisodeEnding, RequestKind, RequestRecord, Role, Trajectory};
use mage_env::{End, Hash, ParsedAction};
use serde::Serialize;

/// One meta-episode for readers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    /// The place of its entry in the report, or nothing for training play.
    pub entry: Option<usize>,
    /// Whose play it is.
    pub of: String,
    /// The environment.
    pub env: String,
    /// The task's hash, shortened.
    pub task: String,
    /// Which of the task's plays it is: its seed.
    pub seed: String,
    /// Who sat opposite.
    pub opponent: Option<String>,
    /// The agent's seat.
    pub seat: u8,
    /// The episodes.
    pub episodes: Vec<Episode>,
    /// What was left unfinished, and why.
    pub error: Option<String>,
}

/// One episode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Episode {
    /// `won`, `draw`, `lost` or `truncated`.
    pub ending: EpisodeEnding,
    /// The result in the environment's own unit.
    pub score: f32,
    /// What was seen first.
    pub start: String,
    /// What was said and done, in order; what was written before or after play included.
    pub steps: Vec<Step>,
}

/// One call and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What it was for.
    pub purpose: RequestKind,
    /// The prompt.
    pub prompt: String,
    /// The answer, as written.
    pub answer: String,
    /// What was done, in play.
    pub action: Option<String>,
    /// Why the answer could not be used.
    pub invalid: Option<String>,
    /// What was seen then, in play.
    pub seen: Option<String>,
}

impl Transcript {
    pub(super) fn new(record: &Trajectory, of: &str, seed: String, limit: usize) -> Self {
        let episodes = record.episodes.iter().enumerate().map(|(n, episode)| {
            let mut steps: Vec<Step> = Vec::new();
            for call in record.requests.iter().filter(|c| c.episode as usize == n) {
                steps.push(step(call, episode.turns.iter().find(|t| t.request == call.id), limit));
            }
            Episode {
                ending: episode.end.unwrap_or(End::Truncated).into(),
                score: episode.score(),
                start: cut(&episode.start.text, limit),
                steps,
            }
        });
        Transcript {
            entry: None,
            of: of.to_owned(),
            env: record.task.env.to_string(),
            task: record.key.task.to_string()[..8].to_owned(),
            seed,
            opponent: record.task.opponent.as_ref().map(|o| o.name.clone()),
            seat: record.task.seat,
            episodes: episodes.collect(),
            error: record.error.as_ref().map(|e| cut(e, limit)),
        }
    }

    /// Whether an episode was won.
    pub fn won(&self) -> bool {
        self.episodes.iter().any(|e| e.ending == EpisodeEnding::Won)
    }
}

fn step(call: &RequestRecord, turn: Option<&mage_core::episode::Turn>, limit: usize) -> Step {
    let prompt: Vec<String> = call
        .messages
        .iter()
        .map(|m| match m.role {
            Role::User => m.content.clone(),
            Role::System => format!("[system] {}", m.content),
            Role::Assistant => format!("[assistant] {}", m.content),
        })
        .collect();
    let action = turn.map(|t| match &t.action {
        ParsedAction::Act(action) => cut(action, limit),
        ParsedAction::Invalid { .. } => "(invalid)".to_owned(),
    });
    Step {
        purpose: call.kind,
        prompt: cut(&prompt.join("\n\n"), limit),
        answer: cut(&call.completion.text, limit),
        action,
        invalid: call.invalid.as_ref().map(|i| cut(i, limit)),
        seen: turn.map(|t| cut(&t.observation.text, limit)),
    }
}

/// At most so many characters, and how many are missing.
pub(super) fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} … ({} more characters)", &text[..end], text[end..].chars().count()),
    }
}

/// Keeps a few meta-episodes of many: won ones and others alike, chosen by hash, so that the order in which they come does not
/// matter.
pub(super) struct Choice {
    most: usize,
    won: Vec<(Hash, Transcript)>,
    other: Vec<(Hash, Transcript)>,
    seen: u64,
}

impl Choice {
    pub(super) fn new(most: usize) -> Self {
        Choice { most, won: Vec::new(), other: Vec::new(), seen: 0 }
    }

    pub(super) fn offer(&mut self, hash: Hash, won: bool, make: impl FnOnce() -> Transcript) {
        self.seen += 1;
        let list = if won { &mut self.won } else { &mut self.other };
        let place = list.partition_point(|(h, _)| *h < hash);
        if place < self.most {
            list.insert(place, (hash, make()));
            list.truncate(self.most);
        }
    }

    /// What was kept, won and other in turns, and how many there were.
    pub(super) fn finish(self) -> (Vec<Transcript>, u64) {
        let (won, other) = (self.won.into_iter(), self.other.into_iter());
        let most = self.most;
        let (mut won, mut other) = (won.map(|(_, t)| t), other.map(|(_, t)| t));
        let mut kept = Vec::new();
        loop {
            let before = kept.len();
            kept.extend(other.next());
            kept.extend(won.next());
            if kept.len() == before || kept.len() >= most {
                kept.truncate(most);
                return (kept, self.seen);
            }
        }
    }
}
