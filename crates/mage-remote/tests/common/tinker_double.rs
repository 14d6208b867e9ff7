//! Test double of a Tinker server that replays responses recorded from SkyRL 0.4.0.
//!
//! Computed values (log-probs, norms, samples, adapters) are looked up by request and weights; weights are identified
//! by their history of operations. Protocol rules (sequence numbers, unique names, futures, loads into fresh models
//! only) follow the real server. Requests that were never recorded are rejected.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, task::JoinHandle};

/// Weights, identified by all operations applied to them.
type Weights = Vec<u64>;

/// A computing request with the weights it uses.
type RecordedRequest = (&'static str, Weights, Vec<u8>);

/// Overrides responses, given path and body.
pub(crate) type ResponseOverride = Box<dyn FnMut(&str, &Value) -> Option<(u16, String)> + Send>;

/// Deviation from the recorded behaviour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Misbehaviour {
    /// Loses all models, once, after this many gradients and steps; saved states stay.
    ForgetsAfter(usize),
    /// Loses all models, once, at this sample request.
    ForgetsAtSample(usize),
    /// Returns NaN log-probs from this gradient on, this many times, and poisons the gradient.
    NonFiniteGradient(usize, usize),
    /// Samples from other weights than those saved.
    StaleSampler,
    /// Reports a null gradient norm at this step and invalidates the model.
    NullNorm(usize),
    /// Gives the n-th model, counted from 1, a slot with a stale gradient.
    LeavesGradient(usize),
}

impl Misbehaviour {
    fn poisons(self, gradient: usize) -> bool {
        matches!(self, Misbehaviour::NonFiniteGradient(from, times) if (from..from + times).contains(&gradient))
    }
}

#[derive(Clone, Default)]
struct Model {
    weights: Weights,
    /// Whether it was trained, saved or loaded.
    used: bool,
    /// Lowest free slot at creation.
    slot: usize,
}

/// State of the server.
#[derive(Default)]
pub(crate) struct TinkerState {
    responses: HashMap<RecordedRequest, Vec<u8>>,
    models: HashMap<String, Model>,
    pub(crate) saved: HashMap<String, Weights>,
    /// Sampling sessions: model and its weights when saved.
    sessions: HashMap<String, (String, Weights)>,
    sampled: usize,
    futures: HashMap<String, (u16, Vec<u8>)>,
    by_sequence_number: HashMap<(String, u64), (Vec<u8>, String)>,
    ids: usize,
    /// Gradients and steps computed.
    pub(crate) computed: usize,
    steps: usize,
    gradients: usize,
    /// Models created.
    pub(crate) models_created: usize,
    /// Models with pending gradients, by slot. They outlive their models.
    pending_gradients: HashMap<usize, HashSet<String>>,
    misbehaviour: Option<Misbehaviour>,
    pub(crate) response_override: Option<ResponseOverride>,
    /// Serves the recorded adapter for every download.
    pub(crate) serves_any_archive: bool,
    forgotten: HashSet<String>,
    /// History of the model used last.
    pub(crate) last_history: Weights,
}

/// A running double. It stops when dropped.
pub(crate) struct TinkerDouble {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<Mutex<TinkerState>>,
    task: JoinHandle<()>,
}

impl Drop for TinkerDouble {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TinkerDouble {
    pub(crate) async fn start(misbehaviour: Option<Misbehaviour>) -> Self {
        let responses = parse_recording(include_str!("../recorded/tinker.jsonl"));
        let state = Arc::new(Mutex::new(TinkerState { responses, misbehaviour, ..Default::default() }));
        let app = Router::new().fallback(serve).with_state(Arc::clone(&state));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        TinkerDouble { address, state, task }
    }

