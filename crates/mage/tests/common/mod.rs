//! Helpers of the command-line tests.

// Each test binary uses a subset.
#![allow(dead_code)]

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

/// A sweep with one scripted agent.
pub(crate) const SWEEP: &str = r#"
    description = "a test"
    policy = "tiny policy"
    tasks = 6
    episodes = 2
    seeds = [0]
    [[env]]
    name = "kuhn"
    task_sets = ["kuhn"]
    agents = ["random"]
"#;

/// The mage binary without colour settings, input or GPUs: expected values are those of the CPU, and GPUs have separate
/// tests.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mage"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("CUDA_VISIBLE_DEVICES", "").stdin(Stdio::null());
    command
}

/// Runs mage.
pub(crate) fn mage(args: &[&str]) -> Output {
    command().args(args).output().expect("mage starts")
}

/// Runs mage with this input.
pub(crate) fn mage_with_input(args: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mage starts");
    // The process may exit before it reads its input.
    let _ = child.stdin.take().expect("piped").write_all(input.as_ref());
    child.wait_with_output().expect("mage ends")
}

/// Stdout of a process.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Stderr of a process.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Stdout and stderr of a process.
pub(crate) fn text(output: &Output) -> String {
    stdout(output) + &stderr(output)
}

/// The JSON output of a successful command.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": true,
    "max_position_embeddings": 64}"#;

/// Creates a model in `dir/model`.
pub(crate) fn create_model(dir: &Path) -> String {
    let config = dir.join("config.json");
    fs::write(&config, CONFIG).expect("written");
    let corpus = dir.join("text.txt");
    fs::write(&corpus, "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let model = dir.join("model").display().to_string();
    let (config, corpus) = (config.display().to_string(), corpus.display().to_string());
    let output =
        text(&mage(&["model", "new", "--config", &config, "--tokenizer-from", &corpus, "--vocab-size", "300", &model]));
    assert!(output.contains("parameters"), "{output}");
    model
}

/// Overrides with which a recipe uses unreachable engines: no process listens on port 1.
pub(crate) fn unreachable_engines(model: &str) -> Vec<String> {
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
