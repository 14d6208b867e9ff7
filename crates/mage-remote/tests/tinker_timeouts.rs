//! Slow and stuck Tinker servers: waits are logged and limited.

use crate::common::{
    LogLines, capture_log,
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::{Misbehaviour, TinkerDouble},
    tinker_script as script,
};
use mage_engine::{Loss, Objective, Trainer, WeightsName};
use mage_remote::{Timeouts, TinkerSettings, TinkerTrainer};
use serde_json::json;
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Settings without calibration, with the log.
fn uncalibrated(url: &str, dir: &Path) -> (TinkerSettings, LogLines) {
    let (notices, lines) = capture_log();
    let mut settings = script::settings(url, dir, notices);
    settings.calibrate = false;
    (settings, lines)
}

#[test]
fn failing_model_creation_is_retried_and_logged() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let requests = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&requests);
    double.override_responses(move |path, _| {
        let first = path == "create_model" && count.fetch_add(1, Ordering::SeqCst) == 0;
        let text = if first { "CUDA out of memory" } else { "worker is dead" };
        (path == "create_model").then(|| (500, json!({"detail": text}).to_string()))
    });
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.outage = Duration::from_secs(4);
    let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
    assert!(e.contains("create_model: ") && e.contains("CUDA out of memory; last: "), "{e}");
    let (requests, lines) = (requests.load(Ordering::SeqCst), lines.lock().unwrap());
    assert!((3..=6).contains(&requests), "{requests} requests");
    assert!(lines.len() <= 2 && lines[0].contains("create_model") && lines[0].contains("up to 4 s"), "{lines:?}");
    assert!(lines[0].contains("CUDA out of memory"), "{lines:?}");
}

#[test]
fn server_without_a_free_slot_is_waited_for() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.outage = Duration::from_secs(2);
    // SkyRL's error, until the session of a killed run expires; and without end.
    for times in [2, usize::MAX] {
        let mut left = times;
        double.override_responses(move |path, body| match path {
            "create_model" if left > 0 => {
                left -= 1;
                Some((200, json!({"model_id": "none", "request_id": "full"}).to_string()))
            }
            "retrieve_future" if body["request_id"] == "full" => {
                Some((400, json!({"detail": "Maximum number of LoRA adapters (8) reached"}).to_string()))
            }
            _ => None,
        });
        let connected = TinkerTrainer::connect(settings.clone(), None);
        let e = connected.err().map_or_else(String::new, |e| e.to_string());
        assert_eq!(times == 2, e.is_empty(), "{e}");
        assert!(
            times == 2 || e.contains("create_model: Maximum number of LoRA adapters (8) reached (waited 2 s)"),
            "{e}"
        );
    }
    let lines = lines.lock().unwrap();
    assert!(lines[0].contains("has not finished create_model") && lines[0].contains("Maximum number"), "{lines:?}");
}

#[test]
fn failed_restores_leave_no_models() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (settings, _) = uncalibrated(&double.url(), dir.path());
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    script::train_three_steps(&mut trainer);
    trainer.publish(&WeightsName::default()).unwrap();
    double.state.lock().unwrap().forget_models();
    let mut left = 3;
    double.override_responses(move |path, _| {
        let mine = path == "load_weights" && left > 0;
        left -= i32::from(mine);
        mine.then(|| (503, "busy".to_owned()))
    });
    trainer.fingerprint().unwrap();
    assert_eq!(double.state.lock().unwrap().models(), 1, "only the model in training");
}

/// Trains on a server that fails `times` times.
fn train_on_failing_server(failing: &'static str, status: u16, times: usize) {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.outage = Duration::from_secs(40);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    let mut left = times;
    double.override_responses(move |path, _| {
        let mine = path == failing && left > 0;
        left -= usize::from(mine);
        mine.then(|| (status, json!({"detail": "database is locked"}).to_string()))
    });
    script::train_three_steps(&mut trainer);
    let lines = lines.lock().unwrap();
    let waits: Vec<&String> = lines.iter().filter(|l| l.contains("retrying for up to 40 s")).collect();
    assert!(waits.len() == 1 && waits[0].contains("database is locked"), "{failing}: {lines:?}");
    assert!(lines.iter().any(|l| l.contains("is available again after")), "{failing}: {lines:?}");
}

#[test]
fn long_failures_are_retried_and_logged_once() {
    // More often than any limit of attempts.
    std::thread::scope(|s| {
        for (failing, status) in [("optim_step", 500), ("retrieve_future", 500), ("retrieve_future", 429)] {
            s.spawn(move || train_on_failing_server(failing, status, 7));
        }
    });
}

