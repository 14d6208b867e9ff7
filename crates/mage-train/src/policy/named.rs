//! Policies by name: scripted agents, models in folders, policies of runs, endpoints.

use super::{
    ChatPolicy, CompletionCounter, ModelPolicy, Policy, ScriptedPolicy, codec::PromptCodec, counter::CountedPolicy,
};
use crate::{
    Error, Hub, Result,
    engines::{self, SamplerOptions},
    recipe::Recipe,
    run_dir::ModelAddress,
};
use mage_core::{EpisodeConfig, prompt::PromptForm};
use mage_engine::{ChatModel, SamplingParams, Thinking, WeightsName};
use mage_env::{EnvInfo, EnvSpec, Hash, Population, ScriptedAgentFactory, ScriptedAgentQuery, Seed, Task};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    path::Path,
    sync::Arc,
};

/// Concurrent meta-episodes of a local model.
const LOCAL_CONCURRENCY: usize = 256;

/// A policy with the name and identifier under which its results are stored.
#[derive(Clone)]
pub struct NamedPolicy {
    /// Display name.
    pub name: String,
    /// Identifier in trajectories: the name, with a hash of what determines the policy.
    pub id: String,
    /// Decoding parameters of a model. They are part of the method, since they affect results.
    pub decoding: Option<DecodingConfig>,
    /// Maximum concurrent meta-episodes.
    pub max_in_flight: usize,
    /// What responds.
    pub kind: PolicyKind,
    /// Completions of models so far; clones share it.
    pub counter: Arc<CompletionCounter>,
}

/// What responds to the requests of a [`NamedPolicy`].
#[derive(Clone)]
pub enum PolicyKind {
    /// A model in this process or on a training server.
    Model(ModelPolicy),
    /// A chat model.
    Chat(ChatPolicy),
    /// Random legal actions.
    Random,
    /// A scripted agent of the environment.
    Scripted(Arc<dyn ScriptedAgentFactory>),
}

/// Decoding parameters of a model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DecodingConfig {
    /// Sampling parameters; each request sets its own length and seed.
    pub params: SamplingParams,
    /// Whether the model thinks before it responds.
    pub thinking: Thinking,
}

impl NamedPolicy {
    /// The policy without a model of this name: `random`, or a scripted agent of the environment.
    pub fn scripted(
        env_spec: &dyn EnvSpec,
        name: &str,
        population: &Population,
        split: &str,
        episodes: u32,
    ) -> Result<Self> {
        let (id, kind) = match name {
            "random" => (name.to_owned(), PolicyKind::Random),
            _ => {
                let factory = env_spec.scripted_agent(&ScriptedAgentQuery { name, population, split, episodes })?;
                // Agents of one name that were built for different tasks have different identifiers.
                let hash = Hash::of(&(population, split, episodes)).to_string();
                (format!("{name}@{}", &hash[..12]), PolicyKind::Scripted(factory))
            }
        };
        Ok(NamedPolicy {
            name: name.to_owned(),
            id,
            decoding: None,
            max_in_flight: LOCAL_CONCURRENCY,
            kind,
            counter: Arc::default(),
        })
    }

    /// A chat model. `id` should identify the weights; `name` is the display name.
    pub fn chat(
        name: &str,
        id: &str,
        model: Arc<dyn ChatModel>,
        decoding: DecodingConfig,
        max_in_flight: usize,
    ) -> Self {
        let kind = PolicyKind::Chat(ChatPolicy { model, decoding: decoding.clone(), label: id.to_owned() });
        let (name, id, decoding) = (name.to_owned(), id.to_owned(), Some(decoding));
        NamedPolicy { name, id, decoding, max_in_flight, kind, counter: Arc::default() }
    }

    /// A model in a folder or on the Hub for an environment: with compact prompts if it has a compact vocabulary, which
    /// must be the environment's, otherwise with full prompts. It thinks unless `thinking` says otherwise or its
    /// tokenizer has no thinking tags.
    pub fn folder(
        name: &OsStr,
        env_info: &EnvInfo,
        params: SamplingParams,
        thinking: Option<Thinking>,
        options: SamplerOptions,
    ) -> Result<Self> {
        let dir = Hub::from_env(true).folder(name)?;
        let policy = Self::native(&name.to_string_lossy(), &dir, None, params, thinking, options)?;
        if let PolicyKind::Model(model) = &policy.kind
            && let Some(word) = env_info.compact_words.iter().find_map(|words| model.codec.unknown_word(words))
        {
            let problem = format!(
                "the model has a compact vocabulary without the word `{word}` of {}; name the environment that it was \
                 trained for",
                env_info.title
            );
            return Err(Error::Run { path: dir, problem });
        }
        Ok(policy)
    }

