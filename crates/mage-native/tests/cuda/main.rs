//! Does a card give what the CPU gives?
//!
//! The CPU computes in fp32, a card in bf16 with fp32 sums, so numbers agree to bf16's rounding (8 bits) and no further.
//! Without a card every test here says loudly that it skips. With one: `cargo test --release -p mage-native --test cuda`.

mod actions;
mod adapters;
mod answers;
mod training;

use mage_engine::{
    ActionSet, AdapterName, Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, ScoreRequest,
    Scores, Segment, TokenForest, Trainer, block_on,
};
use mage_native::{
    Config, CpuTrainer, CudaTrainer, Device, EngineOptions, LoraConfig, NativeAdapter, NativeModel, NativeSampler,
    Projection, WeightDtype,
};
use mage_rng::Seed;
use rand::RngExt;
use std::io::Write;

/// Whether there is a card; says so where there is none. One that is there and does not work is no reason to skip.
fn card() -> bool {
    let there = mage_cuda::CudaDevice::count().unwrap() > 0;
    if !there {
        // Past the test runner, which would keep it to itself.
        let _ = writeln!(std::io::stderr(), "\n*** SKIPPED: no CUDA card here, so nothing was compared with one ***");
    }
    there
}

/// Shapes with every head size, odd vocabularies, one or many queries per key.
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

/// Rows of several lengths, shorter and longer than a tile, some sharing beginnings, some with masks.
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

/// How far apart two lists of numbers are, relative to the second.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (apart / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

/// bf16 has 8 bits: numbers of size 5 that went through some of them are a few hundredths apart, rarely a tenth.
fn near(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let apart = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let (worst, square) = (apart().fold(0.0, f32::max), apart().map(|d| d * d).sum::<f32>() / a.len().max(1) as f32);
    assert!(worst < 0.12 && square.sqrt() < 0.05, "{worst} apart, {} on average", square.sqrt());
}
