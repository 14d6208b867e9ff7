//! Downloads into the cache of the Hub clients.
//!
//! The server may be a mirror that is not trusted. What it states becomes part of a path only if it is a plain name. The
//! token goes to the configured address only, not to where it redirects. Contents must have the announced size and,
//! where the server states one, the SHA-256 hash; redirects, files, sizes and transfer times are bounded.

use super::{Hub, HubName, is_model_file};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use ureq::{
    Agent, Body,
    http::{HeaderMap, Method, Request, Response, StatusCode},
};
use url::Url;

/// Maximum redirects of a request.
const MAX_REDIRECTS: usize = 5;
/// Maximum files of a model.
const MAX_FILES: usize = 2000;
/// Maximum bytes of a file that does not hold weights; a tokenizer has about 10 MB.
const MAX_SMALL_FILE: u64 = 256 << 20;
/// Attempts per file. Each continues where the last one ended.
const ATTEMPTS: u32 = 4;
/// Pause before the second attempt; doubled before each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(300);
/// A connection that transfers nothing for this long has failed,
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// and so has one that transfers less than this per second, after a minute.
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;
const SLOW_START: Duration = Duration::from_secs(60);
/// Files from this size on have a progress bar.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Failure of a download.
#[derive(Debug, thiserror::Error)]
pub(super) enum DownloadError {
    /// The request failed.
    #[error(transparent)]
    Request(Box<ureq::Error>),
    /// A response that ended early or is too slow.
    #[error("{0}")]
    Incomplete(String),
    /// An invalid response.
    #[error("{0}")]
    Invalid(String),
    /// A file of the cache that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, DownloadError>;

impl DownloadError {
    /// HTTP status of the response, if that is the error.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            DownloadError::Request(e) => match **e {
                ureq::Error::StatusCode(code) => Some(code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether another attempt, or the cache, may do.
    pub(super) fn is_transient(&self) -> bool {
        match self.status() {
            Some(code) => code >= 500 || code == 429,
            None => !matches!(self, DownloadError::Invalid(_)),
        }
    }

    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| DownloadError::File { path: path.to_owned(), source }
    }
}

impl From<ureq::Error> for DownloadError {
    fn from(e: ureq::Error) -> Self {
        DownloadError::Request(Box::new(e))
    }
}

fn invalid<T>(problem: impl Into<String>) -> Result<T> {
    Err(DownloadError::Invalid(problem.into()))
}

/// The Hub's description of a revision.
#[derive(Deserialize)]
struct RevisionInfo {
    /// Commit.
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The content of a file on the Hub.
struct RemoteContent {
    /// Name in the cache; the SHA-256 hash of large files.
    etag: String,
    size: u64,
}

/// A client of one Hub.
pub(super) struct Downloader<'h> {
    hub: &'h Hub,
    endpoint: Url,
    agent: Agent,
}

impl<'h> Downloader<'h> {
    pub(super) fn new(hub: &'h Hub) -> Result<Self> {
        let Some(endpoint) = Url::parse(&hub.endpoint).ok().filter(|url| is_http(url) && url.has_host()) else {
            return invalid("its address is not valid; expected a form like https://huggingface.co");
        };
        let config = Agent::config_builder()
            .max_redirects(0)
            .timeout_connect(Some(STALL_TIMEOUT))
            .timeout_recv_response(Some(STALL_TIMEOUT))
            .timeout_per_read(Some(STALL_TIMEOUT))
            .user_agent(concat!("mage/", env!("CARGO_PKG_VERSION")));
        Ok(Downloader { hub, endpoint, agent: config.build().into() })
    }

