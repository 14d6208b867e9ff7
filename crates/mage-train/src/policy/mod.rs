//! Policies: responses to the requests of a meta-episode.
//!
//! [`run_meta_episode`](crate::run_meta_episode) passes each request to a [`Policy`]: a model ([`ModelPolicy`]), a model
//! behind an endpoint ([`ChatPolicy`]), a scripted agent ([`ScriptedPolicy`]) or a person.

mod chat;
pub mod codec;
mod counter;
mod embeddings;
mod host;
mod model;
mod named;
mod scripted;

pub use chat::ChatPolicy;
pub use counter::CompletionCounter;
pub use embeddings::EndpointEmbeddings;
pub use host::PolicyHost;
pub use model::ModelPolicy;
pub use named::{DecodingConfig, NamedPolicy, PolicyKind};
pub use scripted::ScriptedPolicy;

use crate::Result;
use mage_core::{Completion, MetaEpisode, Request};
use mage_engine::BoxFuture;

/// Responds to the requests of one meta-episode.
pub trait Policy: Send {
    /// Responds to the pending request of `meta`. Models use the request alone; scripted agents and people also see the
    /// environment's legal actions in `meta`. The future does not borrow `meta`, so that meta-episodes can move between
    /// threads while they wait.
    fn respond<'a>(&'a mut self, request: &'a Request, meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>>;
}
