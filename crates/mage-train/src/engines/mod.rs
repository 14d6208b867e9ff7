//! Engines: native, or remote training and sampling servers.

pub mod remote;

use crate::{
    Error, Hub, Result,
    policy::codec::{BOS, END},
    recipe::{EngineKind, Recipe},
};
use mage_core::prompt::{CONTROL_WORDS, vocabulary};
use mage_engine::{Renderer, Sampler, Trainer};
use mage_env::{EnvInfo, Seed};
use mage_native::{
    AdapterSize, Config, Device, EngineOptions, LoraConfig, Machine, ModelDescription, NativeAdapter, NativeModel,
    WordControlTokens, word_tokenizer,
};
use mage_remote::StatusLog;
use std::{ffi::OsStr, sync::Arc};

/// A trainer, the sampler of its published weights, and their tokenizer.
pub struct Engines {
    /// Trains and publishes weights.
    pub trainer: Box<dyn Trainer>,
    /// Samples from published weights.
    pub sampler: Arc<dyn Sampler>,
    /// Tokenizer and chat template.
    pub renderer: Arc<Renderer>,
    /// Number of model parameters.
    pub parameters: usize,
    /// Maximum sequence length.
    pub max_seq_len: usize,
    /// Description of the device.
    pub device: String,
}

/// Starts the engine of a recipe.
pub fn start(recipe: &Recipe, env_info: &EnvInfo, status_log: &StatusLog) -> Result<Engines> {
    match recipe.engine.kind {
        EngineKind::Tinker => remote::start(recipe, status_log),
        EngineKind::Native => {
            let mut model = model(recipe, env_info)?;
            let e = &recipe.engine;
            if let Some(lora) = new_adapter(recipe)? {
                if model.adapter().is_some() {
                    return Err(Error::Recipe {
                        location: "engine.lora_rank".to_owned(),
                        problem: "model.path is an adapter; set the rank to 0 to continue training it".to_owned(),
                    });
                }
                model = model.with_new_adapter(&lora, Seed::new(recipe.seed).child("adapter"))?;
            }
            let renderer = model.renderer().cloned().ok_or_else(|| Error::Recipe {
                location: "model.path".to_owned(),
                problem: format!("{} has no tokenizer.json", recipe.model.path),
            })?;
            let (parameters, max_seq_len) = (model.parameters(), model.config().max_position_embeddings);
            let options = EngineOptions {
                threads: e.threads,
                recompute: e.gradient_checkpointing,
                batch_invariant: e.batch_invariant,
                ..EngineOptions::default()
            };
            if let Some(reason) = model.gpu_unused_reason(e.device) {
                status_log.log(reason);
            }
            let (trainer, sampler, device) = model.engines(e.device, options)?;
            Ok(Engines { trainer, sampler: Arc::new(sampler), renderer, parameters, max_seq_len, device })
        }
    }
}

/// Device of a local sampler.
#[derive(Clone, Debug, Default)]
pub struct SamplerOptions {
    /// CPU or GPU.
    pub device: Device,
    /// CPU threads; 0 uses all.
    pub threads: usize,
    /// Whether a request's bits are independent of the batch on a GPU, as they are on the CPU. Slower.
    pub batch_invariant: bool,
    /// Receives the reason if a GPU is present but not used.
    pub status_log: StatusLog,
}

/// A sampler for a model: a folder or a name on the Hub. An adapter is loaded with its base model.
pub fn sampler(name: impl AsRef<OsStr>, options: SamplerOptions) -> Result<(Arc<dyn Sampler>, Arc<Renderer>)> {
    let model = Hub::from_env(false).open(&name)?;
    let renderer = model.renderer().cloned().ok_or_else(|| Error::Recipe {
        location: name.as_ref().to_string_lossy().into_owned(),
        problem: "the model has no tokenizer.json".to_owned(),
    })?;
    let engine_options = EngineOptions {
        threads: options.threads,
        batch_invariant: options.batch_invariant,
        ..EngineOptions::default()
    };
    if let Some(reason) = model.gpu_unused_reason(options.device) {
        options.status_log.log(reason);
    }
    let sampler = model.sampler_on(options.device, engine_options)?;
    Ok((Arc::new(sampler), renderer))
}

/// Memory requirements of an engine, computed without loading weights.
pub struct EngineRequirements {
    /// Description of the model from its files or the recipe.
    pub model: ModelDescription,
    /// Number of trainable parameters, of the model or the adapter.
    pub trainable_parameters: usize,
    /// The adapter, if one is trained.
    pub adapter: Option<AdapterSize>,
    /// Bytes of weights, gradients, optimiser state and published weights (policy and reference).
    pub state_bytes: u64,
}

