//! Tests of LoRA adapters on the command line: Hub names, several adapters per batch, merging, training, and Ctrl-C.

use mage_engine::{Loss, Objective, OptimStep, PerToken, TokenForest, Trainer};
use mage_env::Seed;
use mage_native::{EngineOptions, LoraConfig, NativeModel, WeightDtype};
use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Output, Stdio},
};

const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": true,
    "max_position_embeddings": 100000, "eos_token_id": []}"#;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mage"));
    command.args(args).env_remove("HF_TOKEN").env_remove("HF_HUB_CACHE").env_remove("HF_ENDPOINT");
    // No network and no GPUs.
    command.env("HF_HOME", "/nonexistent").env("HF_HUB_OFFLINE", "1").env("CUDA_VISIBLE_DEVICES", "");
    command
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// Runs a command that must succeed; returns stdout.
fn run(args: &[&str]) -> String {
    stdout(&command(args).output().expect("mage runs"))
}

/// Runs a command that must fail with exit code 2; returns stderr.
fn usage_error(args: &[&str]) -> String {
    let output = command(args).output().expect("mage runs");
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// Creates a model in `dir/model`.
fn create_model(dir: &Path) -> String {
    let (config, text) = (dir.join("config.json"), dir.join("text.txt"));
    fs::write(&config, CONFIG).expect("written");
    fs::write(&text, "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let model = dir.join("model").display().to_string();
    let (config, text) = (config.display().to_string(), text.display().to_string());
    run(&[
        "model",
        "new",
        "--config",
        &config,
        "--tokenizer-from",
        &text,
        "--vocab-size",
        "300",
        "--init-std",
        "0.2",
        &model,
    ]);
    model
}

/// Trains an adapter of the model for a few steps.
fn train_adapter(model: &str, to: &Path, seed: u64) -> String {
    let model = NativeModel::open(Path::new(model)).expect("a model");
    let adapted = model.with_new_adapter(&LoraConfig::default(), Seed::new(seed)).expect("an adapter");
    let (mut trainer, _) = adapted.train(EngineOptions::default()).expect("a trainer");
    let tokens: Vec<u32> = (0..12).map(|i| (Seed::new(seed).at(i).value() % 250) as u32).collect();
    let weights = [0.0].into_iter().chain([0.1; 11]).collect();
    let batch = TokenForest::from_sequences([(tokens, PerToken { weights, ..Default::default() })]);
    for _ in 0..10 {
        trainer.forward_backward(&batch, &Loss::of(Objective::CrossEntropy)).expect("a gradient");
        trainer.optim_step(&OptimStep { learning_rate: 0.03, ..Default::default() }).expect("a step");
    }
    trainer.save_model(to, WeightDtype::F32).expect("saved");
    to.display().to_string()
}

fn scores(model: &str, tokens: &Path, more: &[&str]) -> Vec<f64> {
    let tokens = tokens.display().to_string();
    let text = run(&[&["--json", "model", "score", model, "--tokens", &tokens], more].concat());
    let line: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
    line["logprobs"].as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

#[test]
fn adapters_can_be_scored_sampled_and_merged() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let a = train_adapter(&model, &dir.path().join("a"), 1);
    let b = train_adapter(&model, &dir.path().join("b"), 2);
    let tokens = dir.path().join("tokens.jsonl");
    fs::write(&tokens, "[1, 2, 3, 40, 5, 60, 7]\n").expect("written");
    let (plain, with) = (scores(&model, &tokens, &[]), scores(&model, &tokens, &["--adapter", &a]));
    let max_difference = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(max_difference(&plain, &with) > 0.05);
    assert_eq!(with, scores(&a, &tokens, &[]), "an adapter directory names its base model");
    let shown = run(&["model", "info", &a]);
    assert!(shown.contains("rank 16") && shown.contains(&*fs::canonicalize(&model).expect("there").to_string_lossy()));
    let merged = dir.path().join("merged").display().to_string();
    let text = run(&["model", "merge", &model, &a, &merged]);
    assert!(text.contains("rank 16") && text.contains("down_proj"), "{text}");
    assert!(max_difference(&with, &scores(&merged, &tokens, &[])) < 1e-4);

    let (first, second) = (format!("first={a}"), format!("second={b}"));
    let args = [
        "--chat",
        "PASS or BET?",
        "--max-tokens",
        "12",
        "--adapter",
        &first,
        "--adapter",
        &second,
        "--adapter",
        "base",
    ];
    let batch = run(&[&["--json", "model", "generate", &model], &args[..]].concat());
    let batch: Vec<serde_json::Value> = batch.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let names: Vec<&str> = batch.iter().map(|t| t["weights"].as_str().expect("a name")).collect();
    assert_eq!(names, ["first", "second", "base"]);
    for (in_batch, folder) in batch.iter().zip([&a, &b, &model]) {
        let alone = run(&["--json", "model", "generate", folder, "--chat", "PASS or BET?", "--max-tokens", "12"]);
        let alone: serde_json::Value = serde_json::from_str(alone.trim()).expect("JSON");
        assert_eq!((&in_batch["tokens"], &in_batch["logprobs"]), (&alone["tokens"], &alone["logprobs"]), "{folder}");
        let values = |field: &str| -> Vec<f64> {
            in_batch[field].as_array().expect("a list").iter().map(|l| l.as_f64().expect("a number")).collect()
        };
        assert!(
            max_difference(&values("processed_logprobs"), &values("logprobs")) < 1e-5,
            "nothing is filtered: {in_batch}"
        );
        assert_eq!(in_batch["version"], 0);
    }
    let shown = run(&[&["model", "generate", &model], &args[..]].concat());
    assert!(shown.contains("first\n") && shown.contains("second\n") && shown.contains("base\n"), "{shown}");

    assert!(usage_error(&["model", "merge", &model, &a, &merged]).contains("not empty"));
    let elsewhere = dir.path().join("x").display().to_string();
    assert!(usage_error(&["model", "merge", &a, &b, &elsewhere]).contains("is an adapter"));
    assert!(usage_error(&["model", "merge", &model, &model, &elsewhere]).contains("adapter_config.json"));
    let twice = ["model", "generate", &model, "--prompt", "x", "--adapter", &first, "--adapter", &first];
    assert!(usage_error(&twice).contains("two adapters are named `first`"));
    for (adapter, hint) in
        [("=x", "missing name before"), ("x=", "missing adapter after"), ("a/b=c", "a/b=c"), ("base=x", "another name")]
    {
        assert!(
            usage_error(&["model", "generate", &model, "--prompt", "x", "--adapter", adapter]).contains(hint),
            "{adapter}"
        );
    }
    let equals = dir.path().join("x=y").display().to_string();
    fs::create_dir(&equals).expect("created");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(Path::new(&a).join(file), Path::new(&equals).join(file)).expect("copied");
    }
    let args = ["--prompt", "x", "--max-tokens", "2", "--temperature", "0.5", "--adapter", &equals];
    let one = run(&[&["--json", "model", "generate", &model], &args[..]].concat());
    let one: serde_json::Value = serde_json::from_str(one.trim()).expect("JSON");
    assert_eq!(one["weights"], equals.as_str(), "an existing directory with `=` in its name is not split");
    assert_ne!(one["processed_logprobs"], one["logprobs"], "the temperature is below 1");
    fs::remove_dir_all(&model).expect("removed");
    assert!(usage_error(&["model", "generate", &a, "--prompt", "x"]).contains("no such folder"));
}

#[test]
fn hub_names_are_resolved_in_the_cache() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let home = dir.path().join("home");
    let repo = home.join("hub/models--org--tiny");
    fs::create_dir_all(repo.join("snapshots")).expect("created");
    fs::create_dir_all(repo.join("refs")).expect("created");
    fs::rename(&model, repo.join("snapshots/abc123")).expect("moved");
    fs::write(repo.join("refs/main"), "abc123").expect("written");
    let mage =
        |args: &[&str]| command(args).env("HF_HOME", &home).env("HF_TOKEN", "hf_secret").output().expect("mage runs");
    assert!(stdout(&mage(&["model", "info", "org/tiny"])).contains("parameters"));
    assert!(!stdout(&mage(&["model", "generate", "org/tiny@abc123", "--prompt", "x", "--max-tokens", "3"])).is_empty());
    stdout(&mage(&[
        "bench",
        "sampler",
        "org/tiny",
        "--requests",
        "4",
        "--prompt-tokens",
        "8",
        "--completion-tokens",
        "4",
    ]));
    for name in ["org/other", "org/tiny@v2"] {
        let output = mage(&["model", "info", name]);
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2));
        assert!(text.contains(name) && text.contains("HF_HUB_OFFLINE") && !text.contains("hf_secret"), "{text}");
    }
}

