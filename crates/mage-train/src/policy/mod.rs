//! Policies: what answers the requests of a meta-episode, and how requests become tokens.

pub mod codec;
mod embeddings;
mod host;
mod scripted;

pub use embeddings::EndpointEmbeddings;
pub use host::PolicyHost;
pub use scripted::Player;
