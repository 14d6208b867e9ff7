//! *What can the card do?*
//!
//! Qwen3 on an NVIDIA card: bf16 numbers, fp32 sums. Matrix products are cuBLASLt's; everything between them is kernels of
//! our own, compiled by NVRTC when a model is first used. Nothing of CUDA is needed to build this, and where no driver is
//! found, [`CudaDevice::open`] says so and what to do.
//!
//! [`ModelTrainer`] goes forward and backward over packed sequences and steps with AdamW; [`ModelRunner`] takes the next tokens of
//! many sequences in, keys and values lying in pages, and answers what is asked about them. Both work on a [`CudaModel`].
//! This crate knows shapes, numbers and the driver; engines, requests and losses are others' concern.
//!
//! # Unsafe code
//!
//! Every call of the driver is unsafe. Sizes are kept with buffers; tokens, rows, positions, pages, lengths and tries that
//! come from outside are compared with them before anything is started, and kernels get their sizes from the same shapes. Where
//! parameters lie ([`ParamLayout`], [`LoraLayout`]) is taken on trust.

mod adapter;
mod attention;
mod buffer;
mod card;
mod compile;
mod dense;
mod error;
mod find;
#[cfg(test)]
mod kernel_tests;
mod map;
mod measure;
mod model;
mod packet;
mod pinned;
mod product;
mod record;
mod shape;
mod step;
mod train;
mod tries;

pub use adapter::{CudaAdapter, LORA_GROUPS, LoraGroupLayout, LoraLayout, LoraProjectionLayout, WeightsRef};
pub use buffer::{DeviceBuffer, Pod};
pub use card::{CudaDevice, DeviceInfo};
pub use compile::{MAX_GROUP_SIZE, MAX_HEAD_DIM, is_compiling};
pub use error::{CudaError, Result};
pub use find::{LibrarySearch, LibraryStatus, find_libraries};
pub use measure::{Throughput, measure_throughput};
pub use model::{CudaModel, CudaWeights};
pub use packet::{Candidates, LogitQuery, LogitResult};
pub use shape::{LayerLayout, ModelShape, ParamLayout};
pub use step::{ModelRunner, SequenceSlice, StepBatch};
pub use train::{AdamWParams, ModelTrainer, PackedSequences, TargetToken, TokenLogprob};
pub use tries::TokenTrie;

/// Tokens in a page of keys and values.
pub const BLOCK_SIZE: usize = 16;
/// Rows of a tile of attention.
const TILE: usize = 64;
