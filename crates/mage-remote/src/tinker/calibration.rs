//! What does the server divide by?
//!
//! It is measured on a model made for the purpose and let go of afterwards: the norm of the gradient of one row, of the same
//! row with twice the weight, and of the same row twice. Then a batch is scaled as training will scale it, and must give
//! the norm it should. A server that surprises is refused before it has trained anything.

use super::{
    batch::Batch,
    client::{Done, Lost, Model, TinkerClient},
    codec::{Datum, ForwardBackwardRequest},
};
use mage_engine::{Error, Loss, Objective, OptimStep, PerToken, Reduction, Result, TokenForest};
use serde::Serialize;

/// How far measured norms may be from what they should be; half precision is coarse.
const TOLERANCE: f64 = 0.02;
/// Tokens of the measured row, and how many of them count.
const ROW: usize = 16;
const COUNTED: usize = 4;

/// What was measured of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// How it makes one number of token costs.
    pub reduction: Reduction,
    /// The norm with twice the weight, over that with the weight.
    pub doubled_weight: f64,
    /// The norm of a row twice, over that of the row.
    pub doubled_rows: f64,
    /// The norm of a batch as training scales it, over what it should be.
    pub scaled: f64,
}

/// One row, or several of the same, each token that counts with `weight`.
fn forest(rows: usize, weight: f32, vocabulary: usize, own: Option<&[f32]>) -> TokenForest {
    let tokens: Vec<u32> = (0..ROW).map(|i| ((i * 5 + 1) % vocabulary) as u32).collect();
    let mut weights = vec![0.0; ROW];
    weights[ROW - COUNTED..].fill(weight);
    let mut old_logprobs = vec![0.0; ROW];
    if let Some(own) = own {
        old_logprobs.copy_from_slice(own);
    }
    let train = PerToken { weights, advantages: vec![1.0; ROW], old_logprobs, ..Default::default() };
    TokenForest::from_sequences((0..rows).map(|_| (tokens.clone(), train.clone())))
}

/// Measures a server, and refuses it where it is not what the backend is known to be.
pub(super) async fn calibrate(
    client: &TinkerClient,
    base_model: &str,
    rank: usize,
    expected: Reduction,
    vocabulary: usize,
) -> Result<Calibration> {
    let mut attempts = 0;
    loop {
        let model = client.create_model(base_model, rank, 1).await?;
        let measured = measure(client, &model, vocabulary).await;
        client.unload(model).await;
        attempts += 1;
        match measured {
            Ok(calibration) => {
                check(client, &calibration, expected)?;
                return Ok(calibration);
            }
            Err(Lost::Error(e)) => return Err(e),
            // It was started anew in between.
            Err(Lost::Model(_)) if attempts < 5 => {}
            Err(Lost::Model(problem)) => return Err(client.wire.error(format!("calibration: {problem}"))),
        }
    }
}

async fn measure(client: &TinkerClient, model: &Model, vocabulary: usize) -> Done<Calibration> {
    let ce = Loss::of(Objective::CrossEntropy);
    let batch = |rows, weight, own: Option<&[f32]>, loss: &Loss| {
        Batch::new(&forest(rows, weight, vocabulary, own), loss, vocabulary, ROW)
    };
    // As a sum asks for it: weights as they are.
    let plain =
        |rows, weight| -> Result<Vec<Datum>> { batch(rows, weight, None, &ce)?.trained(Reduction::TokenSum, None) };
    // The first may hold what somebody left in its place; see `place`.
    norm(client, model, "cross_entropy", plain(1, 1.0)?).await?;
    let one = norm(client, model, "cross_entropy", plain(1, 1.0)?).await?;
    let twice = norm(client, model, "cross_entropy", plain(1, 2.0)?).await?;
    let two = norm(client, model, "cross_entropy", plain(2, 1.0)?).await?;
    let (doubled_weight, doubled_rows) = (twice / one, two / one);
    let near = |x: f64, y: f64| (x / y - 1.0).abs() < TOLERANCE;
    let reduction = match (doubled_weight, doubled_rows) {
        (w, r) if near(w, 1.0) && near(r, 1.0) => Reduction::SequenceMean,
        (w, r) if near(w, 2.0) && near(r, 2.0) => Reduction::TokenSum,
        (w, r) => {
            let text = format!(
                "its loss is neither a sum nor a mean over rows: twice the weight gives {w:.3} times the gradient, twice \
                 the rows {r:.3} times; training over it would mean something else than the recipe says"
            );
            return Err(client.wire.error(text).into());
        }
    };
    // A mean over the counted tokens, of two rows, by importance sampling against its own log-probabilities.
    let own = {
        let batch = batch(1, 1.0, None, &ce)?;
        let mut own = client.score(model, &batch, "calibration").await?;
        if let Some(problem) = batch.unsound(&own) {
            return Err(client.wire.error(format!("calibration: {problem}")).into());
        }
        own.remove(0)
    };
    let is = Loss::of(Objective::ImportanceSampling);
    let scaled = batch(2, 1.0 / (2 * COUNTED) as f32, Some(&own), &is)?.trained(reduction, None)?;
    let scaled = norm(client, model, "importance_sampling", scaled).await?;
    let expected = if reduction == Reduction::SequenceMean { one } else { one / COUNTED as f64 };
    Ok(Calibration { reduction, doubled_weight, doubled_rows, scaled: scaled / expected })
}

/// The norm of a gradient; the step that tells it changes nothing.
async fn norm(client: &TinkerClient, model: &Model, loss_fn: &str, data: Vec<Datum>) -> Done<f64> {
    let request = ForwardBackwardRequest {
        model_id: model.id.clone(),
        seq_id: model.next() as i32,
        data,
        loss_fn: loss_fn.to_owned(),
        ..Default::default()
    };
    client.forward_backward(model, &request).await?;
    let still = OptimStep { learning_rate: 0.0, max_grad_norm: 0.0, ..OptimStep::default() };
    match client.optim_step(model, model.next(), &still).await? {
        Some(norm) if norm.is_finite() && norm > 0.0 => Ok(norm),
        Some(norm) => Err(client.wire.error(format!("calibration: a gradient's norm is {norm}")).into()),
        None => Err(client.wire.error("calibration: it does not tell the gradient's norm").into()),
    }
}

fn check(client: &TinkerClient, found: &Calibration, expected: Reduction) -> Result<()> {
    let words = |r: Reduction| if r == Reduction::TokenSum { "sums over tokens" } else { "takes means over rows" };
    if found.reduction != expected {
        return Err(Error::Engine {
            engine: client.wire.address().to_owned(),
            reason: format!(
                "it {}, and the backend that the recipe names {}: set tinker.backend to what the server runs",
                words(found.reduction),
                words(expected)
            ),
        });
    }
    if (found.scaled - 1.0).abs() > TOLERANCE {
        return Err(Error::Engine {
            engine: client.wire.address().to_owned(),
            reason: format!("a batch scaled as in training gives {:.3} times the gradient it should", found.scaled),
        });
    }
    Ok(())
}
