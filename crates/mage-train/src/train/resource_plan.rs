//! Estimate of the memory and time of a run (`mage train --dry-run`).

use crate::{
    Result,
    engines::{self, EngineRequirements, remote},
    policy::codec::PromptCodec,
    recipe::{EngineKind, Recipe},
    rollout::RolloutJob,
    train::length_probe::LengthProbe,
    train::{TrainContext, TrainEnv},
};
use mage_core::prompt::PromptForm;
use mage_engine::{Loss, Objective, Renderer, SamplingParams, TokenForest, WeightsName};
use mage_env::Seed;
use mage_native::{GpuMemoryPlan, Machine};
use serde::Serialize;
use std::{sync::Arc, time::Instant};

/// Larger models are not timed: a trial would take longer than an estimate is worth.
const MAX_TRIAL_PARAMETERS: usize = 50_000_000;

/// Work of a trial, in prompt tokens times parameters; beyond it, a trial would take minutes.
const MAX_TRIAL_WORK: f64 = 1e11;

/// Meta-episodes sampled in place of a whole update.
const SAMPLE_META_EPISODES: usize = 32;

/// Estimated memory and time of a run, from the shape of the model and random play. Small models are timed in a trial:
/// a part of an update, or a whole update on the GPU. The trial trains on expert play instead of the policy's own and
/// does not score with the reference policy.
#[derive(Clone, Debug, Serialize)]
pub struct ResourcePlan {
    /// Whether the weights are available: on disk, or the model is new.
    pub weights_available: bool,
    /// Servers that compute; `None` is this machine.
    pub servers: Option<String>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// GPU that computes; `None` is the CPU.
    pub gpu: Option<String>,
    /// Tokens of a training pass on the GPU.
    pub pass_tokens: Option<usize>,
    /// GPU bytes reserved for training passes.
    pub pass_bytes: Option<u64>,
    /// GPU bytes reserved for sampling steps, apart from the KV cache, and for other programs.
    pub reserved_bytes: Option<u64>,
    /// GPU bytes left for the KV cache.
    pub kv_cache_bytes: Option<u64>,
    /// Whether all of it fits into GPU memory.
    pub gpu_fits: Option<bool>,
    /// Number of model parameters.
    pub parameters: usize,
    /// Number of trainable parameters, of the model or of an adapter.
    pub trainable_parameters: usize,
    /// Episodes per update.
    pub episodes: usize,
    /// Prompt tokens per update, estimated from random play; `None` if the environment does not list legal actions or
    /// the model has no tokenizer.
    pub prompt_tokens: Option<u64>,
    /// Maximum response tokens per update.
    pub response_tokens: Option<u64>,
    /// Bytes of weights, gradients, optimiser state and published weights (the policy, on a GPU also its successor, and
    /// the reference policy).
    pub state_bytes: u64,
    /// KV-cache bytes per token.
    pub kv_bytes_per_token: u64,
    /// Activation bytes per token of a training pass.
    pub activation_bytes_per_token: u64,
    /// Free memory in bytes.
    pub free_bytes: Option<u64>,
    /// Resident memory of this process in bytes, after the trial if there was one.
    pub resident_bytes: Option<u64>,
    /// Seconds per update; `None` without a trial.
    pub seconds_per_update: Option<f64>,
    /// Seconds of all updates, without warm start and evaluation.
    pub total_seconds: Option<f64>,
}