#[test]
fn permanent_failures_end_at_the_outage_timeout() {
    let runtime = runtime();
    for failing in ["optim_step", "retrieve_future"] {
        let double = runtime.block_on(TinkerDouble::start(None));
        let dir = tempfile::tempdir().unwrap();
        let (mut settings, _) = uncalibrated(&double.url(), dir.path());
        settings.server.timeouts.outage = Duration::from_secs(2);
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        double.override_responses(move |path, _| {
            (path == failing).then(|| (500, json!({"detail": "broken"}).to_string()))
        });
        let learned = trainer
            .forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy))
            .and_then(|_| trainer.optim_step(&script::step()));
        let e = learned.unwrap_err().to_string();
        assert!(e.contains("broken") && e.contains("(waited 2 s)"), "{e}");
    }
}

#[test]
fn silent_server_ends_at_the_outage_timeout() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    // From some request on, nothing responds.
    let proxy = runtime.block_on(Proxy::start_before(double.address, "retrieve_future", vec![Fault::Hang; 100]));
    let (mut settings, lines) = uncalibrated(&proxy.url(), dir.path());
    settings.server.timeouts = Timeouts {
        attempt: Duration::from_millis(500),
        outage: Duration::from_secs(2),
        operation: Duration::from_secs(3600),
    };
    double.override_responses(|path, _| (path == "healthz").then(|| (503, "no backend".to_owned())));
    let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
    assert!(e.contains("during the health check") && e.contains("(waited 2 s)"), "{e}");
    assert!(lines.lock().unwrap().iter().any(|l| l.contains("is unreachable")), "{lines:?}");
}

#[test]
fn missing_result_is_logged_and_ends_at_the_operation_timeout() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.operation = Duration::from_secs(2);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    let requests = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&requests);
    double.override_responses(move |path, _| {
        (path == "retrieve_future").then(|| {
            count.fetch_add(1, Ordering::SeqCst);
            (408, json!({"detail": "Timeout waiting for result"}).to_string())
        })
    });
    let e = trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap_err().to_string();
    assert!(e.contains("forward: 408") && e.contains("waited 2 s"), "{e}");
    let requests = requests.load(Ordering::SeqCst);
    assert!(requests < 12, "{requests} requests");
    let lines = lines.lock().unwrap();
    assert!((1..=3).contains(&lines.len()), "{lines:?}");
    assert!(lines[0].contains(&double.url()) && lines[0].contains("has not finished forward after"), "{lines:?}");
    assert!(lines[0].contains("waiting for up to 2 s"), "{lines:?}");
    drop(lines);
    double.override_responses(|_, _| None);
}

#[test]
fn error_of_a_result_states_the_first_failure() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, _) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.operation = Duration::from_secs(2);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    let mut times = 0;
    double.override_responses(move |path, _| {
        (path == "retrieve_future").then(|| {
            times += 1;
            (500, if times == 1 { "the first" } else { "an echo" }.to_owned())
        })
    });
    let e = trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap_err().to_string();
    assert!(e.contains("the first; last: ") && e.contains("an echo"), "{e}");
    double.override_responses(|_, _| None);
}

#[test]
fn unfinished_checkpoint_is_saved_under_another_name() {
    let runtime = runtime();
    // With the model still loaded, and lost in a restart.
    for lost in [false, true] {
        let double = runtime.block_on(TinkerDouble::start(None));
        let dir = tempfile::tempdir().unwrap();
        let (settings, lines) = uncalibrated(&double.url(), dir.path());
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        script::train_three_steps(&mut trainer);
        let mut left = 1;
        double.override_responses(move |path, _| {
            let mine = path == "save_weights" && left > 0;
            left -= i32::from(mine);
            mine.then(|| (409, json!({"detail": "Checkpoint already exists"}).to_string()))
        });
        if lost {
            double.state.lock().unwrap().forget_models();
        }
        trainer.publish(&WeightsName::default()).unwrap();
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        let count = |words: &str| lines.iter().filter(|l| l.contains(words)).count();
        assert_eq!(count("saving under another name"), 1, "{lines:?}");
        assert_eq!(count("lost the model"), usize::from(lost), "{lines:?}");
        assert_eq!(double.state.lock().unwrap().saved.keys().filter(|p| p.contains("/weights/")).count(), 1);
    }
}

