//! Tests of the WebShop environment on the command line.

use crate::common::{command, json, mage, mage_with_input, text};

#[test]
fn webshop_can_be_played_interactively() {
    let input = "click[buy now]\nsearch[running shoes]\nnext\nI1\nb\ndesc\n< p\nBuy\n";
    let output = mage_with_input(&["play", "webshop", "--episodes", "1", "--seed", "7"], input);
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("Instruction: Look for ") && shown.contains("click[buy now] is not legal here"), "{shown}");
    assert!(shown.contains("b is ambiguous: click[back to search], click[buy now]"), "{shown}");
    assert!(shown.contains("Page 2 (Total results: ") && shown.contains("[Buy Now]"), "{shown}");
    assert!(shown.contains("Thank you for shopping") && shown.contains("Your score: 0."), "{shown}");
}

#[test]
fn scripted_agents_are_evaluated() {
    let eval = |policy: &str| {
        let args = [
            "eval",
            "--env",
            "webshop",
            policy,
            "--tasks",
            "40",
            "--seeds",
            "1",
            "--episodes",
            "3",
            "--json",
            "--quiet",
        ];
        json(&mage(&args))
    };
    let passed = |report: &serde_json::Value, k: usize| {
        report["summary"]["overall"]["by_episode"][k]["pass_at_k"]["rate"].as_f64().unwrap()
    };
    assert_eq!(passed(&eval("oracle"), 0), 1.0);
    let heuristic = eval("heuristic");
    assert!(passed(&heuristic, 2) > passed(&heuristic, 0), "later episodes explore");
    let won = |k: usize| heuristic["summary"]["overall"]["by_episode"][k]["won"]["rate"].as_f64().unwrap();
    assert!(won(2) >= won(1) && won(1) >= won(0), "a perfect purchase is repeated");
    assert!(passed(&eval("random"), 2) < passed(&heuristic, 2));
}

#[test]
fn invalid_catalogues_are_reported_with_file_and_field() {
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
    let eval = ["eval", "--env", "webshop", "random", "--tasks", "2", "--option", "catalogue=official"];
    let eval = [&eval[..], &["--option", data.as_str()]].concat();
    let assert_rejected = |expected: &str| {
        for args in [&play[..], &eval] {
            let output = mage(args);
            assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
            assert!(text(&output).contains(expected), "{}", text(&output));
        }
    };
    assert_rejected("neither items_shuffle.json nor ");
    for (products, expected) in [
        ("[]".to_owned(), "items_shuffle.json: the catalogue is empty"),
        (
            format!("[{good}, {good}]"),
            "items_shuffle.json: product 1: field `asin`: B01 is already the id of product 0",
        ),
        (format!("[{}]", good.replace("\"query\": \"cups\", ", "")), "product 0: missing field `query`"),
        (
            format!("[{}]", good.replace("\"Red Cup\"", "5")),
            "items_shuffle.json: product 0: field `name`: invalid type",
        ),
        (format!("[{}]", good.replace("$5", "cheap")), "items_shuffle.json: product 0: field `pricing`"),
        (format!("[{good}, {{\"asin\": "), "items_shuffle.json: product 1"),
        ("\u{0}".to_owned(), "items_shuffle.json: not a list of products"),
    ] {
        write(&products);
        assert_rejected(expected);
    }
    let skipped = [&play[..], &["--option", "duplicates=skip", "--split", "train"]].concat();
    write(&format!("[{good}, {good}]"));
    let output = mage_with_input(&skipped, "search[cup]\nB01\nbuy\n");
    assert!(text(&output).contains("Solved."), "{}", text(&output));
    let shown = text(&output);
    assert!(shown.contains("warning: 1 entry of the product list skipped because of a duplicate id"), "{shown}");

    // Silent defaults of the original cause a warning.
    write(&format!("[{}]", good.replace("\"pricing\": \"$5\", ", "")));
    let shown = text(&mage_with_input(&[&play[..], &["--split", "train"]].concat(), "search[cup]\nq\n"));
    assert!(shown.contains("warning: 1 entry of the product list without a price: each costs $100"), "{shown}");
    assert!(shown.contains("$100.0"), "{shown}");

    // An empty split is an error with the reason.
    write(&format!("[{good}]"));
    assert_rejected(
        "split in-domain: contains none of the catalogue's 1 goals (train 1, in-domain 0, out-of-domain 0, none 0)",
    );
    std::fs::write(dir.path().join("items_ins_v2.json"), "{}").unwrap();
    assert_rejected("none of the 1 products has an `instruction` in items_ins_v2*.json");
}

/// Duplicates do not affect a replay, but are reported.
#[test]
fn a_replay_reports_skipped_entries() {
    let dir = tempfile::tempdir().unwrap();
    let cup = r#"{"asin": "B01", "name": "Red Cup", "full_description": "", "small_description": [], "pricing": "$5",
        "customization_options": {}, "category": "garden", "query": "cups", "product_category": "A"}"#;
    std::fs::write(dir.path().join("items_shuffle.json"), format!("[{cup}, {cup}, {cup}]")).unwrap();
    std::fs::write(dir.path().join("items_ins_v2.json"), "{}").unwrap();
    let golden = dir.path().join("searches.jsonl");
    std::fs::write(&golden, "{\"query\": \"shoe\", \"hits\": []}\n").unwrap();
    let folder = dir.path().to_str().unwrap();
    let args = ["env", "conform", "webshop", "--golden", golden.to_str().unwrap(), "--data", folder];
    let output = mage(&args);
    assert!(output.status.success(), "{}", text(&output));
    let expected = "2 skipped: entries of the product list with a duplicate id";
    assert!(text(&output).contains(expected), "{}", text(&output));
}

#[test]
fn invalid_recordings_are_reported_with_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let golden = dir.path().join("searches.jsonl");
    std::fs::write(&golden, "{\"query\": \"shoe\", \"hits\": [], \"seeed\": 1}\n").unwrap();
    let conform = |args: &[&str]| {
        let base = ["env", "conform", "webshop", "--golden"];
        let output =
            command().args([&base[..], args].concat()).env_remove("MAGE_DATA").current_dir(dir.path()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        text(&output)
    };
    // Without data files next to the recording: the error names the directory and the option.
    let error = conform(&["searches.jsonl"]);
    assert!(error.contains(".: neither items_shuffle.json nor ") && error.contains("with --data"), "{error}");
    let error = conform(&["no.jsonl"]);
    assert!(error.contains("cannot read no.jsonl"), "{error}");
    // The default data directory is found without options.
    let cup = r#"[{"asin": "B01", "name": "Red Cup", "full_description": "", "small_description": [], "pricing": "$5",
        "customization_options": {}, "category": "garden", "query": "cups", "product_category": "A"}]"#;
    std::fs::create_dir_all(dir.path().join("data/webshop")).unwrap();
    std::fs::write(dir.path().join("data/webshop/items_shuffle.json"), cup).unwrap();
    std::fs::write(dir.path().join("data/webshop/items_ins_v2.json"), "{}").unwrap();
    let error = conform(&["searches.jsonl"]);
    assert!(error.contains("searches.jsonl, line 1: unknown key `seeed`"), "{error}");
}
