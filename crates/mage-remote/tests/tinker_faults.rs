//! Training through a network that breaks, against a double of the protocol that was recorded from a real server.

mod common;

use common::{
    capture_log,
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::{Double, Misbehaviour},
    tinker_script::{self as script, ScriptResult},
};
use mage_engine::{AdapterName, Loss, Objective, Sampler, Trainer, WeightVersion};
use mage_remote::{StatusLog, TinkerTrainer};
use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};
use tokio::runtime::Runtime;

/// The script with the faults before the double; what came, how many requests there were, and what was done to the weights.
fn through(
    runtime: &Runtime,
    misbehaviour: Option<Misbehaviour>,
    faults: Vec<Fault>,
) -> (mage_engine::Result<ScriptResult>, usize, Vec<u64>, Vec<String>) {
    let double = runtime.block_on(Double::start(misbehaviour));
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let (notices, said) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let settings = script::settings(&format!("http://{}", proxy.address), dir.path(), notices);
    let came = script::run_script(&settings, dir.path());
    let history = double.world.lock().unwrap().last_history.clone();
    let said = said.lock().unwrap().clone();
    (came, proxy.requests.load(Ordering::SeqCst), history, said)
}

#[test]
fn nothing_is_lost_and_nothing_is_doubled_wherever_the_network_breaks() {
    let runtime = runtime();
    let (whole, requests, history, said) = through(&runtime, None, Vec::new());
    let whole = whole.unwrap();
    assert!(whole.steps == 4 && said.is_empty(), "{whole:?} {said:?}");
    // Each request meets each fault in some run; runs are mostly pauses, so that many go at once.
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
                    let (came, _, done, _) = through(&runtime, None, faults);
                    match came {
                        Ok(came) if came == whole && done == history => {}
                        Ok(came) => wrong.lock().unwrap().push(format!("{fault:?} at {at}: {came:?}")),
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
fn a_server_that_forgets_is_fed_and_nothing_is_trained_twice() {
    let runtime = runtime();
    let (whole, _, history, _) = through(&runtime, None, Vec::new());
    let whole = whole.unwrap();
    // Calibration computes ten things, on a model of its own; then come gradients and steps by turns.
    for after in 0..=19 {
        let (came, _, done, said) = through(&runtime, Some(Misbehaviour::ForgetsAfter(after)), Vec::new());
        let came = came.unwrap_or_else(|e| panic!("forgets after {after}: {e}"));
        assert_eq!((&came, &done), (&whole, &history), "forgets after {after}: {said:?}");
    }
    let (_, _, _, said) = through(&runtime, Some(Misbehaviour::ForgetsAfter(15)), Vec::new());
    assert!(said.iter().any(|l| l.contains("lost the model") && l.contains("requests")), "{said:?}");
}

#[test]
fn a_gradient_that_somebody_left_is_in_no_step_wherever_its_place_comes_free() {
    let runtime = runtime();
    let (whole, _, history, _) = through(&runtime, None, Vec::new());
    let whole = whole.unwrap();
    // The calibration's, which discards it; the trainer's, and the one that takes its first step once more; the resumed one's, the
    // one that the checkpoint is put into, and again the one that takes its first step once more.
    for at in 1..=6 {
        let (came, _, done, said) = through(&runtime, Some(Misbehaviour::LeavesGradient(at)), Vec::new());
        let came = came.unwrap_or_else(|e| panic!("left to model {at}: {e}"));
        assert_eq!((&came, &done), (&whole, &history), "left to model {at}: {said:?}");
        let told = said.iter().filter(|l| l.contains("left its gradient behind")).count();
        assert_eq!(told > 0, at > 1, "left to model {at}: {said:?}");
    }
}

#[test]
fn a_server_lost_at_any_sample_is_fed() {
    let runtime = runtime();
    let (whole, _, history, _) = through(&runtime, None, Vec::new());
    let whole = whole.unwrap();
    // Two publications and a resumption are each looked at by a sample, and one is asked for.
    for at in 0..4 {
        let (came, _, done, said) = through(&runtime, Some(Misbehaviour::ForgetsAtSample(at)), Vec::new());
        let came = came.unwrap_or_else(|e| panic!("forgets at sample {at}: {e}"));
        assert_eq!((&came, &done), (&whole, &history), "forgets at sample {at}: {said:?}");
        assert!(said.len() == 1 && said[0].contains("lost the model"), "{said:?}");
    }
}

/// A trainer of two steps whose weights are published, without the calibration.
fn published(double: &Double, dir: &std::path::Path, notices: StatusLog) -> TinkerTrainer {
    let mut settings = script::settings(&double.url(), dir, notices);
    settings.calibrate = false;
    let mut trainer = TinkerTrainer::connect(settings, None).unwrap();
    for loss in [Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3))] {
        trainer.forward_backward(&script::batch(1.0), &loss).unwrap();
        trainer.optim_step(&script::step()).unwrap();
    }
    trainer.publish(&AdapterName::default()).unwrap();
    trainer
}

