//! Which server is asked?
//!
//! Each request goes to the server with the fewest under way, and waits where all have as many as they may.

use super::{
    completion::{Written, check_score},
    server::Server,
    weight_sync::WeightSync,
};
use crate::{ApiKey, Service, StatusLog, http::client::Timeouts};
use mage_engine::{
    AdapterName, BoxFuture, Error, LogprobsMode, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest,
    Scores, WeightVersion, WeightsId,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// What a pool is made of.
#[derive(Clone, Debug)]
pub struct VllmPoolSettings {
    /// The servers' addresses, with or without `/v1`.
    pub servers: Vec<String>,
    /// The name they serve the model without adapters under.
    pub model: String,
    /// What opens their doors, where they are locked.
    pub key: Option<ApiKey>,
    /// Requests under way at once on each; others queue up.
    pub in_flight: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens a sequence may have.
    pub max_seq_len: usize,
    /// How far log-probabilities of a pushed set of weights may be off.
    pub tolerance: f32,
    /// Versions of a name that are kept on the servers.
    pub keep: usize,
    /// How long servers are waited for.
    pub waiting: Timeouts,
    /// How long an answer may take before it is asked for again; twice as long each time.
    pub answer_within: Duration,
    /// Who hears of waiting.
    pub notices: StatusLog,
}

/// A pool of vLLM servers.
#[derive(Debug)]
pub struct VllmPool {
    pub(super) shelf: Arc<WeightSync>,
    pub(super) servers: Vec<Arc<Server>>,
    caps: SamplerCaps,
    /// Whoever holds it gets the next seat.
    queue: tokio::sync::Mutex<()>,
    pub(super) turn: AtomicUsize,
    /// How many names there were.
    pub(super) pushes: AtomicUsize,
}

/// How a server of a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its address.
    pub address: String,
    /// Whether it answered last.
    pub up: bool,
    /// Whether it gets no new requests.
    pub draining: bool,
    /// Requests under way.
    pub load: usize,
}

/// A request under way on a server; it is counted off however it ends.
pub(super) struct Seat(Arc<WeightSync>, pub(super) Arc<Server>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.1.load.fetch_sub(1, Ordering::SeqCst);
        self.0.stirred.notify_waiters();
    }
}

impl VllmPool {
    /// Makes ready to ask; nothing is sent. The served model is there as [`BASE`](AdapterName::BASE).
    pub fn new(settings: VllmPoolSettings) -> Result<Self> {
        let wrong = |problem: &str| Err(Error::invalid("vllm", problem));
        if settings.servers.is_empty() {
            return wrong("a pool needs at least one server");
        }
        if settings.in_flight == 0 || settings.keep == 0 || settings.answer_within.is_zero() {
            return wrong("requests in flight, versions to keep and the time for an answer must be above 0");
        }
        let mut servers = Vec::new();
        for address in &settings.servers {
            let address = Service::Vllm.address(address).map_err(|e| Error::invalid("vllm", e))?;
            if servers.iter().any(|s: &Arc<Server>| s.wire.address() == address) {
                return wrong(&format!("{address} is named twice"));
            }
            let server = Server::new(&address, &settings)?;
            if let Some(risk) = server.wire.risk() {
                settings.notices.say(risk);
            }
            servers.push(Arc::new(server));
        }
        let caps = SamplerCaps {
            engine: "vllm".to_owned(),
            token_ids: true,
            // vLLM's default (`--logprobs-mode raw_logprobs`): before temperature and filters.
            logprobs: LogprobsMode::Raw,
            masks: false,
            stop_texts: false,
            batch_invariant: false,
            max_seq_len: settings.max_seq_len,
        };
        Ok(VllmPool {
            shelf: Arc::new(WeightSync::new(settings)),
            servers,
            caps,
            queue: tokio::sync::Mutex::default(),
            turn: AtomicUsize::new(0),
            pushes: AtomicUsize::new(0),
        })
    }

    /// How its servers are.
    pub fn servers(&self) -> Vec<ServerStatus> {
        let state = |s: &Arc<Server>| ServerStatus {
            address: s.wire.address().to_owned(),
            up: s.up.load(Ordering::SeqCst),
            draining: s.draining.load(Ordering::SeqCst),
            load: s.load.load(Ordering::SeqCst),
        };
        self.servers.iter().map(state).collect()
    }

    /// Gives a server no new requests, and returns when those under way are done. It may then be stopped. They are given as
    /// long as one operation may take.
    pub async fn drain(&self, address: &str) -> Result<()> {
        self.drain_within(address, self.shelf.settings.waiting.operation).await
    }

