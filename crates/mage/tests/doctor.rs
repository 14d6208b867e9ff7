//! `mage doctor`, as a user runs it, on this machine and over servers that are doubles.

mod common;

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use common::{elsewhere, made, mage, text};
use mage_engine::Renderer;
use serde_json::{Value, json};
use std::{
    path::Path,
    process::{Command, Output},
    sync::Arc,
};
use tokio::{net::TcpListener, runtime::Runtime};

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).expect("text")
}

#[test]
fn doctor_tells_what_it_found() {
    let found: Value = serde_json::from_str(&stdout(&mage(&["--json", "doctor"]))).expect("JSON");
    assert!(found["product_gflops"].as_f64().expect("a rate") > 0.0 && found["threads"].as_u64().expect("a count") > 0);
    // Why no card is used is no hint but an answer, which quiet ones get too.
    let said = stdout(&mage(&["doctor", "--quiet"]));
    assert!(said.contains("instructions"), "{said}");
    assert_eq!(said.contains("\nno card "), found["device"] == "cpu", "{said}");
}

#[test]
fn a_library_that_cannot_be_used_is_told_and_not_passed_over_in_silence() {
    let found: Value = serde_json::from_str(&stdout(&mage(&["--json", "doctor"]))).expect("JSON");
    if !found["cuda"]["libraries"][0][1].is_null() {
        eprintln!("*** SKIPPED: this machine has a driver, which is found before any other ***");
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join("lib64")).expect("a folder");
    std::fs::write(home.path().join("lib64/libcuda.so.1"), "garbage").expect("a file");
    let run = |args: &[&str]| {
        let mut mage = Command::new(env!("CARGO_BIN_EXE_mage"));
        let out = mage.args(args).env("CUDA_HOME", home.path()).output().expect("runs");
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.code(), said)
    };
    let (code, said) = run(&["doctor"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(line(&said, "libcuda").contains("cannot be used"), "{said}");
    // On the loader's own path, too.
    let mut mage = Command::new(env!("CARGO_BIN_EXE_mage"));
    let out =
        mage.args(["doctor", "--quiet"]).env("LD_LIBRARY_PATH", home.path().join("lib64")).output().expect("runs");
    assert!(line(&stdout(&out), "libcuda").contains("libcuda.so.1 cannot be loaded"), "{out:?}");
    let (code, said) = run(&["train", "--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the CPU is used though there may be a card"), "{said}");
    let (code, said) = run(&["train", "--dry-run", "--device", "cuda"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("libcuda.so.1 cannot be loaded") && said.contains("CUDA libraries (12 or newer)"), "{said}");
}

/// How a server tokenizes.
type Tokenize = dyn Fn(&Renderer, &str) -> Option<Vec<u32>> + Send + Sync;

/// A server that ends when it is dropped.
struct Served {
    url: String,
    _runtime: Runtime,
}

impl Served {
    fn start(app: Router) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("started");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(async move { axum::serve(listener, app).await.expect("serves") });
        Served { url, _runtime: runtime }
    }
}

/// A vLLM server with a tokenizer; `None` is never an answer.
struct Vllm;

impl Vllm {
    fn start(
        model: &str,
        max_model_len: usize,
        tokenize: impl Fn(&Renderer, &str) -> Option<Vec<u32>> + Send + Sync + 'static,
    ) -> Served {
        let renderer = Arc::new(Renderer::from_dir(Path::new(model)).expect("a tokenizer"));
        let tokenize: Arc<Tokenize> = Arc::new(tokenize);
        let served = json!({"data": [{"id": model, "max_model_len": max_model_len}]});
        let app = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/v1/models", get(move || std::future::ready(Json(served.clone()))))
            .route("/tokenize", post(tokens))
            .with_state((renderer, tokenize));
        Served::start(app)
    }
}

async fn tokens(
    State((renderer, tokenize)): State<(Arc<Renderer>, Arc<Tokenize>)>,
    Json(asked): Json<Value>,
) -> impl IntoResponse {
    match tokenize(&renderer, asked["prompt"].as_str().expect("a text")) {
        Some(tokens) => Json(json!({"tokens": tokens})),
        None => std::future::pending().await,
    }
}

/// What doctor says of that server, while nobody trains.
fn doctor(model: &str, server: &Served, more: &[&str]) -> String {
    let sets = elsewhere(model);
    let servers = format!("vllm.servers=[\"{}\"]", server.url);
    let sets = sets.iter().map(String::as_str).chain(["--set", &servers]);
    let more = more.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets).chain(more).collect();
    text(&mage(&args))
}

fn line<'s>(said: &'s str, what: &str) -> &'s str {
    said.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("nothing about `{what}` in {said}"))
}

