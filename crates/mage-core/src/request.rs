//! Requests to a policy and their completions.
//!
//! Both are plain data. The driver of a [`MetaEpisode`](crate::MetaEpisode) may answer a [`Request`] with an engine, an
//! HTTP endpoint, a scripted agent or a person.

use mage_env::Seed;
use serde::{Deserialize, Serialize};

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Choose an action.
    Play,
    /// Reflect on a finished episode.
    Reflect,
    /// Write a plan before an episode (Memento).
    Plan,
    /// Write a memory note about an episode (A-MEM).
    Note,
    /// Link a new note to existing notes and revise them (A-MEM).
    Evolve,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// System instructions.
    System,
    /// The user side of the chat: the prompt.
    User,
    /// The model.
    Assistant,
}

/// One message of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
}

impl Message {
    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Message { role: Role::User, content: content.into() }
    }
}

/// The index of a request within its meta-episode, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u32);

/// The content of a request, without its position in a meta-episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBody {
    /// The purpose.
    pub kind: RequestKind,
    /// The prompt.
    pub messages: Vec<Message>,
    /// The legal completions (after thinking), if the completion is constrained.
    pub allowed: Option<Vec<String>>,
    /// Maximum length of the completion.
    pub max_tokens: u32,
    /// Whether the completion becomes a training sample.
    pub trainable: bool,
}

/// One prompt to the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Index within the meta-episode.
    pub id: RequestId,
    /// The episode it belongs to. A request between two episodes belongs to the later one.
    pub episode: u32,
    /// The turn within the episode.
    pub turn: u32,
    /// Seed of the sampler.
    pub seed: Seed,
    /// Prompt and limits.
    pub body: RequestBody,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token or stop string.
    #[default]
    Stop,
    /// The token limit.
    Length,
}

/// Token ids as sampled. Training uses them directly and never re-tokenizes text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionTokens {
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Completion tokens.
    pub response: Vec<u32>,
    /// Log-probabilities of the completion under the sampling policy: after masks, before temperature and filters.
    pub logprobs: Vec<f32>,
}

/// The response of a policy to a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The text, including thinking.
    pub text: String,
    /// The tokens, if the engine reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<CompletionTokens>,
    /// Why it ended.
    #[serde(default)]
    pub finish: Finish,
    /// Name and version of the weights (`policy@17`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// Token counts, if the engine reports counts instead of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
}

/// Token counts of one completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the completion, including thinking.
    pub completion_tokens: u64,
}

impl Completion {
    /// Token counts, if known.
    pub fn token_usage(&self) -> Option<TokenUsage> {
        let count = |t: &CompletionTokens| TokenUsage {
            prompt_tokens: t.prompt.len() as u64,
            completion_tokens: t.response.len() as u64,
        };
        self.usage.or_else(|| self.tokens.as_ref().map(count))
    }

    /// A completion with text only.
    pub fn from_text(text: impl Into<String>) -> Self {
        Completion { text: text.into(), ..Completion::default() }
    }
}
