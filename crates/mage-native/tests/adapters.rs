//! LoRA adapters in the sampler: batches of several adapters, versions, merging, and adapter directories.

use futures_executor::block_on;
use mage_engine::{
    Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, ScoreRequest, TokenForest, Trainer,
    WeightsName,
};
use mage_native::{
    Config, EngineOptions, LoraConfig, NativeAdapter, NativeModel, NativeSampler, Projection, WeightDtype,
};
use mage_rng::Seed;
use std::path::Path;

fn config() -> Config {
    Config {
        vocab_size: 30,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 200,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn model() -> NativeModel {
    NativeModel::new(config(), 0.2, Seed::new(9), None).unwrap()
}

/// An adapter trained on one sequence.
fn trained_adapter(lora: &LoraConfig, seed: u64) -> NativeAdapter {
    let (mut trainer, _) =
        model().with_new_adapter(lora, Seed::new(seed)).unwrap().train(EngineOptions::default()).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| (Seed::new(seed).at(i).value() % 30) as u32).collect();
    let weights = [0.0].into_iter().chain([0.1; 19]).collect();
    let batch = TokenForest::from_sequences([(tokens, PerToken { weights, ..Default::default() })]);
    for _ in 0..20 {
        trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).unwrap();
        trainer.optim_step(&OptimStep { learning_rate: 0.03, ..Default::default() }).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    trainer.save_model(dir.path(), WeightDtype::F32).unwrap();
    NativeAdapter::open(dir.path(), &config()).unwrap()
}

fn lora_configs() -> Vec<LoraConfig> {
    vec![
        LoraConfig { rank: 4, alpha: 8.0, targets: Projection::ALL.to_vec() },
        LoraConfig { rank: 2, alpha: 2.0, targets: vec![Projection::QProj, Projection::VProj] },
        LoraConfig { rank: 7, alpha: 14.0, targets: vec![Projection::KProj, Projection::UpProj, Projection::DownProj] },
    ]
}

fn scores(sampler: &NativeSampler, name: &str) -> Vec<f32> {
    let tokens = (0..40).map(|i| (i * 7) % 30).collect();
    let r = ScoreRequest { weights: name.into(), tokens, from: 1, ..Default::default() };
    block_on(sampler.score(r)).unwrap().logprobs
}

#[test]
fn merged_weights_equal_adapter_up_to_rounding() {
    for (i, lora) in lora_configs().iter().enumerate() {
        let adapter = trained_adapter(lora, i as u64);
        let with = model().with_adapter(adapter.clone()).unwrap();
        assert_eq!(with.adapter().unwrap().lora(), lora);
        let merged = model().with_adapter(adapter).unwrap().merged();
        assert!(merged.adapter().is_none());
        let dir = tempfile::tempdir().unwrap();
        merged.save(dir.path(), WeightDtype::F32).unwrap();
        let merged = NativeModel::open(dir.path()).unwrap().sampler(EngineOptions::default()).unwrap();
        let with = with.sampler(EngineOptions::default()).unwrap();
        let (a, b, base) = (scores(&with, "policy"), scores(&merged, "policy"), scores(&with, "base"));
        let max_diff = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_diff(&a, &b) < 2e-5, "{}", max_diff(&a, &b));
        assert!(max_diff(&a, &base) > 0.1, "the adapter should have an effect: {}", max_diff(&a, &base));
        assert!(scores(&merged, "base") == b, "a merged model has no adapter");
    }
}

#[test]
fn adapters_batched_together_give_the_bits_of_each_alone() {
    let sampler = model().sampler(EngineOptions::default()).unwrap();
    let adapters: Vec<NativeAdapter> =
        lora_configs().iter().enumerate().map(|(i, l)| trained_adapter(l, i as u64)).collect();
    let names = ["first", "second", "third"];
    for (name, adapter) in names.iter().zip(&adapters) {
        assert_eq!(sampler.publish(&WeightsName::new(name), adapter).unwrap().0, 0);
    }
    let request = |name: &str, seed: u64| SampleRequest {
        weights: name.into(),
        prompt: (0..25).map(|i| (i * 3) % 30).collect(),
        params: SamplingParams { max_tokens: 20, seed, ..Default::default() },
        ..Default::default()
    };
    let all: Vec<&str> = names.into_iter().chain(["base", "policy"]).collect();
    let requests: Vec<SampleRequest> =
        (0..6).flat_map(|seed| all.iter().map(move |n| (*n, seed))).map(|(n, seed)| request(n, seed)).collect();
    let futures: Vec<_> = requests.iter().map(|r| sampler.sample(r.clone())).collect();
    for (r, future) in requests.iter().zip(futures) {
        let sample = block_on(future).unwrap();
        assert_eq!(sample.weights.name, r.weights);
        assert!(sample == sampler.generate(r, |_| ()).unwrap(), "{}", r.weights);
        let name = r.weights.as_str();
        let alone = match names.iter().position(|n| *n == name) {
            Some(i) => model().with_adapter(adapters[i].clone()).unwrap(),
            None => model(),
        };
        let policy = SampleRequest { weights: WeightsName::default(), ..r.clone() };
        let alone = alone.sampler(EngineOptions::default()).unwrap().generate(&policy, |_| ()).unwrap();
        assert!(sample.tokens == alone.tokens && sample.logprobs == alone.logprobs, "{name}");
    }
    assert!(scores(&sampler, "base") == scores(&sampler, "policy"), "the policy has no adapter");
    let mut distinct: Vec<Vec<f32>> = all[..4].iter().map(|n| scores(&sampler, n)).collect();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "the adapters should differ");
}

