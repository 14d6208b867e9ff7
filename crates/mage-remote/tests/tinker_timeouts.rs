//! Servers that take their time, or never come to an end: what is waited for is said, and every wait has an end.

mod common;

use common::{
    LogLines, capture_log,
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::{Double, Misbehaviour},
    tinker_script as script,
};
use mage_engine::{AdapterName, Loss, Objective, Trainer};
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

/// Settings without a calibration, and what is said.
fn uncalibrated(url: &str, dir: &Path) -> (TinkerSettings, LogLines) {
    let (notices, lines) = capture_log();
    let mut settings = script::settings(url, dir, notices);
    settings.calibrate = false;
    (settings, lines)
}

#[test]
fn a_model_that_cannot_be_made_is_asked_for_a_few_times_and_said() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
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
    let (asked, lines) = (asked.load(Ordering::SeqCst), lines.lock().unwrap());
    assert!((3..=6).contains(&asked), "{asked} times");
    assert!(lines.len() <= 2 && lines[0].contains("create_model") && lines[0].contains("up to 4 s"), "{lines:?}");
    assert!(lines[0].contains("CUDA out of memory"), "{lines:?}");
}

#[test]
fn a_server_without_a_free_place_is_waited_for() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.outage = Duration::from_secs(2);
    // As SkyRL says it, until the session of one that was killed has expired; and for ever.
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
fn a_server_that_is_fed_in_vain_is_left_no_models() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (settings, _) = uncalibrated(&double.url(), dir.path());
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    script::train_three_steps(&mut trainer);
    trainer.publish(&AdapterName::default()).unwrap();
    double.world.lock().unwrap().forget_models();
    let mut left = 3;
    double.override_responses(move |path, _| {
        let mine = path == "load_weights" && left > 0;
        left -= i32::from(mine);
        mine.then(|| (503, "busy".to_owned()))
    });
    trainer.fingerprint().unwrap();
    assert_eq!(double.world.lock().unwrap().models(), 1, "the one in training");
}

/// Learns from a server that fails so often, and then works.
fn learn_from_one_that_fails(failing: &'static str, status: u16, times: usize) {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
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
fn a_server_that_fails_for_long_is_waited_for_with_a_line_at_each_end() {
    // More often than any number of attempts that was ever thought enough.
    std::thread::scope(|s| {
        for (failing, status) in [("optim_step", 500), ("retrieve_future", 500), ("retrieve_future", 429)] {
            s.spawn(move || learn_from_one_that_fails(failing, status, 7));
        }
    });
}

#[test]
fn a_server_that_fails_for_ever_is_waited_for_as_long_as_patience_lasts() {
    let runtime = runtime();
    for failing in ["optim_step", "retrieve_future"] {
        let double = runtime.block_on(Double::start(None));
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
fn a_server_that_falls_silent_over_a_result_is_waited_for_as_long_as_patience_lasts() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    // From some request on, nobody says anything any more.
    let proxy = runtime.block_on(Proxy::start_before(double.address, "retrieve_future", vec![Fault::Hang; 100]));
    let (mut settings, lines) = uncalibrated(&proxy.url(), dir.path());
    settings.server.timeouts = Timeouts {
        attempt: Duration::from_millis(500),
        outage: Duration::from_secs(2),
        operation: Duration::from_secs(3600),
    };
    double.override_responses(|path, _| (path == "healthz").then(|| (503, "nobody".to_owned())));
    let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
    assert!(e.contains("during the health check") && e.contains("(waited 2 s)"), "{e}");
    assert!(lines.lock().unwrap().iter().any(|l| l.contains("is unreachable")), "{lines:?}");
}

#[test]
fn a_result_that_never_comes_is_told_of_and_has_an_end() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (mut settings, lines) = uncalibrated(&double.url(), dir.path());
    settings.server.timeouts.operation = Duration::from_secs(2);
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    let asked = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&asked);
    double.override_responses(move |path, _| {
        (path == "retrieve_future").then(|| {
            count.fetch_add(1, Ordering::SeqCst);
            (408, json!({"detail": "Timeout waiting for result"}).to_string())
        })
    });
    let e = trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap_err().to_string();
    assert!(e.contains("forward: 408") && e.contains("waited 2 s"), "{e}");
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked < 12, "asked {asked} times");
    let lines = lines.lock().unwrap();
    assert!((1..=3).contains(&lines.len()), "{lines:?}");
    assert!(lines[0].contains(&double.url()) && lines[0].contains("has not finished forward after"), "{lines:?}");
    assert!(lines[0].contains("waiting for up to 2 s"), "{lines:?}");
    drop(lines);
    double.override_responses(|_, _| None);
}

#[test]
fn a_result_that_fails_tells_what_failed_first() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
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
fn a_checkpoint_that_is_begun_and_never_finished_is_saved_under_another_name() {
    let runtime = runtime();
    // With a model that is there, and with one that went with the server which had begun.
    for lost in [false, true] {
        let double = runtime.block_on(Double::start(None));
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
            double.world.lock().unwrap().forget_models();
        }
        trainer.publish(&AdapterName::default()).unwrap();
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        let said = |words: &str| lines.iter().filter(|l| l.contains(words)).count();
        assert_eq!(said("saving under another name"), 1, "{lines:?}");
        assert_eq!(said("lost the model"), usize::from(lost), "{lines:?}");
        assert_eq!(double.world.lock().unwrap().saved.keys().filter(|p| p.contains("/weights/")).count(), 1);
    }
}

