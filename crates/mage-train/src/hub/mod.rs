//! Where is the model called `org/name`?
//!
//! In a folder of that name, where there is one; else on the Hugging Face Hub, by way of the cache that its other clients
//! use too. `HF_HOME` and `HF_HUB_CACHE` say where that is, `HF_TOKEN` opens private models, `HF_HUB_OFFLINE` keeps to
//! what is in the cache, `HF_ENDPOINT` names another hub, `HF_HUB_ETAG_TIMEOUT` says how many seconds that may take to
//! answer before the cache has to do.

use crate::Result;
use hf_hub::{
    Repo, RepoType,
    api::{
        RepoInfo,
        sync::{Api, ApiBuilder, ApiError},
    },
};
use mage_engine::{Error, Renderer};
use mage_native::{Config, ModelDescription, NativeAdapter, NativeModel};
use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const ENDPOINT: &str = "https://huggingface.co";
/// The patience of the Hub's other clients.
const PATIENCE: Duration = Duration::from_secs(10);

/// The Hub and its cache, as the environment describes them.
#[derive(Clone)]
pub struct Hub {
    /// The folder of the cache: `models--org--name` and so on.
    pub cache: PathBuf,
    /// The address of the hub.
    pub endpoint: String,
    /// Who asks.
    pub token: Option<String>,
    /// Whether to keep to the cache.
    pub offline: bool,
    /// How long the hub may take to say what a model consists of.
    pub patience: Duration,
    /// Whether to draw a bar for each file that is fetched.
    pub progress: bool,
}

impl fmt::Debug for Hub {
    /// The token is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hub { cache, endpoint, token, offline, patience, progress } = self;
        let token = token.as_ref().map(|_| "***");
        f.debug_struct("Hub")
            .field("cache", cache)
            .field("endpoint", endpoint)
            .field("token", &token)
            .field("offline", offline)
            .field("patience", patience)
            .field("progress", progress)
            .finish()
    }
}

