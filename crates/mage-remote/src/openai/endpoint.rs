//! Where is the model, and how much patience is there with it?

use crate::ApiKey;
use mage_engine::{Error, Result};
use reqwest::Url;
use serde_json::{Map, Value};
use std::time::Duration;

/// Where a model is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    base: Url,
    /// The name the server knows the model by.
    pub model: String,
    /// What opens the door, where it is locked.
    pub key: Option<ApiKey>,
    /// How long to wait for it.
    pub patience: RequestLimits,
    /// Fields added to every request, for what only some servers know; `null` takes a field out.
    pub extra: Map<String, Value>,
    /// Whether requests say if the model is to think (`chat_template_kwargs`, which vLLM, SGLang and llama.cpp know);
    /// otherwise the server's own habit decides.
    pub say_thinking: bool,
}

/// How long to wait, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Requests under way at once; others queue up.
    pub in_flight: usize,
    /// How long one attempt may take.
    pub attempt: Duration,
    /// How long a request may take with all its attempts and the pauses between them, from the moment it leaves the queue.
    pub deadline: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits { in_flight: 64, attempt: Duration::from_secs(300), deadline: Duration::from_secs(900) }
    }
}

impl Endpoint {
    /// The model called `model` at `url`, which may or may not end in `/v1`.
    pub fn new(url: &str, model: &str) -> Result<Self> {
        let wrong = |problem: &str| Error::invalid("endpoint", problem);
        let mut base = Url::parse(url).map_err(|e| wrong(&format!("`{}` is no address: {e}", without_login(url))))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(wrong("an address looks like http://127.0.0.1:8000/v1"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong(
                "an address with a login would be written down; put the key into an environment variable",
            ));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(wrong("leave out what follows `?` or `#`"));
        }
        if model.is_empty() {
            return Err(wrong("say which model to ask for"));
        }
        let path = base.path().trim_end_matches('/').to_owned();
        let versioned = path.rsplit('/').next().is_some_and(|s| s.starts_with('v') && s.len() > 1);
        base.set_path(&if versioned { format!("{path}/") } else { format!("{path}/v1/") });
        Ok(Endpoint {
            base,
            model: model.to_owned(),
            key: None,
            patience: RequestLimits::default(),
            extra: Map::new(),
            say_thinking: false,
        })
    }

    /// The address, as it may be written down.
    pub fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Whether it is on this machine.
    pub(crate) fn is_here(&self) -> bool {
        crate::http::address::is_here(&self.base)
    }

    pub(crate) fn at(&self, path: &str) -> Url {
        self.base.join(path).expect("a fixed relative path")
    }
}

/// The text before the first `@` may be a login.
fn without_login(url: &str) -> &str {
    url.rsplit('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        let at = |url| Endpoint::new(url, "m").unwrap().at("chat/completions").to_string();
        assert_eq!(at("http://127.0.0.1:8000"), "http://127.0.0.1:8000/v1/chat/completions");
        assert_eq!(at("http://127.0.0.1:8000/v1/"), "http://127.0.0.1:8000/v1/chat/completions");
        assert_eq!(at("https://example.org/openai/v1"), "https://example.org/openai/v1/chat/completions");
        assert_eq!(at("https://example.org/api/v4"), "https://example.org/api/v4/chat/completions");
        assert_eq!(Endpoint::new("http://localhost:1", "m").unwrap().address(), "http://localhost:1/v1");
    }

    #[test]
    fn addresses_that_make_no_sense_are_refused_without_repeating_logins() {
        for url in ["ftp://x", "127.0.0.1:8000", "http://me:secret@host/v1", "https://host/v1?key=secret", "http://"] {
            let error = Endpoint::new(url, "m").unwrap_err().to_string();
            assert!(error.starts_with("endpoint: ") && !error.contains("secret"), "{error}");
        }
        assert!(Endpoint::new("http://host", "").unwrap_err().to_string().contains("which model"));
        assert!(!Endpoint::new("http://me:secret@ho st/", "m").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn loopback_is_here() {
        let here = |url| Endpoint::new(url, "m").unwrap().is_here();
        assert!(here("http://127.0.0.1:80") && here("http://[::1]:80") && here("http://localhost"));
        assert!(!here("http://10.0.0.1") && !here("https://example.org"));
    }
}
