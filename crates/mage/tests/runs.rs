//! Tests of runs after training: evaluation, addresses of checkpoints, and `mage runs`.

use crate::train::{mage, ok, train};
use std::{fs, path::Path, process::Command};

#[test]
fn an_evaluation_of_a_run_repeats_its_final_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    // With exact expectations, and with played episodes only.
    for max_states in ["100000", "0"] {
        let run = dir.path().join(max_states);
        ok(&mut train(&run, &["--set", &format!("eval.exact_max_states={max_states}")]));
        let trained: serde_json::Value = serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
        let evaluated = ok(&mut mage(&["eval", run.to_str().unwrap(), "--json", "--quiet"])).stdout;
        let evaluated: serde_json::Value = serde_json::from_slice(&evaluated).unwrap();
        let (after, summary) = (&trained["after"], &evaluated["summary"]);
        let by_episode = |slice: &serde_json::Value| slice["by_episode"].as_array().unwrap().clone();
        let scores = |slice: &serde_json::Value| {
            serde_json::Value::from_iter(by_episode(slice).into_iter().map(|at| at["score"].clone()))
        };
        assert_eq!(scores(&summary["overall"]), after["score"], "{max_states}");
        assert_eq!(after["score"].as_array().unwrap().len(), 3);
        assert_eq!(after["exact"], max_states != "0");
        for (at, won) in by_episode(&summary["overall"]).iter().zip(after["won"].as_array().unwrap()) {
            match max_states {
                "0" => assert_eq!(at["won"]["rate"], won["mean"]),
                _ => assert_eq!(&at["win_probability"], won),
            }
        }
        for slices in ["by_opponent", "by_seat"] {
            let evaluated: serde_json::Map<_, _> = summary[slices]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, slice)| (name.clone(), scores(slice)))
                .collect();
            assert!(evaluated.len() > 1);
            assert_eq!(serde_json::Value::from(evaluated), after[slices], "{slices}, {max_states}");
        }
        assert_eq!(evaluated["errors"], after["errors"]);
        assert_eq!(summary["overall"]["invalid"]["rate"], after["invalid"]);
    }
}

#[test]
fn exact_expectations_follow_the_recipe_of_each_policy_and_any_temperature() {
    let dir = tempfile::tempdir().unwrap();
    let (exact, played) = (dir.path().join("exact"), dir.path().join("played"));
    ok(&mut train(&exact, &["--set", "optim.updates=1"]));
    ok(&mut train(&played, &["--set", "optim.updates=1", "--set", "eval.exact_max_states=0"]));
    let (exact, played) = (exact.to_str().unwrap(), played.to_str().unwrap());
    let reports = |args: &[&str]| -> Vec<serde_json::Value> {
        let output = ok(mage(&["eval", "--seeds", "1", "--episodes", "1", "--json", "--quiet"]).args(args)).stdout;
        let objects = serde_json::Deserializer::from_slice(&output).into_iter::<serde_json::Value>();
        objects.map(Result::unwrap).filter(|o| o["summary"].is_object()).collect()
    };
    let are_exact = |args: &[&str]| -> Vec<bool> {
        reports(args).iter().map(|r| r["summary"]["overall"]["exact"].as_bool().unwrap()).collect()
    };
    assert_eq!(are_exact(&[played, exact, "--tasks", "2"]), [false, true]);
    assert_eq!(are_exact(&[exact, played, "--tasks", "2", "--env", "kuhn"]), [true, false]);
    assert_eq!(are_exact(&[exact, "--tasks", "2", "--top-p", "0.9"]), [false], "the distribution is filtered");
    for temperature in ["0.4", "2.5"] {
        let [report] = reports(&[exact, "--tasks", "4000", "--temperature", temperature]).try_into().unwrap();
        let first = &report["summary"]["overall"]["by_episode"][0];
        let expected = first["win_probability"]["mean"].as_f64().expect("exact");
        let rate = first["won"]["rate"].as_f64().unwrap();
        assert!((rate - expected).abs() < 4.0 * (0.25_f64 / 4000.0).sqrt(), "{temperature}: {rate}, not {expected}");
    }
}