impl ResourcePlan {
    /// Checks the recipe against the engine and, for a small model, times an update or a part of it. Writes nothing.
    pub fn new(recipe: &Recipe, env: &TrainEnv) -> Result<Self> {
        recipe.check()?;
        env.env_spec.check(&env.population)?;
        let env_info = env.env_spec.info();
        let EngineRequirements { model, trainable_parameters, adapter, state_bytes } =
            engines::requirements(recipe, &env_info)?;
        let jobs = recipe.rollout.groups * recipe.rollout.group_size;
        // A training server does not use the local GPU.
        let local = recipe.engine.kind == EngineKind::Native;
        let rank = adapter.map(|a| a.rank);
        let gpu = recipe.engine.device.cuda_index_for(&model.config, rank).filter(|_| local);
        let gpu = gpu
            .map(|i| GpuMemoryPlan::new(&model.config, i, adapter, recipe.engine.gradient_checkpointing))
            .transpose()?;
        let mut plan = ResourcePlan {
            servers: (!local).then(|| remote::description(recipe)),
            warnings: match local {
                true => recipe.engine.device.gpu_unused_reason(&model.config, rank).into_iter().collect(),
                false => remote::warnings(recipe)?,
            },
            gpu: gpu.as_ref().map(|g| g.device.clone()),
            pass_tokens: gpu.as_ref().map(|g| g.pass_tokens),
            pass_bytes: gpu.as_ref().map(|g| g.pass_bytes),
            reserved_bytes: gpu.as_ref().map(|g| g.reserved_bytes),
            kv_cache_bytes: gpu.as_ref().map(|g| g.kv_cache_bytes),
            gpu_fits: gpu.as_ref().map(|g| g.fits),
            weights_available: model.stored.is_some() || recipe.model.path.is_empty(),
            parameters: model.parameters,
            trainable_parameters,
            episodes: jobs * recipe.play.episodes as usize,
            prompt_tokens: None,
            response_tokens: None,
            state_bytes: gpu.as_ref().map_or(state_bytes, |g| g.state_bytes),
            kv_bytes_per_token: gpu.as_ref().map_or(model.kv_bytes_per_token(), |g| g.kv_bytes_per_token),
            activation_bytes_per_token: match &gpu {
                Some(gpu) => gpu.activation_bytes_per_token,
                None => model.activation_bytes_per_token(recipe.engine.gradient_checkpointing),
            },
            free_bytes: gpu.as_ref().map_or_else(Machine::free_memory, |g| Some(g.free_bytes)),
            resident_bytes: None,
            seconds_per_update: None,
            total_seconds: None,
        };
        if let Some(probe) = probe_lengths(recipe, env, model.renderer.as_ref())? {
            probe.check_fits(recipe, model.config.max_position_embeddings)?;
            let max_tokens = gpu.as_ref().map(|g| g.max_sequence_tokens);
            if let Some(max_tokens) = max_tokens.filter(|max_tokens| *max_tokens < probe.max_sequence) {
                plan.warnings.push(format!(
                    "prompt and response may take {} tokens, but GPU memory is sufficient for training on {max_tokens}; end \
                     other programs, or lower play.episodes",
                    probe.max_sequence
                ));
            }
            let per_update = |tokens: u64| tokens * jobs as u64 / SAMPLE_META_EPISODES as u64;
            plan.prompt_tokens = Some(per_update(probe.prompt_tokens));
            plan.response_tokens = Some(per_update(probe.response_tokens));
        }
        // No trial on servers, which are not contacted before a run, and none if memory is too small, which the plan
        // states.
        if local && plan.weights_available && !plan.too_large() && model.parameters <= MAX_TRIAL_PARAMETERS {
            let mut context = TrainContext::new(recipe, env, &env_info)?;
            // Full prompts are for models with long thinking, whose duration a short trial cannot estimate.
            let tokens = plan.prompt_tokens.unwrap_or(0) * SAMPLE_META_EPISODES as u64 / jobs.max(1) as u64;
            let small = tokens as f64 * model.parameters as f64 <= MAX_TRIAL_WORK;
            if recipe.play.form == PromptForm::Compact && small {
                // On a GPU, time hardly depends on the batch size: the trial takes the whole batch.
                let (sample, passes) = match gpu {
                    Some(_) => (jobs, recipe.optim.minibatches),
                    None => (jobs.min(SAMPLE_META_EPISODES), 1),
                };
                let trial = UpdateTrial::run(recipe, env, &mut context, sample, passes)?;
                let steps = f64::from(recipe.optim.epochs) * recipe.optim.minibatches as f64;
                let work = trial.rollout + trial.forward_backward * f64::from(recipe.optim.epochs);
                let seconds = work * jobs as f64 / sample as f64 + steps * trial.optim_step;
                plan.seconds_per_update = Some(seconds);
                plan.total_seconds = Some(seconds * recipe.optim.updates as f64);
            }
        }
        plan.resident_bytes = resident_memory();
        Ok(plan)
    }

