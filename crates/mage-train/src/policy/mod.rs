//! Policies: responses to the requests of a meta-episode, and the tokenisation of requests.

pub mod codec;
mod embeddings;
mod host;
mod scripted;

pub use embeddings::EndpointEmbeddings;
pub use host::PolicyHost;
pub use scripted::Player;