#[test]
fn bench_reports_throughput_latency_and_cache_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    let bench = [
        "bench",
        "sampler",
        &model,
        "--requests",
        "200",
        "--prompt-tokens",
        "40",
        "--prefix-tokens",
        "32",
        "--completion-tokens",
        "4",
    ];
    let table = run(&bench);
    for word in ["requests/s", "tokens/s", "first token", "p50", "p99"] {
        assert!(table.to_lowercase().contains(word), "{word} in {table}");
    }
    let text = run(&[&["--json"], &bench[..]].concat());
    let measured: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
    assert_eq!((&measured["requests"], &measured["completion_tokens"]), (&200.into(), &4.into()));
    let number = |field: &str| measured[field].as_f64().unwrap_or_else(|| panic!("{field} in {measured}"));
    assert!(number("tokens_per_second") > 0.0 && number("requests_per_second") > 0.0);
    assert!((0.5..=1.0).contains(&number("cache_hit_rate")), "32 of 40 tokens are shared: {measured}");
    for times in ["first_token_ms", "latency_ms"] {
        let at = |p: &str| measured[times][p].as_f64().expect("a time");
        assert!(at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max"), "{measured}");
    }
    let none = run(&[&["--json"], &bench[..], &["--no-prefix-cache"]].concat());
    let none: serde_json::Value = serde_json::from_str(none.trim()).expect("JSON");
    assert_eq!(none["cache_hit_rate"], 0.0);
    assert!(
        usage_error(&["bench", "sampler", &model, "--prompt-tokens", "4", "--prefix-tokens", "5"])
            .contains("--prefix-tokens 5")
    );
    assert!(usage_error(&["bench", "sampler", &model, "--prompt-tokens", "100000"]).contains("--prompt-tokens 100000"));
    let text = usage_error(&["bench", "sampler", &model, "--cache-mib", "9999999999"]);
    assert!(text.contains("--cache-mib") && text.contains("free"), "{text}");
    // Without common prefixes: recomputation after preemption is not counted as a cache hit.
    let small =
        ["--json", "bench", "sampler", &model, "--requests", "600", "--max-in-flight", "600", "--prompt-tokens", "40"];
    let small = run(&[&small[..], &["--completion-tokens", "80", "--cache-mib", "1", "--threads", "1"]].concat());
    let small: serde_json::Value = serde_json::from_str(small.trim()).expect("JSON");
    assert!(small["preempted"].as_u64() > Some(0) && small["cache_hit_rate"].as_f64() < Some(0.02), "{small}");
    assert!(
        usage_error(&["bench", "sampler", &model, "--requests", "0"])
            .contains("expected a whole number from 1 to 10000000")
    );
}

