//! `mage doctor` on this machine, and `mage doctor --engine` with test servers.

use crate::common::{create_model, mage, text, unreachable_engines};
use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::IntoResponse,
    routing::{get, post},
};
use mage_engine::Renderer;
use serde_json::{Value, json};
use std::{
    path::Path,
    pin::Pin,
    process::{Command, Output},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, runtime::Runtime};

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).expect("text")
}

#[test]
fn doctor_prints_throughput_and_why_no_gpu_is_used() {
    let found: Value = serde_json::from_str(&stdout(&mage(&["--json", "doctor"]))).expect("JSON");
    assert!(found["gemm_gflops"].as_f64().expect("a rate") > 0.0 && found["threads"].as_u64().expect("a count") > 0);
    // The reason is a result, not a hint: --quiet prints it too.
    let stdout = stdout(&mage(&["doctor", "--quiet"]));
    assert!(stdout.contains("instructions"), "{stdout}");
    assert_eq!(stdout.contains("\nno GPU "), found["device"] == "cpu", "{stdout}");
}

#[test]
fn an_unusable_library_is_reported() {
    let found: Value = serde_json::from_str(&stdout(&mage(&["--json", "doctor"]))).expect("JSON");
    if !found["cuda"]["libraries"][0][1].is_null() {
        eprintln!("*** SKIPPED: this machine has a driver, which the loader finds first ***");
        return;
    }
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join("lib64")).expect("a folder");
    std::fs::write(home.path().join("lib64/libcuda.so.1"), "garbage").expect("a file");
    let run = |args: &[&str]| {
        let mut mage = Command::new(env!("CARGO_BIN_EXE_mage"));
        let out = mage.args(args).env("CUDA_HOME", home.path()).output().expect("runs");
        let output = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.code(), output)
    };
    let (code, output) = run(&["doctor"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(line(&output, "libcuda").contains("cannot be used"), "{output}");
    // Also on the loader's path.
    let mut mage = Command::new(env!("CARGO_BIN_EXE_mage"));
    let out =
        mage.args(["doctor", "--quiet"]).env("LD_LIBRARY_PATH", home.path().join("lib64")).output().expect("runs");
    assert!(line(&stdout(&out), "libcuda").contains("libcuda.so.1 cannot be loaded"), "{out:?}");
    let (code, output) = run(&["train", "--dry-run"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("using the CPU, although there may be a GPU"), "{output}");
    let (code, output) = run(&["train", "--dry-run", "--device", "cuda"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("libcuda.so.1 cannot be loaded") && output.contains("CUDA libraries (12 or newer)"),
        "{output}"
    );
}

/// Tokenizer of a test server; a server does not respond to a text that maps to `None`.
type Tokenize = dyn Fn(&Renderer, &str) -> Option<Vec<u32>> + Send + Sync;

/// A test server that stops when dropped.
struct TestServer {
    url: String,
    _runtime: Runtime,
}

impl TestServer {
    fn start(app: Router) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("started");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(async move { axum::serve(listener, app).await.expect("serves") });
        TestServer { url, _runtime: runtime }
    }
}

/// A vLLM test server with a tokenizer.
struct Vllm;

impl Vllm {
    fn start(
        model: &str,
        max_model_len: usize,
        tokenize: impl Fn(&Renderer, &str) -> Option<Vec<u32>> + Send + Sync + 'static,
    ) -> TestServer {
        Self::start_cold(model, max_model_len, tokenize, Duration::ZERO)
    }

    /// Its completions wait until `cold` after the first request for one.
    fn start_cold(
        model: &str,
        max_model_len: usize,
        tokenize: impl Fn(&Renderer, &str) -> Option<Vec<u32>> + Send + Sync + 'static,
        cold: Duration,
    ) -> TestServer {
        let renderer = Arc::new(Renderer::from_dir(Path::new(model)).expect("a tokenizer"));
        let tokenize: Arc<Tokenize> = Arc::new(tokenize);
        let served = json!({"data": [{"id": model, "max_model_len": max_model_len}]});
        let app = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/v1/models", get(move || std::future::ready(Json(served.clone()))))
            .route("/tokenize", post(tokens))
            .route("/v1/completions", post(completion(cold)))
            .with_state((renderer, tokenize));
        TestServer::start(app)
    }
}

async fn tokens(
    State((renderer, tokenize)): State<(Arc<Renderer>, Arc<Tokenize>)>,
    Json(body): Json<Value>,
) -> impl IntoResponse {
    match tokenize(&renderer, body["prompt"].as_str().expect("a text")) {
        Some(tokens) => Json(json!({"tokens": tokens})),
        None => std::future::pending().await,
    }
}

/// Completes with the allowed token.
fn completion(cold: Duration) -> impl Clone + Fn(Json<Value>) -> Pin<Box<dyn Future<Output = Json<Value>> + Send>> {
    let first = Arc::<OnceLock<Instant>>::default();
    move |Json(body)| {
        let elapsed = first.get_or_init(Instant::now).elapsed();
        Box::pin(async move {
            tokio::time::sleep(cold.saturating_sub(elapsed)).await;
            let (ids, logprobs) = (&body["allowed_token_ids"], json!({"token_logprobs": [-0.5]}));
            Json(json!({"choices": [{"text": "", "finish_reason": "length", "token_ids": ids, "logprobs": logprobs}]}))
        })
    }
}

/// The output of doctor for this vLLM server, without a trainer.
fn doctor(model: &str, server: &TestServer, more: &[&str]) -> String {
    doctor_with(model, server, more, &[])
}

fn doctor_with(model: &str, server: &TestServer, more: &[&str], flags: &[&str]) -> String {
    let sets = unreachable_engines(model);
    let servers = format!("vllm.servers=[\"{}\"]", server.url);
    let sets = sets.iter().map(String::as_str).chain(["--set", &servers]);
    let more = more.iter().flat_map(|set| ["--set", set]);
    let args: Vec<&str> =
        ["doctor", "--engine", "kuhn"].into_iter().chain(sets).chain(more).chain(flags.iter().copied()).collect();
    text(&mage(&args))
}

fn line<'s>(output: &'s str, text: &str) -> &'s str {
    output.lines().find(|l| l.contains(text)).unwrap_or_else(|| panic!("no line with `{text}` in {output}"))
}

