//! OpenAI-compatible endpoints (vLLM, SGLang, llama.cpp, Ollama, hosted models): chat completions and embeddings.

mod chat;
mod client;
mod embeddings;
mod endpoint;
mod usage;

pub use chat::RemoteChat;
pub use client::OpenAiClient;
pub use embeddings::RemoteEmbeddings;
pub use endpoint::{Endpoint, RequestLimits};
pub use usage::{OutstandingProblem, TokenPrices, UsageTotals, UsageTracker};

pub(crate) use client::error_chain;
