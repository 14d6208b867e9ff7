//! Client of the Tinker protocol.
//!
//! Slow operations are futures: a request is submitted and its result polled. Gradients and steps carry a sequence
//! number as idempotency key, so that resubmission returns the same future. Requests without one are made safe
//! otherwise: a model whose creation was not confirmed expires with its session, which gets no heartbeats; for
//! checkpoints see `checkpoint`.

use super::{
    SdkVersion,
    batch::TinkerBatch,
    codec::{self, ForwardBackwardOutput, ForwardBackwardRequest, PROTOBUF, SampleResponse},
    wait::{PollWait, SlowThreshold},
};
use crate::{
    ApiKey, Service, StatusLog,
    http::client::{HttpClient, HttpError, HttpRequest, Timeouts},
    http::timeout::RetryDeadline,
};
use mage_engine::{Error, Hint, OptimStep, Result};
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

/// Heartbeat interval of a session; servers drop models of sessions without heartbeats for minutes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// SkyRL's error if all adapter slots are taken. Slots of expired sessions become free in time.
const NO_FREE_SLOT: &str = "Maximum number of LoRA adapters";

/// Address of and access to a Tinker server.
#[derive(Clone, Debug)]
pub struct TinkerServer {
    /// Address, with or without `/api/v1`.
    pub url: String,
    /// SDK version of the protocol.
    pub sdk_version: SdkVersion,
    /// API key, if required.
    pub key: Option<ApiKey>,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Status log.
    pub status_log: StatusLog,
}

impl TinkerServer {
    /// Returns the models that the server offers, within `timeout` and without logging outages. A security warning is
    /// logged before anything is sent.
    pub async fn probe(&self, timeout: Duration) -> Result<Vec<String>> {
        let timeouts = Timeouts { attempt: timeout, outage: timeout, ..self.timeouts };
        let client = TinkerClient::new(&TinkerServer { timeouts, status_log: StatusLog::default(), ..self.clone() })?;
        if let Some(warning) = client.http.security_warning() {
            self.status_log.log(warning);
        }
        client.handshake().await
    }
}

/// Failure of an operation.
#[derive(Debug)]
pub(super) enum TinkerError {
    /// The server lost the model: it restarted or dropped it.
    ModelLost(String),
    /// Any other error.
    Other(Error),
}

impl From<Error> for TinkerError {
    fn from(e: Error) -> Self {
        TinkerError::Other(e)
    }
}

/// Result of an operation.
pub(super) type TinkerResult<T> = std::result::Result<T, TinkerError>;

/// Client of a Tinker server.
#[derive(Clone, Debug)]
pub(super) struct TinkerClient {
    pub(super) http: HttpClient,
    sdk_version: SdkVersion,
    pub(super) slow_threshold: SlowThreshold,
}

/// A model in training on a server. Its session gets heartbeats as long as this value exists.
#[derive(Debug)]
pub(super) struct RemoteModel {
    pub(super) id: String,
    session: String,
    seq: AtomicU64,
    /// Whether the server may hold a gradient without a step.
    has_pending_gradient: AtomicBool,
    heartbeat: JoinHandle<()>,
}

impl Drop for RemoteModel {
    fn drop(&mut self) {
        self.heartbeat.abort();
    }
}

impl RemoteModel {
    /// Next sequence number; 0 means none in the protocol.
    pub(super) fn next_seq(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::Relaxed) + 1
    }
}

#[derive(Deserialize)]
pub(super) struct SubmitResponse {
    pub(super) request_id: String,
}

#[derive(Deserialize)]
struct CreateModelResponse {
    model_id: String,
    request_id: String,
}

#[derive(Deserialize)]
struct OptimStepResponse {
    #[serde(default)]
    metrics: std::collections::BTreeMap<String, Option<f64>>,
}

/// Format of a future's result.
pub(super) enum ResponseFormat {
    Json,
    Protobuf,
}

impl TinkerClient {
    pub(super) fn new(server: &TinkerServer) -> Result<Self> {
        let address = Service::Tinker.normalize_address(&server.url).map_err(|e| Error::invalid("tinker", e))?;
        let base = format!("{address}/api/v1/");
        let key = server.key.clone().map(|key| ("x-api-key", key));
        let http = HttpClient::new(&base, key, server.timeouts, server.status_log.clone())?;
        Ok(TinkerClient { http, sdk_version: server.sdk_version, slow_threshold: SlowThreshold::default() })
    }

