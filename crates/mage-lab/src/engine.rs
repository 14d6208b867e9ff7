//! Who computes?

use crate::{
    Error, Hub, Result,
    recipe::{EngineKind, Recipe},
};
use mage_core::prompt::{CONTROL_WORDS, vocabulary};
use mage_engine::{Renderer, Sampler, Trainer};
use mage_env::{Schema, Seed};
use mage_native::{Config, Control, Lora, NativeModel, Options, word_tokenizer};
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
}

/// Starts the engine a recipe names.
pub fn start(recipe: &Recipe, schema: &Schema) -> Result<Engines> {
    match recipe.engine.kind {
        EngineKind::Native => {
            let mut model = model(recipe, schema)?;
            let e = &recipe.engine;
            if e.lora_rank > 0 {
                let refuse = |problem: &str| {
                    Err(Error::Recipe { place: "engine.lora_rank".to_owned(), problem: problem.to_owned() })
                };
                if recipe.model.path.is_empty() {
                    return refuse("an adapter stands beside a model that knows something; set model.path");
                }
                if model.adapter().is_some() {
                    return refuse("model.path has an adapter already; leave the rank 0 and that one goes on learning");
                }
                let alpha = if e.lora_alpha > 0.0 { e.lora_alpha } else { 2.0 * e.lora_rank as f32 };
                let lora = Lora { rank: e.lora_rank, alpha, targets: e.lora_targets.clone() };
                model = model.with_new_adapter(&lora, Seed::new(recipe.seed).child("adapter"))?;
            }
            let renderer = model.renderer().cloned().ok_or_else(|| Error::Recipe {
                place: "model.path".to_owned(),
                problem: format!("{} has no tokenizer.json", recipe.model.path),
            })?;
            let (parameters, context) = (model.parameters(), model.config().max_position_embeddings);
            let options = Options { threads: e.threads, recompute: e.recompute, ..Options::default() };
            let (trainer, sampler) = model.train(options)?;
            Ok(Engines { trainer: Box::new(trainer), sampler: Arc::new(sampler), renderer, parameters, context })
        }
    }
}

/// A sampler alone, for a model: a folder, or a name on the Hub; an adapter's brings its model along.
pub fn sampler(name: &str, threads: usize) -> Result<(Arc<dyn Sampler>, Arc<Renderer>)> {
    let model = Hub::from_env(false).open(name)?;
    let renderer = model
        .renderer()
        .cloned()
        .ok_or_else(|| Error::Recipe { place: name.to_owned(), problem: "it has no tokenizer.json".to_owned() })?;
    let sampler = model.sampler(Options { threads, ..Options::default() })?;
    Ok((Arc::new(sampler), renderer))
}

fn model(recipe: &Recipe, schema: &Schema) -> Result<NativeModel> {
    if !recipe.model.path.is_empty() {
        return Hub::from_env(true).open(&recipe.model.path);
    }
    let control = Control { bos: "BOS".into(), go: "GO".into(), end: "END".into(), unknown: "?".into() };
    let ours = [&control.bos, &control.go, &control.end, &control.unknown];
    let words: Vec<String> = vocabulary(schema).into_iter().filter(|w| !ours.contains(&w)).collect();
    debug_assert!(CONTROL_WORDS.len() + schema.compact_words.len() == words.len() + ours.len());
    let renderer = word_tokenizer(&words, &control)?;
    let m = &recipe.model;
    let config = Config {
        vocab_size: renderer.vocabulary(),
        hidden_size: m.hidden_size,
        intermediate_size: m.intermediate_size,
        num_hidden_layers: m.layers,
        num_attention_heads: m.heads,
        num_key_value_heads: m.kv_heads,
        head_dim: m.head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: m.tied,
        max_position_embeddings: m.context,
        bos_token_id: renderer.control().bos,
        eos_token_ids: renderer.control().end_of_turn.into_iter().collect(),
    };
    let seed = Seed::new(recipe.seed).child("model");
    Ok(NativeModel::new(config, m.spread, seed, Some(Arc::new(renderer)))?)
}
