//! Who computes?

pub mod remote;

use crate::{
    Error, Hub, Result,
    recipe::{EngineKind, Recipe},
};
use mage_core::prompt::{CONTROL_WORDS, vocabulary};
use mage_engine::{Renderer, Sampler, Trainer};
use mage_env::{EnvInfo, Seed};
use mage_native::{
    AdapterSize, Config, Device, EngineOptions, LoraConfig, ModelDescription, NativeAdapter, NativeModel,
    WordControlTokens, word_tokenizer,
};
use mage_remote::StatusLog;
use std::sync::Arc;

/// A trainer, the sampler that sees what it publishes, and the words they share.
pub struct Engines {
    /// Changes weights.
    pub trainer: Box<dyn Trainer>,
    /// Answers.
    pub sampler: Arc<dyn Sampler>,
    /// Tokenizer and template.
    pub renderer: Arc<Renderer>,
    /// How many numbers the model has.
    pub parameters: usize,
    /// Tokens a sequence may have.
    pub context: usize,
    /// On what they compute.
    pub device: String,
}

/// Starts the engine a recipe names.
pub fn start(recipe: &Recipe, env_info: &EnvInfo, notices: &StatusLog) -> Result<Engines> {
    match recipe.engine.kind {
        EngineKind::Tinker => remote::start(recipe, notices),
        EngineKind::Native => {
            let mut model = model(recipe, env_info)?;
            let e = &recipe.engine;
            if let Some(lora) = new_adapter(recipe)? {
                if model.adapter().is_some() {
                    return Err(Error::Recipe {
                        place: "engine.lora_rank".to_owned(),
                        problem: "model.path has an adapter already; leave the rank 0 and that one goes on learning"
                            .to_owned(),
                    });
                }
                model = model.with_new_adapter(&lora, Seed::new(recipe.seed).child("adapter"))?;
            }
            let renderer = model.renderer().cloned().ok_or_else(|| Error::Recipe {
                place: "model.path".to_owned(),
                problem: format!("{} has no tokenizer.json", recipe.model.path),
            })?;
            let (parameters, context) = (model.parameters(), model.config().max_position_embeddings);
            let options = EngineOptions {
                threads: e.threads,
                recompute: e.gradient_checkpointing,
                batch_invariant: e.batch_invariant,
                ..EngineOptions::default()
            };
            if let Some(why) = model.gpu_unused_reason(e.device) {
                notices.say(why);
            }
            let (trainer, sampler, device) = model.engines(e.device, options)?;
            Ok(Engines { trainer, sampler: Arc::new(sampler), renderer, parameters, context, device })
        }
    }
}

/// Where a model on this machine computes.
#[derive(Clone, Debug, Default)]
pub struct SamplerOptions {
    /// The processor or a card.
    pub device: Device,
    /// Threads of the processor; 0 takes all.
    pub threads: usize,
    /// Who hears why a card is not used.
    pub notices: StatusLog,
}

/// A sampler alone, for a model: a folder, or a name on the Hub; an adapter's brings its model along. What it answers does
/// not depend on what else it is asked, on a card either.
pub fn sampler(name: &str, place: SamplerOptions) -> Result<(Arc<dyn Sampler>, Arc<Renderer>)> {
    let model = Hub::from_env(false).open(name)?;
    let renderer = model
        .renderer()
        .cloned()
        .ok_or_else(|| Error::Recipe { place: name.to_owned(), problem: "it has no tokenizer.json".to_owned() })?;
    let options = EngineOptions { threads: place.threads, batch_invariant: true, ..EngineOptions::default() };
    if let Some(why) = model.gpu_unused_reason(place.device) {
        place.notices.say(why);
    }
    let sampler = model.sampler_on(place.device, options)?;
    Ok((Arc::new(sampler), renderer))
}

