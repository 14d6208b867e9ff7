//! The [`Sampler`] trait: token generation and scoring.
//!
//! Requests and responses are tokens. A request names its weights and is answered with one version of them, which the
//! response states. If the sampler is [`batch_invariant`](SamplerCaps::batch_invariant), the seed of a request determines
//! its tokens. Masks belong to the policy: raw log-probs and entropies are taken after the mask, before temperature and
//! filters.

use crate::{ActionSet, Allowed, Error, Result, WeightsId, WeightsName};
use serde::{Deserialize, Serialize};
use std::pin::Pin;

/// A boxed `Send` future, for object-safe traits.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Generates and scores tokens.
pub trait Sampler: Send + Sync {
    /// Capabilities of this sampler.
    fn caps(&self) -> &SamplerCaps;

    /// Generates a completion of a prompt.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>>;

    /// Computes the log-probs of given tokens.
    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>>;
}

/// Capabilities of a sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerCaps {
    /// Which log-probs a [`Sample`] holds.
    pub logprobs: LogprobsMode,
    /// Whether a request's bits do not depend on what else runs in the batch.
    pub batch_invariant: bool,
    /// Maximum tokens of prompt and completion together.
    pub max_seq_len: usize,
}

/// Which distribution log-probs refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The policy: after the mask, before temperature and filters.
    Raw,
    /// The distribution that was sampled from: after temperature and filters.
    Processed,
    /// Both.
    Both,
}

/// Sampling parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the most likely tokens whose total probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Maximum tokens to generate.
    pub max_tokens: u32,
    /// Tokens that end the completion and are part of it.
    pub stop_ids: Vec<u32>,
    /// Texts that end the completion. The tokens that complete one are part of it.
    pub stop_texts: Vec<String>,
    /// Seed of this request's RNG.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            max_tokens: 256,
            stop_ids: Vec::new(),
            stop_texts: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Returns an error that names the field if a value is out of range.
    pub fn check(&self) -> Result<()> {
        let wrong = |field: &str, problem: String| Err(Error::invalid(format!("sampling.{field}"), problem));
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong("temperature", format!("{} is not a finite number of at least 0", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", format!("{} is not above 0 and at most 1", self.top_p));
        }
        if !(self.min_p >= 0.0 && self.min_p <= 1.0) {
            return wrong("min_p", format!("{} is not between 0 and 1", self.min_p));
        }
        if self.max_tokens == 0 {
            return wrong("max_tokens", "must be at least 1".to_owned());
        }
        if self.stop_texts.iter().any(String::is_empty) {
            return wrong("stop_texts", "an empty text would match everywhere; remove it".to_owned());
        }
        Ok(())
    }
}

/// A request to complete a prompt.
#[derive(Clone, Debug, Default)]
pub struct SampleRequest {
    /// Name of the weights to use.
    pub weights: WeightsName,
    /// Prompt tokens, at least one.
    pub prompt: Vec<u32>,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// The legal completions, if restricted.
    pub allowed: Option<ActionSet>,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or text was generated, or a completion of the action set is complete.
    Stop,
    /// `max_tokens` is reached or the context is full.
    Length,
}

/// A sampled completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Generated tokens, including the stop token.
    pub tokens: Vec<u32>,
    /// Log-prob of each token under the policy: after the mask, before temperature and filters.
    pub logprobs: Vec<f32>,
    /// Log-prob of each token in the distribution it was sampled from.
    pub processed_logprobs: Vec<f32>,
    /// Why the completion ended.
    pub finish: FinishReason,
    /// The weights that generated all of it.
    pub weights: WeightsId,
}

/// A request to score tokens.
#[derive(Clone, Debug, Default)]
pub struct ScoreRequest {
    /// Name of the weights to use.
    pub weights: WeightsName,
    /// The whole sequence, context included.
    pub tokens: Vec<u32>,
    /// Index of the first token to score, at least 1: token 0 has no context.
    pub from: usize,
    /// Mask of each scored token; empty if no token is masked.
    pub allowed: Vec<Option<Allowed>>,
}

/// Log-probs and entropies of scored tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// Log-prob of each token from [`ScoreRequest::from`] on.
    pub logprobs: Vec<f32>,
    /// Entropy of the policy at each token, in nats; empty if the engine does not report it.
    pub entropies: Vec<f32>,
    /// The weights that were used.
    pub weights: WeightsId,
}

