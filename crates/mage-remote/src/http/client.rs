//! HTTP client of a server: one attempt ([`HttpClient::send_once`]), and retries ([`HttpClient::retry`]).
//!
//! Rejected requests fail at once; other failures are retried until the caller gives up. An engine holds the state of a
//! run, so giving up on it ends the run: [`HttpClient::send`] waits for outages, with a log line.

use crate::{
    ApiKey, StatusLog,
    http::address::{is_loopback_url, parse_address},
    http::outage::Outage,
    http::retry::{backoff, parse_retry_after},
    http::timeout::RetryDeadline,
    http::tls::permanent_failure,
};
use mage_engine::{Error, Hint, Result};
use mage_rng::Seed;
use reqwest::{Method, Response, StatusCode, Url, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// Idle timeout of pooled connections.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Connect timeout. An unreachable host may never refuse.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts for a response that cannot be parsed: a proxy may have replaced it with its own page.
const PARSE_ATTEMPTS: u32 = 3;
/// Characters of a server's error text that are quoted.
const MAX_ERROR_CHARS: usize = 400;
/// Bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Default limit of a response. Log-probs of a large batch have hundreds of megabytes.
const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// Timeouts for requests to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of one attempt. Long polls are divided into attempts.
    pub attempt: Duration,
    /// How long a server that is unreachable, overloaded or failing is retried.
    pub outage: Duration,
    /// Timeout of one operation on a healthy server.
    pub operation: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            attempt: Duration::from_secs(45),
            outage: Duration::from_secs(900),
            operation: Duration::from_secs(3600),
        }
    }
}

/// A request to an engine.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
    pub(crate) accept: &'static str,
    /// A larger response fails.
    pub(crate) max_bytes: usize,
    /// Whether the response may take as long as an operation. Such a request must not be repeated after the attempt
    /// timeout, which would restart it.
    pub(crate) long_running: bool,
}

