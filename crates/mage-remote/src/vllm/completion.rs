//! `POST /v1/completions` of vLLM, with token ids in and out: text is never used, since partial UTF-8 sequences have
//! none.

use crate::http::client::HttpRequest;
use mage_engine::{Error, FinishReason, Hint, Result, SampleRequest, ScoreRequest};
use serde::{Deserialize, Serialize};

/// A completion request, serialised directly: thousands are in flight at once.
#[derive(Serialize)]
pub(super) struct CompletionRequest<'r> {
    model: &'r str,
    prompt: &'r [u32],
    max_tokens: u32,
    temperature: f32,
    logprobs: u32,
    return_token_ids: bool,
    /// Stop tokens are passed explicitly; the model's own configuration may differ.
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

impl<'r> CompletionRequest<'r> {
    fn new(model: &'r str, prompt: &'r [u32], max_tokens: u32) -> Self {
        CompletionRequest {
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

    pub(super) fn sample(model: &'r str, request: &'r SampleRequest) -> Self {
        let params = &request.params;
        CompletionRequest {
            temperature: params.temperature,
            top_p: Some(params.top_p),
            seed: Some(params.seed >> 33),
            stop_token_ids: Some(&params.stop_ids),
            top_k: (params.top_k > 0).then_some(params.top_k),
            min_p: (params.min_p > 0.0).then_some(params.min_p),
            ..CompletionRequest::new(model, &request.prompt, params.max_tokens)
        }
    }

    pub(super) fn to_http(&self) -> HttpRequest {
        HttpRequest::post("v1/completions", self)
    }

    /// A request for the log-prob of one token.
    pub(super) fn score(model: &'r str, tokens: &'r [u32], at: usize) -> Self {
        CompletionRequest { allowed_token_ids: Some([tokens[at]]), ..CompletionRequest::new(model, &tokens[..at], 1) }
    }
}

/// Generated tokens.
#[derive(Debug)]
pub(super) struct GeneratedTokens {
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<f32>,
    pub(super) finish: FinishReason,
}

#[derive(Deserialize)]
pub(super) struct CompletionResponse {
    pub(super) choices: Vec<CompletionChoice>,
}

#[derive(Deserialize)]
pub(super) struct CompletionChoice {
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<ChoiceLogprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChoiceLogprobs {
    token_logprobs: Vec<Option<f32>>,
}

pub(super) fn parse_generated(
    choice: CompletionChoice,
    max_tokens: usize,
    vocab_size: usize,
) -> std::result::Result<GeneratedTokens, String> {
    let tokens = choice.token_ids.ok_or("no token ids in the response; the server must support `return_token_ids`")?;
    let logprobs = choice.logprobs.ok_or("no log-probs in the response")?.token_logprobs;
    if tokens.len() != logprobs.len() {
        return Err(format!("{} tokens have {} log-probs", tokens.len(), logprobs.len()));
    }
    if tokens.is_empty() || tokens.len() > max_tokens {
        return Err(format!("{} tokens, expected between 1 and {max_tokens}", tokens.len()));
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
        return Err(format!("token {token} is outside the vocabulary of {vocab_size}"));
    }
    let logprobs = logprobs.into_iter().map(check_logprob).collect::<std::result::Result<Vec<f32>, String>>()?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    Ok(GeneratedTokens { tokens, logprobs, finish })
}

pub(super) fn parse_score(choice: CompletionChoice, token: u32) -> std::result::Result<f32, String> {
    let GeneratedTokens { tokens, logprobs, .. } = parse_generated(choice, 1, usize::MAX)?;
    match tokens[0] == token {
        true => Ok(logprobs[0]),
        false => Err(format!("token {}, but only {token} is allowed", tokens[0])),
    }
}

/// Checks a log-prob.
fn check_logprob(logprob: Option<f32>) -> std::result::Result<f32, String> {
    match logprob {
        Some(l) if l.is_finite() && l <= 1e-3 => Ok(l),
        other => Err(format!("invalid log-prob {other:?}")),
    }
}

/// Rejects score requests with action masks.
pub(super) fn check_score(request: &ScoreRequest) -> Result<()> {
    match request.allowed.iter().any(Option::is_some) {
        true => {
            Err(Error::unsupported("score with action masks", "vLLM has none").with_hints(&[Hint::DisableActionMasks]))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_engine::SamplingParams;
    use serde_json::{Value, json};

    fn choice(json: Value) -> CompletionChoice {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn sample_request_uses_token_ids() {
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
        // As text, 0.7 is not serialised as the double nearest to the float.
        let text = serde_json::to_string(&CompletionRequest::sample("policy@3", &request)).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn invalid_responses_are_rejected() {
        let response =
            json!({"token_ids": [4, 2], "logprobs": {"token_logprobs": [-0.5, -0.1]}, "finish_reason": "stop"});
        let generated = parse_generated(choice(response.clone()), 4, 16).unwrap();
        assert_eq!((generated.tokens, generated.finish), (vec![4, 2], FinishReason::Stop));
        let with = |field: &str, value: Value| {
            let mut response = response.clone();
            response[field] = value;
            parse_generated(choice(response), 4, 16).unwrap_err()
        };
        assert!(with("token_ids", Value::Null).contains("return_token_ids"));
        assert!(with("token_ids", json!([4])).contains("1 tokens have 2"));
        assert!(with("token_ids", json!([4, 16])).contains("token 16 is outside the vocabulary of 16"));
        assert!(with("logprobs", json!({"token_logprobs": [null, -0.1]})).contains("None"));
        assert!(with("logprobs", json!({"token_logprobs": [0.7, -0.1]})).contains("0.7"));
        assert!(parse_generated(choice(response), 1, 16).unwrap_err().contains("between 1 and 1"));
    }

    #[test]
    fn score_is_the_logprob_of_the_only_allowed_token() {
        let body = serde_json::to_value(CompletionRequest::score("policy@3", &[5, 7, 9], 2)).unwrap();
        assert_eq!((&body["prompt"], &body["allowed_token_ids"]), (&json!([5, 7]), &json!([9])));
        let response = json!({"token_ids": [9], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "length"});
        assert_eq!(parse_score(choice(response.clone()), 9), Ok(-0.5));
        assert!(parse_score(choice(response), 7).unwrap_err().contains("only 7 is allowed"));
    }
}
