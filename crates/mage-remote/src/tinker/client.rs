//! How does one talk to a Tinker server so that nothing is lost and nothing is done twice?
//!
//! Everything slow is a future: a request is handed in, and its result is asked for until it is there. Gradients and steps
//! carry a sequence number, so that handing one in again gives the same future. What carries none is made safe otherwise:
//! a model whose creation was not confirmed is left to a session that nobody keeps alive; for checkpoints see `checkpoint`.

use super::{
    Dialect,
    batch::Batch,
    codec::{self, ForwardBackwardOutput, ForwardBackwardRequest, PROTOBUF, SampleResponse},
    wait::{Slow, Wait},
};
use crate::{
    ApiKey, Service, StatusLog,
    http::client::{HttpClient, HttpError, HttpRequest, Timeouts},
    http::timeout::RetryDeadline,
};
use mage_engine::{Error, OptimStep, Result};
use prost::Message;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

/// How often a session says that it is alive; servers drop models of sessions that are silent for minutes.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// What SkyRL says where there is no place for another model. Those of sessions that fell silent come free in time.
const FULL: &str = "Maximum number of LoRA adapters";

/// Where a Tinker server is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct TinkerServer {
    /// Its address, with or without `/api/v1`.
    pub url: String,
    /// The dialect.
    pub dialect: Dialect,
    /// What opens the door, where it is locked.
    pub key: Option<ApiKey>,
    /// How long it is waited for.
    pub waiting: Timeouts,
    /// Who hears of waiting.
    pub notices: StatusLog,
}

impl TinkerServer {
    /// The models it offers, if it answers within a while: nobody is waited for longer, and nobody hears of waiting. What is
    /// risky about the way there is said before anything is sent.
    pub async fn reach(&self, within: Duration) -> Result<Vec<String>> {
        let waiting = Timeouts { attempt: within, away: within, ..self.waiting };
        let client = TinkerClient::new(&TinkerServer { waiting, notices: StatusLog::default(), ..self.clone() })?;
        if let Some(risk) = client.wire.risk() {
            self.notices.say(risk);
        }
        client.greet().await
    }
}

/// Why an operation did not come to its end.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server no longer has the model: it was started anew, or let go of it.
    Model(String),
    /// Anything else.
    Error(Error),
}

impl From<Error> for Lost {
    fn from(e: Error) -> Self {
        Lost::Error(e)
    }
}

/// What an operation comes to.
pub(super) type Done<T> = std::result::Result<T, Lost>;

/// A connection to a server.
#[derive(Clone, Debug)]
pub(super) struct TinkerClient {
    pub(super) wire: HttpClient,
    dialect: Dialect,
    pub(super) slow: Slow,
}

/// A model in training on a server. Its session lives as long as it does.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) id: String,
    session: String,
    seq: AtomicU64,
    /// Whether a gradient of its may wait for a step on the server.
    holds: AtomicBool,
    beat: JoinHandle<()>,
}

