//! Endpoint address, model and request limits.

use crate::{ApiKey, http::address::parse_address};
use mage_engine::{Error, Result};
use reqwest::Url;
use serde_json::{Map, Value};
use std::time::Duration;

/// An OpenAI-compatible endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    base: Url,
    /// Model name on the server.
    pub model: String,
    /// API key, if required.
    pub key: Option<ApiKey>,
    /// Concurrency and timeouts.
    pub limits: RequestLimits,
    /// Fields added to every request; `null` removes a field.
    pub extra: Map<String, Value>,
    /// Whether requests state if the model is to think (`chat_template_kwargs`, supported by vLLM, SGLang and
    /// llama.cpp). Otherwise the server's default applies.
    pub send_thinking: bool,
}

/// Concurrency and timeouts of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Concurrent requests; others queue.
    pub max_in_flight: usize,
    /// Timeout of one attempt.
    pub attempt_timeout: Duration,
    /// Timeout of a request with all attempts and backoff, from the moment it leaves the queue.
    pub deadline: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits {
            max_in_flight: 64,
            attempt_timeout: Duration::from_secs(300),
            deadline: Duration::from_secs(900),
        }
    }
}

impl Endpoint {
    /// The model `model` at `url`, which may or may not end in `/v1`.
    pub fn new(url: &str, model: &str) -> Result<Self> {
        let wrong = |problem: String| Error::invalid("endpoint", problem);
        let mut base = parse_address(url).map_err(wrong)?;
        if model.is_empty() {
            return Err(wrong("the model name is empty".to_owned()));
        }
        let path = base.path().trim_end_matches('/').to_owned();
        let versioned = path.rsplit('/').next().is_some_and(|s| s.starts_with('v') && s.len() > 1);
        base.set_path(&if versioned { format!("{path}/") } else { format!("{path}/v1/") });
        Ok(Endpoint {
            base,
            model: model.to_owned(),
            key: None,
            limits: RequestLimits::default(),
            extra: Map::new(),
            send_thinking: false,
        })
    }

    /// The base address without the trailing slash.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        let at = |url| Endpoint::new(url, "m").unwrap().address().to_owned();
        assert_eq!(at("http://127.0.0.1:8000"), "http://127.0.0.1:8000/v1");
        assert_eq!(at("http://127.0.0.1:8000/v1/"), "http://127.0.0.1:8000/v1");
        assert_eq!(at("https://example.org/openai/v1"), "https://example.org/openai/v1");
        assert_eq!(at("https://example.org/api/v4"), "https://example.org/api/v4");
    }

    #[test]
    fn invalid_addresses_are_rejected_without_repeating_logins() {
        for url in ["ftp://x", "127.0.0.1:8000", "http://me:secret@host/v1", "https://host/v1?key=secret", "http://"] {
            let error = Endpoint::new(url, "m").unwrap_err().to_string();
            assert!(error.starts_with("endpoint: ") && !error.contains("secret"), "{error}");
        }
        assert!(Endpoint::new("http://host", "").unwrap_err().to_string().contains("model name"));
        assert!(!Endpoint::new("http://me:secret@ho st/", "m").unwrap_err().to_string().contains("secret"));
    }
}