    /// Overrides responses from now on.
    pub(crate) fn override_responses(
        &self,
        response_override: impl FnMut(&str, &Value) -> Option<(u16, String)> + Send + 'static,
    ) {
        self.state.lock().unwrap().response_override = Some(Box::new(response_override));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(State(state): State<Arc<Mutex<TinkerState>>>, method: Method, uri: Uri, body: Bytes) -> Response {
    let (status, bytes) = state.lock().unwrap().respond(method.as_str(), uri.path(), &body);
    (StatusCode::from_u16(status).unwrap(), bytes).into_response()
}

fn hash(content: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// Splits a gradient request into model, sequence number and the rest.
fn split(body: &[u8]) -> (String, u64, Vec<u8>) {
    assert_eq!(body[0], 0x0a, "the model's name comes first");
    let name = String::from_utf8(body[2..2 + body[1] as usize].to_vec()).unwrap();
    let at = 2 + body[1] as usize;
    assert_eq!(body[at], 0x10, "then the sequence number");
    let (seq, rest) = varint(body, at + 1);
    (name, seq, body[rest..].to_vec())
}

/// Decodes a varint at `at`; returns the value and the next position.
fn varint(bytes: &[u8], mut at: usize) -> (u64, usize) {
    let (mut value, mut shift) = (0, 0);
    loop {
        value |= u64::from(bytes[at] & 0x7f) << shift;
        at += 1;
        if bytes[at - 1] & 0x80 == 0 {
            return (value, at);
        }
        shift += 7;
    }
}

fn detail(status: u16, text: &str) -> (u16, Vec<u8>) {
    (status, json!({"detail": text}).to_string().into_bytes())
}

fn ok_response(value: &Value) -> (u16, Vec<u8>) {
    (200, value.to_string().into_bytes())
}

impl TinkerState {
    fn new_id(&mut self, what: &str) -> String {
        self.ids += 1;
        format!("{what}_{}", self.ids)
    }

    /// Stores a result as a future.
    fn future(&mut self, status: u16, result: Vec<u8>) -> String {
        self.ids += 1;
        let id = self.ids.to_string();
        self.futures.insert(id.clone(), (status, result));
        id
    }

    fn submitted(id: &str) -> (u16, Vec<u8>) {
        ok_response(&json!({"future_id": id, "status": "pending", "request_id": id}))
    }

    fn recorded_response(&self, request: RecordedRequest) -> (u16, Vec<u8>) {
        match self.responses.get(&request) {
            Some(answer) => (200, answer.clone()),
            None => (400, json!({"detail": format!("no recorded response to this {}", request.0)}).to_string().into()),
        }
    }

    fn respond(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let path = path.strip_prefix("/api/v1/").unwrap_or(path);
        let parsed: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if let Some((status, response)) = self.response_override.as_mut().and_then(|respond| respond(path, &parsed)) {
            return (status, response.into_bytes());
        }
        let text = |field: &str| parsed[field].as_str().unwrap_or_default().to_owned();
        match (method, path) {
            (_, "healthz" | "session_heartbeat") => ok_response(&json!({"status": "ok"})),
            (_, "client/config") => ok_response(&json!({"pjwt_auth_enabled": false})),
            (_, "get_server_capabilities") => ok_response(&json!({"supported_models": [{"model_name": "tiny"}]})),
            (_, "create_session") => ok_response(&json!({"session_id": self.new_id("session"), "error_message": null})),
            (_, "create_model") => {
                let id = self.new_id("model");
                let weights = vec![hash(&parsed["lora_config"].to_string())];
                let slot = self.next_slot();
                self.models.insert(id.clone(), Model { weights, used: false, slot });
                let request = self.future(200, json!({"model_id": id}).to_string().into());
                ok_response(&json!({"model_id": id, "base_model": "tiny", "status": "created", "request_id": request}))
            }
            (_, "unload_model") => {
                self.models.remove(&text("model_id"));
                ok_response(&json!({"model_id": text("model_id"), "request_id": self.future(200, b"{}".to_vec())}))
            }
            (_, "forward_backward") => {
                let (model, seq, content) = split(body);
                self.compute(&model, seq, content.ends_with(&[0x30, 1]), "gradient", content)
            }
            (_, "optim_step") => {
                let (model, content) = (text("model_id"), parsed["adam_params"].to_string().into_bytes());
                self.compute(&model, parsed["seq_id"].as_u64().unwrap(), false, "step", content)
            }
            (_, "save_weights" | "save_weights_for_sampler") => {
                let kind = if path == "save_weights" { "weights" } else { "sampler_weights" };
                let saved_path = format!("{}/{kind}/{}", text("model_id"), text("path"));
                if self.saved.contains_key(&saved_path) {
                    return detail(409, "Checkpoint already exists");
                }
                let Some(model) = self.models.get_mut(&text("model_id")) else {
                    return Self::submitted(&self.stale(&text("model_id")));
                };
                model.used = true;
                let weights = model.weights.clone();
                self.saved.insert(saved_path, weights);
                Self::submitted(&self.future(200, b"{}".to_vec()))
            }
            (_, "load_weights") => {
                let saved_path = text("path").replace("tinker://", "");
                let Some(weights) = self.saved.get(&saved_path).cloned() else {
                    return detail(404, "Checkpoint not found");
                };
                let Some(model) = self.models.get_mut(&text("model_id")) else { return detail(404, "Model not found") };
                if model.used {
                    return detail(400, "LoadWeights is not permitted with seq_id 2");
                }
                *model = Model { weights, used: true, slot: model.slot };
                Self::submitted(&self.future(200, b"{}".to_vec()))
            }
            (_, "create_sampling_session") => {
                let saved_path = text("model_path").replace("tinker://", "");
                let Some(weights) = self.saved.get(&saved_path).cloned() else {
                    return detail(404, "Checkpoint not found");
                };
                let id = self.new_id("sampling");
                let model = saved_path.split('/').next().unwrap().to_owned();
                self.sessions.insert(id.clone(), (model, weights));
                ok_response(&json!({"sampling_session_id": id}))
            }
            (_, "asample") => {
                let mut request = parsed.clone();
                let session = text("sampling_session_id");
                for field in ["sampling_session_id", "seq_id"] {
                    request.as_object_mut().unwrap().remove(field);
                }
                let Some((model, mut weights)) = self.sessions.get(&session).cloned() else {
                    return detail(404, "no session");
                };
                if self.misbehaviour == Some(Misbehaviour::ForgetsAtSample(self.sampled)) {
                    self.misbehaviour = None;
                    self.forget_models();
                }
                self.sampled += 1;
                // Saved weights are sampled by the loaded model they were saved from.
                if !self.models.contains_key(&model) {
                    return Self::submitted(&self.stale(&model));
                }
                if self.misbehaviour == Some(Misbehaviour::StaleSampler) && request["prompt_logprobs"] == true {
                    let any = self.responses.keys().find(|(kind, w, c)| {
                        *kind == "sample" && *w != weights && *c == request.to_string().into_bytes()
                    });
                    weights = any.expect("another version was sampled in the recording").1.clone();
                }
                let (status, answer) = self.recorded_response(("sample", weights, request.to_string().into_bytes()));
                Self::submitted(&self.future(status, answer))
            }
            (_, "retrieve_future") => {
                let found = self.futures.get(&text("request_id")).cloned();
                found.unwrap_or_else(|| detail(404, "Future not found"))
            }
            ("GET", path) if path.ends_with("/download") => {
                let parts: Vec<&str> = path.split('/').collect();
                let saved_path = format!("{}/sampler_weights/{}", parts[1], parts[3]);
                match self.saved.get(&saved_path).cloned() {
                    Some(_) if self.serves_any_archive => {
                        let any = self.responses.iter().find(|((kind, ..), _)| *kind == "archive");
                        (200, any.expect("an archive was recorded").1.clone())
                    }
                    Some(weights) => self.recorded_response(("archive", weights, Vec::new())),
                    None => detail(404, "Checkpoint not found"),
                }
            }
            ("GET", path) if path.ends_with("/checkpoints") => {
                let model = path.split('/').nth(1).unwrap();
                let mine = self.saved.keys().filter(|p| p.starts_with(model));
                let list: Vec<Value> = mine.map(|p| json!({"tinker_path": format!("tinker://{p}")})).collect();
                ok_response(&json!({"checkpoints": list}))
            }
            ("DELETE", path) => {
                let rest = path.strip_prefix("training_runs/").unwrap().replace("/checkpoints/", "/");
                self.saved.remove(&rest);
                (204, Vec::new())
            }
            (method, path) => detail(404, &format!("{method} {path} was never recorded")),
        }
    }

    /// Slot of the next model.
    fn next_slot(&mut self) -> usize {
        self.models_created += 1;
        let mut taken: HashSet<usize> = self.models.values().map(|m| m.slot).collect();
        match self.misbehaviour {
            Some(Misbehaviour::LeavesGradient(at)) if self.models_created < at => {
                taken.insert(1);
            }
            Some(Misbehaviour::LeavesGradient(at)) if self.models_created == at => {
                self.pending_gradients.entry(1).or_default().insert("another model".to_owned());
            }
            _ => {}
        }
        (1..).find(|slot| !taken.contains(slot)).unwrap()
    }

    /// Unloads all models, as when their sessions expire.
    pub(crate) fn expire_models(&mut self) {
        self.models.clear();
    }

    /// Number of models.
    pub(crate) fn models(&self) -> usize {
        self.models.len()
    }

    /// Simulates a restart: saved states stay.
    pub(crate) fn forget_models(&mut self) {
        self.forgotten.extend(self.models.drain().map(|(id, _)| id));
        self.pending_gradients.clear();
    }

    /// Drops all sampling sessions.
    pub(crate) fn forget_sessions(&mut self) {
        self.sessions.clear();
    }

    /// The real engine's error for a missing model.
    fn stale(&mut self, model: &str) -> String {
        let text = format!("Model {model} not loaded (likely stale request from previous server)");
        self.future(400, json!({"detail": text}).to_string().into())
    }

    /// Executes a gradient or step, once per sequence number.
    fn compute(&mut self, model: &str, seq: u64, pure: bool, kind: &'static str, content: Vec<u8>) -> (u16, Vec<u8>) {
        let number = (model.to_owned(), seq);
        if let Some((before, id)) = self.by_sequence_number.get(&number) {
            return match *before == content {
                true => Self::submitted(&id.clone()),
                false => detail(409, "Training request sequence number was reused"),
            };
        }
        if self.misbehaviour.is_some_and(|o| matches!(o, Misbehaviour::ForgetsAfter(n) if n <= self.computed)) {
            self.misbehaviour = None;
            self.forget_models();
        }
        if !self.models.contains_key(model) {
            return match self.forgotten.contains(model) {
                true => Self::submitted(&self.stale(model)),
                false => detail(404, "Model not found"),
            };
        }
        let weights = self.models[model].weights.clone();
        let (status, mut answer) = self.recorded_response((kind, weights, content.clone()));
        let gradient = kind == "gradient" && !pure;
        self.gradients += usize::from(gradient);
        let poisoned = gradient && self.misbehaviour.is_some_and(|o| o.poisons(self.gradients));
        if poisoned {
            answer = poison(&answer);
        }
        let entry = self.models.get_mut(model).unwrap();
        entry.used = true;
        let pending_gradients = self.pending_gradients.entry(entry.slot).or_default();
        let mut foreign = false;
        if gradient {
            pending_gradients.insert(model.to_owned());
        } else if kind == "step" {
            foreign = std::mem::take(pending_gradients).iter().any(|owner| owner != model);
        }
        if foreign && status == 200 {
            let mut response: Value = serde_json::from_slice(&answer).unwrap();
            let norm = response["metrics"]["skyrl.ai/grad_norm"].as_f64().unwrap();
            response["metrics"]["skyrl.ai/grad_norm"] = json!(norm * 0.75);
            answer = response.to_string().into();
        }
        // A step with learning rate 0 changes nothing, whatever the gradient.
        let length =
            serde_json::from_slice::<Value>(&content).map_or(1.0, |c| c["learning_rate"].as_f64().unwrap_or(1.0));
        if !pure {
            // A step with a poisoned or foreign gradient leads to unknown weights.
            let ruined = poisoned || (foreign && length != 0.0);
            entry.weights.push(if ruined { 0 } else { hash(&(kind, &content)) });
            self.last_history = entry.weights.clone();
            self.computed += 1;
            self.steps += usize::from(kind == "step");
            if kind == "step" && self.misbehaviour == Some(Misbehaviour::NullNorm(self.steps)) {
                self.misbehaviour = None;
                answer = json!({"metrics": {"skyrl.ai/grad_norm": null}}).to_string().into();
                self.models.get_mut(model).unwrap().weights = vec![0];
            }
        }
        let id = self.future(status, answer);
        self.by_sequence_number.insert(number, (content, id.clone()));
        Self::submitted(&id)
    }
}

/// Replaces the log-probs of a response by NaN: the field name is followed by the tensor (tag and length), which begins
/// with its data (tag and length).
fn poison(answer: &[u8]) -> Vec<u8> {
    let mut out = answer.to_vec();
    let mut at = answer.windows(8).position(|w| w == b"logprobs").expect("a response has log-probs") + 8;
    let mut length = 0;
    for _ in 0..2 {
        at += 1;
        (length, at) = varint(answer, at);
    }
    for number in out[at..at + length as usize].chunks_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    out
}

/// Parses the recording into responses by request and weights.
fn parse_recording(recorded: &str) -> HashMap<RecordedRequest, Vec<u8>> {
    let lines: Vec<Value> = recorded.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let bytes = |v: &Value| -> Vec<u8> {
        let text = v.as_str().unwrap();
        match text.strip_prefix("hex:") {
            Some(hex) => (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect(),
            None => text.as_bytes().to_vec(),
        }
    };
    // Results by future.
    let mut results: HashMap<String, Vec<u8>> = HashMap::new();
    for line in lines.iter().filter(|l| l["path"] == "/api/v1/retrieve_future" && l["status"] == 200) {
        let request: Value = serde_json::from_slice(&bytes(&line["body"])).unwrap();
        results.insert(request["request_id"].as_str().unwrap().to_owned(), bytes(&line["answer"]));
    }
    let mut responses = HashMap::new();
    let mut models: HashMap<String, Weights> = HashMap::new();
    let mut saved: HashMap<String, Weights> = HashMap::new();
    let mut sessions: HashMap<String, Weights> = HashMap::new();
    for line in lines.iter().filter(|l| l["status"] == 200) {
        let (body, answer) = (bytes(&line["body"]), bytes(&line["answer"]));
        let request: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let response: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        let text = |v: &Value, field: &str| v[field].as_str().unwrap_or_default().to_owned();
        let result = || results.get(&text(&response, "request_id")).cloned().unwrap_or_default();
        let path = line["path"].as_str().unwrap().strip_prefix("/api/v1/").unwrap();
        match path {
            "create_model" => {
                models.insert(text(&response, "model_id"), vec![hash(&request["lora_config"].to_string())]);
            }
            "forward_backward" => {
                let (model, _, content) = split(&body);
                let weights = models.get_mut(&model).unwrap();
                responses.insert(("gradient", weights.clone(), content.clone()), result());
                if !content.ends_with(&[0x30, 1]) {
                    weights.push(hash(&("gradient", &content)));
                }
            }
            "optim_step" => {
                let content = request["adam_params"].to_string().into_bytes();
                let weights = models.get_mut(&text(&request, "model_id")).unwrap();
                responses.insert(("step", weights.clone(), content.clone()), result());
                weights.push(hash(&("step", &content)));
            }
            "save_weights" | "save_weights_for_sampler" => {
                let kind = if path == "save_weights" { "weights" } else { "sampler_weights" };
                let model = text(&request, "model_id");
                saved.insert(format!("{model}/{kind}/{}", text(&request, "path")), models[&model].clone());
            }
            "load_weights" => {
                let from = saved[&text(&request, "path").replace("tinker://", "")].clone();
                models.insert(text(&request, "model_id"), from);
            }
            "create_sampling_session" => {
                let from = saved[&text(&request, "model_path").replace("tinker://", "")].clone();
                sessions.insert(text(&response, "sampling_session_id"), from);
            }
            "asample" => {
                let weights = sessions[&text(&request, "sampling_session_id")].clone();
                let mut request = request.clone();
                for field in ["sampling_session_id", "seq_id"] {
                    request.as_object_mut().unwrap().remove(field);
                }
                responses.insert(("sample", weights, request.to_string().into_bytes()), result());
            }
            path if path.ends_with("/download") => {
                let parts: Vec<&str> = path.split('/').collect();
                let weights = saved[&format!("{}/sampler_weights/{}", parts[1], parts[3])].clone();
                responses.insert(("archive", weights, Vec::new()), answer);
            }
            _ => {}
        }
    }
    responses
}
