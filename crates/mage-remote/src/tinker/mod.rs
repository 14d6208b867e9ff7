//! *How do weights change on a server that speaks the Tinker protocol?*
//!
//! [`TinkerTrainer`] is a [`Trainer`](mage_engine::Trainer), [`TinkerSampler`] a [`Sampler`](mage_engine::Sampler), over a
//! server such as SkyRL's. The server validates little (it takes advantages that are no numbers and ruins the adapter with
//! them), divides by what it likes, and forgets its models when it is started anew; all three are met here.

mod archive;
mod backend;
mod batch;
mod calibration;
mod checkpoint;
mod client;
mod codec;
mod publish;
mod replay_log;
mod sampler;
mod saved_state;
mod session;
mod stale_gradient;
mod trainer;
mod wait;

pub use backend::{Backend, Dialect};
pub use calibration::Calibration;
pub use client::TinkerServer;
pub use sampler::TinkerSampler;
pub use trainer::{TinkerSettings, TinkerTrainer};
