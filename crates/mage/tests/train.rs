//! Tests of `mage train`: determinism, interruption and resumption.

use mage_train::{
    run_dir::{RunDir, checkpoint_path},
    train::recipe_hash,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A recipe small enough to be run many times.
pub(crate) const SMALL: &[&str] = &[
    "optim.updates=6",
    "warmstart.steps=6",
    "warmstart.batch_size=8",
    "rollout.groups=4",
    "rollout.group_size=4",
    "optim.minibatches=2",
    "model.hidden_size=16",
    "model.intermediate_size=32",
    "model.head_dim=8",
    "eval.every=3",
    "eval.tasks=20",
    "eval.final_tasks=20",
    "checkpoint.every=2",
    "trajectories.every=2",
];

pub(crate) fn mage(args: &[&str]) -> Command {
    let mut command = crate::common::command();
    command.args(args);
    command
}

pub(crate) fn train(out: &Path, more: &[&str]) -> Command {
    let mut command = mage(&["train", "--out", out.to_str().unwrap()]);
    for setting in SMALL {
        command.args(["--set", setting]);
    }
    command.args(more);
    command
}

pub(crate) fn resume(out: &Path, more: &[&str]) -> Command {
    let mut command = mage(&["train", "--resume", out.to_str().unwrap()]);
    command.args(more);
    command
}

pub(crate) fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Runs a command that must fail; returns stderr.
pub(crate) fn fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Metrics, weights and optimizer state, which must not depend on interruptions.
fn result(run: &Path) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let last = run.join("checkpoints/000006");
    let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    (
        read(run.join("metrics.jsonl")),
        read(last.join("model.safetensors")),
        read(last.join("training_state/optimizer.safetensors")),
    )
}

#[test]
fn results_are_identical_with_one_and_two_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let first = ok(&mut train(&one, &["--threads", "1"]));
    ok(&mut train(&two, &["--threads", "2"]));
    assert!(result(&one) == result(&two));
    assert_eq!(String::from_utf8(result(&one).0).unwrap().lines().count(), 6);
    let text = String::from_utf8(first.stdout).unwrap();
    assert!(text.contains("Bayes-adaptive optimum") && text.contains("without memory"), "{text}");
    for file in ["recipe.resolved.toml", "run.json", "timing.jsonl", "result.json", "trajectories/000002.jsonl.zst"] {
        assert!(one.join(file).exists(), "{file}");
    }
}

#[test]
fn a_surplus_checkpoint_of_a_killed_process_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &["--set", "checkpoint.keep=1"]));
    let checkpoints = || {
        let entries = fs::read_dir(run.join("checkpoints")).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let expected = checkpoints();
    // Half removed when the process was killed: before its result was written, and after.
    for killed_before_its_result in [true, false] {
        let surplus = run.join("checkpoints/000001");
        fs::create_dir(&surplus).unwrap();
        fs::copy(run.join("checkpoints/000006/config.json"), surplus.join("config.json")).unwrap();
        if killed_before_its_result {
            fs::remove_file(run.join("result.json")).unwrap();
        }
        ok(&mut resume(&run, &[]));
        assert_eq!(checkpoints(), expected);
    }
}

#[test]
fn a_run_killed_at_any_time_resumes_with_identical_results() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let started = Instant::now();
    ok(&mut train(&whole, &[]));
    let length = started.elapsed();
    let expected = result(&whole);

    // Twenty kill times, spread over the run including start-up and checkpoints. Later runs may be faster than the
    // first: if a run finishes before its kill time, the next kill times are earlier.
    let mut kills = 0;
    let mut missed = 0;
    let mut run = 0;
    while kills < 20 {
        let path = dir.path().join(format!("killed-{run}"));
        run += 1;
        let mut command = train(&path, &[]);
        loop {
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let delay = length.mul_f64(f64::from(kills * 7 % 20) / 20.0) + Duration::from_millis(20);
            let deadline = Instant::now() + delay.div_f64(f64::from(1 << missed));
            let ended = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break Some(status),
                    None if kills < 20 && Instant::now() >= deadline => break None,
                    None => std::thread::sleep(Duration::from_millis(3)),
                }
            };
            match ended {
                Some(status) => {
                    assert!(status.success());
                    missed += 1;
                    break;
                }
                None => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    kills += 1;
                    missed = 0;
                }
            }
            // Killed before the run existed: start again in the same directory.
            if !path.join("recipe.resolved.toml").exists() {
                command = train(&path, &[]);
            } else {
                command = resume(&path, &[]);
            }
        }
        assert!(result(&path) == expected, "after {kills} kills");
    }
}

