//! Test double of a vLLM server with rule-based log-probs and a fixed latency.

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, runtime::Runtime};

/// State of the double and what it received.
#[derive(Default)]
pub(crate) struct VllmState {
    /// Adapters by name, with their directories.
    pub(crate) adapters: Mutex<BTreeMap<String, String>>,
    pub(crate) requests: AtomicUsize,
    pub(crate) now: AtomicUsize,
    pub(crate) peak: AtomicUsize,
    /// Added to every log-prob, to simulate wrong weights.
    pub(crate) stale: Mutex<f32>,
    /// Whether it is stopped: connections stay open without responses.
    pub(crate) stopped: AtomicBool,
    /// Whether loads block,
    pub(crate) loading: AtomicBool,
    /// and how many were requested.
    pub(crate) loads: AtomicUsize,
    /// Barrier at which loads wait.
    pub(crate) load_barrier: Mutex<Option<Arc<tokio::sync::Barrier>>>,
}

#[derive(Clone)]
struct Shared {
    state: Arc<VllmState>,
    latency: Duration,
}

/// A running server. It stops with all connections when dropped.
pub(crate) struct Vllm {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<VllmState>,
    /// A runtime of its own, so that connections end with the server.
    runtime: Option<Runtime>,
}

impl Drop for Vllm {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Vllm {
    pub(crate) async fn start(latency: Duration) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), latency).await
    }

    pub(crate) async fn start_at(address: SocketAddr, latency: Duration) -> Self {
        let state = Arc::<VllmState>::default();
        let shared = Shared { state: Arc::clone(&state), latency };
        let app = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/v1/models", get(models))
            .route("/v1/completions", post(complete))
            .route("/v1/load_lora_adapter", post(load))
            .route("/v1/unload_lora_adapter", post(unload))
            .layer(middleware::from_fn_with_state(shared.clone(), unless_stopped))
            .with_state(shared);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listening = runtime.spawn(async move {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    // The previous server may still hold the port.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        let Ok(listener) = tokio::time::timeout(Duration::from_secs(60), listening).await else {
            runtime.shutdown_background();
            panic!("{address} is not free");
        };
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Vllm { address, state, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Log-prob of token `t` at position `i`, equal on all servers.
pub(crate) fn rule(i: usize, t: u32) -> f32 {
    -0.5 - ((i as u32 * 7 + t * 3) % 11) as f32 / 10.0
}

async fn unless_stopped(State(s): State<Shared>, request: Request, next: Next) -> Response {
    while s.state.stopped.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    next.run(request).await
}

async fn models(State(s): State<Shared>) -> Json<Value> {
    let adapters = s.state.adapters.lock().unwrap();
    let names = std::iter::once("tiny").chain(adapters.keys().map(String::as_str));
    Json(json!({"data": names.map(|n| json!({"id": n})).collect::<Vec<_>>()}))
}

async fn load(State(s): State<Shared>, Json(body): Json<Value>) -> (StatusCode, String) {
    s.state.loads.fetch_add(1, Ordering::SeqCst);
    while s.state.loading.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let together = s.state.load_barrier.lock().unwrap().clone();
    if let Some(together) = together {
        together.wait().await;
    }
    let mut adapters = s.state.adapters.lock().unwrap();
    let name = body["lora_name"].as_str().unwrap().to_owned();
    if adapters.contains_key(&name) {
        let text = format!("The lora adapter '{name}' has already been loaded.");
        return (StatusCode::BAD_REQUEST, json!({"error": {"message": text}}).to_string());
    }
    adapters.insert(name, body["lora_path"].as_str().unwrap().to_owned());
    (StatusCode::OK, "Success".to_owned())
}

async fn unload(State(s): State<Shared>, Json(body): Json<Value>) -> String {
    s.state.adapters.lock().unwrap().remove(body["lora_name"].as_str().unwrap());
    "Success".to_owned()
}

/// The request fields that are used. Parsing is minimal, since the double shares the machine with the benchmark.
#[derive(Deserialize)]
struct CompletionRequest {
    model: String,
    prompt: Vec<u32>,
    max_tokens: usize,
    #[serde(default)]
    seed: u32,
    #[serde(default)]
    allowed_token_ids: Vec<u32>,
}

async fn complete(State(s): State<Shared>, body: Bytes) -> (StatusCode, String) {
    let request: CompletionRequest = serde_json::from_slice(&body).unwrap();
    let name = request.model;
    if name != "tiny" && !s.state.adapters.lock().unwrap().contains_key(&name) {
        let text = format!("The model `{name}` does not exist.");
        return (StatusCode::NOT_FOUND, json!({"error": {"message": text}}).to_string());
    }
    s.state.requests.fetch_add(1, Ordering::SeqCst);
    let now = s.state.now.fetch_add(1, Ordering::SeqCst) + 1;
    s.state.peak.fetch_max(now, Ordering::SeqCst);
    tokio::time::sleep(s.latency).await;
    s.state.now.fetch_sub(1, Ordering::SeqCst);
    let token = request.allowed_token_ids.first().copied().unwrap_or(request.seed % 16);
    assert!(request.max_tokens > 0);
    let logprob = rule(request.prompt.len(), token) + *s.state.stale.lock().unwrap();
    let choice =
        format!(r#"{{"token_ids":[{token}],"logprobs":{{"token_logprobs":[{logprob}]}},"finish_reason":"length"}}"#);
    (StatusCode::OK, format!(r#"{{"choices":[{choice}]}}"#))
}
