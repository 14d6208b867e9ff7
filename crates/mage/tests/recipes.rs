//! Tests of recipes on the command line: lists, explanations, and refusals.

use crate::train::{fails, mage, ok, train};
use std::fs;

#[test]
fn invalid_recipes_are_rejected_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    for (set, key) in [
        ("model.max_seq_len=4", "model.max_seq_len"),
        ("play.episodes=200", "model.max_seq_len"),
        ("rollout.top_p=0", "rollout.top_p"),
        ("rollout.temperature=-1", "rollout.temperature"),
        ("rollout.groups=100000000000", "rollout.groups"),
        ("health.stall_timeout=-1", "health.stall_timeout"),
        ("loss.entropy=-5", "loss.entropy"),
    ] {
        for more in [&["--dry-run"][..], &[]] {
            let mut command = train(&run, &["--set", set]);
            let text = fails(command.args(more));
            assert!(text.contains(key), "{set}: {text}");
            assert!(!run.exists(), "{set} left files behind");
        }
    }
}

#[test]
fn recipes_can_be_listed_shown_and_explained() {
    let text = |args: &[&str]| String::from_utf8(ok(&mut mage(args)).stdout).unwrap();
    let list = text(&["recipe", "list"]);
    let recipe = list.lines().find(|l| l.starts_with("paper/kuhn ")).unwrap();
    assert!(["kuhn", "mage", "GPU", "Qwen3-4B"].iter().all(|word| recipe.contains(word)), "{recipe}");
    assert!(list.lines().any(|l| l.starts_with("lamer ") && l.contains("cumulative")), "{list}");
    assert!(list.lines().all(|l| l.chars().count() <= 80), "{list}");
    let json: serde_json::Value = serde_json::from_str(&text(&["recipe", "list", "--json"])).unwrap();
    let kuhn = json["recipes"].as_array().unwrap().iter().find(|r| r["name"] == "kuhn").unwrap();
    assert_eq!((kuhn["environment"].as_str(), kuhn["method"].as_str()), (Some("kuhn"), Some("mage")));
    assert_eq!(kuhn["episodes"].as_u64(), Some(300 * 64 * 8 * 3));
    assert!(text(&["recipe", "show", "kuhn", "lamer"]).contains("assignment = \"cumulative\""));
    assert!(text(&["recipe", "explain", "loss.entropy"]).contains("collapses"));
    assert_eq!(
        text(&["recipe", "show", "lamer"]),
        text(&["recipe", "show", "kuhn", "lamer"]),
        "a method alone is merged into kuhn"
    );
    let estimator = text(&["recipe", "show", "--set", "method.estimator.scope=opponent"]);
    assert!(estimator.contains("scope = \"opponent\""), "other fields of the estimator keep their values: {estimator}");
    let output = mage(&["recipe", "show", "--set", "optm=3"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `optim`"));
    let output = mage(&["recipe", "show", "--set", "optim.updatse=3"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `optim.updates`"));
    // Explanations state the values of the default recipe, or of those that are named.
    let updates = text(&["recipe", "explain", "optim.updates"]);
    assert!(
        updates.contains("`mage train kuhn`, the default recipe") && updates.contains("= 300 (default 200)"),
        "{updates}"
    );
    let updates = text(&["recipe", "explain", "optim.updates", "tictactoe-blind", "--set", "optim.epochs=2"]);
    assert!(updates.contains("`mage train tictactoe-blind` with --set:") && updates.contains("= 400"), "{updates}");
    let lamer = text(&["recipe", "explain", "lamer"]);
    assert!(lamer.starts_with("lamer: LaMer: cumulative") && lamer.contains("`mage train kuhn lamer`"), "{lamer}");
    assert!(lamer.contains("method.credit.assignment = \"cumulative\"") && !lamer.contains("optim."), "{lamer}");
    let tictactoe = text(&["recipe", "explain", "tictactoe"]);
    assert!(tictactoe.contains("optim.updates = 300") && tictactoe.contains("2 cores"), "{tictactoe}");
    for (name, hint) in [("lora", "did you mean `engine.lora_rank`"), ("lamr", "did you mean `lamer`?")] {
        let output = mage(&["recipe", "explain", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(hint), "{name}: {output:?}");
    }
    // The shape of a new model is not printed next to a checkpoint.
    let paper = text(&["recipe", "show", "paper/kuhn"]);
    assert!(paper.contains("[model]\npath = \"Qwen/Qwen3-4B\"\n") && !paper.contains("hidden_size"), "{paper}");
    assert!(!text(&["recipe", "show", "paper/kuhn", "--json"]).contains("hidden_size"));
    assert!(text(&["recipe", "show", "kuhn"]).contains("hidden_size = 32"));
    let schema: serde_json::Value = serde_json::from_str(&text(&["recipe", "schema"])).unwrap();
    assert_eq!(schema["properties"]["optim"]["properties"]["updates"]["type"], "integer");
}

#[test]
fn a_recipe_without_keys_is_announced() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.toml").display().to_string();
    fs::write(&empty, "# nothing yet\n").unwrap();
    let warning = |args: &[&str]| String::from_utf8(ok(&mut mage(args)).stderr).unwrap();
    let alone = warning(&["recipe", "show", &empty]);
    assert!(alone.contains("empty.toml sets no key: the built-in defaults apply (env.name = \"kuhn\""), "{alone}");
    assert!(warning(&["recipe", "show", "kuhn", &empty]).contains("it changes nothing"));
    assert_eq!(warning(&["recipe", "show", "kuhn"]), "");
}
