//! Client of one vLLM server, with retries and liveness checks.

use super::{
    completion::{
        CompletionChoice, CompletionRequest, CompletionResponse, GeneratedTokens, parse_generated, parse_score,
    },
    health::ServerHealth,
    pool::VllmPoolSettings,
};
use crate::{
    Fingerprint, Service,
    http::client::{HttpClient, HttpError, HttpRequest},
    http::retry::backoff,
};
use mage_engine::{Hint, Result, SampleRequest};
use mage_rng::Seed;
use rand::RngExt;
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// Pause before another attempt on a server that is still starting.
const COLD_PAUSE: Duration = Duration::from_millis(500);
/// Timeout of a health check.
pub(super) const HEALTH_TIMEOUT: Duration = Duration::from_secs(8);
/// Attempts on a server that responds with failures.
const MAX_ATTEMPTS: u32 = 4;
/// Interval of liveness checks during a long request.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(25);
/// Timeout of a liveness check,
const LIVENESS_TIMEOUT: Duration = Duration::from_secs(8);
/// and its attempts.
const LIVENESS_ATTEMPTS: u32 = 3;

/// A server of a pool.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) http: HttpClient,
    /// Vocabulary size.
    vocab_size: usize,
    /// Requests in flight.
    pub(super) in_flight: AtomicUsize,
    /// Whether it gets requests.
    pub(super) healthy: AtomicBool,
    health: Mutex<ServerHealth>,
    /// Time and result of the last liveness check.
    liveness: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

/// A model or adapter on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// Name on the server.
    pub name: String,
    /// Maximum tokens of a sequence, if the server reports it.
    pub max_seq_len: Option<usize>,
}

impl Server {
    pub(super) fn new(address: &str, settings: &VllmPoolSettings) -> Result<Self> {
        let key = settings.api_key.clone().map(|key| ("authorization", key));
        let http = HttpClient::new(address, key, settings.timeouts, settings.status_log.clone())?;
        Ok(Server {
            http,
            vocab_size: settings.vocab_size,
            in_flight: AtomicUsize::new(0),
            healthy: AtomicBool::new(true),
            health: Mutex::new(ServerHealth::new()),
            liveness: tokio::sync::Mutex::default(),
        })
    }

    /// Whether it may get requests now.
    pub(super) fn ready(&self) -> bool {
        self.healthy.load(Ordering::SeqCst) && self.http.retry_after().is_none()
    }

    /// Health state.
    pub(super) fn health(&self) -> MutexGuard<'_, ServerHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retries transient failures: errors up to `MAX_ATTEMPTS`, timeouts until the outage timeout. An unreachable
    /// server is not waited for.
    async fn with_retries<T, F>(&self, work: impl Fn() -> F) -> std::result::Result<T, HttpError>
    where
        F: Future<Output = std::result::Result<T, HttpError>>,
    {
        let (seed, outage_timeout) = (Seed::new(0).child(self.http.address()), self.http.timeouts.outage);
        let (started, mut pauses, mut failures) = (Instant::now(), 0, 0);
        loop {
            let sent_at = Instant::now();
            let error = match work().await {
                Ok(value) => return Ok(value),
                Err(error @ (HttpError::Rejected(..) | HttpError::Permanent(..))) => return Err(error),
                Err(error) => error,
            };
            // Any response shows that the server is reachable.
            let responds = matches!(error, HttpError::ServerError(_) | HttpError::Overloaded(_));
            if !responds && self.check_health(HEALTH_TIMEOUT).await.is_err() {
                return Err(error);
            }
            failures += u32::from(!matches!(error, HttpError::NotReady(_)));
            let remaining = outage_timeout.saturating_sub(started.elapsed());
            if remaining.is_zero() {
                return Err(HttpError::Unreachable(format!(
                    "{} (waited {:.0} s)",
                    error.text(),
                    outage_timeout.as_secs_f64()
                )));
            }
            if failures >= MAX_ATTEMPTS {
                return Err(error);
            }
            // After a full attempt timeout no further backoff is needed.
            pauses = if sent_at.elapsed() >= self.http.timeouts.attempt { 0 } else { pauses };
            tokio::time::sleep(backoff(pauses, self.http.retry_after(), seed).min(remaining)).await;
            pauses += 1;
        }
    }

    /// Sends a request once. During a long request the server's liveness is checked: a stopped process keeps its
    /// connections open and would be waited for in vain.
    async fn send_once(&self, request: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        match request.long_running {
            true => tokio::select! {
                biased;
                result = self.http.send_once(request) => result,
                failure = self.watch_liveness() => Err(failure),
            },
            false => self.http.send_once(request).await,
        }
    }