    /// Whether full training was planned and memory would suffice for training an adapter instead.
    pub fn adapter_may_fit(&self) -> bool {
        let frozen = self.parameters as u64 * if self.gpu.is_some() { 2 } else { 4 };
        self.trainable_parameters == self.parameters && self.free_bytes.is_some_and(|free| frozen < free)
    }

    /// Whether the state exceeds free memory, or GPU memory leaves no room for a KV cache.
    pub fn too_large(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < self.state_bytes) || self.gpu_fits == Some(false)
    }
}

/// Maximum tokens of a prompt with its response, from random play; `None` if the environment does not list legal
/// actions.
pub fn longest_sequence(recipe: &Recipe, env: &TrainEnv, renderer: &Arc<Renderer>) -> Result<Option<usize>> {
    Ok(probe_lengths(recipe, env, Some(renderer))?.map(|probe| probe.max_sequence))
}

fn probe_lengths(recipe: &Recipe, env: &TrainEnv, renderer: Option<&Arc<Renderer>>) -> Result<Option<LengthProbe>> {
    let Some(renderer) = renderer else { return Ok(None) };
    let codec = PromptCodec::new(Arc::clone(renderer), recipe.play.form, recipe.play.thinking)?;
    LengthProbe::run(recipe, env, &codec, SAMPLE_META_EPISODES)
}

/// Seconds of the parts of an update.
#[derive(Default)]
struct UpdateTrial {
    /// Rollout of a sample of meta-episodes.
    rollout: f64,
    /// Forward and backward passes over as many.
    forward_backward: f64,
    /// One optimiser step.
    optim_step: f64,
}

impl UpdateTrial {
    /// Times a rollout of `sample` meta-episodes and `passes` passes over as many. The first of two rounds is a
    /// warm-up.
    fn run(recipe: &Recipe, env: &TrainEnv, context: &mut TrainContext, sample: usize, passes: usize) -> Result<Self> {
        let runtime = crate::train::runtime(recipe.engine.threads)?;
        let seed = Seed::new(recipe.seed).child("plan");
        let seats = env.env_spec.info().seats;
        let jobs: Vec<RolloutJob> = (0..sample as u64)
            .map(|i| {
                let task = env.population.sample_task(&recipe.env.split, seats, seed.at(i))?;
                Ok(RolloutJob { task, seed: seed.child("agent").at(i) })
            })
            .collect::<Result<_>>()?;
        let pass_size = |i: usize| (i + 1) * sample / passes - i * sample / passes;
        let batches: Vec<TokenForest> = (0..passes)
            .map(|i| {
                let seed = seed.child("training_batch").at(i as u64);
                context.warm_start.batch(i as u64, pass_size(i), seed, &context.codec)
            })
            .collect::<Result<_>>()?;
        context.engines.trainer.publish(&WeightsName::default())?;
        let rollout = context.rollout(SamplingParams::default(), "plan".to_owned(), 0);
        let mut trial = UpdateTrial::default();
        for _ in 0..2 {
            trial = UpdateTrial::default();
            let started = Instant::now();
            rollout.run(&runtime, &jobs, std::time::Duration::MAX, |_| ())?;
            trial.rollout = started.elapsed().as_secs_f64();
            for batch in &batches {
                let started = Instant::now();
                context.engines.trainer.forward_backward(batch, &Loss::of(Objective::CrossEntropy))?;
                let passed = Instant::now();
                context.engines.trainer.optim_step(&recipe.optim_step(0))?;
                trial.forward_backward += (passed - started).as_secs_f64();
                trial.optim_step = passed.elapsed().as_secs_f64();
            }
        }
        Ok(trial)
    }
}

/// Resident memory of this process, if the system reports it.
fn resident_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