/// Whether a process has a handler for SIGINT.
#[cfg(target_os = "linux")]
fn handles_interrupts(process: u32) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("its state");
    let caught = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).expect("its signals");
    u64::from_str_radix(caught.trim(), 16).expect("a mask") & 2 != 0
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_keeps_the_text_generated_so_far() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = create_model(dir.path());
    for json in [false, true] {
        let mut args = vec!["model", "generate", &model, "--prompt", "The", "--max-tokens", "90000", "--threads", "1"];
        if json {
            args.insert(0, "--json");
        }
        let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("mage runs");
        let mut pipe = child.stdout.take().expect("a pipe");
        let mut seen = Vec::new();
        if json {
            // With --json there is no output before the end: wait for the signal handler.
            while !handles_interrupts(child.id()) {
                assert!(child.try_wait().expect("a state").is_none(), "it exited early");
                std::thread::yield_now();
            }
        } else {
            let mut buffer = [0; 64];
            let n = pipe.read(&mut buffer).expect("text");
            seen.extend_from_slice(&buffer[..n]);
            assert!(n > 0, "text is streamed");
        }
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
        assert!(kill.success());
        pipe.read_to_end(&mut seen).expect("the rest");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(seen.last(), Some(&b'\n'), "the last line is complete");
        if json {
            let text = String::from_utf8(seen).expect("UTF-8");
            let kept: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let count = kept["tokens"].as_array().expect("tokens").len();
            assert!(count < 90_000 && kept["finish_reason"].is_null(), "{count}");
        }
    }
}

