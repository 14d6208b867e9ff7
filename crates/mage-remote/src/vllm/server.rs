//! How is one vLLM server asked, and for how long is it waited for?

use super::{
    completion::{Choice, Completion, Completions, Written, read_score, read_written},
    health::Record,
    pool::VllmPoolSettings,
};
use crate::{
    Fingerprint, Service,
    http::client::{HttpClient, HttpError, HttpRequest},
    http::retry::pause,
    join::race,
};
use mage_engine::{Result, SampleRequest};
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

/// One that is back says so within this time.
pub(super) const ALIVE: Duration = Duration::from_secs(8);
/// One that is there and fails is asked this often.
const ATTEMPTS: u32 = 4;
/// Whoever waits longer than this asks whether the server is still there.
const WATCH: Duration = Duration::from_secs(25);
/// How long it may take to say so,
const HEALTH: Duration = Duration::from_secs(8);
/// and how often it is asked.
const HEALTH_CHECKS: u32 = 3;

/// One server of a pool.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) wire: HttpClient,
    /// Tokens in the vocabulary.
    vocabulary: usize,
    /// Requests under way.
    pub(super) load: AtomicUsize,
    /// Whether it answered last.
    pub(super) up: AtomicBool,
    /// Whether it gets no new requests.
    pub(super) draining: AtomicBool,
    record: Mutex<Record>,
    /// When it was last asked whether it is still there, and what was wrong.
    checked: tokio::sync::Mutex<Option<(Instant, Option<String>)>>,
}

/// A model or an adapter that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// What it is called there.
    pub name: String,
    /// Tokens a sequence may have, where the server says so.
    pub max_seq_len: Option<usize>,
}

impl Server {
    pub(super) fn new(address: &str, settings: &VllmPoolSettings) -> Result<Self> {
        let key = settings.key.clone().map(|key| ("authorization", key));
        let wire = HttpClient::new(address, key, settings.waiting, settings.notices.clone())?;
        Ok(Server {
            wire,
            vocabulary: settings.vocabulary,
            load: AtomicUsize::new(0),
            up: AtomicBool::new(true),
            draining: AtomicBool::new(false),
            record: Mutex::new(Record::new()),
            checked: tokio::sync::Mutex::default(),
        })
    }

    /// Whether it may get requests now.
    pub(super) fn ready(&self) -> bool {
        self.up.load(Ordering::SeqCst) && !self.draining.load(Ordering::SeqCst) && self.wire.wish().is_none()
    }

