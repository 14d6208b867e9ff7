//! A policy that prompts a chat model, for example behind an endpoint.

use super::{
    DecodingConfig, Policy,
    codec::{request_seed, to_core_finish, to_engine_messages},
};
use crate::Result;
use mage_core::{Completion, MetaEpisode, Request, TokenUsage};
use mage_engine::{BoxFuture, ChatModel, ChatRequest, SamplingParams};
use std::sync::Arc;

/// Prompts a [`ChatModel`].
#[derive(Clone)]
pub struct ChatPolicy {
    /// The model.
    pub model: Arc<dyn ChatModel>,
    /// Decoding parameters; each request sets its own length and seed.
    pub decoding: DecodingConfig,
    /// Name of the weights in trajectories.
    pub label: String,
}

impl Policy for ChatPolicy {
    fn respond<'a>(&'a mut self, request: &'a Request, _meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let params = SamplingParams {
                max_tokens: request.body.max_tokens,
                seed: request_seed(request),
                ..self.decoding.params.clone()
            };
            let response = self
                .model
                .complete(ChatRequest {
                    messages: to_engine_messages(&request.body.messages),
                    thinking: self.decoding.thinking,
                    params,
                    allowed_completions: request.body.allowed.clone(),
                })
                .await?;
            Ok(Completion {
                text: response.text,
                tokens: None,
                finish: to_core_finish(response.finish),
                weights: Some(self.label.clone()),
                usage: Some(TokenUsage {
                    prompt_tokens: response.usage.prompt_tokens,
                    completion_tokens: response.usage.completion_tokens,
                }),
            })
        })
    }
}
