//! Models by folder, by checkpoint of a run ([`ModelAddress`]) or by Hugging Face Hub name (`org/name@revision`).
//!
//! Downloads use the cache of the other Hub clients. Environment variables: `HF_HOME` and `HF_HUB_CACHE` (cache
//! folder), `HF_TOKEN` (private models), `HF_HUB_OFFLINE` (cache only), `HF_ENDPOINT` (another hub),
//! `HF_HUB_ETAG_TIMEOUT` (seconds before the cache is used instead).

mod download;

use crate::{Result, run_dir::ModelAddress};
use download::{DownloadError, Downloader};
use mage_engine::{Error, Renderer};
use mage_native::{Config, ModelDescription, NativeAdapter, NativeModel};
use std::{
    env,
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const ENDPOINT: &str = "https://huggingface.co";
/// Timeout of metadata requests, as in other Hub clients.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// Access to the Hub and its cache.
#[derive(Clone)]
pub struct Hub {
    /// Cache folder, with subfolders `models--org--name`.
    pub cache: PathBuf,
    /// URL of the hub.
    pub endpoint: String,
    /// Access token.
    pub token: Option<String>,
    /// Whether to use the cache only.
    pub offline: bool,
    /// Timeout of metadata requests.
    pub metadata_timeout: Duration,
    /// Whether to show a progress bar per download.
    pub progress: bool,
}

impl fmt::Debug for Hub {
    /// Hides the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hub { cache, endpoint, token, offline, metadata_timeout, progress } = self;
        let token = token.as_ref().map(|_| "***");
        f.debug_struct("Hub")
            .field("cache", cache)
            .field("endpoint", endpoint)
            .field("token", &token)
            .field("offline", offline)
            .field("metadata_timeout", metadata_timeout)
            .field("progress", progress)
            .finish()
    }
}

impl Hub {
    /// Configuration from environment variables.
    pub fn from_env(progress: bool) -> Self {
        let var = |name: &str| env::var(name).ok().filter(|v| !v.is_empty());
        let home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let caches = var("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.unwrap_or_else(|| env::home_dir().unwrap_or_default().join(".cache"));
            caches.join("huggingface")
        });
        let saved = || fs::read_to_string(home.join("token")).ok().map(|t| t.trim().to_owned());
        let truth = |v: String| ["1", "ON", "YES", "TRUE"].contains(&v.to_uppercase().as_str());
        Hub {
            token: var("HF_TOKEN").or_else(saved).filter(|t| !t.is_empty()),
            cache: var("HF_HUB_CACHE").map(PathBuf::from).unwrap_or_else(|| home.join("hub")),
            endpoint: var("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned()),
            offline: var("HF_HUB_OFFLINE").is_some_and(truth),
            metadata_timeout: var("HF_HUB_ETAG_TIMEOUT")
                .and_then(|v| v.parse().ok())
                .map_or(METADATA_TIMEOUT, Duration::from_secs),
            progress,
        }
    }

    /// Opens a model by folder or Hub name. An adapter is opened with its base model.
    pub fn open(&self, text: impl AsRef<OsStr>) -> Result<NativeModel> {
        let dir = self.folder(text.as_ref())?;
        let Some((base, base_dir)) = self.base(&dir)? else {
            return Ok(with_source(NativeModel::open(&dir)?, text.as_ref()));
        };
        let model = with_source(NativeModel::open(&base_dir)?, base.as_ref());
        let adapter = NativeAdapter::open(&dir, model.config())?;
        Ok(model.with_adapter(adapter)?)
    }

    /// Name and folder of the base model of an adapter; `None` for a full model.
    pub(crate) fn base(&self, dir: &Path) -> Result<Option<(String, PathBuf)>> {
        if !NativeAdapter::is_in(dir) || dir.join("config.json").exists() {
            return Ok(None);
        }
        let base = NativeAdapter::base_of(dir)?.ok_or_else(|| {
            Error::invalid(
                dir.display().to_string(),
                "adapter_config.json has no base_model_name_or_path; specify model and adapter separately",
            )
        })?;
        let local = dir.join(&base);
        let folder = if local.is_dir() { local } else { self.folder(&base)? };
        Ok(Some((base, folder)))
    }

    /// Describes a model, or the base model of an adapter, without downloading or reading weights.
    pub fn describe(&self, text: &str) -> Result<ModelDescription> {
        let dir = self.find(text.as_ref(), false)?;
        if NativeAdapter::is_in(&dir) && !dir.join("config.json").exists() {
            let base = NativeAdapter::base_of(&dir)?.unwrap_or_default();
            let local = dir.join(&base);
            return if local.is_dir() { Ok(ModelDescription::read(&local)?) } else { self.describe(&base) };
        }
        if dir.is_file() || has_weights(&dir) {
            return Ok(ModelDescription::read(&dir)?);
        }
        let tokenizer = dir.join("tokenizer.json").exists().then(|| Renderer::from_dir(&dir)).transpose()?;
        let description = ModelDescription::from_config(Config::read(&dir.join("config.json"))?);
        Ok(ModelDescription { renderer: tokenizer.map(Arc::new), ..description })
    }

