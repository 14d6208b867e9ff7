//! Tests against a local hub server and a cache in the standard layout.

use super::*;
use mage_env::Seed;
use mage_native::{Config, LoraConfig, WeightDtype};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

fn config() -> Config {
    Config {
        vocab_size: 10,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 4,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        max_position_embeddings: 16,
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn model() -> NativeModel {
    NativeModel::new(config(), 0.1, Seed::new(1), None).unwrap()
}

fn files(dir: &Path) -> HashMap<String, Vec<u8>> {
    let entry = |e: fs::DirEntry| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap());
    fs::read_dir(dir).unwrap().map(|e| entry(e.unwrap())).collect()
}

/// A request: method, path and headers.
struct Received {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

impl Received {
    fn read(stream: &TcpStream) -> Self {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let line = lines.next().and_then(std::result::Result::ok).unwrap_or_default();
        let mut words = line.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let lines = lines.map_while(|l| l.ok().filter(|l| !l.is_empty()));
        let headers = lines.filter_map(|l| l.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned()))).collect();
        Received { method, path, headers }
    }

    fn has_token(&self) -> bool {
        self.headers.get("authorization").is_some_and(|a| a == &format!("Bearer {TOKEN}"))
    }
}

/// A response; `more` are further header lines.
fn reply(status: &str, more: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A server on loopback; `requests` are the paths of `GET` requests.
struct HubServer {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HubServer {
    /// Serves repositories by name. `private/…` requires the token. Every error repeats the headers of its request.
    fn start(repos: HashMap<String, HashMap<String, Vec<u8>>>) -> Self {
        Self::with(move |request| respond(request, &repos))
    }

    fn with(respond: impl Fn(&Received) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, end) = (Arc::clone(&requests), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let request = Received::read(&stream);
                if request.method == "GET" {
                    log.lock().unwrap().push(request.path.clone());
                }
                let _ = stream.write_all(&respond(&request));
            }
        });
        HubServer { address, requests, stop, thread: Some(thread) }
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address.trim_start_matches("http://"));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn respond(request: &Received, repos: &HashMap<String, HashMap<String, Vec<u8>>>) -> Vec<u8> {
    let (path, headers, authorised) = (&request.path, &request.headers, request.has_token());
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (id, rest): (String, &[&str]) = match &parts[..] {
        ["api", "models", org, name, rest @ ..] => (format!("{org}/{name}"), rest),
        [org, name, rest @ ..] => (format!("{org}/{name}"), rest),
        _ => (String::new(), &[]),
    };
    match (repos.get(&id), rest) {
        (Some(_), _) if id.starts_with("private/") && !authorised => reply("401 Unauthorized", "", b""),
        (Some(repo), ["revision", "main" | COMMIT]) => {
            let names: Vec<_> = repo.keys().map(|n| serde_json::json!({ "rfilename": n })).collect();
            reply("200 OK", "", serde_json::json!({ "siblings": names, "sha": COMMIT }).to_string().as_bytes())
        }
        (Some(repo), ["resolve", COMMIT, file]) if repo.contains_key(*file) => {
            let body = &repo[*file];
            let range = headers.get("range").map_or("0-", |r| r.trim_start_matches("bytes="));
            let (from, to) = range.split_once('-').unwrap();
            let (from, to) = (from.parse().unwrap(), to.parse().map_or(body.len(), |t: usize| (t + 1).min(body.len())));
            let more = format!(
                "ETag: \"{file}-{}\"\r\nX-Repo-Commit: {COMMIT}\r\nContent-Range: bytes {from}-{}/{}\r\n",
                body.len(),
                to - 1,
                body.len()
            );
            reply("206 Partial Content", &more, &body[from..to])
        }
        _ => reply("404 Not Found", "", format!("nothing for {headers:?}").as_bytes()),
    }
}

