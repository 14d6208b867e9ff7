//! The recipe of a run directory is that of its training: concurrent starts, changed and damaged files.

use crate::{common::command, train::SMALL};
use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

fn train(dir: &Path, more: &[&str]) -> Command {
    let mut command = command();
    command.arg("train").current_dir(dir).args(SMALL.iter().flat_map(|setting| ["--set", setting]));
    command.args(["--set", "optim.updates=2"]).args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn resume(run: &Path, more: &[&str]) -> Output {
    command().args(["train", "--resume", run.to_str().unwrap()]).args(more).output().unwrap()
}

/// The seed in the recipe of a run and in its `run.json`.
fn seeds(run: &Path) -> (i64, u64) {
    let recipe: toml::Table = fs::read_to_string(run.join("recipe.resolved.toml")).unwrap().parse().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&fs::read(run.join("run.json")).unwrap()).unwrap();
    (recipe["seed"].as_integer().unwrap(), info["seed"].as_u64().unwrap())
}

#[test]
fn eight_trainings_started_at_once_give_eight_runs_with_their_own_recipes() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> =
        (0..8).map(|seed: u32| train(dir.path(), &["--seed", &seed.to_string()]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(dir.path().join("runs")).unwrap() {
        let run = entry.unwrap().path();
        let (in_recipe, in_info) = seeds(&run);
        assert_eq!(u64::try_from(in_recipe).unwrap(), in_info, "{}", run.display());
        assert!(run.join("result.json").exists(), "{}", run.display());
        all.insert(in_info);
    }
    assert_eq!(all, (0..8).collect());
}

#[test]
fn of_two_trainings_in_one_directory_one_runs_and_the_other_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let children = ["3", "4"].map(|seed| train(dir.path(), &["--seed", seed, "--out", "run"]).spawn().unwrap());
    let [first, second] = children.map(|child| child.wait_with_output().unwrap());
    assert_ne!(first.status.success(), second.status.success());
    let (winner, loser) = if first.status.success() { (3, second) } else { (4, first) };
    let error = String::from_utf8(loser.stderr).unwrap();
    assert!(error.contains("is not empty") || error.contains("is locked by another process"), "{error}");
    assert_eq!(seeds(&dir.path().join("run")), (winner as i64, winner));
}

#[test]
fn a_run_whose_recipe_or_population_was_changed_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    assert!(train(dir.path(), &["--out", "run"]).output().unwrap().status.success());
    let (recipe, population) = (run.join("recipe.resolved.toml"), run.join("population.toml"));
    let [original, original_population] = [&recipe, &population].map(|f| fs::read_to_string(f).unwrap());
    let cut = original.split_inclusive("[eval]").next().unwrap().replace("[eval]", "");
    let cases = [
        (String::new(), "is missing"),
        (cut, "is missing"),
        (original.replacen("seed = 0", "seed = 7", 1), "changed after the last checkpoint"),
    ];
    for (text, expected) in cases {
        fs::write(&recipe, text).unwrap();
        let output = resume(&run, &[]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{error}");
    }
    fs::write(&recipe, &original).unwrap();
    let weights = original_population.replacen("weight = 0.3", "weight = 0.2", 1);
    assert_ne!(weights, original_population);
    fs::write(&population, weights).unwrap();
    let error = String::from_utf8(resume(&run, &[]).stderr).unwrap();
    assert!(error.contains("the population's file"), "{error}");
    fs::write(&population, original_population).unwrap();
    assert!(resume(&run, &[]).status.success());
}

#[test]
fn a_forced_change_is_kept_when_the_process_is_killed_before_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    assert!(train(dir.path(), &["--out", "run"]).output().unwrap().status.success());
    let info = || fs::read(run.join("run.json")).unwrap();
    let before = info();
    let mut forced = command();
    forced.args(["train", "--resume", run.to_str().unwrap(), "--force", "--set", "optim.updates=40"]);
    forced
        .args(["--set", "checkpoint.every=5000", "--set", "eval.every=0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = forced.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while info() == before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_ne!(info(), before);
    // The accepted recipe is that of the run: it needs no second `--force`.
    let output = resume(&run, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(run.join("checkpoints/000040").exists());
}

#[cfg(unix)]
#[test]
fn every_file_of_a_run_has_the_permissions_of_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    assert!(train(dir.path(), &["--out", "run"]).output().unwrap().status.success());
    let plain = dir.path().join("plain");
    fs::write(&plain, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut pending = vec![dir.path().join("run")];
    let mut files = 0;
    while let Some(path) = pending.pop() {
        match path.is_dir() {
            true => pending.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path())),
            false => {
                assert_eq!(mode(&path), mode(&plain), "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 15, "{files} files");
}
