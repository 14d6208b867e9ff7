//! Redaction of the API key: a server repeats it in every kind of response, and no error or log line contains it.

use crate::common::{capture_log, runtime, tinker_double::TinkerDouble, tinker_script as script};
use mage_engine::Trainer;
use mage_remote::{ApiKey, StatusLog, TinkerTrainer};
use serde_json::json;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A long variable that is set for every test and appears in no error otherwise.
const VARIABLE: &str = "CARGO_MANIFEST_DIR";

#[test]
fn no_response_reveals_the_key() {
    let runtime = runtime();
    let (key, secret) = (ApiKey::from_env(VARIABLE).unwrap().unwrap(), std::env::var(VARIABLE).unwrap());
    let long = format!("{}{secret}", "x".repeat(400 - secret.len() / 2));
    let escaped: String = secret.chars().map(|c| format!("\\u{:04x}", c as u32)).collect();
    let body = |v: serde_json::Value| v.to_string();
    // Request path, status, body, and text that the error must still contain.
    let all = [
        ("client/config", 403, secret.clone(), "403"),
        ("client/config", 403, long, "403"),
        ("client/config", 200, secret.clone(), "invalid response"),
        ("get_server_capabilities", 500, secret.clone(), "500"),
        (
            "get_server_capabilities",
            200,
            body(json!({"supported_models": [{"model_name": secret}]})),
            "the server offers [key], not",
        ),
        (
            "get_server_capabilities",
            200,
            format!(r#"{{"supported_models": [{{"model_name": "{escaped}"}}]}}"#),
            "the server offers [key], not",
        ),
        (
            "create_session",
            200,
            body(json!({"session_id": "s", "error_message": format!("no: {secret}")})),
            "no: [key]",
        ),
        ("create_session", 200, body(json!({"session_id": {"is": secret}})), "no session id in the response"),
        ("create_model", 200, body(json!({"model_id": "m", "request_id": {secret.clone(): 1}})), "create_model"),
        ("create_model", 200, format!("\"{secret}\""), "invalid type: string \"[key]\""),
        ("create_model", 200, format!("\"{escaped}\""), "invalid type: string \"[key]\""),
        ("create_model", 400, body(json!({"detail": secret})), "[key]"),
        ("create_model", 422, body(json!({"detail": [{"msg": secret}]})), "[key]"),
        ("retrieve_future", 400, body(json!({"detail": secret})), "[key]"),
        ("retrieve_future", 408, body(json!({"detail": secret})), "[key]"),
        ("optim_step", 409, body(json!({"detail": secret})), "[key]"),
        ("optim_step", 200, format!("\"{secret}\""), "invalid type: string \"[key]\""),
    ];
    std::thread::scope(|scope| {
        for (path, status, body, about) in &all {
            let (runtime, key, secret) = (&runtime, key.clone(), &secret);
            scope.spawn(move || {
                let double = runtime.block_on(TinkerDouble::start(None));
                let (on, body) = (*path, body.clone());
                let again = body.clone();
                let status = *status;
                double.override_responses(move |path, _| (path == on).then(|| (status, body.clone())));
                let (status_log, lines) = capture_log();
                let dir = tempfile::tempdir().unwrap();
                let mut settings = script::settings(&double.url(), dir.path(), status_log);
                settings.server.key = Some(key);
                settings.server.timeouts.outage = Duration::from_millis(1200);
                settings.server.timeouts.operation = Duration::from_millis(1200);
                let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
                assert!(e.contains(about), "{path} {status} {again}: {e}");
                let lines = lines.lock().unwrap().join("\n");
                for start in (0..secret.len() - 12).step_by(4) {
                    let part = &secret[start..start + 12];
                    assert!(!e.contains(part) && !lines.contains(part), "{path} {status}: {e}\n{lines}");
                }
            });
        }
    });
}

#[test]
fn log_line_about_a_lost_model_has_no_key() {
    let runtime = runtime();
    let (key, secret) = (ApiKey::from_env(VARIABLE).unwrap().unwrap(), std::env::var(VARIABLE).unwrap());
    let double = runtime.block_on(TinkerDouble::start(None));
    let (status_log, lines) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&double.url(), dir.path(), status_log);
    settings.server.key = Some(key);
    settings.calibrate = false;
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    let mut left = 1;
    double.override_responses(move |path, _| {
        let mine = path == "retrieve_future" && left > 0;
        left -= i32::from(mine);
        mine.then(|| (400, format!("Model {secret} not loaded")))
    });
    let loss = mage_engine::Loss::of(mage_engine::Objective::CrossEntropy);
    trainer.forward_backward(&script::batch(1.0), &loss).unwrap();
    let lines = lines.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].contains("lost the model (Model [key] not loaded)"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn insecure_transport_warning_precedes_the_first_request() {
    let double = TinkerDouble::start(None).await;
    let requests = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&requests);
    double.override_responses(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    let log_lines = Arc::<Mutex<Vec<(String, usize)>>>::default();
    let (sink, count) = (Arc::clone(&log_lines), Arc::clone(&requests));
    let status_log =
        StatusLog::new(move |line, _| sink.lock().unwrap().push((line.to_owned(), count.load(Ordering::SeqCst))));
    let dir = tempfile::tempdir().unwrap();
    // Resolves to this machine without being a loopback address.
    let url = format!("http://0.0.0.0:{}", double.address.port());
    let mut server = script::settings(&url, dir.path(), status_log).server;
    server.key = ApiKey::from_env(VARIABLE).unwrap();
    server.probe(Duration::from_secs(5)).await.unwrap();
    let log_lines = log_lines.lock().unwrap();
    assert!(
        log_lines.len() == 1
            && log_lines[0].0.contains("receives its API key over unencrypted http")
            && log_lines[0].1 == 0,
        "{log_lines:?}"
    );
    assert!(requests.load(Ordering::SeqCst) > 0);
}
