//! *What does a model somewhere else say to this?*
//!
//! Endpoints that speak the OpenAI dialect (vLLM, SGLang, llama.cpp, Ollama, hosted models) as a
//! [`ChatPolicy`](mage_engine::ChatPolicy) and as [`Embeddings`](mage_core::Embeddings). What a network does to a request
//! (it gets lost, it takes forever, it comes back as an error page) is met here and nowhere else: [`client`](Client) tries
//! again where that can help, and says what happened where it cannot.
//!
//! A key is read from an environment variable, sent in one header, and shown nowhere.

mod backoff;
mod chat;
mod client;
mod embeddings;
mod endpoint;
mod key;
mod ledger;

pub use chat::RemoteChat;
pub use client::Client;
pub use embeddings::RemoteEmbeddings;
pub use endpoint::{Endpoint, Patience};
pub use key::ApiKey;
pub use ledger::{Ledger, Prices, Spent};
