//! Which server is asked, and what happens to a request when it goes away?
//!
//! Each request goes to the server with the fewest under way, and waits where all have as many as they may. One that goes
//! away gets none until it answers again; what it was asked is asked elsewhere, or waits.

use super::{
    away::LOOK_AGAIN,
    server::{Server, Written, check_score},
    shelf::Shelf,
};
use crate::{
    ApiKey, Notices, Service,
    backoff::pause,
    mark::mark,
    wire::{Trouble, Waiting},
};
use mage_engine::{
    AdapterName, BoxFuture, Error, LogProbs, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest, Scores,
    WeightVersion, WeightsId,
};
use mage_env::Seed;
use reqwest::StatusCode;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// A request is given to so many failing servers before it is given up.
const FAILED_ANSWERS: u32 = 8;

/// What a pool is made of.
#[derive(Clone, Debug)]
pub struct PoolSettings {
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
    pub max_context: usize,
    /// How far log-probabilities of a pushed set of weights may be off.
    pub tolerance: f32,
    /// Versions of a name that are kept on the servers.
    pub keep: usize,
    /// How long servers are waited for.
    pub waiting: Waiting,
    /// Who hears of waiting.
    pub notices: Notices,
}

/// A pool of vLLM servers.
#[derive(Debug)]
pub struct VllmPool {
    pub(super) shelf: Arc<Shelf>,
    pub(super) servers: Vec<Arc<Server>>,
    caps: SamplerCaps,
    /// Whoever holds it gets the next seat.
    queue: tokio::sync::Mutex<()>,
    turn: AtomicUsize,
    /// Marks this pool's names on the servers.
    pub(super) tag: String,
    /// How many names there were.
    pub(super) pushes: AtomicUsize,
}

/// How a server of a pool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
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
struct Seat(Arc<Shelf>, Arc<Server>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.1.load.fetch_sub(1, Ordering::SeqCst);
        self.0.stirred.notify_waiters();
    }
}

impl VllmPool {
    /// Makes ready to ask; nothing is sent. The served model is there as [`BASE`](AdapterName::BASE).
    pub fn new(settings: PoolSettings) -> Result<Self> {
        let wrong = |problem: &str| Err(Error::invalid("vllm", problem));
        if settings.servers.is_empty() {
            return wrong("a pool needs at least one server");
        }
        if settings.in_flight == 0 || settings.keep == 0 {
            return wrong("requests in flight and versions to keep must be above 0");
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
            logprobs: LogProbs::Raw,
            masks: false,
            stop_texts: false,
            batch_invariant: false,
            max_context: settings.max_context,
        };
        Ok(VllmPool {
            shelf: Arc::new(Shelf::new(settings)),
            servers,
            caps,
            queue: tokio::sync::Mutex::default(),
            turn: AtomicUsize::new(0),
            tag: mark()[..8].to_owned(),
            pushes: AtomicUsize::new(0),
        })
    }

