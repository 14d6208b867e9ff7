//! What would a run take?

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
use mage_engine::{AdapterName, Loss, Objective, Renderer, SamplingParams, TokenForest};
use mage_env::{EnvInfo, Seed};
use mage_native::{GpuMemoryPlan, Machine};
use serde::Serialize;
use std::{sync::Arc, time::Instant};

/// Models above this are described without a trial: it would take longer than anybody waits for an estimate.
const TRIAL_PARAMETERS: usize = 50_000_000;

/// Meta-episodes that stand for all of an update's.
const SAMPLE: usize = 32;

/// What a run would take: worked out from the model's shape and from play, and for a small model from a trial: as much play,
/// passes and steps as a part of one update has, or on a card all of it. What a teacher says stands for what the policy says, and
/// a reference is not asked.
#[derive(Clone, Debug, Serialize)]
pub struct ResourcePlan {
    /// Whether the model's numbers are there, or it is new.
    pub whole: bool,
    /// The servers that compute; `None` is this machine.
    pub servers: Option<String>,
    /// What people should know before they begin.
    pub warnings: Vec<String>,
    /// The card that computes; `None` is the CPU.
    pub card: Option<String>,
    /// Tokens of a training pass on the card.
    pub pass_tokens: Option<usize>,
    /// Bytes set aside on the card for training passes.
    pub pass_bytes: Option<u64>,
    /// Bytes set aside on the card for what a sampler's steps need besides keys and values, and for other programs.
    pub aside_bytes: Option<u64>,
    /// Bytes left on the card for keys and values.
    pub cache_bytes: Option<u64>,
    /// Whether the card has room for all that.
    pub card_fits: Option<bool>,
    /// Numbers in the model.
    pub parameters: usize,
    /// How many of them, or of an adapter's beside them, learn.
    pub learning: usize,
    /// Episodes per update.
    pub episodes: usize,
    /// Tokens of prompts per update, counted for every call, as a player meets them that does anything legal; `None` where the
    /// environment lists no legal actions or the model has no tokenizer.
    pub prompt_tokens: Option<u64>,
    /// Tokens of answers per update, at most.
    pub answer_tokens: Option<u64>,
    /// Bytes of weights, gradients, optimiser and what samplers hold (the policy, on a card its successor too, and the reference).
    pub state_bytes: u64,
    /// Bytes a sampler's cache keeps of one token.
    pub cached_bytes_per_token: u64,
    /// Bytes a training pass keeps of one token.
    pub remembered_bytes_per_token: u64,
    /// Bytes of memory that are free.
    pub free_bytes: Option<u64>,
    /// Bytes this process holds now; after the trial, if there was one.
    pub resident_bytes: Option<u64>,
    /// Seconds one update takes; `None` where no trial was made.
    pub seconds_per_update: Option<f64>,
    /// Seconds the updates take; warm start and evaluation come on top.
    pub seconds: Option<f64>,
}

impl ResourcePlan {
    /// Checks the recipe against the engine and tries an update or a part of it, where the model is small. Nothing is written.
    pub fn new(recipe: &Recipe, setting: &TrainEnv) -> Result<Self> {
        recipe.check()?;
        setting.env_spec.check(&setting.population)?;
        let env_info = setting.env_spec.info();
        let EngineRequirements { model, learning, adapter, state_bytes } = engines::needs(recipe, &env_info)?;
        let jobs = recipe.rollout.groups * recipe.rollout.group_size;
        // What servers hold is not on a card of ours.
        let here = recipe.engine.kind == EngineKind::Native;
        let rank = adapter.map(|a| a.rank);
        let card = recipe.engine.device.cuda_index_for(&model.config, rank).filter(|_| here);
        let card = card
            .map(|i| GpuMemoryPlan::new(&model.config, i, adapter, recipe.engine.gradient_checkpointing))
            .transpose()?;
        let mut plan = ResourcePlan {
            servers: (!here).then(|| remote::place(recipe)),
            warnings: match here {
                true => recipe.engine.device.gpu_unused_reason(&model.config, rank).into_iter().collect(),
                false => remote::warnings(recipe)?,
            },
            card: card.as_ref().map(|c| c.device.clone()),
            pass_tokens: card.as_ref().map(|c| c.pass_tokens),
            pass_bytes: card.as_ref().map(|c| c.pass_bytes),
            aside_bytes: card.as_ref().map(|c| c.reserved_bytes),
            cache_bytes: card.as_ref().map(|c| c.kv_cache_bytes),
            card_fits: card.as_ref().map(|c| c.fits),
            whole: model.stored.is_some() || recipe.model.path.is_empty(),
            parameters: model.parameters,
            learning,
            episodes: jobs * recipe.play.episodes as usize,
            prompt_tokens: None,
            answer_tokens: None,
            state_bytes: card.as_ref().map_or(state_bytes, |c| c.state_bytes),
            cached_bytes_per_token: card.as_ref().map_or(model.kv_bytes_per_token(), |c| c.kv_bytes_per_token),
            remembered_bytes_per_token: match &card {
                Some(card) => card.activation_bytes_per_token,
                None => model.activation_bytes_per_token(recipe.engine.gradient_checkpointing),
            },
            free_bytes: card.as_ref().map_or_else(Machine::free_memory, |c| Some(c.free_bytes)),
            resident_bytes: None,
            seconds_per_update: None,
            seconds: None,
        };
        if let Some(talk) = survey(recipe, setting, model.renderer.as_ref())? {
            talk.fits(recipe, model.config.max_position_embeddings)?;
            if let Some(room) = card.as_ref().map(|c| c.max_sequence_tokens).filter(|room| *room < talk.longest) {
                plan.warnings.push(format!(
                    "a prompt with its answer may have {} tokens, and training on this card has room for {room}: end other \
                     programs, or take fewer play.episodes",
                    talk.longest
                ));
            }
            let all = |tokens: u64| tokens * jobs as u64 / SAMPLE as u64;
            (plan.prompt_tokens, plan.answer_tokens) = (Some(all(talk.prompts)), Some(all(talk.answers)));
        }
        // What servers take is not tried: nobody is asked before there is work. Nor is what has no room: the plan says so.
        if here && plan.whole && !plan.too_large() && model.parameters <= TRIAL_PARAMETERS {
            let mut parts = TrainContext::new(recipe, setting, &env_info)?;
            // Full prompts are for models that think at length: no trial of a few seconds tells how long.
            if recipe.play.form == PromptForm::Compact {
                // A card is about as long over a few as over all of them, played or learned from.
                let (sample, passes) = match card {
                    Some(_) => (jobs, recipe.optim.minibatches),
                    None => (jobs.min(SAMPLE), 1),
                };
                let trial = Trial::of(recipe, setting, &mut parts, sample, passes)?;
                let steps = f64::from(recipe.optim.epochs) * recipe.optim.minibatches as f64;
                let work = trial.playing + trial.passing * f64::from(recipe.optim.epochs);
                let seconds = work * jobs as f64 / sample as f64 + steps * trial.step;
                plan.seconds_per_update = Some(seconds);
                plan.seconds = Some(seconds * recipe.optim.updates as f64);
            }
        }
        plan.resident_bytes = resident();
        Ok(plan)
    }

