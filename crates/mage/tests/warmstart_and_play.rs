//! Tests of `mage warmstart`, and of playing against and evaluating a trained policy.

use crate::common::mage_with_input as mage;
use std::{fs, path::Path, process::Output};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const SMALL: [&str; 14] = [
    "--set",
    "warmstart.steps=4",
    "--set",
    "warmstart.batch_size=8",
    "--set",
    "optim.updates=1",
    "--set",
    "rollout.groups=2",
    "--set",
    "model.hidden_size=16",
    "--set",
    "eval.final_tasks=6",
    "--set",
    "eval.tasks=6",
];

fn train(recipe: &str, run: &Path) -> String {
    ok(mage(&[&["train", recipe, "--quiet", "--out", run.to_str().unwrap()], &SMALL[..]].concat(), ""))
}

#[test]
fn a_person_can_play_against_a_trained_policy() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("kuhn");
    let path = run.to_str().unwrap();
    train("kuhn", &run);

    // With all deals and seats, PASS is legal in every turn of the person.
    let play = ["play", "--against", path, "--seed", "4"];
    let shown = ok(mage(&play, "?\nraise\np\np\np\np\np\np\n"));
    for expected in ["Episode 1", "Episode 3", "Legal here", "Kuhn poker: 3 episodes", "episode  you"] {
        assert!(shown.contains(expected), "`{expected}` is missing:\n{shown}");
    }
    assert!(!shown.contains("reflection after"), "{shown}");
    assert!(
        ok(mage(&[&play[..], &["--reveal"]].concat(), "p\np\np\np\np\np\n")).contains("reflection after episode 2: ")
    );
    let quit = mage(&play, "q\n");
    assert!(text(&quit.stderr).contains("sampling: temperature 1, top-p 1, no top-k"), "{}", text(&quit.stderr));
    assert!(ok(quit).contains("No episode was finished"));

    let events = ok(mage(&[&play[..], &["--json"]].concat(), "PASS\nPASS\nPASS\nPASS\nPASS\nPASS\n"));
    let events: Vec<serde_json::Value> = events.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events.iter().filter(|e| e["event"] == "episode_end").count(), 3, "{events:?}");
    assert_eq!(events.last().unwrap()["scores"].as_array().unwrap().len(), 3);
    // Equal seeds and equal input give equal scores.
    let again = ok(mage(&[&play[..], &["--json"]].concat(), "PASS\nPASS\nPASS\nPASS\nPASS\nPASS\n"));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(again.lines().last().unwrap()).unwrap(),
        *events.last().unwrap()
    );

    let no_gpu = mage(&["play", "--against", path, "--device", "cuda:99"], "");
    assert!(!no_gpu.status.success() && text(&no_gpu.stderr).contains("CUDA device 99"), "{}", text(&no_gpu.stderr));
    for alone in [&["kuhn"][..], &["--max-turns", "5"], &[]] {
        let alone = mage(&[&["play", "--device", "cpu"], alone].concat(), "");
        assert_eq!(alone.status.code(), Some(2), "--device requires --against");
    }

    let long = mage(&["play", "--against", path, "-n", "9"], "");
    assert!(text(&long.stderr).contains("memory slots for 3 episodes"), "{}", text(&long.stderr));
    let other = mage(&["play", "tictactoe", "--against", path], "");
    assert!(text(&other.stderr).contains("was trained on kuhn, not on tictactoe"), "{}", text(&other.stderr));
    let none = mage(&["play", "--against", dir.path().join("none").to_str().unwrap()], "");
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stderr));
}

#[test]
fn tictactoe_can_be_played_against_a_trained_policy() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("board");
    train("tictactoe-blind", &run);
    let moves: String = (1..=3).flat_map(|r| (1..=3).map(move |c| format!("({r}, {c})\n"))).collect();
    let shown = ok(mage(&["play", "--against", run.to_str().unwrap(), "-n", "1", "--seed", "1"], moves.repeat(3)));
    assert!(shown.contains("Tic-Tac-Toe: 1 episode against") && shown.contains("episode  you"), "{shown}");
}