/// The requirements of a recipe's engine.
pub fn requirements(recipe: &Recipe, env_info: &EnvInfo) -> Result<EngineRequirements> {
    let model = match recipe.model.path.as_str() {
        "" => {
            let (config, renderer) = new_model_config(recipe, env_info)?;
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
    let trainable_parameters = adapter.map_or(model.parameters, |a| a.parameters);
    if recipe.engine.kind == EngineKind::Tinker {
        // The servers hold the state.
        return Ok(EngineRequirements { trainable_parameters, adapter, state_bytes: 0, model });
    }
    // Per trainable parameter: gradient, two moments, published policy and reference, 4 bytes each.
    let weight_bytes =
        if trainable_parameters == model.parameters { model.training_bytes() } else { model.sampling_bytes() };
    let state_bytes = weight_bytes + 20 * trainable_parameters as u64;
    Ok(EngineRequirements { trainable_parameters, adapter, state_bytes, model })
}

fn new_adapter(recipe: &Recipe) -> Result<Option<LoraConfig>> {
    let e = &recipe.engine;
    if e.lora_rank == 0 {
        return Ok(None);
    }
    if recipe.model.path.is_empty() {
        return Err(Error::Recipe {
            location: "engine.lora_rank".to_owned(),
            problem: "LoRA needs a pretrained model; set model.path".to_owned(),
        });
    }
    let alpha = if e.lora_alpha > 0.0 { e.lora_alpha } else { 2.0 * e.lora_rank as f32 };
    Ok(Some(LoraConfig { rank: e.lora_rank, alpha, targets: e.lora_targets.clone() }))
}

fn model(recipe: &Recipe, env_info: &EnvInfo) -> Result<NativeModel> {
    if !recipe.model.path.is_empty() {
        return Hub::from_env(true).open(&recipe.model.path);
    }
    let (config, renderer) = new_model_config(recipe, env_info)?;
    check_memory(&config, Machine::free_memory())?;
    let seed = Seed::new(recipe.seed).child("model");
    Ok(NativeModel::new(config, recipe.model.init_std, seed, Some(Arc::new(renderer)))?)
}

/// Refuses a new model whose weights do not fit into memory.
fn check_memory(config: &Config, free_bytes: Option<u64>) -> Result<()> {
    let model = ModelDescription::from_config(config.clone());
    match free_bytes.filter(|free| *free < model.sampling_bytes()) {
        None => Ok(()),
        Some(free) => Err(Error::Recipe {
            location: "model".to_owned(),
            problem: format!(
                "{} parameters take {} MiB of memory, of which {} MiB are free; lower model.hidden_size, \
                 model.intermediate_size or model.num_layers",
                model.parameters,
                model.sampling_bytes() >> 20,
                free >> 20
            ),
        }),
    }
}

/// Configuration and tokenizer of a new model.
fn new_model_config(recipe: &Recipe, env_info: &EnvInfo) -> Result<(Config, Renderer)> {
    let control = WordControlTokens { bos: BOS.into(), go: "GO".into(), end: END.into(), unknown: "?".into() };
    let control_words = [&control.bos, &control.go, &control.end, &control.unknown];
    let words: Vec<String> = vocabulary(env_info).into_iter().filter(|w| !control_words.contains(&w)).collect();
    debug_assert!(CONTROL_WORDS.len() + env_info.compact_words.len() == words.len() + control_words.len());
    let renderer = word_tokenizer(&words, &control)?;
    let control = renderer.control();
    let config = Config {
        bos_token_id: control.bos,
        eos_token_ids: control.end_of_turn.into_iter().collect(),
        ..new_model_shape(recipe, renderer.vocab_size())
    };
    Ok((config, renderer))
}

fn new_model_shape(recipe: &Recipe, vocab_size: usize) -> Config {
    let m = &recipe.model;
    Config {
        vocab_size,
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
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    }
}

/// Refuses an invalid shape of a new model; errors name the recipe's keys.
pub(crate) fn check_model_shape(recipe: &Recipe) -> Result<()> {
    const KEYS: [(&str, &str); 4] = [
        ("num_hidden_layers", "num_layers"),
        ("num_attention_heads", "num_heads"),
        ("num_key_value_heads", "num_kv_heads"),
        ("max_position_embeddings", "max_seq_len"),
    ];
    let (heads, kv_heads) = (recipe.model.num_heads, recipe.model.num_kv_heads);
    new_model_shape(recipe, 1).check().map_err(|e| match e {
        mage_engine::Error::Invalid { subject, problem } => {
            let field = subject.trim_start_matches("config: ");
            if field == "num_key_value_heads" && kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
                let problem = format!("{heads} is no multiple of model.num_kv_heads = {kv_heads}");
                return Error::Recipe { location: "model.num_heads".to_owned(), problem };
            }
            let key = KEYS.iter().find(|(name, _)| *name == field).map_or(field, |(_, key)| key);
            Error::Recipe { location: format!("model.{key}"), problem }
        }
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_beyond_memory_is_refused() {
        let config = new_model_shape(&Recipe::default(), 50);
        let bytes = ModelDescription::from_config(config.clone()).sampling_bytes();
        assert!(check_memory(&config, None).is_ok() && check_memory(&config, Some(bytes)).is_ok());
        let error = check_memory(&config, Some(bytes - 1)).unwrap_err().to_string();
        assert!(error.starts_with("model: ") && error.contains("lower model.hidden_size"), "{error}");
    }
}