    /// Completes when the server fails its liveness check.
    async fn watch_liveness(&self) -> HttpError {
        let interval = LIVENESS_INTERVAL.min(self.http.timeouts.attempt);
        // Jitter, since many requests wait at once.
        let mut rng = Seed::new(self.in_flight.load(Ordering::SeqCst) as u64).child("health_check").rng();
        loop {
            tokio::time::sleep(interval.mul_f64(rng.random_range(0.8..1.2))).await;
            if let Some(problem) = self.check_liveness(interval / 2).await {
                return HttpError::Unreachable(format!(
                    "connections are open but the server does not respond: {problem}"
                ));
            }
        }
    }

    /// Result of a liveness check, shared by all requests that need one within `fresh`.
    async fn check_liveness(&self, fresh: Duration) -> Option<String> {
        let mut liveness = self.liveness.lock().await;
        if let Some((_, found)) = liveness.as_ref().filter(|(at, _)| at.elapsed() < fresh) {
            return found.clone();
        }
        let mut found = None;
        for _ in 0..LIVENESS_ATTEMPTS {
            found = match self.check_health(LIVENESS_TIMEOUT.min(self.http.timeouts.attempt)).await {
                // Any response shows that the server is alive.
                Ok(()) | Err(HttpError::ServerError(_)) => None,
                Err(error) => Some(format!("/health: {}", error.text())),
            };
            if found.is_none() {
                break;
            }
        }
        *liveness = Some((Instant::now(), found.clone()));
        found
    }

    async fn send(&self, request: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        self.with_retries(|| self.send_once(request)).await
    }