/// A Tinker server that creates models but fails every computation.
fn start_trainer_that_fails_to_compute(model: &str) -> TestServer {
    let caps = json!({"supported_models": [{"model_name": model}]});
    let respond = |value: Value| move || std::future::ready(Json(value.clone()));
    let app = Router::new()
        .route("/api/v1/client/config", post(respond(json!({"pjwt_auth_enabled": false}))))
        .route("/api/v1/get_server_capabilities", get(respond(caps)))
        .route("/api/v1/create_session", post(respond(json!({"session_id": "s"}))))
        .route("/api/v1/create_model", post(respond(json!({"model_id": "m", "request_id": "1"}))))
        .route("/api/v1/unload_model", post(respond(json!({"request_id": "1"}))))
        .route("/api/v1/retrieve_future", post(respond(json!({}))))
        .fallback(|| async { (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({"detail": "out of memory"}))) });
    TestServer::start(app)
}

#[test]
fn doctor_reports_why_a_trainer_could_not_be_compared() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let trainer = start_trainer_that_fails_to_compute(&model);
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let sampler = Vllm::start(&model, 4096, right);
    let output = doctor(&model, &sampler, &["tinker.calibrate=false", &format!("tinker.url={}", trainer.url)]);
    let found = line(&output, "trainer's weights match the local model");
    assert!(found.starts_with("FAIL") && found.contains("out of memory"), "{output}");
    let found = line(&output, "has the trainer's base weights");
    assert!(found.starts_with("skip") && found.contains("NOT COMPARED"), "{output}");
}

const TOKENIZER: &str = "has the local tokenizer";
const CONTEXT: &str = "accepts the recipe's longest sequence";

#[test]
fn doctor_compares_tokenizers_on_texts_and_control_tokens() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let output = doctor(&model, &Vllm::start(&model, 4096, right), &[]);
    assert!(line(&output, TOKENIZER).starts_with("ok ") && output.contains("of 7 texts"), "{output}");
    // The local vocabulary without control tokens.
    let plain = |r: &Renderer, words: &str| r.encode(words).ok();
    let output = doctor(&model, &Vllm::start(&model, 4096, plain), &[]);
    assert!(line(&output, TOKENIZER).starts_with("FAIL") && output.contains("<|im_"), "{output}");
    // A tokenizer that trims the text.
    let trimmed = |r: &Renderer, words: &str| r.encode_trusted(words.trim()).ok();
    let output = doctor(&model, &Vllm::start(&model, 4096, trimmed), &[]);
    assert!(line(&output, TOKENIZER).starts_with("FAIL") && output.contains("two  spaces"), "{output}");
}

