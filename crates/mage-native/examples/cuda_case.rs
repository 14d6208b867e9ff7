//! Runs training passes and scoring on a GPU and writes the results for comparison with PyTorch.
//!
//! `cuda_case DIR`: the folder holds a model and `case.json` with `batches` (lists of token sequences) and `prefixes`
//! (sequences whose next token is scored). For batch I, the log-probabilities of every token but the first of each
//! sequence are written to `out.json`, and the gradient of their mean to `gradients-I.safetensors`. For each prefix,
//! `out.json` has the log-probability of every token, that is the logits up to a constant, from the trainer and from
//! the sampler. `conformance/cuda` compares them with torch.

use futures_executor::block_on;
use mage_engine::{Loss, Objective, PerToken, Sampler, ScoreRequest, Segment, TokenForest, Trainer};
use mage_native::{CudaTrainer, EngineOptions, NativeModel, NativeSampler};
use serde::Deserialize;
use std::error::Error;
use std::path::Path;

#[derive(Deserialize)]
struct Case {
    batches: Vec<Vec<Vec<u32>>>,
    prefixes: Vec<Vec<u32>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: cuda_case DIR")?;
    let dir = Path::new(&dir);
    let case: Case = serde_json::from_str(&std::fs::read_to_string(dir.join("case.json"))?)?;
    let open = || NativeModel::open(dir);
    let mut logprobs = Vec::new();
    for (i, sequences) in case.batches.into_iter().enumerate() {
        let (mut trainer, _) = open()?.train_on_gpu(0, EngineOptions::default())?;
        let count: usize = sequences.iter().map(|r| r.len() - 1).sum();
        let batch = TokenForest::from_sequences(sequences.into_iter().map(|tokens| {
            let mut weights = vec![1.0 / count as f32; tokens.len()];
            weights[0] = 0.0;
            (tokens, PerToken { weights, ..Default::default() })
        }));
        logprobs.push(trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.logprobs);
        write_gradients(&trainer, &dir.join(format!("gradients-{i}.safetensors")))?;
    }
    let vocabulary = open()?.config().vocab_size as u32;
    let (mut trainer, sampler) = open()?.train_on_gpu(0, EngineOptions::default())?;
    let mut by_trainer = Vec::new();
    let mut by_sampler = Vec::new();
    for prefix in &case.prefixes {
        by_trainer.push(trainer_logprobs(&mut trainer, prefix, vocabulary)?);
        by_sampler.push(sampler_logprobs(&sampler, prefix, vocabulary)?);
    }
    let output = serde_json::json!({ "logprobs": logprobs, "by_trainer": by_trainer, "by_sampler": by_sampler });
    std::fs::write(dir.join("out.json"), output.to_string())?;
    Ok(())
}

/// Log-probabilities of the next token from a training pass: the prefix is one segment, and each token is a segment
/// that continues it.
fn trainer_logprobs(trainer: &mut CudaTrainer, prefix: &[u32], vocabulary: u32) -> mage_engine::Result<Vec<f32>> {
    let mut batch = TokenForest::default();
    batch.segments.push(Segment { tokens: prefix.to_vec(), ..Default::default() });
    batch.segments.extend((0..vocabulary).map(|token| Segment {
        parent: Some(0),
        tokens: vec![token],
        train: Some(PerToken { weights: vec![1.0], ..Default::default() }),
    }));
    Ok(trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?.logprobs)
}

/// Log-probabilities of the next token from the sampler, which caches the prefix in its KV cache.
fn sampler_logprobs(sampler: &NativeSampler, prefix: &[u32], vocabulary: u32) -> mage_engine::Result<Vec<f32>> {
    let request = |token| ScoreRequest {
        tokens: prefix.iter().copied().chain([token]).collect(),
        from: prefix.len(),
        ..Default::default()
    };
    let scores: Vec<_> = (0..vocabulary).map(|token| sampler.score(request(token))).collect();
    scores.into_iter().map(|scores| Ok(block_on(scores)?.logprobs[0])).collect()
}

fn write_gradients(trainer: &CudaTrainer, path: &Path) -> Result<(), Box<dyn Error>> {
    let gradients: Vec<(String, Vec<u8>)> = trainer
        .gradients()?
        .into_iter()
        .map(|(name, values)| (name, values.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = gradients
        .iter()
        .map(|(n, b)| Ok((n, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![b.len() / 4], b)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    Ok(safetensors::serialize_to_file(views, None, path)?)
}