    /// Opens an adapter for a model with this configuration; `None` if `text` is a full model.
    pub fn adapter(&self, text: &str, config: &Config) -> Result<Option<NativeAdapter>> {
        if text.is_empty() {
            return Ok(None);
        }
        let dir = self.find(text.as_ref(), false)?;
        let adapter_only = NativeAdapter::is_in(&dir) && !dir.join("config.json").exists();
        if !adapter_only {
            return Ok(None);
        }
        // With its weights, which the search above does not download.
        Ok(Some(NativeAdapter::open(&self.folder(text)?, config)?))
    }

    /// The folder of a model or adapter: a local path, a checkpoint of a run, or a download of `org/name` or `org/name@revision`.
    pub fn folder(&self, text: impl AsRef<OsStr>) -> Result<PathBuf> {
        self.find(text.as_ref(), true)
    }

    /// The folder of a model or adapter, with or without its weights.
    fn find(&self, text: &OsStr, weights: bool) -> Result<PathBuf> {
        if let Some(dir) = local(text)? {
            return Ok(dir);
        }
        let text = &*text.to_string_lossy();
        let Some(name) = HubName::parse(text) else {
            return Err(Error::invalid(text, "no such folder, and not a Hub name of the form org/name").into());
        };
        if self.offline {
            return self.cached(&name, weights).ok_or_else(|| {
                let problem = format!(
                    "no such folder, and not complete in the cache {}; unset HF_HUB_OFFLINE to download it",
                    self.cache.display()
                );
                Error::invalid(text, problem).into()
            });
        }
        match Downloader::new(self).and_then(|downloader| downloader.snapshot(&name, weights)) {
            Ok(dir) => Ok(dir),
            // Without a connection, use the cached snapshot.
            Err(e) => match self.cached(&name, weights).filter(|_| e.is_transient()) {
                Some(dir) => Ok(dir),
                None => Err(Error::invalid(text, self.error_message(&e)).into()),
            },
        }
    }

    /// The complete snapshot of a revision in the cache.
    fn cached(&self, name: &HubName, weights: bool) -> Option<PathBuf> {
        let repo = self.cache.join(name.folder());
        let commit = fs::read_to_string(repo.join("refs").join(&name.revision));
        let commit = commit.map_or_else(|_| name.revision.clone(), |c| c.trim().to_owned());
        let dir = repo.join("snapshots").join(commit);
        let has = |file: &str| dir.join(file).exists();
        let complete_model = || has("config.json") && (!weights || NativeModel::has_all_weights(&dir));
        (complete_model() || (has("adapter_config.json") && has("adapter_model.safetensors"))).then_some(dir)
    }

    /// Error message, with the token removed even if the server repeated it.
    fn error_message(&self, e: &DownloadError) -> String {
        let problem = match e.status() {
            Some(401 | 403) if self.token.is_some() => "the Hub denies access with this HF_TOKEN".to_owned(),
            Some(401 | 403) => "the Hub denies anonymous access; set HF_TOKEN, or check the name".to_owned(),
            Some(404) => format!("{} has no such model or revision", self.endpoint),
            _ => format!("the download from {} failed ({e})", self.endpoint),
        };
        let problem = format!("no such folder, and {problem}");
        self.token.as_ref().map_or_else(|| problem.clone(), |token| problem.replace(token.as_str(), "***"))
    }
}

/// The path that a text names: a checkpoint of a run, or any existing path.
fn local(text: &OsStr) -> Result<Option<PathBuf>> {
    let address = ModelAddress::resolve(text)?;
    Ok(address.map(|a| a.model).or_else(|| Some(PathBuf::from(text)).filter(|path| path.exists())))
}

/// Sets the base-model name that new adapters of a model record.
fn with_source(model: NativeModel, text: &OsStr) -> NativeModel {
    if local(text).is_ok_and(|dir| dir.is_some()) { model } else { model.with_source(text.to_string_lossy()) }
}

/// Whether a file belongs to a model or adapter. Excludes subfolders and all formats that can contain code.
fn is_model_file(file: &str, weights: bool) -> bool {
    let top_level = Path::new(file).file_name().is_some_and(|n| n == file);
    let is_weights = file.ends_with(".safetensors") && (file.starts_with("model") || file.starts_with("adapter_model"));
    top_level && ((is_weights && weights) || file.ends_with(".json") || file == "chat_template.jinja")
}

fn has_weights(dir: &Path) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.into_iter().any(|f| f.file_name().to_string_lossy().ends_with(".safetensors"))
}

/// The parts of `org/name@revision`.
#[derive(Debug, PartialEq, Eq)]
struct HubName {
    id: String,
    revision: String,
}

impl HubName {
    fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let part = |p: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !p.is_empty() && !p.starts_with('.') && !p.contains("..") && p.chars().all(plain)
        };
        let (org, name) = id.split_once('/')?;
        let valid = part(org) && part(name) && revision.split('/').all(part);
        valid.then(|| HubName { id: id.to_owned(), revision: revision.to_owned() })
    }

    /// The parts of the id.
    fn parts(&self) -> Vec<&str> {
        self.id.split('/').collect()
    }

    /// Folder in the cache.
    fn folder(&self) -> String {
        format!("models--{}", self.parts().join("--"))
    }
}

#[cfg(test)]
mod tests;
