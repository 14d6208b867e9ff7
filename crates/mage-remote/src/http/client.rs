//! How does a request reach an engine that may go away and come back?
//!
//! Unlike a chat endpoint, an engine holds a run's state: giving up on it gives up the run. So whoever is away is waited for,
//! with a line that says so; what the server refuses comes back at once; and an error names what went wrong first, since the
//! last failure of many is often only an echo.

use crate::{
    ApiKey, StatusLog,
    http::address::{is_here, parse_address},
    http::outage::Outage,
    http::retry::{pause, retry_after},
    http::timeout::RetryDeadline,
    http::tls::for_good,
};
use mage_engine::{Error, Result};
use mage_rng::Seed;
use reqwest::{Method, Response, StatusCode, Url, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::time::Instant;

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(3);
/// How long a machine may take to pick up; one that is gone never does.
const CONNECT: Duration = Duration::from_secs(10);
/// An answer that is none is asked for so often: something on the way may have put its own page in its place.
const UNUSABLE: u32 = 3;
/// How much of a server's complaint is repeated.
const COMPLAINT: usize = 400;

/// How long an engine is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long one attempt may take; a long poll is cut into such pieces.
    pub attempt: Duration,
    /// How long a server that does not answer, has too much to do or fails is waited for.
    pub away: Duration,
    /// How long one operation may take on a server that is there.
    pub operation: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            attempt: Duration::from_secs(45),
            away: Duration::from_secs(900),
            operation: Duration::from_secs(3600),
        }
    }
}

/// What an engine is sent.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
    pub(crate) accept: &'static str,
    /// Whether the answer may take as long as an operation: it comes when all is done, and asking again would start anew.
    pub(crate) long: bool,
}

impl HttpRequest {
    pub(crate) fn get(path: impl Into<String>) -> Self {
        HttpRequest { method: Method::GET, path: path.into(), body: None, accept: "*/*", long: false }
    }

    pub(crate) fn post(path: impl Into<String>, body: &impl Serialize) -> Self {
        // Plain data: there is nothing in it that has no JSON.
        let body = Some(("application/json", serde_json::to_vec(body).unwrap_or_default()));
        HttpRequest { method: Method::POST, path: path.into(), body, accept: "application/json", long: false }
    }

    pub(crate) fn long(self) -> Self {
        HttpRequest { long: true, ..self }
    }
}

/// What an attempt came to, if not to an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HttpError {
    /// It says no: the status and its reason.
    Refused(StatusCode, String),
    /// It has not got it yet (`408`, `425`): ask again.
    NotYet(String),
    /// It has too much to do (`429`): ask again, later.
    Busy(String),
    /// It answered with a failure that may pass.
    Failing(String),
    /// It does not answer.
    Away(String),
    /// It cannot be reached, and waiting does not change that.
    Never(String),
}

impl HttpError {
    pub(crate) fn text(&self) -> String {
        match self {
            HttpError::Refused(status, text) => format!("{status}: {text}"),
            HttpError::NotYet(text)
            | HttpError::Busy(text)
            | HttpError::Failing(text)
            | HttpError::Away(text)
            | HttpError::Never(text) => text.clone(),
        }
    }

    /// What whoever waits is told that the server does.
    pub(crate) fn is(&self) -> &'static str {
        match self {
            HttpError::Busy(_) => "has too much to do",
            HttpError::Failing(_) => "answers with failures",
            _ => "does not answer",
        }
    }
}

/// The way to one server.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    base: Url,
    /// The header a key goes into, and the key.
    key: Option<(&'static str, ApiKey)>,
    http: reqwest::Client,
    pub(crate) waiting: Timeouts,
    /// Who hears of it; no line has the key in it.
    pub(crate) notices: StatusLog,
    /// Whether it is away: whoever shares this says it once between them.
    pub(crate) outage: Arc<Outage>,
    /// Until when it asked to be left alone (`Retry-After`), for all who share this.
    later: Arc<Mutex<Option<Instant>>>,
}

