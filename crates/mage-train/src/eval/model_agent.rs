//! Agents that respond with a model: behind an endpoint, in a folder, or the policy of a training run.

use crate::{
    Error, Hub, Result,
    engines::{self, SamplerOptions},
    policy::codec::{PromptCodec, request_seed, to_core_finish, to_engine_messages},
    recipe::Recipe,
    run_dir::ModelAddress,
};
use mage_core::{Completion, EpisodeConfig, Request, TokenUsage, prompt::PromptForm};
use mage_engine::{BoxFuture, ChatPolicy, ChatRequest, Sampler, SamplingParams, Thinking, WeightsName};
use mage_env::{EnvInfo, Hash};
use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    sync::Arc,
};
use tokio::runtime::Handle;

/// Responds to requests with a model.
pub trait Answerer: Send + Sync {
    /// Responds to one request.
    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Completion>>;
}

/// A model as an agent.
#[derive(Clone)]
pub struct ModelAgent {
    /// Display name.
    pub name: String,
    /// Identifier in trajectories: the name, or a hash of local weights.
    pub id: String,
    /// The model.
    pub answerer: Arc<dyn Answerer>,
    /// Decoding parameters. They are part of the method, since they affect results.
    pub decoding: DecodingConfig,
    /// Runtime of the requests.
    pub runtime: Handle,
    /// Maximum concurrent meta-episodes.
    pub max_in_flight: usize,
}

/// Decoding parameters of a model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DecodingConfig {
    /// Sampling parameters; each request sets its own length and seed.
    pub params: SamplingParams,
    /// Whether the model thinks before it responds.
    pub thinking: Thinking,
}

impl ModelAgent {
    /// A chat model. `id` should identify the weights; `name` is the display name.
    pub fn chat(
        name: &str,
        id: &str,
        policy: Arc<dyn ChatPolicy>,
        decoding: DecodingConfig,
        runtime: Handle,
        max_in_flight: usize,
    ) -> Self {
        let answerer = Arc::new(ChatAnswerer { policy, decoding: decoding.clone(), label: id.to_owned() });
        ModelAgent { name: name.to_owned(), id: id.to_owned(), answerer, decoding, runtime, max_in_flight }
    }

    /// A model in a folder or on the Hub, with full prompts.
    pub fn folder(
        name: &str,
        decoding: DecodingConfig,
        options: SamplerOptions,
        runtime: Handle,
        max_in_flight: usize,
    ) -> Result<Self> {
        let dir = Hub::from_env(true).folder(name)?;
        Self::native(name, &dir, PromptForm::Full, decoding, options, runtime, max_in_flight)
    }

    /// The policy of a training run, with the prompt form of its training.
    pub fn of_run(
        policy: &ModelAddress,
        recipe: &Recipe,
        params: SamplingParams,
        options: SamplerOptions,
        runtime: Handle,
        max_in_flight: usize,
    ) -> Result<Self> {
        let decoding = DecodingConfig { params, thinking: recipe.play.thinking };
        Self::native(&policy.label, &policy.model, recipe.play.form, decoding, options, runtime, max_in_flight)
    }

    fn native(
        name: &str,
        dir: &Path,
        form: PromptForm,
        decoding: DecodingConfig,
        options: SamplerOptions,
        runtime: Handle,
        max_in_flight: usize,
    ) -> Result<Self> {
        decoding.params.check()?;
        let id = format!("weights@{}", &weights_hash(dir)?[..32]);
        let (sampler, renderer) = engines::sampler(&dir.to_string_lossy(), options)?;
        let codec = PromptCodec::new(renderer, form, decoding.thinking)?;
        let answerer = Arc::new(NativeAnswerer { codec, sampler, params: decoding.params.clone(), label: id.clone() });
        Ok(ModelAgent { name: name.to_owned(), id, answerer, decoding, runtime, max_in_flight })
    }
}

/// Episode configuration for the policy of a run with `episodes` episodes. If its prompts have fewer memory slots, they
/// contain the latest episodes.
pub fn run_episode_config(recipe: &Recipe, env_info: &EnvInfo, episodes: u32) -> EpisodeConfig {
    let trained = recipe.eval_episode_config(env_info);
    let slots = (trained.prompt_form == PromptForm::Compact).then_some(trained.slots);
    let recall_limit = slots.filter(|slots| episodes as usize > slots + 1).or(trained.recall_limit);
    EpisodeConfig { episodes, recall_limit, ..trained }
}

/// Hash of the weights in a model folder.
fn weights_hash(dir: &Path) -> Result<String> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .map_err(Error::io(dir))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::Run {
            path: dir.to_owned(),
            problem: "the folder has no weights (*.safetensors)".to_owned(),
        });
    }
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        hasher.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        let mut file = File::open(&path).map_err(Error::io(&path))?;
        loop {
            match file.read(&mut buffer).map_err(Error::io(&path))? {
                0 => break,
                n => hasher.update(&buffer[..n]),
            };
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Hash of a method with its decoding parameters.
pub(super) fn method_hash(method: Hash, decoding: &DecodingConfig) -> Hash {
    Hash::of(&(method, decoding))
}

struct ChatAnswerer {
    policy: Arc<dyn ChatPolicy>,
    decoding: DecodingConfig,
    label: String,
}

impl Answerer for ChatAnswerer {
    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let messages = to_engine_messages(&request.body.messages);
            let params = SamplingParams {
                max_tokens: request.body.max_tokens,
                seed: request_seed(request),
                ..self.decoding.params.clone()
            };
            let allowed_completions = request.body.allowed.clone();
            let chat_request = ChatRequest { messages, thinking: self.decoding.thinking, params, allowed_completions };
            let response = self.policy.complete(chat_request).await?;
            Ok(Completion {
                text: response.text,
                tokens: None,
                finish: to_core_finish(response.finish),
                weights: Some(self.label.clone()),
                usage: Some(TokenUsage {
                    prompt_tokens: response.usage.prompt_tokens,
                    completion_tokens: response.usage.completion_tokens,
                }),
            })
        })
    }
}

struct NativeAnswerer {
    codec: PromptCodec,
    sampler: Arc<dyn Sampler>,
    params: SamplingParams,
    label: String,
}

impl Answerer for NativeAnswerer {
    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Completion>> {
        Box::pin(async move {
            let mut sample_request = self.codec.request(&request.body, &self.params, request_seed(request))?;
            sample_request.weights = WeightsName::default();
            let prompt = sample_request.prompt.clone();
            let sample = self.sampler.sample(sample_request).await?;
            self.codec.completion(prompt, sample, &self.label)
        })
    }
}
