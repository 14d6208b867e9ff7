//! Chat completion: messages in, text out. Hosted chat models implement it, and every [`Sampler`] with a [`Renderer`]
//! can.

use crate::{
    ActionSet, BoxFuture, ChatMessage, Error, FinishReason, Renderer, Result, SampleRequest, Sampler, SamplingParams,
    Thinking, WeightsId,
};
use std::sync::Arc;

/// Completes conversations.
pub trait ChatPolicy: Send + Sync {
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
    /// Prompt tokens, if the model works on tokens.
    pub prompt_tokens: Vec<u32>,
    /// Generated tokens, if the model works on tokens.
    pub tokens: Vec<u32>,
    /// Log-prob of each generated token under the policy, if the model works on tokens.
    pub logprobs: Vec<f32>,
    /// The weights used, if known.
    pub weights: Option<WeightsId>,
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

/// A sampler and a renderer as a chat policy.
#[derive(Clone)]
pub struct RenderedPolicy {
    sampler: Arc<dyn Sampler>,
    renderer: Arc<Renderer>,
}

impl RenderedPolicy {
    /// Creates a chat policy from a sampler and a renderer.
    pub fn new(sampler: Arc<dyn Sampler>, renderer: Arc<Renderer>) -> Self {
        RenderedPolicy { sampler, renderer }
    }

    /// Renders a chat request as a sampler request.
    pub fn sample_request(&self, request: &ChatRequest) -> Result<SampleRequest> {
        let control = self.renderer.control();
        let prompt = self.renderer.encode_chat(&request.messages, request.thinking, true)?;
        let mut params = request.params.clone();
        params.stop_ids.extend(control.end_of_turn);
        let allowed = match &request.allowed_completions {
            None => None,
            Some(completions) => {
                let (think_end, lead) = match request.thinking {
                    Thinking::Off => (None, ""),
                    // Templates with thinking put an empty line between the thinking and the completion.
                    Thinking::On => (
                        Some(control.think_end.ok_or_else(|| {
                            Error::unsupported(
                                "mask completions after thinking",
                                "the vocabulary has no </think> token; turn thinking off",
                            )
                        })?),
                        "\n\n",
                    ),
                };
                let encoded: Result<Vec<_>> =
                    completions.iter().map(|a| self.renderer.encode(&format!("{lead}{a}"))).collect();
                Some(ActionSet::new(encoded?, control.end_of_turn, think_end)?)
            }
        };
        Ok(SampleRequest { prompt, params, allowed, ..Default::default() })
    }
}

impl ChatPolicy for RenderedPolicy {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatCompletion>> {
        Box::pin(async move {
            let sample_request = self.sample_request(&request)?;
            let prompt_tokens = sample_request.prompt.clone();
            let sample = self.sampler.sample(sample_request).await?;
            let usage =
                ChatUsage { prompt_tokens: prompt_tokens.len() as u64, completion_tokens: sample.tokens.len() as u64 };
            Ok(ChatCompletion {
                usage,
                text: self.renderer.decode(&sample.tokens)?,
                finish: sample.finish,
                prompt_tokens,
                tokens: sample.tokens,
                logprobs: sample.logprobs,
                weights: Some(sample.weights),
            })
        })
    }
}
