//! Tests against running engines: SkyRL at `MAGE_TINKER_URL` and vLLM at `MAGE_VLLM_URL`, both with the model in
//! `MAGE_ENGINE_MODEL`, as started by `conformance/engines/run.py`. Ignored if the variables are not set.

use mage_engine::{
    Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, ScoreRequest, TokenForest, Trainer,
    WeightsName,
};
use mage_remote::{
    StatusLog, Timeouts, TinkerServer, TinkerSettings, TinkerTrainer, VllmPool, VllmPoolSettings,
    tinker::{SdkVersion, TinkerBackend},
};
use mage_testing::variable;
use std::{path::PathBuf, sync::Arc};

struct Engines {
    tinker: String,
    model: PathBuf,
    vocab_size: usize,
    context: usize,
}

fn engines() -> Engines {
    let named = |name| variable(name).expect("required");
    let model = PathBuf::from(named("MAGE_ENGINE_MODEL"));
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    let number = |key: &str| config[key].as_u64().unwrap() as usize;
    Engines {
        tinker: named("MAGE_TINKER_URL"),
        model,
        vocab_size: number("vocab_size"),
        context: number("max_position_embeddings"),
    }
}

impl Engines {
    fn settings(&self, adapters: &std::path::Path) -> TinkerSettings {
        TinkerSettings {
            server: TinkerServer {
                url: self.tinker.clone(),
                sdk_version: SdkVersion::default(),
                key: None,
                timeouts: Timeouts::default(),
                status_log: StatusLog::new(|line, _| eprintln!("{line}")),
            },
            backend: TinkerBackend::Jax,
            base_model: self.model.file_name().unwrap().to_string_lossy().into_owned(),
            adapter_base_name: self.model.display().to_string(),
            lora_rank: 8,
            seed: 7,
            vocab_size: self.vocab_size,
            max_seq_len: self.context,
            adapter_dir: adapters.to_owned(),
            tolerance: 1e-4,
            calibrate: false,
        }
    }

    fn pool(&self) -> Arc<VllmPool> {
        let pool = VllmPool::new(VllmPoolSettings {
            servers: vec![variable("MAGE_VLLM_URL").expect("required")],
            model: "tiny".to_owned(),
            api_key: None,
            max_in_flight: 64,
            vocab_size: self.vocab_size,
            max_seq_len: self.context,
            tolerance: 1e-4,
            keep_versions: 4,
            timeouts: Timeouts::default(),
            request_timeout: std::time::Duration::from_secs(600),
            status_log: StatusLog::new(|line, _| eprintln!("{line}")),
        });
        Arc::new(pool.unwrap())
    }
}

/// A small on-policy batch: the old log-probs are the current ones.
fn rows(logprobs: Option<&[f32]>) -> TokenForest {
    let tokens: Vec<Vec<u32>> = vec![vec![0, 3, 5, 7, 2, 4], vec![1, 6, 2, 9, 3]];
    let mut at = 0;
    TokenForest::from_sequences(tokens.into_iter().enumerate().map(|(r, tokens)| {
        let n = tokens.len();
        let mut train = PerToken {
            weights: vec![0.0; n],
            advantages: vec![if r == 0 { 1.0 } else { -0.5 }; n],
            old_logprobs: vec![0.0; n],
            ..Default::default()
        };
        for i in 2..n {
            train.weights[i] = 0.1 * (r + 1) as f32;
            if let Some(known) = logprobs {
                train.old_logprobs[i] = known[at];
                at += 1;
            }
        }
        (tokens, train)
    }))
}

pub(crate) fn calibration_matches_the_backend() {
    let engines = engines();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = engines.settings(dir.path());
    settings.calibrate = true;
    let trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
    let found = trainer.calibration().unwrap();
    eprintln!("{found:?}");
    assert!((found.scaled - 1.0).abs() < 1e-3, "{found:?}");
    settings.backend = TinkerBackend::Fsdp;
    let e = TinkerTrainer::connect(settings, None).err().unwrap();
    assert!(e.to_string().contains("averages over sequences"), "{e}");
    assert_eq!(e.hints(), [mage_engine::Hint::SetBackend]);
}

