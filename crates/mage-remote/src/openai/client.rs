//! HTTP client of an OpenAI-compatible endpoint, with bounded concurrency and retries.
//!
//! Failures that may pass are retried until the deadline: lost and refused connections, timeouts, `429`, `5xx`,
//! responses that are not JSON. Any other rejection fails at once.

use crate::{
    Endpoint, OutstandingProblem, UsageTracker,
    http::retry::{backoff, parse_retry_after},
    http::tls::permanent_failure,
};
use mage_engine::{ChatUsage, Error, Result};
use mage_rng::Seed;
use reqwest::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout_at},
};

/// Characters of a server's error text that are quoted.
const MAX_ERROR_CHARS: usize = 300;

/// Client of an endpoint; clones share its concurrency limit. Needs a tokio runtime with timers and I/O.
#[derive(Clone, Debug)]
pub struct OpenAiClient {
    endpoint: Arc<Endpoint>,
    http: reqwest::Client,
    permits: Arc<Semaphore>,
    usage: Arc<UsageTracker>,
}

/// Failure of an attempt.
enum AttemptError {
    /// May pass.
    Transient { problem: String, retry_after: Option<Duration> },
    /// Permanent.
    Permanent(String),
    /// Permanent, and any other request would have the same outcome.
    Rejected { status: StatusCode, problem: String },
}

impl OpenAiClient {
    /// Creates a client; nothing is sent.
    pub fn new(endpoint: Endpoint) -> Result<Self> {
        let limits = endpoint.limits;
        if limits.max_in_flight == 0 || limits.attempt_timeout.is_zero() || limits.deadline.is_zero() {
            return Err(Error::invalid("endpoint", "max_in_flight and timeouts must be above 0"));
        }
        // An error means that a provider is installed already; this program uses only one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            // A redirect would send prompts and key to another server.
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(limits.max_in_flight)
            .user_agent(concat!("mage/", env!("CARGO_PKG_VERSION")));
        if endpoint.is_loopback() {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| Error::invalid("endpoint", e.to_string()))?;
        let permits = Arc::new(Semaphore::new(limits.max_in_flight.min(Semaphore::MAX_PERMITS)));
        Ok(OpenAiClient { endpoint: Arc::new(endpoint), http, permits, usage: Arc::default() })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Request and token counts.
    pub fn usage(&self) -> &Arc<UsageTracker> {
        &self.usage
    }

    /// Posts `body` with the endpoint's extra fields to `path` until a response that `read` accepts, a permanent
    /// failure, or the deadline. `seed` determines the retry jitter.
    pub(crate) async fn post<A: DeserializeOwned, T>(
        &self,
        path: &str,
        mut body: Map<String, Value>,
        seed: Seed,
        read: impl Fn(A) -> std::result::Result<(T, ChatUsage), String>,
    ) -> Result<T> {
        for (key, value) in &self.endpoint.extra {
            match value {
                Value::Null => body.remove(key),
                value => body.insert(key.clone(), value.clone()),
            };
        }
        let body = Value::Object(body).to_string();
        let permit = self.permits.acquire().await;
        let deadline = Instant::now() + self.endpoint.limits.deadline;
        let mut failures = 0;
        let (problem, status) = loop {
            let attempt = deadline.min(Instant::now() + self.endpoint.limits.attempt_timeout);
            let outcome = timeout_at(attempt, self.attempt(path, &body)).await;
            let timed_out = || AttemptError::Transient {
                problem: format!("no response within {:.1} s", self.endpoint.limits.attempt_timeout.as_secs_f64()),
                retry_after: None,
            };
            let result = outcome.unwrap_or_else(|_| Err(timed_out())).and_then(|text| {
                let invalid = |e: String| AttemptError::Transient {
                    problem: format!("invalid response: {e}"),
                    retry_after: None,
                };
                let parsed: A = serde_json::from_str(&text).map_err(|e| invalid(e.to_string()))?;
                read(parsed).map_err(invalid)
            });
            let (problem, retry_after) = match result {
                Ok((value, usage)) => {
                    self.usage.count_success(usage);
                    return Ok(value);
                }
                Err(AttemptError::Permanent(problem)) => break (problem, None),
                Err(AttemptError::Rejected { status, problem }) => break (problem, Some(status.as_u16())),
                Err(AttemptError::Transient { problem, retry_after }) => (problem, retry_after),
            };
            let retry_at = Instant::now() + backoff(failures, retry_after, seed);
            failures += 1;
            if retry_at >= deadline {
                let limit = self.endpoint.limits.deadline.as_secs_f64();
                break (format!("{problem} (gave up after {failures} attempts; the deadline is {limit:.1} s)"), None);
            }
            self.usage.count_retry(OutstandingProblem { problem: self.redact(&problem), give_up_at: deadline.into() });
            sleep_until(retry_at).await;
        };
        drop(permit);
        self.usage.count_failure();
        let (engine, reason) = (self.endpoint.address().to_owned(), self.redact(&problem));
        Err(match status {
            Some(status) => Error::Rejected { engine, status, reason },
            None => Error::Engine { engine, reason },
        })
    }

    /// Sends a request once.
    async fn attempt(&self, path: &str, body: &str) -> std::result::Result<String, AttemptError> {
        let mut request = self
            .http
            .post(self.endpoint.url(path))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_owned());
        if let Some(key) = &self.endpoint.key {
            let mut value = header::HeaderValue::from_str(&key.bearer_header())
                .map_err(|_| AttemptError::Permanent("the API key is not valid in an HTTP header".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let connection_error = |e: reqwest::Error| match permanent_failure(&e) {
            Some(problem) => AttemptError::Permanent(problem),
            None => AttemptError::Transient { problem: error_chain(&e), retry_after: None },
        };
        let response = request.send().await.map_err(connection_error)?;
        let status = response.status();
        if status.is_success() {
            return response.text().await.map_err(connection_error);
        }
        let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|h| h.to_str().ok());
        let retry_after = retry_after.and_then(|h| parse_retry_after(h, SystemTime::now()));
        // The error text is optional, so reading it must not fail. Redact before truncating: half a key is too much.
        let body = self.redact(&response.text().await.unwrap_or_default());
        let body = mage_engine::truncate_chars(&body, MAX_ERROR_CHARS);
        let problem = format!("{status}: {body}");
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
                Err(AttemptError::Transient { problem, retry_after })
            }
            s if s.is_server_error() => Err(AttemptError::Transient { problem, retry_after }),
            s if s.is_redirection() => Err(AttemptError::Permanent(format!(
                "{status}: the server redirects; use the address that it redirects to"
            ))),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                Err(AttemptError::Rejected { status, problem })
            }
            _ => Err(AttemptError::Permanent(problem)),
        }
    }

    /// Redacts the key and puts the text on one line.
    fn redact(&self, text: &str) -> String {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.endpoint.key.as_ref().map_or_else(|| text.clone(), |key| key.redact(&text))
    }
}

/// The error with its chain of causes; the outermost alone says only that a request failed.
pub(crate) fn error_chain(e: &reqwest::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}
