//! How do new weights get to the servers, and how is it known that they did?
//!
//! Every push has a name of its own on the servers (`policy@17`), so that requests under way keep theirs and past versions
//! stay there for opponents. A push goes to all servers at once, and counts once every one of them scores a fixed sequence as
//! the trainer does.

use super::pool::{Release, VllmPool};
use super::server::Server;
use crate::{Fingerprint, together::together, wire::Trouble};
use mage_engine::{AdapterName, Result, WeightsId};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, atomic::Ordering},
};

impl VllmPool {
    /// Shows an adapter to all who sample under `weights`' name: on all servers that answer, or not at all. `dir` must be
    /// a folder that they see too, and stay; `fingerprint` is the trainer's.
    pub async fn push_adapter(&self, weights: &WeightsId, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        // One that was away may be back, and is fed what it missed.
        self.revive().await;
        let served = self.free_name(weights).await?;
        let release = Release {
            version: weights.version,
            served,
            dir: Some(dir.to_owned()),
            fingerprint: Some(fingerprint.clone()),
        };
        // One that is away gets everything when it comes back.
        let there: Vec<&Arc<Server>> = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst)).collect();
        let given = together(there.iter().map(|server| self.give(server, &release, weights))).await;
        let (mut reached, mut wrong) = (0, None);
        for (server, given) in there.into_iter().zip(given) {
            match given {
                Ok(()) => reached += 1,
                Err(Given::Away(problem)) => {
                    server.up.store(false, Ordering::SeqCst);
                    let address = server.wire.address();
                    self.settings.notices.say(format!("{address} did not take {weights} ({problem}); it is left out"));
                }
                Err(Given::Wrong(e)) => wrong = wrong.or(Some(e)),
            }
        }
        if let Some(e) = wrong {
            self.unload(std::slice::from_ref(&release)).await;
            return Err(e);
        }
        if reached == 0 {
            return Err(self.error(format!("no server took {weights}: none of them answers")));
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
            let theirs = server.fingerprint(&self.settings.model, self.settings.vocabulary).await.map_err(failed)?;
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
        let found = self.find(address)?.fingerprint(&self.settings.model, self.settings.vocabulary).await;
        found.map_err(|t| self.error(format!("{address}: {}", t.text())))
    }

    /// The names each server serves.
    pub async fn served(&self) -> Vec<(String, Result<Vec<String>>)> {
        let mut out = Vec::new();
        for server in &self.servers {
            let address = server.wire.address().to_owned();
            // Not every front end has `/health`: whoever is not there at all is not waited for.
            let found = match server.alive().await {
                Err(trouble @ Trouble::Away(_)) => Err(trouble),
                _ => server.models().await,
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

    /// Gives a server that comes back every adapter it lacks; how many those were.
    pub(super) async fn feed(&self, server: &Arc<Server>) -> Result<usize> {
        let has = server.models().await.map_err(|t| self.error(format!("{}: {}", server.wire.address(), t.text())))?;
        let wanted: Vec<(AdapterName, Release)> = {
            let releases = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
            let all = releases.iter().flat_map(|(name, all)| all.iter().map(move |r| (name.clone(), r.clone())));
            all.filter(|(_, r)| r.dir.is_some() && !has.contains(&r.served)).collect()
        };
        for (name, release) in &wanted {
            let weights = WeightsId { name: name.clone(), version: release.version };
            match self.give(server, release, &weights).await {
                Ok(()) => {}
                Err(Given::Away(problem)) => return Err(self.error(problem)),
                Err(Given::Wrong(e)) => return Err(e),
            }
        }
        Ok(wanted.len())
    }

    async fn give(&self, server: &Server, release: &Release, weights: &WeightsId) -> std::result::Result<(), Given> {
        let Some(dir) = &release.dir else { return Ok(()) };
        let address = server.wire.address();
        let failed = |t: Trouble| match t {
            Trouble::Away(problem) => Given::Away(problem),
            other => Given::Wrong(self.error(format!("{address} did not take {weights}: {}", other.text()))),
        };
        server.load_adapter(&release.served, dir).await.map_err(failed)?;
        if let Some(expected) = &release.fingerprint {
            let theirs = server.fingerprint(&release.served, self.settings.vocabulary).await.map_err(failed)?;
            expected.check(&theirs, self.settings.tolerance, address, &weights.to_string()).map_err(Given::Wrong)?;
        }
        Ok(())
    }

    /// `policy@17`, or, where a server has one of that name from another life, a name beside it: what is loaded under a
    /// name stays in caches.
    async fn free_name(&self, weights: &WeightsId) -> Result<String> {
        let mut taken = Vec::new();
        let there: Vec<&Arc<Server>> = self.servers.iter().filter(|s| s.up.load(Ordering::SeqCst)).collect();
        let said = together(there.iter().map(|server| server.models())).await;
        for (server, said) in there.into_iter().zip(said) {
            match said {
                Ok(names) => taken.extend(names),
                Err(Trouble::Away(_)) => server.up.store(false, Ordering::SeqCst),
                Err(t) => return Err(self.error(format!("{}: {}", server.wire.address(), t.text()))),
            }
        }
        let plain = weights.to_string();
        let names = std::iter::once(plain.clone()).chain((2..).map(|n| format!("{plain}.{n}")));
        Ok(names.into_iter().find(|n| !taken.contains(n)).unwrap_or(plain))
    }
}

/// Why a server did not take an adapter.
enum Given {
    /// It is not there.
    Away(String),
    /// It is there, and it is wrong.
    Wrong(mage_engine::Error),
}
