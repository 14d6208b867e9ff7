//! Client of an OpenAI-compatible endpoint: bounded concurrency and a deadline per request.
//!
//! Failures that may pass are retried until the deadline: lost and refused connections, timeouts, `429`, `5xx`,
//! responses that cannot be parsed. Any other rejection fails at once.

use crate::{
    Endpoint, StatusLog, Timeouts,
    http::client::{HttpClient, HttpError, HttpRequest, seconds},
};
use mage_engine::{Error, Result};
use mage_rng::Seed;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

/// Client of an endpoint; clones share its concurrency limit. Needs a tokio runtime with timers and I/O.
#[derive(Clone, Debug)]
pub struct OpenAiClient {
    endpoint: Arc<Endpoint>,
    http: HttpClient,
    permits: Arc<Semaphore>,
    outstanding: Arc<Mutex<Option<OutstandingProblem>>>,
}

/// The last failed attempt of a client whose requests are being retried.
#[derive(Clone, Debug)]
pub struct OutstandingProblem {
    /// Why the attempt failed.
    pub problem: String,
    /// When its request is given up.
    pub give_up_at: std::time::Instant,
}

impl OpenAiClient {
    /// Creates a client; nothing is sent.
    pub fn new(endpoint: Endpoint) -> Result<Self> {
        let limits = endpoint.limits;
        if limits.max_in_flight == 0 || limits.attempt_timeout.is_zero() || limits.deadline.is_zero() {
            return Err(Error::invalid("endpoint", "max_in_flight and timeouts must be above 0"));
        }
        let key = endpoint.key.clone().map(|key| ("authorization", key));
        let timeouts = Timeouts { attempt: limits.attempt_timeout, outage: limits.deadline, ..Timeouts::default() };
        let http = HttpClient::new(endpoint.address(), key, timeouts, StatusLog::default())?;
        let permits = Arc::new(Semaphore::new(limits.max_in_flight.min(Semaphore::MAX_PERMITS)));
        Ok(OpenAiClient { endpoint: Arc::new(endpoint), http, permits, outstanding: Arc::default() })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The last failed attempt, if no request has succeeded or been given up since.
    pub fn outstanding(&self) -> Option<OutstandingProblem> {
        self.lock_outstanding().clone()
    }

    /// Redacts the key from a text of the server.
    pub(crate) fn redact(&self, text: String) -> String {
        match &self.endpoint.key {
            Some(key) => String::from_utf8_lossy(&key.redact_response(text.into_bytes())).into_owned(),
            None => text,
        }
    }

    fn lock_outstanding(&self) -> MutexGuard<'_, Option<OutstandingProblem>> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts `body` with the endpoint's extra fields to `path` until a response that `read` accepts, a permanent
    /// failure, or the deadline. `seed` determines the retry jitter. A response above `max_bytes` is a failure.
    pub(crate) async fn post<A: DeserializeOwned, T>(
        &self,
        path: &str,
        mut body: Map<String, Value>,
        seed: Seed,
        max_bytes: usize,
        read: impl Fn(A) -> std::result::Result<T, String>,
    ) -> Result<T> {
        for (key, value) in &self.endpoint.extra {
            match value {
                Value::Null => body.remove(key),
                value => body.insert(key.clone(), value.clone()),
            };
        }
        let request = HttpRequest { max_bytes, ..HttpRequest::post(path, &body) };
        let _permit = self.permits.acquire().await;
        let limit = self.endpoint.limits.deadline;
        let deadline = Instant::now() + limit;
        let mut attempts = 1;
        let give_up = |problem: &str, attempts: u32| {
            let limit = seconds(limit);
            HttpError::Unreachable(format!("{problem} (gave up after {attempts} attempts; the deadline is {limit} s)"))
        };
        let parse = |bytes: Vec<u8>| {
            let parsed = serde_json::from_slice(&bytes).map_err(|e| e.to_string()).and_then(&read);
            parsed.map_err(|e| HttpError::ServerError(format!("invalid response: {e}")))
        };
        let response = self.http.retry(&request, seed, parse, |error, _, pause| {
            let problem = error.text();
            if Instant::now() + pause >= deadline {
                return Err(give_up(&problem, attempts));
            }
            attempts += 1;
            *self.lock_outstanding() = Some(OutstandingProblem { problem, give_up_at: deadline.into() });
            Ok(pause)
        });
        let outcome = timeout_at(deadline, response).await.unwrap_or_else(|_| Err(give_up("no response", attempts)));
        *self.lock_outstanding() = None;
        outcome.map_err(|error| {
            use StatusCode as S;
            let reason = error.text();
            match error {
                HttpError::Rejected(status @ (S::UNAUTHORIZED | S::FORBIDDEN | S::NOT_FOUND), _) => {
                    Error::Rejected { engine: self.http.address().to_owned(), status: status.as_u16(), reason }
                }
                _ => self.http.error(reason),
            }
        })
    }
}