#[test]
fn running_requests_keep_their_version_after_a_publish() {
    let sampler = model().sampler(EngineOptions::default()).unwrap();
    let (a, b) = (trained_adapter(&lora_configs()[0], 1), trained_adapter(&lora_configs()[1], 2));
    let opponent = WeightsName::new("opponent");
    sampler.publish(&opponent, &a).unwrap();
    let r = SampleRequest {
        weights: opponent.clone(),
        prompt: vec![1, 2, 3],
        params: SamplingParams { max_tokens: 100, ..Default::default() },
        ..Default::default()
    };
    let (plain, mut stream) = (sampler.generate(&r, |_| ()).unwrap(), sampler.stream(r.clone()).unwrap());
    assert!(block_on(stream.next()).is_some());
    assert_eq!(sampler.publish(&opponent, &b).unwrap().0, 1);
    let old = block_on(stream.finish()).unwrap();
    assert!(old == plain && old.weights.version.0 == 0, "a running request should keep its weights");
    let new = block_on(sampler.sample(r)).unwrap();
    assert!(new.weights.version.0 == 1 && new.logprobs != old.logprobs);
}

#[test]
fn unusable_adapters_are_refused() {
    let adapter =
        NativeAdapter::new(&Config { hidden_size: 16, ..config() }, &LoraConfig::default(), Seed::new(1)).unwrap();
    let e = model().with_adapter(adapter.clone()).err().unwrap().to_string();
    assert!(e.contains("another shape"), "{e}");
    let sampler = model().sampler(EngineOptions::default()).unwrap();
    let e = sampler.publish(&"x".into(), &adapter).unwrap_err().to_string();
    assert!(e.contains("`x`") && e.contains("another shape"), "{e}");
    let fitting = NativeAdapter::new(&config(), &LoraConfig::default(), Seed::new(1)).unwrap();
    assert!(sampler.publish(&"base".into(), &fitting).unwrap_err().to_string().contains("another name"));
    let (_, in_training) = model().train(EngineOptions::default()).unwrap();
    assert!(in_training.publish(&"x".into(), &fitting).unwrap_err().to_string().contains("in training"));
    let dir = tempfile::tempdir().unwrap();
    fitting.save(dir.path(), WeightDtype::Bf16).unwrap();
    let e = NativeModel::open(dir.path()).err().unwrap().to_string();
    assert!(e.contains("an adapter, not a model"), "{e}");
    assert!(NativeAdapter::open(Path::new("nowhere"), &config()).unwrap_err().to_string().contains("nowhere"));
}

#[test]
fn adapter_directory_records_its_base_model() {
    let (base, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    model().save(base.path(), WeightDtype::F32).unwrap();
    let save = |model: NativeModel| {
        let (trainer, _) =
            model.with_new_adapter(&lora_configs()[1], Seed::new(1)).unwrap().train(EngineOptions::default()).unwrap();
        trainer.save_model(out.path(), WeightDtype::F32).unwrap();
        NativeAdapter::base_of(out.path()).unwrap()
    };
    let path = base.path().canonicalize().unwrap().display().to_string();
    assert_eq!(save(NativeModel::open(base.path()).unwrap()), Some(path));
    assert_eq!(save(NativeModel::open(base.path()).unwrap().with_source("org/name")).as_deref(), Some("org/name"));
    let revised = save(NativeModel::open(base.path()).unwrap().with_source("org/name@v2"));
    assert_eq!(revised.as_deref(), Some("org/name@v2"));
    let text = std::fs::read_to_string(out.path().join("adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&config["base_model_name_or_path"], &config["revision"]), (&"org/name".into(), &"v2".into()));
    assert_eq!(save(model()), None);
    assert_eq!(NativeAdapter::shape_of(out.path()).unwrap(), lora_configs()[1]);
}
