//! What does the model say to this?
//!
//! Messages in, text out: all that hosted chat models offer, and what every sampler with a renderer can do too.

use crate::{
    ActionSet, BoxFuture, Error, FinishReason, Message, Renderer, Result, SampleRequest, Sampler, SamplingParams,
    Thinking, WeightsId,
};
use std::sync::Arc;

/// Answers conversations.
pub trait ChatPolicy: Send + Sync {
    /// Completes a conversation with the model's turn.
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatAnswer>>;
}

/// A conversation to be completed.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// What was said.
    pub messages: Vec<Message>,
    /// Whether to think first.
    pub thinking: Thinking,
    /// How to draw. The end of a turn always stops.
    pub params: SamplingParams,
    /// The only answers possible, where not all are.
    pub answers: Option<Vec<String>>,
}

/// The model's turn.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatAnswer {
    /// Everything it wrote, thoughts included, control tokens left out.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// The prompt's tokens, where the model works with tokens.
    pub prompt_tokens: Vec<u32>,
    /// The answer's tokens, likewise.
    pub tokens: Vec<u32>,
    /// The log-probability of each under the policy, likewise.
    pub logprobs: Vec<f32>,
    /// The weights that answered, where known.
    pub weights: Option<WeightsId>,
    /// What it took.
    pub usage: Usage,
}

/// How many tokens an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Read.
    pub prompt: u64,
    /// Written, thoughts included.
    pub answer: u64,
}

/// A sampler and a renderer, as a chat policy.
#[derive(Clone)]
pub struct RenderedPolicy {
    sampler: Arc<dyn Sampler>,
    renderer: Arc<Renderer>,
}

impl RenderedPolicy {
    /// Joins the two.
    pub fn new(sampler: Arc<dyn Sampler>, renderer: Arc<Renderer>) -> Self {
        RenderedPolicy { sampler, renderer }
    }

    /// The request for tokens that a request for text comes to.
    pub fn sample_request(&self, request: &ChatRequest) -> Result<SampleRequest> {
        let control = self.renderer.control();
        let prompt = self.renderer.chat(&request.messages, request.thinking, true)?;
        let mut params = request.params.clone();
        params.stop_ids.extend(control.end_of_turn);
        let allowed = match &request.answers {
            None => None,
            Some(answers) => {
                let (ends, lead) = match request.thinking {
                    Thinking::Off => (None, ""),
                    // Templates with thinking put an empty line between thoughts and answer.
                    Thinking::On => (
                        Some(control.think_end.ok_or_else(|| {
                            Error::unsupported(
                                "mask answers after thinking",
                                "its vocabulary has no </think>; turn thinking off",
                            )
                        })?),
                        "\n\n",
                    ),
                };
                let encoded: Result<Vec<_>> =
                    answers.iter().map(|a| self.renderer.encode(&format!("{lead}{a}"))).collect();
                Some(ActionSet::new(encoded?, control.end_of_turn, ends)?)
            }
        };
        Ok(SampleRequest { prompt, params, allowed, ..Default::default() })
    }
}

impl ChatPolicy for RenderedPolicy {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatAnswer>> {
        Box::pin(async move {
            let asked = self.sample_request(&request)?;
            let prompt_tokens = asked.prompt.clone();
            let sample = self.sampler.sample(asked).await?;
            let usage = Usage { prompt: prompt_tokens.len() as u64, answer: sample.tokens.len() as u64 };
            Ok(ChatAnswer {
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
