//! Benchmark of 1000 concurrent meta-episodes on a server with a latency of 300 ms.
//!
//! `cargo bench -p mage-remote --bench concurrency`

#[path = "../tests/common/mod.rs"]
mod common;

use common::vllm_double::Vllm;
use mage_core::{
    Completion, EpisodeConfig, Finish, MetaEpisode, Next,
    prompt::{PromptLibrary, PromptSet},
};
use mage_engine::{SampleRequest, Sampler, SamplingParams};
use mage_env::{EnvSpec, Population, Registry, Seed};
use mage_remote::{StatusLog, Timeouts, VllmPool, VllmPoolSettings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// As in the `mage` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const IN_FLIGHT: u64 = 1000;
const META_EPISODES: u64 = 20_000;
const LATENCY: Duration = Duration::from_millis(300);

/// Resident memory of this process in MB.
fn resident_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).and_then(|l| l.split_whitespace().nth(1));
    line.and_then(|k| k.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// CPU seconds of this process, including the test server.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Shared by all meta-episodes.
struct Game {
    env_spec: Arc<dyn EnvSpec>,
    population: Population,
    prompts: Arc<PromptSet>,
    settings: Arc<EpisodeConfig>,
}

/// Plays one meta-episode of Kuhn poker; returns the number of requests.
async fn play(pool: &VllmPool, game: &Game, seed: Seed) -> u64 {
    let task = game.population.draw("train", 2, seed).unwrap();
    let env = game.env_spec.build(&task).unwrap();
    let (prompts, settings) = (Arc::clone(&game.prompts), Arc::clone(&game.settings));
    let mut meta = MetaEpisode::new(task, env, prompts, settings, seed).unwrap();
    let mut requests = 0;
    loop {
        let request = match meta.advance().unwrap() {
            Next::Done(record) => {
                assert!(record.error.is_none());
                return requests;
            }
            Next::Request(request) => request,
        };
        // Arbitrary token ids: the server ignores them.
        let words = request.body.messages.iter().flat_map(|m| m.content.split_whitespace());
        let prompt: Vec<u32> = words.map(|w| w.bytes().map(u32::from).sum::<u32>() % 16).take(200).collect();
        let params = SamplingParams { max_tokens: 1, seed: request.seed.value(), ..Default::default() };
        let sample = pool.sample(SampleRequest { weights: "base".into(), prompt, params, ..Default::default() }).await;
        requests += 1;
        let word = if sample.unwrap().tokens[0].is_multiple_of(2) { "PASS" } else { "BET" };
        let text = format!("<action>{word}</action>");
        let completion = Completion { text, finish: Finish::Stop, tokens: None, weights: None, usage: None };
        meta.submit(request.id, Ok(completion)).unwrap();
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Vllm::start(LATENCY).await;
        let pool = Arc::new(
            VllmPool::new(VllmPoolSettings {
                servers: vec![server.url()],
                model: "tiny".to_owned(),
                api_key: None,
                max_in_flight: IN_FLIGHT as usize,
                vocab_size: 16,
                max_seq_len: 256,
                tolerance: 1e-4,
                keep_versions: 2,
                timeouts: Timeouts::default(),
                request_timeout: Duration::from_secs(600),
                status_log: StatusLog::default(),
            })
            .unwrap(),
        );
        let env_spec = Arc::clone(Registry::builtin().get("kuhn").unwrap());
        let game = Arc::new(Game {
            population: env_spec.default_population(),
            prompts: PromptLibrary::builtin().get("kuhn").unwrap(),
            settings: Arc::new(EpisodeConfig { episodes: 3, ..EpisodeConfig::default() }),
            env_spec,
        });
        let (next, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let started = Instant::now();
        let workers: Vec<_> = (0..IN_FLIGHT)
            .map(|_| {
                let (pool, game) = (Arc::clone(&pool), Arc::clone(&game));
                let (next, requests) = (Arc::clone(&next), Arc::clone(&requests));
                tokio::spawn(async move {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= META_EPISODES {
                            return;
                        }
                        requests.fetch_add(play(&pool, &game, Seed::new(i)).await, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // The first rounds open connections and fill caches.
        while next.load(Ordering::Relaxed) < 4 * IN_FLIGHT {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (warm, measured_from, memory, before) = (requests.load(Ordering::Relaxed), Instant::now(), resident_mb(), cpu_seconds());
        // The end is excluded, since concurrency drops.
        while next.load(Ordering::Relaxed) < META_EPISODES {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let completions = (requests.load(Ordering::Relaxed) - warm) as f64;
        let (rate, memory_after) = (completions / measured_from.elapsed().as_secs_f64(), resident_mb());
        let cpu_per_completion = 1e6 * (cpu_seconds() - before) / completions;
        for worker in workers {
            worker.await.unwrap();
        }
        let ideal = IN_FLIGHT as f64 / LATENCY.as_secs_f64();
        eprintln!(
            "{rate:.0} of {ideal:.0} completions/s ({:.3}); {memory:.0} MB, then {memory_after:.0} MB; {META_EPISODES} meta-episodes in {:.1} s; \
             {cpu_per_completion:.0} µs of CPU time per completion, client and server",
            rate / ideal,
            started.elapsed().as_secs_f64()
        );
        assert!(rate >= 0.9 * ideal && memory_after < 1.1 * memory + 16.0);
    });
}
