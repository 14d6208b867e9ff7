//! Utilisation of an endpoint by `mage eval`.
//!
//! Evaluates tasks with a local server whose responses take 200 ms, with 256 concurrent meta-episodes, and compares the
//! time with that of 256 requests always in flight: `cargo run --profile test -p mage --example
//! endpoint_throughput`.

#[path = "../../mage-remote/tests/common/server.rs"]
#[allow(dead_code, reason = "a subset of the module is used")]
mod server;

use mage_core::{EpisodeConfig, Lexical, MemoryFactory, MemoryScope, PromptMethod, prompt::PromptLibrary};
use mage_engine::{SamplingParams, Thinking};
use mage_env::{Registry, Seed};
use mage_remote::{Endpoint, OpenAiClient, RemoteChat};
use mage_train::{
    TaskSet,
    eval::{Evaluator, store::TrajectoryStore},
    policy::{DecodingConfig, NamedPolicy},
    rollout::MetaEpisodeBuilder,
    train::runtime,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const MAX_IN_FLIGHT: usize = 256;
const TASKS: usize = 4096;
const LATENCY: Duration = Duration::from_millis(200);

#[allow(clippy::print_stdout, reason = "prints the result")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = runtime(0)?;
    let server = machine.block_on(server::Server::start(LATENCY, |request| {
        if request.contains("<remark>") { "<remark>I bet.</remark>" } else { "<action>BET</action>" }.to_owned()
    }));
    let runtime = runtime(0)?;
    let mut endpoint = Endpoint::new(&format!("http://{}", server.address), "tiny")?;
    endpoint.limits.max_in_flight = MAX_IN_FLIGHT;
    let model = Arc::new(RemoteChat::new(OpenAiClient::new(endpoint)?));
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn")?;
    let config = PromptMethod::Reflexion.configure(EpisodeConfig { episodes: 3, ..EpisodeConfig::default() });
    let prompts = PromptLibrary::builtin().get("kuhn")?;
    let (scope, embeddings) = (MemoryScope::MetaEpisode, Arc::new(Lexical));
    let shared = Arc::new(config.clone());
    let memories = MemoryFactory::new(PromptMethod::Reflexion, scope, embeddings, shared, Arc::clone(&prompts))?;
    let builder = MetaEpisodeBuilder::new(Arc::clone(env_spec), prompts, config);
    let decoding = DecodingConfig { params: SamplingParams::default(), thinking: Thinking::Off };
    let evaluator = Arc::new(Evaluator {
        builder: builder.with_memories(Arc::new(memories)),
        task_set: TaskSet::new(&**env_spec, &env_spec.default_population(), "in-domain", TASKS, Seed::new(1))?,
        policy: NamedPolicy::chat("tiny", "tiny", model, decoding, MAX_IN_FLIGHT),
        seed: Seed::new(1),
        exact_max_states: 0,
        policy_must_not_fail: true,
        stop: Arc::default(),
    });
    let dir = std::env::temp_dir().join(format!("mage-endpoint-throughput-{}", std::process::id()));
    let mut requests = 0;
    let started = Instant::now();
    {
        let mut store = TrajectoryStore::open(&dir)?;
        evaluator.run_into(runtime.handle(), &mut store, |_, trajectory| requests += trajectory.requests.len())?;
    }
    let seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(&dir)?;
    let ideal = requests as f64 * LATENCY.as_secs_f64() / MAX_IN_FLIGHT as f64;
    println!(
        "{TASKS} meta-episodes, {requests} requests in {seconds:.2} s: {:.0} requests/s",
        requests as f64 / seconds
    );
    println!("{MAX_IN_FLIGHT} requests always in flight: {ideal:.2} s; utilisation {:.3}", ideal / seconds);
    Ok(())
}