    /// A client of the same server with its own connections. Outage state and slow-request threshold are shared, so
    /// that both log an event only once.
    pub(super) fn with_own_connections(&self, server: &TinkerServer) -> Result<Self> {
        let mut other = TinkerClient::new(server)?;
        other.http.outage = Arc::clone(&self.http.outage);
        other.slow_threshold = self.slow_threshold.clone();
        Ok(other)
    }

    /// Performs the handshake and returns the models that the server offers.
    pub(super) async fn handshake(&self) -> Result<Vec<String>> {
        let request = HttpRequest::post("client/config", &json!({"sdk_version": self.sdk_version.as_str()}));
        let config: Value = match self.http.send_json(&request).await {
            Ok(config) => config,
            Err(HttpError::Rejected(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, text)) => {
                let (found, hints) = Service::Tinker.describe_wrong_server(&self.http).await;
                return Err(self.http.error(format!("{found} ({text})")).with_hints(hints));
            }
            Err(HttpError::Unreachable(text)) => {
                return Err(self.http.error(text).with_hints(&[Hint::CheckTrainerAddress]));
            }
            Err(other) => return Err(self.http.request_error("the handshake", &other)),
        };
        if config["pjwt_auth_enabled"] == true {
            return Err(self.http.error("the server requires login by signed tokens (JWT), which is not supported"));
        }
        let caps: Value = self
            .http
            .send_json(&HttpRequest::get("get_server_capabilities"))
            .await
            .map_err(|t| self.http.request_error("get_server_capabilities", &t))?;
        let models = caps["supported_models"].as_array().cloned().unwrap_or_default();
        Ok(models.iter().filter_map(|m| m["model_name"].as_str().map(str::to_owned)).collect())
    }