    /// Whether the whole model learns, and there is the memory for it if an adapter did in its place.
    pub fn adapter_may_fit(&self) -> bool {
        let frozen = self.parameters as u64 * if self.card.is_some() { 2 } else { 4 };
        self.learning == self.parameters && self.free_bytes.is_some_and(|free| frozen < free)
    }

    /// Whether the state alone is more than there is memory, or a card has no room left for keys and values.
    pub fn too_large(&self) -> bool {
        self.free_bytes.is_some_and(|free| free < self.state_bytes) || self.card_fits == Some(false)
    }
}

/// The most tokens that a prompt and its answer take together, in some meta-episodes in which anything legal is done; `None`
/// where the environment lists no legal actions.
pub fn longest_sequence(recipe: &Recipe, setting: &TrainEnv, renderer: &Arc<Renderer>) -> Result<Option<usize>> {
    Ok(survey(recipe, setting, Some(renderer))?.map(|talk| talk.longest))
}

fn survey(recipe: &Recipe, setting: &TrainEnv, renderer: Option<&Arc<Renderer>>) -> Result<Option<LengthProbe>> {
    let turns = setting.env_spec.max_turns(&setting.population, &recipe.env.split)?;
    let settings = recipe.settings(&EnvInfo { max_turns: turns, ..setting.env_spec.info() });
    settings.validate()?;
    let Some(renderer) = renderer else { return Ok(None) };
    let speech = PromptCodec::new(Arc::clone(renderer), recipe.play.form, recipe.play.thinking)?;
    LengthProbe::survey(recipe, setting, settings, &speech, SAMPLE)
}

/// Seconds that something took which a part of an update is made of.
#[derive(Default)]
struct Trial {
    /// The rollout of some meta-episodes.
    playing: f64,
    /// Passes over as many.
    passing: f64,
    /// One step of the optimiser.
    step: f64,
}

impl Trial {
    /// Plays `sample` meta-episodes and goes over as many in so many passes, twice: the first time warms caches.
    fn of(recipe: &Recipe, setting: &TrainEnv, parts: &mut TrainContext, sample: usize, passes: usize) -> Result<Self> {
        let runtime = crate::train::runtime(recipe.engine.threads)?;
        let seed = Seed::new(recipe.seed).child("plan");
        let seats = setting.env_spec.info().seats;
        let jobs: Vec<RolloutJob> = (0..sample as u64)
            .map(|i| {
                let task = setting.population.draw(&recipe.env.split, seats, seed.at(i))?;
                Ok(RolloutJob { task, seed: seed.child("agent").at(i) })
            })
            .collect::<Result<_>>()?;
        let of_pass = |i: usize| (i + 1) * sample / passes - i * sample / passes;
        let imitation: Vec<TokenForest> = (0..passes)
            .map(|i| parts.school.batch(of_pass(i), seed.child("lesson").at(i as u64), &parts.speech))
            .collect::<Result<_>>()?;
        parts.engines.trainer.publish(&AdapterName::default())?;
        let rollout =
            parts.rollout(setting, Arc::clone(&parts.settings), SamplingParams::default(), "plan".to_owned(), 0);
        let mut trial = Trial::default();
        for _ in 0..2 {
            trial = Trial::default();
            let started = Instant::now();
            rollout.run(&runtime, &jobs, std::time::Duration::MAX, |_| ())?;
            trial.playing = started.elapsed().as_secs_f64();
            for batch in &imitation {
                let started = Instant::now();
                parts.engines.trainer.forward_backward(batch, &Loss::of(Objective::CrossEntropy))?;
                let passed = Instant::now();
                parts.engines.trainer.optim_step(&recipe.optim_step(0))?;
                trial.passing += (passed - started).as_secs_f64();
                trial.step = passed.elapsed().as_secs_f64();
            }
        }
        Ok(trial)
    }
}

/// The process's resident memory, where the system tells.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
