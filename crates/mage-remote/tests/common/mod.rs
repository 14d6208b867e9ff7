//! Test support: model servers, test doubles and a faulty network proxy, all on loopback.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod proxy;
pub(crate) mod recorder;
pub(crate) mod server;
pub(crate) mod tinker_double;
pub(crate) mod tinker_script;
pub(crate) mod vllm_double;
pub(crate) mod vllm_script;

use mage_engine::{ChatMessage, ChatRequest, SamplingParams};
use mage_remote::{Endpoint, OpenAiClient, RemoteChat, RequestLimits, StatusLog};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::runtime::Runtime;

/// Captured log lines.
pub(crate) type LogLines = Arc<Mutex<Vec<String>>>;

/// A status log and the lines it captures, each followed by its hints.
pub(crate) fn capture_log() -> (StatusLog, LogLines) {
    let lines = LogLines::default();
    let sink = Arc::clone(&lines);
    let listener = move |line: &str, hints: &[_]| {
        let hints = if hints.is_empty() { String::new() } else { format!(" {hints:?}") };
        sink.lock().unwrap().push(format!("{line}{hints}"));
    };
    (StatusLog::new(listener), lines)
}

/// A runtime for synchronous tests.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A client with short timeouts.
pub(crate) fn client(at: SocketAddr, change: impl FnOnce(&mut Endpoint)) -> OpenAiClient {
    let mut endpoint = Endpoint::new(&format!("http://{at}"), "tiny").unwrap();
    endpoint.limits = RequestLimits {
        max_in_flight: 8,
        attempt_timeout: Duration::from_millis(1500),
        deadline: Duration::from_secs(20),
    };
    change(&mut endpoint);
    OpenAiClient::new(endpoint).unwrap()
}

pub(crate) fn chat(at: SocketAddr) -> RemoteChat {
    RemoteChat::new(client(at, |_| ()))
}

pub(crate) fn chat_request(text: &str) -> ChatRequest {
    let params = SamplingParams { seed: 7 << 40, max_tokens: 16, ..SamplingParams::default() };
    ChatRequest { messages: vec![ChatMessage::user(text)], params, ..ChatRequest::default() }
}