#[test]
fn runs_are_not_overwritten_and_changed_recipes_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    assert!(fails(&mut train(&run, &[])).contains("--resume"));
    let text = fails(&mut resume(&run, &["--set", "optim.learning_rate=0.5"]));
    assert!(text.contains("optim.learning_rate") && text.contains("--force"), "{text}");
    ok(&mut resume(&run, &["--set", "optim.updates=8", "--force"]));
    assert_eq!(fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count(), 8);
    assert!(fails(&mut resume(&dir.path().join("nothing"), &[])).contains("not a run directory"));
}

#[test]
fn a_damaged_checkpoint_is_skipped_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    let expected = result(&run);
    let weights = run.join("checkpoints/000006/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&weights, bytes).unwrap();
    let output = ok(&mut resume(&run, &[]));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("model.safetensors") && text.contains("earlier checkpoint"), "{text}");
    assert!(result(&run) == expected);
}

/// Settings that every server supports.
const SERVER_SETTINGS: &[&str] = &[
    "engine.lora_rank=4",
    "engine.lora_alpha=32",
    "play.mask_actions=false",
    "loss.entropy=0",
    "loss.entropy_end=0",
    "loss.kl_reflect=0",
    "loss.dual_clip=0",
    "optim.max_grad_norm=0",
    "optim.minibatches=1",
];

/// Creates a small model; returns the settings with which a server could train it.
pub(crate) fn server_settings(dir: &Path) -> Vec<String> {
    let model = dir.join("model");
    let mut warm_start = mage(&["warmstart", "kuhn", "-q", "--out", model.to_str().unwrap()]);
    for set in ["model.hidden_size=16", "model.intermediate_size=32", "model.head_dim=8", "warmstart.steps=2"] {
        warm_start.args(["--set", set]);
    }
    ok(&mut warm_start);
    let path = format!("model.path={}", model.display());
    let all = SERVER_SETTINGS.iter().copied().chain([path.as_str()]);
    all.flat_map(|set| ["--set".to_owned(), set.to_owned()]).collect()
}

/// Makes the recipe that is in a run directory now that of a checkpoint.
fn record_recipe(run: &Path, update: u64) {
    let checkpoint = run.join(checkpoint_path(update));
    let [progress, manifest] = ["progress.json", "manifest.json"].map(|name| checkpoint.join(name));
    let old = fs::read_to_string(&progress).unwrap();
    let hash = recipe_hash(&RunDir::recipe(run).unwrap(), &RunDir::population(run).unwrap());
    let stored: serde_json::Value = serde_json::from_str(&old).unwrap();
    let new = old.replace(stored["recipe"].as_str().unwrap(), &hash.to_string());
    let [old_sum, new_sum] = [&old, &new].map(|text| blake3::hash(text.as_bytes()).to_string());
    let sums = fs::read_to_string(&manifest).unwrap();
    assert!(sums.contains(&old_sum));
    fs::write(&progress, new).unwrap();
    fs::write(&manifest, sums.replace(&old_sum, &new_sum)).unwrap();
}

#[test]
fn a_finished_run_is_reported_without_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let settings = server_settings(dir.path());
    let settings: Vec<&str> = settings.iter().map(String::as_str).chain(["--set", "optim.updates=2"]).collect();
    let first = ok(&mut train(&run, &settings));
    // As if trained by a server that is no longer available: no process listens on port 1.
    let recipe = run.join("recipe.resolved.toml");
    let text = fs::read_to_string(&recipe).unwrap();
    let moved =
        text.replace("kind = \"native\"", "kind = \"tinker\"").replace("http://127.0.0.1:8000", "http://127.0.0.1:1");
    assert_ne!(text, moved);
    fs::write(&recipe, moved).unwrap();
    record_recipe(&run, 2);
    let before = fs::read(run.join("result.json")).unwrap();
    let again = ok(&mut resume(&run, &[]));
    assert_eq!(again.stdout, first.stdout, "the report is unchanged");
    let hint = String::from_utf8(again.stderr).unwrap();
    assert!(hint.contains("is already finished after 2 updates") && !hint.contains("waiting"), "{hint}");
    assert!(before == fs::read(run.join("result.json")).unwrap());
}

