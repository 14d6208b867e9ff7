//! Clients of models that run elsewhere.
//!
//! - [`openai`]: OpenAI-compatible endpoints as a [`ChatModel`](mage_engine::ChatModel) and as [`RemoteEmbeddings`].
//! - [`tinker`]: training and sampling over the Tinker protocol (SkyRL, hosted services).
//! - [`vllm`]: sampling from a pool of vLLM servers that receive published weights.
//!
//! The Tinker and vLLM clients implement `Trainer` and `Sampler` of `mage-engine`; callers do not see the network.
//! Network failures are handled here: requests are retried where a retry can help, and errors state what failed.
//!
//! An API key is read from an environment variable, sent in one header, and redacted from every error and log line.

mod fingerprint;
mod http;
pub mod openai;
pub mod tinker;
mod unique_tag;
pub mod vllm;

pub use fingerprint::Fingerprint;
pub use http::{
    address::{Service, is_loopback},
    api_key::{ApiKey, check_env_var_name},
    client::Timeouts,
    log::StatusLog,
};
pub use openai::{
    Endpoint, OpenAiClient, OutstandingProblem, RemoteChat, RemoteEmbeddings, RequestLimits, TokenPrices,
};
pub use tinker::{TinkerSampler, TinkerServer, TinkerSettings, TinkerTrainer};
pub use vllm::{ServedModel, VllmPool, VllmPoolSettings};
