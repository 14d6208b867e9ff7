//! Who was asked to play, and how?
//!
//! Every policy named on the command line, by every method named there.

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
    run_dir::RunDir,
};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU8},
    time::Duration,
};
use tokio::runtime::Handle;

/// How many meta-episodes are under way at once with a model on this machine.
const HERE: usize = 256;

/// One policy, one method, all seeds.
pub(super) struct EvalPolicy {
    /// What people call it.
    pub(super) name: String,
    /// The method, where it is one of ours.
    pub(super) approach: Option<PromptMethod>,
    pub(super) scope: MemoryScope,
    /// What it retrieves by, where it retrieves.
    pub(super) embeddings: Option<String>,
    /// The same for each seed.
    pub(super) evaluations: Vec<Arc<Evaluation>>,
}

/// What all entrants have in common.
pub(super) struct EvalSetup {
    pub(super) env_spec: Arc<dyn EnvSpec>,
    pub(super) population: Population,
    pub(super) prompts: Arc<PromptSet>,
    pub(super) panel: TaskSet,
    pub(super) max_turns: u32,
    /// Anything but 0 asks to stop.
    pub(super) stop: Arc<AtomicU8>,
}

/// A policy before a method is chosen.
struct Source {
    agent: Agent,
    settings: EpisodeConfig,
    /// Whether it was trained with a memory of its own.
    trained: bool,
}

/// All entrants; models run on `runtime`.
pub(super) fn policies(args: &EvalArgs, setup: &EvalSetup, runtime: &Handle) -> anyhow::Result<Vec<EvalPolicy>> {
    let methods: Vec<PromptMethod> = match args.memory {
        Some(MemoryArg::None) => vec![PromptMethod::React],
        Some(MemoryArg::Reflection) => vec![PromptMethod::Reflexion],
        None => args.method.iter().map(|m| PromptMethod::named(m)).collect::<Result<_, _>>().map_err(usage)?,
    };
    let scope = if args.shared_memory { MemoryScope::Shared } else { MemoryScope::MetaEpisode };
    let embeddings = embeddings(&args.remote, runtime)?;
    // What makes no sense is refused, also where nobody draws anything.
    drawn(&args.sampling, paper_draws(), Thinking::Off).params.check().map_err(usage)?;
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
        let approaches: Vec<Option<PromptMethod>> = match methods.as_slice() {
            [] if source.trained => vec![None],
            [] => vec![Some(PromptMethod::Reflexion)],
            some => some.iter().copied().map(Some).collect(),
        };
        for approach in approaches {
            all.push(entrant(args, setup, source, approach, scope, &embeddings, several)?);
        }
    }
    Ok(all)
}

fn entrant(
    args: &EvalArgs,
    setup: &EvalSetup,
    source: &Source,
    approach: Option<PromptMethod>,
    scope: MemoryScope,
    embeddings: &Arc<dyn Embeddings>,
    several: bool,
) -> anyhow::Result<EvalPolicy> {
    let mut settings = approach.map_or_else(|| source.settings.clone(), |a| a.configure(source.settings.clone()));
    settings.recall_limit = args.recall.or(settings.recall_limit);
    let settings = Arc::new(settings);
    // Where an approach cannot share, sharing was meant for the others beside it.
    let scope = match approach {
        Some(a) if a.can_share() => scope,
        _ if several => MemoryScope::MetaEpisode,
        _ => scope,
    };
    let retrieves = approach.is_some_and(PromptMethod::can_share);
    let name = match approach {
        Some(a) if several || retrieves => format!("{}/{}", source.agent.name(), a.name()),
        _ => source.agent.name().to_owned(),
    };
    let evaluations = (0..args.seeds).map(|i| {
        // Seeds are runs of their own: none remembers what another has seen.
        let memories = approach
            .map(|a| {
                let (settings, prompts) = (Arc::clone(&settings), Arc::clone(&setup.prompts));
                MemoryFactory::new(a, scope, Arc::clone(embeddings), settings, prompts).map(Arc::new)
            })
            .transpose()
            .map_err(usage)?;
        Ok(Arc::new(Evaluation {
            env_spec: Arc::clone(&setup.env_spec),
            prompts: Arc::clone(&setup.prompts),
            episode_config: Arc::clone(&settings),
            memories,
            task_set: setup.panel.clone(),
            agent: source.agent.clone(),
            seed: Seed::new(args.seed.wrapping_add(i)),
            stop: Arc::clone(&setup.stop),
        }))
    });
    let evaluations = evaluations.collect::<anyhow::Result<_>>()?;
    let embeddings = retrieves.then(|| embeddings.id().to_owned());
    Ok(EvalPolicy { name, approach, scope, embeddings, evaluations })
}