impl Hub {
    /// As the environment has it.
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
            patience: var("HF_HUB_ETAG_TIMEOUT").and_then(|v| v.parse().ok()).map_or(PATIENCE, Duration::from_secs),
            progress,
        }
    }

    /// Opens a model: a folder, a name, or an adapter's folder or name, whose model is then found the same way.
    pub fn open(&self, text: &str) -> Result<NativeModel> {
        let dir = self.folder(text)?;
        if !NativeAdapter::is_in(&dir) || dir.join("config.json").exists() {
            return Ok(known_as(NativeModel::open(&dir)?, text));
        }
        let base = NativeAdapter::base_of(&dir)?.ok_or_else(|| {
            Error::invalid(
                text,
                "its adapter_config.json names no base_model_name_or_path; give model and adapter apart",
            )
        })?;
        let beside = dir.join(&base);
        let found = if beside.is_dir() { beside } else { self.folder(&base)? };
        let model = known_as(NativeModel::open(&found)?, &base);
        let adapter = NativeAdapter::open(&dir, model.config())?;
        Ok(model.with_adapter(adapter)?)
    }

    /// What a model's files say of it, without fetching or reading its numbers; of an adapter, what its model's say.
    pub fn describe(&self, text: &str) -> Result<ModelDescription> {
        let dir = self.find(text, false)?;
        if NativeAdapter::is_in(&dir) && !dir.join("config.json").exists() {
            let base = NativeAdapter::base_of(&dir)?.unwrap_or_default();
            let beside = dir.join(&base);
            return if beside.is_dir() { Ok(ModelDescription::read(&beside)?) } else { self.describe(&base) };
        }
        if dir.is_file() || has_numbers(&dir) {
            return Ok(ModelDescription::read(&dir)?);
        }
        let tokenizer = dir.join("tokenizer.json").exists().then(|| Renderer::from_dir(&dir)).transpose()?;
        let shape = ModelDescription::from_config(Config::read(&dir.join("config.json"))?);
        Ok(ModelDescription { renderer: tokenizer.map(Arc::new), ..shape })
    }

    /// The adapter that is there, of a model of this shape; nothing where a model is.
    pub fn adapter(&self, text: &str, config: &Config) -> Result<Option<NativeAdapter>> {
        if text.is_empty() {
            return Ok(None);
        }
        let dir = self.find(text, false)?;
        let alone = NativeAdapter::is_in(&dir) && !dir.join("config.json").exists();
        Ok(alone.then(|| NativeAdapter::open(&dir, config)).transpose()?)
    }

    /// The folder of a model or adapter: the one of that name, or what `org/name` or `org/name@revision` is on the Hub.
    pub fn folder(&self, text: &str) -> Result<PathBuf> {
        self.find(text, true)
    }

    /// The folder, with the numbers in it or perhaps without.
    fn find(&self, text: &str, numbers: bool) -> Result<PathBuf> {
        let path = Path::new(text);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let Some(name) = HubName::parse(text) else {
            return Err(Error::invalid(text, "there is no such folder, and it is no name of the form org/name").into());
        };
        if self.offline {
            return self.cached(&name, numbers).ok_or_else(|| {
                let problem = format!(
                    "there is no such folder, and it is not in {}, or not with all its files; HF_HUB_OFFLINE keeps us from fetching it",
                    self.cache.display()
                );
                Error::invalid(text, problem).into()
            });
        }
        match self.fetch(&name, numbers) {
            Ok(dir) => Ok(dir),
            // Without a connection, what was fetched before will do.
            Err(e) => match self.cached(&name, numbers).filter(|_| unreachable(&e)) {
                Some(dir) => Ok(dir),
                None => Err(Error::invalid(text, self.explained(&e)).into()),
            },
        }
    }

    /// The complete snapshot of a revision in the cache.
    fn cached(&self, name: &HubName, numbers: bool) -> Option<PathBuf> {
        let repo = self.cache.join(name.repo(&name.revision).folder_name());
        let commit = fs::read_to_string(repo.join("refs").join(&name.revision));
        let commit = commit.map_or_else(|_| name.revision.clone(), |c| c.trim().to_owned());
        let dir = repo.join("snapshots").join(commit);
        let has = |file: &str| dir.join(file).exists();
        let whole_model = || has("config.json") && (!numbers || NativeModel::has_all_weights(&dir));
        (whole_model() || (has("adapter_config.json") && has("adapter_model.safetensors"))).then_some(dir)
    }

    /// Fetches what is missing of a revision: all of it from one commit, even if the revision moves on meanwhile.
    fn fetch(&self, name: &HubName, numbers: bool) -> std::result::Result<PathBuf, ApiError> {
        let builder = ApiBuilder::from_cache(hf_hub::Cache::new(self.cache.clone()));
        let builder = builder.with_endpoint(self.endpoint.trim_end_matches('/').to_owned());
        let api: Api = builder.with_token(self.token.clone()).with_progress(self.progress).with_retries(3).build()?;
        // The client sets no limits of its own; the first question shows whether anybody is there at all.
        let asked = api.repo(name.repo(&name.revision)).info_request();
        let asked = asked.config().timeout_global(Some(self.patience)).build().call();
        let info: RepoInfo = asked.and_then(|mut said| said.body_mut().read_json()).map_err(Box::new)?;
        if !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) || info.sha.is_empty() {
            return Err(ApiError::InvalidHeader("sha"));
        }
        let repo = api.repo(name.repo(&info.sha));
        let mut dir = None;
        for file in info.siblings.iter().map(|s| s.rfilename.as_str()).filter(|f| wanted(f, numbers)) {
            dir = repo.get(file)?.parent().map(Path::to_owned);
        }
        let cache = hf_hub::Cache::new(self.cache.clone());
        cache.repo(name.repo(&name.revision)).create_ref(&info.sha)?;
        dir.ok_or(ApiError::MissingHeader("a config.json or safetensors file among its files"))
    }

    /// What went wrong, for people, and without the token whatever a server may have put into its answer.
    fn explained(&self, e: &ApiError) -> String {
        let status = status(e);
        let problem = match status {
            Some(401 | 403) if self.token.is_some() => "the Hub does not let this HF_TOKEN see it".to_owned(),
            Some(401 | 403) => "the Hub does not show it to everyone; set HF_TOKEN, or mind the spelling".to_owned(),
            Some(404) => format!("{} knows no such model or revision", self.endpoint),
            _ => format!("it could not be fetched from {} ({e})", self.endpoint),
        };
        let problem = format!("there is no such folder, and {problem}");
        self.token.as_ref().map_or_else(|| problem.clone(), |token| problem.replace(token.as_str(), "***"))
    }
}

/// How adapters that are made for a model shall name it.
fn known_as(model: NativeModel, text: &str) -> NativeModel {
    if Path::new(text).exists() { model } else { model.with_source(text) }
}

/// The files that make a model or an adapter; nothing that can run code, and nothing in folders.
fn wanted(file: &str, numbers: bool) -> bool {
    let plain = Path::new(file).file_name().is_some_and(|n| n == file);
    let weights = file.ends_with(".safetensors") && (file.starts_with("model") || file.starts_with("adapter_model"));
    plain && ((weights && numbers) || file.ends_with(".json") || file == "chat_template.jinja")
}

fn has_numbers(dir: &Path) -> bool {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.into_iter().any(|f| f.file_name().to_string_lossy().ends_with(".safetensors"))
}

fn status(e: &ApiError) -> Option<u16> {
    match e {
        ApiError::RequestError(e) => match **e {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        ApiError::TooManyRetries(e) => status(e),
        _ => None,
    }
}

/// Whether the Hub could not be asked, rather than said no.
fn unreachable(e: &ApiError) -> bool {
    match status(e) {
        Some(code) => code >= 500 || code == 429,
        None => matches!(e, ApiError::RequestError(_) | ApiError::IoError(_) | ApiError::TooManyRetries(_)),
    }
}

/// `org/name@revision`, taken apart.
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
        let fits = part(org) && part(name) && revision.split('/').all(part);
        fits.then(|| HubName { id: id.to_owned(), revision: revision.to_owned() })
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.id.clone(), RepoType::Model, revision.to_owned())
    }
}

#[cfg(test)]
mod tests;
