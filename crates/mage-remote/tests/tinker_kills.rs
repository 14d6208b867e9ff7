//! A trainer killed at any request: a resume from the newest checkpoint gives identical results.

use crate::common::{
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::TinkerDouble,
    tinker_script as script,
};
use mage_engine::{Loss, Objective, Trainer, WeightsName};
use mage_remote::{StatusLog, TinkerSettings, TinkerTrainer};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, atomic::Ordering},
    time::Duration,
};
use tokio::runtime::Runtime;

/// Loss and norm of each update.
type Results = BTreeMap<usize, (f64, f64)>;

const UPDATES: usize = 4;
/// Updates after which weights are published and a checkpoint is saved; only the newest checkpoint remains.
const CHECKPOINTS: [usize; 2] = [2, 3];

fn checkpoint_dir(run: &Path, update: usize) -> PathBuf {
    run.join(format!("{update:06}"))
}

fn checkpoints(run: &Path) -> Vec<usize> {
    let names = fs::read_dir(run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<usize> = names.filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// Runs from the newest checkpoint to the end or until killed. Checkpoints are written as run directories write them:
/// staged, renamed, then older ones are removed.
fn run_updates(settings: &TinkerSettings, run: &Path, results: &mut Results) -> mage_engine::Result<()> {
    let mut trainer = TinkerTrainer::connect(settings.clone(), None)?;
    let mut done = 0;
    if let Some(newest) = checkpoints(run).last() {
        trainer.load(&checkpoint_dir(run, *newest))?;
        done = *newest;
    }
    let (imitate, ppo) = (Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3)));
    while done < UPDATES {
        let (advantage, loss) = [(1.0, &imitate), (1.0, &ppo), (-1.0, &ppo), (0.5, &ppo)][done];
        let report = trainer.forward_backward(&script::batch(advantage), loss)?;
        let stepped = trainer.optim_step(&script::step())?;
        done += 1;
        assert_eq!(stepped.steps, done as u64);
        results.insert(done, (report.loss, stepped.grad_norm));
        if !CHECKPOINTS.contains(&done) {
            continue;
        }
        trainer.publish(&WeightsName::default())?;
        let staging = run.join(".unfinished");
        let _ = fs::remove_dir_all(&staging);
        trainer.save(&staging)?;
        fs::rename(&staging, checkpoint_dir(run, done)).unwrap();
        for old in checkpoints(run).into_iter().filter(|old| *old < done) {
            trainer.release_checkpoint(&checkpoint_dir(run, old));
            fs::remove_dir_all(checkpoint_dir(run, old)).unwrap();
        }
    }
    Ok(())
}

/// Runs with faults and resumes if killed. Returns results, number of requests and weight history.
fn run_with_faults(runtime: &Runtime, faults: Vec<Fault>) -> (Results, usize, Vec<u64>) {
    let double = runtime.block_on(TinkerDouble::start(None));
    double.state.lock().unwrap().serves_any_archive = true;
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let mut settings = script::settings(&proxy.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    // On a slow machine, only the faults may kill it.
    settings.server.timeouts.attempt = Duration::from_secs(20);
    let mut results = Results::new();
    let died = run_updates(&settings, &run, &mut results).is_err();
    let requests = proxy.requests.load(Ordering::SeqCst);
    if died {
        // Its session has expired, and its slot goes to the next model with its gradient.
        double.state.lock().unwrap().expire_models();
        settings.server.url = double.url();
        run_updates(&settings, &run, &mut results).unwrap_or_else(|e| panic!("killed at request {requests}: {e}"));
    }
    let state = double.state.lock().unwrap();
    let saved_states = state.saved.keys().filter(|path| path.contains("/weights/")).count();
    // The checkpoint's state, and states that the killed run could not delete.
    assert!(saved_states >= 1 && saved_states <= if died { 3 } else { 1 }, "{:?}", state.saved.keys());
    (results, requests, state.last_history.clone())
}

#[test]
fn run_killed_at_any_request_resumes_with_identical_results() {
    let runtime = runtime();
    let (expected, requests, history) = run_with_faults(&runtime, Vec::new());
    assert_eq!(expected.len(), UPDATES);
    // The last request was not received, or its response was lost. After that every request is rejected, which ends a
    // run at once.
    let last = [Fault::Reset, Fault::HalfBody];
    let kills: Vec<(usize, Fault)> = (0..requests).flat_map(|at| last.clone().map(|fault| (at, fault))).collect();
    let next = Mutex::new(kills.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let Some((at, fault)) = next.lock().unwrap().next() else { return };
                    let words = format!("{fault:?} at {at}");
                    let alive = (0..at).map(|_| Fault::Pass).chain([fault]);
                    let dead = (0..100).map(|_| Fault::reply(400, "dead"));
                    let (results, sent, done) = run_with_faults(&runtime, alive.chain(dead).collect());
                    assert!(sent > at, "{words} was not reached: {sent} requests were sent");
                    assert_eq!((&results, &done), (&expected, &history), "{words}");
                }
            });
        }
    });
}
