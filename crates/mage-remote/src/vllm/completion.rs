//! What is a vLLM server asked for tokens, and what does it answer?
//!
//! `POST /v1/completions` with token ids in and out: texts never matter, since fragments of letters have none.

use crate::http::client::HttpRequest;
use mage_engine::{FinishReason, Result, SampleRequest, ScoreRequest};
use serde::{Deserialize, Serialize};

/// A request for tokens. Thousands are under way at once: it is written out as it stands, without a tree of values between.
#[derive(Serialize)]
pub(super) struct Completions<'r> {
    model: &'r str,
    prompt: &'r [u32],
    max_tokens: u32,
    temperature: f32,
    logprobs: u32,
    return_token_ids: bool,
    /// The ends are ours to name: the model's own file may know others.
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_token_ids: Option<[u32; 1]>,
}

impl<'r> Completions<'r> {
    fn new(model: &'r str, prompt: &'r [u32], max_tokens: u32) -> Self {
        Completions {
            model,
            prompt,
            max_tokens,
            temperature: 1.0,
            logprobs: 0,
            return_token_ids: true,
            ignore_eos: true,
            top_p: None,
            seed: None,
            stop_token_ids: None,
            top_k: None,
            min_p: None,
            allowed_token_ids: None,
        }
    }

    pub(super) fn sampled(model: &'r str, request: &'r SampleRequest) -> Self {
        let params = &request.params;
        Completions {
            temperature: params.temperature,
            top_p: Some(params.top_p),
            seed: Some(params.seed >> 33),
            stop_token_ids: Some(&params.stop_ids),
            top_k: (params.top_k > 0).then_some(params.top_k),
            min_p: (params.min_p > 0.0).then_some(params.min_p),
            ..Completions::new(model, &request.prompt, params.max_tokens)
        }
    }

    pub(super) fn ask(&self) -> HttpRequest {
        HttpRequest::post("v1/completions", self)
    }

    /// For the log-probability of one token.
    pub(super) fn scored(model: &'r str, tokens: &'r [u32], at: usize) -> Self {
        Completions { allowed_token_ids: Some([tokens[at]]), ..Completions::new(model, &tokens[..at], 1) }
    }
}

/// Tokens that a server wrote.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) finish: FinishReason,
}

#[derive(Deserialize)]
pub(super) struct Completion {
    pub(super) choices: Vec<Choice>,
}

#[derive(Deserialize)]
pub(super) struct Choice {
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<TokenLogprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct TokenLogprobs {
    token_logprobs: Vec<Option<f32>>,
}

pub(super) fn read_written(choice: Choice, most: usize, vocabulary: usize) -> std::result::Result<Written, String> {
    let tokens = choice.token_ids.ok_or("it has no token ids; the server must know `return_token_ids`")?;
    let logprobs = choice.logprobs.ok_or("it has no log-probabilities")?.token_logprobs;
    if tokens.len() != logprobs.len() {
        return Err(format!("{} tokens have {} log-probabilities", tokens.len(), logprobs.len()));
    }
    if tokens.is_empty() || tokens.len() > most {
        return Err(format!("{} tokens where between 1 and {most} were asked for", tokens.len()));
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
        return Err(format!("token {token} is none of the {vocabulary} in the vocabulary"));
    }
    let logprobs = logprobs.into_iter().map(likely).collect::<std::result::Result<Vec<f32>, String>>()?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    Ok(Written { tokens, logprobs, finish })
}

pub(super) fn read_score(choice: Choice, token: u32) -> std::result::Result<f32, String> {
    let Written { tokens, logprobs, .. } = read_written(choice, 1, usize::MAX)?;
    match tokens[0] == token {
        true => Ok(logprobs[0]),
        false => Err(format!("token {} where only {token} was allowed", tokens[0])),
    }
}

/// A log-probability, or what is wrong with it.
fn likely(logprob: Option<f32>) -> std::result::Result<f32, String> {
    match logprob {
        Some(l) if l.is_finite() && l <= 1e-3 => Ok(l),
        other => Err(format!("a log-probability is {other:?}")),
    }
}

/// Whether a score request asks for what cannot be had.
pub(super) fn check_score(request: &ScoreRequest) -> Result<()> {
    match request.allowed.iter().any(Option::is_some) {
        true => {
            Err(mage_engine::Error::unsupported("score with masks", "play without them: play.mask_actions = false"))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_engine::SamplingParams;
    use serde_json::{Value, json};

    fn choice(json: Value) -> Choice {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn requests_speak_in_token_ids() {
        let request = SampleRequest {
            prompt: vec![3, 1],
            params: SamplingParams {
                temperature: 0.7,
                max_tokens: 4,
                stop_ids: vec![2],
                seed: u64::MAX,
                ..Default::default()
            },
            ..Default::default()
        };
        let expected = json!({"model": "policy@3", "prompt": [3, 1], "max_tokens": 4, "temperature": 0.7, "top_p": 1.0,
            "seed": 0x7fff_ffff_u32, "logprobs": 0, "return_token_ids": true, "ignore_eos": true, "stop_token_ids": [2]});
        // As text: 0.7 stays 0.7, and is not the nearest double to the nearest float.
        let text = serde_json::to_string(&Completions::sampled("policy@3", &request)).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let said = json!({"token_ids": [4, 2], "logprobs": {"token_logprobs": [-0.5, -0.1]}, "finish_reason": "stop"});
        let written = read_written(choice(said.clone()), 4, 16).unwrap();
        assert_eq!((written.tokens, written.finish), (vec![4, 2], FinishReason::Stop));
        let with = |field: &str, value: Value| {
            let mut said = said.clone();
            said[field] = value;
            read_written(choice(said), 4, 16).unwrap_err()
        };
        assert!(with("token_ids", Value::Null).contains("return_token_ids"));
        assert!(with("token_ids", json!([4])).contains("1 tokens have 2"));
        assert!(with("token_ids", json!([4, 16])).contains("token 16 is none of the 16"));
        assert!(with("logprobs", json!({"token_logprobs": [null, -0.1]})).contains("None"));
        assert!(with("logprobs", json!({"token_logprobs": [0.7, -0.1]})).contains("0.7"));
        assert!(read_written(choice(said), 1, 16).unwrap_err().contains("between 1 and 1"));
    }

    #[test]
    fn a_score_is_that_of_the_one_token_that_may_be_drawn() {
        let body = serde_json::to_value(Completions::scored("policy@3", &[5, 7, 9], 2)).unwrap();
        assert_eq!((&body["prompt"], &body["allowed_token_ids"]), (&json!([5, 7]), &json!([9])));
        let said = json!({"token_ids": [9], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"});
        assert_eq!(read_score(choice(said.clone()), 9), Ok(-0.5));
        assert!(read_score(choice(said), 7).unwrap_err().contains("only 7 was allowed"));
    }
}
