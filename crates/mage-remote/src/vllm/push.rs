//! How do new weights get to the servers, and how is it known that they did?
//!
//! Every push has a name of its own on the servers (`policy@17` and what marks the run), so that requests under way keep
//! theirs, past versions stay there for opponents, and nobody else's adapter is taken for ours. A push goes to all servers that
//! are there at once, and counts once every one of them scores a fixed sequence as the trainer does.

use super::{
    health::LOOK_AGAIN,
    pool::VllmPool,
    server::{ServedModel, Server},
    weight_sync::{Given, Release},
};
use crate::{
    Fingerprint,
    http::client::HttpError,
    join::{join_all, race},
};
use mage_engine::{AdapterName, Result, WeightVersion, WeightsId};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// One with much to do says that it is there within this time.
const BUSY: Duration = Duration::from_secs(10);
/// What takes longer is worth a line, and another when it has taken twice as long.
const WORTH_A_LINE: Duration = Duration::from_secs(30);

impl VllmPool {
    /// Shows an adapter to all who sample under `weights`' name: on all servers that answer, or not at all. Those that do not
    /// get it when they are back; only where none does, one is waited for. `dir` must be a folder that they see too, and stay;
    /// `fingerprint` is the trainer's.
    pub async fn push_adapter(&self, weights: &WeightsId, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        let release = Release {
            version: weights.version,
            served: self.new_name(weights),
            what: weights.to_string(),
            dir: Some(dir.to_owned()),
            fingerprint: Some(fingerprint.clone()),
            whole: false,
        };
        let started = Instant::now();
        let mut told = false;
        let took = loop {
            // One that was away may be back, and is fed what it missed.
            self.welcome().await;
            let mut took = self.give_all(&release, &[]).await?;
            // Whoever came back meanwhile takes it too, and need not be fed anew.
            while !took.is_empty() {
                let late = self.give_all(&release, &took).await?;
                if late.is_empty() {
                    break;
                }
                took.extend(late);
            }
            if !took.is_empty() {
                break took;
            }
            if let Some(wrong) = self.wrong() {
                return Err(wrong);
            }
            let limit = self.shelf.settings.waiting.away;
            if started.elapsed() > limit {
                let problem = format!("no server took {weights} within {} s{}", limit.as_secs(), self.troubles());
                return Err(self.shelf.error(problem));
            }
            if !std::mem::replace(&mut told, true) {
                let line = format!("no vLLM server is there to take {weights}; waiting, up to {} s", limit.as_secs());
                self.shelf.settings.notices.say(line);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        let keep = self.shelf.settings.keep;
        let old = self.shelf.change(&self.servers, &took, |releases| {
            let all = releases.entry(weights.name.clone()).or_default();
            // Going on from a checkpoint takes later versions back.
            let mut old: Vec<Release> = all.extract_if(.., |r| r.version >= weights.version).collect();
            all.push(release);
            let spare = all.len().saturating_sub(keep);
            old.extend(all.drain(..spare));
            old
        });
        self.unload(&old).await;
        Ok(())
    }

    /// Gives a release to all servers that are there, but for those that have it; which took it. One that refuses what others
    /// take is done without. One with other numbers than the trainer's is an error, as is a refusal by all; then nobody keeps
    /// it.
    async fn give_all(&self, release: &Release, have: &[&Arc<Server>]) -> Result<Vec<&Arc<Server>>> {
        let lacks = |s: &&Arc<Server>| s.up.load(Ordering::SeqCst) && !have.iter().any(|h| Arc::ptr_eq(s, h));
        let up: Vec<&Arc<Server>> = self.servers.iter().filter(lacks).collect();
        let (started, quickest) = (Instant::now(), OnceLock::<Duration>::new());
        let given = join_all(up.iter().map(async |server| {
            let give = async {
                server.alive(BUSY).await.map_err(|t| Given::Away(t.text()))?;
                self.give(server, release).await?;
                quickest.get_or_init(|| started.elapsed());
                Ok(())
            };
            race(give, self.lateness(started, &quickest)).await
        }))
        .await;
        let (mut took, mut refused, mut wrong) = (Vec::new(), Vec::new(), None);
        for (server, given) in up.into_iter().zip(given) {
            match given {
                Ok(()) => {
                    self.shelf.worked(server);
                    took.push(server);
                }
                Err(Given::Away(problem)) => self.shelf.put_away(server, &problem, |address| {
                    format!("{address} did not take {} ({problem}); it gets everything when it is back", release.what)
                }),
                Err(Given::Refused(e)) => refused.push((server, e)),
                Err(Given::Wrong(e)) => wrong = wrong.or(Some(e)),
            }
        }
        if took.is_empty() && have.is_empty() {
            wrong = wrong.or_else(|| refused.pop().map(|(_, e)| e));
        }
        let Some(wrong) = wrong else {
            for (server, e) in refused {
                let problem = e.to_string();
                self.shelf.put_away(server, &problem, |address| {
                    format!("{address} gets no requests until it takes what others took ({problem})")
                });
            }
            return Ok(took);
        };
        self.unload(std::slice::from_ref(release)).await;
        Err(wrong)
    }

    /// Has a server take a release; whoever watches hears of one that takes its time.
    async fn give(&self, server: &Server, release: &Release) -> std::result::Result<(), Given> {
        let (started, notices) = (Instant::now(), &self.shelf.settings.notices);
        let remind = async {
            let mut next = WORTH_A_LINE.min(self.shelf.settings.waiting.attempt.saturating_mul(3));
            loop {
                tokio::time::sleep_until(started + next).await;
                let (address, seconds) = (server.wire.address(), next.as_secs_f64());
                notices.say(format!("still waiting for {address} to load {}, {seconds:.0} s", release.what));
                next *= 2;
            }
        };
        race(self.shelf.give(server, release), remind).await
    }

    /// Ends when a server takes so much longer than the quickest that the others should not wait for it.
    async fn lateness(&self, started: Instant, quickest: &OnceLock<Duration>) -> std::result::Result<(), Given> {
        loop {
            tokio::time::sleep(LOOK_AGAIN / 5).await;
            let Some(quickest) = quickest.get() else { continue };
            // Time for an attempt that was lost and for another.
            let waiting = &self.shelf.settings.waiting;
            let limit = (*quickest * 4 + waiting.attempt.saturating_mul(2)).min(waiting.away);
            if started.elapsed() > limit {
                let problem = format!(
                    "not done after {:.0} s, another was after {:.1} s",
                    limit.as_secs_f64(),
                    quickest.as_secs_f64()
                );
                return Err(Given::Away(problem));
            }
        }
    }

    /// Takes every adapter off the servers. What samples by them has ended.
    pub async fn withdraw(&self) {
        let all: Vec<Release> = {
            let mut releases = self.shelf.releases();
            releases.values_mut().flat_map(|all| all.extract_if(.., |r| r.is_adapter())).collect()
        };
        self.unload(&all).await;
    }

    async fn unload(&self, old: &[Release]) {
        let everywhere = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst));
        join_all(everywhere.map(|server| {
            // What a server keeps for nobody is no reason to wait for it.
            tokio::time::timeout(BUSY, async {
                for release in old {
                    server.unload_adapter(&release.served).await;
                }
            })
        }))
        .await;
    }