    /// Downloads the missing files of a revision, all from one commit; returns their folder.
    pub(super) fn snapshot(&self, name: &HubName, weights: bool) -> Result<PathBuf> {
        let about = self.url(&[&["api", "models"], &name.parts()[..], &["revision", &name.revision]].concat());
        let mut response = self.get(about, 0, Some(self.hub.metadata_timeout))?;
        let info: RevisionInfo = response.body_mut().read_json()?;
        if info.sha.is_empty() || info.sha.len() > 64 || !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return invalid("the server states no valid commit");
        }
        let files: Vec<&str> =
            info.siblings.iter().map(|s| s.rfilename.as_str()).filter(|f| is_model_file(f, weights)).collect();
        if files.is_empty() || files.len() > MAX_FILES {
            return invalid(format!("expected a config.json or safetensors file, and at most {MAX_FILES} files"));
        }
        let repo = self.hub.cache.join(name.folder());
        let dir = repo.join("snapshots").join(&info.sha);
        for file in files {
            self.file(&repo, &dir, file, self.url(&[&name.parts()[..], &["resolve", &info.sha, file]].concat()))?;
        }
        let reference = repo.join("refs").join(&name.revision);
        if name.revision != info.sha {
            write_file(&reference, info.sha.as_bytes())?;
        }
        Ok(dir)
    }

    /// Downloads a file into a snapshot, unless it is there.
    fn file(&self, repo: &Path, snapshot: &Path, name: &str, url: Url) -> Result<()> {
        let link = snapshot.join(name);
        if link.exists() {
            return Ok(());
        }
        let content = self.content(url.clone())?;
        if content.size > MAX_SMALL_FILE && !name.ends_with(".safetensors") {
            return invalid(format!("{name} has {} bytes, more than {MAX_SMALL_FILE}", content.size));
        }
        let blob = repo.join("blobs").join(&content.etag);
        if !blob.exists() {
            self.blob(&url, name, &content, &blob)?;
        }
        fs::create_dir_all(snapshot).map_err(DownloadError::file(snapshot))?;
        // A link to a file that is gone.
        let _ = fs::remove_file(&link);
        match link_blob(&blob, &link) {
            Err(source) if !link.exists() => Err(DownloadError::File { path: link, source }),
            _ => Ok(()),
        }
    }

    /// Downloads a file's content, and verifies it. Continues a download that was interrupted, and waits for one by
    /// another process.
    fn blob(&self, url: &Url, name: &str, content: &RemoteContent, blob: &Path) -> Result<()> {
        let part = blob.with_file_name(format!("{}.mage-incomplete", content.etag));
        let failed = || DownloadError::file(&part);
        let dir = part.parent().unwrap_or(&part);
        fs::create_dir_all(dir).map_err(DownloadError::file(dir))?;
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(&part).map_err(failed())?;
        file.lock().map_err(failed())?;
        if blob.exists() {
            let _ = fs::remove_file(&part);
            return Ok(());
        }
        let bar = self.progress_bar(name, content.size);
        for attempt in 1.. {
            match self.append(url.clone(), &mut file, &part, content.size, &bar) {
                Ok(()) => break,
                Err(e) if attempt == ATTEMPTS || !e.is_transient() => return Err(e),
                Err(_) => std::thread::sleep(FIRST_PAUSE * 2_u32.pow(attempt - 1)),
            }
        }
        bar.finish_and_clear();
        if let Err(e) = verify(&part, &content.etag, name) {
            let _ = fs::remove_file(&part);
            return Err(e);
        }
        fs::rename(&part, blob).map_err(DownloadError::file(blob))
    }