#[test]
fn a_checkpoint_that_takes_longer_than_an_attempt_is_waited_for_as_long_as_a_server_is() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    // Its answer is lost, and it is listed long after that; no other name is taken meanwhile.
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
    trainer.publish(&AdapterName::default()).unwrap();
    let saved = double.world.lock().unwrap().saved.clone();
    let kept: Vec<&String> = saved.keys().filter(|place| place.contains("/weights/")).collect();
    let first = names.lock().unwrap().first().cloned().unwrap();
    assert!(kept.len() == 1 && kept[0].ends_with(&format!("/weights/{first}")), "{kept:?}, and {first} was first");
    let lines = lines.lock().unwrap();
    assert_eq!(lines.iter().filter(|l| l.contains("saving under another name")).count(), 1, "{lines:?}");
}

#[test]
fn a_server_that_says_of_every_name_that_it_exists_is_not_asked_for_ever() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
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
    let e = trainer.publish(&AdapterName::default()).unwrap_err().to_string();
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
fn an_adapter_that_comes_slowly_is_fetched_once() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let counted = |faults: Vec<Fault>| {
        let proxy = runtime.block_on(Proxy::start(double.address, faults));
        let (mut settings, lines) = uncalibrated(&format!("http://{}", proxy.address), dir.path());
        settings.server.timeouts.attempt = Duration::from_millis(500);
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        script::train_three_steps(&mut trainer);
        trainer.publish(&AdapterName::default()).unwrap();
        trainer.save(&dir.path().join("checkpoint")).unwrap();
        let requests = proxy.requests.load(Ordering::SeqCst);
        (requests, lines)
    };
    let (requests, _) = counted(Vec::new());
    // The download is the last but one, before its weights are removed.
    let slow = |fault: Fault| (0..requests - 2).map(|_| Fault::Pass).chain([fault]).collect::<Vec<_>>();
    let (again, _) = counted(slow(Fault::Parts(8, Duration::from_millis(100))));
    assert_eq!(again, requests, "each part comes in time; the whole takes longer than one attempt");
    // One that breaks off is asked for again.
    let (again, _) = counted(slow(Fault::HalfBody));
    assert_eq!(again, requests + 1);
}

#[test]
fn a_download_that_comes_to_nothing_says_what_happened() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let count = |faults: Vec<Fault>| {
        let proxy = runtime.block_on(Proxy::start(double.address, faults));
        let (mut settings, _) = uncalibrated(&format!("http://{}", proxy.address), dir.path());
        settings.server.timeouts.outage = Duration::from_millis(300);
        let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
        script::train_three_steps(&mut trainer);
        trainer.publish(&AdapterName::default()).unwrap();
        let before = proxy.requests.load(Ordering::SeqCst);
        (before, trainer.save(&dir.path().join("checkpoint")).err().map(|e| e.to_string()))
    };
    let (before, fine) = count(Vec::new());
    assert_eq!(fine, None);
    // Weights are saved and waited for, then they are fetched.
    let broken = (0..before + 2).map(|_| Fault::Pass).chain((0..20).map(|_| Fault::HalfBody));
    let e = count(broken.collect()).1.unwrap();
    assert!(e.contains("downloading an adapter: the response ended after ") && e.contains(" bytes: "), "{e}");
}

#[test]
fn a_kept_state_that_is_gone_is_not_taken_for_a_server_that_forgets() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let (settings, lines) = uncalibrated(&double.url(), dir.path());
    let checkpoint = dir.path().join("checkpoint");
    let mut trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
    script::train_three_steps(&mut trainer);
    trainer.publish(&AdapterName::default()).unwrap();
    trainer.save(&checkpoint).unwrap();
    drop(trainer);
    // As an answer to the request, and as the result it comes to, in SkyRL's words.
    double.world.lock().unwrap().saved.clear();
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
    assert_eq!(made.load(Ordering::SeqCst), 2, "one model each: not tried again");
    assert!(lines.lock().unwrap().is_empty(), "{lines:?}");
}

#[test]
fn a_step_that_was_taken_back_is_not_said_to_be_a_lost_model() {
    let runtime = runtime();
    // The first step is taken by two models.
    let double = runtime.block_on(Double::start(Some(Misbehaviour::NullNorm(3))));
    let dir = tempfile::tempdir().unwrap();
    let (settings, lines) = uncalibrated(&double.url(), dir.path());
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::CrossEntropy)).unwrap();
    assert!(trainer.optim_step(&script::step()).unwrap().skipped.is_none());
    trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap();
    assert!(trainer.optim_step(&script::step()).unwrap().skipped.is_some());
    let lines = lines.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].contains("took a step although the gradient's norm was NaN"), "{lines:?}");
    assert!(!lines[0].contains("no longer has"), "{lines:?}");
}

#[test]
fn a_server_that_asks_to_be_left_alone_is_not_waited_for_in_silence() {
    let runtime = runtime();
    for (status, path, line) in [
        (429, "client/config", "is overloaded and requests a retry after 2 s"),
        (503, "optim_step", "is unavailable and requests a retry after 2 s"),
        (500, "retrieve_future", "returns errors and requests a retry after 2 s"),
        (408, "retrieve_future", "has not finished"),
    ] {
        let double = runtime.block_on(Double::start(None));
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
fn an_answer_that_is_none_is_asked_for_again() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let page = Fault::reply(200, "<html>back in a moment</html>");
    let proxy = runtime.block_on(Proxy::start_before(double.address, "optim_step", vec![page.clone(); 2]));
    let mut trainer = TinkerTrainer::connect(uncalibrated(&proxy.url(), dir.path()).0, None).unwrap();
    script::train_three_steps(&mut trainer);
    let proxy = runtime.block_on(Proxy::start_before(double.address, "client/config", vec![page; 100]));
    let e = TinkerTrainer::connect(uncalibrated(&proxy.url(), dir.path()).0, None).err().unwrap().to_string();
    assert!(e.contains("invalid response to client/config, 3 times") && e.contains("back in a moment"), "{e}");
}
