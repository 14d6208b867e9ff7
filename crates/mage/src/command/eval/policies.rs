//! The policies of an evaluation: each policy on the command line with each prompt method.

use crate::{
    cli::{EndpointArgs, EvalArgs, MemoryArg, SamplingArgs, Switch},
    usage,
};
use anyhow::Context;
use mage_core::{Embeddings, EpisodeConfig, Lexical, MemoryFactory, MemoryScope, PromptMethod, prompt::PromptSet};
use mage_engine::{SamplingParams, Thinking};
use mage_env::{EnvSpec, Population, Seed};
use mage_remote::{ApiKey, Endpoint, OpenAiClient, RemoteChat, RemoteEmbeddings, RequestLimits, TokenPrices};
use mage_train::{
    TaskSet,
    eval::{Agent, DecodingConfig, Evaluation, ModelAgent, run_episode_config},
    recipe::Recipe,
    run_dir::{ModelAddress, RunDir},
};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU8},
    time::Duration,
};
use tokio::runtime::Handle;

/// Concurrent meta-episodes of a local model.
const LOCAL_CONCURRENCY: usize = 256;

/// One policy with one prompt method and all seeds.
pub(super) struct EvalPolicy {
    /// Display name.
    pub(super) name: String,
    /// Prompt method; `None` for a trained policy with the method of its training.
    pub(super) prompt_method: Option<PromptMethod>,
    pub(super) scope: MemoryScope,
    /// Embeddings of methods that retrieve from memory.
    pub(super) embeddings: Option<String>,
    /// One evaluation per seed.
    pub(super) evaluations: Vec<Arc<Evaluation>>,
}

/// Settings shared by all policies.
pub(super) struct EvalSetup {
    pub(super) env_spec: Arc<dyn EnvSpec>,
    pub(super) population: Population,
    pub(super) prompts: Arc<PromptSet>,
    pub(super) task_set: TaskSet,
    pub(super) max_turns: u32,
    /// Requests a stop if not 0.
    pub(super) stop: Arc<AtomicU8>,
}

/// A policy without a prompt method.
struct PolicySource {
    agent: Agent,
    config: EpisodeConfig,
    /// Whether it was trained with a memory.
    trained: bool,
}

