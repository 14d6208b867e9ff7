//! How do new weights get to the servers, and how is it known that they did?
//!
//! Every push has a name of its own on the servers (`policy@17` and what marks the run), so that requests under way keep
//! theirs, past versions stay there for opponents, and nobody else's adapter is taken for ours. A push goes to all servers that
//! are there at once, and counts once every one of them scores a fixed sequence as the trainer does.

use super::pool::{LOOK_AGAIN, Release, VllmPool};
use super::server::Server;
use crate::{Fingerprint, together::together, wire::Trouble};
use mage_engine::{AdapterName, Result, WeightsId};
use reqwest::StatusCode;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// One with much to do says that it is there within this time.
const BUSY: Duration = Duration::from_secs(10);

impl VllmPool {
    /// Shows an adapter to all who sample under `weights`' name: on all servers that answer, or not at all. Those that do not
    /// get it when they are back; only where none does, one is waited for. `dir` must be a folder that they see too, and stay;
    /// `fingerprint` is the trainer's.
    pub async fn push_adapter(&self, weights: &WeightsId, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        let release = Release {
            version: weights.version,
            served: self.new_name(weights),
            dir: Some(dir.to_owned()),
            fingerprint: Some(fingerprint.clone()),
        };
        let started = Instant::now();
        let mut told = false;
        loop {
            // One that was away may be back, and is fed what it missed.
            let wrong = self.revive().await;
            if self.give_all(&release, weights).await? > 0 {
                break;
            }
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            let limit = self.settings.waiting.away;
            if started.elapsed() > limit {
                let problem = format!("no server took {weights}: none of them answered for {} s", limit.as_secs());
                return Err(self.error(problem));
            }
            if !std::mem::replace(&mut told, true) {
                let line = format!("no vLLM server is there to take {weights}; waiting, up to {} s", limit.as_secs());
                self.settings.notices.say(line);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let old = {
            let mut releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
            let all = releases.entry(weights.name.clone()).or_default();
            // Going on from a checkpoint takes later versions back.
            let mut old: Vec<Release> = all.extract_if(.., |r| r.version >= weights.version).collect();
            all.push(release);
            let spare = all.len().saturating_sub(self.settings.keep);
            old.extend(all.drain(..spare));
            old
        };
        self.unload(&old).await;
        Ok(())
    }

    /// Gives a release to all servers that are there; how many those were. One with other numbers than the trainer's is an
    /// error, and then nobody keeps it.
    async fn give_all(&self, release: &Release, weights: &WeightsId) -> Result<usize> {
        let up: Vec<&Arc<Server>> = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst)).collect();
        let given = together(up.iter().map(async |server| {
            server.alive(BUSY).await.map_err(|t| Given::Away(t.text()))?;
            self.give(server, release, weights).await
        }))
        .await;
        let (mut reached, mut wrong) = (0, None);
        for (server, given) in up.into_iter().zip(given) {
            match given {
                Ok(()) => reached += 1,
                Err(Given::Away(problem)) => {
                    server.up.store(false, Ordering::SeqCst);
                    let address = server.wire.address();
                    self.settings.notices.say(format!(
                        "{address} did not take {weights} ({problem}); it gets everything when it is back"
                    ));
                }
                Err(Given::Wrong(e)) => wrong = wrong.or(Some(e)),
            }
        }
        let Some(wrong) = wrong else { return Ok(reached) };
        self.unload(std::slice::from_ref(release)).await;
        Err(wrong)
    }

    /// Takes every adapter off the servers. What samples by them has ended.
    pub async fn withdraw(&self) {
        let all: Vec<Release> = {
            let mut releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
            releases.values_mut().flat_map(|all| all.extract_if(.., |r| r.dir.is_some())).collect()
        };
        self.unload(&all).await;
    }