#[test]
fn stale_weights_of_overlapped_rollouts_are_not_reported_as_engine_mismatch() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let more = ["--set", "rollout.overlap=true", "--set", "health.max_mismatch_kl=1e-6", "--set", "checkpoint.every=4"];
    let warnings = String::from_utf8(ok(&mut train(&run, &more)).stderr).unwrap();
    assert!(!warnings.contains("sampler and trainer disagree"), "{warnings}");
    // The first batch and the one after the checkpoint were sampled with the current weights.
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let stale = metrics.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["mismatch_kl/first"].as_f64().unwrap() > 1e-6
    });
    assert_eq!(stale.collect::<Vec<_>>(), [false, true, true, true, false, true]);
}

#[test]
fn a_failed_run_prints_how_to_resume_from_its_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let text = fails(&mut train(&run, &["--set", "optim.learning_rate=1e30", "kuhn"]));
    assert!(text.contains("NaN"), "{text}");
    assert!(text.contains(&format!("resume with mage train --resume {}", run.display())), "{text}");
    assert!(run.join("checkpoints/000000/manifest.json").exists());
}

#[test]
fn a_run_in_use_by_another_process_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    let lock = fs::File::open(run.join("lock")).unwrap();
    lock.lock().unwrap();
    assert!(fails(&mut resume(&run, &[])).contains("another process"));
}

#[test]
fn write_errors_name_the_file_and_the_run_can_be_resumed() {
    let text = fails(&mut train(Path::new("/proc/nowhere/run"), &[]));
    assert!(text.contains("/proc/nowhere"), "{text}");
    // /dev/full in place of the metrics file.
    if cfg!(target_os = "linux") {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        ok(&mut train(&run, &[]));
        let metrics = run.join("metrics.jsonl");
        let kept = fs::read(&metrics).unwrap();
        fs::remove_dir_all(run.join("checkpoints/000006")).unwrap();
        fs::remove_file(&metrics).unwrap();
        std::os::unix::fs::symlink("/dev/full", &metrics).unwrap();
        let text = fails(&mut resume(&run, &[]));
        assert!(text.contains("metrics.jsonl"), "{text}");
        fs::remove_file(&metrics).unwrap();
        fs::write(&metrics, &kept).unwrap();
        ok(&mut resume(&run, &[]));
        assert_eq!(fs::read(&metrics).unwrap(), kept);
    }
}

#[test]
fn a_run_without_a_valid_checkpoint_is_not_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    for entry in fs::read_dir(run.join("checkpoints")).unwrap() {
        fs::write(entry.unwrap().path().join("model.safetensors"), "nothing").unwrap();
    }
    let kept = fs::read(run.join("metrics.jsonl")).unwrap();
    let text = fails(&mut resume(&run, &[]));
    assert!(text.contains("no checkpoint is complete") && text.contains("model.safetensors"), "{text}");
    assert_eq!(fs::read(run.join("metrics.jsonl")).unwrap(), kept);
    fs::remove_dir_all(run.join("checkpoints")).unwrap();
    fs::create_dir(run.join("checkpoints")).unwrap();
    let text = fails(&mut resume(&run, &[]));
    assert!(text.contains("metrics but no checkpoint"), "{text}");
    assert_eq!(fs::read(run.join("metrics.jsonl")).unwrap(), kept);
}