#[test]
fn a_warm_started_model_can_be_trained() {
    let dir = tempfile::tempdir().unwrap();
    let (model, run) = (dir.path().join("models/warm"), dir.path().join("run"));
    let (model_path, run_path) = (model.to_str().unwrap(), run.to_str().unwrap());
    let warm = |more: &[&str]| {
        let small = ["--set", "warmstart.steps=4", "--set", "model.hidden_size=16"];
        mage(&[&["warmstart", "kuhn", "--out", model_path][..], &small, more].concat(), "")
    };
    let made = warm(&[]);
    let hint = text(&made.stderr);
    ok(made);
    assert!(hint.contains(&format!("mage train kuhn --set model.path={model_path}")), "{hint}");
    let again = warm(&[]);
    assert!(text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
    let path = format!("model.path={model_path}");
    ok(mage(&[&["train", "kuhn", "--quiet", "--out", run_path, "--set", &path], &SMALL[..]].concat(), ""));
    // The run starts from the model and does not repeat the warm start.
    let resolved = fs::read_to_string(run.join("recipe.resolved.toml")).unwrap();
    assert!(resolved.contains(model_path), "{resolved}");
}

#[test]
fn a_compact_model_folder_is_evaluated_and_played_with_compact_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("warm");
    let model = model.to_str().unwrap();
    ok(mage(&["warmstart", "kuhn", "--out", model, "--set", "warmstart.steps=4", "--set", "model.hidden_size=16"], ""));
    let eval = ["eval", model, "--tasks", "8", "--seeds", "1", "--json", "--quiet"];
    let report: serde_json::Value = serde_json::from_str(&ok(mage(&eval, ""))).unwrap();
    assert_eq!((&report["episode_config"]["prompt_form"], &report["errors"]), (&"compact".into(), &0.into()));
    assert_eq!(report["summary"]["overall"]["invalid"]["hits"], 0);
    let other = mage(&[&eval[..], &["--env", "tictactoe"]].concat(), "");
    assert!(text(&other.stderr).contains("compact vocabulary without the word"), "{}", text(&other.stderr));
    assert_eq!(other.status.code(), Some(2));

    for env in [&[][..], &["kuhn"]] {
        let play = [&["play"][..], env, &["--against", model, "--seed", "4", "-n", "2", "--reveal"]].concat();
        let shown = ok(mage(&play, "p\np\np\np\n"));
        assert!(shown.contains("Kuhn poker: 2 episodes") && shown.contains("reflection after episode 1: "), "{shown}");
    }
    let other = mage(&["play", "tictactoe", "--against", model], "");
    assert!(text(&other.stderr).contains("compact vocabulary without the word"), "{}", text(&other.stderr));
}

#[test]
fn a_model_is_trained_on_transcripts_and_invalid_ones_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("transcripts.jsonl");
    let warm_start = |lines: &str, name: &str| {
        fs::write(&file, lines).unwrap();
        let out = dir.path().join(name);
        let args = ["warmstart", "kuhn", "--json", "--quiet", "--transcripts", file.to_str().unwrap(), "--out"];
        let set = ["--set", "warmstart.steps=60", "--set", "warmstart.learning_rate=0.01"];
        mage(&[&args[..], &[out.to_str().unwrap()], &set].concat(), "")
    };
    let line = |prompt: &str, response: &str| serde_json::json!({"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]});
    // Two prompts with one response each can be learned to a low loss.
    let output = ok(warm_start(&format!("{}\n\n{}\n", line("BOS GO", "END"), line("GO BOS", "BOS")), "trained"));
    let events: Vec<serde_json::Value> = output.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let loss = |e: &serde_json::Value| e["loss"].as_f64().unwrap();
    assert!(loss(&events[0]) > 1.0 && loss(events.last().unwrap()) < 0.1, "{} {}", events[0], events.last().unwrap());

    for (lines, problem) in [
        ("", "the file is empty"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"GO\"}]}", "line 1: no message is from the assistant"),
        (&format!("{}\nnonsense\n", line("GO", "END")), "line 2: expected"),
        (&line("GO", "hello").to_string(), "no word `hello`"),
        (&line("GO ".repeat(300).trim_end(), "END").to_string(), "maximum sequence length is 256"),
        ("{\"messages\": [{\"role\": \"robot\", \"content\": \"GO\"}]}", "robot"),
    ] {
        let rejected = warm_start(lines, "rejected");
        let stderr = text(&rejected.stderr);
        assert!(rejected.status.code() == Some(2) && stderr.contains(problem), "`{problem}` is missing: {stderr}");
        assert!(!dir.path().join("rejected").exists());
    }
}

#[test]
fn a_trained_policy_is_evaluated_deterministically() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("kuhn");
    train("kuhn", &run);
    let path = run.to_str().unwrap();
    // More episodes than fit into its prompts: the memory keeps the latest.
    let eval = ["eval", path, "--tasks", "12", "--seeds", "1", "--episodes", "5", "--json", "--quiet"];
    let report = |more: &[&str]| ok(mage(&[&eval[..], more].concat(), ""));
    let first = report(&[]);
    assert_eq!(first, report(&["--threads", "1"]), "the number of threads does not affect results");
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (trained, blank) = (read(&first), read(&report(&["--method", "react"])));
    assert_eq!(trained["summary"]["overall"]["meta_episodes"], 12);
    assert_eq!(trained["episode_config"]["recall_limit"], 2);
    assert!(trained["weights"].as_str().unwrap().starts_with("weights@"));
    assert_eq!(trained["weights"], blank["weights"]);
    assert_ne!(trained["method"], blank["method"]);
    assert_eq!(trained["requests"]["by_kind"]["reflect"]["count"], 48);
    assert!(blank["requests"]["by_kind"]["reflect"].is_null());
    for (more, expected) in
        [(["--env", "tictactoe"], "was trained on kuhn"), (["--method", "a-mem"], "needs full prompts")]
    {
        let rejected = mage(&[&eval[..], &more].concat(), "");
        assert_eq!(rejected.status.code(), Some(2));
        assert!(text(&rejected.stderr).contains(expected), "{}", text(&rejected.stderr));
    }
}