impl Drop for Model {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

impl Model {
    /// The next sequence number; 0 means none on the wire.
    pub(super) fn next(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[derive(Deserialize)]
pub(super) struct Submitted {
    pub(super) request_id: String,
}

#[derive(Deserialize)]
struct Created {
    model_id: String,
    request_id: String,
}

#[derive(Deserialize)]
struct Stepped {
    #[serde(default)]
    metrics: std::collections::BTreeMap<String, Option<f64>>,
}

/// A future's result.
pub(super) enum Answer {
    Json,
    Protobuf,
}

impl TinkerClient {
    pub(super) fn new(server: &TinkerServer) -> Result<Self> {
        let address = Service::Tinker.address(&server.url).map_err(|e| Error::invalid("tinker", e))?;
        let base = format!("{address}/api/v1/");
        let key = server.key.clone().map(|key| ("x-api-key", key));
        let wire = HttpClient::new(&base, key, server.waiting, server.notices.clone())?;
        Ok(TinkerClient { wire, dialect: server.dialect, slow: Slow::default() })
    }

    /// Another way to the same server, with connections of its own; what one says about its absence the other does not repeat.
    pub(super) fn beside(&self, server: &TinkerServer) -> Result<Self> {
        let mut other = TinkerClient::new(server)?;
        other.wire.outage = Arc::clone(&self.wire.outage);
        other.slow = self.slow.clone();
        Ok(other)
    }

    pub(super) fn failed(&self, what: &str, trouble: &HttpError) -> Error {
        self.wire.error(format!("{what}: {}", trouble.text()))
    }

    /// Introduces itself and returns the models the server knows.
    pub(super) async fn greet(&self) -> Result<Vec<String>> {
        let hello = HttpRequest::post("client/config", &json!({"sdk_version": self.dialect.version()}));
        let config: Value = match self.wire.json(&hello).await {
            Ok(config) => config,
            Err(HttpError::Refused(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, text)) => {
                let who = Service::Tinker.missing(&self.wire).await;
                return Err(self.wire.error(format!("{who} ({text})")));
            }
            Err(HttpError::Away(text)) => {
                return Err(self.wire.error(format!("{text}: is it started, and is tinker.url its address?")));
            }
            Err(other) => return Err(self.failed("the handshake", &other)),
        };
        if config["pjwt_auth_enabled"] == true {
            return Err(self.wire.error("it wants logins by signed tokens, which this dialect does not speak"));
        }
        let caps: Value = self
            .wire
            .json(&HttpRequest::get("get_server_capabilities"))
            .await
            .map_err(|t| self.failed("asking what it can do", &t))?;
        let models = caps["supported_models"].as_array().cloned().unwrap_or_default();
        Ok(models.iter().filter_map(|m| m["model_name"].as_str().map(str::to_owned)).collect())
    }

    /// A new model with an adapter that changes nothing yet.
    pub(super) async fn create_model(&self, base_model: &str, rank: usize, seed: u32) -> Result<Model> {
        let session =
            json!({"tags": [], "user_metadata": {}, "sdk_version": self.dialect.version(), "type": "create_session"});
        let what = "creating a model";
        let mut wait = Wait::new(&self.wire, &self.slow, what, self.wire.waiting.away);
        loop {
            let opened: Value = self
                .wire
                .json(&HttpRequest::post("create_session", &session))
                .await
                .map_err(|t| self.failed("opening a session", &t))?;
            let id =
                opened["session_id"].as_str().ok_or_else(|| self.wire.error("a session without an id"))?.to_owned();
            if let Some(problem) = opened["error_message"].as_str() {
                return Err(self.wire.error(format!("opening a session: {problem}")));
            }
            let lora =
                json!({"rank": rank, "seed": seed, "train_unembed": false, "train_mlp": true, "train_attn": true});
            let body = json!({"session_id": id, "model_seq_id": 0, "base_model": base_model, "lora_config": lora});
            // Once only: a second time would make a second model. An unconfirmed one goes with its session.
            let answer = wait.watch(self.wire.once(&HttpRequest::post("create_model", &body))).await;
            let created: Created = match answer {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(created) => created,
                    Err(e) => return Err(self.wire.error(format!("{what}: unusable answer: {e}"))),
                },
                Err(last @ (HttpError::Refused(..) | HttpError::Never(_))) => return Err(self.failed(what, &last)),
                Err(trouble) => {
                    wait.again(&trouble.text()).await?;
                    continue;
                }
            };
            let beat = tokio::spawn(beat(self.wire.clone(), id.clone()));
            let model = Model {
                id: created.model_id,
                session: id,
                seq: AtomicU64::new(0),
                holds: AtomicBool::new(false),
                beat,
            };
            match self.result(what, &created.request_id, Answer::Json).await {
                Ok(_) => return Ok(model),
                // The server went away in between; whatever it made is gone or will go.
                Err(Lost::Model(problem)) => wait.again(&problem).await?,
                // One that was killed has left its model behind, for as long as its session is taken for alive.
                Err(Lost::Error(Error::Engine { reason, .. })) if reason.contains(FULL) => {
                    wait.again(reason.trim_start_matches(&format!("{what}: "))).await?;
                }
                Err(Lost::Error(e)) => return Err(e),
            }
        }
    }

    /// Lets go of a model, and waits until its place is free. Whether the server hears it does not matter in the end:
    /// silence does the same, only later. A gradient without a step is not left to whoever is given its place; see `place`.
    pub(super) async fn unload(&self, model: Model) {
        if model.holds.load(Ordering::Relaxed) {
            let still = OptimStep { learning_rate: 0.0, max_grad_norm: 0.0, ..OptimStep::default() };
            let _ = tokio::time::timeout(HEARTBEAT, self.optim_step(&model, model.next(), &still)).await;
        }
        let asked = self.wire.once(&HttpRequest::post("unload_model", &json!({"model_id": model.id}))).await;
        let submitted = asked.ok().and_then(|bytes| serde_json::from_slice::<Submitted>(&bytes).ok());
        if let Some(submitted) = submitted {
            let _ =
                tokio::time::timeout(HEARTBEAT, self.result("unload_model", &submitted.request_id, Answer::Json)).await;
        }
    }

    /// Waits for a future's result.
    pub(super) async fn result(&self, what: &str, request: &str, kind: Answer) -> Done<Vec<u8>> {
        let mut ask = HttpRequest::post("retrieve_future", &json!({"request_id": request}));
        if let Answer::Protobuf = kind {
            ask.accept = PROTOBUF;
        }
        let mut wait = Wait::new(&self.wire, &self.slow, what, self.wire.waiting.operation);
        let mut patience = RetryDeadline::new(&self.wire);
        loop {
            let asked = Instant::now();
            match wait.watch(self.wire.once(&ask)).await {
                Ok(bytes) => {
                    patience.over();
                    return Ok(bytes);
                }
                Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => {
                    return Err(Lost::Model(format!("it does not know of the request: {text}")));
                }
                // An engine that was started anew does not have the model; the words are SkyRL's.
                Err(HttpError::Refused(_, text)) if text.contains("not loaded") || text.contains("not found") => {
                    return Err(Lost::Model(text));
                }
                Err(HttpError::Refused(_, text) | HttpError::Never(text)) => {
                    return Err(self.wire.error(format!("{what}: {text}")).into());
                }
                // Somebody may hold the question for long. But one who says nothing at all may not be there.
                Err(HttpError::NotYet(text)) if asked.elapsed() < self.wire.waiting.attempt => {
                    patience.over();
                    wait.poll_again(&text, asked.elapsed()).await?;
                }
                Err(HttpError::NotYet(text) | HttpError::Away(text)) => {
                    wait.poll_again(&text, asked.elapsed()).await?;
                    // Waited for with patience and a line; the question stays.
                    let back = self.wire.ask(&HttpRequest::get("healthz")).await;
                    back.map_err(|trouble| wait.error(&trouble.text(), "asked whether it is there"))?;
                }
                Err(trouble @ (HttpError::Busy(_) | HttpError::Failing(_))) => {
                    let borne = patience.bear(asked, &trouble);
                    borne.map_err(|t| self.wire.error(format!("{what}: {}", t.text())))?;
                    wait.poll_again(&trouble.text(), Duration::ZERO).await?;
                }
            }
        }
    }

    /// Hands a request in and waits for its result.
    async fn run(&self, what: &str, ask: &HttpRequest, kind: Answer) -> Done<Vec<u8>> {
        let submitted: Submitted = match self.wire.json(ask).await {
            Ok(submitted) => submitted,
            Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => return Err(Lost::Model(format!("{what}: {text}"))),
            Err(HttpError::Refused(StatusCode::CONFLICT, text)) => {
                let text = format!("{what}: {text}: somebody else trains this model, or two of us do");
                return Err(self.wire.error(text).into());
            }
            Err(trouble) => return Err(self.failed(what, &trouble).into()),
        };
        self.result(what, &submitted.request_id, kind).await
    }

    /// A gradient, or log-probabilities alone.
    pub(super) async fn forward_backward(
        &self,
        model: &Model,
        request: &ForwardBackwardRequest,
    ) -> Done<ForwardBackwardOutput> {
        model.holds.fetch_or(!request.forward_only, Ordering::Relaxed);
        let what = if request.forward_only { "forward" } else { "forward_backward" };
        let body = Some((PROTOBUF, request.encode_to_vec()));
        let ask = HttpRequest {
            method: Method::POST,
            path: "forward_backward".into(),
            body,
            accept: "application/json",
            long: false,
        };
        let bytes = self.run(what, &ask, Answer::Protobuf).await?;
        let output = ForwardBackwardOutput::decode(&bytes[..]);
        output.map_err(|e| self.wire.error(format!("{what}: unusable answer: {e}")).into())
    }

    /// Log-probabilities of a batch, by segment.
    pub(super) async fn score(&self, model: &Model, batch: &Batch, what: &str) -> Done<Vec<Vec<f32>>> {
        let request = ForwardBackwardRequest {
            model_id: model.id.clone(),
            seq_id: model.next() as i32,
            data: batch.scored(),
            loss_fn: "cross_entropy".to_owned(),
            forward_only: true,
            ..Default::default()
        };
        let rows = self.forward_backward(model, &request).await?.rows("logprobs").and_then(|rows| batch.segments(rows));
        rows.map_err(|e| self.wire.error(format!("{what}: unusable answer: {e}")).into())
    }

    /// A step of the optimiser; the norm of the gradient, where the server says it.
    pub(super) async fn optim_step(&self, model: &Model, seq: u64, step: &OptimStep) -> Done<Option<f64>> {
        let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
        let adam = json!({
            "learning_rate": number(step.learning_rate), "beta1": number(step.beta1), "beta2": number(step.beta2),
            "eps": number(step.epsilon), "weight_decay": number(step.weight_decay),
            "grad_clip_norm": number(step.max_grad_norm),
        });
        let body = json!({"model_id": model.id, "seq_id": seq, "adam_params": adam});
        let bytes = self.run("optim_step", &HttpRequest::post("optim_step", &body), Answer::Json).await?;
        let stepped: Stepped =
            serde_json::from_slice(&bytes).map_err(|e| self.wire.error(format!("optim_step: unusable answer: {e}")))?;
        model.holds.store(false, Ordering::Relaxed);
        // A gradient that is no number comes back as null.
        let norm = stepped.metrics.iter().find(|(name, _)| name.ends_with("grad_norm"));
        Ok(norm.map(|(_, norm)| norm.unwrap_or(f64::NAN)))
    }

    /// Continues or scores tokens.
    pub(super) async fn sample(&self, body: &Value) -> Done<SampleResponse> {
        let bytes = self.run("asample", &HttpRequest::post("asample", body), Answer::Protobuf).await?;
        let response = SampleResponse::decode(&bytes[..]);
        response.map_err(|e| self.wire.error(format!("asample: unusable answer: {e}")).into())
    }

    /// Opens a way to sample from saved weights.
    pub(super) async fn sampling_session(&self, session: &str, seq: u64, path: &str) -> Result<String> {
        let body = json!({"session_id": session, "sampling_session_seq_id": seq, "model_path": path, "type": "create_sampling_session"});
        let opened: Value = self
            .wire
            .json(&HttpRequest::post("create_sampling_session", &body))
            .await
            .map_err(|t| self.failed("opening a sampling session", &t))?;
        let id = opened["sampling_session_id"].as_str();
        id.map(str::to_owned).ok_or_else(|| self.wire.error("a sampling session without an id"))
    }

    /// The session a model lives in.
    pub(super) fn session_of(model: &Model) -> &str {
        &model.session
    }
}

/// Says again and again that a session is alive.
async fn beat(wire: HttpClient, session: String) {
    let ask = HttpRequest::post("session_heartbeat", &json!({"session_id": session}));
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        let _ = wire.once(&ask).await;
    }
}

/// Tokens and log-probabilities of an answer.
pub(super) fn read_sample(response: &SampleResponse) -> std::result::Result<(Vec<u32>, Vec<f32>, bool), String> {
    let sequence = response.sequences.first().ok_or("it has no sequences")?;
    let (tokens, logprobs) = (codec::tokens(&sequence.tokens)?, codec::floats(&sequence.logprobs)?);
    if tokens.is_empty() || tokens.len() != logprobs.len() {
        return Err(format!("it has {} tokens and {} log-probabilities", tokens.len(), logprobs.len()));
    }
    match logprobs.iter().find(|l| !l.is_finite() || **l > 1e-3) {
        Some(bad) => Err(format!("it has a log-probability of {bad}")),
        None => Ok((tokens, logprobs, sequence.stop_reason == 0)),
    }
}
