//! The policies of an evaluation: each policy on the command line with each prompt method.

use super::setup::EvalSetup;
use crate::{
    cli::{EndpointArgs, EvalArgs, MemoryArg, SamplingArgs, Switch},
    output::Output,
    usage,
};
use anyhow::Context;
use mage_core::{Embeddings, EpisodeConfig, Lexical, MemoryFactory, MemoryScope, PromptMethod, prompt::PromptForm};
use mage_engine::{SamplingParams, Thinking};
use mage_remote::{ApiKey, Endpoint, OpenAiClient, RemoteChat, RemoteEmbeddings, RequestLimits, TokenPrices};
use mage_train::{
    Evaluator,
    policy::{DecodingConfig, NamedPolicy},
    recipe::Recipe,
    run_dir::{ModelAddress, RunDir},
    train::eval_seed,
};
use std::{ffi::OsStr, path::Path, sync::Arc, time::Duration};
use tokio::runtime::Handle;

/// One policy with one prompt method and all seeds.
pub(super) struct EvalPolicy {
    /// Display name.
    pub(super) name: String,
    /// Prompt method; `None` for a trained policy with the method of its training.
    pub(super) prompt_method: Option<PromptMethod>,
    pub(super) scope: MemoryScope,
    /// Embeddings of methods that retrieve from memory.
    pub(super) embeddings: Option<String>,
    /// One evaluator per seed.
    pub(super) evaluators: Vec<Arc<Evaluator>>,
    /// Clients of its endpoints.
    pub(super) clients: Vec<OpenAiClient>,
}

/// A policy without a prompt method.
struct PolicySource {
    policy: NamedPolicy,
    config: EpisodeConfig,
    /// Maximum game states for exact expectations.
    exact_max_states: usize,
    /// Whether it was trained with a memory.
    trained: bool,
    /// Client of its endpoint, if it has one.
    client: Option<OpenAiClient>,
}

impl PolicySource {
    /// A policy without a run.
    fn untrained(policy: NamedPolicy, config: EpisodeConfig) -> Self {
        let exact_max_states = Recipe::default().eval.exact_max_states;
        PolicySource { policy, config, exact_max_states, trained: false, client: None }
    }
}

/// Text similarity of the methods that retrieve from memory.
struct EmbeddingSource {
    embeddings: Arc<dyn Embeddings>,
    /// Client of its endpoint, if it has one.
    client: Option<OpenAiClient>,
}

/// All policies of the command line. Embedding requests run on `runtime`.
pub(super) fn policies(
    args: &EvalArgs,
    setup: &EvalSetup,
    runtime: &Handle,
    out: &Output,
) -> anyhow::Result<Vec<EvalPolicy>> {
    let methods: Vec<PromptMethod> = match args.memory {
        Some(MemoryArg::None) => vec![PromptMethod::React],
        Some(MemoryArg::Reflection) => vec![PromptMethod::Reflexion],
        None => args.method.iter().map(|m| PromptMethod::named(m)).collect::<Result<_, _>>().map_err(usage)?,
    };
    let scope = if args.shared_memory { MemoryScope::Shared } else { MemoryScope::MetaEpisode };
    let embeddings = embeddings(&args.remote, runtime, out)?;
    // Invalid sampling options are errors even if only scripted agents are evaluated.
    sampling(&args.sampling, paper_sampling()).check().map_err(usage)?;
    let mut sources = Vec::new();
    for policy in &args.policies {
        sources.push(source(args, setup, policy)?);
    }
    if let (Some(url), Some(model)) = (&args.remote.endpoint, &args.remote.model) {
        sources.push(remote(args, setup, url, model, out)?);
    }
    let several = methods.len() > 1;
    let mut all = Vec::new();
    for source in &sources {
        let source_methods: Vec<Option<PromptMethod>> = match methods.as_slice() {
            [] if source.trained => vec![None],
            [] => vec![Some(PromptMethod::Reflexion)],
            methods => methods.iter().copied().map(Some).collect(),
        };
        for method in source_methods {
            all.push(policy(args, setup, source, method, scope, &embeddings, several)?);
        }
    }
    Ok(all)
}

