//! Sampler throughput benchmark on a model with random weights.
//!
//! `sampler_speed key=value…`, with the keys of `benches/peers/sampler_torch.py`, prints one line of JSON. `batch` requests
//! of `requests` in total are in flight, with prompts of `prompt_tokens` tokens, of which the first `prefix_tokens` are shared, and
//! responses of `completion_tokens` tokens. With `adapters`, requests use that many adapters in rotation, of rank `rank` on all
//! projections.

mod benchmark_arguments;

use benchmark_arguments::Arguments;
use futures_executor::block_on_stream;
use futures_util::{StreamExt, stream};
use mage_engine::{SampleRequest, Sampler, SamplingParams, WeightsName};
use mage_native::{DEFAULT_INIT_STD, EngineOptions, LoraConfig, NativeAdapter, NativeModel};
use mage_rng::Seed;
use rand::RngExt;
use std::error::Error;
use std::time::Instant;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse()?;
    let (get, config) = (|key, default| arguments.get(key, default), arguments.config());
    let words = config.vocab_size as u32;
    let options = EngineOptions {
        threads: get("threads", 2),
        cache_mib: get("cache_mib", 0),
        no_prefix_cache: get("sharing", 1) == 0,
        ..Default::default()
    };
    let sampler = NativeModel::new(config.clone(), DEFAULT_INIT_STD, Seed::new(1), None)?.sampler(options)?;
    let rank = get("rank", 16);
    let lora = LoraConfig { rank, alpha: 2.0 * rank as f32, ..Default::default() };
    let mut names = Vec::new();
    for i in 0..get("adapters", 0) {
        names.push(WeightsName::new(&format!("adapter {i}")));
        sampler.publish(&names[i], &NativeAdapter::new(&config, &lora, Seed::new(i as u64))?)?;
    }
    if names.is_empty() {
        names.push(WeightsName::default());
    }
    let (prompt, prefix_tokens, completion_tokens) =
        (get("prompt_tokens", 128), get("prefix_tokens", 0), get("completion_tokens", 128));
    let (batch, requests) = (get("batch", 16), get("requests", 64));
    let shared_prefix: Vec<u32> = (0..prefix_tokens as u32).map(|i| i * 7 % words).collect();
    let run = |requests: usize, seed: u64| {
        let mut rng = Seed::new(seed).rng();
        let futures = (0..requests).map(|i| {
            let own = (prefix_tokens..prompt).map(|_| rng.random_range(0..words));
            let params = SamplingParams { max_tokens: completion_tokens as u32, seed: i as u64, ..Default::default() };
            let prompt = shared_prefix.iter().copied().chain(own).collect();
            let weights = names[i % names.len()].clone();
            sampler.sample(SampleRequest { weights, prompt, params, ..Default::default() })
        });
        let (mut tokens, mut failure) = (0, None);
        let start = Instant::now();
        for result in block_on_stream(stream::iter(futures).buffer_unordered(batch.max(1))) {
            match result {
                Ok(s) => tokens += s.tokens.len(),
                Err(e) => failure = Some(e),
            }
        }
        failure.map_or(Ok((start.elapsed().as_secs_f64(), tokens)), Err)
    };
    run(requests.min(4 * batch), 1)?; // warm-up
    let before = sampler.stats();
    let (seconds, tokens) = run(requests, 2)?;
    let after = sampler.stats();
    let steps = after.steps - before.steps;
    println!(
        "{}",
        serde_json::json!({
            "seconds": seconds, "requests_per_second": requests as f64 / seconds,
            "tokens_per_second": tokens as f64 / seconds, "steps": steps, "ms_per_step": 1e3 * seconds / steps as f64,
            "computed_tokens": after.computed_tokens - before.computed_tokens,
            "prefix_hit_tokens": after.prefix_hit_tokens - before.prefix_hit_tokens,
            "evicted_blocks": after.evicted_blocks - before.evicted_blocks,
            "preemptions": after.preemptions - before.preemptions,
        })
    );
    Ok(())
}
