//! `mage bench`: how fast is it here?

use crate::{
    cli::{Bench, BenchCommand, BenchSampler},
    command::model::hub,
    output::Output,
    refused,
    table::table,
    usage,
};
use mage_engine::{BoxFuture, Error, Result, Sample, SampleRequest, Sampler, SamplingParams, for_each_in_flight};
use mage_env::Seed;
use mage_native::{NativeSampler, Options};
use serde::Serialize;
use std::time::{Duration, Instant};

/// One request in so many is watched token by token.
const WATCHED: usize = 16;

pub(crate) fn run(args: &Bench, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        BenchCommand::Sampler(args) => sampler(args, out),
    }
}

/// What was measured, for programs.
#[derive(Serialize)]
struct Measured {
    device: String,
    requests: usize,
    in_flight: usize,
    prompt_tokens: usize,
    common_tokens: usize,
    answer_tokens: usize,
    seconds: f64,
    requests_per_second: f64,
    /// Written tokens.
    tokens_per_second: f64,
    /// The share of prompt tokens that had been computed before.
    cache_hit_share: f64,
    evicted_pages: u64,
    set_back: u64,
    steps: u64,
    /// From asking to the first token, of one request in sixteen.
    first_token_ms: Percentiles,
    /// From asking to the whole answer.
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

/// A request's answer and the times from its asking to its first token, where it was watched, and to its end.
type Timed = (Result<Sample>, Option<Duration>, Duration);

fn timed(sampler: &NativeSampler, request: SampleRequest, watched: bool) -> BoxFuture<'_, Timed> {
    let start = Instant::now();
    if !watched {
        let answer = sampler.sample(request);
        return Box::pin(async move { (answer.await, None, start.elapsed()) });
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

fn sampler(args: &BenchSampler, out: &Output) -> anyhow::Result<()> {
    if args.common > args.prompt {
        return Err(usage(format!("--common {} is more than the --prompt {} it is part of", args.common, args.prompt)));
    }
    let model = hub(out).open(&args.model).map_err(usage)?;
    let (vocabulary, context) = (model.config().vocab_size, model.config().max_position_embeddings);
    let tokens = args.prompt.saturating_add(args.answer as usize);
    let too_long = |room: usize, what: &str| {
        usage(format!("--prompt {} and --answer {} are more than {what} of {room} tokens", args.prompt, args.answer))
    };
    if tokens > context {
        return Err(too_long(context, "the model's context"));
    }
    let options = Options {
        threads: args.threads,
        cache_mib: args.cache_mib,
        no_prefix_cache: args.no_sharing,
        batch_invariant: args.batch_invariant,
        ..Default::default()
    };
    if let Some(why) = model.gpu_unused_reason(args.device) {
        out.warn(why);
    }
    let sampler = out.starting(|| model.sampler_on(args.device, options)).map_err(|e| match e {
        Error::Invalid { place, problem } => usage(format!("--{}: {problem}", place.replace('_', "-"))),
        other => other.into(),
    })?;
    if tokens > sampler.kv_cache_tokens() {
        return Err(too_long(sampler.kv_cache_tokens(), "the cache (see --cache-mib)"));
    }
    let token = |seed: Seed, i: usize| (seed.at(i as u64).value() % vocabulary as u64) as u32;
    let seed = Seed::new(args.seed);
    let request = |round: &str, i: usize| {
        let own = seed.child(round).at(i as u64);
        let prompt = (0..args.prompt).map(|t| token(if t < args.common { seed } else { own }, t)).collect();
        let params = SamplingParams { max_tokens: args.answer, seed: own.value(), ..Default::default() };
        SampleRequest { prompt, params, ..Default::default() }
    };
    let go = |round: &'static str, count: usize| {
        let (mut tokens, mut firsts, mut all, mut failure) = (0, Vec::new(), Vec::new(), None);
        let bar = out.progress(count as u64, "requests");
        let requests = (0..count).map(|i| timed(&sampler, request(round, i), i % WATCHED == 0));
        let start = Instant::now();
        for_each_in_flight(requests, args.in_flight, |_, (answer, first, whole)| {
            match answer {
                Ok(s) => tokens += s.tokens.len(),
                Err(e) => failure = Some(e),
            }
            firsts.extend(first);
            all.push(whole);
            if all.len() % 256 == 0 {
                bar.set_position(all.len() as u64);
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        bar.finish_and_clear();
        failure.map_or(Ok((seconds, tokens, firsts, all)), Err)
    };
    go("warming up", args.requests.min(args.in_flight.saturating_mul(2))).map_err(refused)?;
    let before = sampler.stats();
    let (seconds, tokens, firsts, all) = go("measuring", args.requests).map_err(refused)?;
    let after = sampler.stats();
    let prompts = (after.prompt_tokens - before.prompt_tokens).max(1);
    let m = Measured {
        device: sampler.device(),
        requests: args.requests,
        in_flight: args.in_flight,
        prompt_tokens: args.prompt,
        common_tokens: args.common,
        answer_tokens: args.answer as usize,
        seconds,
        requests_per_second: args.requests as f64 / seconds,
        tokens_per_second: tokens as f64 / seconds,
        cache_hit_share: (after.prefix_hit_tokens - before.prefix_hit_tokens) as f64 / prompts as f64,
        evicted_pages: after.evicted_blocks - before.evicted_blocks,
        set_back: after.preemptions - before.preemptions,
        steps: after.steps - before.steps,
        first_token_ms: Percentiles::of(firsts),
        latency_ms: Percentiles::of(all),
    };
    if out.json {
        return out.object(&m);
    }
    out.line(format!(
        "{} requests, {} in flight: prompts of {} tokens ({} in common), answers of {}",
        m.requests, m.in_flight, m.prompt_tokens, m.common_tokens, m.answer_tokens
    ))?;
    out.line(format!("device       {}", m.device))?;
    out.line(format!("throughput   {:.0} requests/s, {:.0} tokens/s", m.requests_per_second, m.tokens_per_second))?;
    out.line(format!(
        "cache        {:.1} % of prompt tokens shared, {} pages given up, {} requests set back",
        100.0 * m.cache_hit_share,
        m.evicted_pages,
        m.set_back
    ))?;
    let rows = [
        m.first_token_ms.row(&format!("to the first token, 1 request in {WATCHED}")),
        m.latency_ms.row("to the whole answer"),
    ];
    out.line(table(&["milliseconds", "median", "90 %", "99 %", "longest"], rows))
}
