//! Pool of vLLM servers.
//!
//! Each request goes to the server with the fewest requests in flight, and waits if all are at their limit.

use super::{
    completion::{GeneratedTokens, check_score},
    server::Server,
    version_registry::VersionRegistry,
};
use crate::{ApiKey, Service, StatusLog, http::client::Timeouts};
use mage_engine::{
    BoxFuture, Error, Hint, LogprobsMode, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest, Scores,
    WeightVersion, WeightsId, WeightsName,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Settings of a [`VllmPool`].
#[derive(Clone, Debug)]
pub struct VllmPoolSettings {
    /// Addresses of the servers, with or without `/v1`.
    pub servers: Vec<String>,
    /// Name of the served model without adapters.
    pub model: String,
    /// API key, if required.
    pub api_key: Option<ApiKey>,
    /// Maximum concurrent requests per server; others queue.
    pub max_in_flight: usize,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Maximum tokens of a sequence.
    pub max_seq_len: usize,
    /// Tolerance of fingerprints.
    pub tolerance: f32,
    /// Versions per name kept on the servers.
    pub keep_versions: usize,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Timeout of a request, doubled with each retry.
    pub request_timeout: Duration,
    /// Status log.
    pub status_log: StatusLog,
}

/// A pool of vLLM servers.
#[derive(Debug)]
pub struct VllmPool {
    pub(super) registry: Arc<VersionRegistry>,
    pub(super) servers: Vec<Arc<Server>>,
    caps: SamplerCaps,
    /// Held by the request that gets the next slot.
    slot_queue: tokio::sync::Mutex<()>,
    pub(super) next_server: AtomicUsize,
    /// Number of names created.
    pub(super) num_names: AtomicUsize,
}

/// Status of a server of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Address.
    pub address: String,
    /// Whether it is healthy.
    pub healthy: bool,
    /// Requests in flight.
    pub in_flight: usize,
}

/// A request in flight on a server; the count is decremented on drop.
pub(super) struct RequestSlot(Arc<VersionRegistry>, pub(super) Arc<Server>);

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.1.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

impl VllmPool {
    /// Creates a pool; nothing is sent. The served model is available as [`BASE`](WeightsName::BASE).
    pub fn new(settings: VllmPoolSettings) -> Result<Self> {
        let invalid = |problem: &str| Err(Error::invalid("vllm", problem));
        if settings.servers.is_empty() {
            return invalid("a pool needs at least one server");
        }
        if settings.max_in_flight == 0 || settings.keep_versions == 0 || settings.request_timeout.is_zero() {
            return invalid("max_in_flight, keep_versions and request_timeout must be above 0");
        }
        let mut servers = Vec::new();
        for address in &settings.servers {
            let address = Service::Vllm.normalize_address(address).map_err(|e| Error::invalid("vllm", e))?;
            if servers.iter().any(|s: &Arc<Server>| s.http.address() == address) {
                return invalid(&format!("{address} is listed twice"));
            }
            let server = Server::new(&address, &settings)?;
            if let Some(warning) = server.http.security_warning() {
                settings.status_log.log(warning);
            }
            servers.push(Arc::new(server));
        }
        let caps = SamplerCaps {
            // vLLM's default (`--logprobs-mode raw_logprobs`): before temperature and filters.
            logprobs: LogprobsMode::Raw,
            batch_invariant: false,
            max_seq_len: settings.max_seq_len,
        };
        Ok(VllmPool {
            registry: Arc::new(VersionRegistry::new(settings)),
            servers,
            caps,
            slot_queue: tokio::sync::Mutex::default(),
            next_server: AtomicUsize::new(0),
            num_names: AtomicUsize::new(0),
        })
    }

    /// Status of all servers.
    pub fn servers(&self) -> Vec<ServerStatus> {
        let status = |s: &Arc<Server>| ServerStatus {
            address: s.http.address().to_owned(),
            healthy: s.healthy.load(Ordering::SeqCst),
            in_flight: s.in_flight.load(Ordering::SeqCst),
        };
        self.servers.iter().map(status).collect()
    }