    /// Downloads what a file lacks.
    fn append(&self, url: Url, file: &mut File, path: &Path, size: u64, bar: &indicatif::ProgressBar) -> Result<()> {
        let failed = || DownloadError::file(path);
        let mut have = file.metadata().map_err(failed())?.len();
        if have == size {
            return Ok(());
        }
        let mut response = self.get(url, if have < size { have } else { 0 }, None)?;
        if have > size || response.status() != StatusCode::PARTIAL_CONTENT {
            file.set_len(0).map_err(failed())?;
            have = 0;
        }
        let (mut body, started, from) = (response.body_mut().as_reader(), Instant::now(), have);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n =
                body.read(&mut buffer).map_err(|e| DownloadError::Incomplete(format!("after {have} bytes: {e}")))?;
            if n == 0 && have == size {
                return Ok(());
            }
            if n == 0 {
                return Err(DownloadError::Incomplete(format!("the response ended after {have} of {size} bytes")));
            }
            have += n as u64;
            if have > size {
                return invalid(format!("the server sends more than the {size} bytes it announced"));
            }
            file.write_all(&buffer[..n]).map_err(failed())?;
            bar.set_position(have);
            let elapsed = started.elapsed();
            if elapsed > SLOW_START && have - from < elapsed.as_secs() * MIN_BYTES_PER_SECOND {
                return Err(DownloadError::Incomplete(format!("only {have} of {size} bytes after {elapsed:.0?}")));
            }
        }
    }

    /// Name and size of a file's content: of the redirect to a storage server that states them, else of the last
    /// response.
    fn content(&self, mut url: Url) -> Result<RemoteContent> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.call(Method::HEAD, &url, 0, Some(self.hub.metadata_timeout))?;
            let headers = response.headers();
            let stated = header(headers, "x-linked-etag").zip(header(headers, "x-linked-size"));
            match (stated, redirect(&url, &response)?) {
                (None, Some(next)) => url = next,
                (stated, _) => {
                    let stated = stated.or_else(|| header(headers, "etag").zip(header(headers, "content-length")));
                    return RemoteContent::parse(stated);
                }
            }
        }
        invalid(format!("more than {MAX_REDIRECTS} redirects"))
    }

    /// Requests the content of an address from byte `from` on, and follows redirects.
    fn get(&self, mut url: Url, from: u64, timeout: Option<Duration>) -> Result<Response<Body>> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.call(Method::GET, &url, from, timeout)?;
            match redirect(&url, &response)? {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        invalid(format!("more than {MAX_REDIRECTS} redirects"))
    }

    /// Sends one request. Only the Hub itself gets the token.
    fn call(&self, method: Method, url: &Url, from: u64, timeout: Option<Duration>) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method).uri(url.as_str());
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        if let Some(token) = self.hub.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|e| DownloadError::Invalid(e.to_string()))?;
        let request = self.agent.configure_request(request).timeout_global(timeout).build();
        Ok(self.agent.run(request)?)
    }

    /// An address below that of the Hub.
    fn url(&self, segments: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    fn progress_bar(&self, name: &str, size: u64) -> indicatif::ProgressBar {
        if !self.hub.progress || size < PROGRESS_BYTES {
            return indicatif::ProgressBar::hidden();
        }
        let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = indicatif::ProgressStyle::with_template(template).expect("the template is valid");
        indicatif::ProgressBar::new(size).with_style(style).with_message(name.to_owned())
    }
}

impl RemoteContent {
    fn parse(stated: Option<(&str, &str)>) -> Result<Self> {
        let Some((etag, size)) = stated else {
            return invalid("the server states no entity tag and size of a file");
        };
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if etag.is_empty() || etag.len() > 128 || etag.starts_with('.') || !etag.bytes().all(plain) {
            return invalid("the server states an entity tag that is not a plain name");
        }
        match size.parse() {
            Ok(size) => Ok(RemoteContent { etag: etag.to_owned(), size }),
            Err(_) => invalid("the server states an invalid size"),
        }
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Where a response redirects to.
fn redirect(from: &Url, response: &Response<Body>) -> Result<Option<Url>> {
    if !response.status().is_redirection() {
        return Ok(None);
    }
    let to = header(response.headers(), "location").and_then(|location| from.join(location).ok());
    match to.filter(|to| is_http(to) && (from.scheme() == "http" || to.scheme() == "https")) {
        Some(to) => Ok(Some(to)),
        None => invalid("the server redirects to no valid address"),
    }
}

/// Compares a file with its hash, if its entity tag is one.
fn verify(path: &Path, etag: &str, name: &str) -> Result<()> {
    if etag.len() != 64 || !etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    let mut file = File::open(path).map_err(DownloadError::file(path))?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(DownloadError::file(path))? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    let hash = hasher.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    match hash.eq_ignore_ascii_case(etag) {
        true => Ok(()),
        false => invalid(format!("{name} does not have the SHA-256 hash that the server states")),
    }
}

/// Links a content into a snapshot, as the other clients do.
#[cfg(unix)]
fn link_blob(blob: &Path, link: &Path) -> io::Result<()> {
    let name = blob.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(Path::new("../../blobs").join(name), link)
}

#[cfg(not(unix))]
fn link_blob(blob: &Path, link: &Path) -> io::Result<()> {
    fs::rename(blob, link)
}

/// Writes a small file and its folders.
fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).and_then(|()| fs::write(path, bytes)).map_err(DownloadError::file(path))
}
