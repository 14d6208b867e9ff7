//! Sampling, scoring and training agree bit for bit; stop conditions, action masks and weight versions.

use mage_engine::{
    ActionSet, FinishReason, Loss, Objective, PerToken, SampleRequest, SamplingParams, ScoreRequest, TokenForest,
    Trainer, WeightsName,
};
use mage_native::{Config, CpuTrainer, EngineOptions, NativeModel, NativeSampler, chat_tokenizer};
use mage_rng::Seed;
use std::sync::Arc;

fn config() -> Config {
    Config {
        vocab_size: 40,
        hidden_size: 48,
        intermediate_size: 80,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 12,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        max_position_embeddings: 100,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn engine(threads: usize) -> (CpuTrainer, NativeSampler) {
    let model = NativeModel::new(config(), 0.2, Seed::new(9), None).unwrap();
    model.train(EngineOptions { threads, ..Default::default() }).unwrap()
}

fn request(seed: u64, len: usize) -> SampleRequest {
    let prompt = (0..len as u32).map(|i| (i * 7 + seed as u32) % 40).collect();
    let params = SamplingParams { max_tokens: 20, seed, ..Default::default() };
    SampleRequest { prompt, params, ..Default::default() }
}

#[test]
fn sampled_scored_and_trained_logprobs_are_bit_identical() {
    let (mut trainer, sampler) = engine(2);
    let mut scores = Vec::new();
    let mut sequences = Vec::new();
    let mut sampled = Vec::new();
    for seed in 0..8 {
        let mut r = request(seed, 1 + 9 * seed as usize);
        if seed % 2 == 1 {
            r.allowed = Some(ActionSet::new([vec![3, 4], vec![3, 5, 6], vec![9]], Some(39), None).unwrap());
        }
        let s = sampler.generate(&r, |_| ()).unwrap();
        let allowed = r.allowed.as_ref().map(|a| a.masks(&s.tokens).unwrap()).unwrap_or_default();
        let tokens = [&r.prompt[..], &s.tokens].concat();
        let from = r.prompt.len();
        let mut train = PerToken { weights: vec![0.0; tokens.len()], ..Default::default() };
        train.weights[from..].fill(1.0);
        if !allowed.is_empty() {
            train.allowed = [vec![None; from], allowed.clone()].concat();
        }
        scores.push(ScoreRequest { tokens: tokens.clone(), from, allowed, ..Default::default() });
        sequences.push((tokens, train));
        sampled.push(s.logprobs);
    }
    let together = sampler.score_all(&scores).unwrap();
    for (i, s) in together.iter().enumerate() {
        assert!(s.logprobs == sampled[i], "request {i}");
        assert!(sampler.score_all(&scores[i..=i]).unwrap()[0] == *s);
    }
    let batch = TokenForest::from_sequences(sequences);
    let report = trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).unwrap();
    assert!(report.logprobs == sampled.concat());
}

#[test]
fn same_seed_gives_same_sample_for_any_thread_count() {
    let (_, one) = engine(1);
    let (_, many) = engine(4);
    for seed in 0..5 {
        let r = request(seed, 30);
        assert!(one.generate(&r, |_| ()).unwrap() == many.generate(&r, |_| ()).unwrap());
    }
    let (a, b) = (one.generate(&request(1, 30), |_| ()).unwrap(), one.generate(&request(2, 30), |_| ()).unwrap());
    assert!(a.tokens != b.tokens);
}

#[test]
fn masked_samples_stay_in_the_action_set_and_probabilities_sum_to_one() {
    let (_, sampler) = engine(1);
    let actions = [vec![3, 4], vec![3, 5, 6], vec![9]];
    let set = ActionSet::new(&actions, None, None).unwrap();
    let mut total = 0.0;
    for action in &actions {
        let tokens = [&[1, 2][..], action].concat();
        let r = ScoreRequest { tokens, from: 2, allowed: set.masks(action).unwrap(), ..Default::default() };
        total += sampler.score_all(&[r]).unwrap()[0].logprobs.iter().map(|l| f64::from(*l)).sum::<f64>().exp();
    }
    assert!((total - 1.0).abs() < 1e-6, "{total}");
    for seed in 0..50 {
        let mut r = request(seed, 2);
        r.allowed = Some(set.clone());
        let s = sampler.generate(&r, |_| ()).unwrap();
        assert!(actions.contains(&s.tokens) && s.finish == FinishReason::Stop, "{:?}", s.tokens);
    }
}

#[test]
fn sampling_stops_at_stop_ids_max_tokens_and_full_context() {
    let (_, sampler) = engine(1);
    let r = request(3, 5);
    let free = sampler.generate(&r, |_| ()).unwrap();
    assert_eq!((free.tokens.len(), free.finish), (20, FinishReason::Length));
    let mut stopped = r.clone();
    stopped.params.stop_ids = vec![free.tokens[6]];
    let s = sampler.generate(&stopped, |_| ()).unwrap();
    let first = free.tokens.iter().position(|t| *t == free.tokens[6]).unwrap();
    assert_eq!((s.tokens.as_slice(), s.finish), (&free.tokens[..=first], FinishReason::Stop));
    let full = sampler.generate(&request(3, 95), |_| ()).unwrap();
    assert_eq!((full.tokens.len(), full.finish), (5, FinishReason::Length), "the context is full");
    let mut texts = r;
    texts.params.stop_texts = vec!["x".to_owned()];
    assert!(sampler.generate(&texts, |_| ()).unwrap_err().to_string().contains("no tokenizer"));
}

#[test]
fn stop_texts_end_the_sample_at_the_completing_token() {
    let renderer = Arc::new(chat_tokenizer("", 300).unwrap());
    let config = Config { vocab_size: renderer.vocab_size(), ..config() };
    let model = NativeModel::new(config, 0.2, Seed::new(9), Some(Arc::clone(&renderer))).unwrap();
    let sampler = model.sampler(EngineOptions::default()).unwrap();
    let mut r = request(1, 5);
    r.params.max_tokens = 60;
    let mut seen = Vec::new();
    let free = sampler.generate(&r, |t| seen.push(t)).unwrap();
    assert_eq!(seen, free.tokens);
    let text = renderer.decode_all(&free.tokens[10..12]).unwrap();
    r.params.stop_texts = vec![text.clone()];
    let s = sampler.generate(&r, |_| ()).unwrap();
    assert!(s.tokens.len() <= 12 && free.tokens.starts_with(&s.tokens) && s.finish == FinishReason::Stop);
    assert!(renderer.decode_all(&s.tokens).unwrap().ends_with(&text));
}

#[test]
fn published_weights_are_named_and_versioned() {
    let (mut trainer, sampler) = engine(1);
    let reference = WeightsName::new("reference");
    let at = |name: &WeightsName| {
        let r = ScoreRequest { weights: name.clone(), tokens: vec![1, 2, 3], from: 1, ..Default::default() };
        sampler.score_all(&[r]).map(|mut s| s.remove(0))
    };
    let e = at(&reference).unwrap_err().to_string();
    assert!(e.contains("reference") && e.contains("published: policy"), "{e}");
    trainer.publish(&reference).unwrap();
    let frozen = at(&reference).unwrap();
    let row = (vec![1, 2, 3], PerToken { weights: vec![0.0, 1.0, 1.0], ..Default::default() });
    trainer.forward_backward(&TokenForest::from_sequences([row]), &Loss::of(Objective::CrossEntropy)).unwrap();
    trainer.optim_step(&Default::default()).unwrap();
    assert!(
        at(&WeightsName::default()).unwrap().logprobs == frozen.logprobs,
        "unpublished updates should not be visible"
    );
    let version = trainer.publish(&WeightsName::default()).unwrap();
    let new = at(&WeightsName::default()).unwrap();
    assert!(new.weights.version == version && new.logprobs != frozen.logprobs);
    assert!(at(&reference).unwrap() == frozen);
}