fn hub(cache: &Path, endpoint: &str) -> Hub {
    Hub {
        cache: cache.to_owned(),
        endpoint: endpoint.to_owned(),
        token: None,
        offline: false,
        metadata_timeout: METADATA_TIMEOUT,
        progress: false,
    }
}

#[test]
fn hub_names_are_distinguished_from_paths() {
    let parsed = |text: &str| HubName::parse(text).map(|n| (n.id, n.revision));
    let some = |id: &str, revision: &str| Some((id.to_owned(), revision.to_owned()));
    assert_eq!(parsed("Qwen/Qwen3-0.6B"), some("Qwen/Qwen3-0.6B", "main"));
    assert_eq!(parsed("a/b@v1.0"), some("a/b", "v1.0"));
    assert_eq!(parsed("a/b@refs/pr/1"), some("a/b", "refs/pr/1"));
    for path in ["model", "./a", "/a/b", "a/b/c", "../x", "a/..", "a/b@", "a/b@../../x", "a b/c", "", "~/a"] {
        assert_eq!(parsed(path), None, "{path}");
    }
}

#[test]
fn a_model_is_downloaded_once_and_then_found_offline() {
    let (stored, cache, plain) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    model().save(stored.path(), WeightDtype::F32).unwrap();
    let mut repo = files(stored.path());
    repo.insert("pytorch_model.bin".to_owned(), b"can run code".to_vec());
    let adapter = NativeAdapter::new(&config(), &LoraConfig::default(), Seed::new(1)).unwrap();
    let with = model().with_source("org/tiny").with_adapter(adapter).unwrap();
    let (trainer, _) = with.train(Default::default()).unwrap();
    trainer.save_model(plain.path(), WeightDtype::F32).unwrap();
    let repos = HashMap::from([
        ("org/tiny".to_owned(), repo.clone()),
        ("private/tiny".to_owned(), repo),
        ("org/adapter".to_owned(), files(plain.path())),
        ("org/empty".to_owned(), HashMap::new()),
    ]);
    let server = HubServer::start(repos);
    let online = hub(cache.path(), &server.address);

    let opened = online.open("org/tiny").unwrap();
    assert!(opened.tensors().eq(model().tensors()));
    let first = server.requests.lock().unwrap().clone();
    assert!(first.iter().any(|p| p.ends_with("model.safetensors")) && !first.iter().any(|p| p.ends_with(".bin")));
    online.open("org/tiny").unwrap();
    let again = server.requests.lock().unwrap()[first.len()..].to_vec();
    assert_eq!(again, ["/api/models/org/tiny/revision/main"], "cached files are not downloaded again");
    online.folder(format!("org/tiny@{COMMIT}")).unwrap();

    let adapted = online.open("org/adapter").unwrap();
    assert_eq!(adapted.adapter().unwrap().base(), Some("org/tiny"));

    let refusal = |hub: &Hub, name: &str| hub.folder(name).unwrap_err().to_string();
    assert!(refusal(&online, "org/nothing").contains("has no such model"), "{}", refusal(&online, "org/nothing"));
    assert!(refusal(&online, "org/empty").contains("safetensors"), "{}", refusal(&online, "org/empty"));
    assert!(refusal(&online, "private/tiny").contains("set HF_TOKEN"));
    let wrong = Hub { token: Some("hf_wrong".to_owned()), ..online.clone() };
    let error = refusal(&wrong, "private/tiny");
    assert!(error.contains("this HF_TOKEN") && !error.contains("hf_wrong"), "{error}");
    assert!(!format!("{wrong:?}").contains("hf_wrong"));
    let right = Hub { token: Some(TOKEN.to_owned()), ..online.clone() };
    assert!(right.open("private/tiny").is_ok());

    drop(server);
    let offline = Hub { offline: true, ..online.clone() };
    assert!(offline.open("org/tiny").is_ok() && offline.open("org/adapter").is_ok());
    assert!(online.open("org/tiny").is_ok(), "without a connection, the cache is used");
    let error = refusal(&right, "org/other");
    assert!(error.contains("the download from") && !error.contains(TOKEN), "{error}");
}

