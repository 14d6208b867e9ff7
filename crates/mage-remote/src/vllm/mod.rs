//! *Which tokens come next, from a pool of vLLM servers?*
//!
//! A [`VllmPool`] is a [`Sampler`](mage_engine::Sampler) over any number of servers of the same model. Whoever trains pushes
//! adapters into it by name and version; every push is checked on every server by a [`Fingerprint`](crate::Fingerprint).

mod completion;
mod health;
mod pool;
mod push;
mod request;
mod server;
mod weight_sync;

pub use pool::{ServerStatus, VllmPool, VllmPoolSettings};
pub use server::ServedModel;
