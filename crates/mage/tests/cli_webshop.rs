//! The shop on the command line.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

fn mage(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mage"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_person_can_shop() {
    let input = "click[buy now]\nsearch[running shoes]\nI1\nBUY\n";
    let output = mage(&["play", "webshop", "--episodes", "1", "--seed", "7"], input);
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    assert!(
        shown.contains("Instruction: [SEP] Look for ") && shown.contains("click[buy now] is not possible here"),
        "{shown}"
    );
    assert!(shown.contains("'Page 1 (Total results: ") && shown.contains("Thank you for shopping"), "{shown}");
}

#[test]
fn agents_that_go_by_rule_are_measured() {
    let eval = |policy: &str| {
        let args =
            ["eval", "--env", "webshop", "--policy", policy, "--tasks", "40", "--episodes", "3", "--json", "--quiet"];
        let output = mage(&args, "");
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let passed = |report: &serde_json::Value, k: usize| {
        report["summary"]["overall"]["by_episode"][k]["pass_at_k"]["rate"].as_f64().unwrap()
    };
    assert_eq!(passed(&eval("told"), 0), 1.0);
    let reader = eval("reader");
    assert!(passed(&reader, 2) > passed(&reader, 0), "later episodes try something else");
    assert!(passed(&eval("random"), 2) < passed(&reader, 2));
}

#[test]
fn recordings_are_replayed() {
    let root = std::env::var_os("MAGE_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data"), std::path::PathBuf::from);
    let folder = root.join("webshop");
    let golden = folder.join("search_goldens.jsonl.gz");
    if !golden.is_file() {
        eprintln!("SKIPPED: no {}; set MAGE_DATA", golden.display());
        return;
    }
    let args = ["env", "conform", "webshop", "--golden", golden.to_str().unwrap(), "--data", folder.to_str().unwrap()];
    let output = mage(&args, "");
    assert!(output.status.success() && text(&output).contains("all equal"), "{}", text(&output));
    // A recording that says otherwise is told apart.
    let mut other = tempfile::NamedTempFile::new().unwrap();
    writeln!(other, "{{\"query\": \"console table\", \"hits\": [[\"B000000000\", 1.0]]}}").unwrap();
    let name = other.path().to_str().unwrap();
    let args = ["env", "conform", "webshop", "--golden", name, "--data", folder.to_str().unwrap()];
    let output = mage(&args, "");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("first difference") && text(&output).contains("1 differ"), "{}", text(&output));
}