    /// How its servers are.
    pub fn servers(&self) -> Vec<ServerState> {
        let state = |s: &Arc<Server>| ServerState {
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
        let server = self.find(address)?;
        server.draining.store(true, Ordering::SeqCst);
        let (since, limit) = (Instant::now(), self.shelf.settings.waiting.operation);
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

    /// A seat on the server that is least busy, as soon as one has room; rather not on one that just failed. `None` where
    /// none can be asked.
    async fn seat(&self, failed: Option<&Arc<Server>>) -> Option<Seat> {
        let _turn = self.queue.lock().await;
        let n = self.servers.len();
        loop {
            let stirred = self.shelf.stirred.notified();
            // Equally busy servers take turns.
            let first = self.turn.fetch_add(1, Ordering::Relaxed);
            let order = (0..n).map(|i| &self.servers[(first + i) % n]);
            let ready: Vec<_> = order.filter(|s| s.ready()).map(|s| (s, s.load.load(Ordering::SeqCst))).collect();
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

    /// Asks until there is an answer.
    async fn ask<T, F>(&self, what: &str, work: impl Fn(Arc<Server>) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Trouble>>,
    {
        self.look_around();
        let patience = self.shelf.settings.waiting.away;
        let luck = Seed::new(self.turn.load(Ordering::Relaxed) as u64).child(what);
        let (mut first, mut failed, mut away_since) = (None::<String>, 0, None::<Instant>);
        let mut last = None::<Arc<Server>>;
        loop {
            let Some(seat) = self.seat(last.as_ref()).await else {
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() > patience {
                    let limit = patience.as_secs_f64();
                    let problem = first.unwrap_or_else(|| "none of them answers".to_owned());
                    return Err(self.shelf.error(format!("{what}: no server for {limit:.0} s: {problem}")));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                if let Some(wrong) = self.revive().await {
                    return Err(wrong);
                }
                continue;
            };
            let (server, asked) = (Arc::clone(&seat.1), Instant::now());
            let trouble = match work(Arc::clone(&server)).await {
                Ok(answer) => {
                    self.shelf.worked(&server);
                    return Ok(answer);
                }
                Err(trouble) => trouble,
            };
            drop(seat);
            let text = format!("{}: {}", server.wire.address(), trouble.text());
            let first = first.get_or_insert_with(|| text.clone());
            let is_news = !server.record().is_back_since(asked);
            match trouble {
                // It was started anew and does not have the adapter.
                Trouble::Refused(StatusCode::NOT_FOUND, _) if failed < FAILED_ANSWERS => {
                    failed += 1;
                    if is_news {
                        server.up.store(false, Ordering::SeqCst);
                    }
                    self.revive().await;
                }
                Trouble::Refused(..) | Trouble::Never(_) => {
                    return Err(self.shelf.error(format!("{what}: {first}")));
                }
                Trouble::NotYet(problem) | Trouble::Failing(problem) => {
                    failed += 1;
                    let others = self.servers.iter().any(|s| s.ready() && !Arc::ptr_eq(s, &server));
                    if self.shelf.failed(&server) && others && is_news {
                        self.shelf.put_away(&server, &problem, |address| {
                            format!(
                                "{address} fails whatever it is asked ({problem}); others are asked until it is better"
                            )
                        });
                    }
                    if failed >= FAILED_ANSWERS {
                        return Err(self.shelf.error(format!("{what}: {first} (after {failed} attempts)")));
                    }
                    tokio::time::sleep(pause(failed - 1, None, luck)).await;
                }
                Trouble::Away(problem) if is_news => self.shelf.put_away(&server, &problem, |address| {
                    let limit = patience.as_secs_f64();
                    format!("{address} does not answer ({problem}); waiting for it, up to {limit:.0} s")
                }),
                Trouble::Away(_) => {}
            }
            last = Some(server);
        }
    }
}

impl Sampler for VllmPool {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.shelf.settings.vocabulary, self.caps.max_context)?;
            if request.allowed.is_some() {
                let hint = "play without them: play.mask_actions = false";
                return Err(Error::unsupported("sample with masks", hint));
            }
            if !request.params.stop_texts.is_empty() {
                return Err(Error::unsupported("stop at texts", "give token ids to stop at"));
            }
            let (weights, served) = self.resolve(&request.weights)?;
            let mut request = request;
            let room = self.caps.max_context - request.prompt.len();
            request.params.max_tokens = request.params.max_tokens.min(room as u32);
            let (request, served) = (&request, &served);
            let Written { tokens, logprobs, finish } =
                self.ask("sampling", |server| async move { server.sample(served, request).await }).await?;
            // Where nothing is filtered, what was drawn from is the policy itself.
            Ok(Sample { drawn_logprobs: logprobs.clone(), tokens, logprobs, finish, weights })
        })
    }

    fn score(&self, request: ScoreRequest) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            request.check(self.shelf.settings.vocabulary, self.caps.max_context)?;
            check_score(&request)?;
            let (weights, served) = self.resolve(&request.weights)?;
            let (tokens, from, served) = (&request.tokens, request.from, &served);
            let ask = |server: Arc<Server>| async move { server.score(served, tokens, from).await };
            Ok(Scores { logprobs: self.ask("scoring", ask).await?, entropies: Vec::new(), weights })
        })
    }
}
