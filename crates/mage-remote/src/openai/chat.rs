//! How does a conversation go over the wire?
//!
//! `POST /v1/chat/completions`. Thoughts that a server hands back beside the answer (`reasoning_content`, `reasoning`) are put
//! before it between `<think>` and `</think>`, where a model's own template would have left them, so that everybody behind
//! us reads one form. An answer that was cut off while thinking has no `</think>`.

use super::OpenAiClient;
use mage_engine::{
    BoxFuture, ChatCompletion, ChatPolicy, ChatRequest, ChatRole, ChatUsage, Error, FinishReason, Result, Thinking,
};
use mage_rng::Seed;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A chat model behind an endpoint.
#[derive(Clone, Debug)]
pub struct RemoteChat {
    client: OpenAiClient,
}

impl RemoteChat {
    /// Asks through `client`.
    pub fn new(client: OpenAiClient) -> Self {
        RemoteChat { client }
    }

    /// What it asks through.
    pub fn client(&self) -> &OpenAiClient {
        &self.client
    }

    /// The request's body.
    fn body(&self, request: &ChatRequest) -> Result<Map<String, Value>> {
        if request.allowed_completions.is_some() {
            return Err(Error::unsupported(
                "constrain answers over a chat endpoint",
                "servers do not agree on how; play without masks",
            ));
        }
        let params = &request.params;
        params.check()?;
        if !params.stop_ids.is_empty() {
            return Err(Error::unsupported("stop at token ids over a chat endpoint", "give texts to stop at"));
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
        let mut put = |key: &str, value: Value| body.insert(key.to_owned(), value);
        put("model", json!(endpoint.model));
        put("messages", json!(messages));
        put("max_tokens", json!(params.max_tokens));
        put("temperature", number(params.temperature));
        put("top_p", number(params.top_p));
        // Servers hold seeds in anything from 32 signed bits up.
        put("seed", json!(params.seed >> 33));
        put("stream", json!(false));
        if params.top_k > 0 {
            put("top_k", json!(params.top_k));
        }
        if params.min_p > 0.0 {
            put("min_p", number(params.min_p));
        }
        if !params.stop_texts.is_empty() {
            put("stop", json!(params.stop_texts));
        }
        if endpoint.say_thinking {
            put("chat_template_kwargs", json!({"enable_thinking": request.thinking == Thinking::On}));
        }
        Ok(body)
    }
}

/// 0.7 as 0.7, not as the nearest double to the nearest float.
fn number(x: f32) -> Value {
    x.to_string().parse::<f64>().map_or(Value::Null, |x| json!(x))
}

impl ChatPolicy for RemoteChat {
    fn complete(&self, request: ChatRequest) -> BoxFuture<'_, Result<ChatCompletion>> {
        Box::pin(async move {
            let body = self.body(&request)?;
            self.client.post("chat/completions", body, Seed::new(request.params.seed), read).await
        })
    }
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

fn read(completion: Completion) -> std::result::Result<(ChatCompletion, ChatUsage), String> {
    let choice = completion.choices.into_iter().next().ok_or("it has no choices")?;
    let finish = match choice.finish_reason.as_deref() {
        Some("length") => FinishReason::Length,
        _ => FinishReason::Stop,
    };
    let said = choice.message;
    let thoughts = said.reasoning_content.or(said.reasoning).filter(|t| !t.trim().is_empty());
    let content = said.content.unwrap_or_default();
    let text = match thoughts {
        None => content,
        Some(thoughts) if content.is_empty() && finish == FinishReason::Length => format!("<think>\n{thoughts}"),
        Some(thoughts) => format!("<think>\n{}\n</think>\n\n{content}", thoughts.trim()),
    };
    let counts = completion.usage.unwrap_or(Counts { prompt_tokens: 0, completion_tokens: 0 });
    let usage = ChatUsage { prompt_tokens: counts.prompt_tokens, completion_tokens: counts.completion_tokens };
    let answer = ChatCompletion {
        text,
        finish,
        prompt_tokens: Vec::new(),
        tokens: Vec::new(),
        logprobs: Vec::new(),
        weights: None,
        usage,
    };
    Ok((answer, usage))
}

#[cfg(test)]
mod tests {
    use super::super::Endpoint;
    use super::*;
    use mage_engine::{ChatMessage, SamplingParams};

    fn answer(json: Value) -> std::result::Result<(ChatCompletion, ChatUsage), String> {
        read(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn thoughts_stand_before_the_answer_in_one_form() {
        let say = |message: Value, finish: &str| {
            answer(json!({"choices": [{"message": message, "finish_reason": finish}]})).unwrap().0
        };
        assert_eq!(say(json!({"content": "BET"}), "stop").text, "BET");
        assert_eq!(say(json!({"content": "<think>x</think>BET"}), "stop").text, "<think>x</think>BET");
        for field in ["reasoning_content", "reasoning"] {
            let said = say(json!({"content": "BET", field: " hm\n"}), "stop");
            assert_eq!(said.text, "<think>\nhm\n</think>\n\nBET");
            let cut = say(json!({"content": null, field: "hm"}), "length");
            assert_eq!((cut.text.as_str(), cut.finish), ("<think>\nhm", FinishReason::Length));
        }
        assert_eq!(say(json!({"content": "BET", "reasoning": ""}), "tool_calls").text, "BET");
    }

    #[test]
    fn counts_are_taken_over() {
        let json = json!({"choices": [{"message": {"content": ""}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}});
        assert_eq!(answer(json).unwrap().1, ChatUsage { prompt_tokens: 7, completion_tokens: 3 });
        assert!(answer(json!({"choices": []})).is_err());
    }

    #[test]
    fn requests_say_what_was_asked_and_no_more() {
        let chat = |say_thinking| {
            let mut endpoint = Endpoint::new("http://127.0.0.1:1", "m").unwrap();
            endpoint.say_thinking = say_thinking;
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
        assert!(chat(true).body(&request).unwrap_err().to_string().contains("without masks"));
    }
}
