//! Checkpoints of a run: there is always a whole one to go on from.

use mage_env::Registry;
use mage_train::{
    recipe::Recipe,
    run_dir::{RunDir, TrainProgress, checkpoint_path, checkpoints},
};
use std::{cell::RefCell, fs, path::Path};

fn begun(path: &Path) -> RunDir {
    let population = Registry::builtin().get("kuhn").unwrap().default_population();
    RunDir::create(path, &Recipe::default(), &population).unwrap()
}

/// Makes a checkpoint of one file; whether anything was written.
fn checkpoint(run: &RunDir, update: u64) -> bool {
    let mut written = false;
    let progress = TrainProgress { update, ..TrainProgress::default() };
    let save = |folder: &Path| {
        written = true;
        fs::write(folder.join("weights"), format!("of {update}")).unwrap();
        Ok(())
    };
    run.checkpoint(&progress, save).unwrap();
    written
}

#[test]
fn a_checkpoint_that_is_whole_is_not_put_at_risk_for_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let run = begun(&dir.path().join("run"));
    assert!(checkpoint(&run, 2));
    assert!(!checkpoint(&run, 2), "it stays");
    assert!(checkpoint(&run, 3));
    // One that is damaged is no loss.
    fs::write(run.path().join(checkpoint_path(3)).join("weights"), "something else").unwrap();
    assert!(checkpoint(&run, 3) && run.is_at(3));
}

#[test]
fn a_checkpoint_goes_only_once_a_newer_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let run = begun(&dir.path().join("run"));
    for update in 0..=3 {
        checkpoint(&run, update);
        let heard = RefCell::new(Vec::new());
        let told = |going: &Path| {
            assert!(going.join("weights").exists() && run.is_at(update));
            heard.borrow_mut().push(going.to_owned());
        };
        run.prune(1, Some(1), told).unwrap();
        let gone: Vec<_> =
            [0, 2].into_iter().filter(|old| old + 1 == update).map(|u| run.path().join(checkpoint_path(u))).collect();
        assert_eq!(*heard.borrow(), gone, "whoever keeps something for it elsewhere hears of it first");
    }
    assert_eq!(checkpoints(run.path()).unwrap(), [1, 3], "the best and the newest");
}

#[test]
fn an_attempt_that_was_refused_before_it_said_anything_leaves_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    drop(begun(&path));
    for said in ["first", "second"] {
        drop(RunDir::open(&path).unwrap());
        RunDir::open(&path).unwrap().log(said);
    }
    let logs = fs::read_dir(path.join("logs")).unwrap().count();
    let log = |n: u32| fs::read_to_string(path.join(format!("logs/attempt-{n}.log"))).unwrap();
    assert_eq!((logs, log(1), log(2)), (2, "first\n".to_owned(), "second\n".to_owned()));
}
