//! A policy that samples from an engine.

use super::{
    Policy,
    codec::{PromptCodec, request_seed},
};
use crate::Result;
use mage_core::{Completion, MetaEpisode, Request, RequestBody};
use mage_engine::{BoxFuture, Sampler, SamplingParams, ScoreRequest, WeightsName};
use std::sync::Arc;

/// Samples responses from a [`Sampler`].
#[derive(Clone)]
pub struct ModelPolicy {
    /// Tokenisation.
    pub codec: Arc<PromptCodec>,
    /// Samples responses.
    pub sampler: Arc<dyn Sampler>,
    /// Sampling parameters; each request sets its own length and seed.
    pub params: SamplingParams,
    /// Weights to sample from.
    pub weights: WeightsName,
    /// Name of the weights in trajectories.
    pub label: String,
}

impl Policy for ModelPolicy {
    fn respond<'a>(&'a mut self, request: &'a Request, _meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let mut sample_request = self.codec.request(&request.body, &self.params, request_seed(request))?;
            sample_request.weights = self.weights.clone();
            let prompt = sample_request.prompt.clone();
            let sample = self.sampler.sample(sample_request).await?;
            self.codec.completion(prompt, sample, &self.label)
        })
    }
}

impl ModelPolicy {
    /// Probabilities of the given actions after a tokenised prompt, at the temperature of the policy.
    pub(crate) async fn probabilities(
        &self,
        prompt: &[u32],
        actions: &[String],
        request: &RequestBody,
    ) -> Result<Vec<f64>> {
        let mut logprobs = Vec::with_capacity(actions.len());
        for action in actions {
            let response = self.codec.response_tokens(request, action)?;
            let allowed = self.codec.masks(request, &response)?;
            let tokens = [prompt, &response].concat();
            let scored = ScoreRequest { weights: self.weights.clone(), tokens, from: prompt.len(), allowed };
            logprobs.push(self.sampler.score(scored).await?.logprobs.iter().map(|l| f64::from(*l)).sum::<f64>());
        }
        let max = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = match self.params.temperature {
            0.0 => {
                let first = logprobs.iter().position(|l| *l == max);
                (0..logprobs.len()).map(|i| f64::from(u8::from(Some(i) == first))).collect()
            }
            t => logprobs.iter().map(|l| ((l - max) / f64::from(t)).exp()).collect(),
        };
        let total: f64 = weights.iter().sum();
        Ok(weights.into_iter().map(|p| p / total).collect())
    }
}
