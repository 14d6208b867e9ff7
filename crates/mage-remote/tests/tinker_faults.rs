//! Training over an unreliable network, against a test double with recorded responses of a real server.

use crate::common::{
    capture_log,
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::{Misbehaviour, TinkerDouble},
    tinker_script::{self as script, ScriptResult},
};
use mage_engine::{Loss, Objective, Sampler, Trainer, WeightVersion, WeightsName};
use mage_remote::{StatusLog, TinkerTrainer};
use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};
use tokio::runtime::Runtime;

/// Runs the script behind a proxy with faults. Returns the result, the number of requests, the weight history and the
/// log.
fn run_with_faults(
    runtime: &Runtime,
    misbehaviour: Option<Misbehaviour>,
    faults: Vec<Fault>,
) -> (mage_engine::Result<ScriptResult>, usize, Vec<u64>, Vec<String>) {
    let double = runtime.block_on(TinkerDouble::start(misbehaviour));
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let (status_log, log_lines) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let settings = script::settings(&format!("http://{}", proxy.address), dir.path(), status_log);
    let result = script::run_script(&settings, dir.path());
    let history = double.state.lock().unwrap().last_history.clone();
    let log_lines = log_lines.lock().unwrap().clone();
    (result, proxy.requests.load(Ordering::SeqCst), history, log_lines)
}