#[test]
fn doctor_checks_the_context_length() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let output = doctor(&model, &Vllm::start(&model, 40_960, right), &[]);
    assert!(
        line(&output, CONTEXT).starts_with("ok ") && line(&output, CONTEXT).contains("context 40960 tokens"),
        "{output}"
    );
    let output = doctor(&model, &Vllm::start(&model, 10, right), &[]);
    assert!(
        line(&output, CONTEXT).starts_with("FAIL") && line(&output, CONTEXT).contains("--max-model-len"),
        "{output}"
    );
}

#[test]
fn doctor_limits_the_timeout_of_a_hanging_server() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let hangs = Vllm::start(&model, 4096, |_, _| None);
    // The smaller of the recipe's timeout and doctor's applies.
    let output = doctor(&model, &hangs, &["tinker.timeout=900"]);
    let found = line(&output, TOKENIZER);
    assert!(
        found.starts_with("FAIL") && found.contains("no response within") && found.contains("(waited 10 s)"),
        "{output}"
    );
}

#[test]
fn doctor_waits_for_the_first_completion_of_a_server_that_was_just_started() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let right = |r: &Renderer, words: &str| r.encode_trusted(words).ok();
    let found = |cold_start: &str| {
        // Longer than one attempt, which takes a second at most.
        let server = Vllm::start_cold(&model, 4096, right, Duration::from_secs(3));
        let output = doctor_with(&model, &server, &["tinker.timeout=1"], &["--cold-start", cold_start]);
        line(&output, "completes a prompt").to_owned()
    };
    let slow = found("60");
    assert!(slow.starts_with("ok ") && slow.contains(" s, slow: the server was still compiling"), "{slow}");
    let late = found("1");
    assert!(late.starts_with("FAIL") && late.contains("no completion within 1 s"), "{late}");
}

#[test]
fn doctor_marks_a_skipped_comparison() {
    let dir = tempfile::tempdir().expect("a folder");
    // The configuration is enough: the weights are not loaded.
    let config = Path::new(&create_model(dir.path())).join("config.json");
    let mut shape: Value = serde_json::from_slice(&std::fs::read(&config).expect("there")).expect("JSON");
    shape["hidden_size"] = 4096.into();
    shape["intermediate_size"] = 16384.into();
    std::fs::write(&config, shape.to_string()).expect("written");
    let sets = unreachable_engines(&config.display().to_string());
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let output = text(&mage(&args));
    let found = line(&output, "trainer's weights match the local model");
    assert!(found.starts_with("skip") && found.contains("NOT COMPARED"), "{output}");
}

#[test]
fn doctor_checks_every_engine_when_the_first_is_unreachable() {
    let dir = tempfile::tempdir().expect("a folder");
    let sets = unreachable_engines(&create_model(dir.path()));
    // Doctor's timeout applies, not the recipe's 15 minutes.
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let out = mage(&args);
    assert!(!out.status.success());
    let output = String::from_utf8(out.stdout).expect("text");
    let failed: Vec<&str> = output.lines().filter(|l| l.starts_with("FAIL")).collect();
    assert!(
        failed.len() == 2 && failed[0].contains("computes gradients") && failed[1].contains("serves the model"),
        "{output}"
    );
    assert!(failed[0].contains("check that the server runs and that tinker.url is its address"), "{output}");
    assert!(failed[1].contains("check that the server runs and that this is its address"), "{output}");
    // A URL with a password is rejected and not printed.
    let login: Vec<&str> =
        args.iter().map(|a| if a.starts_with("tinker.url") { "tinker.url=http://me:hush@h:1" } else { a }).collect();
    let out = mage(&login);
    let output = String::from_utf8([out.stdout, out.stderr].concat()).expect("text");
    assert!(output.contains("`tinker.url`: remove the login") && !output.contains("hush"), "{output}");
}