    /// The prompt form that a model needs; `None` for others.
    pub fn prompt_form(&self) -> Option<PromptForm> {
        match &self.kind {
            PolicyKind::Model(model) => Some(model.codec.form()),
            PolicyKind::Chat(_) => Some(PromptForm::Full),
            PolicyKind::Random | PolicyKind::Scripted(_) => None,
        }
    }

    /// The policy of a training run, with the prompt form of its training. A damaged checkpoint is an error.
    pub fn of_run(
        address: &ModelAddress,
        recipe: &Recipe,
        decoding: DecodingConfig,
        options: SamplerOptions,
    ) -> Result<Self> {
        address.verify()?;
        let DecodingConfig { params, thinking } = decoding;
        Self::native(&address.label, &address.model, Some(recipe.play.form), params, Some(thinking), options)
    }

    fn native(
        name: &str,
        dir: &Path,
        form: Option<PromptForm>,
        params: SamplingParams,
        thinking: Option<Thinking>,
        options: SamplerOptions,
    ) -> Result<Self> {
        params.check()?;
        let base = Hub::from_env(false).base(dir)?.map(|(_, folder)| folder);
        let id = format!("weights@{}", &weights_hash(dir, base.as_deref())?[..32]);
        let (sampler, renderer) = engines::sampler(dir, options)?;
        let thinking = thinking.unwrap_or(match renderer.control().think_end {
            Some(_) => Thinking::On,
            None => Thinking::Off,
        });
        let form = form.unwrap_or_else(|| PromptCodec::form_of(&renderer));
        let codec = Arc::new(PromptCodec::new(renderer, form, thinking)?);
        let decoding = DecodingConfig { params: params.clone(), thinking };
        let policy = ModelPolicy { codec, sampler, params, weights: WeightsName::default(), label: id.clone() };
        Ok(NamedPolicy {
            name: name.to_owned(),
            id,
            decoding: Some(decoding),
            max_in_flight: LOCAL_CONCURRENCY,
            kind: PolicyKind::Model(policy),
            counter: Arc::default(),
        })
    }

    /// The policy in one meta-episode. `seed` determines its own randomness; models draw from the seeds of requests.
    pub fn start(&self, config: &Arc<EpisodeConfig>, task: &Task, seed: Seed) -> Result<Box<dyn Policy>> {
        Ok(match &self.kind {
            PolicyKind::Model(policy) => Box::new(self.counted(policy)),
            PolicyKind::Chat(policy) => Box::new(self.counted(policy)),
            PolicyKind::Random => Box::new(ScriptedPolicy::random(Arc::clone(config), seed)),
            PolicyKind::Scripted(factory) => {
                let agent = factory.make(task, seed.child("scripted_agent"));
                Box::new(ScriptedPolicy::agent(Arc::clone(config), agent)?)
            }
        })
    }

    fn counted<P: Clone>(&self, policy: &P) -> CountedPolicy<P> {
        CountedPolicy { inner: policy.clone(), counter: Arc::clone(&self.counter) }
    }

    /// Identifier of a prompt method with the decoding parameters of this policy.
    pub fn method_hash(&self, method: Hash) -> Hash {
        self.decoding.as_ref().map_or(method, |decoding| Hash::of(&(method, decoding)))
    }
}

/// Hash of the weights in a model folder, and for an adapter of those of its base model.
fn weights_hash(dir: &Path, base: Option<&Path>) -> Result<String> {
    let mut files = Vec::new();
    for folder in [dir].into_iter().chain(base) {
        let mut weights: Vec<_> = fs::read_dir(folder)
            .map_err(Error::io(folder))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            .collect();
        if weights.is_empty() {
            return Err(Error::Run {
                path: folder.to_owned(),
                problem: "the folder has no weights (*.safetensors)".to_owned(),
            });
        }
        weights.sort();
        files.append(&mut weights);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_on_another_base_model_has_another_hash() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str, content: &str| {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("model.safetensors"), content).unwrap();
            folder
        };
        let (adapter, first, second) = (folder("adapter", "a"), folder("first", "1"), folder("second", "2"));
        let hash = |base: Option<&Path>| weights_hash(&adapter, base).unwrap();
        assert_ne!(hash(Some(&first)), hash(Some(&second)));
        assert_ne!(hash(Some(&first)), hash(None));
        assert_eq!(hash(Some(&first)), hash(Some(&folder("copy", "1"))), "a copied base is the same base");
    }
}
