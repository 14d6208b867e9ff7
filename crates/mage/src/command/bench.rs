//! `mage bench`: throughput, KV-cache use and latency of the local sampler.

use crate::{
    cli::{BenchArgs, BenchCommand, BenchSamplerArgs},
    command::model::hub,
    engine_error,
    output::Output,
    table::table,
    usage,
};
use futures_executor::block_on_stream;
use futures_util::{StreamExt, stream};
use mage_engine::{BoxFuture, Error, Result, Sample, SampleRequest, Sampler, SamplingParams};
use mage_env::Seed;
use mage_native::{EngineOptions, NativeSampler};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One request in this many is streamed, to time its first token.
const STREAMED: usize = 16;

pub(crate) fn run(args: &BenchArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        BenchCommand::Sampler(args) => sampler(args, out),
    }
}

/// Results, as printed with `--json`.
#[derive(Serialize)]
struct SamplerBenchResult {
    device: String,
    requests: usize,
    max_in_flight: usize,
    prompt_tokens: usize,
    prefix_tokens: usize,
    completion_tokens: usize,
    seconds: f64,
    requests_per_second: f64,
    /// Generated tokens.
    tokens_per_second: f64,
    /// Fraction of prompt tokens found in the KV cache.
    cache_hit_rate: f64,
    evicted_blocks: u64,
    preempted: u64,
    steps: u64,
    /// Time to first token, of one request in sixteen.
    first_token_ms: Percentiles,
    /// Time to the whole completion.
    latency_ms: Percentiles,
}

#[derive(Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: f64| {
            let i = (share * times.len() as f64).ceil() as usize;
            times.get(i.clamp(1, times.len().max(1)) - 1).map_or(0.0, |d| d.as_secs_f64() * 1e3)
        };
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }

    fn row(&self, name: &str) -> Vec<String> {
        [self.p50, self.p90, self.p99, self.max]
            .iter()
            .fold(vec![name.to_owned()], |row, ms| [row, vec![format!("{ms:.2}")]].concat())
    }
}

/// A completion with its time to first token, if it was streamed, and its latency.
type TimedSample = (Result<Sample>, Option<Duration>, Duration);

fn timed(sampler: &NativeSampler, request: SampleRequest, streamed: bool) -> BoxFuture<'_, TimedSample> {
    let start = Instant::now();
    if !streamed {
        let completion = sampler.sample(request);
        return Box::pin(async move { (completion.await, None, start.elapsed()) });
    }
    let stream = sampler.stream(request);
    Box::pin(async move {
        match stream {
            Ok(mut stream) => {
                let first = stream.next().await.map(|_| start.elapsed());
                while stream.next().await.is_some() {}
                (stream.finish().await, first, start.elapsed())
            }
            Err(e) => (Err(e), None, start.elapsed()),
        }
    })
}

