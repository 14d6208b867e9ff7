//! Client of `POST /v1/chat/completions`.
//!
//! Thinking that a server returns separately (`reasoning_content`, `reasoning`) is prepended between `<think>` and
//! `</think>`, where the model's own template would have left it. A completion that was cut off while thinking has no
//! `</think>`.

use super::OpenAiClient;
use mage_engine::{
    BoxFuture, ChatCompletion, ChatModel, ChatRequest, ChatRole, ChatUsage, Error, FinishReason, Result, Thinking,
};
use mage_rng::Seed;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Bytes of a response and of its text, and those that each token may add: records keep the text.
const MAX_BODY_BYTES: usize = 1 << 20;
const MAX_TEXT_BYTES: usize = 64 << 10;
const MAX_TOKEN_BYTES: usize = 64;

/// A chat model behind an endpoint.
#[derive(Clone, Debug)]
pub struct RemoteChat {
    client: OpenAiClient,
}

impl RemoteChat {
    /// Sends requests through `client`.
    pub fn new(client: OpenAiClient) -> Self {
        RemoteChat { client }
    }

    /// The client.
    pub fn client(&self) -> &OpenAiClient {
        &self.client
    }

    /// Request body.
    fn body(&self, request: &ChatRequest) -> Result<Map<String, Value>> {
        if request.allowed_completions.is_some() {
            return Err(Error::unsupported(
                "constrain completions of a chat endpoint",
                "there is no common protocol; disable action masks",
            ));
        }
        let params = &request.params;
        params.check()?;
        if !params.stop_ids.is_empty() {
            return Err(Error::unsupported("stop at token ids on a chat endpoint", "use stop texts"));
        }
        let endpoint = self.client.endpoint();
        let messages: Vec<Value> = request
            .messages
            .iter()
            .map(|m| {
                let role = match m.role {
                    ChatRole::System => "system",
                    ChatRole::User => "user",
                    ChatRole::Assistant => "assistant",
                };
                json!({"role": role, "content": m.content})
            })
            .collect();
        let mut body = Map::new();
        let mut set = |key: &str, value: Value| body.insert(key.to_owned(), value);
        set("model", json!(endpoint.model));
        set("messages", json!(messages));
        set("max_tokens", json!(params.max_tokens));
        set("temperature", number(params.temperature));
        set("top_p", number(params.top_p));
        // Some servers store seeds in 32 signed bits.
        set("seed", json!(params.seed >> 33));
        set("stream", json!(false));
        if params.top_k > 0 {
            set("top_k", json!(params.top_k));
        }
        if params.min_p > 0.0 {
            set("min_p", number(params.min_p));
        }
        if !params.stop_texts.is_empty() {
            set("stop", json!(params.stop_texts));
        }
        if endpoint.send_thinking {
            set("chat_template_kwargs", json!({"enable_thinking": request.thinking == Thinking::On}));
        }
        Ok(body)
    }
}

/// Serialises 0.7 as 0.7, not as the double nearest to the float.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

impl ChatModel for RemoteChat {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatCompletion>> {
        Box::pin(async move {
            let (body, seed) = (self.body(&request)?, Seed::new(request.params.seed));
            let max_tokens = request.params.max_tokens as usize;
            let max_bytes = MAX_BODY_BYTES + max_tokens.saturating_mul(MAX_TOKEN_BYTES * 2);
            let completion = self.client.post("chat/completions", body, seed, max_bytes, parse_response).await?;
            let redacted = ChatCompletion { text: self.client.redact(completion.text), ..completion };
            Ok(limit_text(redacted, MAX_TEXT_BYTES + max_tokens.saturating_mul(MAX_TOKEN_BYTES)))
        })
    }
}

#[derive(Deserialize)]
struct ChatResponse {
    choices: Vec<ChatChoice>,
    #[serde(default)]
    usage: Option<UsageField>,
}

