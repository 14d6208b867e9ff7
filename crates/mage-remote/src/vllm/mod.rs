//! Sampling from a pool of vLLM servers.
//!
//! A [`VllmPool`] is a [`Sampler`](mage_engine::Sampler) over servers of the same model. The trainer pushes adapters by
//! name and version; every push is verified on every server by a [`Fingerprint`](crate::Fingerprint).

mod completion;
mod health;
mod pool;
mod push;
mod request;
mod server;
mod version_registry;

pub use pool::{ServerStatus, VllmPool, VllmPoolSettings};
pub use server::ServedModel;
