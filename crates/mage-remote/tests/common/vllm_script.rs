//! Test pools of vLLM doubles with short timeouts.

use super::{
    LogLines, capture_log,
    vllm_double::{Vllm, rule},
};
use mage_engine::{SampleRequest, Sampler, SamplingParams, WeightVersion, WeightsId, WeightsName};
use mage_remote::{Fingerprint, Timeouts, VllmPool, VllmPoolSettings};
use std::{sync::Arc, time::Duration};

pub(crate) fn pool(servers: &[&Vllm]) -> (Arc<VllmPool>, LogLines) {
    pool_with(servers, Duration::from_secs(5))
}

/// With another attempt timeout.
pub(crate) fn pool_with(servers: &[&Vllm], attempt: Duration) -> (Arc<VllmPool>, LogLines) {
    pool_with_timeouts(
        servers,
        Timeouts { attempt, outage: Duration::from_secs(20), operation: Duration::from_secs(30) },
    )
}

pub(crate) fn pool_with_timeouts(servers: &[&Vllm], timeouts: Timeouts) -> (Arc<VllmPool>, LogLines) {
    pool_at(servers.iter().map(|s| s.url()).collect(), timeouts, 64)
}

/// A short attempt timeout, long other timeouts.
pub(crate) fn short_attempts() -> Timeouts {
    let (attempt, timeout) = (Duration::from_secs(1), Duration::from_secs(30));
    Timeouts { attempt, outage: timeout, operation: timeout }
}

pub(crate) fn pool_at(servers: Vec<String>, timeouts: Timeouts, max_in_flight: usize) -> (Arc<VllmPool>, LogLines) {
    let (settings, log_lines) = settings(servers, timeouts, max_in_flight);
    (Arc::new(VllmPool::new(settings).unwrap()), log_lines)
}

pub(crate) fn settings(servers: Vec<String>, timeouts: Timeouts, max_in_flight: usize) -> (VllmPoolSettings, LogLines) {
    let (status_log, log_lines) = capture_log();
    let settings = VllmPoolSettings {
        servers,
        model: "tiny".to_owned(),
        api_key: None,
        max_in_flight,
        vocab_size: 16,
        max_seq_len: 256,
        tolerance: 1e-4,
        keep_versions: 2,
        timeouts,
        request_timeout: Duration::from_secs(60),
        status_log,
    };
    (settings, log_lines)
}

/// Fingerprint of the doubles.
pub(crate) fn fingerprint() -> Fingerprint {
    Fingerprint(Fingerprint::tokens(16).iter().enumerate().skip(1).map(|(i, t)| rule(i, *t)).collect())
}

pub(crate) fn policy(version: u64) -> WeightsId {
    WeightsId { name: WeightsName::default(), version: WeightVersion(version) }
}

pub(crate) fn request(seed: u64, weights: &str) -> SampleRequest {
    let params = SamplingParams { max_tokens: 1, seed: seed << 33, ..Default::default() };
    SampleRequest { weights: weights.into(), prompt: vec![1, 2, 3], params, ..Default::default() }
}

/// Names of a server's adapters without the pool's tag.
pub(crate) fn names(server: &Vllm) -> Vec<String> {
    let adapters = server.state.adapters.lock().unwrap();
    adapters.keys().map(|name| name.split_once('.').expect("a name with the tag of a pool").0.to_owned()).collect()
}

/// Polls until `so` holds; panics after a minute.
pub(crate) async fn wait_until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the condition holds within a minute");
}

/// Sends requests until every server is healthy.
pub(crate) async fn wait_until_all_healthy(pool: &Arc<VllmPool>) {
    let back = async {
        while !pool.servers().iter().all(|s| s.healthy) {
            sample_many(pool, 1).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), back).await.expect("every server is healthy again");
}

pub(crate) async fn sample_many(pool: &Arc<VllmPool>, n: u64) -> Vec<u32> {
    let all: Vec<_> = (0..n)
        .map(|i| {
            let pool = Arc::clone(pool);
            tokio::spawn(async move { pool.sample(request(i, "policy")).await.unwrap().tokens[0] })
        })
        .collect();
    let mut out = Vec::new();
    for one in all {
        out.push(one.await.unwrap());
    }
    out
}
