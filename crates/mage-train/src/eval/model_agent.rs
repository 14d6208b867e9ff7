//! Which model sits down to play?
//!
//! One behind an endpoint, one in a folder, or the policy of a training run: all of them answer calls.

use crate::{
    Error, Hub, Result,
    engines::{self, SamplerOptions},
    policy::codec::{PromptCodec, as_engines_say, call_seed, finish},
    recipe::Recipe,
    run_dir::last_model,
};
use mage_core::{Completion, EpisodeConfig, Request, TokenUsage, prompt::PromptForm};
use mage_engine::{AdapterName, BoxFuture, ChatPolicy, ChatRequest, Sampler, SamplingParams, Thinking};
use mage_env::{EnvInfo, Hash};
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    sync::Arc,
};
use tokio::runtime::Handle;

/// Answers calls with a model.
pub trait Answerer: Send + Sync {
    /// Answers one call.
    fn answer<'a>(&'a self, call: &'a Request) -> BoxFuture<'a, Result<Completion>>;
}

/// A model that plays.
#[derive(Clone)]
pub struct ModelAgent {
    /// What people call it.
    pub name: String,
    /// What records call it: a name, and a hash of its weights where they are at hand.
    pub id: String,
    /// Who answers.
    pub answerer: Arc<dyn Answerer>,
    /// How answers are drawn: a part of the method, since other draws are other results.
    pub drawn: DecodingConfig,
    /// Where it runs.
    pub runtime: Handle,
    /// How many meta-episodes are under way at once.
    pub in_flight: usize,
}

/// How a model's answers come about.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DecodingConfig {
    /// How tokens are drawn; length and seed are each call's own.
    pub params: SamplingParams,
    /// Whether it thinks first.
    pub thinking: Thinking,
}

impl ModelAgent {
    /// A chat model; `id` should name the weights, `name` is for people.
    pub fn chat(
        name: &str,
        id: &str,
        policy: Arc<dyn ChatPolicy>,
        drawn: DecodingConfig,
        runtime: Handle,
        in_flight: usize,
    ) -> Self {
        let answerer = Arc::new(ChatAnswerer { policy, drawn: drawn.clone(), label: id.to_owned() });
        ModelAgent { name: name.to_owned(), id: id.to_owned(), answerer, drawn, runtime, in_flight }
    }

    /// A model in a folder or on the Hub, in full prompts.
    pub fn folder(
        name: &str,
        drawn: DecodingConfig,
        place: SamplerOptions,
        runtime: Handle,
        in_flight: usize,
    ) -> Result<Self> {
        let dir = Hub::from_env(true).folder(name)?;
        Self::native(name, &dir, PromptForm::Full, drawn, place, runtime, in_flight)
    }

    /// The newest policy of a training run, in the prompts it was trained on.
    pub fn of_run(
        run: &Path,
        recipe: &Recipe,
        params: SamplingParams,
        place: SamplerOptions,
        runtime: Handle,
        in_flight: usize,
    ) -> Result<Self> {
        let drawn = DecodingConfig { params, thinking: recipe.play.thinking };
        let dir = last_model(run)?;
        Self::native(&run.to_string_lossy(), &dir, recipe.play.form, drawn, place, runtime, in_flight)
    }

    fn native(
        name: &str,
        dir: &Path,
        size: PromptForm,
        drawn: DecodingConfig,
        place: SamplerOptions,
        runtime: Handle,
        in_flight: usize,
    ) -> Result<Self> {
        drawn.params.check()?;
        let id = format!("weights@{}", &weights_hash(dir)?[..32]);
        let (sampler, renderer) = engines::sampler(&dir.to_string_lossy(), place)?;
        let speech = PromptCodec::new(renderer, size, drawn.thinking)?;
        let answerer = Arc::new(NativeAnswerer { speech, sampler, params: drawn.params.clone(), label: id.clone() });
        Ok(ModelAgent { name: name.to_owned(), id, answerer, drawn, runtime, in_flight })
    }
}

/// How a run's policy plays panels of `episodes` episodes: as it was trained, the latest episodes in memory where its prompts
/// have no room for all.
pub fn run_settings(recipe: &Recipe, env_info: &EnvInfo, episodes: u32) -> EpisodeConfig {
    let trained = recipe.eval_settings(env_info);
    let room = (trained.prompt_form == PromptForm::Compact).then_some(trained.slots);
    let too_small = room.filter(|slots| episodes as usize > slots + 1);
    EpisodeConfig { episodes, recall_limit: too_small.or(trained.recall_limit), ..trained }
}

/// A hash of the numbers in a model's folder.
fn weights_hash(dir: &Path) -> Result<String> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .map_err(Error::io(dir))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::Run { path: dir.to_owned(), problem: "it has no weights (*.safetensors)".to_owned() });
    }
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 20];
    for path in files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let mut file = File::open(&path).map_err(Error::io(&path))?;
        loop {
            match file.read(&mut piece).map_err(Error::io(&path))? {
                0 => break,
                n => hasher.update(&piece[..n]),
            };
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The hash that sets apart how a method is drawn.
pub(super) fn method_hash(method: Hash, drawn: &DecodingConfig) -> Hash {
    Hash::of(&(method, drawn))
}

struct ChatAnswerer {
    policy: Arc<dyn ChatPolicy>,
    drawn: DecodingConfig,
    label: String,
}

impl Answerer for ChatAnswerer {
    fn answer<'a>(&'a self, call: &'a Request) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let messages = as_engines_say(&call.body.messages);
            let params =
                SamplingParams { max_tokens: call.body.max_tokens, seed: call_seed(call), ..self.drawn.params.clone() };
            let answers = call.body.allowed.clone();
            let request = ChatRequest { messages, thinking: self.drawn.thinking, params, allowed_completions: answers };
            let said = self.policy.complete(request).await?;
            Ok(Completion {
                text: said.text,
                tokens: None,
                finish: finish(said.finish),
                weights: Some(self.label.clone()),
                usage: Some(TokenUsage {
                    prompt_tokens: said.usage.prompt_tokens,
                    completion_tokens: said.usage.completion_tokens,
                }),
            })
        })
    }
}

struct NativeAnswerer {
    speech: PromptCodec,
    sampler: Arc<dyn Sampler>,
    params: SamplingParams,
    label: String,
}

impl Answerer for NativeAnswerer {
    fn answer<'a>(&'a self, call: &'a Request) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let mut request = self.speech.request(&call.body, &self.params, call_seed(call))?;
            request.weights = AdapterName::default();
            let prompt = request.prompt.clone();
            let sample = self.sampler.sample(request).await?;
            self.speech.answer(prompt, sample, &self.label)
        })
    }
}
