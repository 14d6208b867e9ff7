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

const AT_ONCE: u64 = 1000;
const ALL: u64 = 20_000;
const LATENCY: Duration = Duration::from_millis(300);

/// Resident memory of this process in MB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).and_then(|l| l.split_whitespace().nth(1));
    line.and_then(|k| k.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// CPU seconds of this process, including the test server.
fn worked() -> f64 {
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
    let mut calls = 0;
    loop {
        let call = match meta.advance().unwrap() {
            Next::Done(record) => {
                assert!(record.error.is_none());
                return calls;
            }
            Next::Request(call) => call,
        };
        // Arbitrary token ids: the server ignores them.
        let words = call.body.messages.iter().flat_map(|m| m.content.split_whitespace());
        let prompt: Vec<u32> = words.map(|w| w.bytes().map(u32::from).sum::<u32>() % 16).take(200).collect();
        let params = SamplingParams { max_tokens: 1, seed: call.seed.value(), ..Default::default() };
        let sample = pool.sample(SampleRequest { weights: "base".into(), prompt, params, ..Default::default() }).await;
        calls += 1;
        let word = if sample.unwrap().tokens[0].is_multiple_of(2) { "PASS" } else { "BET" };
        let text = format!("<action>{word}</action>");
        let answer = Completion { text, finish: Finish::Stop, tokens: None, weights: None, usage: None };
        meta.submit(call.id, Ok(answer)).unwrap();
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
                max_in_flight: AT_ONCE as usize,
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
        let (next, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let started = Instant::now();
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (pool, game) = (Arc::clone(&pool), Arc::clone(&game));
                let (next, calls) = (Arc::clone(&next), Arc::clone(&calls));
                tokio::spawn(async move {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= ALL {
                            return;
                        }
                        calls.fetch_add(play(&pool, &game, Seed::new(i)).await, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // The first rounds open connections and fill caches.
        while next.load(Ordering::Relaxed) < 4 * AT_ONCE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (warm, begun, memory, before) = (calls.load(Ordering::Relaxed), Instant::now(), resident(), worked());
        // The end is excluded, since concurrency drops.
        while next.load(Ordering::Relaxed) < ALL {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let answers = (calls.load(Ordering::Relaxed) - warm) as f64;
        let (rate, later) = (answers / begun.elapsed().as_secs_f64(), resident());
        let each = 1e6 * (worked() - before) / answers;
        for worker in workers {
            worker.await.unwrap();
        }
        let ideal = AT_ONCE as f64 / LATENCY.as_secs_f64();
        eprintln!(
            "{rate:.0} answers a second, {:.3} of the ideal {ideal:.0}; {memory:.0} MB, then {later:.0} MB; {ALL} in {:.1} s; \
             {each:.0} µs of work for each, on both sides",
            rate / ideal,
            started.elapsed().as_secs_f64()
        );
        assert!(rate >= 0.9 * ideal && later < 1.1 * memory + 16.0);
    });
}