#[test]
fn many_who_sample_from_a_lost_server_have_it_fed_once() {
    let runtime = runtime();
    let whole = through(&runtime, None, Vec::new()).0.unwrap();
    let double = runtime.block_on(Double::start(None));
    let (notices, said) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = published(&double, dir.path(), notices);
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
                assert_eq!((sample.tokens, sample.weights.version), (whole.sampled.clone(), WeightVersion(0)));
            }
        });
    };
    let computed = || double.world.lock().unwrap().computed;
    sample_many();
    let before = computed();
    double.world.lock().unwrap().forget_models();
    sample_many();
    let lines = std::mem::take(&mut *said.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("lost the model"), "{lines:?}");
    assert_eq!(computed(), before, "one feeding, from the kept state");
    // The model is still there, and only the way to sample from it is lost.
    double.world.lock().unwrap().forget_sessions();
    sample_many();
    let lines = std::mem::take(&mut *said.lock().unwrap());
    assert!(lines.len() == 1 && lines[0].contains("lost policy@0 for sampling"), "{lines:?}");
    assert_eq!(computed(), before, "nothing is trained again");
    // Training goes on as if nothing had been.
    let report = trainer.forward_backward(&script::batch(-1.0), &Loss::of(Objective::ppo(0.2, 0.3))).unwrap();
    let stepped = trainer.optim_step(&script::step()).unwrap();
    assert_eq!((report.loss, stepped.grad_norm, stepped.steps), (whole.losses[2], whole.norms[2], 3));
}

#[test]
fn a_sample_that_cannot_be_read_is_asked_for_again() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
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
fn a_sampler_that_outlives_its_trainer_says_so() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let trainer = published(&double, dir.path(), StatusLog::default());
    let sampler = trainer.sampler().unwrap();
    drop(trainer);
    let e = runtime.block_on(sampler.sample(script::request())).unwrap_err().to_string();
    assert!(e.contains("not loaded") && e.contains("its trainer has been dropped"), "{e}");
}

#[test]
fn other_weights_than_were_published_are_refused() {
    let e = through(&runtime(), Some(Misbehaviour::StaleSampler), Vec::new()).0.unwrap_err().to_string();
    assert!(e.contains("it does not have policy@") && e.contains("log-probs of the fingerprint sequence"), "{e}");
}

#[test]
fn a_sequence_number_used_by_somebody_else_is_final() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
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
fn what_happened_first_is_said_and_waiting_has_an_end() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let first = Fault::reply(503, "{\"detail\": \"the engine fell over\"}");
    let faults = [first].into_iter().chain((0..500).map(|_| Fault::Reset));
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let (notices, said) = capture_log();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&format!("http://{}", proxy.address), dir.path(), notices);
    settings.server.timeouts.outage = Duration::from_millis(1500);
    let e = TinkerTrainer::connect(settings, None).err().unwrap().to_string();
    assert!(e.contains("the engine fell over; last: ") && e.contains("waited 2 s"), "{e}");
    let said = said.lock().unwrap();
    assert!(
        said.len() == 1 && said[0].contains("is unreachable") && said[0].contains("retrying for up to"),
        "{said:?}"
    );
}

#[test]
fn the_server_keeps_what_somebody_may_ask_for_and_no_more() {
    let runtime = runtime();
    let double = runtime.block_on(Double::start(None));
    let dir = tempfile::tempdir().unwrap();
    let mut settings = script::settings(&double.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    let kept = |kind: &str| {
        let world = double.world.lock().unwrap();
        world.saved.keys().filter(|place| place.contains(&format!("/{kind}/"))).count()
    };
    let mut trainer = TinkerTrainer::connect(settings.clone(), None).unwrap();
    let policy = AdapterName::default();
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
    assert_eq!((kept("weights"), kept("sampler_weights")), (1, 1), "the newest of each");
    let (first, second) = (dir.path().join("run/first"), dir.path().join("run/second"));
    trainer.save(&first).unwrap();
    // Nothing happened in between: both stand for one state, which goes with the last of them.
    trainer.save(&second).unwrap();
    assert_eq!(kept("weights"), 1);
    learn(&mut trainer, 0.5, &ppo);
    trainer.release_checkpoint(&first);
    std::fs::remove_dir_all(&first).unwrap();
    assert_eq!(kept("weights"), 1);
    drop(trainer);
    assert_eq!((kept("weights"), kept("sampler_weights")), (1, 0), "a checkpoint relies on the one");
    let mut resumed = TinkerTrainer::connect(settings.clone(), None).unwrap();
    resumed.load(&second).unwrap();
    resumed.release_checkpoint(&second);
    drop(resumed);
    assert_eq!((kept("weights"), kept("sampler_weights")), (0, 0));
}
