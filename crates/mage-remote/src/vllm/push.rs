//! Publishing to the servers of a pool.
//!
//! Every push has a unique name on the servers (`policy@17` and the run's tag), so that requests in flight keep their
//! version, past versions stay available for opponents, and adapters of other users are not taken for ours. A push goes
//! to all healthy servers concurrently, and counts once every one of them reproduces the trainer's fingerprint.

use super::{
    health::PROBE_INTERVAL,
    pool::VllmPool,
    server::{ServedModel, Server},
    version_registry::{PublishedVersion, PushError},
};
use crate::{Fingerprint, http::client::HttpError};
use futures_util::future::join_all;
use mage_engine::{Result, WeightsId, WeightsName};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// Timeout of a health check on a busy server.
const HEALTH_TIMEOUT_BUSY: Duration = Duration::from_secs(10);
/// Loads that take longer are logged, and again whenever the time doubles.
const LOG_AFTER: Duration = Duration::from_secs(30);

impl VllmPool {
    /// Publishes an adapter under `weights`, on all available servers or on none. Unavailable servers get it when they
    /// recover; if no server is available, this waits for one. `dir` must be visible to the servers and persist;
    /// `fingerprint` is the trainer's.
    pub async fn push_adapter(&self, weights: &WeightsId, dir: &Path, fingerprint: &Fingerprint) -> Result<()> {
        let version = PublishedVersion {
            version: weights.version,
            served_name: self.unique_name(weights),
            label: weights.to_string(),
            dir: Some(dir.to_owned()),
            fingerprint: Some(fingerprint.clone()),
        };
        let started = Instant::now();
        let mut logged = false;
        let took = loop {
            // Unhealthy servers may have recovered; reconcile them first.
            self.probe_all().await;
            let mut took = self.push_all(&version, &[]).await?;
            // Servers that recovered meanwhile take the version too, which saves a reconciliation.
            while !took.is_empty() {
                let late = self.push_all(&version, &took).await?;
                if late.is_empty() {
                    break;
                }
                took.extend(late);
            }
            if !took.is_empty() {
                break took;
            }
            if let Some(fault) = self.fault() {
                return Err(fault);
            }
            let limit = self.registry.settings.timeouts.outage;
            if started.elapsed() > limit {
                let problem =
                    format!("no server loaded {weights} within {} s{}", limit.as_secs(), self.last_problems());
                return Err(self.registry.error(problem));
            }
            if !std::mem::replace(&mut logged, true) {
                let line =
                    format!("no vLLM server is available for {weights}; retrying for up to {} s", limit.as_secs());
                self.registry.settings.status_log.log(line);
            }
            tokio::time::sleep(PROBE_INTERVAL).await;
        };
        let keep = self.registry.settings.keep_versions;
        let old = self.registry.update(&self.servers, &took, |versions| {
            let all = versions.entry(weights.name.clone()).or_default();
            // After a resume from a checkpoint, later versions are replaced.
            let mut old: Vec<PublishedVersion> = all.extract_if(.., |r| r.version >= weights.version).collect();
            all.push(version);
            let num_retired = all.len().saturating_sub(keep);
            old.extend(all.drain(..num_retired));
            old
        });
        self.unload(&old).await;
        Ok(())
    }

