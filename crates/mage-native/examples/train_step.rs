//! Training-step benchmark on random sequences.
//!
//! `train_step key=value…`, with the keys of `benches/peers/native_torch.py`, prints one line of JSON.

mod benchmark_arguments;

use benchmark_arguments::Arguments;
use mage_engine::{Loss, Objective, OptimStep, PerToken, TokenForest, Trainer};
use mage_native::{DEFAULT_INIT_STD, EngineOptions, NativeModel};
use mage_rng::Seed;
use rand::RngExt;
use std::error::Error;
use std::time::Instant;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse()?;
    let (get, config) = (|key, default| arguments.get(key, default), arguments.config());
    let (rows, low, high) = (get("rows", 16), get("low", 256), get("high", 256));
    let mut rng = Seed::new(1).rng();
    let mut tokens = 0;
    let batch: Vec<(Vec<u32>, PerToken)> = (0..rows)
        .map(|_| {
            let len = rng.random_range(low..=high);
            tokens += len;
            let row: Vec<u32> = (0..len).map(|_| rng.random_range(0..config.vocab_size as u32)).collect();
            let mut weights = vec![1.0; len];
            weights[0] = 0.0;
            (row, PerToken { weights, ..Default::default() })
        })
        .collect();
    let mut batch = TokenForest::from_sequences(batch);
    let scale = 1.0 / (tokens - rows) as f32;
    for s in &mut batch.segments {
        if let Some(t) = &mut s.train {
            t.weights.iter_mut().for_each(|w| *w *= scale);
        }
    }
    let options = EngineOptions {
        threads: get("threads", 2),
        chunk_tokens: get("chunk", 0),
        recompute: get("recompute", 0) == 1,
        ..Default::default()
    };
    let model = NativeModel::new(config, DEFAULT_INIT_STD, Seed::new(1), None)?;
    let parameters = model.parameters();
    let (mut trainer, _) = model.train(options)?;
    let loss = Loss::of(Objective::CrossEntropy);
    let step = OptimStep { weight_decay: 0.01, max_grad_norm: 0.0, ..Default::default() };
    let mut times = Vec::new();
    let mut last = 0.0;
    for _ in 0..get("steps", 10) {
        let start = Instant::now();
        last = trainer.forward_backward(&batch, &loss)?.loss;
        trainer.optim_step(&step)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let mut settled = times[times.len() / 3..].to_vec();
    settled.sort_by(f64::total_cmp);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    println!(
        "{}",
        serde_json::json!({
            "median_ms": settled[settled.len() / 2], "best_ms": settled[0], "tokens": tokens, "parameters": parameters,
            "loss": last, "peak_mib": peak.map(|k| k / 1024.0),
        })
    );
    Ok(())
}