/// A policy named on the command line.
fn source(args: &EvalArgs, setup: &EvalSetup, name: &str, runtime: &Handle) -> anyhow::Result<Source> {
    let env_info = setup.env_spec.info();
    let path = Path::new(name);
    if RunDir::is_run(path) {
        let recipe: Recipe = RunDir::recipe(path)?;
        if recipe.env.name != args.env {
            return Err(usage(format!("{name} was trained on {}; add --env {}", recipe.env.name, recipe.env.name)));
        }
        let temperature = if recipe.eval.greedy { 0.0 } else { recipe.rollout.temperature };
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let params = drawn(&args.sampling, params, Thinking::Off).params;
        params.check().map_err(usage)?;
        let agent = ModelAgent::of_run(path, &recipe, params, args.place(), runtime.clone(), HERE)?;
        let trained = run_episode_config(&recipe, &env_info, args.episodes);
        let turns =
            if recipe.play.max_turns > 0 && args.max_turns.is_none() { recipe.play.max_turns } else { setup.max_turns };
        let settings = EpisodeConfig { early_stop: args.early_stop, max_turns: turns, ..trained };
        let settings = tokens(settings, &args.sampling);
        return Ok(Source { agent: Agent::Model(agent), settings, trained: true });
    }
    if path.is_dir() || name.contains('/') {
        let drawn = drawn(&args.sampling, paper_draws(), Thinking::Off);
        drawn.params.check().map_err(usage)?;
        let agent = ModelAgent::folder(name, drawn, args.place(), runtime.clone(), HERE)?;
        return Ok(Source { agent: Agent::Model(agent), settings: full(args, setup), trained: false });
    }
    let split = args.selection.split();
    let agent = Agent::find(&*setup.env_spec, name, &setup.population, split, args.episodes).map_err(usage)?;
    let compact = EpisodeConfig::compact(&env_info, args.episodes);
    let settings = EpisodeConfig { early_stop: args.early_stop, max_turns: setup.max_turns, ..compact };
    Ok(Source { agent, settings, trained: false })
}

/// The model behind the endpoint.
fn remote(args: &EvalArgs, setup: &EvalSetup, url: &str, model: &str, runtime: &Handle) -> anyhow::Result<Source> {
    let mut endpoint = endpoint(&args.remote, url, model)?;
    endpoint.send_thinking = args.sampling.thinking.is_some();
    prices(&args.remote)?;
    let drawn = drawn(&args.sampling, paper_draws(), Thinking::On);
    drawn.params.check().map_err(usage)?;
    // What is asked for besides is part of who answers: records with something else are not taken for these.
    let thinking = args.sampling.thinking.map(|t| format!("thinking {}", if t == Switch::On { "on" } else { "off" }));
    let besides = thinking.into_iter().chain(args.remote.extra_body.iter().cloned());
    let id = besides.fold(format!("{model} at {}", endpoint.address()), |id, field| format!("{id}, {field}"));
    let policy = Arc::new(RemoteChat::new(OpenAiClient::new(endpoint).map_err(usage)?));
    let agent = ModelAgent::chat(model, &id, policy, drawn, runtime.clone(), args.remote.in_flight);
    Ok(Source { agent: Agent::Model(agent), settings: full(args, setup), trained: false })
}

fn endpoint(remote: &EndpointArgs, url: &str, model: &str) -> anyhow::Result<Endpoint> {
    let mut endpoint = Endpoint::new(url, model).map_err(usage)?;
    endpoint.key = ApiKey::from_env(&remote.key_env).map_err(usage)?;
    endpoint.limits = RequestLimits {
        max_in_flight: remote.in_flight,
        attempt_timeout: Duration::from_secs_f64(remote.timeout),
        deadline: Duration::from_secs_f64(remote.deadline),
    };
    for field in &remote.extra_body {
        let (key, value) =
            field.split_once('=').ok_or_else(|| usage(format!("--extra-body {field}: write it as KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        endpoint.extra.insert(key.to_owned(), value);
    }
    Ok(endpoint)
}

/// What a million tokens cost, where it was said.
pub(super) fn prices(remote: &EndpointArgs) -> anyhow::Result<Option<TokenPrices>> {
    let prices = match remote.price.as_slice() {
        [] => return Ok(None),
        [prompt, answer] => TokenPrices { prompt: *prompt, completion: *answer },
        _ => return Err(usage("--price: give two numbers, what a million tokens cost read and written")),
    };
    prices.check().map_err(usage)?;
    Ok(Some(prices))
}

fn embeddings(remote: &EndpointArgs, runtime: &Handle) -> anyhow::Result<Arc<dyn Embeddings>> {
    let (Some(url), Some(model)) = (&remote.embeddings, &remote.embedding_model) else { return Ok(Arc::new(Lexical)) };
    let mut endpoint = endpoint(remote, url, model)?;
    endpoint.extra.clear();
    let client = OpenAiClient::new(endpoint).map_err(usage)?;
    let model = RemoteEmbeddings::new(client, runtime.clone()).context("cannot use the embedding endpoint")?;
    Ok(Arc::new(mage_train::EndpointEmbeddings(model)))
}

/// Settings of models that read sentences.
fn full(args: &EvalArgs, setup: &EvalSetup) -> EpisodeConfig {
    let settings = EpisodeConfig {
        episodes: args.episodes,
        max_turns: setup.max_turns,
        early_stop: args.early_stop,
        ..EpisodeConfig::default()
    };
    tokens(settings, &args.sampling)
}

fn tokens(settings: EpisodeConfig, draws: &SamplingArgs) -> EpisodeConfig {
    match draws.max_tokens {
        None => settings,
        Some(most) => EpisodeConfig { play_tokens: most, reflect_tokens: most, ..settings },
    }
}

/// What the paper evaluates with, but for its 20 most likely tokens, which not every endpoint knows.
fn paper_draws() -> SamplingParams {
    SamplingParams { temperature: 0.7, top_p: 0.8, ..SamplingParams::default() }
}

fn drawn(draws: &SamplingArgs, base: SamplingParams, thinking: Thinking) -> DecodingConfig {
    DecodingConfig {
        params: SamplingParams {
            temperature: draws.temperature.unwrap_or(base.temperature),
            top_p: draws.top_p.unwrap_or(base.top_p),
            top_k: draws.top_k.unwrap_or(base.top_k),
            min_p: draws.min_p.unwrap_or(base.min_p),
            ..base
        },
        thinking: match draws.thinking {
            Some(Switch::On) => Thinking::On,
            Some(Switch::Off) => Thinking::Off,
            None => thinking,
        },
    }
}
