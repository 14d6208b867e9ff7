//! OpenAI-compatible endpoints (vLLM, SGLang, llama.cpp, Ollama, hosted models): chat completions and embeddings.

mod chat;
mod client;
mod embeddings;
mod endpoint;
mod prices;

pub use chat::RemoteChat;
pub use client::{OpenAiClient, OutstandingProblem};
pub use embeddings::RemoteEmbeddings;
pub use endpoint::{Endpoint, RequestLimits};
pub use prices::TokenPrices;