impl HttpRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        HttpRequest::new(Method::GET, path, None)
    }

    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize) -> Self {
        // Plain data always serialises to JSON.
        let body = Some(("application/json", serde_json::to_vec(body).unwrap_or_default()));
        HttpRequest { accept: "application/json", ..HttpRequest::new(Method::POST, path, body) }
    }

    pub(crate) fn new(method: Method, path: impl Into<String>, body: Option<(&'static str, Vec<u8>)>) -> Self {
        let max_bytes = MAX_RESPONSE_BYTES;
        HttpRequest { method, path: path.into(), body, accept: "*/*", max_bytes, long_running: false }
    }

    pub(crate) fn long_running(self) -> Self {
        HttpRequest { long_running: true, ..self }
    }
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HttpError {
    /// The server rejected the request: status and reason.
    Rejected(StatusCode, String),
    /// No result yet (`408`, `425`, or attempt timeout): retry.
    NotReady(String),
    /// Overloaded (`429`): retry later.
    Overloaded(String),
    /// The server responded with an error that may pass.
    ServerError(String),
    /// The server is unreachable.
    Unreachable(String),
    /// Any other permanent failure, with what to do about it.
    Permanent(String, &'static [Hint]),
}

impl HttpError {
    pub(crate) fn text(&self) -> String {
        match self {
            HttpError::Rejected(status, text) => format!("{status}: {text}"),
            HttpError::NotReady(text)
            | HttpError::Overloaded(text)
            | HttpError::ServerError(text)
            | HttpError::Unreachable(text)
            | HttpError::Permanent(text, _) => text.clone(),
        }
    }

    /// What the user can do.
    pub(crate) fn hints(&self) -> &'static [Hint] {
        match self {
            HttpError::Rejected(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => &[Hint::SetApiKey],
            HttpError::Permanent(_, hints) => hints,
            _ => &[],
        }
    }

    /// State of the server, for log lines.
    pub(crate) fn description(&self) -> &'static str {
        match self {
            HttpError::Overloaded(_) => "is overloaded",
            HttpError::ServerError(_) => "returns errors",
            _ => "is unreachable",
        }
    }
}

/// HTTP client of one server.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    base: Url,
    /// Header name and API key.
    key: Option<(&'static str, ApiKey)>,
    http: reqwest::Client,
    pub(crate) timeouts: Timeouts,
    /// Status log with the key redacted.
    pub(crate) status_log: StatusLog,
    /// Outage state, shared by clones.
    pub(crate) outage: Arc<Outage>,
    /// Earliest time of the next request according to `Retry-After`, shared by clones.
    not_before: Arc<Mutex<Option<Instant>>>,
}

impl HttpClient {
    /// Creates a client of `base`. The key is sent in the header `key.0`.
    pub(crate) fn new(
        base: &str,
        key: Option<(&'static str, ApiKey)>,
        timeouts: Timeouts,
        status_log: StatusLog,
    ) -> Result<Self> {
        let wrong = |problem: String| Error::invalid("engine address", problem);
        let mut base = parse_address(base).map_err(wrong)?;
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        // An attempt never takes longer than the outage timeout.
        let timeouts = Timeouts { attempt: timeouts.attempt.min(timeouts.outage), ..timeouts };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            // A redirect would send the key to another server.
            .redirect(reqwest::redirect::Policy::none())
            // uvicorn, used by both engines, closes connections that are idle for 5 s. A request on such a connection
            // would look like an outage.
            .pool_idle_timeout(IDLE_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("mage/", env!("CARGO_PKG_VERSION")));
        if is_loopback_url(&base) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| wrong(e.to_string()))?;
        let status_log = status_log.redacting(key.as_ref().map(|(_, key)| key));
        Ok(HttpClient { base, key, http, timeouts, status_log, outage: Arc::default(), not_before: Arc::default() })
    }

    /// The address without the trailing slash.
    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Warning about an insecure connection to this server.
    pub(crate) fn security_warning(&self) -> Option<String> {
        let address = self.address();
        if is_loopback_url(&self.base) {
            return None;
        }
        match (self.base.scheme(), self.key.is_some()) {
            ("https", true) => None,
            (_, false) => Some(format!(
                "{address} is used over a network without an API key, so any client on that network can use it; restrict it to a \
                 private network or put an authenticating proxy in front of it"
            )),
            _ => Some(format!("{address} receives its API key over unencrypted http; use https")),
        }
    }

    /// Sends a request once.
    pub(crate) async fn send_once(&self, request: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        let attempt = async {
            let url = self.base.join(&request.path).map_err(|e| HttpError::Permanent(e.to_string(), &[]))?;
            let mut builder = self.http.request(request.method.clone(), url).header(header::ACCEPT, request.accept);
            if let Some((content_type, body)) = &request.body {
                builder = builder.header(header::CONTENT_TYPE, *content_type).body(body.clone());
            }
            if let Some((name, key)) = &self.key {
                let value = if *name == "authorization" { key.bearer_header() } else { key.expose().to_owned() };
                if let Ok(mut value) = header::HeaderValue::from_str(&value) {
                    value.set_sensitive(true);
                    builder = builder.header(*name, value);
                }
            }
            let connection_error = |e: reqwest::Error| match permanent_failure(&e) {
                Some(problem) => HttpError::Permanent(problem, &[]),
                None => HttpError::Unreachable(error_chain(&e)),
            };
            let mut response = builder.send().await.map_err(connection_error)?;
            let status = response.status();
            if status.is_success() {
                let body = self.read_body(response, request.max_bytes).await?;
                return Ok(match &self.key {
                    Some((_, key)) => key.redact_response(body),
                    None => body,
                });
            }
            let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|h| h.to_str().ok());
            if let Some(delay) = retry_after.and_then(|h| parse_retry_after(h, SystemTime::now())) {
                // Never longer than the outage timeout.
                *self.not_before() = Some(Instant::now() + delay.min(self.timeouts.outage));
            }
            // The error text is optional, so reading it must not fail.
            let mut text = Vec::new();
            while let (true, Ok(Some(chunk))) = (text.len() < MAX_ERROR_BYTES, response.chunk().await) {
                text.extend_from_slice(&chunk);
            }
            // Redact before truncating: half a key is too much.
            let text = self.redact(&String::from_utf8_lossy(&text));
            Err(self.explain_denial(status_error(status, &text)))
        };
        let limit = if request.long_running { self.timeouts.operation } else { self.timeouts.attempt };
        let outcome = tokio::time::timeout(limit, attempt).await;
        let timed_out = || HttpError::NotReady(format!("no response within {} s", seconds(limit)));
        outcome.unwrap_or_else(|_| Err(timed_out())).map_err(|e| self.redact_error(e))
    }

    /// Reads the response body. The attempt timeout applies to each chunk; long-running requests may take longer in total.
    async fn read_body(&self, mut response: Response, max_bytes: usize) -> std::result::Result<Vec<u8>, HttpError> {
        let total = response.content_length().map_or_else(String::new, |n| format!(" of {n}"));
        let (mut body, chunk_timeout) = (Vec::new(), self.timeouts.attempt);
        loop {
            let problem = match tokio::time::timeout(chunk_timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) if chunk.len() > max_bytes - body.len() => {
                    let problem = format!("the response has more than {max_bytes} bytes");
                    return Err(HttpError::Permanent(problem, &[]));
                }
                Ok(Ok(Some(chunk))) => {
                    body.extend_from_slice(&chunk);
                    continue;
                }
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(e)) => error_chain(&e),
                Err(_) => format!("no data for {:.0} s", chunk_timeout.as_secs_f64()),
            };
            return Err(HttpError::Unreachable(format!(
                "the response ended after {}{total} bytes: {problem}",
                body.len()
            )));
        }
    }

    /// Sends a request and retries until a response, a rejection, a permanent failure or the outage timeout.
    pub(crate) async fn send(&self, request: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        let deadline = &mut RetryDeadline::new(self);
        let seed = Seed::new(0).child(&request.path);
        // `NotReady` is retried here too. Callers that poll use `send_once`.
        let response = self.retry(request, seed, Ok, |error, sent_at, pause| {
            deadline.record_failure(sent_at, error)?;
            Ok(pause.min(deadline.remaining()))
        });
        let body = response.await?;
        deadline.recovered();
        Ok(body)
    }

    /// Sends a request until `read` accepts the response. After a failure that may pass, `on_failure` gets the error,
    /// the time of the attempt and the next pause by backoff and `Retry-After`; it returns the pause to make, or gives
    /// up with an error. `seed` determines the jitter.
    pub(crate) async fn retry<T>(
        &self,
        request: &HttpRequest,
        seed: Seed,
        read: impl Fn(Vec<u8>) -> std::result::Result<T, HttpError>,
        mut on_failure: impl FnMut(&HttpError, Instant, Duration) -> std::result::Result<Duration, HttpError>,
    ) -> std::result::Result<T, HttpError> {
        let mut failures = 0;
        loop {
            let sent_at = Instant::now();
            let error = match self.send_once(request).await.and_then(&read) {
                Err(error @ (HttpError::Rejected(..) | HttpError::Permanent(..))) => return Err(error),
                Err(error) => error,
                done => return done,
            };
            let pause = backoff(failures, self.retry_after(), seed);
            tokio::time::sleep(on_failure(&error, sent_at, pause)?).await;
            failures += 1;
        }
    }

    /// Remaining `Retry-After` delay.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.not_before().map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn not_before(&self) -> MutexGuard<'_, Option<Instant>> {
        self.not_before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like [`send`](Self::send), and parses a JSON response.
    pub(crate) async fn send_json<A: DeserializeOwned>(
        &self,
        request: &HttpRequest,
    ) -> std::result::Result<A, HttpError> {
        let seed = Seed::new(0).child(&request.path);
        let mut attempts = 0;
        loop {
            let bytes = self.send(request).await?;
            let e = match serde_json::from_slice(&bytes) {
                Ok(value) => return Ok(value),
                Err(e) => e,
            };
            attempts += 1;
            if attempts == PARSE_ATTEMPTS {
                let text = self.redact(&String::from_utf8_lossy(&bytes));
                let text = mage_engine::truncate_chars(&text, MAX_ERROR_CHARS);
                let message = format!("invalid response to {}, {PARSE_ATTEMPTS} times: {e} in `{text}`", request.path);
                return Err(self.redact_error(HttpError::ServerError(message)));
            }
            tokio::time::sleep(backoff(attempts - 1, None, seed)).await;
        }
    }

    /// Adds to `401` and `403` whether a key was sent.
    fn explain_denial(&self, error: HttpError) -> HttpError {
        match error {
            HttpError::Rejected(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), text) => {
                let why = match self.key {
                    Some(_) => "the server does not accept this API key",
                    None => "the server requires an API key",
                };
                HttpError::Rejected(status, format!("{text} ({why})"))
            }
            other => other,
        }
    }

    /// Creates an engine error for this server.
    pub(crate) fn error(&self, reason: impl AsRef<str>) -> Error {
        Error::engine(self.address(), self.redact(reason.as_ref()))
    }

    /// Creates an engine error for a failed request `what`.
    pub(crate) fn request_error(&self, what: &str, error: &HttpError) -> Error {
        self.error(format!("{what}: {}", error.text())).with_hints(error.hints())
    }

    /// Redacts the key. All server texts pass through here before they become errors; the status log redacts lines
    /// itself, and text responses are redacted on receipt.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |(_, key)| key.redact(text))
    }

    /// Redacts an error and puts it on one line.
    fn redact_error(&self, error: HttpError) -> HttpError {
        let redact = |text: String| self.redact(&text.split_whitespace().collect::<Vec<_>>().join(" "));
        match error {
            HttpError::Rejected(status, text) => HttpError::Rejected(status, redact(text)),
            HttpError::NotReady(text) => HttpError::NotReady(redact(text)),
            HttpError::Overloaded(text) => HttpError::Overloaded(redact(text)),
            HttpError::ServerError(text) => HttpError::ServerError(redact(text)),
            HttpError::Unreachable(text) => HttpError::Unreachable(redact(text)),
            HttpError::Permanent(text, hints) => HttpError::Permanent(redact(text), hints),
        }
    }
}

