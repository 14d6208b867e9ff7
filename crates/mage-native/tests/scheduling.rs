//! Random schedules: every request gets the bits of unbatched decoding, whatever runs concurrently.

use futures_executor::block_on;
use mage_engine::{
    ActionSet, Allowed, BoxFuture, FinishReason, Loss, Objective, OptimStep, PerToken, Result, Sample, SampleRequest,
    Sampler, SamplingParams, ScoreRequest, Scores, TokenForest, Trainer, WeightsName,
};
use mage_native::{
    Config, CpuTrainer, EngineOptions, LoraConfig, NativeAdapter, NativeModel, NativeSampler, Projection, SamplerStats,
    TokenStream, WeightDtype, WordControlTokens, word_tokenizer,
};
use mage_rng::{Rng, Seed};
use rand::RngExt;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// Four control tokens and w0 to w18.
const VOCABULARY: usize = 23;

/// A random small model. With the wide shapes, a KV cache of one MiB holds little more than one sequence.
fn config(rng: &mut Rng) -> Config {
    let wide = rng.random_range(0..2) == 0;
    let kv = if wide { 4 } else { rng.random_range(1..3) };
    Config {
        vocab_size: VOCABULARY,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: if wide { 3 } else { rng.random_range(1..4) },
        num_attention_heads: kv * rng.random_range(1..if wide { 2 } else { 4_usize }),
        num_key_value_heads: kv,
        head_dim: if wide { 32 } else { [4, 8, 10][rng.random_range(0..3_usize)] },
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: rng.random(),
        max_position_embeddings: 160,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn train_step(trainer: &mut CpuTrainer, rng: &mut Rng) {
    let tokens: Vec<u32> = (0..10).map(|_| rng.random_range(0..VOCABULARY as u32)).collect();
    let row = (tokens, PerToken { weights: [0.0].into_iter().chain([1.0; 9]).collect(), ..Default::default() });
    trainer.forward_backward(&TokenForest::from_sequences([row]), &Loss::of(Objective::CrossEntropy)).unwrap();
    trainer.optim_step(&OptimStep { learning_rate: 0.05, ..Default::default() }).unwrap();
}

/// The current version by name, with which a request made now must be served.
type CurrentVersions = HashMap<WeightsName, u64>;

/// Publishes the trainer's weights under a name, and under a pinned name of this version.
fn publish(trainer: &mut CpuTrainer, name: &WeightsName, current: &mut CurrentVersions) {
    let version = trainer.publish(name).unwrap();
    trainer.publish(&pinned(name, version.0)).unwrap();
    current.insert(name.clone(), version.0);
}

/// Publishes an adapter that another trainer trained, like [`publish`].
fn publish_adapter(
    sampler: &NativeSampler,
    name: &WeightsName,
    adapter: &NativeAdapter,
    current: &mut CurrentVersions,
) {
    let version = sampler.publish(name, adapter).unwrap();
    sampler.publish(&pinned(name, version.0), adapter).unwrap();
    current.insert(name.clone(), version.0);
}

/// The name under which a version stays available.
fn pinned(name: &WeightsName, version: u64) -> WeightsName {
    if name.as_str() == WeightsName::BASE {
        return name.clone(); // never published again
    }
    WeightsName::new(&format!("{name} as of {version}"))
}

fn lora(rng: &mut Rng) -> LoraConfig {
    let mut targets: Vec<Projection> = Projection::ALL.into_iter().filter(|_| rng.random()).collect();
    targets.push(Projection::DownProj);
    targets.dedup();
    let rank = rng.random_range(1..9_usize);
    LoraConfig { rank, alpha: 2.0 * rank as f32, targets }
}

/// A trained adapter of another shape, loaded from a directory.
fn foreign_adapter(config: &Config, rng: &mut Rng) -> NativeAdapter {
    let model = NativeModel::new(config.clone(), 0.3, Seed::new(rng.random()), None).unwrap();
    let model = model.with_new_adapter(&lora(rng), Seed::new(rng.random())).unwrap();
    let mut trainer = model.train(EngineOptions { threads: 1, ..Default::default() }).unwrap().0;
    for _ in 0..3 {
        train_step(&mut trainer, rng);
    }
    let dir = tempfile::tempdir().unwrap();
    trainer.save_model(dir.path(), WeightDtype::F32).unwrap();
    NativeAdapter::open(dir.path(), config).unwrap()
}

fn tokens(rng: &mut Rng) -> Vec<u32> {
    let (root, shared) = (rng.random_range(0..3_u32), rng.random_range(0..70_usize));
    let own = rng.random_range(1..20_usize);
    (0..shared as u32)
        .map(|i| (i * 5 + root) % 23)
        .chain((0..own).map(|_| rng.random_range(0..VOCABULARY as u32)))
        .collect()
}

fn request(rng: &mut Rng, names: &[WeightsName]) -> SampleRequest {
    let params = SamplingParams {
        temperature: [0.0, 0.7, 1.0, 1.5][rng.random_range(0..4_usize)],
        top_k: [0, 0, 5][rng.random_range(0..3_usize)],
        top_p: [1.0, 1.0, 0.8][rng.random_range(0..3_usize)],
        min_p: [0.0, 0.0, 0.05][rng.random_range(0..3_usize)],
        max_tokens: rng.random_range(1..40),
        stop_ids: if rng.random() { vec![7] } else { vec![] },
        // A whole word, and a text across two words.
        stop_texts: if rng.random_range(0..3) == 0 { vec!["w9".to_owned(), "1 w1".to_owned()] } else { vec![] },
        seed: rng.random(),
    };
    let thinking = if rng.random() { Some(2) } else { None };
    let set = || ActionSet::new([vec![3, 4], vec![3, 5, 6], vec![9]], Some(22), thinking).unwrap();
    SampleRequest {
        weights: names[rng.random_range(0..names.len())].clone(),
        prompt: tokens(rng),
        params,
        allowed: (rng.random_range(0..3) == 0).then(set),
    }
}

fn score_request(rng: &mut Rng, names: &[WeightsName]) -> ScoreRequest {
    let tokens = tokens(rng);
    let from = rng.random_range(1..=tokens.len());
    let mask = |token: u32, rng: &mut Rng| -> Option<Allowed> {
        let allowed = (0..VOCABULARY as u32).filter(|t| *t == token || rng.random_range(0..3) == 0).collect::<Vec<_>>();
        (rng.random_range(0..3) > 0).then(|| allowed.into())
    };
    let masked = rng.random_range(0..2) == 0;
    let allowed = if masked { tokens[from..].iter().map(|t| mask(*t, rng)).collect() } else { vec![] };
    ScoreRequest { weights: names[rng.random_range(0..names.len())].clone(), tokens, from, allowed }
}

/// A request in flight, with the current version when it was made; the base model has none.
enum Pending<'a> {
    Sample(SampleRequest, Option<u64>, BoxFuture<'a, Result<Sample>>),
    Score(ScoreRequest, Option<u64>, BoxFuture<'a, Result<Scores>>),
}

/// A completed request.
enum Completed {
    Sample(SampleRequest, Option<u64>, Sample),
    Score(ScoreRequest, Option<u64>, Scores),
}

/// Reads a stream token by token and returns its sample.
async fn read_stream(mut stream: TokenStream) -> Result<Sample> {
    let mut seen = Vec::new();
    while let Some(token) = stream.next().await {
        seen.push(token);
    }
    let whole = stream.finish().await?;
    assert_eq!(seen, whole.tokens, "streamed tokens differ from the sample");
    Ok(whole)
}

fn submit<'a>(
    rng: &mut Rng,
    names: &[WeightsName],
    current: &CurrentVersions,
    sampler: &'a NativeSampler,
    coverage: &mut Coverage,
) -> Pending<'a> {
    if rng.random_range(0..4) == 0 {
        let r = score_request(rng, names);
        coverage.masked_scores += u64::from(r.allowed.iter().any(Option::is_some));
        return Pending::Score(r.clone(), current.get(&r.weights).copied(), sampler.score(r));
    }
    let r = request(rng, names);
    let version = current.get(&r.weights).copied();
    if rng.random_range(0..3) == 0 {
        coverage.streams += 1;
        return Pending::Sample(r.clone(), version, Box::pin(read_stream(sampler.stream(r).unwrap())));
    }
    Pending::Sample(r.clone(), version, sampler.sample(r))
}

/// Waits until at least one request has completed and removes all completed ones.
fn wait_for_some(pending: &mut Vec<Pending<'_>>) -> Vec<Completed> {
    block_on(poll_fn(|context| {
        let mut done = Vec::new();
        let mut left = Vec::new();
        for request in pending.drain(..) {
            match request {
                Pending::Sample(r, version, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Completed::Sample(r, version, s.unwrap())),
                    Poll::Pending => left.push(Pending::Sample(r, version, f)),
                },
                Pending::Score(r, version, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Completed::Score(r, version, s.unwrap())),
                    Poll::Pending => left.push(Pending::Score(r, version, f)),
                },
            }
        }
        *pending = left;
        if done.is_empty() && !pending.is_empty() { Poll::Pending } else { Poll::Ready(done) }
    }))
}

