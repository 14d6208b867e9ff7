//! Whatever else runs, each request gets the bits that plain one-by-one decoding gives.

use mage_engine::{
    ActionSet, AdapterName, BoxFuture, Loss, Objective, OptimStep, PerToken, Result, Sample, SampleRequest, Sampler,
    SamplingParams, ScoreRequest, Scores, TokenForest, Trainer, block_on,
};
use mage_env::{Rng, Seed};
use mage_native::{
    Config, Lora, NativeAdapter, NativeModel, NativeSampler, NativeTrainer, NumberFormat, Options, Projection,
};
use rand::RngExt;
use std::future::poll_fn;
use std::task::Poll;

fn config(rng: &mut Rng) -> Config {
    let kv = rng.random_range(1..3);
    Config {
        vocab_size: 23,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: rng.random_range(1..4),
        num_attention_heads: kv * rng.random_range(1..4_usize),
        num_key_value_heads: kv,
        head_dim: [4, 8, 10][rng.random_range(0..3_usize)],
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: rng.random(),
        max_position_embeddings: 160,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn learn(trainer: &mut NativeTrainer, rng: &mut Rng) {
    let tokens: Vec<u32> = (0..10).map(|_| rng.random_range(0..23)).collect();
    let row = (tokens, PerToken { weights: [0.0].into_iter().chain([1.0; 9]).collect(), ..Default::default() });
    trainer.forward_backward(&TokenForest::of_rows([row]), &Loss::of(Objective::CrossEntropy)).unwrap();
    trainer.optim_step(&OptimStep { learning_rate: 0.05, ..Default::default() }).unwrap();
}

/// Publishes the weights of now under a name, and under one that keeps this version.
fn publish(trainer: &mut NativeTrainer, name: &AdapterName) {
    let version = trainer.publish(name).unwrap();
    trainer.publish(&kept(name, version.0)).unwrap();
}

/// The same for an adapter from elsewhere.
fn welcome(sampler: &NativeSampler, name: &AdapterName, adapter: &NativeAdapter) {
    let version = sampler.publish(name, adapter).unwrap();
    sampler.publish(&kept(name, version.0), adapter).unwrap();
}

fn kept(name: &AdapterName, version: u64) -> AdapterName {
    if name.as_str() == AdapterName::BASE {
        return name.clone(); // never published again
    }
    AdapterName::new(&format!("{name} as of {version}"))
}

fn lora(rng: &mut Rng) -> Lora {
    let mut targets: Vec<Projection> = Projection::ALL.into_iter().filter(|_| rng.random()).collect();
    targets.push(Projection::DownProj);
    targets.dedup();
    let rank = rng.random_range(1..9_usize);
    Lora { rank, alpha: 2.0 * rank as f32, targets }
}

/// An adapter of a shape of its own that has learnt something, as a past self from a file would be.
fn stranger(config: &Config, rng: &mut Rng) -> NativeAdapter {
    let model = NativeModel::new(config.clone(), 0.3, Seed::new(rng.random()), None).unwrap();
    let model = model.with_new_adapter(&lora(rng), Seed::new(rng.random())).unwrap();
    let mut trainer = model.train(Options { threads: 1, ..Default::default() }).unwrap().0;
    for _ in 0..3 {
        learn(&mut trainer, rng);
    }
    let dir = tempfile::tempdir().unwrap();
    trainer.save_model(dir.path(), NumberFormat::F32).unwrap();
    NativeAdapter::open(dir.path(), config).unwrap()
}

fn tokens(rng: &mut Rng) -> Vec<u32> {
    let (root, shared) = (rng.random_range(0..3_u32), rng.random_range(0..70_usize));
    let own = rng.random_range(1..20_usize);
    (0..shared as u32).map(|i| (i * 5 + root) % 23).chain((0..own).map(|_| rng.random_range(0..23))).collect()
}

fn request(rng: &mut Rng, names: &[AdapterName]) -> SampleRequest {
    let params = SamplingParams {
        temperature: [0.0, 0.7, 1.0, 1.5][rng.random_range(0..4_usize)],
        top_k: [0, 0, 5][rng.random_range(0..3_usize)],
        top_p: [1.0, 1.0, 0.8][rng.random_range(0..3_usize)],
        min_p: [0.0, 0.0, 0.05][rng.random_range(0..3_usize)],
        max_tokens: rng.random_range(1..40),
        stop_ids: if rng.random() { vec![7] } else { vec![] },
        seed: rng.random(),
        ..Default::default()
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

enum Asked<'a> {
    Sample(SampleRequest, BoxFuture<'a, Result<Sample>>),
    Score(ScoreRequest, BoxFuture<'a, Result<Scores>>),
}

enum Answered {
    Sample(SampleRequest, Sample),
    Score(ScoreRequest, Scores),
}

/// Waits until at least one of the requests is answered and takes all that are.
fn some_answers(pending: &mut Vec<Asked<'_>>) -> Vec<Answered> {
    block_on(poll_fn(|context| {
        let mut done = Vec::new();
        let mut left = Vec::new();
        for asked in pending.drain(..) {
            match asked {
                Asked::Sample(r, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Answered::Sample(r, s.unwrap())),
                    Poll::Pending => left.push(Asked::Sample(r, f)),
                },
                Asked::Score(r, mut f) => match f.as_mut().poll(context) {
                    Poll::Ready(s) => done.push(Answered::Score(r, s.unwrap())),
                    Poll::Pending => left.push(Asked::Score(r, f)),
                },
            }
        }
        *pending = left;
        if done.is_empty() && !pending.is_empty() { Poll::Pending } else { Poll::Ready(done) }
    }))
}

fn check(sampler: &NativeSampler, answered: Answered) {
    match answered {
        Answered::Sample(r, s) => {
            assert_eq!(s.weights.name, r.weights);
            let r = SampleRequest { weights: kept(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.generate(&r, |_| ()).unwrap();
            assert!(s.tokens == plain.tokens && s.finish == plain.finish, "{s:?}\n{plain:?}");
            assert!(s.logprobs == plain.logprobs && s.drawn_logprobs == plain.drawn_logprobs, "{s:?}\n{plain:?}");
        }
        Answered::Score(r, s) => {
            let r = ScoreRequest { weights: kept(&r.weights, s.weights.version.0), ..r };
            let plain = sampler.score_all(&[r]).unwrap().remove(0);
            assert!(s.logprobs == plain.logprobs && s.entropies == plain.entropies);
        }
    }
}

fn random_schedule(seed: Seed) -> (u64, u64) {
    let mut rng = seed.rng();
    let config = config(&mut rng);
    let mut model = NativeModel::new(config.clone(), 0.3, seed, None).unwrap();
    // Either the model itself learns, or an adapter beside it, with strangers' adapters and the bare model in one batch.
    let adapted: bool = rng.random();
    if adapted {
        model = model.with_new_adapter(&lora(&mut rng), seed).unwrap();
    }
    let options = Options {
        threads: rng.random_range(1..4),
        // A page is some kilobytes: the smallest caches are hard up for room.
        cache_mib: [0, 1, 1][rng.random_range(0..3_usize)],
        no_sharing: rng.random_range(0..6) == 0,
        // Prompts are read whole, or in pieces beside answers that are being written.
        chunk_tokens: [0, 7, 40][rng.random_range(0..3_usize)],
        ..Default::default()
    };
    let (mut trainer, sampler) = model.train(options).unwrap();
    let mut names: Vec<AdapterName> = ["policy", "rival", "reference"].map(AdapterName::new).into();
    for name in &names {
        learn(&mut trainer, &mut rng);
        publish(&mut trainer, name);
    }
    if adapted {
        names.extend(["stranger", "base"].map(AdapterName::new));
        welcome(&sampler, &names[3], &stranger(&config, &mut rng));
    }
    let mut pending: Vec<Asked<'_>> = Vec::new();
    let mut to_come = rng.random_range(10..80_usize);
    while to_come > 0 || !pending.is_empty() {
        for _ in 0..rng.random_range(0..30_usize).min(to_come) {
            to_come -= 1;
            if rng.random_range(0..4) == 0 {
                let tokens = tokens(&mut rng);
                let from = rng.random_range(1..=tokens.len());
                let weights = names[rng.random_range(0..names.len())].clone();
                let r = ScoreRequest { weights, tokens, from, allowed: vec![] };
                pending.push(Asked::Score(r.clone(), sampler.score(r)));
            } else {
                let r = request(&mut rng, &names);
                pending.push(Asked::Sample(r.clone(), sampler.sample(r)));
            }
        }
        if rng.random_range(0..4) == 0 && !pending.is_empty() {
            pending.swap_remove(rng.random_range(0..pending.len())); // nobody waits for this one any more
        }
        if rng.random_range(0..6) == 0 {
            learn(&mut trainer, &mut rng);
            publish(&mut trainer, &names[rng.random_range(0..2_usize)]);
        }
        if adapted && rng.random_range(0..12) == 0 {
            welcome(&sampler, &names[3], &stranger(&config, &mut rng));
        }
        for a in some_answers(&mut pending) {
            check(&sampler, a);
        }
    }
    let stats = sampler.stats();
    (stats.shared_tokens, stats.cancelled)
}

#[test]
fn random_schedules_change_no_bit() {
    let count = if cfg!(feature = "long") { 1000 } else { 40 };
    let (mut shared, mut cancelled) = (0, 0);
    for i in 0..count {
        let (s, c) = random_schedule(Seed::new(3).at(i));
        shared += s;
        cancelled += c;
    }
    assert!(shared > 0 && cancelled > 0, "the schedules were too tame: {shared} shared, {cancelled} cancelled");
}
