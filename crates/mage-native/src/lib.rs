//! *The embedded engine.*
//!
//! Qwen3 in Rust: forward, backward, optimiser, sampler and files. A folder that `transformers` wrote can be trained, and
//! one written here loads in `transformers` unchanged. On the processor, results do not depend on the number of threads, nor a
//! row's on what else is in the batch; on a card (`mage-cuda`, [`Device`]) the latter may.
//!
//! ```
//! use mage_engine::{Loss, Objective, OptimStep, PerToken, TokenForest, Trainer};
//! use mage_rng::Seed;
//! use mage_native::{Config, DEFAULT_INIT_STD, NativeModel, Options};
//!
//! let config = Config {
//!     vocab_size: 10, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
//!     num_key_value_heads: 1, head_dim: 8, rms_norm_eps: 1e-6, rope_theta: 10_000.0, tie_word_embeddings: true,
//!     max_position_embeddings: 64, bos_token_id: None, eos_token_ids: vec![],
//! };
//! let model = NativeModel::new(config, DEFAULT_INIT_STD, Seed::new(1), None)?;
//! let (mut trainer, _sampler) = model.train(Options::default())?;
//! let row = (vec![1, 2, 3], PerToken { weights: vec![0.0, 0.5, 0.5], ..Default::default() });
//! let batch = TokenForest::of_rows([row]);
//! let before = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.loss;
//! trainer.optim_step(&OptimStep { learning_rate: 0.01, ..Default::default() })?;
//! assert!(trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.loss < before);
//! # Ok::<(), mage_engine::Error>(())
//! ```
//!
//! # Unsafe code
//!
//! Only in `cpu::simd` (intrinsics, reached after the features were detected) and in `cpu` (pointers into buffers
//! whose lengths were compared with the shapes first, so that inner loops run without bounds checks and threads can
//! write disjoint rows and columns of one buffer).

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

pub use engine::{NativeModel, Options};
pub use gpu::{Device, GpuMemoryPlan, GpuReport, GpuStatus};
pub use inference::{NativeSampler, SamplerStats, TokenStream};
pub use machine::Machine;
pub use mage_cuda::{DeviceInfo, Throughput, is_compiling};
pub use tokenizer::{ControlTokens, chat_tokenizer, word_tokenizer};
pub use training::{CpuTrainer, CudaTrainer};
pub use weights::checkpoint::{StoredWeights, TensorEntry, WeightDtype, parse_header};
pub use weights::description::ModelDescription;
pub use weights::hf_config::Config;
pub use weights::init::DEFAULT_INIT_STD;
pub use weights::lora::{AdapterSize, LoraConfig, NativeAdapter, Projection};