impl HttpClient {
    /// The way to `base`. A key goes into `header`.
    pub(crate) fn new(
        base: &str,
        key: Option<(&'static str, ApiKey)>,
        waiting: Timeouts,
        notices: StatusLog,
    ) -> Result<Self> {
        let wrong = |problem: String| Error::invalid("engine address", problem);
        let mut base = parse_address(base).map_err(wrong)?;
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        // Whoever waits no longer than that hangs on no attempt for longer either.
        let waiting = Timeouts { attempt: waiting.attempt.min(waiting.away), ..waiting };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut http = reqwest::Client::builder()
            // A server that sends us elsewhere would get our key sent there too.
            .redirect(reqwest::redirect::Policy::none())
            // uvicorn, which both engines answer by, hangs up on whoever is silent for 5 s: a request that meets that would look
            // like a server that went away (seen).
            .pool_idle_timeout(IDLE)
            .connect_timeout(CONNECT)
            .user_agent(concat!("mage/", env!("CARGO_PKG_VERSION")));
        if is_here(&base) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|e| wrong(e.to_string()))?;
        let notices = notices.hiding(key.as_ref().map(|(_, key)| key));
        Ok(HttpClient { base, key, http, waiting, notices, outage: Arc::default(), later: Arc::default() })
    }

    /// The address, as it may be written down.
    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// What deserves a warning about how this server is reached.
    pub(crate) fn risk(&self) -> Option<String> {
        let address = self.address();
        if is_here(&self.base) {
            return None;
        }
        match (self.base.scheme(), self.key.is_some()) {
            ("https", true) => None,
            (_, false) => Some(format!(
                "{address} is reached over a network without a key: whoever reaches it can use it; keep it to a private \
                 network or put a proxy with a key before it"
            )),
            _ => Some(format!("{address} gets its key over http, readable on the way; use https")),
        }
    }

    /// Asks once.
    pub(crate) async fn once(&self, ask: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        let work = async {
            let url = self.base.join(&ask.path).map_err(|e| HttpError::Never(e.to_string()))?;
            let mut request = self.http.request(ask.method.clone(), url).header(header::ACCEPT, ask.accept);
            if let Some((kind, body)) = &ask.body {
                request = request.header(header::CONTENT_TYPE, *kind).body(body.clone());
            }
            if let Some((name, key)) = &self.key {
                let value = if *name == "authorization" { key.bearer() } else { key.plain().to_owned() };
                if let Ok(mut value) = header::HeaderValue::from_str(&value) {
                    value.set_sensitive(true);
                    request = request.header(*name, value);
                }
            }
            let lost = |e: reqwest::Error| match for_good(&e) {
                Some(problem) => HttpError::Never(problem),
                None => HttpError::Away(crate::openai::causes(&e)),
            };
            let response = request.send().await.map_err(lost)?;
            let status = response.status();
            if status.is_success() {
                let answer = self.body(response).await?;
                return Ok(match &self.key {
                    Some((_, key)) => key.hide_in_answer(answer),
                    None => answer,
                });
            }
            let wish = response.headers().get(header::RETRY_AFTER).and_then(|h| h.to_str().ok());
            if let Some(wish) = wish.and_then(|h| retry_after(h, SystemTime::now())) {
                // Nobody is left alone for longer than anybody waits.
                *self.later() = Some(Instant::now() + wish.min(self.waiting.away));
            }
            // The complaint is worth reading, but not worth another failure. Hidden before it is cut: half a key is too much.
            let complaint = self.hide(&response.text().await.unwrap_or_default());
            Err(self.about_keys(trouble(status, &complaint)))
        };
        let limit = if ask.long { self.waiting.operation } else { self.waiting.attempt };
        let outcome = tokio::time::timeout(limit, work).await;
        let late = || HttpError::NotYet(format!("no whole answer within {:.0} s", limit.as_secs_f64()));
        outcome.unwrap_or_else(|_| Err(late())).map_err(|t| self.hidden(t))
    }

