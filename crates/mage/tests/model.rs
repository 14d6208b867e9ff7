//! `mage model` and `mage doctor`, as a user runs them.

mod common;

use common::mage;
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

const SHAPE: &str = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": true,
    "max_position_embeddings": 64}"#;

/// A new model in `dir/model`.
fn made(dir: &Path) -> String {
    let config = dir.join("config.json");
    fs::write(&config, SHAPE).expect("written");
    let text = dir.join("text.txt");
    fs::write(&text, "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let model = dir.join("model").display().to_string();
    let (config, text) = (config.display().to_string(), text.display().to_string());
    let said =
        stdout(&mage(&["model", "new", "--config", &config, "--tokenizer-from", &text, "--tokens", "300", &model]));
    assert!(said.contains("parameters"), "{said}");
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
    assert!(refusal(&["model", "info", &model]).contains("cut short"));

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
        assert!(said.contains("model.safetensors") && said.contains(".weight` holds NaN"), "{said}");
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
    stdout(&mage(&["model", "new", "--config", &config, "--words", &path("words.txt"), "--format", "bf16", &words]));
    let small = info(&words);
    assert_eq!((&small["vocab_size"], &small["formats"]), (&11.into(), &serde_json::json!(["bfloat16"])));
    stdout(&mage(&["model", "generate", &words, "--chat", "K BET", "--max-tokens", "5"]));
    stdout(&mage(&["model", "new", "--config", &config, "--tokenizer", &first, "--seed", "1", &taken]));
    let (first, taken) = (info(&first), info(&taken));
    assert_eq!((&taken["tokens"], &taken["formats"]), (&first["tokens"], &serde_json::json!(["float32"])));
    fs::write(path("words.txt"), "J J").expect("written");
    assert!(
        refusal(&["model", "new", "--config", &config, "--words", &path("words.txt"), &path("x")]).contains("twice")
    );
    let nothing = ["model", "new", "--config", &config, "--tokenizer", &dir.path().display().to_string(), &path("x")];
    assert!(refusal(&nothing).contains("tokenizer.json"));
    let flat = ["model", "new", "--config", &config, "--words", &path("text.txt"), "--spread", "-1", &path("x")];
    assert!(refusal(&flat).contains("twice"));
    fs::write(path("words.txt"), "J Q").expect("written");
    let flat = ["model", "new", "--config", &config, "--words", &path("words.txt"), "--spread", "-1", &path("x")];
    assert!(refusal(&flat).contains("spread"));
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

#[test]
fn doctor_tells_what_it_found() {
    let found: serde_json::Value = serde_json::from_str(&stdout(&mage(&["--json", "doctor"]))).expect("JSON");
    assert!(found["product_gflops"].as_f64().expect("a rate") > 0.0 && found["threads"].as_u64().expect("a count") > 0);
    assert!(stdout(&mage(&["doctor"])).contains("instructions"));
}

/// What has a recipe compute on engines that are not there: nobody listens on port 1.
fn elsewhere(model: &str) -> Vec<String> {
    let sets = [
        &format!("model.path={model}"),
        "engine.kind=tinker",
        "engine.lora_rank=8",
        "tinker.url=http://127.0.0.1:1",
        "vllm.servers=[\"http://127.0.0.1:1\"]",
        "play.mask_actions=false",
        "loss.entropy=0",
        "loss.entropy_end=0",
        "loss.kl_reflect=0",
        "loss.dual_clip=0",
        "optim.clip_norm=0",
    ];
    sets.iter().flat_map(|s| ["--set".to_owned(), (*s).to_owned()]).collect()
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

#[test]
fn doctor_asks_every_engine_though_the_first_is_away() {
    let dir = tempfile::tempdir().expect("a folder");
    let sets = elsewhere(&made(dir.path()));
    // The patience of a run, a quarter of an hour, is not doctor's.
    let args: Vec<&str> = ["doctor", "--engine", "kuhn"].into_iter().chain(sets.iter().map(String::as_str)).collect();
    let out = mage(&args);
    assert!(!out.status.success());
    let said = String::from_utf8(out.stdout).expect("text");
    let no: Vec<&str> = said.lines().filter(|l| l.starts_with("no ")).collect();
    assert!(no.len() == 2 && no[0].contains("trains as") && no[1].contains("serves the model"), "{said}");
    assert!(no[0].contains("is it started, and is tinker.url its address?"), "{said}");
    assert!(no[1].contains("is it started, and is this its address?"), "{said}");
    // An address with a password is refused, and not shown.
    let login: Vec<&str> =
        args.iter().map(|a| if a.starts_with("tinker.url") { "tinker.url=http://me:hush@h:1" } else { a }).collect();
    let out = mage(&login);
    let said = String::from_utf8([out.stdout, out.stderr].concat()).expect("text");
    assert!(said.contains("tinker.url: leave logins") && !said.contains("hush"), "{said}");
}