#[test]
fn a_run_started_on_a_missing_gpu_resumes_on_the_cpu_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    let expected = result(&run);
    // As if started on a GPU and stopped.
    fs::remove_file(run.join("result.json")).unwrap();
    fs::remove_dir_all(run.join("checkpoints/000006")).unwrap();
    let change = |file: &str, from: &str, to: &str| {
        let text = fs::read_to_string(run.join(file)).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        fs::write(run.join(file), text.replace(from, to)).unwrap();
    };
    change("recipe.resolved.toml", "device = \"auto\"", "device = \"cuda:0\"");
    change("run.json", "\"device\": \"cpu: ", "\"device\": \"cuda:0: once a ");
    let metrics = fs::read(run.join("metrics.jsonl")).unwrap();
    let text = fails(&mut resume(&run, &[]));
    assert!(text.contains("opening CUDA device 0") && text.contains("--device cpu"), "{text}");
    assert!(
        metrics == fs::read(run.join("metrics.jsonl")).unwrap(),
        "metrics are not truncated before the run can resume"
    );
    let warnings = String::from_utf8(ok(&mut resume(&run, &["--device", "cpu"])).stderr).unwrap();
    assert!(warnings.contains("a run started on cuda:0: once a "), "{warnings}");
    assert!(result(&run) == expected);
    // The next resumption on the CPU prints no warning.
    fs::remove_file(run.join("result.json")).unwrap();
    let warnings = String::from_utf8(ok(&mut resume(&run, &[])).stderr).unwrap();
    assert!(!warnings.contains("a run started on"), "{warnings}");
    change("recipe.resolved.toml", "device = \"cpu\"", "device = \"cuda:0\"");
    // The policy can be played against without a GPU.
    ok(mage(&["play", "--seed", "1", "--against"]).arg(&run));
}

#[test]
fn rejected_changes_of_a_resumed_run_do_not_modify_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    let before = fs::read(run.join("recipe.resolved.toml")).unwrap();
    assert!(fails(mage(&["train", "lamer", "--resume"]).arg(&run)).contains("cannot be used with"));
    let text = fails(&mut resume(&run, &["--force", "--set", "model.hidden_size=24"]));
    assert!(text.contains("config.json"), "{text}");
    assert!(before == fs::read(run.join("recipe.resolved.toml")).unwrap(), "the stored recipe was modified");
    // The number of threads does not affect results and may change.
    ok(&mut resume(&run, &["--threads", "1"]));
}

#[test]
fn the_best_checkpoint_is_kept_regardless_of_the_schedule() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &["--set", "eval.every=1", "--set", "checkpoint.every=100", "--set", "checkpoint.keep=1"]));
    let progress = fs::read(run.join("checkpoints/000006/progress.json")).unwrap();
    let progress: serde_json::Value = serde_json::from_slice(&progress).unwrap();
    let best = progress["best"][0].as_u64().unwrap();
    assert!(run.join(format!("checkpoints/{best:06}/model.safetensors")).exists(), "{progress}");
}

#[test]
fn a_directory_with_other_files_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // The state after an early kill is accepted.
    fs::create_dir_all(run.join("checkpoints")).unwrap();
    fs::write(run.join("population.toml.unfinished"), "half").unwrap();
    ok(&mut train(&run, &[]));
    let other = dir.path().join("other");
    fs::create_dir_all(other.join("logs")).unwrap();
    fs::write(other.join("logs/diary.txt"), "dear diary").unwrap();
    assert!(fails(&mut train(&other, &[])).contains("is not empty"));
}

#[cfg(unix)]
#[test]
fn a_run_stopped_by_a_signal_resumes_with_identical_results_with_and_without_overlap() {
    let dir = tempfile::tempdir().unwrap();
    for (overlap, signal) in [("false", "-TERM"), ("true", "-INT")] {
        let overlap = format!("rollout.overlap={overlap}");
        let more = ["--set", &overlap, "--set", "optim.updates=6", "--set", "checkpoint.every=4"];
        let (whole, cut) = (dir.path().join(format!("{overlap}-whole")), dir.path().join(format!("{overlap}-cut")));
        ok(&mut train(&whole, &more));
        let mut child = train(&cut, &more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // Stop in the middle of the run. If the run is faster than this test, there is nothing to check and the test
        // passes.
        while !fs::read_to_string(cut.join("metrics.jsonl")).is_ok_and(|m| m.lines().count() >= 2) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success() && matches!(child.wait().unwrap().code(), Some(0 | 130)));
        ok(&mut resume(&cut, &[]));
        assert!(result(&whole) == result(&cut), "{overlap}");
    }
}
