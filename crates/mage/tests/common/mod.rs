//! How do tests run the program?

// Each test program takes what it needs.
#![allow(dead_code)]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The program, without colours asked for or forbidden, and without input. It sees no card: what tests expect of numbers, bits
/// and memory is what the processor does, and what cards do has tests of its own.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mage"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("CUDA_VISIBLE_DEVICES", "").stdin(Stdio::null());
    command
}

/// Runs it.
pub(crate) fn mage(args: &[&str]) -> Output {
    command().args(args).output().expect("mage starts")
}

/// Runs it on some input.
pub(crate) fn mage_with_input(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mage starts");
    // One that needs no input may have ended before it was given.
    let _ = child.stdin.take().expect("piped").write_all(input.as_ref());
    child.wait_with_output().expect("mage ends")
}

/// What was written to stdout.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// What was written to stderr.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Everything that was written.
pub(crate) fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// The JSON that a successful command wrote.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A folder of test data that is not part of the repository: under `MAGE_DATA`, else under `data/` at the root of the
/// workspace; says loudly when there is none.
pub(crate) fn data(name: &str) -> Option<PathBuf> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
    let folder = std::env::var_os("MAGE_DATA").map_or_else(own, PathBuf::from).join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("MAGE_DATA").is_none(), "MAGE_DATA is set, but there is no {}", folder.display());
    // Straight to the handle: what `eprintln!` writes, a passing test swallows.
    let _ = writeln!(std::io::stderr(), "SKIPPED: no {}; set MAGE_DATA to the folder of test data", folder.display());
    None
}

const SHAPE: &str = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": true,
    "max_position_embeddings": 64}"#;

/// A new model in `dir/model`.
pub(crate) fn made(dir: &Path) -> String {
    let config = dir.join("config.json");
    fs::write(&config, SHAPE).expect("written");
    let words = dir.join("text.txt");
    fs::write(&words, "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let model = dir.join("model").display().to_string();
    let (config, words) = (config.display().to_string(), words.display().to_string());
    let said =
        text(&mage(&["model", "new", "--config", &config, "--tokenizer-from", &words, "--vocab-size", "300", &model]));
    assert!(said.contains("parameters"), "{said}");
    model
}

/// What has a recipe compute on engines that are not there: nobody listens on port 1.
pub(crate) fn elsewhere(model: &str) -> Vec<String> {
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
        "optim.max_grad_norm=0",
    ];
    sets.iter().flat_map(|s| ["--set".to_owned(), (*s).to_owned()]).collect()
}