    /// Puts the weights of a model folder, which all servers see too, in place of the served model's. Adapters stay. Each
    /// server is drained before. From now on a server is asked only with these weights: one in trouble that may pass, or
    /// started anew, gets them when it is back.
    pub async fn push_weights(&self, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        let release = Release {
            version: WeightVersion(0),
            served: self.shelf.settings.model.clone(),
            what: format!("the weights of {}", dir.display()),
            dir: Some(dir.to_owned()),
            fingerprint: Some(fingerprint.clone()),
            whole: true,
        };
        let all: Vec<&Arc<Server>> = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst)).collect();
        self.shelf.change(&self.servers, &all, |releases| {
            for other in releases.values_mut().flatten() {
                // What adapters come to on these weights nobody has said.
                other.fingerprint = None;
            }
            releases.insert(AdapterName::new(AdapterName::BASE), vec![release.clone()]);
        });
        self.shelf.replaced.store(true, Ordering::SeqCst);
        let (mut took, mut wrong) = (0, None);
        for server in all {
            let was_draining = server.draining.load(Ordering::SeqCst);
            let given = match self.drain_within(server.wire.address(), self.shelf.settings.waiting.away).await {
                Ok(()) => self.give(server, &release).await,
                Err(late) => Err(Given::Away(late.to_string())),
            };
            match given {
                Ok(()) => {
                    self.shelf.worked(server);
                    took += 1;
                }
                Err(Given::Away(problem)) => self.shelf.put_away(server, &problem, |address| {
                    format!("{address} did not take {} ({problem}); it gets them when it is back", release.what)
                }),
                Err(Given::Refused(e) | Given::Wrong(e)) => {
                    server.up.store(false, Ordering::SeqCst);
                    wrong = wrong.or(Some(e));
                }
            }
            server.draining.store(was_draining, Ordering::SeqCst);
        }
        match wrong {
            Some(wrong) => Err(wrong),
            None if took == 0 => Err(self.shelf.error(format!("no server took {}{}", release.what, self.troubles()))),
            None => Ok(()),
        }
    }

    /// The folder and the fingerprint of the newest adapter under a name.
    pub fn newest_adapter(&self, name: &AdapterName) -> Option<(PathBuf, Fingerprint)> {
        let releases = self.shelf.releases();
        let newest = releases.get(name)?.last().filter(|r| r.is_adapter())?;
        newest.dir.clone().zip(newest.fingerprint.clone())
    }

    /// The folders of all adapters that servers may read.
    pub fn folders(&self) -> Vec<PathBuf> {
        let releases = self.shelf.releases();
        releases.values().flatten().filter(|r| r.is_adapter()).filter_map(|r| r.dir.clone()).collect()
    }

    /// The base model's fingerprint on a server.
    pub async fn base_fingerprint(&self, address: &str) -> Result<Fingerprint> {
        let found = self.find(address)?.fingerprint(&self.shelf.settings.model).await;
        found.map_err(|t| self.shelf.error(format!("{address}: {}", t.text())))
    }

    /// What each server serves.
    pub async fn served(&self) -> Vec<(String, Result<Vec<ServedModel>>)> {
        let mut out = Vec::new();
        for server in &self.servers {
            let address = server.wire.address().to_owned();
            // Whoever is not there is not waited for.
            let found = match server.alive(BUSY).await {
                Ok(()) => server.models().await,
                Err(trouble) => {
                    Err(HttpError::Away(format!("{}: is it started, and is this its address?", trouble.text())))
                }
            };
            out.push((address.clone(), found.map_err(|t| self.shelf.error(format!("{address}: {}", t.text())))));
        }
        out
    }

    /// The tokens a server makes of a text.
    pub async fn tokenize(&self, address: &str, text: &str) -> Result<Vec<u32>> {
        let server = self.find(address)?;
        let found = server.tokenize(&self.shelf.settings.model, text).await;
        found.map_err(|t| self.shelf.error(format!("{address}: {}", t.text())))
    }

    /// A name that no server has heard: what is loaded under a name stays in caches, and a server that others use too may
    /// have a `policy@17` of theirs.
    fn new_name(&self, weights: &WeightsId) -> String {
        let n = self.pushes.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{weights}.{}-{n}", self.shelf.tag)
    }
}
