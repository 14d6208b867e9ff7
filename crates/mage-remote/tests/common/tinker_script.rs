//! Training script, run against the real server for the recording and against its test double.

use mage_engine::{
    Loss, Objective, OptimStep, PerToken, SampleRequest, Sampler, SamplingParams, TokenForest, Trainer, WeightsName,
};
use mage_remote::{
    StatusLog, Timeouts, TinkerServer, TinkerSettings, TinkerTrainer,
    tinker::{SdkVersion, TinkerBackend},
};
use std::{path::Path, time::Duration};

/// Results, which must not depend on the network.
#[derive(Debug, PartialEq)]
pub(crate) struct ScriptResult {
    pub(crate) losses: Vec<f64>,
    pub(crate) norms: Vec<f64>,
    pub(crate) sampled: Vec<u32>,
    pub(crate) steps: u64,
}

/// Vocabulary size of the recorded model.
pub(crate) const VOCABULARY: usize = 16;
/// Name of the recorded model.
pub(crate) const MODEL: &str = "tiny";

pub(crate) fn settings(url: &str, adapters: &Path, notices: StatusLog) -> TinkerSettings {
    TinkerSettings {
        server: TinkerServer {
            url: url.to_owned(),
            sdk_version: SdkVersion::default(),
            key: None,
            timeouts: Timeouts {
                attempt: Duration::from_millis(800),
                outage: Duration::from_secs(20),
                operation: Duration::from_secs(30),
            },
            status_log: notices,
        },
        backend: TinkerBackend::Jax,
        base_model: MODEL.to_owned(),
        adapter_base_name: MODEL.to_owned(),
        lora_rank: 8,
        seed: 7,
        vocab_size: VOCABULARY,
        max_seq_len: 256,
        adapter_dir: adapters.to_owned(),
        tolerance: 1e-4,
        calibrate: true,
    }
}

pub(crate) fn batch(advantage: f32) -> TokenForest {
    let rows = [vec![0_u32, 3, 5, 7, 2, 4], vec![1, 6, 2, 9, 3]];
    TokenForest::from_sequences(rows.into_iter().enumerate().map(|(r, tokens)| {
        let n = tokens.len();
        let mut train = PerToken {
            weights: vec![0.1 * (r + 1) as f32; n],
            advantages: vec![advantage; n],
            old_logprobs: vec![-2.0; n],
            ..Default::default()
        };
        train.weights[..2].fill(0.0);
        (tokens, train)
    }))
}

pub(crate) fn step() -> OptimStep {
    OptimStep { learning_rate: 1e-2, max_grad_norm: 0.0, ..Default::default() }
}

/// The first three steps of [`live`].
pub(crate) fn train_three_steps(trainer: &mut TinkerTrainer) {
    let (imitate, ppo) = (Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3)));
    for (advantage, loss) in [(1.0, &imitate), (1.0, &ppo), (-1.0, &ppo)] {
        trainer.forward_backward(&batch(advantage), loss).unwrap();
        trainer.optim_step(&step()).unwrap();
    }
}

/// A sampling request.
pub(crate) fn request() -> SampleRequest {
    SampleRequest {
        prompt: vec![0, 3, 5],
        params: SamplingParams { max_tokens: 6, stop_ids: vec![2], seed: 77 << 33, ..Default::default() },
        ..Default::default()
    }
}

/// The script: calibration, three steps, a publish, a sample, a checkpoint, another step, and that step again after a
/// resume from the checkpoint.
pub(crate) fn run_script(settings: &TinkerSettings, dir: &Path) -> mage_engine::Result<ScriptResult> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut result = ScriptResult { losses: Vec::new(), norms: Vec::new(), sampled: Vec::new(), steps: 0 };
    let mut trainer = TinkerTrainer::connect(settings.clone(), None)?;
    let sampler = trainer.sampler()?;
    let ppo = Loss::of(Objective::ppo(0.2, 0.3));
    let imitate = Loss::of(Objective::CrossEntropy);
    let train = |trainer: &mut TinkerTrainer, result: &mut ScriptResult, batch: &TokenForest, loss: &Loss| {
        result.losses.push(trainer.forward_backward(batch, loss)?.loss);
        let stepped = trainer.optim_step(&step())?;
        result.norms.push(stepped.grad_norm);
        result.steps = stepped.steps;
        mage_engine::Result::Ok(())
    };
    train(&mut trainer, &mut result, &batch(1.0), &imitate)?;
    train(&mut trainer, &mut result, &batch(1.0), &ppo)?;
    trainer.publish(&WeightsName::default())?;
    result.sampled = runtime.block_on(sampler.sample(request()))?.tokens;
    train(&mut trainer, &mut result, &batch(-1.0), &ppo)?;
    trainer.publish(&WeightsName::default())?;
    let checkpoint = dir.join("checkpoint");
    trainer.save(&checkpoint)?;
    train(&mut trainer, &mut result, &batch(0.5), &ppo)?;
    drop(trainer);
    let mut resumed = TinkerTrainer::connect(TinkerSettings { calibrate: false, ..settings.clone() }, None)?;
    resumed.load(&checkpoint)?;
    train(&mut resumed, &mut result, &batch(0.5), &ppo)?;
    Ok(result)
}
