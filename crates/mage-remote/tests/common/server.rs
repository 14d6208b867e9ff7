//! Test double of an OpenAI-compatible server, with a scripted response.

use axum::{Json, Router, extract::State, http::HeaderMap, routing::post};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};

type Script = dyn Fn(&str) -> String + Send + Sync;

/// Requests that the server received.
#[derive(Default)]
pub(crate) struct ReceivedRequests {
    pub(crate) bodies: Mutex<Vec<Value>>,
    pub(crate) keys: Mutex<Vec<Option<String>>>,
    /// Maximum concurrent requests.
    pub(crate) peak: AtomicUsize,
    now: AtomicUsize,
}

impl ReceivedRequests {
    pub(crate) fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }
}

#[derive(Clone)]
struct Shared {
    seen: Arc<ReceivedRequests>,
    script: Arc<Script>,
    latency: Duration,
}

/// A running server. It stops with all connections when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<ReceivedRequests>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Responds to the last message with `script(message)`, after `latency`.
    pub(crate) async fn start(latency: Duration, script: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), latency, script).await
    }

    /// Like `start`, at a given address.
    pub(crate) async fn start_at(
        address: SocketAddr,
        latency: Duration,
        script: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        let seen = Arc::<ReceivedRequests>::default();
        let shared = Shared { seen: Arc::clone(&seen), script: Arc::new(script), latency };
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/embeddings", post(embed))
            .with_state(shared);
        let listening = async {
            loop {
                match TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    // The previous server may still hold the port.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let listener = tokio::time::timeout(Duration::from_secs(60), listening).await.expect("the address is free");
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Server { address, seen, task }
    }
}

fn record(shared: &Shared, headers: &HeaderMap, body: &Value) {
    let key = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned());
    shared.seen.keys.lock().unwrap().push(key);
    shared.seen.bodies.lock().unwrap().push(body.clone());
}

async fn complete(State(shared): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    record(&shared, &headers, &body);
    let now = shared.seen.now.fetch_add(1, Ordering::SeqCst) + 1;
    shared.seen.peak.fetch_max(now, Ordering::SeqCst);
    tokio::time::sleep(shared.latency).await;
    shared.seen.now.fetch_sub(1, Ordering::SeqCst);
    let prompt = body["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap();
    let completion = (shared.script)(prompt);
    let words = |text: &str| text.split_whitespace().count();
    Json(json!({
        "choices": [{"index": 0, "message": {"role": "assistant", "content": completion}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": words(prompt), "completion_tokens": words(&completion)},
    }))
}

/// Embeds a text as the counts of the letters a to d.
async fn embed(State(shared): State<Shared>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    record(&shared, &headers, &body);
    let vector = |text: &str| "abcd".chars().map(|c| text.matches(c).count() as f64).collect::<Vec<_>>();
    let texts = body["input"].as_array().unwrap();
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .rev() // clients must order by `index`
        .map(|(i, t)| json!({"index": i, "embedding": vector(t.as_str().unwrap())}))
        .collect();
    Json(json!({"data": data, "usage": {"prompt_tokens": texts.len()}}))
}