#[test]
fn the_turn_limit_of_a_run_applies_to_all_policies_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &["--set", "play.max_turns=1", "--set", "optim.updates=1"]));
    let limits = |more: &[&str]| -> Vec<serde_json::Value> {
        let small = ["--tasks", "2", "--seeds", "1", "--json", "--quiet"];
        let output = ok(mage(&["eval", run.to_str().unwrap(), "bayes"]).args(small).args(more)).stdout;
        let objects = serde_json::Deserializer::from_slice(&output).into_iter::<serde_json::Value>();
        objects.map(|o| o.unwrap()["episode_config"]["max_turns"].clone()).take(2).collect()
    };
    assert_eq!(limits(&[]), [1, 1]);
    assert_eq!(limits(&["--max-turns", "2"]), [2, 2]);
    let other = dir.path().join("other");
    ok(&mut train(&other, &["--set", "optim.updates=1"]));
    let (run, other) = (run.to_str().unwrap(), other.to_str().unwrap());
    let compare = |more: &[&str]| {
        let output = ok(mage(&["eval", run, other, "--tasks", "2", "--seeds", "1", "--quiet"]).args(more));
        String::from_utf8(output.stdout).unwrap()
    };
    let differing = compare(&[]);
    let table = differing.split("The policies had different settings:").nth(1).expect("a table of differences");
    assert!(table.contains("turns") && !table.contains("temperature"), "{differing}");
    assert!(!compare(&["--max-turns", "2"]).contains("different settings"));
}

#[test]
fn thinking_is_refused_for_a_model_without_thinking_tags() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    ok(&mut train(&run, &["--set", "optim.updates=1"]));
    let output = mage(&["eval", run.to_str().unwrap(), "--tasks", "2", "--thinking", "on"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("no thinking tags"), "{error}");
}

#[test]
fn a_run_records_its_device_and_best_weights() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = ok(&mut train(&run, &["--set", "eval.every=1"]));
    let read =
        |file: &str| -> serde_json::Value { serde_json::from_slice(&fs::read(run.join(file)).unwrap()).unwrap() };
    assert!(read("run.json")["device"].as_str().unwrap().starts_with("cpu"));
    let best = read("best.json");
    assert!(run.join(best["model"].as_str().unwrap()).join("model.safetensors").exists(), "{best}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(best["update"] == 6 || text.contains(best["model"].as_str().unwrap()), "{best}: {text}");
    addresses_name_checkpoints(&run, best["update"].as_u64().unwrap());
    runs_are_listed_and_compared(dir.path(), &run);
}

/// `@best`, `@latest` and update numbers where commands accept a policy or a model.
fn addresses_name_checkpoints(run: &Path, best: u64) {
    let address = |suffix: &str| format!("{}{suffix}", run.display());
    for suffix in ["", "@best", "/checkpoints/000006"] {
        let output = ok(&mut mage(&["model", "info", "--json", &address(suffix)])).stdout;
        assert!(output.starts_with(b"{\"parameters\""), "{suffix}");
    }
    let weights = |suffix: &str| {
        let small = ["--tasks", "2", "--seeds", "1", "--json", "--quiet"];
        let output = ok(mage(&["eval", &address(suffix)]).args(small)).stdout;
        let report: serde_json::Value = serde_json::from_slice(&output).unwrap();
        assert_eq!(
            (&report["name"], &report["episode_config"]["prompt_form"]),
            (&address(suffix).into(), &"compact".into())
        );
        report["weights"].as_str().unwrap().to_owned()
    };
    assert_eq!(weights(""), weights("@latest"));
    assert_eq!(weights("@best"), weights(&format!("/checkpoints/{best:06}")));
    ok(&mut mage(&["play", "--seed", "1", "--against", &address("@best")]));
    let shown = ok(&mut mage(&["recipe", "show", "--set", &format!("model.path={}", address("@latest"))])).stdout;
    assert!(String::from_utf8(shown).unwrap().contains("run/checkpoints/000006\""), "the recipe names the checkpoint");
    let set = format!("model.path={}", address("@99"));
    for args in [
        &["model", "info", &address("@99")][..],
        &["model", "generate", &address("@99"), "--prompt", "K"],
        &["bench", "sampler", &address("@99")],
        &["eval", &address("@99")],
        &["play", "--against", &address("@99")],
        &["recipe", "show", "--set", &set],
    ] {
        let output = mage(args).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains("no checkpoint of update 99; available: ") && text.contains('6'), "{args:?}: {text}");
    }
}

