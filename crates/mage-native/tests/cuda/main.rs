//! Tests of the GPU backend against the CPU backend.
//!
//! The CPU computes in fp32, the GPU in bf16 with fp32 accumulation, so results agree up to bf16 rounding (8 bits).
//! Without a GPU they are ignored. Run with `cargo test --release -p mage-native --test cuda`.

mod actions;
mod adapters;
mod sampling;
mod training;

use futures_executor::block_on;
use mage_engine::{
    ActionSet, Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, ScoreRequest, Scores,
    Segment, TokenForest, Trainer, WeightsName,
};
use mage_native::{
    Config, CpuTrainer, CudaTrainer, Device, EngineOptions, LoraConfig, NativeAdapter, NativeModel, NativeSampler,
    Projection, WeightDtype,
};
use mage_rng::Seed;
use mage_testing::{Requirement, run, tests};
use rand::RngExt;
use std::process::ExitCode;

/// Requires a GPU. A GPU that does not work is an error.
fn gpu() -> Requirement {
    match mage_cuda::CudaDevice::count().unwrap() {
        0 => {
            Err("no NVIDIA GPU; run on a machine with one: cargo test --release -p mage-native --test cuda".to_owned())
        }
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    run([(
        gpu(),
        tests![
            actions::constrained_responses_stay_within_their_sets_and_agree_with_the_cpu,
            actions::action_sets_beyond_the_gpu_cache_are_uploaded_again,
            adapters::adapter_gradients_agree_with_the_cpu,
            adapters::a_trained_adapter_resumes_with_identical_bits_and_leaves_the_base_unchanged,
            adapters::several_adapters_in_one_batch_agree_with_the_cpu,
            sampling::scores_and_responses_agree_with_the_cpu,
            sampling::samples_follow_the_reported_distribution,
            sampling::batch_invariant_responses_have_identical_bits_in_any_batch,
            training::gradients_agree_with_the_cpu,
            training::passes_are_deterministic_with_and_without_recomputation,
            training::loss_curves_agree_with_the_cpu,
            training::a_saved_trainer_resumes_with_identical_bits,
        ],
    )])
}

/// Shapes with every padded head dimension, odd vocabulary sizes, and one or many query heads per KV head.
fn shapes() -> Vec<Config> {
    let shape = |head_dim, heads, kv, hidden, vocab_size| Config {
        vocab_size,
        hidden_size: hidden,
        intermediate_size: 2 * hidden,
        num_hidden_layers: 2,
        num_attention_heads: heads,
        num_key_value_heads: kv,
        head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: head_dim != 64,
        max_position_embeddings: 1024,
        bos_token_id: None,
        eos_token_ids: vec![],
    };
    vec![
        shape(16, 4, 2, 64, 97),
        shape(32, 4, 1, 64, 100),
        shape(64, 3, 3, 136, 1001),
        shape(128, 8, 2, 256, 300),
        shape(24, 2, 1, 48, 61),
        shape(80, 4, 2, 64, 120),
        shape(128, 16, 2, 128, 200),
        shape(64, 10, 2, 72, 90),
        shape(32, 16, 1, 64, 111),
    ]
}

fn model(config: &Config) -> NativeModel {
    NativeModel::new(config.clone(), 0.08, Seed::new(3), None).unwrap()
}

fn both(config: &Config, options: EngineOptions) -> (CpuTrainer, CudaTrainer) {
    (model(config).train(options).unwrap().0, model(config).train_on_gpu(0, options).unwrap().0)
}

/// Sequences shorter and longer than a tile, some with shared prefixes, some with masks.
fn batch(vocabulary: u32, seed: u64) -> TokenForest {
    let mut rng = Seed::new(seed).rng();
    let mut forest = TokenForest::default();
    for (i, len) in [5_usize, 64, 65, 130, 3, 200, 17].into_iter().enumerate() {
        let tokens: Vec<u32> = (0..len).map(|_| rng.random_range(0..vocabulary)).collect();
        let mut weights: Vec<f32> = (0..len).map(|t| if t % 5 == 4 { 0.0 } else { rng.random::<f32>() }).collect();
        let parent = (i == 2).then_some(1);
        if parent.is_none() {
            weights[0] = 0.0;
        }
        let allowed = tokens.iter().enumerate().map(|(t, &token)| {
            let mut set = vec![token, (token + 7) % vocabulary, (token + 31) % vocabulary];
            set.sort_unstable();
            set.dedup();
            (t % 3 == 2).then(|| set.into())
        });
        let train = PerToken {
            weights,
            advantages: (0..len).map(|t| if t % 2 == 0 { 1.3 } else { -0.8 }).collect(),
            old_logprobs: vec![-3.0; len],
            allowed: allowed.collect(),
            ..Default::default()
        };
        forest.segments.push(Segment { parent, tokens, train: Some(train) });
    }
    forest
}

fn loss() -> Loss {
    Loss::of(Objective::ImportanceSampling).with_entropy(0.3)
}

/// Norm of the difference relative to the norm of the second.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let differences: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (differences / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

/// bf16 has 8 bits: values of about 5 computed from bf16 operands differ by a few hundredths, rarely by a tenth.
fn assert_near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let differences = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let (worst, square) =
        (differences().fold(0.0, f32::max), differences().map(|d| d * d).sum::<f32>() / a.len().max(1) as f32);
    assert!(worst < 0.12 && square.sqrt() < 0.05, "largest difference {worst}, root mean square {}", square.sqrt());
}