fn sampler(args: &BenchSamplerArgs, out: &Output) -> anyhow::Result<()> {
    if args.prefix_tokens > args.prompt_tokens {
        return Err(usage(format!(
            "--prefix-tokens {} exceeds --prompt-tokens {}",
            args.prefix_tokens, args.prompt_tokens
        )));
    }
    let model = hub(out).open(&args.model).map_err(usage)?;
    let (vocabulary, context) = (model.config().vocab_size, model.config().max_position_embeddings);
    let tokens = args.prompt_tokens.saturating_add(args.completion_tokens as usize);
    let too_long = |limit: usize, limit_name: &str| {
        usage(format!(
            "--prompt-tokens {} plus --completion-tokens {} exceed {limit_name} of {limit} tokens",
            args.prompt_tokens, args.completion_tokens
        ))
    };
    if tokens > context {
        return Err(too_long(context, "the model's context"));
    }
    let options = EngineOptions {
        threads: args.threads,
        cache_mib: args.cache_mib,
        no_prefix_cache: args.no_prefix_cache,
        batch_invariant: args.batch_invariant,
        ..Default::default()
    };
    if let Some(reason) = model.gpu_unused_reason(args.device) {
        out.warn(reason);
    }
    let sampler = out.engine_spinner(|| model.sampler_on(args.device, options)).map_err(|e| match e {
        Error::Invalid { subject, problem } => usage(format!("--{}: {problem}", subject.replace('_', "-"))),
        other => other.into(),
    })?;
    if tokens > sampler.kv_cache_tokens() {
        return Err(too_long(sampler.kv_cache_tokens(), "the cache (see --cache-mib)"));
    }
    let token = |seed: Seed, i: usize| (seed.at(i as u64).value() % vocabulary as u64) as u32;
    let seed = Seed::new(args.seed);
    let request = |round: &str, i: usize| {
        let own = seed.child(round).at(i as u64);
        let prompt =
            (0..args.prompt_tokens).map(|t| token(if t < args.prefix_tokens { seed } else { own }, t)).collect();
        let params = SamplingParams { max_tokens: args.completion_tokens, seed: own.value(), ..Default::default() };
        SampleRequest { prompt, params, ..Default::default() }
    };
    let run_round = |round: &'static str, count: usize| {
        let (mut tokens, mut firsts, mut all, mut failure) = (0, Vec::new(), Vec::new(), None);
        let bar = out.progress(count as u64, "requests");
        let requests = (0..count).map(|i| timed(&sampler, request(round, i), i % STREAMED == 0));
        let start = Instant::now();
        let results = stream::iter(requests).buffer_unordered(args.max_in_flight);
        for (completion, first, whole) in block_on_stream(results) {
            match completion {
                Ok(s) => tokens += s.tokens.len(),
                Err(e) => failure = Some(e),
            }
            firsts.extend(first);
            all.push(whole);
            if all.len() % 256 == 0 {
                bar.set_position(all.len() as u64);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        bar.finish_and_clear();
        failure.map_or(Ok((seconds, tokens, firsts, all)), Err)
    };
    run_round("warming up", args.requests.min(args.max_in_flight.saturating_mul(2))).map_err(engine_error)?;
    let before = sampler.stats();
    let (seconds, tokens, firsts, all) = run_round("measuring", args.requests).map_err(engine_error)?;
    let after = sampler.stats();
    let prompts = (after.prompt_tokens - before.prompt_tokens).max(1);
    let m = SamplerBenchResult {
        device: sampler.device(),
        requests: args.requests,
        max_in_flight: args.max_in_flight,
        prompt_tokens: args.prompt_tokens,
        prefix_tokens: args.prefix_tokens,
        completion_tokens: args.completion_tokens as usize,
        seconds,
        requests_per_second: args.requests as f64 / seconds,
        tokens_per_second: tokens as f64 / seconds,
        cache_hit_rate: (after.prefix_hit_tokens - before.prefix_hit_tokens) as f64 / prompts as f64,
        evicted_blocks: after.evicted_blocks - before.evicted_blocks,
        preempted: after.preemptions - before.preemptions,
        steps: after.steps - before.steps,
        first_token_ms: Percentiles::of(firsts),
        latency_ms: Percentiles::of(all),
    };
    if out.json {
        return out.object(&m);
    }
    out.line(format!(
        "{} requests, {} concurrent: {} prompt tokens ({} shared prefix), {} completion tokens",
        m.requests, m.max_in_flight, m.prompt_tokens, m.prefix_tokens, m.completion_tokens
    ))?;
    out.line(format!("device       {}", m.device))?;
    out.line(format!("throughput   {:.0} requests/s, {:.0} tokens/s", m.requests_per_second, m.tokens_per_second))?;
    out.line(format!(
        "KV cache     {:.1} % hit rate, {} blocks evicted, {} requests preempted",
        100.0 * m.cache_hit_rate,
        m.evicted_blocks,
        m.preempted
    ))?;
    let rows =
        [m.first_token_ms.row(&format!("time to first token (1 request in {STREAMED})")), m.latency_ms.row("latency")];
    out.line(table(&["milliseconds", "p50", "p90", "p99", "max"], rows))
}
