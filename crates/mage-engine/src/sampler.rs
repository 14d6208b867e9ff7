//! Which tokens come next?

use crate::{ActionSet, AdapterName, Allowed, Error, Result, WeightsId};
use serde::{Deserialize, Serialize};
use std::pin::Pin;

/// A future that can be sent between threads, as object-safe traits need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Continues token sequences and says how likely they are.
pub trait Sampler: Send + Sync {
    /// What this sampler can do.
    fn caps(&self) -> &SamplerCaps;

    /// Continues a prompt.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>>;

    /// Says how likely given tokens are.
    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>>;
}

/// What a sampler can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerCaps {
    /// Its name, for messages and records.
    pub engine: String,
    /// Whether it takes and returns token ids (a hosted chat model may not).
    pub token_ids: bool,
    /// What the log-probabilities in a [`Sample`] mean.
    pub logprobs: LogProbs,
    /// Whether it honours [`SampleRequest::allowed`].
    pub masks: bool,
    /// Whether it honours [`SamplingParams::stop_texts`].
    pub stop_texts: bool,
    /// Whether a request's bits do not depend on what else runs.
    pub batch_invariant: bool,
    /// How many tokens prompt and answer may have together.
    pub max_context: usize,
}

/// What log-probabilities are taken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogProbs {
    /// None are returned.
    None,
    /// Of the policy: after the mask, before temperature and filters.
    Raw,
    /// Of the distribution that was sampled from.
    Processed,
    /// Both.
    Both,
}

/// How to draw tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep only this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens that together have this much probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// How many tokens to write at most.
    pub max_tokens: u32,
    /// Tokens that end the answer (and are part of it).
    pub stop_ids: Vec<u32>,
    /// Texts that end the answer (the tokens that complete one are part of it).
    pub stop_texts: Vec<String>,
    /// Where this request's random numbers start.
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
    /// Refuses values that mean nothing, naming the field.
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
            return wrong("max_tokens", "0 tokens would be no answer; ask for at least 1".to_owned());
        }
        if self.stop_texts.iter().any(String::is_empty) {
            return wrong("stop_texts", "an empty text is everywhere; leave it out".to_owned());
        }
        Ok(())
    }
}

/// A prompt to continue.
#[derive(Clone, Debug, Default)]
pub struct SampleRequest {
    /// The weights to use.
    pub weights: AdapterName,
    /// The tokens so far; at least one.
    pub prompt: Vec<u32>,
    /// How to draw.
    pub params: SamplingParams,
    /// The answers that are possible, where not all are.
    pub allowed: Option<ActionSet>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A stop token or text was written, or an answer of the action set is complete.
    Stop,
    /// No more tokens were asked for, or the context is full.
    Length,
}

/// A continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The tokens written, stop token included.
    pub tokens: Vec<u32>,
    /// Each token's log-probability under the policy: after the mask, before temperature and filters.
    pub logprobs: Vec<f32>,
    /// Each token's log-probability in the distribution it was drawn from.
    pub drawn_logprobs: Vec<f32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// The weights it was made with, all of it.
    pub weights: WeightsId,
}

/// Tokens to be scored.
#[derive(Clone, Debug, Default)]
pub struct ScoreRequest {
    /// The weights to use.
    pub weights: AdapterName,
    /// The whole sequence.
    pub tokens: Vec<u32>,
    /// The first token to score; at least 1, since nothing precedes token 0.
    pub from: usize,
    /// What was possible at each scored token; empty where everything always was.
    pub allowed: Vec<Option<Allowed>>,
}

/// How likely each scored token is.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// Log-probability of each token from [`ScoreRequest::from`] on.
    pub logprobs: Vec<f32>,
    /// Entropy of the distribution each was drawn from, in nats; empty where the engine does not tell.
    pub entropies: Vec<f32>,
    /// The weights that were used.
    pub weights: WeightsId,
}

impl ScoreRequest {
    /// Refuses requests that cannot be answered, naming the item.
    pub fn check(&self, vocabulary: usize, max_context: usize) -> Result<()> {
        check_tokens("score request", &self.tokens, vocabulary, max_context)?;
        if self.from == 0 || self.from > self.tokens.len() {
            return Err(Error::invalid(
                "score request: from",
                format!("{} is not between 1 and the number of tokens, {}", self.from, self.tokens.len()),
            ));
        }
        let scored = self.tokens.len() - self.from;
        if !self.allowed.is_empty() && self.allowed.len() != scored {
            return Err(Error::invalid(
                "score request: allowed",
                format!("{} masks for {scored} scored tokens; give one each, or none", self.allowed.len()),
            ));
        }
        for (i, allowed) in self.allowed.iter().enumerate() {
            if let Some(allowed) = allowed {
                let at = self.from + i;
                check_allowed(&format!("score request: token {at}"), allowed, self.tokens[at], vocabulary)?;
            }
        }
        Ok(())
    }
}

impl SampleRequest {
    /// Refuses requests that cannot be answered, naming the item.
    pub fn check(&self, vocabulary: usize, max_context: usize) -> Result<()> {
        check_tokens("prompt", &self.prompt, vocabulary, max_context)?;
        self.params.check()?;
        if self.prompt.len() == max_context {
            return Err(Error::invalid(
                "prompt",
                format!("its {max_context} tokens fill the context, leaving no room for an answer"),
            ));
        }
        if let Some(set) = &self.allowed
            && set.max_token() as usize >= vocabulary
        {
            return Err(Error::invalid(
                "action set",
                format!("token {} is outside the vocabulary of {vocabulary}", set.max_token()),
            ));
        }
        Ok(())
    }
}

pub(crate) fn check_tokens(place: &str, tokens: &[u32], vocabulary: usize, max_context: usize) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::invalid(place, "it has no tokens; give at least one"));
    }
    if tokens.len() > max_context {
        return Err(Error::invalid(
            place,
            format!("{} tokens are more than the context of {max_context}; shorten it", tokens.len()),
        ));
    }
    match tokens.iter().position(|&t| t as usize >= vocabulary) {
        Some(i) => Err(Error::invalid(
            format!("{place}: token {i}"),
            format!("{} is outside the vocabulary of {vocabulary}", tokens[i]),
        )),
        None => Ok(()),
    }
}

pub(crate) fn check_allowed(place: &str, allowed: &[u32], target: u32, vocabulary: usize) -> Result<()> {
    if !allowed.is_sorted_by(|a, b| a < b) {
        return Err(Error::invalid(place, "its allowed tokens are not in ascending order without repeats"));
    }
    if allowed.last().is_some_and(|&t| t as usize >= vocabulary) {
        return Err(Error::invalid(place, format!("its allowed tokens leave the vocabulary of {vocabulary}")));
    }
    if allowed.binary_search(&target).is_err() {
        return Err(Error::invalid(place, format!("token {target} is not among the tokens allowed there")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_refused_by_name() {
        let ok = SampleRequest { prompt: vec![1], ..Default::default() };
        assert!(ok.check(10, 8).is_ok());
        let error = |r: SampleRequest| r.check(10, 8).unwrap_err().to_string();
        assert_eq!(error(SampleRequest::default()), "prompt: it has no tokens; give at least one");
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
    fn scores_are_refused_by_name() {
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