#[derive(Deserialize)]
struct ChatChoice {
    message: ResponseMessage,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponseMessage {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
}

#[derive(Deserialize)]
struct UsageField {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

/// Cuts a text that has more bytes than its tokens can have.
fn limit_text(mut completion: ChatCompletion, max_bytes: usize) -> ChatCompletion {
    if completion.text.len() > max_bytes {
        let is_boundary = |at: &usize| completion.text.is_char_boundary(*at);
        let end = (0..=max_bytes).rev().find(is_boundary).unwrap_or_default();
        completion.text.truncate(end);
        completion.finish = FinishReason::Length;
    }
    completion
}

fn parse_response(response: ChatResponse) -> std::result::Result<ChatCompletion, String> {
    let choice = response.choices.into_iter().next().ok_or("no choices in the response")?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    let message = choice.message;
    let thinking = message.reasoning_content.or(message.reasoning).filter(|t| !t.trim().is_empty());
    let content = message.content.unwrap_or_default();
    let text = match thinking {
        None => content,
        Some(thinking) if content.is_empty() && finish == FinishReason::Length => format!("<think>\n{thinking}"),
        Some(thinking) => format!("<think>\n{}\n</think>\n\n{content}", thinking.trim()),
    };
    let counts = response.usage.unwrap_or(UsageField { prompt_tokens: 0, completion_tokens: 0 });
    // Sums of implausible counts must not overflow.
    let count = |tokens: u64| tokens.min(u64::from(u32::MAX));
    let usage =
        ChatUsage { prompt_tokens: count(counts.prompt_tokens), completion_tokens: count(counts.completion_tokens) };
    Ok(ChatCompletion { text, finish, usage })
}

#[cfg(test)]
mod tests {
    use super::super::Endpoint;
    use super::*;
    use mage_engine::{ChatMessage, SamplingParams};

    fn parse(json: Value) -> std::result::Result<ChatCompletion, String> {
        parse_response(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn thinking_precedes_the_completion_in_one_form() {
        let respond = |message: Value, finish: &str| {
            parse(json!({"choices": [{"message": message, "finish_reason": finish}]})).unwrap()
        };
        assert_eq!(respond(json!({"content": "BET"}), "stop").text, "BET");
        assert_eq!(respond(json!({"content": "<think>x</think>BET"}), "stop").text, "<think>x</think>BET");
        for field in ["reasoning_content", "reasoning"] {
            let with_thinking = respond(json!({"content": "BET", field: " hm\n"}), "stop");
            assert_eq!(with_thinking.text, "<think>\nhm\n</think>\n\nBET");
            let cut = respond(json!({"content": null, field: "hm"}), "length");
            assert_eq!((cut.text.as_str(), cut.finish), ("<think>\nhm", FinishReason::Length));
        }
        assert_eq!(respond(json!({"content": "BET", "reasoning": ""}), "tool_calls").text, "BET");
    }

    #[test]
    fn token_usage_is_read() {
        let json = json!({"choices": [{"message": {"content": ""}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}});
        assert_eq!(parse(json).unwrap().usage, ChatUsage { prompt_tokens: 7, completion_tokens: 3 });
        assert!(parse(json!({"choices": []})).is_err());
        let json = json!({"choices": [{"message": {"content": ""}}], "usage": {"prompt_tokens": u64::MAX}});
        assert_eq!(parse(json).unwrap().usage.prompt_tokens, u64::from(u32::MAX), "sums do not overflow");
    }

    #[test]
    fn request_body_has_only_the_fields_that_are_set() {
        let chat = |send_thinking| {
            let mut endpoint = Endpoint::new("http://127.0.0.1:1", "m").unwrap();
            endpoint.send_thinking = send_thinking;
            RemoteChat::new(OpenAiClient::new(endpoint).unwrap())
        };
        let mut request = ChatRequest {
            messages: vec![ChatMessage::user("hello")],
            params: SamplingParams { temperature: 0.7, seed: u64::MAX, max_tokens: 9, ..Default::default() },
            ..Default::default()
        };
        let expected = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9,
            "temperature": 0.7, "top_p": 1.0, "seed": 0x7fff_ffff_u32, "stream": false});
        assert_eq!(Value::Object(chat(false).body(&request).unwrap()), expected);
        request.params.top_k = 20;
        request.thinking = Thinking::On;
        let body = chat(true).body(&request).unwrap();
        assert_eq!((&body["top_k"], &body["chat_template_kwargs"]["enable_thinking"]), (&json!(20), &json!(true)));
        request.allowed_completions = Some(vec!["BET".to_owned()]);
        assert!(chat(true).body(&request).unwrap_err().to_string().contains("disable action masks"));
    }
}