    /// The same, given so long.
    pub(super) async fn drain_within(&self, address: &str, limit: Duration) -> Result<()> {
        let server = self.find(address)?;
        server.draining.store(true, Ordering::SeqCst);
        let since = Instant::now();
        while server.load.load(Ordering::SeqCst) > 0 {
            if since.elapsed() > limit {
                let left = server.load.load(Ordering::SeqCst);
                let problem = format!("{left} requests are still under way after {:.0} s", limit.as_secs_f64());
                return Err(self.shelf.error(format!("{address}: draining: {problem}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Gives a drained server requests again.
    pub fn undrain(&self, address: &str) -> Result<()> {
        let server = self.find(address)?;
        // Who knows what happened to it meanwhile: it is looked at before it is asked.
        server.up.store(false, Ordering::SeqCst);
        server.draining.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(super) fn find(&self, address: &str) -> Result<&Arc<Server>> {
        let address = Service::Vllm.address(address).map_err(|e| Error::invalid("vllm", e))?;
        let found = self.servers.iter().find(|s| s.wire.address() == address);
        found.ok_or_else(|| Error::invalid("vllm", format!("there is no server {address} in this pool")))
    }

    /// The weights a name means: the newest under it, or the one version that `name@version` says.
    fn resolve(&self, name: &AdapterName) -> Result<(WeightsId, String)> {
        let releases = self.shelf.releases();
        if let Some(newest) = releases.get(name).and_then(|all| all.last()) {
            return Ok((WeightsId { name: name.clone(), version: newest.version }, newest.served.clone()));
        }
        let exact = name.as_str().rsplit_once('@').and_then(|(name, version)| {
            let (name, version) = (AdapterName::new(name), WeightVersion(version.parse().ok()?));
            let release = releases.get(&name)?.iter().find(|r| r.version == version)?;
            Some((WeightsId { name, version }, release.served.clone()))
        });
        exact.ok_or_else(|| {
            let known: Vec<String> = (releases.iter())
                .flat_map(|(name, all)| all.iter().map(move |r| format!("{name}@{}", r.version.0)))
                .collect();
            let problem = format!("nothing was published under that name; there is {}", known.join(", "));
            Error::invalid(format!("weights `{name}`"), problem)
        })
    }

    /// A seat on the server that is least busy, as soon as one has room; rather not on one that just failed, and not on one
    /// that `will_not`. `None` where none can be asked.
    pub(super) async fn seat(
        &self,
        failed: Option<&Arc<Server>>,
        will_not: impl Fn(&Arc<Server>) -> bool,
    ) -> Option<Seat> {
        let _turn = self.queue.lock().await;
        let n = self.servers.len();
        loop {
            let stirred = self.shelf.stirred.notified();
            // Equally busy servers take turns.
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let order = (0..n).map(|i| &self.servers[(first + i) % n]);
            let ready: Vec<_> =
                order.filter(|s| s.ready() && !will_not(s)).map(|s| (s, s.load.load(Ordering::SeqCst))).collect();
            if ready.is_empty() {
                return None;
            }
            let room = ready.into_iter().filter(|(_, load)| *load < self.shelf.settings.in_flight);
            let best = room.min_by_key(|(s, load)| (failed.is_some_and(|f| Arc::ptr_eq(f, s)), *load));
            if let Some((server, _)) = best {
                server.load.fetch_add(1, Ordering::SeqCst);
                return Some(Seat(Arc::clone(&self.shelf), Arc::clone(server)));
            }
            stirred.await;
        }
    }
}

impl Sampler for VllmPool {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.shelf.settings.vocabulary, self.caps.max_seq_len)?;
            if request.allowed.is_some() {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("sample with masks", hint));
            }
            if !request.params.stop_texts.is_empty() {
                return Err(Error::unsupported("stop at texts", "give token ids to stop at"));
            }
            let (weights, served) = self.resolve(&request.weights)?;
            let mut request = request;
            let room = self.caps.max_seq_len - request.prompt.len();
            request.params.max_tokens = request.params.max_tokens.min(room as u32);
            let (request, served) = (&request, &served);
            let Written { tokens, logprobs, finish } = self
                .ask("sampling", |server, within| async move { server.sample(served, request, within).await })
                .await?;
            // Where nothing is filtered, what was drawn from is the policy itself.
            Ok(Sample { processed_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.shelf.settings.vocabulary, self.caps.max_seq_len)?;
            check_score(&request)?;
            let (weights, served) = self.resolve(&request.weights)?;
            let (tokens, from, served) = (&request.tokens, request.from, &served);
            let ask = |server: Arc<Server>, within| async move { server.score(served, tokens, from, within).await };
            Ok(Scores { logprobs: self.ask("scoring", ask).await?, entropies: Vec::new(), weights })
        })
    }
}
