//! Runs one training pass on a card and writes everything a reference can be compared with.
//!
//! `card_case DIR`: the folder holds a model and `rows.json` (lists of tokens); log-probabilities of every token but the first
//! go to `out.json`, the gradient of their mean to `gradients.safetensors`. `conformance/cuda` compares them with torch.

use mage_engine::{Loss, Objective, PerToken, TokenForest, Trainer};
use mage_native::{NativeModel, Options};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: card_case DIR")?;
    let dir = Path::new(&dir);
    let rows: Vec<Vec<u32>> = serde_json::from_str(&std::fs::read_to_string(dir.join("rows.json"))?)?;
    let count: usize = rows.iter().map(|r| r.len() - 1).sum();
    let batch = TokenForest::of_rows(rows.into_iter().map(|tokens| {
        let mut weights = vec![1.0 / count as f32; tokens.len()];
        weights[0] = 0.0;
        (tokens, PerToken { weights, ..Default::default() })
    }));
    let (mut trainer, _) = NativeModel::open(dir)?.train_on_card(0, Options::default())?;
    let report = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy))?;
    let said = serde_json::json!({ "loss": report.loss, "logprobs": report.logprobs });
    std::fs::write(dir.join("out.json"), said.to_string())?;
    let gradients: Vec<(String, Vec<u8>)> = trainer
        .gradients()?
        .into_iter()
        .map(|(name, numbers)| (name, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = gradients
        .iter()
        .map(|(n, b)| Ok((n, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![b.len() / 4], b)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, &dir.join("gradients.safetensors"))?;
    Ok(())
}
