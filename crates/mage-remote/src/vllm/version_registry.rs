//! Registry of published weight versions, and reconciliation of servers with it.
//!
//! The registry holds the served model and all published adapters, by name and version. A server that was unavailable
//! gets what it lacks before it receives requests, and an adapter counts only if its fingerprint equals the trainer's.

use super::{pool::VllmPoolSettings, server::Server};
use crate::{Fingerprint, http::client::HttpError, unique_tag::unique_tag};
use mage_engine::{Error, WeightVersion, WeightsName};
use reqwest::StatusCode;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};
use tokio::sync::Notify;

pub(super) type VersionsByName = BTreeMap<WeightsName, Vec<PublishedVersion>>;

/// A published version of weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PublishedVersion {
    pub(super) version: WeightVersion,
    /// Name on the servers; the served model itself without an adapter.
    pub(super) served_name: String,
    /// Label for messages.
    pub(super) label: String,
    /// Directory of an adapter; `None` for the served model.
    pub(super) dir: Option<PathBuf>,
    pub(super) fingerprint: Option<Fingerprint>,
}

impl PublishedVersion {
    pub(super) fn is_adapter(&self) -> bool {
        self.dir.is_some()
    }
}

/// Failure to push a version to a server.
#[derive(Debug)]
pub(super) enum PushError {
    /// The server is unavailable, maybe temporarily.
    Unavailable(String),
    /// The server rejected it.
    Rejected(Error),
    /// The server loaded it, but its fingerprint differs from the trainer's.
    Mismatch(Error),
}

/// Registry shared by the pool and background probes.
#[derive(Debug)]
pub(super) struct VersionRegistry {
    pub(super) settings: VllmPoolSettings,
    /// Tag in this pool's names on the servers.
    pub(super) tag: String,
    /// Versions by name, oldest first.
    versions: Mutex<VersionsByName>,
    /// Notified when a slot is free or the state of a server changes.
    pub(super) changed: Notify,
}

impl VersionRegistry {
    /// Creates a registry with only the served model.
    pub(super) fn new(settings: VllmPoolSettings) -> Self {
        let base = PublishedVersion {
            version: WeightVersion(0),
            served_name: settings.model.clone(),
            label: WeightsName::BASE.to_owned(),
            dir: None,
            fingerprint: None,
        };
        let versions = [(WeightsName::new(WeightsName::BASE), vec![base])].into();
        VersionRegistry {
            settings,
            tag: unique_tag()[..8].to_owned(),
            versions: Mutex::new(versions),
            changed: Notify::new(),
        }
    }

    pub(super) fn versions(&self) -> MutexGuard<'_, VersionsByName> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the registry. Healthy servers not in `updated` are marked for reconciliation. A concurrent
    /// reconciliation either sees the change or runs before the server is marked.
    pub(super) fn update<T>(
        &self,
        servers: &[Arc<Server>],
        updated: &[&Arc<Server>],
        update: impl FnOnce(&mut VersionsByName) -> T,
    ) -> T {
        let mut versions = self.versions();
        let out = update(&mut versions);
        for server in servers.iter().filter(|s| !updated.iter().any(|t| Arc::ptr_eq(s, t))) {
            server.healthy.store(false, Ordering::SeqCst);
        }
        out
    }

    /// Reconciles a recovered server with the registry and marks it healthy. Returns the number of adapters it lacked.
    pub(super) async fn reconcile(&self, server: &Server) -> Result<usize, PushError> {
        let address = server.http.address();
        let served =
            server.list_models().await.map_err(|e| self.push_error(e, format!("{address}: listing models")))?;
        // Adapters that were retired meanwhile. The server is not healthy, so no push runs concurrently.
        let stale: Vec<&str> = {
            let (versions, own_tag) = (self.versions(), format!(".{}-", self.tag));
            let wanted = |name: &str| versions.values().flatten().any(|v| v.served_name == name);
            served.iter().map(|s| s.name.as_str()).filter(|name| name.contains(&own_tag) && !wanted(name)).collect()
        };
        for name in stale {
            server.unload_adapter(name).await;
        }
        let (mut done, mut lacked) = (Vec::<PublishedVersion>::new(), 0);
        loop {
            let next = {
                let versions = self.versions();
                let next = versions.values().flatten().find(|v| v.is_adapter() && !done.contains(v)).cloned();
                if next.is_none() {
                    server.healthy.store(true, Ordering::SeqCst);
                }
                next
            };
            let Some(version) = next else { break };
            let present = served.iter().any(|s| s.name == version.served_name);
            let result = match present {
                true => self.verify(server, &version).await,
                false => self.push(server, &version).await,
            };
            match result {
                // The version was retired meanwhile; its directory may be gone.
                Err(PushError::Rejected(_) | PushError::Mismatch(_))
                    if !self.versions().values().flatten().any(|v| *v == version) => {}
                other => other?,
            }
            lacked += usize::from(!present);
            done.push(version);
        }
        // Adapters retired during the reconciliation.
        let retired: Vec<PublishedVersion> = {
            let versions = self.versions();
            done.into_iter().filter(|v| !versions.values().flatten().any(|kept| kept == v)).collect()
        };
        for version in retired {
            server.unload_adapter(&version.served_name).await;
        }
        Ok(lacked)
    }

    /// Pushes a version to a server and verifies it.
    pub(super) async fn push(&self, server: &Server, version: &PublishedVersion) -> Result<(), PushError> {
        let Some(dir) = &version.dir else { return Ok(()) };
        let loaded = server.load_adapter(&version.served_name, dir).await;
        loaded.map_err(|e| self.push_error(e, format!("{} did not load {}", server.http.address(), version.label)))?;
        self.verify(server, version).await
    }

    /// Verifies the fingerprint of a version on a server.
    async fn verify(&self, server: &Server, version: &PublishedVersion) -> Result<(), PushError> {
        let Some(expected) = &version.fingerprint else { return Ok(()) };
        let address = server.http.address();
        let found = match server.fingerprint(&version.served_name).await {
            // The server restarted after loading the adapter.
            Err(HttpError::Rejected(StatusCode::NOT_FOUND, text)) => Err(HttpError::Unreachable(text)),
            other => other,
        };
        let found = found.map_err(|e| self.push_error(e, format!("{address} did not score {}", version.label)))?;
        expected.check(&found, self.settings.tolerance, address, &version.label).map_err(PushError::Mismatch)
    }

    fn push_error(&self, error: HttpError, what: String) -> PushError {
        match error {
            HttpError::Rejected(..) | HttpError::Permanent(..) => {
                PushError::Rejected(self.request_error(&what, &error))
            }
            transient => PushError::Unavailable(transient.text()),
        }
    }

    pub(super) fn error(&self, reason: String) -> Error {
        Error::engine("vllm", reason)
    }

    /// The error of a failed request `what`.
    pub(super) fn request_error(&self, what: &str, error: &HttpError) -> Error {
        self.error(format!("{what}: {}", error.text())).with_hints(error.hints())
    }
}
