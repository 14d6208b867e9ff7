//! Tests of `mage model`, and of interrupting a run that waits for its engine.

use crate::common::{mage, unreachable_engines};
use std::{fs, path::Path, process::Output};

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).expect("text")
}

/// Runs a command that must fail with exit code 2; returns stderr.
fn usage_error(args: &[&str]) -> String {
    let out = mage(args);
    assert_eq!(out.status.code(), Some(2), "{args:?}");
    String::from_utf8(out.stderr).expect("text")
}

/// Creates a model in `dir/model`, and checks that it is not overwritten.
fn create_model(dir: &Path) -> String {
    let model = crate::common::create_model(dir);
    let [config, text] = ["config.json", "text.txt"].map(|file| dir.join(file).display().to_string());
    let again = usage_error(&["model", "new", "--config", &config, "--tokenizer-from", &text, &model]);
    assert!(again.contains("not empty"), "{again}");
    model
}

#[test]
fn a_model_can_be_created_described_scored_and_sampled() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", &model]))).expect("JSON");
    assert_eq!((&shown["num_hidden_layers"], &shown["chat_template"]), (&1.into(), &true.into()));
    assert!(stdout(&mage(&["model", "info", &model])).contains("16"));

    let tokens = dir.path().join("tokens.jsonl");
    fs::write(&tokens, "[1, 2, 3]\n[4, 5]\n").expect("written");
    let tokens = tokens.display().to_string();
    let score = ["--json", "model", "score", &model, "--tokens", &tokens];
    let scored = stdout(&mage(&score));
    let lines: Vec<serde_json::Value> = scored.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert_eq!(lines.iter().map(|l| l["logprobs"].as_array().expect("a list").len()).collect::<Vec<_>>(), [2, 1]);
    assert!(lines[0]["logprobs"][0].as_f64().expect("a number") < 0.0);
    assert_eq!(
        scored,
        stdout(&mage(&[&score[..], &["--threads", "1"]].concat())),
        "the number of threads does not affect results"
    );

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
fn invalid_input_is_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let tokens = dir.path().join("tokens.jsonl");
    fs::write(&tokens, "[1, 2]\n[7]\n").expect("written");
    let tokens = tokens.display().to_string();
    assert!(usage_error(&["model", "score", &model, "--tokens", &tokens]).contains("line 2"));
    fs::write(&tokens, "[1, 999999]\n").expect("written");
    let error = usage_error(&["model", "score", &model, "--tokens", &tokens]);
    assert!(error.contains("tokens.jsonl, line 1") && error.contains("999999"), "{error}");
    assert!(usage_error(&["model", "generate", &model]).contains("--prompt"));
    assert!(
        usage_error(&["model", "generate", &model, "--prompt", "x", "--temperature", "-1"]).contains("--temperature")
    );
    assert!(usage_error(&["model", "generate", &model, "--prompt", "x", "--stop", ""]).contains("--stop"));
    for command in [["model", "generate"], ["bench", "sampler"]] {
        let error = usage_error(&[&command[..], &[&model, "--threads", "100000"]].concat());
        assert!(error.contains("--threads") && error.contains("1024"), "{error}");
    }
    assert!(usage_error(&["model", "info", &dir.path().display().to_string()]).contains("config.json"));
    let weights = dir.path().join("model/model.safetensors");
    let bytes = fs::read(&weights).expect("weights");
    fs::write(&weights, &bytes[..bytes.len() - 10]).expect("written");
    assert!(usage_error(&["model", "info", &model]).contains("truncated"));

    let mut broken = bytes;
    let len = broken.len();
    broken[len - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, broken).expect("written");
    fs::write(&tokens, "[1, 2]\n").expect("written");
    for args in [
        &["model", "score", &model, "--tokens", &tokens][..],
        &["--json", "model", "score", &model, "--tokens", &tokens],
        &["model", "generate", &model, "--prompt", "x"],
        &["bench", "sampler", &model],
    ] {
        let error = usage_error(args);
        assert!(
            error.contains("model.safetensors") && error.contains(".weight` holds the non-finite value NaN"),
            "{error}"
        );
    }
}

#[test]
fn tokenizers_and_dtypes_can_be_chosen() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = create_model(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let info = |dir: &str| -> serde_json::Value {
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", dir]))).expect("JSON")
    };
    fs::write(path("words.txt"), "J Q K BET PASS\nWON LOST").expect("written");
    let (config, words, reused) = (path("config.json"), path("small"), path("reused"));
    stdout(&mage(&["model", "new", "--config", &config, "--words", &path("words.txt"), "--dtype", "bf16", &words]));
    let small = info(&words);
    assert_eq!((&small["vocab_size"], &small["dtypes"]), (&11.into(), &serde_json::json!(["bfloat16"])));
    stdout(&mage(&["model", "generate", &words, "--chat", "K BET", "--max-tokens", "5"]));
    stdout(&mage(&["model", "new", "--config", &config, "--tokenizer", &first, "--seed", "1", &reused]));
    let (first, reused) = (info(&first), info(&reused));
    assert_eq!(
        (&reused["tokenizer_vocab_size"], &reused["dtypes"]),
        (&first["tokenizer_vocab_size"], &serde_json::json!(["float32"]))
    );
    fs::write(path("words.txt"), "J J").expect("written");
    assert!(
        usage_error(&["model", "new", "--config", &config, "--words", &path("words.txt"), &path("x")])
            .contains("duplicate word")
    );
    let nothing = ["model", "new", "--config", &config, "--tokenizer", &dir.path().display().to_string(), &path("x")];
    assert!(usage_error(&nothing).contains("tokenizer.json"));
    let flat = ["model", "new", "--config", &config, "--words", &path("text.txt"), "--init-std", "-1", &path("x")];
    assert!(usage_error(&flat).contains("duplicate word"));
    fs::write(path("words.txt"), "J Q").expect("written");
    let flat = ["model", "new", "--config", &config, "--words", &path("words.txt"), "--init-std", "-1", &path("x")];
    assert!(usage_error(&flat).contains("is not a positive number"));
    assert!(!dir.path().join("x").exists(), "a rejected command leaves no files behind");
}

#[test]
fn a_config_without_weights_is_described() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("config.json");
    let text = r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": true, "max_position_embeddings": 40960}"#;
    fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let shown: serde_json::Value =
        serde_json::from_str(&stdout(&mage(&["--json", "model", "info", &config]))).expect("JSON");
    assert_eq!(shown["parameters"], 4_022_468_096_u64);
    assert_eq!(shown["training_bytes"], 28 * 4_022_468_096_u64);
    assert!(stdout(&mage(&["model", "info", &config])).contains("configuration only"));
}

/// A run waits up to 15 minutes for its engine; before it has started, the first Ctrl-C exits.
#[cfg(unix)]
#[test]
fn a_run_that_waits_for_its_engine_exits_on_the_first_ctrl_c() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };
    let dir = tempfile::tempdir().expect("a folder");
    let run = dir.path().join("run");
    let mut child = crate::common::command()
        .args(["train", "kuhn", "--out"])
        .arg(&run)
        .args(unreachable_engines(&create_model(dir.path())))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let waiting: Vec<String> = lines.by_ref().take_while(|l| !l.contains("retrying for")).collect();
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("sent");
    assert!(sent.success(), "{waiting:?}");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{waiting:?}");
    assert!(!run.exists(), "nothing was written");
}
