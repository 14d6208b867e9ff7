//! Chat completion: messages in, text out. Hosted chat models implement it.

use crate::{BoxFuture, ChatMessage, FinishReason, Result, SamplingParams, Thinking};

/// Completes conversations.
pub trait ChatModel: Send + Sync {
    /// Generates the next assistant message.
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatCompletion>>;
}

/// A chat completion request.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// Messages so far.
    pub messages: Vec<ChatMessage>,
    /// Whether the model thinks first.
    pub thinking: Thinking,
    /// Sampling parameters. The end-of-turn token always stops.
    pub params: SamplingParams,
    /// The legal completions, if restricted.
    pub allowed_completions: Option<Vec<String>>,
}

/// A chat completion.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatCompletion {
    /// Generated text with its thinking, without control tokens.
    pub text: String,
    /// Why the completion ended.
    pub finish: FinishReason,
    /// Token counts.
    pub usage: ChatUsage,
}

/// Token counts of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Generated tokens, thinking included.
    pub completion_tokens: u64,
}