/// A duration in seconds, without trailing zeros.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

/// Why a request failed: the innermost cause, which is the reason, then what encloses it. A terminal may cut the end.
fn error_chain(e: &reqwest::Error) -> String {
    let mut causes: Vec<&(dyn std::error::Error + 'static)> = vec![e];
    while let Some(cause) = causes[causes.len() - 1].source() {
        causes.push(cause);
    }
    let known = causes.iter().find_map(|e| connection_failure(e.downcast_ref::<std::io::Error>()?.kind()));
    let outermost = causes.remove(0).to_string();
    let inner: Vec<String> = causes.iter().rev().map(ToString::to_string).collect();
    match (known, inner.split_first()) {
        (Some(known), _) => known.to_owned(),
        (None, None) => outermost,
        (None, Some((reason, []))) => reason.clone(),
        (None, Some((reason, enclosing))) => format!("{reason} ({})", enclosing.join(", ")),
    }
}

/// A failed connection in plain words.
fn connection_failure(kind: std::io::ErrorKind) -> Option<&'static str> {
    use std::io::ErrorKind as E;
    match kind {
        E::ConnectionRefused => Some("connection refused"),
        E::ConnectionReset => Some("connection reset by the server"),
        E::HostUnreachable => Some("host unreachable"),
        E::NetworkUnreachable => Some("network unreachable"),
        _ => None,
    }
}