    async fn unload(&self, old: &[Release]) {
        let everywhere = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst));
        together(everywhere.map(async |server| {
            for release in old {
                server.unload_adapter(&release.served).await;
            }
        }))
        .await;
    }

    /// Puts the weights of a model folder, which all servers see too, in place of the served model's. Adapters stay. Each
    /// server is drained before.
    pub async fn push_weights(&self, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        for server in &self.servers {
            let address = server.wire.address().to_owned();
            self.drain(&address).await?;
            let failed = |t: Trouble| self.error(format!("{address}: pushing weights: {}", t.text()));
            server.reload_weights(dir).await.map_err(failed)?;
            let theirs = server.fingerprint(&self.settings.model).await.map_err(failed)?;
            fingerprint.check(
                &theirs,
                self.settings.tolerance,
                &address,
                &format!("the weights of {}", dir.display()),
            )?;
            server.draining.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The folder and the fingerprint of the newest adapter under a name.
    pub fn newest_adapter(&self, name: &AdapterName) -> Option<(PathBuf, Fingerprint)> {
        let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = releases.get(name)?.last()?;
        newest.dir.clone().zip(newest.fingerprint.clone())
    }

    /// The folders of all adapters that servers may read.
    pub fn folders(&self) -> Vec<PathBuf> {
        let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
        releases.values().flatten().filter_map(|r| r.dir.clone()).collect()
    }

    /// The base model's fingerprint on a server.
    pub async fn base_fingerprint(&self, address: &str) -> Result<Fingerprint> {
        let found = self.find(address)?.fingerprint(&self.settings.model).await;
        found.map_err(|t| self.error(format!("{address}: {}", t.text())))
    }

    /// The names each server serves.
    pub async fn served(&self) -> Vec<(String, Result<Vec<String>>)> {
        let mut out = Vec::new();
        for server in &self.servers {
            let address = server.wire.address().to_owned();
            // Whoever is not there is not waited for.
            let found = match server.alive(BUSY).await {
                Ok(()) => server.models().await,
                Err(trouble) => {
                    Err(Trouble::Away(format!("{}: is it started, and is this its address?", trouble.text())))
                }
            };
            out.push((address.clone(), found.map_err(|t| self.error(format!("{address}: {}", t.text())))));
        }
        out
    }

    /// The tokens a server makes of a text.
    pub async fn tokenize(&self, address: &str, text: &str) -> Result<Vec<u32>> {
        let server = self.find(address)?;
        let found = server.tokenize(&self.settings.model, text).await;
        found.map_err(|t| self.error(format!("{address}: {}", t.text())))
    }

    /// Gives a server that comes back every adapter it lacks, and looks at those it says it has; how many it lacked.
    pub(super) async fn feed(&self, server: &Arc<Server>) -> std::result::Result<usize, Given> {
        let address = server.wire.address();
        let has = server.models().await.map_err(|t| self.not_taken(t, format!("{address}: listing its models")))?;
        let wanted: Vec<(AdapterName, Release)> = {
            let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
            let all = releases.iter().flat_map(|(name, all)| all.iter().map(move |r| (name.clone(), r.clone())));
            all.filter(|(_, r)| r.dir.is_some()).collect()
        };
        let mut lacked = 0;
        for (name, release) in &wanted {
            let weights = WeightsId { name: name.clone(), version: release.version };
            if has.contains(&release.served) {
                self.look_at(server, release, &weights).await?;
            } else {
                self.give(server, release, &weights).await?;
                lacked += 1;
            }
        }
        Ok(lacked)
    }

    async fn give(&self, server: &Server, release: &Release, weights: &WeightsId) -> std::result::Result<(), Given> {
        let Some(dir) = &release.dir else { return Ok(()) };
        let loaded = server.load_adapter(&release.served, dir).await;
        loaded.map_err(|t| self.not_taken(t, format!("{} did not take {weights}", server.wire.address())))?;
        self.look_at(server, release, weights).await
    }

    /// Refuses a server whose numbers under a release's name are not the trainer's.
    async fn look_at(&self, server: &Server, release: &Release, weights: &WeightsId) -> std::result::Result<(), Given> {
        let Some(expected) = &release.fingerprint else { return Ok(()) };
        let address = server.wire.address();
        let theirs = match server.fingerprint(&release.served).await {
            // It was started anew since it took the adapter.
            Err(Trouble::Refused(StatusCode::NOT_FOUND, text)) => Err(Trouble::Away(text)),
            other => other,
        };
        let theirs = theirs.map_err(|t| self.not_taken(t, format!("{address} does not score {weights}")))?;
        expected.check(&theirs, self.settings.tolerance, address, &weights.to_string()).map_err(Given::Wrong)
    }

    fn not_taken(&self, trouble: Trouble, what: String) -> Given {
        match trouble {
            Trouble::Refused(..) => Given::Wrong(self.error(format!("{what}: {}", trouble.text()))),
            passing => Given::Away(passing.text()),
        }
    }

    /// A name that no server has heard: what is loaded under a name stays in caches, and a server that others use too may
    /// have a `policy@17` of theirs.
    fn new_name(&self, weights: &WeightsId) -> String {
        let n = self.pushes.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{weights}.{}-{n}", self.tag)
    }
}

/// Why a server did not take an adapter.
pub(super) enum Given {
    /// It is not there.
    Away(String),
    /// It is there, and it is wrong.
    Wrong(mage_engine::Error),
}