    /// Creates a model with a freshly initialised adapter.
    pub(super) async fn create_model(&self, base_model: &str, rank: usize, seed: u32) -> Result<RemoteModel> {
        let session = json!({"tags": [], "user_metadata": {}, "sdk_version": self.sdk_version.as_str(), "type": "create_session"});
        let what = "create_model";
        let mut wait = PollWait::new(&self.http, &self.slow_threshold, what, self.http.timeouts.outage);
        loop {
            let opened: Value = self
                .http
                .send_json(&HttpRequest::post("create_session", &session))
                .await
                .map_err(|t| self.http.request_error("create_session", &t))?;
            let id = opened["session_id"]
                .as_str()
                .ok_or_else(|| self.http.error("create_session: no session id in the response"))?
                .to_owned();
            if let Some(problem) = opened["error_message"].as_str() {
                return Err(self.http.error(format!("create_session: {problem}")));
            }
            let lora =
                json!({"rank": rank, "seed": seed, "train_unembed": false, "train_mlp": true, "train_attn": true});
            let body = json!({"session_id": id, "model_seq_id": 0, "base_model": base_model, "lora_config": lora});
            // Not retried in place: a retry would create a second model. An unconfirmed one expires with its session.
            let response = wait.run(self.http.send_once(&HttpRequest::post("create_model", &body))).await;
            let created: CreateModelResponse = match response {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(created) => created,
                    Err(e) => return Err(self.http.error(format!("{what}: invalid response: {e}"))),
                },
                Err(error @ (HttpError::Rejected(..) | HttpError::Permanent(..))) => {
                    return Err(self.http.request_error(what, &error));
                }
                Err(error) => {
                    wait.retry(&error.text()).await?;
                    continue;
                }
            };
            let heartbeat = tokio::spawn(send_heartbeats(self.http.clone(), id.clone()));
            let model = RemoteModel {
                id: created.model_id,
                session: id,
                seq: AtomicU64::new(0),
                has_pending_gradient: AtomicBool::new(false),
                heartbeat,
            };
            match self.wait_for_result(what, &created.request_id, ResponseFormat::Json).await {
                Ok(_) => return Ok(model),
                // The server restarted in between; the model is gone or will expire.
                Err(TinkerError::ModelLost(problem)) => wait.retry(&problem).await?,
                // A killed run occupies the slot until its session expires.
                Err(TinkerError::Other(Error::Engine { reason, .. })) if reason.contains(NO_FREE_SLOT) => {
                    wait.retry(reason.trim_start_matches(&format!("{what}: "))).await?;
                }
                Err(TinkerError::Other(e)) => return Err(e),
            }
        }
    }

    /// Unloads a model and waits until its slot is free. Errors are ignored: without heartbeats it expires anyway. A
    /// pending gradient is consumed first, so that the slot's next model does not inherit it; see `stale_gradient`.
    pub(super) async fn unload_model(&self, model: RemoteModel) {
        if model.has_pending_gradient.load(Ordering::Relaxed) {
            let no_op = OptimStep { learning_rate: 0.0, max_grad_norm: 0.0, ..OptimStep::default() };
            let _ = tokio::time::timeout(HEARTBEAT_INTERVAL, self.optim_step(&model, model.next_seq(), &no_op)).await;
        }
        let response = self.http.send_once(&HttpRequest::post("unload_model", &json!({"model_id": model.id}))).await;
        let submitted = response.ok().and_then(|bytes| serde_json::from_slice::<SubmitResponse>(&bytes).ok());
        if let Some(submitted) = submitted {
            let _ = tokio::time::timeout(
                HEARTBEAT_INTERVAL,
                self.wait_for_result("unload_model", &submitted.request_id, ResponseFormat::Json),
            )
            .await;
        }
    }

    /// Polls a future until its result is available.
    pub(super) async fn wait_for_result(
        &self,
        what: &str,
        request: &str,
        format: ResponseFormat,
    ) -> TinkerResult<Vec<u8>> {
        let mut poll = HttpRequest::post("retrieve_future", &json!({"request_id": request}));
        if let ResponseFormat::Protobuf = format {
            poll.accept = PROTOBUF;
        }
        let mut wait = PollWait::new(&self.http, &self.slow_threshold, what, self.http.timeouts.operation);
        let mut deadline = RetryDeadline::new(&self.http);
        loop {
            let sent_at = Instant::now();
            match wait.run(self.http.send_once(&poll)).await {
                Ok(bytes) => {
                    deadline.recovered();
                    return Ok(bytes);
                }
                Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => {
                    return Err(TinkerError::ModelLost(format!("the server does not know the request: {text}")));
                }
                // A restarted engine does not have the model. These are SkyRL's words.
                Err(HttpError::Rejected(_, text)) if text.contains("not loaded") || text.contains("not found") => {
                    return Err(TinkerError::ModelLost(text));
                }
                Err(ref error @ (HttpError::Rejected(_, ref text) | HttpError::Permanent(ref text, _))) => {
                    return Err(self.http.error(format!("{what}: {text}")).with_hints(error.hints()).into());
                }
                // Long poll: the server may hold the request. But after a full attempt timeout it may be down.
                Err(HttpError::NotReady(text)) if sent_at.elapsed() < self.http.timeouts.attempt => {
                    deadline.recovered();
                    wait.poll_retry(&text, sent_at.elapsed()).await?;
                }
                Err(HttpError::NotReady(text) | HttpError::Unreachable(text)) => {
                    wait.poll_retry(&text, sent_at.elapsed()).await?;
                    // Waits for the server within the outage timeout; the future stays valid.
                    let recovered = self.http.send(&HttpRequest::get("healthz")).await;
                    recovered.map_err(|e| wait.error(&e.text(), "during the health check"))?;
                }
                Err(error @ (HttpError::Overloaded(_) | HttpError::ServerError(_))) => {
                    let recorded = deadline.record_failure(sent_at, &error);
                    recorded.map_err(|e| self.http.error(format!("{what}: {}", e.text())))?;
                    wait.poll_retry(&error.text(), Duration::ZERO).await?;
                }
            }
        }
    }

    /// Submits a request and waits for its result.
    async fn submit(&self, what: &str, request: &HttpRequest, format: ResponseFormat) -> TinkerResult<Vec<u8>> {
        let submitted: SubmitResponse = match self.http.send_json(request).await {
            Ok(submitted) => submitted,
            Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => {
                return Err(TinkerError::ModelLost(format!("{what}: {text}")));
            }
            Err(HttpError::Rejected(StatusCode::CONFLICT, text)) => {
                let text = format!("{what}: {text}: another process trains this model");
                return Err(self.http.error(text).into());
            }
            Err(error) => return Err(self.http.request_error(what, &error).into()),
        };
        self.wait_for_result(what, &submitted.request_id, format).await
    }

    /// Computes a gradient, or log-probs only.
    pub(super) async fn forward_backward(
        &self,
        model: &RemoteModel,
        request: &ForwardBackwardRequest,
    ) -> TinkerResult<ForwardBackwardOutput> {
        model.has_pending_gradient.fetch_or(!request.forward_only, Ordering::Relaxed);
        let what = if request.forward_only { "forward" } else { "forward_backward" };
        let body = Some((PROTOBUF, request.encode_to_vec()));
        let http_request =
            HttpRequest { accept: "application/json", ..HttpRequest::new(Method::POST, "forward_backward", body) };
        let bytes = self.submit(what, &http_request, ResponseFormat::Protobuf).await?;
        let output = ForwardBackwardOutput::decode(&bytes[..]);
        output.map_err(|e| self.http.error(format!("{what}: invalid response: {e}")).into())
    }

    /// Computes the log-probs of a batch by segment.
    pub(super) async fn score(
        &self,
        model: &RemoteModel,
        batch: &TinkerBatch,
        what: &str,
    ) -> TinkerResult<Vec<Vec<f32>>> {
        let request = ForwardBackwardRequest {
            model_id: model.id.clone(),
            seq_id: model.next_seq() as i32,
            data: batch.scoring_data(),
            loss_fn: "cross_entropy".to_owned(),
            forward_only: true,
            ..Default::default()
        };
        let logprobs =
            self.forward_backward(model, &request).await?.field("logprobs").and_then(|all| batch.split_logprobs(all));
        logprobs.map_err(|e| self.http.error(format!("{what}: invalid response: {e}")).into())
    }

    /// Takes an optimiser step; returns the gradient norm if the server reports it.
    pub(super) async fn optim_step(
        &self,
        model: &RemoteModel,
        seq: u64,
        step: &OptimStep,
    ) -> TinkerResult<Option<f64>> {
        let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
        let adam = json!({
            "learning_rate": number(step.learning_rate), "beta1": number(step.beta1), "beta2": number(step.beta2),
            "eps": number(step.epsilon), "weight_decay": number(step.weight_decay),
            "grad_clip_norm": number(step.max_grad_norm),
        });
        let body = json!({"model_id": model.id, "seq_id": seq, "adam_params": adam});
        let bytes = self.submit("optim_step", &HttpRequest::post("optim_step", &body), ResponseFormat::Json).await?;
        let response: OptimStepResponse = serde_json::from_slice(&bytes)
            .map_err(|e| self.http.error(format!("optim_step: invalid response: {e}")))?;
        model.has_pending_gradient.store(false, Ordering::Relaxed);
        // A non-finite norm is serialised as null.
        let norm = response.metrics.iter().find(|(name, _)| name.ends_with("grad_norm"));
        Ok(norm.map(|(_, norm)| norm.unwrap_or(f64::NAN)))
    }

    /// Samples or scores tokens.
    pub(super) async fn sample(&self, body: &Value) -> TinkerResult<SampleResponse> {
        let bytes = self.submit("asample", &HttpRequest::post("asample", body), ResponseFormat::Protobuf).await?;
        let response = SampleResponse::decode(&bytes[..]);
        response.map_err(|e| self.http.error(format!("asample: invalid response: {e}")).into())
    }

    /// Creates a sampling session for saved weights.
    pub(super) async fn create_sampling_session(&self, session: &str, seq: u64, path: &str) -> Result<String> {
        let body = json!({"session_id": session, "sampling_session_seq_id": seq, "model_path": path, "type": "create_sampling_session"});
        let opened: Value = self
            .http
            .send_json(&HttpRequest::post("create_sampling_session", &body))
            .await
            .map_err(|t| self.http.request_error("create_sampling_session", &t))?;
        let id = opened["sampling_session_id"].as_str();
        id.map(str::to_owned).ok_or_else(|| self.http.error("create_sampling_session: no session id in the response"))
    }

    /// Session of a model.
    pub(super) fn session_of(model: &RemoteModel) -> &str {
        &model.session
    }
}

/// Sends heartbeats for a session until aborted.
async fn send_heartbeats(http: HttpClient, session: String) {
    let request = HttpRequest::post("session_heartbeat", &json!({"session_id": session}));
    loop {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        let _ = http.send_once(&request).await;
    }
}

/// Tokens, log-probs and whether a stop token was generated.
pub(super) fn parse_sample(response: &SampleResponse) -> std::result::Result<(Vec<u32>, Vec<f32>, bool), String> {
    let sequence = response.sequences.first().ok_or("the response has no sequences")?;
    let (tokens, logprobs) = (codec::tokens(&sequence.tokens)?, codec::floats(&sequence.logprobs)?);
    if tokens.is_empty() || tokens.len() != logprobs.len() {
        return Err(format!("the response has {} tokens and {} log-probs", tokens.len(), logprobs.len()));
    }
    match logprobs.iter().find(|l| !l.is_finite() || **l > 1e-3) {
        Some(bad) => Err(format!("the response has an invalid log-prob {bad}")),
        None => Ok((tokens, logprobs, sequence.stop_reason == 0)),
    }
}
