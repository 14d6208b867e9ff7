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
//! parameters lie ([`GpuParamLayout`], [`GpuLoraLayout`]) is taken on trust.

mod attention;
mod buffer;
mod device;
mod error;
mod fused_gemm;
mod gemm;
mod graph;
#[cfg(test)]
mod kernel_tests;
mod library_search;
mod lora;
mod model;
mod nvrtc;
mod pinned;
mod runner;
mod shape;
mod step_inputs;
mod stream;
mod throughput;
mod tma;
mod token_trie;
mod trainer;

pub use buffer::{DeviceBuffer, Pod};
pub use device::{CudaDevice, DeviceInfo};
pub use error::{CudaError, Result};
pub use library_search::{LibrarySearch, LibraryStatus, find_libraries};
pub use lora::{CudaAdapter, GpuLoraGroupLayout, GpuLoraLayout, GpuLoraProjectionLayout, LORA_GROUPS, WeightsRef};
pub use model::{CudaModel, CudaWeights};
pub use nvrtc::{MAX_GROUP_SIZE, MAX_HEAD_DIM, is_compiling};
pub use runner::{GpuSequenceSlice, ModelRunner, StepBatch};
pub use shape::{GpuLayerLayout, GpuParamLayout, ModelShape};
pub use step_inputs::{Candidates, GpuLogitQuery, GpuLogitResult};
pub use throughput::{Throughput, measure_throughput};
pub use token_trie::TokenTrie;
pub use trainer::{AdamWParams, GpuTokenLogprob, ModelTrainer, PackedSequences, TargetToken};

/// Tokens in a page of keys and values.
pub const BLOCK_SIZE: usize = 16;
/// Rows of a tile of attention.
const TILE: usize = 64;
