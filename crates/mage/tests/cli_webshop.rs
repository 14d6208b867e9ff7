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
    let input = "click[buy now]\nsearch[running shoes]\nnext\nI1\ndesc\n< p\nBuy\n";
    let output = mage(&["play", "webshop", "--episodes", "1", "--seed", "7"], input);
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("Wanted: Look for ") && shown.contains("click[buy now] is not possible here"), "{shown}");
    assert!(shown.contains("Page 2 (Total results: ") && shown.contains("[Buy Now]"), "{shown}");
    assert!(shown.contains("Thank you for shopping") && shown.contains("Your score: 0."), "{shown}");
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

#[test]
fn catalogues_that_make_no_sense_are_named_by_file_and_field() {
    let dir = tempfile::tempdir().unwrap();
    let data = format!("data={}", dir.path().display());
    let good = r#"{"asin": "B01", "name": "Red Cup", "full_description": "", "small_description": ["Holds tea."],
        "pricing": "$5", "customization_options": {}, "category": "garden", "query": "cups", "product_category": "A",
        "images": []}"#;
    let write = |products: &str| {
        std::fs::write(dir.path().join("items_shuffle.json"), products).unwrap();
        let wish = r#"{"B01": {"attributes": ["tea"], "instruction": "Find cups", "instruction_attributes": ["tea"]}}"#;
        std::fs::write(dir.path().join("items_ins_v2.json"), wish).unwrap();
    };
    let play = ["play", "webshop", "--quiet", "--option", "catalogue=official", "--option", data.as_str()];
    let eval = ["eval", "--env", "webshop", "--policy", "random", "--tasks", "2", "--option", "catalogue=official"];
    let eval = [&eval[..], &["--option", data.as_str()]].concat();
    let refused = |expected: &str| {
        for args in [&play[..], &eval] {
            let output = mage(args, "");
            assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
            assert!(text(&output).contains(expected), "{}", text(&output));
        }
    };
    refused("there is no items_shuffle.json");
    for (products, expected) in [
        ("[]".to_owned(), "items_shuffle.json: the catalogue is empty"),
        (
            format!("[{good}, {good}]"),
            "items_shuffle.json: product 1: field `asin`: B01 is the id of product 0 already",
        ),
        (format!("[{}]", good.replace("\"query\": \"cups\", ", "")), "missing field `query`"),
        (format!("[{}]", good.replace("$5", "cheap")), "items_shuffle.json: product 0: field `pricing`"),
        (format!("[{good}, {{\"asin\": "), "items_shuffle.json: product 1"),
        ("\u{0}".to_owned(), "items_shuffle.json: not a list of products"),
    ] {
        write(&products);
        refused(expected);
    }
    let skipped = [&play[..], &["--option", "duplicates=skip", "--split", "train"]].concat();
    write(&format!("[{good}, {good}]"));
    let output = mage(&skipped, "search[cup]\nB01\nbuy\n");
    assert!(text(&output).contains("You won."), "{}", text(&output));
}