    /// What is known of its failures.
    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries again what may pass: failures so many times, and one that is there and silent for as long as patience lasts. One
    /// that is not there is not waited for.
    async fn patiently<T, F>(&self, work: impl Fn() -> F) -> std::result::Result<T, HttpError>
    where
        F: Future<Output = std::result::Result<T, HttpError>>,
    {
        let (luck, patience) = (Seed::new(0).child(self.wire.address()), self.wire.waiting.away);
        let (started, mut times, mut failed) = (Instant::now(), 0, 0);
        loop {
            let asked = Instant::now();
            let trouble = match work().await {
                Ok(answer) => return Ok(answer),
                Err(refused @ (HttpError::Refused(..) | HttpError::Never(_))) => return Err(refused),
                Err(trouble) => trouble,
            };
            // One that answers, whatever it says, is there.
            let answers = matches!(trouble, HttpError::Failing(_) | HttpError::Busy(_));
            if !answers && self.alive(ALIVE).await.is_err() {
                return Err(trouble);
            }
            failed += u32::from(!matches!(trouble, HttpError::NotYet(_)));
            let left = patience.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(HttpError::Away(format!("{} (waited {:.0} s)", trouble.text(), patience.as_secs_f64())));
            }
            if failed >= ATTEMPTS {
                return Err(trouble);
            }
            // One that made us wait needs hardly more of a pause.
            times = if asked.elapsed() >= self.wire.waiting.attempt { 0 } else { times };
            tokio::time::sleep(pause(times, self.wire.wish(), luck).min(left)).await;
            times += 1;
        }
    }

    /// Asks once. A long answer is waited for as long as the server says that it is there: one that was stopped keeps its
    /// connections, and would be waited for in vain.
    async fn once(&self, ask: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        match ask.long {
            true => race(self.wire.once(ask), async { Err(self.silence().await) }).await,
            false => self.wire.once(ask).await,
        }
    }

    /// Ends when it no longer says that it is there.
    async fn silence(&self) -> HttpError {
        let every = WATCH.min(self.wire.waiting.attempt);
        // Many wait at once: not all of them ask at the same moment.
        let mut luck = Seed::new(self.load.load(Ordering::SeqCst) as u64).child("watch").rng();
        loop {
            tokio::time::sleep(every.mul_f64(luck.random_range(0.8..1.2))).await;
            if let Some(problem) = self.is_silent(every / 2).await {
                return HttpError::Away(format!("it keeps its connections but says nothing: {problem}"));
            }
        }
    }

    /// Why it seems not to be there. One asks for all who want to know within `fresh`.
    async fn is_silent(&self, fresh: Duration) -> Option<String> {
        let mut checked = self.checked.lock().await;
        if let Some((_, found)) = checked.as_ref().filter(|(at, _)| at.elapsed() < fresh) {
            return found.clone();
        }
        let mut found = None;
        for _ in 0..HEALTH_CHECKS {
            found = match self.alive(HEALTH.min(self.wire.waiting.attempt)).await {
                // An answer, whatever it says.
                Ok(()) | Err(HttpError::Failing(_)) => None,
                Err(trouble) => Some(format!("/health: {}", trouble.text())),
            };
            if found.is_none() {
                break;
            }
        }
        *checked = Some((Instant::now(), found.clone()));
        found
    }

    async fn ask(&self, ask: &HttpRequest) -> std::result::Result<Vec<u8>, HttpError> {
        self.patiently(|| self.once(ask)).await
    }

    /// The same, for an answer in JSON.
    async fn json(&self, ask: &HttpRequest) -> std::result::Result<Value, HttpError> {
        let bytes = self.ask(ask).await?;
        serde_json::from_slice(&bytes).map_err(|e| HttpError::Failing(format!("unusable answer to {}: {e}", ask.path)))
    }

    /// Asks once and reads the answer; an answer that makes no sense may pass.
    async fn complete<T>(
        &self,
        ask: &HttpRequest,
        read: impl Fn(Choice) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, HttpError> {
        let bytes = self.once(ask).await?;
        let unusable = |e: String| HttpError::Failing(format!("unusable answer: {e}"));
        let completion: Completion = serde_json::from_slice(&bytes).map_err(|e| unusable(e.to_string()))?;
        let choice = completion.choices.into_iter().next().ok_or_else(|| unusable("it has no choices".to_owned()))?;
        read(choice).map_err(unusable)
    }

    /// What it writes, if it does `within` so long.
    pub(super) async fn sample(
        &self,
        model: &str,
        request: &SampleRequest,
        within: Duration,
    ) -> std::result::Result<Written, HttpError> {
        let most = request.params.max_tokens as usize;
        let ask = Completions::sampled(model, request).ask().long();
        let read = |choice| read_written(choice, most, self.vocabulary);
        unless_late(within, self.complete(&ask, read)).await
    }

    /// The log-probability of each token from `from` on, given all before it, if each comes `within` so long.
    ///
    /// Each is asked for by itself, as the one token that may be drawn: its log-probability is told from before that choice.
    /// vLLM scores whole prompts too (`prompt_logprobs`), but its CPU build falls over when a batch holds such a request
    /// beside others with adapters (measured, 0.32.0). What a prompt has in common with the next is in the server's cache.
    pub(super) async fn score(
        &self,
        model: &str,
        tokens: &[u32],
        from: usize,
        within: Duration,
    ) -> std::result::Result<Vec<f32>, HttpError> {
        let mut scores = Vec::with_capacity(tokens.len() - from);
        for at in from..tokens.len() {
            let ask = Completions::scored(model, tokens, at).ask().long();
            let score = self.complete(&ask, |choice| read_score(choice, tokens[at]));
            scores.push(unless_late(within, score).await?);
        }
        Ok(scores)
    }

    /// How likely it finds the fixed sequence. Nobody else can answer for it: what may pass is tried again.
    pub(super) async fn fingerprint(&self, model: &str) -> std::result::Result<Fingerprint, HttpError> {
        let tokens = &Fingerprint::tokens(self.vocabulary);
        let mut found = Vec::with_capacity(tokens.len());
        for at in 1..tokens.len() {
            let ask = &Completions::scored(model, tokens, at).ask();
            found.push(self.patiently(|| self.complete(ask, |choice| read_score(choice, tokens[at]))).await?);
        }
        Ok(Fingerprint(found))
    }

    /// Whether it answers, asked once and for no longer than `within`. A front end without such a page is there too.
    pub(super) async fn alive(&self, within: Duration) -> std::result::Result<(), HttpError> {
        match tokio::time::timeout(within, self.wire.once(&HttpRequest::get("health"))).await {
            Ok(Ok(_) | Err(HttpError::Refused(..) | HttpError::Busy(_))) => Ok(()),
            Ok(Err(trouble)) => Err(trouble),
            Err(_) => Err(HttpError::Away(format!("no answer within {} s", within.as_secs()))),
        }
    }

    /// What it serves.
    pub(super) async fn models(&self) -> std::result::Result<Vec<ServedModel>, HttpError> {
        let list = match self.json(&HttpRequest::get("v1/models")).await {
            Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => {
                let who = Service::Vllm.missing(&self.wire).await;
                return Err(HttpError::Refused(StatusCode::NOT_FOUND, format!("{who} ({text})")));
            }
            answer => answer?,
        };
        let all = list["data"].as_array().cloned().unwrap_or_default();
        let served = |m: &Value| {
            let max_seq_len = m["max_model_len"].as_u64().map(|n| n as usize);
            Some(ServedModel { name: m["id"].as_str()?.to_owned(), max_seq_len })
        };
        Ok(all.iter().filter_map(served).collect())
    }

    /// The tokens it makes of a text.
    pub(super) async fn tokenize(&self, model: &str, text: &str) -> std::result::Result<Vec<u32>, HttpError> {
        let body = json!({"model": model, "prompt": text, "add_special_tokens": false});
        let said = self.json(&HttpRequest::post("tokenize", &body)).await?;
        serde_json::from_value(said["tokens"].clone()).map_err(|e| HttpError::Failing(format!("unusable answer: {e}")))
    }

    /// Has it load an adapter from a folder that it sees too.
    pub(super) async fn load_adapter(&self, name: &str, dir: &Path) -> std::result::Result<(), HttpError> {
        let body = json!({"lora_name": name, "lora_path": dir});
        // Asked twice it loads once: a load that takes longer than an attempt is found done by the next.
        match self.ask(&HttpRequest::post("v1/load_lora_adapter", &body)).await {
            Ok(_) => Ok(()),
            // It heard us before, and only its answer was lost: names are used once.
            Err(HttpError::Refused(_, text)) if text.contains("already been loaded") => Ok(()),
            Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => {
                // Asked for its names, a server of another kind is found out.
                self.models().await?;
                // One that knows of adapters says what it did not find: the folder.
                let hint = match text.contains("lora") || text.contains("adapter") {
                    true => format!(
                        ": does it see {} under the same path, and may it read it? Set vllm.adapter_dir to a folder that both \
                         this machine and it see",
                        dir.display()
                    ),
                    false => ": start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True".to_owned(),
                };
                Err(HttpError::Refused(StatusCode::NOT_FOUND, format!("{text}{hint}")))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Has it forget an adapter; one it does not have is fine.
    pub(super) async fn unload_adapter(&self, name: &str) {
        let _ = self.wire.once(&HttpRequest::post("v1/unload_lora_adapter", &json!({"lora_name": name}))).await;
    }

    /// Has it read all its weights anew from a model folder that it sees too.
    pub(super) async fn reload_weights(&self, dir: &Path) -> std::result::Result<(), HttpError> {
        let reload = json!({"method": "reload_weights", "kwargs": {"weights_path": dir}});
        self.ask(&HttpRequest::post("pause?mode=keep", &json!({}))).await?;
        let reloaded = self.ask(&HttpRequest::post("collective_rpc", &reload).long()).await;
        let emptied = self.ask(&HttpRequest::post("reset_prefix_cache", &json!({}))).await;
        // Whatever happened: others wait behind the pause.
        let resumed = self.ask(&HttpRequest::post("resume", &json!({}))).await;
        reloaded.and(emptied).and(resumed).map(|_| ())
    }
}

/// Gives up an answer that does not come in time. A server that says it is there may have lost the one question.
async fn unless_late<T>(
    within: Duration,
    answer: impl Future<Output = std::result::Result<T, HttpError>>,
) -> std::result::Result<T, HttpError> {
    let late = || Err(HttpError::NotYet(format!("no answer within {:.0} s", within.as_secs_f64())));
    tokio::time::timeout(within, answer).await.unwrap_or_else(|_| late())
}