/// `mage runs` and `mage runs diff` with copies of the run in several states.
fn runs_are_listed_and_compared(dir: &Path, run: &Path) {
    let copy = |name: &str| {
        let target = dir.join(name);
        assert!(Command::new("cp").arg("-r").args([run, &target]).status().unwrap().success());
        target
    };
    let unfinished = |name: &str| {
        let target = copy(name);
        fs::remove_file(target.join("result.json")).unwrap();
        target
    };
    let running = unfinished("running");
    let lock = fs::File::open(running.join("lock")).unwrap();
    lock.try_lock().unwrap();
    let stopped = unfinished("stopped");
    let recipe = fs::read_to_string(stopped.join("recipe.resolved.toml")).unwrap();
    fs::write(stopped.join("recipe.resolved.toml"), recipe.replace("seed = 0\n", "seed = 7\n")).unwrap();
    let failed = unfinished("failed");
    fs::write(failed.join("logs/attempt-2.log"), "{\"event\":\"failed\",\"error\":\"no luck\"}\n").unwrap();
    fs::create_dir(dir.join("broken")).unwrap();
    fs::write(dir.join("broken/recipe.resolved.toml"), "seed = nonsense").unwrap();

    let text = |args: &[&str]| String::from_utf8(ok(&mut mage(args)).stdout).unwrap();
    let folder = dir.to_str().unwrap();
    let runs: serde_json::Value = serde_json::from_str(&text(&["runs", "--json", folder])).unwrap();
    let runs = runs.as_array().unwrap();
    let find = |name: &str| runs.iter().find(|r| r["run"].as_str().unwrap().ends_with(&format!("/{name}"))).unwrap();
    for (name, state) in [
        ("run", "finished"),
        ("running", "running"),
        ("stopped", "stopped"),
        ("failed", "failed"),
        ("broken", "unreadable"),
    ] {
        assert_eq!(find(name)["state"], state, "{name}");
    }
    let whole = find("run");
    assert_eq!((&whole["env"], &whole["method"], &whole["updates"]), (&"kuhn".into(), &"MAGE".into(), &6.into()));
    assert!(whole["last_score"].is_f64() && whole["best_score"].is_f64() && whole["seconds"].as_f64() > Some(0.0));
    // The optima of an unfinished run are those of its log.
    assert!(whole["gap_closed"].is_f64() && find("running")["gap_closed"].is_f64(), "{whole}");
    assert!(runs.is_sorted_by(|a, b| a["modified"].as_f64() >= b["modified"].as_f64()));
    assert_eq!(find("failed")["error"], "no luck");

    let table = text(&["runs", folder]);
    let rows: Vec<&str> = table.lines().filter(|line| !line.contains("unreadable")).collect();
    assert_eq!(rows.len(), 5, "{table}");
    assert!(rows[0].starts_with("run ") && table.contains("6/6") && table.contains("broken: unreadable: "), "{table}");

    let (a, b) = (run.to_str().unwrap(), stopped.to_str().unwrap());
    let compared = text(&["runs", "diff", a, b]);
    assert!(compared.lines().any(|line| line.split_whitespace().eq(["seed", "0", "7"])), "{compared}");
    assert!(compared.contains("stopped") && compared.contains("finished"), "{compared}");
    let compared: serde_json::Value = serde_json::from_str(&text(&["runs", "diff", a, b, "--json"])).unwrap();
    assert_eq!(compared["differences"], serde_json::json!([{ "key": "seed", "a": "0", "b": "7" }]));
    assert!(text(&["runs", "diff", a, failed.to_str().unwrap()]).contains("the recipes are equal"));
    let missing = dir.join("none");
    let broken = dir.join("broken");
    for args in [&["runs", missing.to_str().unwrap()][..], &["runs", "diff", a, broken.to_str().unwrap()]] {
        assert_eq!(mage(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
}