/// All policies of the command line; models run on `runtime`.
pub(super) fn policies(args: &EvalArgs, setup: &EvalSetup, runtime: &Handle) -> anyhow::Result<Vec<EvalPolicy>> {
    let methods: Vec<PromptMethod> = match args.memory {
        Some(MemoryArg::None) => vec![PromptMethod::React],
        Some(MemoryArg::Reflection) => vec![PromptMethod::Reflexion],
        None => args.method.iter().map(|m| PromptMethod::named(m)).collect::<Result<_, _>>().map_err(usage)?,
    };
    let scope = if args.shared_memory { MemoryScope::Shared } else { MemoryScope::MetaEpisode };
    let embeddings = embeddings(&args.remote, runtime)?;
    // Invalid sampling options are errors even if only scripted agents are evaluated.
    decoding(&args.sampling, paper_sampling(), Thinking::Off).params.check().map_err(usage)?;
    let mut sources = Vec::new();
    for policy in &args.policy {
        sources.push(source(args, setup, policy, runtime)?);
    }
    if let (Some(url), Some(model)) = (&args.remote.endpoint, &args.remote.model) {
        sources.push(remote(args, setup, url, model, runtime)?);
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
    embeddings: &Arc<dyn Embeddings>,
    several: bool,
) -> anyhow::Result<EvalPolicy> {
    let mut config = method.map_or_else(|| source.config.clone(), |m| m.configure(source.config.clone()));
    config.recall_limit = args.recall.or(config.recall_limit);
    let config = Arc::new(config);
    // With several methods, --shared-memory applies to those that support it.
    let scope = match method {
        Some(m) if m.can_share() => scope,
        _ if several => MemoryScope::MetaEpisode,
        _ => scope,
    };
    let retrieves = method.is_some_and(PromptMethod::can_share);
    let name = match method {
        Some(m) if several || retrieves => format!("{}/{}", source.agent.name(), m.name()),
        _ => source.agent.name().to_owned(),
    };
    let evaluations = (0..args.seeds).map(|i| {
        // Each seed has its own memory.
        let memories = method
            .map(|m| {
                let (config, prompts) = (Arc::clone(&config), Arc::clone(&setup.prompts));
                MemoryFactory::new(m, scope, Arc::clone(embeddings), config, prompts).map(Arc::new)
            })
            .transpose()
            .map_err(usage)?;
        Ok(Arc::new(Evaluation {
            env_spec: Arc::clone(&setup.env_spec),
            prompts: Arc::clone(&setup.prompts),
            episode_config: Arc::clone(&config),
            memories,
            task_set: setup.task_set.clone(),
            agent: source.agent.clone(),
            seed: Seed::new(args.seed.wrapping_add(i)),
            stop: Arc::clone(&setup.stop),
        }))
    });
    let evaluations = evaluations.collect::<anyhow::Result<_>>()?;
    let embeddings = retrieves.then(|| embeddings.id().to_owned());
    Ok(EvalPolicy { name, prompt_method: method, scope, embeddings, evaluations })
}

/// A policy named on the command line.
fn source(args: &EvalArgs, setup: &EvalSetup, name: &str, runtime: &Handle) -> anyhow::Result<PolicySource> {
    let env_info = setup.env_spec.info();
    let address = ModelAddress::resolve(name).map_err(usage)?;
    if let Some((address, run)) = address.as_ref().and_then(|a| Some((a, a.run.as_ref()?))) {
        let recipe: Recipe = RunDir::recipe(run)?;
        if recipe.env.name != args.env {
            return Err(usage(format!("{name} was trained on {}; add --env {}", recipe.env.name, recipe.env.name)));
        }
        let temperature = if recipe.eval.greedy { 0.0 } else { recipe.rollout.temperature };
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let params = decoding(&args.sampling, params, Thinking::Off).params;
        params.check().map_err(usage)?;
        let agent =
            ModelAgent::of_run(address, &recipe, params, args.sampler_options(), runtime.clone(), LOCAL_CONCURRENCY)?;
        let trained = run_episode_config(&recipe, &env_info, args.episodes);
        let turns =
            if recipe.play.max_turns > 0 && args.max_turns.is_none() { recipe.play.max_turns } else { setup.max_turns };
        let config = EpisodeConfig { early_stop: args.early_stop, max_turns: turns, ..trained };
        let config = limit_tokens(config, &args.sampling);
        return Ok(PolicySource { agent: Agent::Model(agent), config, trained: true });
    }
    if Path::new(name).is_dir() || name.contains('/') {
        let decoding = decoding(&args.sampling, paper_sampling(), Thinking::Off);
        decoding.params.check().map_err(usage)?;
        let agent = ModelAgent::folder(name, decoding, args.sampler_options(), runtime.clone(), LOCAL_CONCURRENCY)?;
        return Ok(PolicySource { agent: Agent::Model(agent), config: text_config(args, setup), trained: false });
    }
    let split = args.selection.split();
    let agent = Agent::find(&*setup.env_spec, name, &setup.population, split, args.episodes).map_err(usage)?;
    let compact = EpisodeConfig::compact(&env_info, args.episodes);
    let config = EpisodeConfig { early_stop: args.early_stop, max_turns: setup.max_turns, ..compact };
    Ok(PolicySource { agent, config, trained: false })
}

/// The model behind the endpoint.
fn remote(
    args: &EvalArgs,
    setup: &EvalSetup,
    url: &str,
    model: &str,
    runtime: &Handle,
) -> anyhow::Result<PolicySource> {
    let mut endpoint = endpoint(&args.remote, url, model)?;
    endpoint.send_thinking = args.sampling.thinking.is_some();
    prices(&args.remote)?;
    let decoding = decoding(&args.sampling, paper_sampling(), Thinking::On);
    decoding.params.check().map_err(usage)?;
    // The identifier includes thinking and extra fields, so that stored results of other requests are not reused.
    let thinking = args.sampling.thinking.map(|t| format!("thinking {}", if t == Switch::On { "on" } else { "off" }));
    let fields = thinking.into_iter().chain(args.remote.extra_body.iter().cloned());
    let id = fields.fold(format!("{model} at {}", endpoint.address()), |id, field| format!("{id}, {field}"));
    let policy = Arc::new(RemoteChat::new(OpenAiClient::new(endpoint).map_err(usage)?));
    let agent = ModelAgent::chat(model, &id, policy, decoding, runtime.clone(), args.remote.max_in_flight);
    Ok(PolicySource { agent: Agent::Model(agent), config: text_config(args, setup), trained: false })
}

fn endpoint(remote: &EndpointArgs, url: &str, model: &str) -> anyhow::Result<Endpoint> {
    let mut endpoint = Endpoint::new(url, model).map_err(usage)?;
    endpoint.key = ApiKey::from_env(&remote.key_env).map_err(usage)?;
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

/// TokenPrices of a million tokens, if given.
pub(super) fn prices(remote: &EndpointArgs) -> anyhow::Result<Option<TokenPrices>> {
    let prices = match remote.price.as_slice() {
        [] => return Ok(None),
        [prompt, completion] => TokenPrices { prompt: *prompt, completion: *completion },
        _ => return Err(usage("--price: expected two prices, of a million prompt tokens and completion tokens")),
    };
    prices.check().map_err(usage)?;
    Ok(Some(prices))
}

fn embeddings(remote: &EndpointArgs, runtime: &Handle) -> anyhow::Result<Arc<dyn Embeddings>> {
    let (Some(url), Some(model)) = (&remote.embedding_endpoint, &remote.embedding_model) else {
        return Ok(Arc::new(Lexical));
    };
    let mut endpoint = endpoint(remote, url, model)?;
    endpoint.extra.clear();
    let client = OpenAiClient::new(endpoint).map_err(usage)?;
    let model = RemoteEmbeddings::new(client, runtime.clone()).context("cannot use the embedding endpoint")?;
    Ok(Arc::new(mage_train::EndpointEmbeddings(model)))
}

/// Episode configuration of models with text prompts.
fn text_config(args: &EvalArgs, setup: &EvalSetup) -> EpisodeConfig {
    let config = EpisodeConfig {
        episodes: args.episodes,
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

fn decoding(sampling: &SamplingArgs, base: SamplingParams, thinking: Thinking) -> DecodingConfig {
    DecodingConfig {
        params: SamplingParams {
            temperature: sampling.temperature.unwrap_or(base.temperature),
            top_p: sampling.top_p.unwrap_or(base.top_p),
            top_k: sampling.top_k.unwrap_or(base.top_k),
            min_p: sampling.min_p.unwrap_or(base.min_p),
            ..base
        },
        thinking: match sampling.thinking {
            Some(Switch::On) => Thinking::On,
            Some(Switch::Off) => Thinking::Off,
            None => thinking,
        },
    }
}