#[test]
fn the_cache_of_other_clients_is_used() {
    let cache = tempfile::tempdir().unwrap();
    let offline = Hub { offline: true, ..hub(cache.path(), "http://127.0.0.1:9") };
    let error = offline.folder("org/tiny").unwrap_err().to_string();
    assert!(error.contains("org/tiny") && error.contains("HF_HUB_OFFLINE"), "{error}");
    let repo = cache.path().join("models--org--tiny");
    let snapshot = repo.join("snapshots").join(COMMIT);
    model().save(&snapshot, WeightDtype::F32).unwrap();
    assert!(offline.folder("org/tiny").is_err(), "main is not known");
    assert_eq!(offline.folder(format!("org/tiny@{COMMIT}")).unwrap(), snapshot);
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    assert_eq!(offline.folder("org/tiny").unwrap(), snapshot);
    assert!(offline.open("org/tiny").is_ok());
    assert!(offline.folder("org/tiny@v2").is_err());
    fs::remove_file(snapshot.join("model.safetensors")).unwrap();
    assert!(offline.folder("org/tiny").is_err(), "the snapshot is incomplete");
    // Of sharded weights, all files of the index are required.
    let index = serde_json::json!({ "weight_map": { "a": "model-1.safetensors", "b": "model-2.safetensors" } });
    fs::write(snapshot.join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(snapshot.join("model-1.safetensors"), "").unwrap();
    assert!(offline.folder("org/tiny").is_err(), "one of two files is missing");
    fs::write(snapshot.join("model-2.safetensors"), "").unwrap();
    assert_eq!(offline.folder("org/tiny").unwrap(), snapshot);
    // Adapter weights are not model weights.
    fs::remove_file(snapshot.join("model.safetensors.index.json")).unwrap();
    fs::write(snapshot.join("adapter_model.safetensors"), "").unwrap();
    assert!(offline.folder("org/tiny").is_err());
    fs::write(snapshot.join("adapter_config.json"), "{}").unwrap();
    assert_eq!(offline.folder("org/tiny").unwrap(), snapshot);
}

#[test]
fn an_unresponsive_hub_is_unreachable() {
    let cache = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts connections and never responds
    let address = format!("http://{}", silent.local_addr().unwrap());
    let hub = Hub { metadata_timeout: Duration::from_millis(50), ..hub(cache.path(), &address) };
    let error = hub.folder("org/tiny").unwrap_err().to_string();
    assert!(error.contains("the download from") && error.contains("timeout"), "{error}");
    let repo = cache.path().join("models--org--tiny");
    model().save(&repo.join("snapshots").join(COMMIT), WeightDtype::F32).unwrap();
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    assert!(hub.open("org/tiny").is_ok(), "the cached snapshot is used");
}

#[test]
fn local_folders_take_precedence() {
    let dir = tempfile::tempdir().unwrap();
    let offline = hub(dir.path(), "http://127.0.0.1:9");
    assert_eq!(offline.folder(dir.path().to_str().unwrap()).unwrap(), dir.path());
    let error = offline.folder("no such folder").unwrap_err().to_string();
    assert!(error.contains("no such folder") && error.contains("org/name"), "{error}");
}

/// Serves one model with only a configuration, whose requests `resolve` answers.
fn mirror(resolve: impl Fn(&Received) -> Vec<u8> + Send + 'static) -> HubServer {
    HubServer::with(move |request| match request.path.starts_with("/api/models/") {
        true => {
            let info = serde_json::json!({ "siblings": [{ "rfilename": "config.json" }], "sha": COMMIT });
            reply("200 OK", "", info.to_string().as_bytes())
        }
        false => resolve(request),
    })
}

/// Downloads from a mirror; returns the error and the files of the cache.
fn refused(server: &HubServer, cache: &Path) -> (String, Vec<String>) {
    let hub = Hub { token: Some(TOKEN.to_owned()), ..hub(cache, &server.address) };
    let error = hub.folder("org/tiny").unwrap_err().to_string();
    let blobs = fs::read_dir(cache.join("models--org--tiny/blobs")).into_iter().flatten().flatten();
    (error, blobs.map(|e| e.file_name().into_string().unwrap()).collect())
}

#[test]
fn headers_of_a_mirror_never_name_other_files() {
    let outside = tempfile::tempdir().unwrap();
    let (cache, victim) = (outside.path().join("cache"), outside.path().join("victim.txt"));
    fs::write(&victim, "precious").unwrap();
    for etag in [victim.to_str().unwrap(), "../../../victim.txt", "..", "a/b", "a\\b", "", ".hidden"] {
        let etag = etag.to_owned();
        let server = mirror(move |_| {
            reply("200 OK", &format!("ETag: \"{etag}\"\r\nX-Repo-Commit: /elsewhere\r\n"), b"overwritten")
        });
        let (error, blobs) = refused(&server, &cache);
        assert!(error.contains("not a plain name") && blobs.is_empty(), "{error} {blobs:?}");
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "nothing was written");
}

#[test]
fn the_token_is_sent_to_the_hub_only() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let storage = HubServer::with(move |request| {
        log.lock().unwrap().push(request.has_token() || format!("{:?}", request.headers).contains(TOKEN));
        reply("200 OK", "ETag: \"0123abcd\"\r\n", b"{}")
    });
    let location = format!("Location: {}/storage\r\n", storage.address);
    let server = mirror(move |request| {
        assert!(request.has_token());
        reply("302 Found", &location, b"")
    });
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub { token: Some(TOKEN.to_owned()), ..hub(cache.path(), &server.address) };
    let dir = hub.folder("org/tiny").unwrap();
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), b"{}");
    assert_eq!(*seen.lock().unwrap(), [false, false], "metadata and content");
}

