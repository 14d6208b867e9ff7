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
//! Parameter layouts ([`ParamLayout`](mage_engine::model::ParamLayout),
//! [`LoraLayout`](mage_engine::model::LoraLayout)) are trusted.

// The tests are a program of their own, in which the public interface is unused; test modules warn of unlisted tests.
#![cfg_attr(test, allow(dead_code))]

mod attention;
mod buffer;
mod device;
mod error;
mod fused_gemm;
mod gemm;
mod graph;
#[cfg(test)]
#[warn(dead_code)]
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
pub use lora::{CudaAdapter, WeightsRef, check_lora_rank};
pub use model::{CudaModel, CudaWeights};
pub use nvrtc::is_compiling;
pub use runner::{ModelRunner, StepBatch};
pub use shape::ModelShape;
pub use step_inputs::{Candidates, KernelLogitQuery};
pub use throughput::{Throughput, measure_throughput};
pub use token_trie::TokenTrie;
pub use trainer::ModelTrainer;

/// Rows of an attention tile.
const TILE: usize = 64;
/// Words of an `AttentionTile`.
const TILE_WORDS: usize = 5;

/// Runs the unit tests. Those of kernels are ignored without a GPU; a GPU that does not work is an error.
#[cfg(test)]
fn main() -> std::process::ExitCode {
    use mage_testing::{run, tests};
    let command = "cargo test --release -p mage-cuda --lib";
    let gpu = match CudaDevice::count().unwrap() {
        0 => Err(format!("no NVIDIA GPU; run on a machine with one: {command}")),
        _ => Ok(()),
    };
    let hopper = gpu.clone().and_then(|()| match CudaDevice::open(0).unwrap().info().compute_capability.0 {
        9 => Ok(()),
        _ => Err("the fused GEMMs need a Hopper GPU".to_owned()),
    });
    let subprocess = "device::tests::subprocess_that_loses_the_device";
    let alone = match std::env::args().any(|argument| argument == subprocess) {
        true => gpu.clone(),
        false => Err("makes the GPU unusable; another test runs it in a separate process".to_owned()),
    };
    run([
        (alone, tests![device::tests::subprocess_that_loses_the_device]),
        (
            hopper,
            tests![
                kernel_tests::fused_gemm::fused_gemm_matches_plain_loops,
                kernel_tests::fused_gemm::fused_gemm_swiglu_matches_plain_loops,
                kernel_tests::fused_gemm::fused_norm_between_two_gemms_matches_plain_loops,
            ],
        ),
        (
            gpu,
            tests![
                buffer::tests::out_of_memory_reports_the_requested_and_the_free_size,
                device::tests::device_loss_is_reported_with_a_hint,
                graph::tests::dropping_cublas_does_not_disturb_a_capture,
                graph::tests::an_abandoned_capture_leaves_the_stream_usable,
                kernel_tests::attention::flash_attention_matches_plain_loops_forward_and_backward,
                kernel_tests::attention::paged_prefill_and_decode_match_plain_loops,
                kernel_tests::attention::head_norm_and_rope_gradients_match_differences,
                kernel_tests::elementwise::rms_norm_and_its_gradients_match_plain_loops,
                kernel_tests::elementwise::swiglu_and_its_gradient_match_plain_loops,
                kernel_tests::elementwise::gather_scatter_and_embedding_gradient_match_plain_loops,
                kernel_tests::elementwise::sum_of_squares_and_adamw_match_plain_loops,
                kernel_tests::elementwise::f32_to_bf16_rounds_to_nearest_even,
                kernel_tests::sampling::scores_samples_and_gradients_match_plain_loops,
                kernel_tests::sampling::samples_follow_the_uniform_variate,
                kernel_tests::sampling::trie_sampling_equals_list_sampling_and_returns_the_next_node,
                runner::tests::large_decode_batches_agree_with_small_ones,
                runner::tests::batches_beyond_the_logits_buffer_agree_with_small_ones,
                runner::tests::trie_sampling_equals_list_sampling_across_cache_evictions,
                trainer::workspace::tests::a_pass_allocates_the_predicted_number_of_bytes,
            ],
        ),
        (
            Ok(()),
            tests![
                buffer::tests::sizes_are_formatted_in_a_suitable_unit,
                buffer::tests::sizes_beyond_the_address_space_are_refused,
                library_search::tests::broken_libraries_are_reported_and_not_used,
                library_search::tests::libraries_that_lack_a_function_are_not_used,
                lora::tests::ranks_that_are_not_multiples_of_8_are_rejected,
                nvrtc::tests::corrupt_cached_binaries_are_rejected,
                nvrtc::tests::every_warp_has_work_and_splits_do_not_exceed_warps,
                token_trie::tests::a_trie_is_uploaded_once_and_found_again,
                token_trie::tests::a_full_cache_is_cleared_and_refilled,
                token_trie::tests::tries_larger_than_half_of_the_cache_double_its_capacity,
                token_trie::tests::invalid_tries_are_rejected,
                trainer::tests::every_token_is_in_exactly_one_sequence,
                trainer::tests::two_predictions_in_one_row_are_found,
            ],
        ),
    ])
}