    /// The whole answer. A long one may take its time as long as some of it keeps coming.
    async fn body(&self, mut response: Response) -> std::result::Result<Vec<u8>, HttpError> {
        let whole = response.content_length().map_or_else(String::new, |n| format!(" of {n}"));
        let (mut body, silence) = (Vec::new(), self.waiting.attempt);
        loop {
            let problem = match tokio::time::timeout(silence, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    body.extend_from_slice(&chunk);
                    continue;
                }
                Ok(Ok(None)) => return Ok(body),
                Ok(Err(e)) => crate::openai::causes(&e),
                Err(_) => format!("nothing more for {:.0} s", silence.as_secs_f64()),
            };
            return Err(HttpError::Away(format!("its answer broke off after {}{whole} bytes: {problem}", body.len())));
        }
    }

    /// Asks until there is an answer or a refusal, or patience with whatever trouble is at an end.
    pub(crate) async fn ask(&self, ask: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        let (mut patience, mut failures) = (RetryDeadline::new(self), 0);
        let luck = Seed::new(0).child(&ask.path);
        loop {
            let asked = Instant::now();
            match self.once(ask).await {
                Ok(answer) => {
                    patience.over();
                    return Ok(answer);
                }
                Err(last @ (HttpError::Refused(..) | HttpError::Never(_))) => return Err(last),
                // Not yet is an answer, but one to the wrong question here: whoever can wait for it asks `once`.
                Err(trouble) => patience.bear(asked, &trouble)?,
            }
            tokio::time::sleep(pause(failures, self.wish(), luck).min(patience.left())).await;
            failures += 1;
        }
    }

    /// How long it still wants to be left alone.
    pub(crate) fn wish(&self) -> Option<Duration> {
        self.later().map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn later(&self) -> MutexGuard<'_, Option<Instant>> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, for an answer in JSON.
    pub(crate) async fn json<A: DeserializeOwned>(&self, ask: &HttpRequest) -> std::result::Result<A, HttpError> {
        let luck = Seed::new(0).child(&ask.path);
        let mut times = 0;
        loop {
            let bytes = self.ask(ask).await?;
            let e = match serde_json::from_slice(&bytes) {
                Ok(answer) => return Ok(answer),
                Err(e) => e,
            };
            times += 1;
            if times == UNUSABLE {
                let text = self.hide(&String::from_utf8_lossy(&bytes));
                let text = mage_engine::truncate_chars(&text, COMPLAINT);
                let said = format!("unusable answer to {}, {UNUSABLE} times: {e} in `{text}`", ask.path);
                return Err(self.hidden(HttpError::Failing(said)));
            }
            tokio::time::sleep(pause(times - 1, None, luck)).await;
        }
    }

    /// What a locked door means for whoever has a key, or none.
    fn about_keys(&self, trouble: HttpError) -> HttpError {
        match trouble {
            HttpError::Refused(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), text) => {
                let hint = match self.key {
                    Some(_) => "the key it was sent is not the one it wants",
                    None => "it wants a key: put it into the environment variable that key_env names",
                };
                HttpError::Refused(status, format!("{text} ({hint})"))
            }
            other => other,
        }
    }

    /// An error about this server.
    pub(crate) fn error(&self, reason: impl AsRef<str>) -> Error {
        Error::Engine { engine: self.address().to_owned(), reason: self.hide(reason.as_ref()) }
    }

    /// A text without the key. Whatever a server has said comes by here before it is an error or, as `notices` does the same, a
    /// line; answers that are texts come without the key in the first place.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |(_, key)| key.hide_in(text))
    }

    /// The same trouble without the key, on one line.
    fn hidden(&self, trouble: HttpError) -> HttpError {
        let hide = |text: String| self.hide(&text.split_whitespace().collect::<Vec<_>>().join(" "));
        match trouble {
            HttpError::Refused(status, text) => HttpError::Refused(status, hide(text)),
            HttpError::NotYet(text) => HttpError::NotYet(hide(text)),
            HttpError::Busy(text) => HttpError::Busy(hide(text)),
            HttpError::Failing(text) => HttpError::Failing(hide(text)),
            HttpError::Away(text) => HttpError::Away(hide(text)),
            HttpError::Never(text) => HttpError::Never(hide(text)),
        }
    }
}

