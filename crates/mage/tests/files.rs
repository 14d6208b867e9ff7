//! Tests of files that commands read and write: replaced as a whole, damaged, or with names that are not UTF-8.
#![cfg(unix)]

use crate::{
    common::{command, create_model, mage, stderr},
    train::{ok, train},
};
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Command, Output},
};

/// Runs mage without the ability to write to files.
fn with_full_disk(args: &[&str]) -> Output {
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_mage")]).args(args).env("CUDA_VISIBLE_DEVICES", "");
    shell.output().unwrap()
}

#[test]
fn a_failed_write_keeps_the_previous_file() {
    let dir = tempfile::tempdir().unwrap();
    for (flag, file) in [("--summary", "summary.json"), ("--plot", "plot.svg")] {
        let path = dir.path().join(file);
        let args = ["eval", "random", "--tasks", "3", flag, path.to_str().unwrap()];
        assert!(mage(&args).status.success());
        let before = fs::read(&path).unwrap();
        let output = with_full_disk(&args);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("cannot write {}", path.display())), "{}", stderr(&output));
        assert!(!before.is_empty() && fs::read(&path).unwrap() == before, "{file}");
        // A link stays a link.
        let link = dir.path().join(format!("link-{file}"));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(mage(&["eval", "random", "--tasks", "4", flag, link.to_str().unwrap()]).status.success());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::read(&path).unwrap() != before);
    }
}

#[test]
fn an_unfinished_model_is_replaced_by_the_same_command() {
    let dir = tempfile::tempdir().unwrap();
    create_model(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let out = at("new");
    let args = ["model", "new", "--config", &at("config.json"), "--tokenizer", &at("model"), &out];
    let failed = with_full_disk(&args);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    assert!(!Path::new(&out).exists(), "nothing is left of a failed command");
    // What a killed process leaves.
    fs::create_dir_all(format!("{out}/.unfinished")).unwrap();
    fs::write(format!("{out}/.unfinished/model.safetensors"), "half").unwrap();
    assert!(!mage(&["model", "info", &out]).status.success(), "it is no model");
    let output = mage(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!Path::new(&out).join(".unfinished").exists());
    assert!(mage(&["model", "info", &out]).status.success());
    assert_eq!(mage(&args).status.code(), Some(2), "a complete model is not replaced");
}

#[test]
fn a_damaged_checkpoint_is_not_evaluated() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &[]));
    let weights = run.join("checkpoints/000006/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    for args in [&["eval"][..], &["play", "--against"]] {
        let output = command().args(args).arg(&run).output().unwrap();
        assert!(!output.status.success());
        let error = stderr(&output);
        assert!(error.contains("model.safetensors: the contents do not match the manifest"), "{error}");
    }
    // An earlier checkpoint is complete.
    let earlier = format!("{}@4", run.display());
    assert!(mage(&["eval", &earlier, "--tasks", "2"]).status.success());
}

#[test]
fn paths_that_are_not_utf8_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (trained, run) = (dir.path().join("trained"), dir.path().join(OsStr::from_bytes(b"run-\xff")));
    ok(&mut train(&trained, &["--set", "optim.updates=2"]));
    fs::rename(&trained, &run).unwrap();
    let model = run.join("checkpoints/000002");
    for (args, path) in [
        (&["eval", "--tasks", "2"][..], &run),
        (&["eval", "--env", "kuhn", "--tasks", "2"], &model),
        (&["model", "info"], &run),
        (&["model", "info"], &model),
    ] {
        ok(command().args(args).arg(path));
    }
    // A damaged run in the same directory.
    let broken = dir.path().join(OsStr::from_bytes(b"broken-\xfe"));
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("recipe.resolved.toml"), b"seed = \xff").unwrap();
    let listed = ok(command().args(["runs", "--json"]).arg(dir.path()));
    let runs: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let states: std::collections::BTreeSet<_> =
        runs.as_array().unwrap().iter().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["finished", "unreadable"].into());
}
