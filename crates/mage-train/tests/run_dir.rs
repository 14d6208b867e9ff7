//! Checkpoints of a run: at any time there is a complete one to resume from.

use mage_env::Registry;
use mage_train::{
    recipe::Recipe,
    run_dir::{RunDir, TrainProgress, checkpoint_path, checkpoints},
};
use std::{cell::RefCell, fs, path::Path};

fn new_run(path: &Path) -> RunDir {
    let population = Registry::builtin().get("kuhn").unwrap().default_population();
    RunDir::create(path, &Recipe::default(), &population).unwrap()
}

/// Writes a checkpoint of one file; whether anything was written.
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
fn a_complete_checkpoint_is_not_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(&dir.path().join("run"));
    assert!(checkpoint(&run, 2));
    assert!(!checkpoint(&run, 2), "the checkpoint is kept");
    assert!(checkpoint(&run, 3));
    // A damaged one is replaced.
    fs::write(run.path().join(checkpoint_path(3)).join("weights"), "something else").unwrap();
    assert!(checkpoint(&run, 3) && run.is_at(3));
}

#[test]
fn a_checkpoint_is_removed_only_after_a_newer_one_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let run = new_run(&dir.path().join("run"));
    for update in 0..=3 {
        checkpoint(&run, update);
        let removed = RefCell::new(Vec::new());
        let on_remove = |path: &Path| {
            assert!(path.join("weights").exists() && run.is_at(update));
            removed.borrow_mut().push(path.to_owned());
        };
        run.prune(1, Some(1), on_remove).unwrap();
        let expected: Vec<_> =
            [0, 2].into_iter().filter(|old| old + 1 == update).map(|u| run.path().join(checkpoint_path(u))).collect();
        assert_eq!(*removed.borrow(), expected, "the callback precedes the removal");
    }
    assert_eq!(checkpoints(run.path()).unwrap(), [1, 3], "the best and the newest");
}

#[test]
fn an_attempt_without_log_output_leaves_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    drop(new_run(&path));
    for line in ["first", "second"] {
        drop(RunDir::open(&path).unwrap());
        RunDir::open(&path).unwrap().log(line);
    }
    let logs = fs::read_dir(path.join("logs")).unwrap().count();
    let log = |n: u32| fs::read_to_string(path.join(format!("logs/attempt-{n}.log"))).unwrap();
    assert_eq!((logs, log(1), log(2)), (2, "first\n".to_owned(), "second\n".to_owned()));
}
