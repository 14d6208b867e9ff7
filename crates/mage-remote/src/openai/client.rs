//! How does a request survive a network?
//!
//! At most so many are under way at once. What may pass by itself is tried again until the deadline: lost and refused
//! connections, timeouts, `429`, `5xx`, answers that are no JSON. Any other refusal is the caller's to mend and comes back
//! at once.

use crate::{
    Endpoint, UsageTracker,
    http::retry::{pause, retry_after},
    http::tls::for_good,
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

/// How much of a server's complaint is repeated.
const COMPLAINT: usize = 300;

/// A connection to an endpoint, shared by all who ask it. Its futures need a tokio runtime with timers and sockets.
#[derive(Clone, Debug)]
pub struct OpenAiClient {
    endpoint: Arc<Endpoint>,
    http: reqwest::Client,
    places: Arc<Semaphore>,
    usage: Arc<UsageTracker>,
}

/// What an attempt came to, if not to an answer.
enum Failure {
    /// It may pass.
    Passing { problem: String, wish: Option<Duration> },
    /// It will not.
    Final(String),
}

impl OpenAiClient {
    /// Makes ready to ask; nothing is sent.
    pub fn new(endpoint: Endpoint) -> Result<Self> {
        let patience = endpoint.patience;
        if patience.in_flight == 0 || patience.attempt.is_zero() || patience.deadline.is_zero() {
            return Err(Error::invalid("endpoint", "requests in flight and times to wait must be above 0"));
        }
        // Whoever was first has decided; there is only one kind in this program.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            // A server that sends us elsewhere would get our prompts and key sent there too.
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(patience.in_flight)
            .user_agent(concat!("mage/", env!("CARGO_PKG_VERSION")));
        if endpoint.is_here() {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| Error::invalid("endpoint", e.to_string()))?;
        let places = Arc::new(Semaphore::new(patience.in_flight.min(Semaphore::MAX_PERMITS)));
        Ok(OpenAiClient { endpoint: Arc::new(endpoint), http, places, usage: Arc::default() })
    }

    /// Whom it asks.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What has been spent so far.
    pub fn usage(&self) -> &Arc<UsageTracker> {
        &self.usage
    }

    /// Posts `body` with the endpoint's extra fields to `path` until there is an answer that `read` can use, or there is no
    /// point. `luck` keeps requests that failed together from coming back together.
    pub(crate) async fn post<A: DeserializeOwned, T>(
        &self,
        path: &str,
        mut body: Map<String, Value>,
        luck: Seed,
        read: impl Fn(A) -> std::result::Result<(T, ChatUsage), String>,
    ) -> Result<T> {
        for (key, value) in &self.endpoint.extra {
            match value {
                Value::Null => body.remove(key),
                value => body.insert(key.clone(), value.clone()),
            };
        }
        let body = Value::Object(body).to_string();
        let place = self.places.acquire().await;
        let deadline = Instant::now() + self.endpoint.patience.deadline;
        let mut failures = 0;
        let problem = loop {
            let attempt = deadline.min(Instant::now() + self.endpoint.patience.attempt);
            let outcome = timeout_at(attempt, self.attempt(path, &body)).await;
            let late = || Failure::Passing {
                problem: format!("no answer within {:.1} s", self.endpoint.patience.attempt.as_secs_f64()),
                wish: None,
            };
            let answer = outcome.unwrap_or_else(|_| Err(late())).and_then(|text| {
                let unusable = |e: String| Failure::Passing { problem: format!("unusable answer: {e}"), wish: None };
                let parsed: A = serde_json::from_str(&text).map_err(|e| unusable(e.to_string()))?;
                read(parsed).map_err(unusable)
            });
            let (problem, wish) = match answer {
                Ok((answer, usage)) => {
                    self.usage.count_success(usage);
                    return Ok(answer);
                }
                Err(Failure::Final(problem)) => break problem,
                Err(Failure::Passing { problem, wish }) => (problem, wish),
            };
            let again = Instant::now() + pause(failures, wish, luck);
            failures += 1;
            if again >= deadline {
                let limit = self.endpoint.patience.deadline.as_secs_f64();
                break format!("{problem} (gave up after {failures} attempts; the deadline is {limit:.1} s)");
            }
            sleep_until(again).await;
            self.usage.count_retry();
        };
        drop(place);
        self.usage.count_failure();
        Err(Error::Engine { engine: self.endpoint.address().to_owned(), reason: self.hidden(&problem) })
    }

    /// Sends a request once.
    async fn attempt(&self, path: &str, body: &str) -> std::result::Result<String, Failure> {
        let mut request = self
            .http
            .post(self.endpoint.at(path))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_owned());
        if let Some(key) = &self.endpoint.key {
            let mut value = header::HeaderValue::from_str(&key.bearer())
                .map_err(|_| Failure::Final("the key cannot be sent in a header".to_owned()))?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        let lost = |e: reqwest::Error| match for_good(&e) {
            Some(problem) => Failure::Final(problem),
            None => Failure::Passing { problem: causes(&e), wish: None },
        };
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        if status.is_success() {
            return response.text().await.map_err(lost);
        }
        let wish = response.headers().get(header::RETRY_AFTER).and_then(|h| h.to_str().ok());
        let wish = wish.and_then(|h| retry_after(h, SystemTime::now()));
        // The complaint is worth reading, but not worth another failure.
        // Hidden before it is cut: half a key is too much.
        let complaint = self.hidden(&response.text().await.unwrap_or_default());
        let complaint = mage_engine::truncate_chars(&complaint, COMPLAINT);
        let problem = format!("{status}: {complaint}");
        match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(Failure::Passing { problem, wish }),
            s if s.is_server_error() => Err(Failure::Passing { problem, wish }),
            s if s.is_redirection() => {
                Err(Failure::Final(format!("{status}: it sends us elsewhere; give the address it sends us to")))
            }
            _ => Err(Failure::Final(problem)),
        }
    }

    /// A text without the key, on one line.
    fn hidden(&self, text: &str) -> String {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.endpoint.key.as_ref().map_or_else(|| text.clone(), |key| key.hide_in(&text))
    }
}

/// An error with what led to it: the outermost says only that something failed.
pub(crate) fn causes(e: &reqwest::Error) -> String {
    let mut text = e.to_string();
    let mut cause = std::error::Error::source(e);
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    text
}
