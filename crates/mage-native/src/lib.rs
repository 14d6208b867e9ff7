//! The native engine: Qwen3 in Rust, with training, batched inference and Hugging Face checkpoints, on CPU and GPU.
//!
//! - `model`: forward and backward pass on the CPU, over the kernels in `cpu`
//! - `inference`: scheduler, paged KV cache with prefix sharing, CPU and CUDA backends
//! - `training`: CPU and CUDA trainers, optimiser state
//! - `weights`: safetensors checkpoints, PEFT adapters, the registry of published weights
//! - `gpu`: device selection and GPU memory planning; the kernels are in `mage-cuda`
//!
//! A directory written by `transformers` can be trained, and one written here loads in `transformers`. On the CPU, results
//! depend neither on the number of threads nor on the batch; on a GPU ([`Device`]), results are batch-invariant only with
//! [`EngineOptions::batch_invariant`].
//!
//! ```
//! use mage_engine::{Loss, Objective, OptimStep, PerToken, TokenForest, Trainer};
//! use mage_rng::Seed;
//! use mage_native::{Config, DEFAULT_INIT_STD, EngineOptions, NativeModel};
//!
//! let config = Config {
//!     vocab_size: 10, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
//!     num_key_value_heads: 1, head_dim: 8, rms_norm_eps: 1e-6, rope_theta: 10_000.0, tie_word_embeddings: true,
//!     max_position_embeddings: 64, bos_token_id: None, eos_token_ids: vec![],
//! };
//! let model = NativeModel::new(config, DEFAULT_INIT_STD, Seed::new(1), None)?;
//! let (mut trainer, _sampler) = model.train(EngineOptions::default())?;
//! let row = (vec![1, 2, 3], PerToken { weights: vec![0.0, 0.5, 0.5], ..Default::default() });
//! let batch = TokenForest::from_sequences([row]);
//! let before = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.loss;
//! trainer.optim_step(&OptimStep { learning_rate: 0.01, ..Default::default() })?;
//! assert!(trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.loss < before);
//! # Ok::<(), mage_engine::Error>(())
//! ```
//!
//! # Unsafe code
//!
//! Only in `cpu::simd` (intrinsics, used after CPU feature detection), in `cpu` (pointers into buffers whose lengths are
//! checked against the shapes first, so that inner loops run without bounds checks and threads can write disjoint rows and
//! columns of one buffer), and where the CPU backend, which checks the blocks of each step, lets tasks write the KV cache
//! concurrently.

#[allow(unsafe_code)]
mod cpu;
mod engine;
mod gpu;
mod inference;
mod machine;
mod model;
mod tokenizer;
mod training;
mod weights;

pub use engine::{EngineOptions, NativeModel};
pub use gpu::{Device, GpuMemoryPlan, GpuReport, GpuStatus};
pub use inference::{NativeSampler, SamplerStats, TokenStream};
pub use machine::Machine;
pub use mage_cuda::{DeviceInfo, Throughput, is_compiling};
pub use mage_engine::model::{LoraConfig, Projection};
pub use tokenizer::{WordControlTokens, chat_tokenizer, word_tokenizer};
pub use training::{CpuTrainer, CudaTrainer};
pub use weights::atomic_write::sync_folder;
pub use weights::checkpoint::{StoredWeights, TensorEntry, WeightDtype, parse_header};
pub use weights::description::ModelDescription;
pub use weights::hf_config::Config;
pub use weights::init::DEFAULT_INIT_STD;
pub use weights::lora::{AdapterSize, NativeAdapter};