#[test]
fn adapter_training_can_be_resumed_and_continued() {
    let dir = tempfile::tempdir().expect("a folder");
    let train = |out: &Path, more: &[&str]| {
        let out = out.display().to_string();
        let mut args = vec!["train", "--quiet", "--out", &out];
        let settings = [
            "optim.updates=4",
            "warmstart.steps=4",
            "warmstart.batch_size=8",
            "rollout.groups=2",
            "rollout.group_size=4",
            "optim.minibatches=1",
            "eval.every=4",
            "eval.tasks=10",
            "eval.final_tasks=10",
            "checkpoint.every=2",
        ];
        args.extend(settings.iter().chain(more).flat_map(|s| ["--set", s]));
        command(&args).output().expect("mage runs")
    };
    let last = |run: &Path| run.join("checkpoints/000004");
    let read = |run: &Path, file: &str| fs::read(last(run).join(file)).expect("a checkpoint");
    let base = dir.path().join("base");
    stdout(&train(&base, &[]));
    let path = format!("model.path={}", last(&base).display());
    let lora = [&path, "engine.lora_rank=3", "engine.lora_targets=[\"q_proj\", \"down_proj\"]"];

    let (whole, broken) = (dir.path().join("whole"), dir.path().join("broken"));
    stdout(&train(&whole, &lora));
    let config: serde_json::Value = serde_json::from_slice(&read(&whole, "adapter_config.json")).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&3.into(), &serde_json::json!(6.0)));
    assert_eq!(config["target_modules"], serde_json::json!(["q_proj", "down_proj"]));
    assert!(!last(&whole).join("model.safetensors").exists(), "the base model is not saved");
    assert!(run(&["model", "info", &last(&whole).display().to_string()]).contains("rank 3"));
    assert!(!run(&["model", "generate", &last(&whole).display().to_string(), "--prompt", "K"]).is_empty());

    stdout(&train(&broken, &lora));
    fs::remove_dir_all(last(&broken)).expect("removed");
    run(&["train", "--quiet", "--resume", &broken.display().to_string()]);
    for file in ["adapter_model.safetensors", "training_state/optimizer.safetensors"] {
        assert!(read(&whole, file) == read(&broken, file), "{file}");
    }
    // A run can start from an adapter.
    let (further, adapter) = (dir.path().join("further"), format!("model.path={}", last(&whole).display()));
    stdout(&train(&further, &[&adapter]));
    assert!(read(&further, "adapter_model.safetensors") != read(&whole, "adapter_model.safetensors"));

    let error = |more: &[&str]| {
        let failed = train(&dir.path().join("x"), more);
        assert!(!failed.status.success());
        String::from_utf8(failed.stderr).expect("UTF-8")
    };
    let text = error(&[&path, "engine.lora_rank=2", "engine.lora_targets=[\"lm_head\"]"]);
    assert!(text.contains("lm_head") && text.contains("q_proj"), "{text}");
    assert!(error(&["engine.lora_rank=2"]).contains("set model.path"));
    assert!(error(&[&adapter, "engine.lora_rank=2"]).contains("model.path is an adapter"));
}