#[test]
fn every_request_survives_every_network_fault_exactly_once() {
    let runtime = runtime();
    let (expected, requests, history, log_lines) = run_with_faults(&runtime, None, Vec::new());
    let expected = expected.unwrap();
    assert!(expected.steps == 4 && log_lines.is_empty(), "{expected:?} {log_lines:?}");
    // Every request meets every fault in some run. Runs mostly wait, so many run concurrently.
    let faults = [
        Fault::Reset,
        Fault::reply(500, "oops"),
        Fault::reply(503, "<html>busy</html>"),
        Fault::reply(408, "{\"detail\": \"Timeout waiting for result\"}"),
        Fault::reply(425, "{\"detail\": \"Checkpoint is still being created\"}"),
        Fault::HalfBody,
        Fault::Hang,
    ];
    let runs: Vec<Vec<Fault>> = (0..requests)
        .flat_map(|at| faults.iter().map(move |fault| (at, fault.clone())))
        .map(|(at, fault)| (0..at).map(|_| Fault::Pass).chain([fault]).collect())
        .collect();
    let (next, wrong) = (Mutex::new(runs.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..24 {
            scope.spawn(|| {
                loop {
                    let Some(faults) = next.lock().unwrap().next() else { return };
                    let (at, fault) = (faults.len() - 1, faults.last().cloned());
                    let (result, _, done, _) = run_with_faults(&runtime, None, faults);
                    match result {
                        Ok(result) if result == expected && done == history => {}
                        Ok(result) => wrong.lock().unwrap().push(format!("{fault:?} at {at}: {result:?}")),
                        Err(e) => wrong.lock().unwrap().push(format!("{fault:?} at {at}: {e}")),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} runs:\n{}", wrong.len(), requests * faults.len(), wrong.join("\n"));
}

#[test]
fn lost_model_is_restored_without_repeating_steps() {
    let runtime = runtime();
    let (expected, _, history, _) = run_with_faults(&runtime, None, Vec::new());
    let expected = expected.unwrap();
    // Calibration has ten computations on its own model; then gradients and steps alternate.
    for after in 0..=19 {
        let (result, _, done, log_lines) =
            run_with_faults(&runtime, Some(Misbehaviour::ForgetsAfter(after)), Vec::new());
        let result = result.unwrap_or_else(|e| panic!("forgets after {after}: {e}"));
        assert_eq!((&result, &done), (&expected, &history), "forgets after {after}: {log_lines:?}");
    }
    let (_, _, _, log_lines) = run_with_faults(&runtime, Some(Misbehaviour::ForgetsAfter(15)), Vec::new());
    assert!(log_lines.iter().any(|l| l.contains("lost the model") && l.contains("requests")), "{log_lines:?}");
}

#[test]
fn stale_gradient_of_another_run_enters_no_step() {
    let runtime = runtime();
    let (expected, _, history, _) = run_with_faults(&runtime, None, Vec::new());
    let expected = expected.unwrap();
    // Models in order: the calibration's, which discards the gradient; the trainer's and the one that repeats its first
    // step; the resumed one's, the one that loads the checkpoint, and the one that repeats the first step.
    for at in 1..=6 {
        let (result, _, done, log_lines) =
            run_with_faults(&runtime, Some(Misbehaviour::LeavesGradient(at)), Vec::new());
        let result = result.unwrap_or_else(|e| panic!("left to model {at}: {e}"));
        assert_eq!((&result, &done), (&expected, &history), "left to model {at}: {log_lines:?}");
        let reports = log_lines.iter().filter(|l| l.contains("left its gradient behind")).count();
        assert_eq!(reports > 0, at > 1, "left to model {at}: {log_lines:?}");
    }
}

#[test]
fn model_lost_at_any_sample_is_restored() {
    let runtime = runtime();
    let (expected, _, history, _) = run_with_faults(&runtime, None, Vec::new());
    let expected = expected.unwrap();
    // Two publishes and a resume each sample a fingerprint, and one completion is sampled.
    for at in 0..4 {
        let (result, _, done, log_lines) =
            run_with_faults(&runtime, Some(Misbehaviour::ForgetsAtSample(at)), Vec::new());
        let result = result.unwrap_or_else(|e| panic!("forgets at sample {at}: {e}"));
        assert_eq!((&result, &done), (&expected, &history), "forgets at sample {at}: {log_lines:?}");
        assert!(log_lines.len() == 1 && log_lines[0].contains("lost the model"), "{log_lines:?}");
    }
}

/// A trainer after two steps with published weights, without calibration.
fn published(double: &TinkerDouble, dir: &std::path::Path, status_log: StatusLog) -> TinkerTrainer {
    let mut settings = script::settings(&double.url(), dir, status_log);
    settings.calibrate = false;
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    for loss in [Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3))] {
        trainer.forward_backward(&script::batch(1.0), &loss).unwrap();
        trainer.optim_step(&script::step()).unwrap();
    }
    trainer.publish(&WeightsName::default()).unwrap();
    trainer
}

#[test]
fn concurrent_samples_restore_a_lost_model_once() {
    let runtime = runtime();
    let expected = run_with_faults(&runtime, None, Vec::new()).0.unwrap();
    let double = runtime.block_on(TinkerDouble::start(None));
    let (status_log, log_lines) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = published(&double, dir.path(), status_log);
    let sampler = Arc::new(trainer.sampler().unwrap());
    let sample_many = || {
        runtime.block_on(async {
            let all: Vec<_> = (0..24)
                .map(|_| {
                    let sampler = Arc::clone(&sampler);
                    tokio::spawn(async move { sampler.sample(script::request()).await.unwrap() })
                })
                .collect();
            for one in all {
                let sample = one.await.unwrap();
                assert_eq!((sample.tokens, sample.weights.version), (expected.sampled.clone(), WeightVersion(0)));
            }
        });
    };
    let computed = || double.state.lock().unwrap().computed;
    sample_many();
    let before = computed();
    double.state.lock().unwrap().forget_models();
    sample_many();
    let lines = std::mem::take(&mut *log_lines.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("lost the model"), "{lines:?}");
    assert_eq!(computed(), before, "one restore from the saved state");
    // The model still exists; only its sampling session is lost.
    double.state.lock().unwrap().forget_sessions();
    sample_many();
    let lines = std::mem::take(&mut *log_lines.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("lost policy@0 for sampling"), "{lines:?}");
    assert_eq!(computed(), before, "no training is repeated");
    // Training continues with identical results.
    let report = trainer.forward_backward(&script::batch(-1.0), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap();
    let stepped = trainer.optim_step(&script::step()).unwrap();
    assert_eq!((report.loss, stepped.grad_norm, stepped.steps), (expected.losses[2], expected.norms[2], 3));
}

#[test]
fn invalid_sample_responses_are_retried() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let trainer = published(&double, dir.path(), StatusLog::default());
    let sampler = trainer.sampler().unwrap();
    for times in [1, 99] {
        let mut left = times;
        double.override_responses(move |path, _| {
            let mine = path == "retrieve_future" && left > 0;
            left -= i32::from(mine);
            mine.then(|| (200, String::new()))
        });
        let sampled = runtime.block_on(sampler.sample(script::request()));
        let e = sampled.err().map_or_else(String::new, |e| e.to_string());
        assert_eq!(times == 1, e.is_empty(), "{e}");
        assert!(times == 1 || e.contains("invalid response, 3 times: the response has no sequences"), "{e}");
    }
}

#[test]
fn sampler_without_its_trainer_reports_it() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let trainer = published(&double, dir.path(), StatusLog::default());
    let sampler = trainer.sampler().unwrap();
    drop(trainer);
    let e = runtime.block_on(sampler.sample(script::request())).unwrap_err().to_string();
    assert!(e.contains("not loaded") && e.contains("its trainer has been dropped"), "{e}");
}

#[test]
fn sampling_from_wrong_weights_is_rejected() {
    let e = run_with_faults(&runtime(), Some(Misbehaviour::StaleSampler), Vec::new()).0.unwrap_err().to_string();
    assert!(e.contains("it does not have policy@") && e.contains("log-probs of the fingerprint sequence"), "{e}");
}

#[test]
fn sequence_number_conflict_is_permanent() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let conflict = Fault::reply(409, "{\"detail\": \"Training request sequence number was reused\"}");
    let dir = tempfile::tempdir().unwrap();
    let connect = |faults: Vec<Fault>| {
        let proxy = runtime.block_on(Proxy::start(double.address, faults));
        let mut settings = script::settings(&format!("http://{}", proxy.address), dir.path(), StatusLog::default());
        settings.calibrate = false;
        let trainer = TinkerTrainer::connect(settings, None).unwrap();
        (proxy, trainer)
    };
    let (proxy, _trainer) = connect(Vec::new());
    let before = proxy.requests.load(Ordering::SeqCst);
    let (_proxy, mut trainer) = connect((0..before).map(|_| Fault::Pass).chain([conflict]).collect());
    let e = trainer.forward_backward(&script::batch(1.0), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap_err().to_string();
    assert!(e.contains("forward_backward: ") && e.contains("reused") && e.contains("another process trains"), "{e}");
}

#[test]
fn error_states_the_first_failure_after_the_outage_timeout() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let first = Fault::reply(503, "{\"detail\": \"the engine fell over\"}");
    let faults = [first].into_iter().chain((0..500).map(|_| Fault::Reset));
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let (status_log, log_lines) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&format!("http://{}", proxy.address), dir.path(), status_log);
    settings.server.timeouts.outage = Duration::from_millis(1500);
    let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
    assert!(e.contains("the engine fell over; last: ") && e.contains("waited 2 s"), "{e}");
    let log_lines = log_lines.lock().unwrap();
    assert!(
        log_lines.len() == 1 && log_lines[0].contains("is unreachable") && log_lines[0].contains("retrying for up to"),
        "{log_lines:?}"
    );
}

#[test]
fn unreferenced_server_state_is_deleted() {
    let runtime = runtime();
    let double = runtime.block_on(TinkerDouble::start(None));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&double.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    let num_saved = |kind: &str| {
        let state = double.state.lock().unwrap();
        state.saved.keys().filter(|path| path.contains(&format!("/{kind}/"))).count()
    };
    let mut trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
    let policy = WeightsName::default();
    let learn = |trainer: &mut TinkerTrainer, advantage: f32, loss: &Loss| {
        trainer.forward_backward(&script::batch(advantage), loss).unwrap();
        trainer.optim_step(&script::step()).unwrap();
    };
    let (imitate, ppo) = (Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3)));
    learn(&mut trainer, 1.0, &imitate);
    learn(&mut trainer, 1.0, &ppo);
    trainer.publish(&policy).unwrap();
    learn(&mut trainer, -1.0, &ppo);
    trainer.publish(&policy).unwrap();
    assert_eq!((num_saved("weights"), num_saved("sampler_weights")), (1, 1), "only the newest of each");
    let (first, second) = (dir.path().join("run/first"), dir.path().join("run/second"));
    trainer.save(&first).unwrap();
    // No step in between: both checkpoints refer to one state, which is deleted with the last of them.
    trainer.save(&second).unwrap();
    assert_eq!(num_saved("weights"), 1);
    learn(&mut trainer, 0.5, &ppo);
    trainer.release_checkpoint(&first);
    std::fs::remove_dir_all(&first).unwrap();
    assert_eq!(num_saved("weights"), 1);
    drop(trainer);
    assert_eq!((num_saved("weights"), num_saved("sampler_weights")), (1, 0), "a checkpoint refers to the state");
    let mut resumed = TinkerTrainer::connect(settings.clone(), None).unwrap();
    resumed.load(&second).unwrap();
    resumed.release_checkpoint(&second);
    drop(resumed);
    assert_eq!((num_saved("weights"), num_saved("sampler_weights")), (0, 0));
}