/// What a status means for whoever asked.
fn trouble(status: StatusCode, complaint: &str) -> HttpError {
    // FastAPI puts the reason into a field.
    let detail = serde_json::from_str::<Value>(complaint).ok().map(|v| match &v["detail"] {
        Value::String(text) => text.clone(),
        Value::Null => v["error"]["message"].as_str().unwrap_or(complaint.trim()).to_owned(),
        other => other.to_string(),
    });
    let text = detail.unwrap_or_else(|| complaint.trim().to_owned());
    let text = mage_engine::truncate_chars(&text, COMPLAINT).to_string();
    match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => HttpError::NotYet(format!("{status}: {text}")),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            // A proxy says so while the engine behind it is not there.
            HttpError::Away(format!("{status}: {text}"))
        }
        StatusCode::TOO_MANY_REQUESTS => HttpError::Busy(format!("{status}: {text}")),
        s if s.is_server_error() => HttpError::Failing(format!("{status}: {text}")),
        s if s.is_redirection() => {
            HttpError::Refused(s, "it sends us elsewhere; give the address it sends us to".into())
        }
        s => HttpError::Refused(s, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn wire(url: &str, key: bool) -> HttpClient {
        let key = key.then(|| ("x-api-key", ApiKey::for_test("sk-secret")));
        HttpClient::new(url, key, Timeouts::default(), StatusLog::default()).unwrap()
    }

    #[tokio::test]
    async fn that_a_server_is_away_is_said_once_by_all_who_wait() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let hear = Arc::clone(&said);
        // Worth a line after a quarter of it: somebody asks again in between, however busy this machine is.
        let waiting = Timeouts { away: Duration::from_secs(4), ..Timeouts::default() };
        let notices = StatusLog::to(move |line| hear.lock().unwrap().push(line.to_owned()));
        let wire = HttpClient::new(&format!("http://{nobody}"), None, waiting, notices).unwrap();
        let ask = HttpRequest::get("health");
        let all = crate::join::join_all((0..8).map(|_| wire.ask(&ask))).await;
        assert!(all.iter().all(|one| matches!(one, Err(HttpError::Away(_)))));
        let said = said.lock().unwrap();
        assert!(said.len() == 1 && said[0].contains("waiting for it"), "{said:?}");
    }

    #[tokio::test]
    async fn a_server_with_too_much_to_do_is_left_alone_as_long_as_it_asks() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let busy = 8;
        let serving = tokio::spawn(async move {
            for n in 0..=busy {
                let (mut caller, _) = listener.accept().await.unwrap();
                let _ = caller.read(&mut [0; 1024]).await.unwrap();
                let status = if n < busy { "429 Busy\r\nretry-after: 0.1" } else { "200 Fine" };
                let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                caller.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let waiting = Timeouts { away: Duration::from_secs(60), ..Timeouts::default() };
        let wire = HttpClient::new(&format!("http://{address}"), None, waiting, StatusLog::default()).unwrap();
        let started = Instant::now();
        wire.ask(&HttpRequest::get("health")).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(100) * busy);
        serving.await.unwrap();
    }

    #[test]
    fn engines_without_a_lock_are_warned_about_beyond_this_machine() {
        assert_eq!(wire("http://127.0.0.1:8000", false).risk(), None);
        assert_eq!(wire("https://engine.example", true).risk(), None);
        assert!(wire("http://10.0.0.7:8000", false).risk().unwrap().contains("without a key"));
        assert!(wire("http://10.0.0.7:8000", true).risk().unwrap().contains("use https"));
    }

    #[test]
    fn a_locked_door_says_whether_a_key_was_sent() {
        let refused = || trouble(StatusCode::UNAUTHORIZED, r#"{"error": "Unauthorized"}"#);
        assert!(wire("http://127.0.0.1:1", false).about_keys(refused()).text().contains("key_env"));
        assert!(wire("http://127.0.0.1:1", true).about_keys(refused()).text().contains("not the one it wants"));
    }

    #[test]
    fn statuses_say_what_to_do() {
        let of = |code: u16, text: &str| trouble(StatusCode::from_u16(code).unwrap(), text);
        assert!(matches!(of(408, ""), HttpError::NotYet(_)) && matches!(of(425, ""), HttpError::NotYet(_)));
        assert!(matches!(of(500, ""), HttpError::Failing(_)) && matches!(of(503, ""), HttpError::Away(_)));
        assert!(matches!(of(429, ""), HttpError::Busy(_)));
        assert_eq!(of(409, r#"{"detail": "reused"}"#), HttpError::Refused(StatusCode::CONFLICT, "reused".into()));
        assert_eq!(
            of(404, r#"{"error": {"message": "no such model"}}"#),
            HttpError::Refused(StatusCode::NOT_FOUND, "no such model".into())
        );
        let list = of(422, r#"{"detail": [{"msg": "bad"}]}"#);
        assert!(list.text().contains("bad"), "{list:?}");
    }

    #[test]
    fn keys_are_taken_out_of_what_servers_say() {
        let said = wire("http://127.0.0.1:1", true).hidden(HttpError::Away("no: sk-secret\nis wrong".into()));
        assert_eq!(said.text(), "no: [key] is wrong");
    }
}
