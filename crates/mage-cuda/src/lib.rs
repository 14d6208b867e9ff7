//! Qwen3 on NVIDIA GPUs.
//!
//! Weights and activations are bf16, accumulation is fp32. GEMMs use cuBLASLt; all other kernels are part of this crate
//! and are compiled by NVRTC when a model is first used. Building needs no CUDA toolkit. Without a driver,
//! [`CudaDevice::open`] returns an error that states what is missing.
//!
//! [`ModelTrainer`] runs forward and backward passes over packed sequences and AdamW steps. [`ModelRunner`] runs
//! inference steps over a paged KV cache, and samples or scores tokens. Both work on a [`CudaModel`]. This crate deals
//! with shapes, buffers and the driver; engines, requests and losses belong to its callers.
//!
//! # Unsafe code
//!
//! Every driver call is unsafe. Buffers know their length. Tokens, row indices, positions, block ids, lengths and tries
//! from callers are validated against it before a kernel is launched, and kernels get their sizes from the same shapes.
//! Parameter layouts ([`GpuParamLayout`], [`GpuLoraLayout`]) are trusted.

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
pub use error::{CudaError, Remedy, Result};
pub use library_search::{LibrarySearch, LibraryStatus, find_libraries};
pub use lora::{
    CudaAdapter, GpuLoraGroupLayout, GpuLoraLayout, GpuLoraProjectionLayout, NUM_PROJECTION_GROUPS, WeightsRef,
};
pub use model::{CudaModel, CudaWeights};
pub use nvrtc::is_compiling;
pub use runner::{GpuSequenceSlice, ModelRunner, StepBatch};
pub use shape::{GpuLayerLayout, GpuParamLayout, ModelShape};
pub use step_inputs::{Candidates, GpuLogitQuery, GpuLogitResult};
pub use throughput::{Throughput, measure_throughput};
pub use token_trie::TokenTrie;
pub use trainer::{AdamWParams, GpuTokenLogprob, ModelTrainer, PackedSequences, TargetToken};

/// Tokens per KV-cache block.
pub const BLOCK_SIZE: usize = 16;
/// Rows of an attention tile.
const TILE: usize = 64;
