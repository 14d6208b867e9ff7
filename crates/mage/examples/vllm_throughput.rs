//! Benchmark of 1000 concurrent meta-episodes over vLLM's protocol, on a server with a latency of 300 ms.
//!
//! `cargo run --release -p mage --example vllm_throughput`

#[path = "../../mage-remote/tests/common/vllm_double.rs"]
#[allow(dead_code, reason = "a subset of the module is used")]
mod vllm_double;

use mage_core::{Completion, EpisodeConfig, MetaEpisode, Request, prompt::PromptLibrary};
use mage_engine::{BoxFuture, SampleRequest, Sampler, SamplingParams};
use mage_env::{Population, Registry, Seed};
use mage_remote::{StatusLog, Timeouts, VllmPool, VllmPoolSettings};
use mage_train::{policy::Policy, rollout::MetaEpisodeBuilder};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use vllm_double::Vllm;

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

/// Samples from the pool, with arbitrary token ids, since the server ignores them. Counts completions.
#[derive(Clone)]
struct PoolPolicy {
    pool: Arc<VllmPool>,
    completions: Arc<AtomicU64>,
}

impl Policy for PoolPolicy {
    fn respond<'a>(
        &'a mut self,
        request: &'a Request,
        _meta: &MetaEpisode,
    ) -> BoxFuture<'a, mage_train::Result<Completion>> {
        Box::pin(async move {
            let words = request.body.messages.iter().flat_map(|m| m.content.split_whitespace());
            let prompt: Vec<u32> = words.map(|w| w.bytes().map(u32::from).sum::<u32>() % 16).take(200).collect();
            let params = SamplingParams { max_tokens: 1, seed: request.seed.value(), ..Default::default() };
            let request = SampleRequest { weights: "base".into(), prompt, params, ..Default::default() };
            let sample = self.pool.sample(request).await?;
            self.completions.fetch_add(1, Ordering::Relaxed);
            let action = if sample.tokens[0].is_multiple_of(2) { "PASS" } else { "BET" };
            Ok(Completion::from_text(format!("<action>{action}</action>")))
        })
    }
}

/// Plays one meta-episode of Kuhn poker.
async fn play(builder: &MetaEpisodeBuilder, population: &Population, mut policy: PoolPolicy, seed: Seed) {
    let task = population.sample_task("train", 2, seed).unwrap();
    let played = builder.play(&task, seed, &mut policy, &()).await;
    assert_eq!(played.trajectory.error, None);
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
        let population = Arc::new(env_spec.default_population());
        let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
        let config = EpisodeConfig { episodes: 3, ..EpisodeConfig::default() };
        let builder = MetaEpisodeBuilder::new(env_spec, prompts, config);
        let (next, requests) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let policy = PoolPolicy { pool, completions: Arc::clone(&requests) };
        let started = Instant::now();
        let workers: Vec<_> = (0..IN_FLIGHT)
            .map(|_| {
                let (builder, population) = (builder.clone(), Arc::clone(&population));
                let (next, policy) = (Arc::clone(&next), policy.clone());
                tokio::spawn(async move {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= META_EPISODES {
                            return;
                        }
                        play(&builder, &population, policy.clone(), Seed::new(i)).await;
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