/// Maps an error status to an error.
fn status_error(status: StatusCode, body: &str) -> HttpError {
    // FastAPI puts the reason into `detail`.
    let detail = serde_json::from_str::<Value>(body).ok().map(|v| match &v["detail"] {
        Value::String(text) => text.clone(),
        Value::Null => v["error"]["message"].as_str().unwrap_or(body.trim()).to_owned(),
        other => other.to_string(),
    });
    let text = detail.unwrap_or_else(|| body.trim().to_owned());
    let text = mage_engine::truncate_chars(&text, MAX_ERROR_CHARS).to_string();
    match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => HttpError::NotReady(format!("{status}: {text}")),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            // A proxy reports this while the engine behind it is down.
            HttpError::Unreachable(format!("{status}: {text}"))
        }
        StatusCode::TOO_MANY_REQUESTS => HttpError::Overloaded(format!("{status}: {text}")),
        s if s.is_server_error() => HttpError::ServerError(format!("{status}: {text}")),
        s if s.is_redirection() => {
            HttpError::Rejected(s, "the server redirects; use the address that it redirects to".into())
        }
        s => HttpError::Rejected(s, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn client(url: &str, key: bool) -> HttpClient {
        let key = key.then(|| ("x-api-key", ApiKey::for_test("sk-secret")));
        HttpClient::new(url, key, Timeouts::default(), StatusLog::default()).unwrap()
    }

    #[tokio::test]
    async fn outage_is_logged_once_by_concurrent_requests() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let sink = Arc::clone(&log);
        // The line is logged after a quarter of the timeout, so that a retry falls in between even on a slow machine.
        let timeouts = Timeouts { outage: Duration::from_secs(4), ..Timeouts::default() };
        let status_log = StatusLog::new(move |line, _| sink.lock().unwrap().push(line.to_owned()));
        let http = HttpClient::new(&format!("http://{address}"), None, timeouts, status_log).unwrap();
        let request = HttpRequest::get("health");
        let all = futures_util::future::join_all((0..8).map(|_| http.send(&request))).await;
        assert!(all.iter().all(|one| matches!(one, Err(HttpError::Unreachable(_)))));
        let log = log.lock().unwrap();
        assert!(log.len() == 1 && log[0].contains("retrying for up to"), "{log:?}");
    }

    #[tokio::test]
    async fn a_connection_failure_starts_with_its_reason() {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let reason =
            async |url: &str| client(url, false).send_once(&HttpRequest::get("health")).await.unwrap_err().text();
        assert_eq!(reason(&format!("http://{address}")).await, "connection refused");
        // An unknown failure keeps its enclosing errors, after the reason.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { drop(listener.accept().await.unwrap()) });
        let closed = reason(&url).await;
        serving.await.unwrap();
        assert!(closed.starts_with("connection ") && !closed.contains("error sending"), "{closed}");
    }

    #[tokio::test]
    async fn retry_after_of_an_overloaded_server_is_respected() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let busy = 8;
        let serving = tokio::spawn(async move {
            for n in 0..=busy {
                let (mut caller, _) = listener.accept().await.unwrap();
                let _ = caller.read(&mut [0; 1024]).await.unwrap();
                let status = if n < busy { "429 Too Many Requests\r\nretry-after: 0.1" } else { "200 OK" };
                let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                caller.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let timeouts = Timeouts { outage: Duration::from_secs(60), ..Timeouts::default() };
        let http = HttpClient::new(&format!("http://{address}"), None, timeouts, StatusLog::default()).unwrap();
        let started = Instant::now();
        http.send(&HttpRequest::get("health")).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100) * busy);
        serving.await.unwrap();
    }

    #[test]
    fn insecure_remote_engines_cause_a_warning() {
        assert_eq!(client("http://127.0.0.1:8000", false).security_warning(), None);
        assert_eq!(client("https://engine.example", true).security_warning(), None);
        assert!(client("http://10.0.0.7:8000", false).security_warning().unwrap().contains("without an API key"));
        assert!(client("http://10.0.0.7:8000", true).security_warning().unwrap().contains("use https"));
    }

    #[test]
    fn authentication_errors_depend_on_whether_a_key_was_sent() {
        let unauthorized = || status_error(StatusCode::UNAUTHORIZED, r#"{"error": "Unauthorized"}"#);
        let denial = |key| client("http://127.0.0.1:1", key).explain_denial(unauthorized());
        assert!(denial(false).text().contains("requires an API key"));
        assert!(denial(true).text().contains("does not accept this API key"));
        assert_eq!(denial(false).hints(), [Hint::SetApiKey]);
    }

    #[test]
    fn statuses_map_to_errors() {
        let of = |code: u16, text: &str| status_error(StatusCode::from_u16(code).unwrap(), text);
        assert!(matches!(of(408, ""), HttpError::NotReady(_)) && matches!(of(425, ""), HttpError::NotReady(_)));
        assert!(matches!(of(500, ""), HttpError::ServerError(_)) && matches!(of(503, ""), HttpError::Unreachable(_)));
        assert!(matches!(of(429, ""), HttpError::Overloaded(_)));
        assert_eq!(of(409, r#"{"detail": "reused"}"#), HttpError::Rejected(StatusCode::CONFLICT, "reused".into()));
        assert_eq!(
            of(404, r#"{"error": {"message": "no such model"}}"#),
            HttpError::Rejected(StatusCode::NOT_FOUND, "no such model".into())
        );
        let list = of(422, r#"{"detail": [{"msg": "bad"}]}"#);
        assert!(list.text().contains("bad"), "{list:?}");
    }

    #[test]
    fn keys_are_redacted_from_server_errors() {
        let error =
            client("http://127.0.0.1:1", true).redact_error(HttpError::Unreachable("no: sk-secret\nis wrong".into()));
        assert_eq!(error.text(), "no: [key] is wrong");
    }
}
