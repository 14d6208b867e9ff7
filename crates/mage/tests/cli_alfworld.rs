//! Tests of the ALFWorld environment on the command line.

use crate::common::{mage, mage_with_input, text};

fn json(args: &[&str]) -> serde_json::Value {
    crate::common::json(&mage(args))
}

/// Win rate of an episode, from 0.
fn won(report: &serde_json::Value, episode: usize) -> f64 {
    report["summary"]["overall"]["by_episode"][episode]["won"]["rate"].as_f64().unwrap()
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
        (&["play", "alfworld", "--option", "rooms=green"], 2, "must be `seen` or `unseen`"),
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
