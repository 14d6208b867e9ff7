//! Which server is asked, and what happens when it goes away?
//!
//! Each request goes to the server with the fewest under way. One that fails gets none until it answers again; what it was
//! asked is asked elsewhere, or waits. A server that comes back may have been started anew: then it is given the adapters
//! again before it is asked.

use super::{
    push::Given,
    server::{ALIVE, Server, Written, check_score},
};
use crate::{
    ApiKey, Fingerprint, Notices, Service,
    mark::mark,
    together::together,
    wire::{Trouble, Waiting},
};
use mage_engine::{
    AdapterName, BoxFuture, Error, LogProbs, Result, Sample, SampleRequest, Sampler, SamplerCaps, ScoreRequest, Scores,
    WeightVersion, WeightsId,
};
use reqwest::StatusCode;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// How long between two looks at servers none of which can be asked.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long between two looks at one that is away while others work.
const LOOK_AROUND: Duration = Duration::from_secs(5);
/// A request is given to so many failing servers before it is given up.
const FAILED_ANSWERS: u32 = 6;

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

/// One pushed set of weights.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: WeightVersion,
    /// What servers call it; the served model itself without an adapter.
    pub(super) served: String,
    /// The adapter's folder.
    pub(super) dir: Option<PathBuf>,
    pub(super) fingerprint: Option<Fingerprint>,
}