fn policy(
    args: &EvalArgs,
    setup: &EvalSetup,
    source: &PolicySource,
    method: Option<PromptMethod>,
    scope: MemoryScope,
    embeddings: &EmbeddingSource,
    several: bool,
) -> anyhow::Result<EvalPolicy> {
    let mut config = method.map_or_else(|| source.config.clone(), |m| m.configure(source.config.clone()));
    config.recall_limit = args.recall.or(config.recall_limit);
    // With several methods, --shared-memory applies to those that support it.
    let scope = match method {
        Some(m) if m.can_share() => scope,
        _ if several => MemoryScope::MetaEpisode,
        _ => scope,
    };
    let retrieves = method.is_some_and(PromptMethod::can_share);
    let name = match method {
        Some(m) if several || retrieves => format!("{}/{}", source.policy.name, m.name()),
        _ => source.policy.name.clone(),
    };
    // All seeds share one counter of completions, other prompt methods of the same model do not.
    let named = NamedPolicy { counter: Arc::default(), ..source.policy.clone() };
    let evaluators = (0..setup.seeds).map(|i| {
        let builder = setup.env.meta_episodes(config.clone());
        let builder = match method {
            None => builder,
            // Each seed has its own memory.
            Some(m) => {
                let (config, prompts) = (Arc::clone(builder.config()), Arc::clone(&setup.env.prompts));
                let memories =
                    MemoryFactory::new(m, scope, Arc::clone(&embeddings.embeddings), config, prompts).map_err(usage)?;
                builder.with_memories(Arc::new(memories))
            }
        };
        Ok(Arc::new(Evaluator {
            builder,
            policy: named.clone(),
            task_set: setup.task_set.clone(),
            seed: eval_seed(setup.seed.wrapping_add(i)),
            exact_max_states: source.exact_max_states,
            policy_must_not_fail: false,
            stop: Arc::clone(&setup.stop),
        }))
    });
    let evaluators = evaluators.collect::<anyhow::Result<_>>()?;
    let clients = source.client.iter().chain(embeddings.client.iter().filter(|_| retrieves)).cloned().collect();
    let embeddings = retrieves.then(|| embeddings.embeddings.id().to_owned());
    Ok(EvalPolicy { name, prompt_method: method, scope, embeddings, evaluators, clients })
}

/// A policy named on the command line.
fn source(args: &EvalArgs, setup: &EvalSetup, policy: &OsStr) -> anyhow::Result<PolicySource> {
    let address = ModelAddress::resolve(policy).map_err(usage)?;
    let name = &*policy.to_string_lossy();
    if let Some((address, run)) = address.as_ref().and_then(|a| Some((a, a.run.as_ref()?))) {
        let recipe: Recipe = RunDir::recipe(run)?;
        if recipe.env.name != setup.env_name {
            let (trained, env) = (&recipe.env.name, &setup.env_name);
            return Err(usage(format!("{name} was trained on {trained}, and this evaluation is on {env}")));
        }
        let params = sampling(&args.sampling, recipe.eval_sampling());
        params.check().map_err(usage)?;
        let thinking = thinking(&args.sampling).unwrap_or(recipe.play.thinking);
        let decoding = DecodingConfig { params, thinking };
        let policy = NamedPolicy::of_run(address, &recipe, decoding, args.sampler_options())?;
        let mut config = setup.env.eval_episode_config(&recipe, &setup.split, setup.episodes)?;
        config.max_turns = args.max_turns.unwrap_or(config.max_turns);
        config.early_stop = args.early_stop;
        let (config, exact_max_states) = (limit_tokens(config, &args.sampling), recipe.eval.exact_max_states);
        return Ok(PolicySource { policy, config, exact_max_states, trained: true, client: None });
    }
    if Path::new(policy).is_dir() || name.contains('/') {
        let params = sampling(&args.sampling, paper_sampling());
        let env_info = setup.env.env_spec.info();
        let (thinking, options) = (thinking(&args.sampling), args.sampler_options());
        let policy = NamedPolicy::folder(policy, &env_info, params, thinking, options).map_err(usage)?;
        let config = match policy.prompt_form() {
            Some(PromptForm::Compact) => limit_tokens(compact_config(args, setup), &args.sampling),
            _ => text_config(args, setup),
        };
        return Ok(PolicySource::untrained(policy, config));
    }
    let (env_spec, population) = (&*setup.env.env_spec, &setup.env.population);
    let policy = NamedPolicy::scripted(env_spec, name, population, &setup.split, setup.episodes).map_err(usage)?;
    Ok(PolicySource::untrained(policy, compact_config(args, setup)))
}

/// The model behind the endpoint.
fn remote(args: &EvalArgs, setup: &EvalSetup, url: &str, model: &str, out: &Output) -> anyhow::Result<PolicySource> {
    let mut endpoint = endpoint(&args.remote, url, model, out)?;
    endpoint.send_thinking = args.sampling.thinking.is_some();
    prices(&args.remote)?;
    let params = sampling(&args.sampling, paper_sampling());
    let decoding = DecodingConfig { params, thinking: thinking(&args.sampling).unwrap_or(Thinking::On) };
    // The identifier includes thinking and extra fields, so that stored results of other requests are not reused.
    let thinking = args.sampling.thinking.map(|t| format!("thinking {}", if t == Switch::On { "on" } else { "off" }));
    let fields = thinking.into_iter().chain(args.remote.extra_body.iter().cloned());
    let id = fields.fold(format!("{model} at {}", endpoint.address()), |id, field| format!("{id}, {field}"));
    let client = OpenAiClient::new(endpoint).map_err(usage)?;
    let chat = Arc::new(RemoteChat::new(client.clone()));
    let policy = NamedPolicy::chat(model, &id, chat, decoding, args.remote.max_in_flight);
    Ok(PolicySource { client: Some(client), ..PolicySource::untrained(policy, text_config(args, setup)) })
}