pub(crate) fn policy_trains_samples_and_resumes_from_a_checkpoint() {
    let engines = engines();
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut trainer = TinkerTrainer::connect(engines.settings(&dir.path().join("adapters")), None).unwrap();
    let sampler = trainer.sampler().unwrap();
    let step = OptimStep { learning_rate: 1e-2, max_grad_norm: 0.0, ..Default::default() };
    let ce = Loss::of(Objective::CrossEntropy);
    let before = trainer.forward_backward(&rows(None), &ce).unwrap();
    trainer.optim_step(&step).unwrap();
    let after = trainer.forward_backward(&rows(None), &ce).unwrap();
    trainer.optim_step(&step).unwrap();
    assert!(after.loss < before.loss, "{} {}", before.loss, after.loss);
    let ppo = Loss::of(Objective::ppo(0.2, 0.2));
    let on_policy = rows(Some(&after.logprobs));
    let report = trainer.forward_backward(&on_policy, &ppo).unwrap();
    assert!(report.mismatch_kl > 0.0 && report.ratio != 1.0, "a step was taken in between: {report:?}");
    let stepped = trainer.optim_step(&step).unwrap();
    assert!(stepped.grad_norm > 0.0 && stepped.steps == 3);

    let policy = WeightsName::default();
    assert_eq!(trainer.publish(&policy).unwrap().0, 0);
    let request = SampleRequest {
        prompt: vec![0, 3, 5],
        params: SamplingParams { max_tokens: 6, stop_ids: vec![2], seed: 77 << 33, ..Default::default() },
        ..Default::default()
    };
    let sample = runtime.block_on(sampler.sample(request.clone())).unwrap();
    let tokens = [&request.prompt[..], &sample.tokens].concat();
    let scores = runtime.block_on(sampler.score(ScoreRequest { tokens, from: 3, ..Default::default() })).unwrap();
    for (a, b) in sample.logprobs.iter().zip(&scores.logprobs) {
        assert!((a - b).abs() < 1e-4, "{sample:?} {scores:?}");
    }
    assert!(sample.tokens.len() <= 6 && sample.weights.to_string() == "policy@0");

    let checkpoint = dir.path().join("checkpoint");
    trainer.save(&checkpoint).unwrap();
    let next = trainer.forward_backward(&rows(None), &ce).unwrap();
    trainer.optim_step(&step).unwrap();
    let e = runtime.block_on(sampler.sample(request.clone())).unwrap_err().to_string();
    assert!(e.contains("replace the weights in training"), "{e}");
    let later = trainer.forward_backward(&rows(None), &ce).unwrap();
    drop(trainer);
    let mut resumed = TinkerTrainer::connect(engines.settings(&dir.path().join("adapters")), None).unwrap();
    resumed.load(&checkpoint).unwrap();
    assert_eq!(resumed.forward_backward(&rows(None), &ce).unwrap().logprobs, next.logprobs, "identical bits");
    resumed.optim_step(&step).unwrap();
    assert_eq!(
        resumed.forward_backward(&rows(None), &ce).unwrap().logprobs,
        later.logprobs,
        "identical optimiser state"
    );
}

pub(crate) fn trained_weights_reach_vllm() {
    let engines = engines();
    let pool = engines.pool();
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut trainer =
        TinkerTrainer::connect(engines.settings(&dir.path().join("adapters")), Some(Arc::clone(&pool))).unwrap();
    let step = OptimStep { learning_rate: 1e-2, max_grad_norm: 0.0, ..Default::default() };
    let policy = WeightsName::default();
    let mut scored = Vec::new();
    for version in 0..3 {
        assert_eq!(trainer.publish(&policy).unwrap().0, version);
        let tokens = vec![0, 3, 5, 7, 2, 4];
        let score =
            |name: &str| ScoreRequest { weights: name.into(), tokens: tokens.clone(), from: 2, ..Default::default() };
        scored.push(runtime.block_on(pool.score(score("policy"))).unwrap().logprobs);
        let own = trainer.forward_backward(&rows(None), &Loss::of(Objective::CrossEntropy)).unwrap();
        for (a, b) in scored[version as usize].iter().zip(&own.logprobs) {
            assert!((a - b).abs() < 1e-5, "{scored:?} {:?}", own.logprobs);
        }
        trainer.optim_step(&step).unwrap();
        // Past versions stay available.
        let first = runtime.block_on(pool.score(score("policy@0"))).unwrap();
        assert_eq!((first.weights.to_string().as_str(), &first.logprobs), ("policy@0", &scored[0]));
    }
    assert_ne!(scored[0], scored[2]);
    let request = SampleRequest {
        prompt: vec![0, 3, 5],
        params: SamplingParams { max_tokens: 6, stop_ids: vec![2], seed: 77 << 33, ..Default::default() },
        ..Default::default()
    };
    let sample = runtime.block_on(pool.sample(request.clone())).unwrap();
    let tokens = [&request.prompt[..], &sample.tokens].concat();
    let scores = runtime.block_on(pool.score(ScoreRequest { tokens, from: 3, ..Default::default() })).unwrap();
    for (a, b) in sample.logprobs.iter().zip(&scores.logprobs) {
        assert!((a - b).abs() < 1e-5, "{sample:?} {scores:?}");
    }
    assert_eq!(sample, runtime.block_on(pool.sample(request)).unwrap(), "same seed, same sample");
}