/// A pool of vLLM servers.
#[derive(Debug)]
pub struct VllmPool {
    pub(super) settings: PoolSettings,
    pub(super) servers: Vec<Arc<Server>>,
    caps: SamplerCaps,
    places: Semaphore,
    /// By name, oldest first.
    pub(super) releases: Mutex<BTreeMap<AdapterName, Vec<Release>>>,
    turn: AtomicUsize,
    /// Marks this pool's names on the servers.
    pub(super) tag: String,
    /// How many names there were.
    pub(super) pushes: AtomicUsize,
    /// When servers that were away were last looked at.
    reviving: tokio::sync::Mutex<Instant>,
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
struct Seat(Arc<Server>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Ordering::SeqCst);
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
        let base = Release { version: WeightVersion(0), served: settings.model.clone(), dir: None, fingerprint: None };
        let places = Semaphore::new((settings.in_flight * servers.len()).min(Semaphore::MAX_PERMITS));
        let releases = [(AdapterName::new(AdapterName::BASE), vec![base])].into();
        Ok(VllmPool {
            settings,
            servers,
            caps,
            places,
            releases: Mutex::new(releases),
            turn: AtomicUsize::new(0),
            tag: mark()[..8].to_owned(),
            pushes: AtomicUsize::new(0),
            reviving: tokio::sync::Mutex::new(Instant::now()),
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

    /// Gives a server no new requests, and returns when those under way are done. It may then be stopped.
    pub async fn drain(&self, address: &str) -> Result<()> {
        let server = self.find(address)?;
        server.draining.store(true, Ordering::SeqCst);
        while server.load.load(Ordering::SeqCst) > 0 {
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
        let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// The server that is least busy, with a seat on it; `None` where none can be asked.
    fn seat(&self) -> Option<Seat> {
        let n = self.servers.len();
        // Equally busy servers take turns.
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let order = (0..n).map(|i| &self.servers[(first + i) % n]);
        let server = order.filter(|s| s.ready()).min_by_key(|s| s.load.load(Ordering::SeqCst))?;
        server.load.fetch_add(1, Ordering::SeqCst);
        Some(Seat(Arc::clone(server)))
    }

    /// Looks at the servers that failed. Those that answer again get the adapters they lack, and requests. What is wrong with
    /// one that is there, where that leaves none.
    pub(super) async fn revive(&self) -> Option<Error> {
        // One at a time: a server counts only once whoever feeds it has seen that it took everything.
        self.look(self.reviving.lock().await).await
    }

    /// The same, where others work meanwhile: now and then, and by one request alone.
    async fn look_around(&self) {
        let away = |s: &Arc<Server>| !s.up.load(Ordering::SeqCst) && !s.draining.load(Ordering::SeqCst);
        if self.servers.iter().any(away)
            && let Ok(last) = self.reviving.try_lock()
            && last.elapsed() >= LOOK_AROUND
        {
            self.look(last).await;
        }
    }

    async fn look(&self, mut last: tokio::sync::MutexGuard<'_, Instant>) -> Option<Error> {
        let mut wrong = None;
        let away: Vec<&Arc<Server>> = self.servers.iter().filter(|s| !s.up.load(Ordering::SeqCst)).collect();
        let back = together(away.iter().map(|server| server.alive(ALIVE))).await;
        for (server, _) in away.into_iter().zip(back).filter(|(_, back)| back.is_ok()) {
            let problem = match self.feed(server).await {
                Ok(fed) => {
                    let again =
                        if fed > 0 { format!(", {fed} adapters were given to it again") } else { String::new() };
                    server.up.store(true, Ordering::SeqCst);
                    server.is_news("");
                    self.settings.notices.say(format!("{} is back{again}", server.wire.address()));
                    continue;
                }
                Err(Given::Away(problem)) => problem,
                Err(Given::Wrong(e)) => {
                    let problem = e.to_string();
                    wrong = wrong.or(Some(e));
                    problem
                }
            };
            // It is looked at again and again, and told about once.
            if server.is_news(&problem) {
                let line = format!("{} is back, but gets no requests: {problem}", server.wire.address());
                self.settings.notices.say(line);
            }
        }
        *last = Instant::now();
        wrong.filter(|_| self.servers.iter().all(|s| !s.up.load(Ordering::SeqCst)))
    }

    /// Asks until there is an answer.
    async fn ask<T, F>(&self, what: &str, work: impl Fn(Arc<Server>) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Trouble>>,
    {
        let _place = self.places.acquire().await;
        self.look_around().await;
        let (mut first, mut failed, mut away_since) = (None::<String>, 0, None::<Instant>);
        loop {
            let Some(seat) = self.seat() else {
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() > self.settings.waiting.away {
                    let limit = self.settings.waiting.away.as_secs_f64();
                    let problem = first.unwrap_or_else(|| "none of them answers".to_owned());
                    return Err(self.error(format!("{what}: no server for {limit:.0} s: {problem}")));
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                if let Some(wrong) = self.revive().await {
                    return Err(wrong);
                }
                continue;
            };
            let server = Arc::clone(&seat.0);
            let trouble = match work(Arc::clone(&server)).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => trouble,
            };
            drop(seat);
            let text = format!("{}: {}", server.wire.address(), trouble.text());
            let first = first.get_or_insert_with(|| text.clone());
            match trouble {
                // It was started anew and does not have the adapter.
                Trouble::Refused(StatusCode::NOT_FOUND, _) if failed < FAILED_ANSWERS => {
                    failed += 1;
                    server.up.store(false, Ordering::SeqCst);
                    self.revive().await;
                }
                Trouble::Refused(..) => return Err(self.error(format!("{what}: {first}"))),
                Trouble::NotYet(_) | Trouble::Failing(_) => {
                    failed += 1;
                    if failed >= FAILED_ANSWERS {
                        return Err(self.error(format!("{what}: {first} (after {failed} attempts)")));
                    }
                    tokio::time::sleep(LOOK_AGAIN / 2 * failed).await;
                }
                Trouble::Away(problem) => {
                    if server.up.swap(false, Ordering::SeqCst) {
                        let limit = self.settings.waiting.away.as_secs_f64();
                        let address = server.wire.address();
                        let line = format!("{address} does not answer ({problem}); waiting for it, up to {limit:.0} s");
                        self.settings.notices.say(line);
                    }
                }
            }
        }
    }

    pub(super) fn error(&self, reason: String) -> Error {
        Error::Engine { engine: "vllm".to_owned(), reason }
    }
}

impl Sampler for VllmPool {
    fn caps(&self) -> &SamplerCaps {
        &self.caps
    }

    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sample>> {
        Box::pin(async move {
            request.check(self.settings.vocabulary, self.caps.max_context)?;
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
            request.check(self.settings.vocabulary, self.caps.max_context)?;
            check_score(&request)?;
            let (weights, served) = self.resolve(&request.weights)?;
            let (tokens, from, served) = (&request.tokens, request.from, &served);
            let ask = |server: Arc<Server>| async move { server.score(served, tokens, from).await };
            Ok(Scores { logprobs: self.ask("scoring", ask).await?, entropies: Vec::new(), weights })
        })
    }
}
