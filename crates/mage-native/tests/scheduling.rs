//! Whatever else runs, each request gets the bits that plain one-by-one decoding gives.

use mage_engine::{
    ActionSet, AdapterName, Allowed, BoxFuture, FinishReason, Loss, Objective, OptimStep, PerToken, Result, Sample,
    SampleRequest, Sampler, SamplingParams, ScoreRequest, Scores, TokenForest, Trainer, block_on,
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

/// Four control words and w0 to w18.
const VOCABULARY: usize = 23;

/// Some shapes have so much to remember of a token that a cache of one MiB holds little more than one sequence.
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

fn learn(trainer: &mut CpuTrainer, rng: &mut Rng) {
    let tokens: Vec<u32> = (0..10).map(|_| rng.random_range(0..VOCABULARY as u32)).collect();
    let row = (tokens, PerToken { weights: [0.0].into_iter().chain([1.0; 9]).collect(), ..Default::default() });
    trainer.forward_backward(&TokenForest::from_sequences([row]), &Loss::of(Objective::CrossEntropy)).unwrap();
    trainer.optim_step(&OptimStep { learning_rate: 0.05, ..Default::default() }).unwrap();
}

/// The versions whoever asks now must be answered with, by name.
type Newest = HashMap<AdapterName, u64>;

/// Publishes the weights of now under a name, and under one that keeps this version.
fn publish(trainer: &mut CpuTrainer, name: &AdapterName, newest: &mut Newest) {
    let version = trainer.publish(name).unwrap();
    trainer.publish(&kept(name, version.0)).unwrap();
    newest.insert(name.clone(), version.0);
}

/// The same for an adapter from elsewhere.
fn welcome(sampler: &NativeSampler, name: &AdapterName, adapter: &NativeAdapter, newest: &mut Newest) {
    let version = sampler.publish(name, adapter).unwrap();
    sampler.publish(&kept(name, version.0), adapter).unwrap();
    newest.insert(name.clone(), version.0);
}

fn kept(name: &AdapterName, version: u64) -> AdapterName {
    if name.as_str() == AdapterName::BASE {
        return name.clone(); // never published again
    }
    AdapterName::new(&format!("{name} as of {version}"))
}

fn lora(rng: &mut Rng) -> LoraConfig {
    let mut targets: Vec<Projection> = Projection::ALL.into_iter().filter(|_| rng.random()).collect();
    targets.push(Projection::DownProj);
    targets.dedup();
    let rank = rng.random_range(1..9_usize);
    LoraConfig { rank, alpha: 2.0 * rank as f32, targets }
}

/// An adapter of a shape of its own that has learnt something, as a past self from a file would be.
fn stranger(config: &Config, rng: &mut Rng) -> NativeAdapter {
    let model = NativeModel::new(config.clone(), 0.3, Seed::new(rng.random()), None).unwrap();
    let model = model.with_new_adapter(&lora(rng), Seed::new(rng.random())).unwrap();
    let mut trainer = model.train(EngineOptions { threads: 1, ..Default::default() }).unwrap().0;
    for _ in 0..3 {
        learn(&mut trainer, rng);
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

fn request(rng: &mut Rng, names: &[AdapterName]) -> SampleRequest {
    let params = SamplingParams {
        temperature: [0.0, 0.7, 1.0, 1.5][rng.random_range(0..4_usize)],
        top_k: [0, 0, 5][rng.random_range(0..3_usize)],
        top_p: [1.0, 1.0, 0.8][rng.random_range(0..3_usize)],
        min_p: [0.0, 0.0, 0.05][rng.random_range(0..3_usize)],
        max_tokens: rng.random_range(1..40),
        stop_ids: if rng.random() { vec![7] } else { vec![] },
        // A word, or the end of one and the start of another.
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

fn score_request(rng: &mut Rng, names: &[AdapterName]) -> ScoreRequest {
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

/// A request, and the version that was newest when it was made; the bare model has none.
enum Asked<'a> {
    Sample(SampleRequest, Option<u64>, BoxFuture<'a, Result<Sample>>),
    Score(ScoreRequest, Option<u64>, BoxFuture<'a, Result<Scores>>),
}

enum Answered {
    Sample(SampleRequest, Option<u64>, Sample),
    Score(ScoreRequest, Option<u64>, Scores),
}

/// The answer of a stream, read as it comes.
async fn read(mut stream: TokenStream) -> Result<Sample> {
    let mut seen = Vec::new();
    while let Some(token) = stream.next().await {
        seen.push(token);
    }
    let whole = stream.finish().await?;
    assert_eq!(seen, whole.tokens, "a stream shows what its sample holds");
    Ok(whole)
}

fn ask<'a>(
    rng: &mut Rng,
    names: &[AdapterName],
    newest: &Newest,
    sampler: &'a NativeSampler,
    happened: &mut Happened,
) -> Asked<'a> {
    if rng.random_range(0..4) == 0 {
        let r = score_request(rng, names);
        happened.masked_scores += u64::from(r.allowed.iter().any(Option::is_some));
        return Asked::Score(r.clone(), newest.get(&r.weights).copied(), sampler.score(r));
    }
    let r = request(rng, names);
    let version = newest.get(&r.weights).copied();
    if rng.random_range(0..3) == 0 {
        happened.streams += 1;
        return Asked::Sample(r.clone(), version, Box::pin(read(sampler.stream(r).unwrap())));
    }
    Asked::Sample(r.clone(), version, sampler.sample(r))
}

/// Waits until at least one of the requests is answered and takes all that are.
fn some_answers(pending: &mut Vec<Asked<'_>>) -> Vec<Answered> {
    block_on(poll_fn(|context| {
        let mut done = Vec::new();
        let mut left = Vec::new();
        for asked in pending.drain(..) {
            match asked {
                Asked::Sample(r, version, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Answered::Sample(r, version, s.unwrap())),
                    Poll::Pending => left.push(Asked::Sample(r, version, f)),
                },
                Asked::Score(r, version, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Answered::Score(r, version, s.unwrap())),
                    Poll::Pending => left.push(Asked::Score(r, version, f)),
                },
            }
        }
        *pending = left;
        if done.is_empty() && !pending.is_empty() { Poll::Pending } else { Poll::Ready(done) }
    }))
}

fn check(sampler: &NativeSampler, answered: Answered) {
    match answered {
        Answered::Sample(r, version, s) => {
            assert_eq!(s.weights.name, r.weights);
            assert!(version.is_none_or(|v| v == s.weights.version.0), "{version:?} was newest: {s:?}");
            let r = SampleRequest { weights: kept(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.generate(&r, |_| ()).unwrap();
            assert!(s.tokens == plain.tokens && s.finish == plain.finish, "{s:?}\n{plain:?}");
            assert!(
                s.logprobs == plain.logprobs && s.processed_logprobs == plain.processed_logprobs,
                "{s:?}\n{plain:?}"
            );
        }
        Answered::Score(r, version, s) => {
            assert_eq!(s.weights.name, r.weights);
            assert!(version.is_none_or(|v| v == s.weights.version.0), "{version:?} was newest: {s:?}");
            let r = ScoreRequest { weights: kept(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.score_all(&[r]).unwrap().remove(0);
            assert!(s.logprobs == plain.logprobs && s.entropies == plain.entropies);
        }
    }
}

/// What happened in schedules, so that none is tame unnoticed.
#[derive(Debug, Default)]
struct Happened {
    stats: SamplerStats,
    /// While requests were under way.
    publishes: u64,
    adapter_changes: u64,
    streams: u64,
    masked_scores: u64,
    /// Answers that ended with a stop text.
    stopped_at_text: u64,
    actions: u64,
    with_adapter: u64,
}

impl Happened {
    fn answered(&mut self, answered: &Answered) {
        let Answered::Sample(r, _, s) = answered else { return };
        let by_id = s.tokens.last().is_some_and(|t| r.params.stop_ids.contains(t));
        let by_text = !r.params.stop_texts.is_empty() && r.allowed.is_none() && !by_id;
        self.stopped_at_text += u64::from(by_text && s.finish == FinishReason::Stop);
        self.actions += u64::from(r.allowed.is_some());
        self.with_adapter += u64::from(r.weights.as_str() == "stranger");
    }

    fn all(&self) -> [(&'static str, u64); 12] {
        [
            ("shared tokens", self.stats.prefix_hit_tokens),
            ("cancelled", self.stats.cancelled),
            ("evicted pages", self.stats.evicted_blocks),
            ("set back", self.stats.preemptions),
            ("finished", self.stats.finished),
            ("publishes", self.publishes),
            ("adapter changes", self.adapter_changes),
            ("answers with another's adapter", self.with_adapter),
            ("streams", self.streams),
            ("masked scores", self.masked_scores),
            ("stop texts", self.stopped_at_text),
            ("action sets", self.actions),
        ]
    }
}

fn random_schedule(seed: Seed) -> Happened {
    let mut rng = seed.rng();
    let config = config(&mut rng);
    let words: Vec<String> = (0..VOCABULARY - 4).map(|i| format!("w{i}")).collect();
    let renderer = Arc::new(word_tokenizer(&words, &WordControlTokens::default()).unwrap());
    let mut model = NativeModel::new(config.clone(), 0.3, seed, Some(renderer)).unwrap();
    // Either the model itself learns, or an adapter beside it, with strangers' adapters and the bare model in one batch.
    let adapted: bool = rng.random();
    if adapted {
        model = model.with_new_adapter(&lora(&mut rng), seed).unwrap();
    }
    let options = EngineOptions {
        threads: rng.random_range(1..4),
        cache_mib: [0, 1, 1][rng.random_range(0..3_usize)],
        no_prefix_cache: rng.random_range(0..6) == 0,
        // Prompts are read whole, or in pieces beside answers that are being written.
        chunk_tokens: [0, 7, 40][rng.random_range(0..3_usize)],
        // All are taken in, or most wait at the door.
        queue: [0, 0, 5][rng.random_range(0..3_usize)],
        ..Default::default()
    };
    let (mut trainer, sampler) = model.train(options).unwrap();
    let mut names: Vec<AdapterName> = ["policy", "rival", "reference"].map(AdapterName::new).into();
    let mut newest = Newest::new();
    for name in &names {
        learn(&mut trainer, &mut rng);
        publish(&mut trainer, name, &mut newest);
    }
    if adapted {
        names.extend(["stranger", "base"].map(AdapterName::new));
        welcome(&sampler, &names[3], &stranger(&config, &mut rng), &mut newest);
    }
    let mut happened = Happened::default();
    let mut pending: Vec<Asked<'_>> = Vec::new();
    let mut to_come = rng.random_range(10..80_usize);
    while to_come > 0 || !pending.is_empty() {
        for _ in 0..rng.random_range(0..30_usize).min(to_come) {
            to_come -= 1;
            pending.push(ask(&mut rng, &names, &newest, &sampler, &mut happened));
        }
        if rng.random_range(0..4) == 0 && !pending.is_empty() {
            pending.swap_remove(rng.random_range(0..pending.len())); // nobody waits for this one any more
        }
        if rng.random_range(0..6) == 0 {
            learn(&mut trainer, &mut rng);
            publish(&mut trainer, &names[rng.random_range(0..2_usize)], &mut newest);
            happened.publishes += u64::from(!pending.is_empty());
        }
        if adapted && rng.random_range(0..12) == 0 {
            welcome(&sampler, &names[3], &stranger(&config, &mut rng), &mut newest);
            happened.adapter_changes += u64::from(!pending.is_empty());
        }
        for a in some_answers(&mut pending) {
            happened.answered(&a);
            check(&sampler, a);
        }
    }
    Happened { stats: sampler.stats(), ..happened }
}

#[test]
fn random_schedules_change_no_bit() {
    let count = if cfg!(feature = "long") { 1000 } else { 40 };
    let mut total = Happened::default().all();
    for i in 0..count {
        let happened = random_schedule(Seed::new(3).at(i));
        for (sum, (_, more)) in total.iter_mut().zip(happened.all()) {
            sum.1 += more;
        }
    }
    eprintln!("{count} schedules: {total:?}");
    for (what, times) in total {
        assert!(times > 0, "the schedules were too tame: no {what} among {total:?}");
    }
}