/// What an engine would take, before anything is loaded.
pub struct EngineRequirements {
    /// What the files or the recipe say of the model.
    pub model: ModelDescription,
    /// How many of its numbers, or of those beside them, learn.
    pub learning: usize,
    /// The adapter, where that is what learns.
    pub adapter: Option<AdapterSize>,
    /// Bytes of weights, gradients and optimiser, and what samplers hold (the policy and the reference).
    pub state_bytes: u64,
}

/// Works out what a recipe's engine would take.
pub fn needs(recipe: &Recipe, env_info: &EnvInfo) -> Result<EngineRequirements> {
    let model = match recipe.model.path.as_str() {
        "" => {
            let (config, renderer) = new_shape(recipe, env_info)?;
            config.check()?;
            ModelDescription { renderer: Some(Arc::new(renderer)), ..ModelDescription::from_config(config) }
        }
        path => Hub::from_env(true).describe(path)?,
    };
    let adapter = match new_adapter(recipe)? {
        Some(lora) => Some(NativeAdapter::new(&model.config, &lora, Seed::new(0))?),
        None => Hub::from_env(true).adapter(&recipe.model.path, &model.config)?,
    };
    let adapter = adapter.map(|a| a.size());
    let learning = adapter.map_or(model.parameters, |a| a.parameters);
    if recipe.engine.kind == EngineKind::Tinker {
        // Servers hold them.
        return Ok(EngineRequirements { learning, adapter, state_bytes: 0, model });
    }
    // A gradient and two moments of what learns; the published policy and the reference are each a copy of it.
    let rest = if learning == model.parameters { model.training_bytes() } else { model.sampling_bytes() };
    Ok(EngineRequirements { learning, adapter, state_bytes: rest + 20 * learning as u64, model })
}

fn new_adapter(recipe: &Recipe) -> Result<Option<LoraConfig>> {
    let e = &recipe.engine;
    if e.lora_rank == 0 {
        return Ok(None);
    }
    if recipe.model.path.is_empty() {
        return Err(Error::Recipe {
            place: "engine.lora_rank".to_owned(),
            problem: "an adapter stands beside a model that knows something; set model.path".to_owned(),
        });
    }
    let alpha = if e.lora_alpha > 0.0 { e.lora_alpha } else { 2.0 * e.lora_rank as f32 };
    Ok(Some(LoraConfig { rank: e.lora_rank, alpha, targets: e.lora_targets.clone() }))
}

fn model(recipe: &Recipe, env_info: &EnvInfo) -> Result<NativeModel> {
    if !recipe.model.path.is_empty() {
        return Hub::from_env(true).open(&recipe.model.path);
    }
    let (config, renderer) = new_shape(recipe, env_info)?;
    let seed = Seed::new(recipe.seed).child("model");
    Ok(NativeModel::new(config, recipe.model.init_std, seed, Some(Arc::new(renderer)))?)
}

/// The shape and the words of a new model.
fn new_shape(recipe: &Recipe, env_info: &EnvInfo) -> Result<(Config, Renderer)> {
    let control = WordControlTokens { bos: "BOS".into(), go: "GO".into(), end: "END".into(), unknown: "?".into() };
    let ours = [&control.bos, &control.go, &control.end, &control.unknown];
    let words: Vec<String> = vocabulary(env_info).into_iter().filter(|w| !ours.contains(&w)).collect();
    debug_assert!(CONTROL_WORDS.len() + env_info.compact_words.len() == words.len() + ours.len());
    let renderer = word_tokenizer(&words, &control)?;
    let m = &recipe.model;
    let config = Config {
        vocab_size: renderer.vocab_size(),
        hidden_size: m.hidden_size,
        intermediate_size: m.intermediate_size,
        num_hidden_layers: m.num_layers,
        num_attention_heads: m.num_heads,
        num_key_value_heads: m.num_kv_heads,
        head_dim: m.head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: m.tie_embeddings,
        max_position_embeddings: m.max_seq_len,
        bos_token_id: renderer.control().bos,
        eos_token_ids: renderer.control().end_of_turn.into_iter().collect(),
    };
    Ok((config, renderer))
}
