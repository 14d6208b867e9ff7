//! Measurement of a server's loss reduction.
//!
//! It runs on a temporary model and compares gradient norms: one sequence, the same sequence with doubled weight, and
//! the sequence twice. Then a batch scaled as in training must give the expected norm. A server with unexpected results
//! is rejected before training.

use super::{
    batch::TinkerBatch,
    client::{RemoteModel, TinkerClient, TinkerError, TinkerResult},
    codec::{Datum, ForwardBackwardRequest},
};
use mage_engine::{Hint, Loss, Objective, OptimStep, PerToken, Reduction, Result, TokenForest};
use serde::Serialize;

/// Relative tolerance of norms; bf16 is coarse.
const TOLERANCE: f64 = 0.02;
/// Tokens of the measured sequence, and how many of them have a weight.
const NUM_TOKENS: usize = 16;
const NUM_WEIGHTED: usize = 4;

/// Result of a calibration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Measured reduction of token losses.
    pub reduction: Reduction,
    /// Gradient norm with doubled weight, relative to the original.
    pub doubled_weight: f64,
    /// Gradient norm of the sequence twice, relative to once.
    pub doubled_sequences: f64,
    /// Gradient norm of a batch scaled as in training, relative to the expected norm.
    pub scaled: f64,
}

/// Copies of one sequence; each token that counts has `weight`.
fn batch_of_copies(count: usize, weight: f32, vocab_size: usize, own: Option<&[f32]>) -> TokenForest {
    let tokens: Vec<u32> = (0..NUM_TOKENS).map(|i| ((i * 5 + 1) % vocab_size) as u32).collect();
    let mut weights = vec![0.0; NUM_TOKENS];
    weights[NUM_TOKENS - NUM_WEIGHTED..].fill(weight);
    let mut old_logprobs = vec![0.0; NUM_TOKENS];
    if let Some(own) = own {
        old_logprobs.copy_from_slice(own);
    }
    let train = PerToken { weights, advantages: vec![1.0; NUM_TOKENS], old_logprobs, ..Default::default() };
    TokenForest::from_sequences((0..count).map(|_| (tokens.clone(), train.clone())))
}

/// Measures a server, and fails if the result differs from the backend's known reduction.
pub(super) async fn calibrate(
    client: &TinkerClient,
    base_model: &str,
    rank: usize,
    expected: Reduction,
    vocab_size: usize,
) -> Result<Calibration> {
    let mut attempts = 0;
    loop {
        let model = client.create_model(base_model, rank, 1).await?;
        let measured = measure(client, &model, vocab_size).await;
        client.unload_model(model).await;
        attempts += 1;
        match measured {
            Ok(calibration) => {
                check(client, &calibration, expected)?;
                return Ok(calibration);
            }
            Err(TinkerError::Other(e)) => return Err(e),
            // The server restarted in between.
            Err(TinkerError::ModelLost(_)) if attempts < 5 => {}
            Err(TinkerError::ModelLost(problem)) => return Err(client.http.error(format!("calibration: {problem}"))),
        }
    }
}

async fn measure(client: &TinkerClient, model: &RemoteModel, vocab_size: usize) -> TinkerResult<Calibration> {
    let ce = Loss::of(Objective::CrossEntropy);
    let batch = |count, weight, own: Option<&[f32]>, loss: &Loss| {
        TinkerBatch::new(&batch_of_copies(count, weight, vocab_size, own), loss, vocab_size, NUM_TOKENS)
    };
    // Weights unchanged, as for a sum.
    let unscaled = |count, weight| -> Result<Vec<Datum>> {
        batch(count, weight, None, &ce)?.training_data(Reduction::TokenSum, None)
    };
    // The first gradient may include a stale one in the slot; see `stale_gradient`.
    norm(client, model, "cross_entropy", unscaled(1, 1.0)?).await?;
    let one = norm(client, model, "cross_entropy", unscaled(1, 1.0)?).await?;
    let twice = norm(client, model, "cross_entropy", unscaled(1, 2.0)?).await?;
    let two = norm(client, model, "cross_entropy", unscaled(2, 1.0)?).await?;
    let (doubled_weight, doubled_sequences) = (twice / one, two / one);
    let near = |x: f64, y: f64| (x / y - 1.0).abs() < TOLERANCE;
    let reduction = match (doubled_weight, doubled_sequences) {
        (w, r) if near(w, 1.0) && near(r, 1.0) => Reduction::SequenceMean,
        (w, r) if near(w, 2.0) && near(r, 2.0) => Reduction::TokenSum,
        (w, r) => {
            let text = format!(
                "the server's loss is neither a sum nor a mean over sequences: doubling the weight scales the gradient by \
                 {w:.3}, doubling the sequences by {r:.3}; training would not follow the configured loss"
            );
            return Err(client.http.error(text).into());
        }
    };
    // The mean over the weighted tokens of two sequences, by importance sampling against the server's own log-probs.
    let own = {
        let batch = batch(1, 1.0, None, &ce)?;
        let mut own = client.score(model, &batch, "calibration").await?;
        if let Some(problem) = batch.find_invalid_logprob(&own) {
            return Err(client.http.error(format!("calibration: {problem}")).into());
        }
        own.remove(0)
    };
    let is = Loss::of(Objective::ImportanceSampling);
    let scaled = batch(2, 1.0 / (2 * NUM_WEIGHTED) as f32, Some(&own), &is)?.training_data(reduction, None)?;
    let scaled = norm(client, model, "importance_sampling", scaled).await?;
    let expected = if reduction == Reduction::SequenceMean { one } else { one / NUM_WEIGHTED as f64 };
    Ok(Calibration { reduction, doubled_weight, doubled_sequences, scaled: scaled / expected })
}

/// Gradient norm, as reported by a step with learning rate 0.
async fn norm(client: &TinkerClient, model: &RemoteModel, loss_fn: &str, data: Vec<Datum>) -> TinkerResult<f64> {
    let request = ForwardBackwardRequest {
        model_id: model.id.clone(),
        seq_id: model.next_seq() as i32,
        data,
        loss_fn: loss_fn.to_owned(),
        ..Default::default()
    };
    client.forward_backward(model, &request).await?;
    let no_op = OptimStep { learning_rate: 0.0, max_grad_norm: 0.0, ..OptimStep::default() };
    match client.optim_step(model, model.next_seq(), &no_op).await? {
        Some(norm) if norm.is_finite() && norm > 0.0 => Ok(norm),
        Some(norm) => Err(client.http.error(format!("calibration: the gradient norm is {norm}")).into()),
        None => Err(client.http.error("calibration: the server does not report the gradient norm").into()),
    }
}

fn check(client: &TinkerClient, found: &Calibration, expected: Reduction) -> Result<()> {
    let describe = |r: Reduction| if r == Reduction::TokenSum { "sums over tokens" } else { "averages over sequences" };
    if found.reduction != expected {
        let (found, expected) = (describe(found.reduction), describe(expected));
        let problem = format!("the server {found}, but the configured backend {expected}");
        return Err(client.http.error(problem).with_hints(&[Hint::SetBackend]));
    }
    if (found.scaled - 1.0).abs() > TOLERANCE {
        let problem = format!("a batch scaled as in training gives {:.3} times the expected gradient", found.scaled);
        return Err(client.http.error(problem));
    }
    Ok(())
}