    pub(super) fn find(&self, address: &str) -> Result<&Arc<Server>> {
        let address = Service::Vllm.normalize_address(address).map_err(|e| Error::invalid("vllm", e))?;
        let found = self.servers.iter().find(|s| s.http.address() == address);
        found.ok_or_else(|| Error::invalid("vllm", format!("no server {address} in this pool")))
    }

    /// Resolves a name to its newest version, or `name@version` to that version.
    fn resolve(&self, name: &WeightsName) -> Result<(WeightsId, String)> {
        let versions = self.registry.versions();
        if let Some(newest) = versions.get(name).and_then(|all| all.last()) {
            return Ok((WeightsId { name: name.clone(), version: newest.version }, newest.served_name.clone()));
        }
        let exact = name.as_str().rsplit_once('@').and_then(|(name, version)| {
            let (name, version) = (WeightsName::new(name), WeightVersion(version.parse().ok()?));
            let published = versions.get(&name)?.iter().find(|v| v.version == version)?;
            Some((WeightsId { name, version }, published.served_name.clone()))
        });
        exact.ok_or_else(|| {
            let known: Vec<String> = (versions.iter())
                .flat_map(|(name, all)| all.iter().map(move |v| format!("{name}@{}", v.version.0)))
                .collect();
            let problem = format!("not published; available: {}", known.join(", "));
            Error::invalid(format!("weights `{name}`"), problem)
        })
    }

    /// A slot on the least busy server, as soon as one has room; preferably not on the one that just failed, and not on
    /// one excluded by `excluded`. `None` if no server is available.
    pub(super) async fn acquire_slot(
        &self,
        failed: Option<&Arc<Server>>,
        excluded: impl Fn(&Arc<Server>) -> bool,
    ) -> Option<RequestSlot> {
        let _guard = self.slot_queue.lock().await;
        let n = self.servers.len();
        loop {
            let changed = self.registry.changed.notified();
            // Round-robin among equally busy servers.
            let first = self.next_server.fetch_add(1, Ordering::Relaxed);
            let order = (0..n).map(|i| &self.servers[(first + i) % n]);
            let ready: Vec<_> =
                order.filter(|s| s.ready() && !excluded(s)).map(|s| (s, s.in_flight.load(Ordering::SeqCst))).collect();
            if ready.is_empty() {
                return None;
            }
            let available = ready.into_iter().filter(|(_, load)| *load < self.registry.settings.max_in_flight);
            let best = available.min_by_key(|(s, load)| (failed.is_some_and(|f| Arc::ptr_eq(f, s)), *load));
            if let Some((server, _)) = best {
                server.in_flight.fetch_add(1, Ordering::SeqCst);
                return Some(RequestSlot(Arc::clone(&self.registry), Arc::clone(server)));
            }
            changed.await;
        }
    }
}

impl Sampler for VllmPool {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.registry.settings.vocab_size, self.caps.max_seq_len)?;
            if request.allowed.is_some() {
                return Err(Error::unsupported("sample with action masks", "vLLM has none")
                    .with_hints(&[Hint::DisableActionMasks]));
            }
            if !request.params.stop_texts.is_empty() {
                return Err(Error::unsupported("use stop texts", "use stop token ids"));
            }
            let (weights, served) = self.resolve(&request.weights)?;
            let mut request = request;
            let max_new = self.caps.max_seq_len - request.prompt.len();
            request.params.max_tokens = request.params.max_tokens.min(max_new as u32);
            let (request, served) = (&request, &served);
            let GeneratedTokens { tokens, logprobs, finish } = self
                .request("sampling", |server, timeout| async move { server.sample(served, request, timeout).await })
                .await?;
            // Without filters both log-probs are equal.
            Ok(Sample { processed_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.registry.settings.vocab_size, self.caps.max_seq_len)?;
            check_score(&request)?;
            let (weights, served) = self.resolve(&request.weights)?;
            let (tokens, from, served) = (&request.tokens, request.from, &served);
            let score = |server: Arc<Server>, timeout| async move { server.score(served, tokens, from, timeout).await };
            Ok(Scores { logprobs: self.request("scoring", score).await?, entropies: Vec::new(), weights })
        })
    }
}
