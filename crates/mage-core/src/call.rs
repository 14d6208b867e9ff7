//! What is asked of a model, and what comes back?
//!
//! A [`Request`] is plain data: whoever drives a [`MetaEpisode`](crate::MetaEpisode) may answer it with an engine, an HTTP
//! endpoint, a rule or a person.

use mage_env::Seed;
use serde::{Deserialize, Serialize};

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Choose an action.
    Play,
    /// Look back on a finished episode.
    Reflect,
    /// Lay out a plan before playing.
    Plan,
    /// Write a note about something seen.
    Note,
    /// Revise notes in the light of a new one.
    Evolve,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Standing instructions.
    System,
    /// Us.
    User,
    /// The model.
    Assistant,
}

/// One message of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of ours.
    pub fn user(content: impl Into<String>) -> Self {
        Message { role: Role::User, content: content.into() }
    }
}

/// The number of a call within its meta-episode, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u32);

/// What a call asks for, before it has its place in a meta-episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBody {
    /// What it is for.
    pub purpose: RequestKind,
    /// The prompt.
    pub messages: Vec<Message>,
    /// The only answers allowed (after thinking), where the answer may be constrained.
    pub allowed: Option<Vec<String>>,
    /// How long the answer may be.
    pub max_tokens: u32,
    /// Whether the answer is to be learned from.
    pub trainable: bool,
}

/// Something a model is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The episode it belongs to: for calls between two episodes, the later one.
    pub episode: u32,
    /// The turn within the episode.
    pub turn: u32,
    /// The stream its sampling must come from.
    pub seed: Seed,
    /// What is asked.
    pub request: RequestBody,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was complete.
    #[default]
    Stop,
    /// It reached its limit.
    Length,
}

/// Token ids exactly as sampled: what was sampled is what is trained on, never re-tokenised text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionTokens {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The answer.
    pub response: Vec<u32>,
    /// Log-probabilities of the answer under the policy that gave it, after masks, before temperature and filters.
    pub logprobs: Vec<f32>,
}

/// A model's answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The text, thinking included.
    pub text: String,
    /// Its tokens, from engines that give them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<CompletionTokens>,
    /// Why it ended.
    #[serde(default)]
    pub finish: Finish,
    /// The name and version of the weights that gave it (`policy@17`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// How many tokens it took, from engines that count them but do not give them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// How many tokens an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Read.
    pub prompt: u64,
    /// Written, thoughts included.
    pub answer: u64,
}

impl Completion {
    /// How many tokens it took, where that is known.
    pub fn used(&self) -> Option<TokenUsage> {
        let counted =
            |t: &CompletionTokens| TokenUsage { prompt: t.prompt.len() as u64, answer: t.response.len() as u64 };
        self.usage.or_else(|| self.tokens.as_ref().map(counted))
    }

    /// An answer that is only text.
    pub fn text(text: impl Into<String>) -> Self {
        Completion { text: text.into(), ..Completion::default() }
    }
}