/// Compares a result with unbatched decoding or scoring of the same version.
fn check(sampler: &NativeSampler, completed: Completed) {
    match completed {
        Completed::Sample(r, version, s) => {
            assert_eq!(s.weights.name, r.weights);
            assert!(version.is_none_or(|v| v == s.weights.version.0), "{version:?} was current: {s:?}");
            let r = SampleRequest { weights: pinned(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.generate(&r, |_| ()).unwrap();
            assert!(s.tokens == plain.tokens && s.finish == plain.finish, "{s:?}\n{plain:?}");
            assert!(
                s.logprobs == plain.logprobs && s.processed_logprobs == plain.processed_logprobs,
                "{s:?}\n{plain:?}"
            );
        }
        Completed::Score(r, version, s) => {
            assert_eq!(s.weights.name, r.weights);
            assert!(version.is_none_or(|v| v == s.weights.version.0), "{version:?} was current: {s:?}");
            let r = ScoreRequest { weights: pinned(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.score_all(&[r]).unwrap().remove(0);
            assert!(s.logprobs == plain.logprobs && s.entropies == plain.entropies);
        }
    }
}

/// Counts of events in the schedules, to detect a schedule that exercises too little.
#[derive(Debug, Default)]
struct Coverage {
    stats: SamplerStats,
    /// Publishes while requests were in flight.
    publishes: u64,
    /// Adapter publishes while requests were in flight.
    adapter_changes: u64,
    streams: u64,
    masked_scores: u64,
    /// Samples that ended with a stop text.
    stopped_at_text: u64,
    masked_samples: u64,
    with_foreign_adapter: u64,
}

impl Coverage {
    fn count(&mut self, completed: &Completed) {
        let Completed::Sample(r, _, s) = completed else { return };
        let by_id = s.tokens.last().is_some_and(|t| r.params.stop_ids.contains(t));
        let by_text = !r.params.stop_texts.is_empty() && r.allowed.is_none() && !by_id;
        self.stopped_at_text += u64::from(by_text && s.finish == FinishReason::Stop);
        self.masked_samples += u64::from(r.allowed.is_some());
        self.with_foreign_adapter += u64::from(r.weights.as_str() == "foreign");
    }

    fn all(&self) -> [(&'static str, u64); 12] {
        [
            ("prefix hit tokens", self.stats.prefix_hit_tokens),
            ("cancelled requests", self.stats.cancelled),
            ("evicted blocks", self.stats.evicted_blocks),
            ("preemptions", self.stats.preemptions),
            ("finished requests", self.stats.finished),
            ("publishes", self.publishes),
            ("adapter changes", self.adapter_changes),
            ("samples with the foreign adapter", self.with_foreign_adapter),
            ("streams", self.streams),
            ("masked scores", self.masked_scores),
            ("stop texts", self.stopped_at_text),
            ("masked samples", self.masked_samples),
        ]
    }
}

fn random_schedule(seed: Seed) -> Coverage {
    let mut rng = seed.rng();
    let config = config(&mut rng);
    let words: Vec<String> = (0..VOCABULARY - 4).map(|i| format!("w{i}")).collect();
    let renderer = Arc::new(word_tokenizer(&words, &WordControlTokens::default()).unwrap());
    let mut model = NativeModel::new(config.clone(), 0.3, seed, Some(renderer)).unwrap();
    // Either all parameters are trained, or an adapter; then foreign adapters and the base model share batches with it.
    let adapted: bool = rng.random();
    if adapted {
        model = model.with_new_adapter(&lora(&mut rng), seed).unwrap();
    }
    let options = EngineOptions {
        threads: rng.random_range(1..4),
        cache_mib: [0, 1, 1][rng.random_range(0..3_usize)],
        no_prefix_cache: rng.random_range(0..6) == 0,
        // Whole prompts, or prefill in chunks concurrent with decoding.
        chunk_tokens: [0, 7, 40][rng.random_range(0..3_usize)],
        // All requests are admitted, or most wait.
        queue: [0, 0, 5][rng.random_range(0..3_usize)],
        ..Default::default()
    };
    let (mut trainer, sampler) = model.train(options).unwrap();
    let mut names: Vec<WeightsName> = ["policy", "opponent", "reference"].map(WeightsName::new).into();
    let mut current = CurrentVersions::new();
    for name in &names {
        train_step(&mut trainer, &mut rng);
        publish(&mut trainer, name, &mut current);
    }
    if adapted {
        names.extend(["foreign", "base"].map(WeightsName::new));
        publish_adapter(&sampler, &names[3], &foreign_adapter(&config, &mut rng), &mut current);
    }
    let mut coverage = Coverage::default();
    let mut pending: Vec<Pending<'_>> = Vec::new();
    let mut remaining = rng.random_range(10..80_usize);
    while remaining > 0 || !pending.is_empty() {
        for _ in 0..rng.random_range(0..30_usize).min(remaining) {
            remaining -= 1;
            pending.push(submit(&mut rng, &names, &current, &sampler, &mut coverage));
        }
        if rng.random_range(0..4) == 0 && !pending.is_empty() {
            pending.swap_remove(rng.random_range(0..pending.len())); // cancels the request
        }
        if rng.random_range(0..6) == 0 {
            train_step(&mut trainer, &mut rng);
            publish(&mut trainer, &names[rng.random_range(0..2_usize)], &mut current);
            coverage.publishes += u64::from(!pending.is_empty());
        }
        if adapted && rng.random_range(0..12) == 0 {
            publish_adapter(&sampler, &names[3], &foreign_adapter(&config, &mut rng), &mut current);
            coverage.adapter_changes += u64::from(!pending.is_empty());
        }
        for completed in wait_for_some(&mut pending) {
            coverage.count(&completed);
            check(&sampler, completed);
        }
    }
    Coverage { stats: sampler.stats(), ..coverage }
}

#[test]
fn random_schedules_do_not_change_results() {
    let count = if cfg!(feature = "long") { 1000 } else { 40 };
    let mut total = Coverage::default().all();
    for i in 0..count {
        let coverage = random_schedule(Seed::new(3).at(i));
        for (sum, (_, more)) in total.iter_mut().zip(coverage.all()) {
            sum.1 += more;
        }
    }
    eprintln!("{count} schedules: {total:?}");
    for (event, count) in total {
        assert!(count > 0, "the schedules never exercised {event}: {total:?}");
    }
}
