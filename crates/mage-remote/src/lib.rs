//! *What does a model somewhere else say to this?*
//!
//! Endpoints that speak the OpenAI dialect (vLLM, SGLang, llama.cpp, Ollama, hosted models) as a
//! [`ChatPolicy`](mage_engine::ChatPolicy) and as [`RemoteEmbeddings`]. What a network does to a request
//! (it gets lost, it takes forever, it comes back as an error page) is met here and nowhere else: [`client`](Client) tries
//! again where that can help, and says what happened where it cannot.
//!
//! Engines that train and sample at scale are here too: [`tinker`] trains over the Tinker protocol, [`vllm`] samples from a
//! pool of servers. Both implement the seams of `mage-engine`, and nothing above them changes.
//!
//! A key is read from an environment variable, sent in one header, and shown nowhere.

mod address;
mod backoff;
mod chat;
mod client;
mod embeddings;
mod endpoint;
mod fingerprint;
mod key;
mod ledger;
mod mark;
mod notices;
mod outage;
mod patience;
pub mod tinker;
mod tls;
mod together;
pub mod vllm;
mod wire;

pub use address::{Service, is_loopback};
pub use chat::RemoteChat;
pub use client::Client;
pub use embeddings::RemoteEmbeddings;
pub use endpoint::{Endpoint, Patience};
pub use fingerprint::Fingerprint;
pub use key::{ApiKey, check_variable};
pub use ledger::{Ledger, Prices, Spent};
pub use notices::Notices;
pub use tinker::{TinkerSampler, TinkerServer, TinkerSettings, TinkerTrainer};
pub use vllm::{PoolSettings, Served, VllmPool};
pub use wire::Waiting;