#[test]
fn slow_checkpoint_is_waited_for_up_to_the_outage_timeout() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    // Its response is lost and it is listed late; no other name is used meanwhile.
    let proxy = runtime.block_on(Proxy::start_before(double.address, "save_weights ", [Fault::HalfBody]));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&proxy.url(), dir.path());
    settings.server.timeouts.attempt = Duration::from_millis(100);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    script::train_three_steps(&mut trainer);
    let names = Arc::<Mutex<BTreeSet<String>>>::default();
    let note = Arc::clone(&names);
    double.override_responses(move |path, body| match path {
        "save_weights" => {
            let mut names = note.lock().unwrap();
            names.insert(body["path"].as_str().unwrap().to_owned());
            (names.len() > 1).then(|| (409, json!({"detail": "Checkpoint already exists"}).to_string()))
        }
        path if path.ends_with("/checkpoints") && note.lock().unwrap().len() < 4 => {
            Some((200, json!({"checkpoints": []}).to_string()))
        }
        _ => None,
    });
    trainer.publish(&WeightsName::default()).unwrap();
    let saved = double.state.lock().unwrap().saved.clone();
    let states: Vec<&String> = saved.keys().filter(|path| path.contains("/weights/")).collect();
    let first = names.lock().unwrap().first().cloned().unwrap();
    assert!(
        states.len() == 1 && states[0].ends_with(&format!("/weights/{first}")),
        "{states:?}; the first name was {first}"
    );
    let lines = lines.lock().unwrap();
    assert_eq!(lines.iter().filter(|l| l.contains("saving under another name")).count(), 1, "{lines:?}");
}

#[test]
fn save_conflicts_end_at_the_outage_timeout() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, _) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.attempt = Duration::from_millis(100);
    settings.server.timeouts.outage = Duration::from_secs(2);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    script::train_three_steps(&mut trainer);
    let names = Arc::<Mutex<Vec<String>>>::default();
    let note = Arc::clone(&names);
    double.override_responses(move |path, body| {
        (path == "save_weights").then(|| {
            note.lock().unwrap().push(body["path"].as_str().unwrap().to_owned());
            (409, json!({"detail": "Checkpoint already exists"}).to_string())
        })
    });
    let e = trainer.publish(&WeightsName::default()).unwrap_err().to_string();
    assert!(
        e.contains("save_weights of `state-") && e.contains("already exists, and the checkpoint is not listed"),
        "{e}"
    );
    assert!(e.contains("waited 2 s"), "{e}");
    let names = names.lock().unwrap();
    let different: BTreeSet<&String> = names.iter().collect();
    assert!(names.len() > 1 && names.len() == different.len(), "{names:?}");
}

#[test]
fn slow_download_is_not_repeated() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let counted = |faults: Vec<Fault>| {
        let proxy = runtime.block_on(Proxy::start(double.address, faults));
        let (mut settings, lines) = uncalibrated(&format!("http://{}", proxy.address), dir.path());
        settings.server.timeouts.attempt = Duration::from_millis(500);
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        script::train_three_steps(&mut trainer);
        trainer.publish(&WeightsName::default()).unwrap();
        trainer.save(&dir.path().join("checkpoint")).unwrap();
        let requests = proxy.requests.load(Ordering::SeqCst);
        (requests, lines)
    };
    let (requests, _) = counted(Vec::new());
    // The download is the second to last request, before the saved weights are deleted.
    let slow = |fault: Fault| (0..requests - 2).map(|_| Fault::Pass).chain([fault]).collect::<Vec<_>>();
    let (again, _) = counted(slow(Fault::Parts(8, Duration::from_millis(100))));
    assert_eq!(again, requests, "each chunk arrives within the attempt timeout; the whole does not");
    // A truncated download is retried.
    let (again, _) = counted(slow(Fault::HalfBody));
    assert_eq!(again, requests + 1);
}

#[test]
fn failed_download_states_the_cause() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let count = |faults: Vec<Fault>| {
        let proxy = runtime.block_on(Proxy::start(double.address, faults));
        let (mut settings, _) = uncalibrated(&format!("http://{}", proxy.address), dir.path());
        settings.server.timeouts.outage = Duration::from_millis(300);
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        script::train_three_steps(&mut trainer);
        trainer.publish(&WeightsName::default()).unwrap();
        let before = proxy.requests.load(Ordering::SeqCst);
        (before, trainer.save(&dir.path().join("checkpoint")).err().map(|e| e.to_string()))
    };
    let (before, fine) = count(Vec::new());
    assert_eq!(fine, None);
    // Weights are saved and polled, then downloaded.
    let broken = (0..before + 2).map(|_| Fault::Pass).chain((0..20).map(|_| Fault::HalfBody));
    let e = count(broken.collect()).1.unwrap();
    assert!(e.contains("downloading an adapter: the response ended after ") && e.contains(" bytes: "), "{e}");
}

