//! `mage model`, as a user runs it, and who waits for it.

mod common;

use common::{elsewhere, mage};
use std::{fs, path::Path, process::Output};

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).expect("text")
}

fn refusal(args: &[&str]) -> String {
    let out = mage(args);
    assert_eq!(out.status.code(), Some(2), "{args:?}");
    String::from_utf8(out.stderr).expect("text")
}

/// A new model in `dir/model`, which is made only once.
fn made(dir: &Path) -> String {
    let model = common::made(dir);
    let [config, text] = ["config.json", "text.txt"].map(|file| dir.join(file).display().to_string());
    let again = refusal(&["model", "new", "--config", &config, "--tokenizer-from", &text, &model]);
    assert!(again.contains("not empty"), "{again}");
    model
}

#[test]
fn a_model_is_made_shown_scored_and_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", &model]))).expect("JSON");
    assert_eq!((&shown["layers"], &shown["chat_template"]), (&1.into(), &true.into()));
    assert!(stdout(&mage(&["model", "info", &model])).contains("16"));

    let tokens = dir.path().join("tokens.jsonl");
    fs::write(&tokens, "[1, 2, 3]\n[4, 5]\n").expect("written");
    let tokens = tokens.display().to_string();
    let score = ["--json", "model", "score", &model, "--tokens", &tokens];
    let scored = stdout(&mage(&score));
    let lines: Vec<serde_json::Value> = scored.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|l| l["logprobs"].as_array().expect("a list").len()).collect::<Vec<_>>(), [2, 1]);
    assert!(lines[0]["logprobs"][0].as_f64().expect("a number") < 0.0);
    assert_eq!(scored, stdout(&mage(&[&score[..], &["--threads", "1"]].concat())), "threads change nothing");

    let generate =
        |more: &[&str]| stdout(&mage(&[&["model", "generate", &model, "--max-tokens", "12"], more].concat()));
    let text = generate(&["--chat", "PASS or BET?", "--seed", "3"]);
    assert_eq!(text, generate(&["--chat", "PASS or BET?", "--seed", "3"]));
    assert_ne!(text, generate(&["--chat", "PASS or BET?", "--seed", "4"]));
    assert_eq!(
        generate(&["--prompt", "The", "--temperature", "0"]),
        generate(&["--prompt", "The", "--temperature", "0", "--seed", "9"])
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = made(dir.path());
    let tokens = dir.path().join("tokens.jsonl");
    fs::write(&tokens, "[1, 2]\n[7]\n").expect("written");
    let tokens = tokens.display().to_string();
    assert!(refusal(&["model", "score", &model, "--tokens", &tokens]).contains("line 2"));
    fs::write(&tokens, "[1, 999999]\n").expect("written");
    let said = refusal(&["model", "score", &model, "--tokens", &tokens]);
    assert!(said.contains("tokens.jsonl, line 1") && said.contains("999999"), "{said}");
    assert!(refusal(&["model", "generate", &model]).contains("--prompt"));
    assert!(refusal(&["model", "generate", &model, "--prompt", "x", "--temperature", "-1"]).contains("--temperature"));
    assert!(refusal(&["model", "generate", &model, "--prompt", "x", "--stop", ""]).contains("--stop"));
    for command in [["model", "generate"], ["bench", "sampler"]] {
        let said = refusal(&[&command[..], &[&model, "--threads", "100000"]].concat());
        assert!(said.contains("--threads") && said.contains("1024"), "{said}");
    }
    assert!(refusal(&["model", "info", &dir.path().display().to_string()]).contains("config.json"));
    let weights = dir.path().join("model/model.safetensors");
    let bytes = fs::read(&weights).expect("weights");
    fs::write(&weights, &bytes[..bytes.len() - 10]).expect("written");
    assert!(refusal(&["model", "info", &model]).contains("truncated"));

    let mut broken = bytes;
    let len = broken.len();
    broken[len - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, broken).expect("written");
    fs::write(&tokens, "[1, 2]\n").expect("written");
    for ask in [
        &["model", "score", &model, "--tokens", &tokens][..],
        &["--json", "model", "score", &model, "--tokens", &tokens],
        &["model", "generate", &model, "--prompt", "x"],
        &["bench", "sampler", &model],
    ] {
        let said = refusal(ask);
        assert!(
            said.contains("model.safetensors") && said.contains(".weight` holds the non-finite value NaN"),
            "{said}"
        );
    }
}

#[test]
fn other_vocabularies_and_number_formats() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = made(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let info = |dir: &str| -> serde_json::Value {
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", dir]))).expect("JSON")
    };
    fs::write(path("words.txt"), "J Q K BET PASS\nWON LOST").expect("written");
    let (config, words, taken) = (path("config.json"), path("small"), path("taken"));
    stdout(&mage(&["model", "new", "--config", &config, "--words", &path("words.txt"), "--dtype", "bf16", &words]));
    let small = info(&words);
    assert_eq!((&small["vocab_size"], &small["formats"]), (&11.into(), &serde_json::json!(["bfloat16"])));
    stdout(&mage(&["model", "generate", &words, "--chat", "K BET", "--max-tokens", "5"]));
    stdout(&mage(&["model", "new", "--config", &config, "--tokenizer", &first, "--seed", "1", &taken]));
    let (first, taken) = (info(&first), info(&taken));
    assert_eq!((&taken["tokens"], &taken["formats"]), (&first["tokens"], &serde_json::json!(["float32"])));
    fs::write(path("words.txt"), "J J").expect("written");
    assert!(
        refusal(&["model", "new", "--config", &config, "--words", &path("words.txt"), &path("x")])
            .contains("duplicate word")
    );
    let nothing = ["model", "new", "--config", &config, "--tokenizer", &dir.path().display().to_string(), &path("x")];
    assert!(refusal(&nothing).contains("tokenizer.json"));
    let flat = ["model", "new", "--config", &config, "--words", &path("text.txt"), "--init-std", "-1", &path("x")];
    assert!(refusal(&flat).contains("duplicate word"));
    fs::write(path("words.txt"), "J Q").expect("written");
    let flat = ["model", "new", "--config", &config, "--words", &path("words.txt"), "--init-std", "-1", &path("x")];
    assert!(refusal(&flat).contains("is not a positive number"));
    assert!(!dir.path().join("x").exists(), "a refusal leaves nothing behind");
}

#[test]
fn a_shape_larger_than_memory_is_described() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("config.json");
    let shape = r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": true, "max_position_embeddings": 40960}"#;
    fs::write(&config, shape).expect("written");
    let config = config.display().to_string();
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", &config]))).expect("JSON");
    assert_eq!(shown["parameters"], 4_022_468_096_u64);
    assert_eq!(shown["training_bytes"], 28 * 4_022_468_096_u64);
    assert!(stdout(&mage(&["model", "info", &config])).contains("this is a shape"));
}

/// The patience of a run is a quarter of an hour; who has enough of it before anything has begun loses nothing.
#[cfg(unix)]
#[test]
fn a_run_that_waits_for_its_engine_is_ended_by_the_first_ctrl_c() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let mut child = common::command()
        .args(["train", "kuhn", "--out"])
        .arg(&run)
        .args(elsewhere(&made(dir.path())))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let waits: Vec<String> = lines.by_ref().take_while(|l| !l.contains("waiting for it")).collect();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("sent");
    assert!(sent.success(), "{waits:?}");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{waits:?}");
    assert!(!run.exists(), "nothing was written");
}
