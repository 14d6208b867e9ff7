//! A trainer that is killed at any request: what goes on from its newest checkpoint ends as if nothing had happened.

mod common;

use common::{
    proxy::{Fault, Proxy},
    runtime,
    tinker_double::Double,
    tinker_script as script,
};
use mage_engine::{AdapterName, Loss, Objective, Trainer};
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
type Numbers = BTreeMap<usize, (f64, f64)>;

const UPDATES: usize = 4;
/// Updates after which weights are published and a checkpoint is made; there is always one only.
const CHECKPOINTS: [usize; 2] = [2, 3];

fn place(run: &Path, update: usize) -> PathBuf {
    run.join(format!("{update:06}"))
}

fn checkpoints(run: &Path) -> Vec<usize> {
    let names = fs::read_dir(run).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<usize> = names.filter_map(|name| name.parse().ok()).collect();
    found.sort_unstable();
    found
}

/// A run from its newest checkpoint to its end, or to its death. Checkpoints are made as run directories make them: written beside,
/// put in place at once, and only then are older ones removed.
fn run_updates(settings: &TinkerSettings, run: &Path, numbers: &mut Numbers) -> mage_engine::Result<()> {
    let mut trainer = TinkerTrainer::connect(settings.clone(), None)?;
    let mut done = 0;
    if let Some(newest) = checkpoints(run).last() {
        trainer.load(&place(run, *newest))?;
        done = *newest;
    }
    let (imitate, ppo) = (Loss::of(Objective::CrossEntropy), Loss::of(Objective::ppo(0.2, 0.3)));
    while done < UPDATES {
        let (advantage, loss) = [(1.0, &imitate), (1.0, &ppo), (-1.0, &ppo), (0.5, &ppo)][done];
        let report = trainer.forward_backward(&script::batch(advantage), loss)?;
        let stepped = trainer.optim_step(&script::step())?;
        done += 1;
        assert_eq!(stepped.steps, done as u64);
        numbers.insert(done, (report.loss, stepped.grad_norm));
        if !CHECKPOINTS.contains(&done) {
            continue;
        }
        trainer.publish(&AdapterName::default())?;
        let staging = run.join(".unfinished");
        let _ = fs::remove_dir_all(&staging);
        trainer.save(&staging)?;
        fs::rename(&staging, place(run, done)).unwrap();
        for old in checkpoints(run).into_iter().filter(|old| *old < done) {
            trainer.release_checkpoint(&place(run, old));
            fs::remove_dir_all(place(run, old)).unwrap();
        }
    }
    Ok(())
}

/// What comes of a run that meets the faults before it is gone on with, how many requests that took, and what was done to the weights.
fn through(runtime: &Runtime, faults: Vec<Fault>) -> (Numbers, usize, Vec<u64>) {
    let double = runtime.block_on(Double::start(None));
    double.world.lock().unwrap().packs_anything = true;
    let proxy = runtime.block_on(Proxy::start(double.address, faults));
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let mut settings = script::settings(&proxy.url(), dir.path(), StatusLog::default());
    settings.calibrate = false;
    // However busy this machine is, it dies of the faults and of nothing else.
    settings.server.timeouts.attempt = Duration::from_secs(20);
    let mut numbers = Numbers::new();
    let died = run_updates(&settings, &run, &mut numbers).is_err();
    let requests = proxy.requests.load(Ordering::SeqCst);
    if died {
        // Its session has expired, and its place is the next one's, with whatever lies there.
        double.world.lock().unwrap().expire_models();
        settings.server.url = double.url();
        run_updates(&settings, &run, &mut numbers).unwrap_or_else(|e| panic!("killed at request {requests}: {e}"));
    }
    let world = double.world.lock().unwrap();
    let kept = world.saved.keys().filter(|path| path.contains("/weights/")).count();
    // The checkpoint's, and what one that was killed could not remove any more.
    assert!(kept >= 1 && kept <= if died { 3 } else { 1 }, "{:?}", world.saved.keys());
    (numbers, requests, world.last_history.clone())
}

#[test]
fn a_run_killed_at_any_request_goes_on_as_if_nothing_had_happened() {
    let runtime = runtime();
    let (whole, requests, history) = through(&runtime, Vec::new());
    assert_eq!(whole.len(), UPDATES);
    // The server did not hear the last request, or did it and nobody heard its answer; after that it is asked in vain, and a
    // refusal ends a run at once.
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
                    let (numbers, asked, done) = through(&runtime, alive.chain(dead).collect());
                    assert!(asked > at, "{words} was never met: it came to {asked} requests");
                    assert_eq!((&numbers, &done), (&whole, &history), "{words}");
                }
            });
        }
    });
}