fn endpoint(remote: &EndpointArgs, url: &str, model: &str, out: &Output) -> anyhow::Result<Endpoint> {
    let mut endpoint = Endpoint::new(url, model).map_err(usage)?;
    let variable = remote.key_env.as_deref().unwrap_or("MAGE_API_KEY");
    endpoint.key = ApiKey::from_env(variable).map_err(usage)?;
    if endpoint.key.is_none() && remote.key_env.is_some() {
        out.warn(format!("--key-env: {variable} is not set; requests to {url} have no API key"));
    }
    endpoint.limits = RequestLimits {
        max_in_flight: remote.max_in_flight,
        attempt_timeout: Duration::from_secs_f64(remote.timeout),
        deadline: Duration::from_secs_f64(remote.deadline),
    };
    for field in &remote.extra_body {
        let (key, value) =
            field.split_once('=').ok_or_else(|| usage(format!("--extra-body {field}: expected KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        endpoint.extra.insert(key.to_owned(), value);
    }
    Ok(endpoint)
}

/// Prices per million tokens, if given.
pub(super) fn prices(remote: &EndpointArgs) -> anyhow::Result<Option<TokenPrices>> {
    let prices = match remote.price.as_slice() {
        [] => return Ok(None),
        [prompt, completion] => TokenPrices { prompt: *prompt, completion: *completion },
        _ => return Err(usage("--price: expected two prices, of a million prompt tokens and completion tokens")),
    };
    prices.check().map_err(usage)?;
    Ok(Some(prices))
}

fn embeddings(remote: &EndpointArgs, runtime: &Handle, out: &Output) -> anyhow::Result<EmbeddingSource> {
    let (Some(url), Some(model)) = (&remote.embedding_endpoint, &remote.embedding_model) else {
        return Ok(EmbeddingSource { embeddings: Arc::new(Lexical), client: None });
    };
    let mut endpoint = endpoint(remote, url, model, out)?;
    endpoint.extra.clear();
    let client = OpenAiClient::new(endpoint).map_err(usage)?;
    let model = RemoteEmbeddings::new(client.clone(), runtime.clone()).context("cannot use the embedding endpoint")?;
    let embeddings = Arc::new(mage_train::EndpointEmbeddings(model));
    Ok(EmbeddingSource { embeddings, client: Some(client) })
}

/// Episode configuration of compact models and scripted agents.
fn compact_config(args: &EvalArgs, setup: &EvalSetup) -> EpisodeConfig {
    let compact = EpisodeConfig::compact(&setup.env.env_spec.info(), setup.episodes);
    EpisodeConfig { early_stop: args.early_stop, max_turns: setup.max_turns, ..compact }
}

/// Episode configuration of models with text prompts.
fn text_config(args: &EvalArgs, setup: &EvalSetup) -> EpisodeConfig {
    let config = EpisodeConfig {
        episodes: setup.episodes,
        max_turns: setup.max_turns,
        early_stop: args.early_stop,
        ..EpisodeConfig::default()
    };
    limit_tokens(config, &args.sampling)
}

fn limit_tokens(config: EpisodeConfig, sampling: &SamplingArgs) -> EpisodeConfig {
    match sampling.max_tokens {
        None => config,
        Some(max) => EpisodeConfig { play_tokens: max, reflect_tokens: max, ..config },
    }
}

/// The paper's sampling parameters, except top-k 20, which not every endpoint supports.
fn paper_sampling() -> SamplingParams {
    SamplingParams { temperature: 0.7, top_p: 0.8, ..SamplingParams::default() }
}

/// The sampling parameters of the command line, others from `base`.
fn sampling(args: &SamplingArgs, base: SamplingParams) -> SamplingParams {
    SamplingParams {
        temperature: args.temperature.unwrap_or(base.temperature),
        top_p: args.top_p.unwrap_or(base.top_p),
        top_k: args.top_k.unwrap_or(base.top_k),
        min_p: args.min_p.unwrap_or(base.min_p),
        ..base
    }
}

fn thinking(args: &SamplingArgs) -> Option<Thinking> {
    args.thinking.map(|switch| match switch {
        Switch::On => Thinking::On,
        Switch::Off => Thinking::Off,
    })
}