impl ScoreRequest {
    /// Returns an error that names the field if the request is invalid.
    pub fn check(&self, vocab_size: usize, max_seq_len: usize) -> Result<()> {
        check_tokens("score request", &self.tokens, vocab_size, max_seq_len)?;
        if self.from == 0 || self.from > self.tokens.len() {
            return Err(Error::invalid(
                "score request: from",
                format!("{} is not between 1 and the number of tokens ({})", self.from, self.tokens.len()),
            ));
        }
        let scored = self.tokens.len() - self.from;
        if !self.allowed.is_empty() && self.allowed.len() != scored {
            return Err(Error::invalid(
                "score request: allowed",
                format!("{} masks for {scored} scored tokens; pass one per token, or none", self.allowed.len()),
            ));
        }
        for (i, allowed) in self.allowed.iter().enumerate() {
            if let Some(allowed) = allowed {
                let at = self.from + i;
                check_allowed(&format!("score request: token {at}"), allowed, self.tokens[at], vocab_size)?;
            }
        }
        Ok(())
    }
}

impl SampleRequest {
    /// Returns an error that names the field if the request is invalid.
    pub fn check(&self, vocab_size: usize, max_seq_len: usize) -> Result<()> {
        check_tokens("prompt", &self.prompt, vocab_size, max_seq_len)?;
        self.params.check()?;
        if self.prompt.len() == max_seq_len {
            return Err(Error::invalid(
                "prompt",
                format!("its {max_seq_len} tokens fill the context, which leaves no room for a completion"),
            ));
        }
        if let Some(set) = &self.allowed
            && set.max_token() as usize >= vocab_size
        {
            return Err(Error::invalid(
                "action set",
                format!("token {} is outside the vocabulary of {vocab_size}", set.max_token()),
            ));
        }
        Ok(())
    }
}

pub(crate) fn check_tokens(subject: &str, tokens: &[u32], vocab_size: usize, max_seq_len: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::invalid(subject, "has no tokens; pass at least one"));
    }
    if tokens.len() > max_seq_len {
        return Err(Error::invalid(
            subject,
            format!("{} tokens exceed the context of {max_seq_len}; shorten it", tokens.len()),
        ));
    }
    match tokens.iter().position(|&t| t as usize >= vocab_size) {
        Some(i) => Err(Error::invalid(
            format!("{subject}: token {i}"),
            format!("{} is outside the vocabulary of {vocab_size}", tokens[i]),
        )),
        None => Ok(()),
    }
}

pub(crate) fn check_allowed(subject: &str, allowed: &[u32], target: u32, vocab_size: usize) -> Result<()> {
    if !allowed.is_sorted_by(|a, b| a < b) {
        return Err(Error::invalid(subject, "the allowed tokens are not strictly ascending"));
    }
    if allowed.last().is_some_and(|&t| t as usize >= vocab_size) {
        return Err(Error::invalid(subject, format!("an allowed token is outside the vocabulary of {vocab_size}")));
    }
    if allowed.binary_search(&target).is_err() {
        return Err(Error::invalid(subject, format!("token {target} is not among its allowed tokens")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_sample_requests_are_rejected_by_field() {
        let ok = SampleRequest { prompt: vec![1], ..Default::default() };
        assert!(ok.check(10, 8).is_ok());
        let error = |r: SampleRequest| r.check(10, 8).unwrap_err().to_string();
        assert_eq!(error(SampleRequest::default()), "prompt: has no tokens; pass at least one");
        assert!(error(SampleRequest { prompt: vec![1, 10], ..Default::default() }).starts_with("prompt: token 1: 10"));
        assert!(error(SampleRequest { prompt: vec![1; 9], ..Default::default() }).contains("shorten"));
        assert!(error(SampleRequest { prompt: vec![1; 8], ..Default::default() }).contains("no room"));
        let mut bad = ok.clone();
        bad.params.temperature = f32::NAN;
        assert!(error(bad).starts_with("sampling.temperature"));
        let mut bad = ok;
        bad.allowed = Some(ActionSet::new([[11]], None, None).unwrap());
        assert!(error(bad).contains("token 11"));
    }

    #[test]
    fn invalid_score_requests_are_rejected_by_field() {
        let base = ScoreRequest { tokens: vec![1, 2, 3], from: 1, ..Default::default() };
        assert!(base.check(10, 8).is_ok());
        let error = |r: &ScoreRequest| r.check(10, 8).unwrap_err().to_string();
        assert!(error(&ScoreRequest { from: 0, ..base.clone() }).contains("from"));
        assert!(error(&ScoreRequest { allowed: vec![None], ..base.clone() }).contains("1 masks for 2"));
        let outside = vec![None, Some([4, 5].into())];
        assert!(error(&ScoreRequest { allowed: outside, ..base.clone() }).contains("token 3 is not among"));
        let unsorted = vec![None, Some([5, 3].into())];
        assert!(error(&ScoreRequest { allowed: unsorted, ..base }).contains("ascending"));
    }
}
