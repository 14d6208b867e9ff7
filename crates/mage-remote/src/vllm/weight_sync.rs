//! What must a server have, and how does it get it?
//!
//! Everything that was published and not let go of: adapters by name and version, and whole weights in the served model's
//! place. A server that was away gets what it lacks before it is asked, and every one of them counts only with the trainer's
//! numbers.

use super::{pool::VllmPoolSettings, server::Server};
use crate::{Fingerprint, http::client::HttpError, unique_tag::unique_tag};
use mage_engine::{AdapterName, Error, WeightVersion};
use reqwest::StatusCode;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::Notify;

pub(super) type Releases = BTreeMap<AdapterName, Vec<Release>>;

/// One published set of weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Release {
    pub(super) version: WeightVersion,
    /// What servers call it; the served model itself without an adapter.
    pub(super) served: String,
    /// What we call it.
    pub(super) what: String,
    /// Its folder; none where it is what servers were started with.
    pub(super) dir: Option<PathBuf>,
    pub(super) fingerprint: Option<Fingerprint>,
    /// Whether it is a whole model, and not an adapter.
    pub(super) whole: bool,
}

impl Release {
    pub(super) fn is_adapter(&self) -> bool {
        self.dir.is_some() && !self.whole
    }
}

/// Why a server did not take a release.
#[derive(Debug)]
pub(super) enum Given {
    /// It is not there, or in trouble that may pass.
    Away(String),
    /// It is there, and says no.
    Refused(Error),
    /// It took it, and has other numbers than the trainer.
    Wrong(Error),
}

/// What is shared with those who feed servers beside everything else.
#[derive(Debug)]
pub(super) struct WeightSync {
    pub(super) settings: VllmPoolSettings,
    /// Marks this pool's names on the servers.
    pub(super) tag: String,
    /// By name, oldest first.
    releases: Mutex<Releases>,
    /// Whether whole weights were put in place of those that servers start with.
    pub(super) replaced: AtomicBool,
    /// Rings whenever a seat is free, or a server came, went or was looked at.
    pub(super) stirred: Notify,
}

impl WeightSync {
    /// With nothing but the served model.
    pub(super) fn new(settings: VllmPoolSettings) -> Self {
        let base = Release {
            version: WeightVersion(0),
            served: settings.model.clone(),
            what: AdapterName::BASE.to_owned(),
            dir: None,
            fingerprint: None,
            whole: true,
        };
        let releases = [(AdapterName::new(AdapterName::BASE), vec![base])].into();
        WeightSync {
            settings,
            tag: unique_tag()[..8].to_owned(),
            releases: Mutex::new(releases),
            replaced: AtomicBool::new(false),
            stirred: Notify::new(),
        }
    }

    pub(super) fn releases(&self) -> MutexGuard<'_, Releases> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what there is. Servers that are up and did not take part are fed before they are asked again: whoever is
    /// being fed meanwhile either sees the change or comes too late to be up.
    pub(super) fn change<T>(
        &self,
        servers: &[Arc<Server>],
        took: &[&Arc<Server>],
        change: impl FnOnce(&mut Releases) -> T,
    ) -> T {
        let mut releases = self.releases();
        let out = change(&mut releases);
        for server in servers.iter().filter(|s| !took.iter().any(|t| Arc::ptr_eq(s, t))) {
            server.up.store(false, Ordering::SeqCst);
        }
        out
    }

    /// Gives a server that comes back everything it lacks, looks at what it says it has, and lets it be asked; how many
    /// adapters it lacked.
    pub(super) async fn feed(&self, server: &Server) -> Result<usize, Given> {
        let address = server.wire.address();
        let has = server.models().await.map_err(|t| self.not_taken(t, format!("{address}: listing its models")))?;
        // What was let go of while it was away. It is not up, so that nobody gives it anything meanwhile.
        let spare: Vec<&str> = {
            let (releases, mine) = (self.releases(), format!(".{}-", self.tag));
            let wanted = |name: &str| releases.values().flatten().any(|r| r.served == name);
            has.iter().map(|s| s.name.as_str()).filter(|name| name.contains(&mine) && !wanted(name)).collect()
        };
        for name in spare {
            server.unload_adapter(name).await;
        }
        let (mut seen, mut lacked) = (Vec::<Release>::new(), 0);
        loop {
            let next = {
                let releases = self.releases();
                let wanted = releases.values().flatten().filter(|r| r.dir.is_some() && !seen.contains(r));
                // What adapters come to depends on the model beneath them.
                let next = wanted.min_by_key(|r| !r.whole).cloned();
                if next.is_none() {
                    server.up.store(true, Ordering::SeqCst);
                }
                next
            };
            let Some(release) = next else { break };
            let there = has.iter().any(|served| served.name == release.served);
            let given = match there {
                true => match self.look_at(server, &release).await {
                    // It was started anew, with the weights it started with.
                    Err(Given::Wrong(_)) if release.whole => {
                        if server.record().wrong.is_none() {
                            let line = format!("{address} no longer has {}, and is given them again", release.what);
                            self.settings.notices.say(line);
                        }
                        self.give(server, &release).await
                    }
                    other => other,
                },
                false => self.give(server, &release).await,
            };
            match given {
                // Nobody wants it any more: its folder may be gone.
                Err(Given::Refused(_) | Given::Wrong(_))
                    if !self.releases().values().flatten().any(|r| *r == release) => {}
                other => other?,
            }
            lacked += usize::from(!there);
            seen.push(release);
        }
        // What was let go of while it was fed.
        let gone: Vec<Release> = {
            let releases = self.releases();
            seen.into_iter().filter(|r| !r.whole && !releases.values().flatten().any(|kept| kept == r)).collect()
        };
        for release in gone {
            server.unload_adapter(&release.served).await;
        }
        Ok(lacked)
    }

    /// Has a server take a release, and looks whether it did.
    pub(super) async fn give(&self, server: &Server, release: &Release) -> Result<(), Given> {
        let Some(dir) = &release.dir else { return Ok(()) };
        let taken = match release.whole {
            true => server.reload_weights(dir).await,
            false => server.load_adapter(&release.served, dir).await,
        };
        taken.map_err(|t| self.not_taken(t, format!("{} did not take {}", server.wire.address(), release.what)))?;
        self.look_at(server, release).await
    }

    /// Refuses a server whose numbers under a release's name are not the trainer's.
    async fn look_at(&self, server: &Server, release: &Release) -> Result<(), Given> {
        let Some(expected) = &release.fingerprint else { return Ok(()) };
        let address = server.wire.address();
        let theirs = match server.fingerprint(&release.served).await {
            // It was started anew since it took the adapter.
            Err(HttpError::Refused(StatusCode::NOT_FOUND, text)) => Err(HttpError::Away(text)),
            other => other,
        };
        let theirs = theirs.map_err(|t| self.not_taken(t, format!("{address} does not score {}", release.what)))?;
        expected.check(&theirs, self.settings.tolerance, address, &release.what).map_err(Given::Wrong)
    }

    fn not_taken(&self, trouble: HttpError, what: String) -> Given {
        match trouble {
            HttpError::Refused(..) | HttpError::Never(_) => {
                Given::Refused(self.error(format!("{what}: {}", trouble.text())))
            }
            passing => Given::Away(passing.text()),
        }
    }

    pub(super) fn error(&self, reason: String) -> Error {
        Error::Engine { engine: "vllm".to_owned(), reason }
    }
}
