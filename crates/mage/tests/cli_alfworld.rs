//! Tests of the ALFWorld environment on the command line.

mod common;

use common::{data, mage, mage_with_input, text};
use std::{io::Write, path::PathBuf};

fn json(args: &[&str]) -> serde_json::Value {
    common::json(&mage(args))
}

/// Win rate of an episode, from 0.
fn won(report: &serde_json::Value, episode: usize) -> f64 {
    report["summary"]["overall"]["by_episode"][episode]["won"]["rate"].as_f64().unwrap()
}

/// The directory of official games.
fn official() -> Option<PathBuf> {
    data("alfworld")
}

#[test]
fn alfworld_can_be_played_interactively() {
    let input = "dance\ngo to garb\ninventory\nq\n";
    let shown = text(&mage_with_input(&["play", "alfworld", "--seed", "4", "--episodes", "1"], input));
    assert!(shown.contains("-= Welcome to TextWorld, ALFRED! =-") && shown.contains("Your task is to: "), "{shown}");
    assert!(shown.contains("dance is not legal here"), "{shown}");
    assert!(shown.contains("You arrive at garbagecan 1. On the garbagecan 1"), "{shown}");
    assert!(shown.contains("You are not carrying anything."), "{shown}");
}

#[test]
fn scripted_agents_are_evaluated_in_every_split() {
    let report = |extra: &[&str]| {
        let base = ["eval", "--env", "alfworld", "--tasks", "40", "--seeds", "1", "--episodes", "2", "--json"];
        json(&[&base[..], extra].concat())
    };
    for split in ["train", "in-domain", "out-of-domain"] {
        assert_eq!(won(&report(&["expert", "--split", split]), 1), 1.0, "{split}");
        let held_out = ["expert", "--split", split, "--population", "held-out-tasks"];
        assert_eq!(won(&report(&held_out), 1), 1.0, "{split}");
    }
    assert!(won(&report(&["random"]), 1) < 0.2);
    assert_eq!(won(&report(&["expert", "--max-turns", "1"]), 1), 0.0, "no task is solvable with one command");
    assert_eq!(won(&report(&["expert", "--option", "tasks=heat"]), 0), 1.0);
}

#[test]
fn missing_data_and_unsupported_options_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["play", "alfworld", "--skip-bad"], 2, "source = \"official\""),
        (&["play", "alfworld", "--option", "rooms=green"], 2, "expected `seen` or `unseen`"),
        (&["env", "generate", "alfworld", "--out", path, "--data", path], 2, "neither json_2.1.1/<split>"),
        (&["env", "generate", "kuhn", "--out", path], 2, "no export format"),
        (&["env", "conform", "alfworld", "--golden", "nowhere.jsonl", "--data", path], 2, "cannot read nowhere.jsonl"),
    ];
    for (args, code, expected) in cases {
        let output = mage(args);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(expected), "{args:?}: {}", text(&output));
    }
}

#[test]
fn recordings_of_the_original_are_replayed() {
    let Some(folder) = official() else { return };
    let data = folder.to_str().unwrap();
    let golden = folder.join("textworld_traces.jsonl.gz");
    let args = ["env", "conform", "alfworld", "--golden", golden.to_str().unwrap(), "--data", data];
    let output = mage(&args);
    assert!(output.status.success() && text(&output).contains("all equal"), "{}", text(&output));
    assert_eq!(json(&[&args[..], &["--json"]].concat())["different"], 0);
    // A different recording is reported.
    let mut unpacked = String::new();
    let mut packed = flate2::read::MultiGzDecoder::new(std::fs::File::open(golden).unwrap());
    std::io::Read::read_to_string(&mut packed, &mut unpacked).unwrap();
    let line = unpacked.lines().next().unwrap().replacen("You arrive at", "You sneak up to", 1);
    let mut other = tempfile::NamedTempFile::new().unwrap();
    writeln!(other, "{line}").unwrap();
    let output = mage(&["env", "conform", "alfworld", "--golden", other.path().to_str().unwrap(), "--data", data]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("first difference") && text(&output).contains("1 differ"), "{}", text(&output));
}

#[test]
fn generated_games_can_be_played_and_invalid_files_are_reported() {
    let Some(folder) = official() else { return };
    let out = tempfile::tempdir().unwrap();
    let path = out.path().to_str().unwrap();
    let args = ["env", "generate", "alfworld", "--out", path, "--data", folder.to_str().unwrap(), "--count", "5"];
    let files = json(&[&args[..], &["--json"]].concat());
    let files: Vec<&str> = files.as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    assert_eq!(files.len(), 5);
    let data = format!("data={path}");
    let eval = ["eval", "--env", "alfworld", "--population", "official", "--split", "train", "--option", &data];
    let eval = [&eval[..], &["expert", "--tasks", "10", "--episodes", "1", "--json"]].concat();
    assert_eq!(won(&json(&eval), 0), 1.0);

    let whole = std::fs::read(files[2]).unwrap();
    std::fs::write(files[2], &whole[..whole.len() / 3]).unwrap();
    // `play` needs the one game that it names; an evaluation counts the failure and plays the other games.
    let play = ["play", "alfworld", "--population", "official", "--split", "train", "--option", &data];
    let game = format!("game={}", files[2].strip_prefix(path).unwrap().trim_start_matches('/'));
    let one = mage(&[&play[..], &["--option", &game]].concat());
    assert_eq!(one.status.code(), Some(2), "{}", text(&one));
    assert!(text(&one).contains(files[2]), "{}", text(&one));
    let output = mage(&eval);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains(files[2]) && text(&output).contains("EOF while parsing"), "{}", text(&output));
    let output = mage(&[&eval[..], &["--skip-bad", "--quiet"]].concat());
    assert!(output.status.success(), "{}", text(&output));
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warnings.contains("skipped: ") && warnings.contains(files[2]), "{warnings}");
    assert_eq!(won(&serde_json::from_slice(&output.stdout).unwrap(), 0), 1.0);
}
