//! Tests of `mage report` on a run and an evaluation.

use crate::{
    common::json,
    train::{mage, ok, train},
};
use std::{env, path::Path, process::Command};

#[test]
fn a_trained_run_is_reported_and_the_suggested_evaluation_adds_it_to_table_1() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("Ann's runs/ünï 1");
    ok(&mut train(&run, &[]));
    let report = |paths: &[&str]| -> serde_json::Value {
        let output = ok(mage(&["report", "--out", "out", "--json"]).args(paths).current_dir(dir.path()));
        json(&output)
    };
    let first = report(&["."]);
    let files: Vec<&str> = first["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    let expected = ["report.html", "report.md", "report.csv", "figures/learning-kuhn.svg", "figures/loss-kuhn.png"];
    assert!(expected.iter().all(|name| files.contains(name)), "{files:?}");
    assert!(files.iter().all(|name| dir.path().join("out").join(name).exists()));
    assert_eq!(first["report"]["results"].as_array().unwrap().len(), 0);
    let notes: Vec<&str> = first["report"]["notes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
    let note = notes.iter().find(|note| note.contains("Table 1 lacks 1 run")).unwrap();
    let command = &note[note.find("mage eval").unwrap()..note.find(", then add").unwrap()];
    // A shell runs the command as it is printed.
    let binary = Path::new(env!("CARGO_BIN_EXE_mage")).parent().unwrap().to_owned();
    let path = env::join_paths([binary].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    ok(Command::new("sh").args(["-c", command]).current_dir(dir.path()).env("PATH", path));
    let second = report(&["."]);
    let [result] = second["report"]["results"].as_array().unwrap().as_slice() else { panic!("expected one result") };
    assert_eq!((&result["task_set"], &result["method"]), (&"kuhn".into(), &"MAGE".into()));
    let page = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(page.contains("## Table 1") && !page.contains("Table 1 lacks"), "{page}");
}