    /// Sends a request with retries and parses a JSON response.
    async fn send_json(&self, request: &HttpRequest) -> std::result::Result<Value, HttpError> {
        let bytes = self.send(request).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| HttpError::ServerError(format!("invalid response to {}: {e}", request.path)))
    }

    /// Sends a request once and parses the completion. An invalid response is a transient failure.
    async fn complete<T>(
        &self,
        request: &HttpRequest,
        parse: impl Fn(CompletionChoice) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, HttpError> {
        let bytes = self.send_once(request).await?;
        let invalid = |e: String| HttpError::ServerError(format!("invalid response: {e}"));
        let response: CompletionResponse = serde_json::from_slice(&bytes).map_err(|e| invalid(e.to_string()))?;
        let choice =
            response.choices.into_iter().next().ok_or_else(|| invalid("no choices in the response".to_owned()))?;
        parse(choice).map_err(invalid)
    }

    /// Samples a completion within `timeout`.
    pub(super) async fn sample(
        &self,
        model: &str,
        request: &SampleRequest,
        timeout: Duration,
    ) -> std::result::Result<GeneratedTokens, HttpError> {
        let max_tokens = request.params.max_tokens as usize;
        let http_request = CompletionRequest::sample(model, request).to_http().long_running();
        let parse = |choice| parse_generated(choice, max_tokens, self.vocab_size);
        with_timeout(timeout, self.complete(&http_request, parse)).await
    }

    /// Log-probs of the tokens from `from` on, each within `timeout`.
    ///
    /// Each token is requested separately, as the only allowed token: its log-prob is reported before that mask. vLLM
    /// can score whole prompts (`prompt_logprobs`), but its CPU build crashes if a batch contains such a request and
    /// others with adapters (measured, 0.32.0). Shared prefixes are served from the prefix cache.
    pub(super) async fn score(
        &self,
        model: &str,
        tokens: &[u32],
        from: usize,
        timeout: Duration,
    ) -> std::result::Result<Vec<f32>, HttpError> {
        let mut scores = Vec::with_capacity(tokens.len() - from);
        for at in from..tokens.len() {
            let request = CompletionRequest::score(model, tokens, at).to_http().long_running();
            let score = self.complete(&request, |choice| parse_score(choice, tokens[at]));
            scores.push(with_timeout(timeout, score).await?);
        }
        Ok(scores)
    }

    /// Fingerprint of a model. No other server can answer for this one, so transient failures are retried.
    pub(super) async fn fingerprint(&self, model: &str) -> std::result::Result<Fingerprint, HttpError> {
        let tokens = &Fingerprint::tokens(self.vocab_size);
        let mut found = Vec::with_capacity(tokens.len());
        for at in 1..tokens.len() {
            let request = &CompletionRequest::score(model, tokens, at).to_http();
            found.push(self.with_retries(|| self.complete(request, |choice| parse_score(choice, tokens[at]))).await?);
        }
        Ok(Fingerprint(found))
    }

    /// Time until the server completes a prompt. A server that was just started compiles first: while it is healthy, it
    /// is waited for up to `limit`.
    pub(super) async fn first_completion(
        &self,
        model: &str,
        limit: Duration,
    ) -> std::result::Result<Duration, HttpError> {
        let tokens = &Fingerprint::tokens(self.vocab_size);
        let request = &CompletionRequest::score(model, tokens, 1).to_http();
        let started = Instant::now();
        loop {
            let error = match self.complete(request, |choice| parse_score(choice, tokens[1])).await {
                Ok(_) => return Ok(started.elapsed()),
                Err(error) => error,
            };
            let waits = matches!(error, HttpError::NotReady(_) | HttpError::Overloaded(_));
            if !waits || self.check_health(HEALTH_TIMEOUT).await.is_err() {
                return Err(error);
            }
            if started.elapsed() >= limit {
                return Err(HttpError::NotReady(format!("no completion within {} s", limit.as_secs_f64())));
            }
            tokio::time::sleep(COLD_PAUSE.min(limit)).await;
        }
    }

    /// Checks once whether the server responds within `timeout`. A front end without `/health` counts as healthy.
    pub(super) async fn check_health(&self, timeout: Duration) -> std::result::Result<(), HttpError> {
        match tokio::time::timeout(timeout, self.http.send_once(&HttpRequest::get("health"))).await {
            Ok(Ok(_) | Err(HttpError::Rejected(..) | HttpError::Overloaded(_))) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(HttpError::Unreachable(format!("no response within {} s", timeout.as_secs()))),
        }
    }

    /// Lists served models and adapters.
    pub(super) async fn list_models(&self) -> std::result::Result<Vec<ServedModel>, HttpError> {
        let list = match self.send_json(&HttpRequest::get("v1/models")).await {
            Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => {
                let (found, hints) = Service::Vllm.describe_wrong_server(&self.http).await;
                return Err(HttpError::Permanent(format!("{found} ({text})"), hints));
            }
            response => response?,
        };
        let all = list["data"].as_array().cloned().unwrap_or_default();
        let served = |m: &Value| {
            let max_seq_len = m["max_model_len"].as_u64().map(|n| n as usize);
            Some(ServedModel { name: m["id"].as_str()?.to_owned(), max_seq_len })
        };
        Ok(all.iter().filter_map(served).collect())
    }

    /// Tokenizes a text.
    pub(super) async fn tokenize(&self, model: &str, text: &str) -> std::result::Result<Vec<u32>, HttpError> {
        let body = json!({"model": model, "prompt": text, "add_special_tokens": false});
        let response = self.send_json(&HttpRequest::post("tokenize", &body)).await?;
        serde_json::from_value(response["tokens"].clone())
            .map_err(|e| HttpError::ServerError(format!("invalid response: {e}")))
    }

    /// Loads an adapter from a directory that the server can read.
    pub(super) async fn load_adapter(&self, name: &str, dir: &Path) -> std::result::Result<(), HttpError> {
        let body = json!({"lora_name": name, "lora_path": dir});
        // Idempotent: if a load takes longer than an attempt, the next attempt finds it done.
        match self.send(&HttpRequest::post("v1/load_lora_adapter", &body)).await {
            Ok(_) => Ok(()),
            // The server received the first request and its response was lost: names are used only once.
            Err(HttpError::Rejected(_, text)) if text.contains("already been loaded") => Ok(()),
            Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => {
                // Listing models detects another kind of server.
                self.list_models().await?;
                // A server with LoRA enabled did not find the directory.
                let (needed, hints): (_, &[Hint]) = match text.contains("lora") || text.contains("adapter") {
                    true => {
                        let dir = dir.display();
                        let needed = format!("the server must see {dir} under the same path and be able to read it");
                        (needed, &[Hint::ShareAdapterDir])
                    }
                    false => (
                        "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True".to_owned(),
                        &[],
                    ),
                };
                Err(HttpError::Permanent(format!("{}: {text}: {needed}", StatusCode::NOT_FOUND), hints))
            }
            Err(error) => Err(error),
        }
    }

    /// Unloads an adapter; a missing one is ignored.
    pub(super) async fn unload_adapter(&self, name: &str) {
        let _ = self.http.send_once(&HttpRequest::post("v1/unload_lora_adapter", &json!({"lora_name": name}))).await;
    }
}

/// Limits the time of a response. A healthy server may have lost a single request.
async fn with_timeout<T>(
    timeout: Duration,
    response: impl Future<Output = std::result::Result<T, HttpError>>,
) -> std::result::Result<T, HttpError> {
    let timed_out = || Err(HttpError::NotReady(format!("no response within {:.0} s", timeout.as_secs_f64())));
    tokio::time::timeout(timeout, response).await.unwrap_or_else(|_| timed_out())
}