#[test]
fn contents_with_another_size_or_hash_are_refused() {
    let hash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"; // of `{}`
    let cases: [(&str, &[u8], &str); 4] = [
        (hash, b"{}", ""),
        (hash, b"[]", "SHA-256"),
        ("0123abcd", b"{", "after 1 of 2 bytes"),
        ("0123abcd", b"{} ", "more than the 2 bytes"),
    ];
    for (etag, body, problem) in cases {
        let server = mirror(move |request| {
            let stated = format!("X-Linked-ETag: \"{etag}\"\r\nX-Linked-Size: 2\r\n");
            reply("200 OK", &stated, if request.method == "HEAD" { b"" } else { body })
        });
        let cache = tempfile::tempdir().unwrap();
        if problem.is_empty() {
            hub(cache.path(), &server.address).folder("org/tiny").unwrap();
            continue;
        }
        let (error, blobs) = refused(&server, cache.path());
        assert!(error.contains(problem) && !blobs.iter().any(|name| name == etag), "{error} {blobs:?}");
    }
}

#[test]
fn redirects_are_bounded() {
    for (location, problem) in [
        ("Location: /again\r\n", "more than 5 redirects"),
        ("", "redirects to no valid address"),
        ("Location: file:///etc/passwd\r\n", "redirects to no valid address"),
    ] {
        let server = mirror(move |_| reply("302 Found", location, b""));
        let cache = tempfile::tempdir().unwrap();
        let (error, _) = refused(&server, cache.path());
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn an_interrupted_download_continues() {
    let server = mirror(|request| {
        let stated = "X-Linked-ETag: \"0123abcd\"\r\nX-Linked-Size: 4\r\n";
        match request.headers.get("range").map(String::as_str) {
            Some("bytes=2-") => reply("206 Partial Content", stated, b"cd"),
            _ => reply("200 OK", stated, b"ab"),
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let dir = hub(cache.path(), &server.address).folder("org/tiny").unwrap();
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), b"abcd");
}
