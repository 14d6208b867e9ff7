//! Training and sampling over the Tinker protocol.
//!
//! [`TinkerTrainer`] is a [`Trainer`](mage_engine::Trainer) and [`TinkerSampler`] a [`Sampler`](mage_engine::Sampler)
//! over a server such as SkyRL's. The server validates little (a NaN advantage destroys the adapter), normalises losses
//! in its own way, and loses its models when it restarts. This module handles all three.

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

pub use backend::{SdkVersion, TinkerBackend};
pub use calibration::Calibration;
pub use client::TinkerServer;
pub use sampler::TinkerSampler;
pub use trainer::{TinkerSettings, TinkerTrainer};