    /// Pushes a version to all healthy servers except those in `have`; returns the servers that took it. A server that
    /// rejects what others take is excluded. A fingerprint mismatch, or a rejection by all, is an error, and the
    /// version is removed everywhere.
    async fn push_all(&self, version: &PublishedVersion, have: &[&Arc<Server>]) -> Result<Vec<&Arc<Server>>> {
        let lacks = |s: &&Arc<Server>| s.healthy.load(Ordering::SeqCst) && !have.iter().any(|h| Arc::ptr_eq(s, h));
        let up: Vec<&Arc<Server>> = self.servers.iter().filter(lacks).collect();
        let (started, fastest) = (Instant::now(), OnceLock::<Duration>::new());
        let results = join_all(up.iter().map(async |server| {
            let push = async {
                server.check_health(HEALTH_TIMEOUT_BUSY).await.map_err(|e| PushError::Unavailable(e.text()))?;
                self.push(server, version).await?;
                fastest.get_or_init(|| started.elapsed());
                Ok(())
            };
            tokio::select! {
                biased;
                result = push => result,
                timeout = self.straggler_timeout(started, &fastest) => timeout,
            }
        }))
        .await;
        let (mut took, mut rejected, mut error) = (Vec::new(), Vec::new(), None);
        for (server, result) in up.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    self.registry.record_success(server);
                    took.push(server);
                }
                Err(PushError::Unavailable(problem)) => {
                    self.registry.mark_unhealthy(server, &problem, &[], |address| {
                        format!(
                            "{address} did not load {} ({problem}); it is reconciled when it recovers",
                            version.label
                        )
                    });
                }
                Err(PushError::Rejected(e)) => rejected.push((server, e)),
                Err(PushError::Mismatch(e)) => error = error.or(Some(e)),
            }
        }
        if took.is_empty() && have.is_empty() {
            error = error.or_else(|| rejected.pop().map(|(_, e)| e));
        }
        let Some(error) = error else {
            for (server, e) in rejected {
                let problem = e.to_string();
                self.registry.mark_unhealthy(server, &problem, e.hints(), |address| {
                    format!("{address} rejected {}, which others accepted ({problem}); it gets no requests until it accepts it", version.label)
                });
            }
            return Ok(took);
        };
        self.unload(std::slice::from_ref(version)).await;
        Err(error)
    }

    /// Pushes a version to a server, and logs a slow load.
    async fn push(&self, server: &Server, version: &PublishedVersion) -> std::result::Result<(), PushError> {
        let (started, status_log) = (Instant::now(), &self.registry.settings.status_log);
        let log_slow = async {
            let mut next = LOG_AFTER.min(self.registry.settings.timeouts.attempt.saturating_mul(3));
            loop {
                tokio::time::sleep_until(started + next).await;
                let (address, seconds) = (server.http.address(), next.as_secs_f64());
                status_log.log(format!("still waiting for {address} to load {} after {seconds:.0} s", version.label));
                next *= 2;
            }
        };
        tokio::select! {
            biased;
            result = self.registry.push(server, version) => result,
            never = log_slow => never,
        }
    }

    /// Completes when a server takes so much longer than the fastest that others should not wait for it.
    async fn straggler_timeout(
        &self,
        started: Instant,
        fastest: &OnceLock<Duration>,
    ) -> std::result::Result<(), PushError> {
        loop {
            tokio::time::sleep(PROBE_INTERVAL / 5).await;
            let Some(fastest) = fastest.get() else { continue };
            // Allows for one lost attempt and a retry.
            let timeouts = &self.registry.settings.timeouts;
            let limit = (*fastest * 4 + timeouts.attempt.saturating_mul(2)).min(timeouts.outage);
            if started.elapsed() > limit {
                let problem = format!(
                    "not done after {:.0} s; the fastest server took {:.1} s",
                    limit.as_secs_f64(),
                    fastest.as_secs_f64()
                );
                return Err(PushError::Unavailable(problem));
            }
        }
    }

    /// Unloads all adapters from the servers, after all sampling has ended.
    pub async fn unload_all_adapters(&self) {
        let all: Vec<PublishedVersion> = {
            let mut versions = self.registry.versions();
            versions.values_mut().flat_map(|all| all.extract_if(.., |r| r.is_adapter())).collect()
        };
        self.unload(&all).await;
    }

    async fn unload(&self, old: &[PublishedVersion]) {
        let healthy = self.servers.iter().filter(|s| s.healthy.load(Ordering::SeqCst));
        join_all(healthy.map(|server| {
            // Stale adapters are no reason to wait for a server.
            tokio::time::timeout(HEALTH_TIMEOUT_BUSY, async {
                for version in old {
                    server.unload_adapter(&version.served_name).await;
                }
            })
        }))
        .await;
    }

    /// Directory and fingerprint of the newest adapter of a name.
    pub(crate) fn newest_adapter(&self, name: &WeightsName) -> Option<(PathBuf, Fingerprint)> {
        let versions = self.registry.versions();
        let newest = versions.get(name)?.last().filter(|r| r.is_adapter())?;
        newest.dir.clone().zip(newest.fingerprint.clone())
    }

    /// Directories of all adapters that servers may read.
    pub(crate) fn adapter_dirs(&self) -> Vec<PathBuf> {
        let versions = self.registry.versions();
        versions.values().flatten().filter(|r| r.is_adapter()).filter_map(|r| r.dir.clone()).collect()
    }

    /// Fingerprint of the base model on a server.
    pub async fn base_fingerprint(&self, address: &str) -> Result<Fingerprint> {
        let found = self.find(address)?.fingerprint(&self.registry.settings.model).await;
        found.map_err(|e| self.registry.request_error(address, &e))
    }

    /// Time until a server completes a prompt; a server that is still compiling is waited for up to `limit`.
    pub async fn first_completion(&self, address: &str, limit: Duration) -> Result<Duration> {
        let found = self.find(address)?.first_completion(&self.registry.settings.model, limit).await;
        found.map_err(|e| self.registry.request_error(address, &e))
    }

    /// Models and adapters of each server.
    pub async fn served_models(&self) -> Vec<(String, Result<Vec<ServedModel>>)> {
        let mut out = Vec::new();
        for server in &self.servers {
            let address = server.http.address().to_owned();
            // Unreachable servers are not waited for.
            let found = match server.check_health(HEALTH_TIMEOUT_BUSY).await {
                Ok(()) => server.list_models().await,
                Err(error) => Err(HttpError::Unreachable(format!(
                    "{}: check that the server runs and that this is its address",
                    error.text()
                ))),
            };
            let found = found.map_err(|e| self.registry.request_error(&address, &e));
            out.push((address, found));
        }
        out
    }

    /// Tokenizes a text on a server.
    pub async fn tokenize(&self, address: &str, text: &str) -> Result<Vec<u32>> {
        let server = self.find(address)?;
        let found = server.tokenize(&self.registry.settings.model, text).await;
        found.map_err(|e| self.registry.request_error(address, &e))
    }

    /// A name never used on any server: loaded names stay in caches, and a shared server may have another `policy@17`.
    fn unique_name(&self, weights: &WeightsId) -> String {
        let n = self.num_names.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{weights}.{}-{n}", self.registry.tag)
    }
}