/// A Tinker server that makes models, and refuses to compute anything with them.
fn start_trainer_that_computes_nothing(model: &str) -> Served {
    let caps = json!({"supported_models": [{"model_name": model}]});
    let answer = |value: Value| move || std::future::ready(Json(value.clone()));
    let app = Router::new()
        .route("/api/v1/client/config", post(answer(json!({"pjwt_auth_enabled": false}))))
        .route("/api/v1/get_server_capabilities", get(answer(caps)))
        .route("/api/v1/create_session", post(answer(json!({"session_id": "s"}))))
        .route("/api/v1/create_model", post(answer(json!({"model_id": "m", "request_id": "1"}))))
        .route("/api/v1/unload_model", post(answer(json!({"request_id": "1"}))))
        .route("/api/v1/retrieve_future", post(answer(json!({}))))
        .fallback(|| async { (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"detail": "no room to compute"}))) });
    Served::start(app)
}

#[test]
fn doctor_tells_why_a_trainer_could_not_be_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let trainer = start_trainer_that_computes_nothing(&model);
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let sampler = Vllm::start(&model, 4096, right);
    let said = doctor(&model, &sampler, &["tinker.calibrate=false", &format!("tinker.url={}", trainer.url)]);
    let found = line(&said, "its model is the one here");
    assert!(found.starts_with("no ") && found.contains("no room to compute"), "{said}");
    let found = line(&said, "has the weights that are trained");
    assert!(found.starts_with("???") && found.contains("NOT COMPARED"), "{said}");
}

const TOKENIZER: &str = "has the tokenizer that is here";
const ROOM: &str = "takes sequences as long as the recipe needs";

#[test]
fn doctor_compares_tokenizers_by_many_texts_and_every_control_token() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let said = doctor(&model, &Vllm::start(&model, 4096, right), &[]);
    assert!(line(&said, TOKENIZER).starts_with("yes") && said.contains("of 7 texts"), "{said}");
    // One that knows the same letters, and no control tokens.
    let plain = |r: &Renderer, words: &str| r.encode(words).ok();
    let said = doctor(&model, &Vllm::start(&model, 4096, plain), &[]);
    assert!(line(&said, TOKENIZER).starts_with("no ") && said.contains("<|im_"), "{said}");
    // One that drops what is around a text.
    let trimmed = |r: &Renderer, words: &str| r.encode_trusted(words.trim()).ok();
    let said = doctor(&model, &Vllm::start(&model, 4096, trimmed), &[]);
    assert!(line(&said, TOKENIZER).starts_with("no ") && said.contains("two  spaces"), "{said}");
}

#[test]
fn doctor_compares_how_long_sequences_may_be() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let said = doctor(&model, &Vllm::start(&model, 40_960, right), &[]);
    assert!(line(&said, ROOM).starts_with("yes") && line(&said, ROOM).contains("40960 tokens there"), "{said}");
    let said = doctor(&model, &Vllm::start(&model, 10, right), &[]);
    assert!(line(&said, ROOM).starts_with("no ") && line(&said, ROOM).contains("--max-model-len"), "{said}");
}

#[test]
fn doctor_has_patience_of_its_own_with_a_server_that_hangs() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let hangs = Vllm::start(&model, 4096, |_, _| None);
    // A run would wait for a quarter of an hour; here the smaller of that and doctor's counts.
    let said = doctor(&model, &hangs, &["tinker.patience=900"]);
    let found = line(&said, TOKENIZER);
    assert!(found.starts_with("no ") && found.contains("no whole answer") && found.contains("(waited 10 s)"), "{said}");
}

#[test]
fn doctor_says_loudly_what_it_does_not_compare() {
    let dir = tempfile::tempdir().expect("a folder");
    // A shape is enough: nobody loads it.
    let config = Path::new(&made(dir.path())).join("config.json");
    let mut shape: Value = serde_json::from_slice(&std::fs::read(&config).expect("there")).expect("JSON");
    shape["hidden_size"] = 4096.into();
    shape["intermediate_size"] = 16384.into();
    std::fs::write(&config, shape.to_string()).expect("written");
    let sets = elsewhere(&config.display().to_string());
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let said = text(&mage(&args));
    let found = line(&said, "its model is the one here");
    assert!(found.starts_with("???") && found.contains("NOT COMPARED"), "{said}");
}

#[test]
fn doctor_asks_every_engine_though_the_first_is_away() {
    let dir = tempfile::tempdir().expect("a folder");
    let sets = elsewhere(&made(dir.path()));
    // The patience of a run, a quarter of an hour, is not doctor's.
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let out = mage(&args);
    assert!(!out.status.success());
    let said = String::from_utf8(out.stdout).expect("text");
    let no: Vec<&str> = said.lines().filter(|l| l.starts_with("no ")).collect();
    assert!(no.len() == 2 && no[0].contains("trains as") && no[1].contains("serves the model"), "{said}");
    assert!(no[0].contains("is it started, and is tinker.url its address?"), "{said}");
    assert!(no[1].contains("is it started, and is this its address?"), "{said}");
    // An address with a password is refused, and not shown.
    let login: Vec<&str> =
        args.iter().map(|a| if a.starts_with("tinker.url") { "tinker.url=http://me:hush@h:1" } else { a }).collect();
    let out = mage(&login);
    let said = String::from_utf8([out.stdout, out.stderr].concat()).expect("text");
    assert!(said.contains("tinker.url: leave logins") && !said.contains("hush"), "{said}");
}