#[test]
fn missing_saved_state_is_not_treated_as_a_lost_model() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (settings, lines) = uncalibrated(&double.url(), dir.path());
    let checkpoint = dir.path().join("checkpoint");
    let mut trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
    script::train_three_steps(&mut trainer);
    trainer.publish(&WeightsName::default()).unwrap();
    trainer.save(&checkpoint).unwrap();
    drop(trainer);
    // As the response to the request, and as its result, in SkyRL's words.
    double.state.lock().unwrap().saved.clear();
    let made = Arc::<AtomicUsize>::default();
    for late in [false, true] {
        let mut trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
        let count = Arc::clone(&made);
        double.override_responses(move |path, body| {
            count.fetch_add(usize::from(path == "create_model"), Ordering::SeqCst);
            match path {
                "load_weights" if late => Some((200, json!({"request_id": "gone"}).to_string())),
                "retrieve_future" if body["request_id"] == "gone" => {
                    Some((400, json!({"detail": "Training checkpoint not found in /ckpt/m/weights/s"}).to_string()))
                }
                _ => None,
            }
        });
        let e = trainer.load(&checkpoint).unwrap_err().to_string();
        assert!(e.contains("no longer has the state tinker://"), "{e}");
        assert!(e.contains("heckpoint not found") && e.contains("or start a new run"), "{e}");
        double.override_responses(|_, _| None);
    }
    assert_eq!(made.load(Ordering::SeqCst), 2, "one model each, without retries");
    assert!(lines.lock().unwrap().is_empty(), "{lines:?}");
}

#[test]
fn undone_step_is_not_logged_as_a_lost_model() {
    let runtime = runtime();
    // The first step is taken by two models.
    let double = runtime.block_on(TinkerDouble::start(Some(Misbehaviour::NullNorm(3))));
    let dir = tempfile::tempdir().unwrap();
    let (settings, lines) = uncalibrated(&double.url(), dir.path());
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap();
    assert!(trainer.optim_step(&script::step()).unwrap().skipped.is_none());
    trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap();
    assert!(trainer.optim_step(&script::step()).unwrap().skipped.is_some());
    let lines = lines.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].contains("took a step with gradient norm NaN"), "{lines:?}");
    assert!(!lines[0].contains("lost the model"), "{lines:?}");
}

#[test]
fn retry_after_waits_are_logged() {
    let runtime = runtime();
    for (status, path, line) in [
        (429, "client/config", "is overloaded and requests a retry after 2 s"),
        (503, "optim_step", "is unavailable and requests a retry after 2 s"),
        (500, "retrieve_future", "returns errors and requests a retry after 2 s"),
        (408, "retrieve_future", "has not finished"),
    ] {
        let double = runtime.block_on(TinkerDouble::start(None));
        let dir = tempfile::tempdir().unwrap();
        let later = Fault::Reply(status, "retry-after: 3600\r\n".to_owned(), "not now".to_owned());
        let proxy = runtime.block_on(Proxy::start_before(double.address, path, vec![later; 100]));
        let (mut settings, lines) = uncalibrated(&proxy.url(), dir.path());
        settings.server.timeouts =
            Timeouts { outage: Duration::from_secs(2), operation: Duration::from_secs(4), ..settings.server.timeouts };
        let learned = TinkerTrainer::connect(settings, None).and_then(|mut trainer| {
            trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy))?;
            trainer.optim_step(&script::step())
        });
        assert!(learned.is_err(), "{path}");
        let lines = lines.lock().unwrap();
        assert!(lines.iter().any(|l| l.contains(line)), "{status} {path}: {lines:?}");
    }
}

#[test]
fn responses_that_are_not_json_are_retried() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let page = Fault::reply(200, "<html>back in a moment</html>");
    let proxy = runtime.block_on(Proxy::start_before(double.address, "optim_step", vec![page.clone(); 2]));
    let mut trainer = TinkerTrainer::connect(uncalibrated(&proxy.url(), dir.path()).0, None).unwrap();
    script::train_three_steps(&mut trainer);
    let proxy = runtime.block_on(Proxy::start_before(double.address, "client/config", vec![page; 100]));
    let e = TinkerTrainer::connect(uncalibrated(&proxy.url(), dir.path()).0, None).err().unwrap().to_string();
    assert!(e.contains("invalid response to client/config, 3 times") && e.contains("back in a moment"), "{e}");
}
