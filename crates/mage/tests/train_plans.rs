//! Tests of `mage train --dry-run`: plans of memory and time.

use crate::train::{fails, mage, ok, server_settings, train};
use std::fs;

#[test]
fn a_dry_run_of_a_remote_recipe_describes_the_servers() {
    let dir = tempfile::tempdir().unwrap();
    let settings = server_settings(dir.path());
    let mut planned = mage(&["train", "kuhn", "--dry-run", "--set", "engine.kind=tinker"]);
    planned.args(&settings).args(["--set", "tinker.url=https://engine.example"]);
    planned.args(["--set", "tinker.key_env=MAGE_TEST_NO_SUCH_KEY"]);
    planned.args(["--set", "vllm.servers=[\"http://sampler.example:8100\"]"]);
    let planned = ok(&mut planned);
    let (plan, warnings) = (String::from_utf8(planned.stdout).unwrap(), String::from_utf8(planned.stderr).unwrap());
    assert!(plan.contains("tinker (jax) at https://engine.example"), "{plan}");
    assert!(!plan.contains("cpu") && !plan.contains("memory"), "{plan}");
    assert!(warnings.contains("MAGE_TEST_NO_SUCH_KEY is not set"), "{warnings}");
    assert!(warnings.contains("vllm.adapter_dir is empty, and http://sampler.example:8100 cannot see"), "{warnings}");
}

#[test]
fn a_dry_run_writes_nothing_and_estimates_time_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let output = ok(mage(&["train", "--dry-run", "--json", "--set", "optim.updates=10"]).current_dir(dir.path()));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["episodes"], 1536);
    assert!(plan["total_seconds"].as_f64().unwrap() > 0.0);
    for tokens in ["prompt_tokens", "response_tokens", "kv_bytes_per_token", "activation_bytes_per_token"] {
        assert!(plan[tokens].as_u64().unwrap() > 500, "{tokens}: {plan}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // --out saves the resolved recipe, but does not overwrite a file.
    let args = ["train", "--dry-run", "--set", "optim.updates=10", "--out", "recipe.toml"];
    ok(mage(&args).current_dir(dir.path()));
    assert!(fs::read_to_string(dir.path().join("recipe.toml")).unwrap().contains("updates = 10"));
    assert!(fails(mage(&args).current_dir(dir.path())).contains("exists already"));
}

#[test]
fn prompts_of_evaluations_must_fit_into_the_context_too() {
    let dir = tempfile::tempdir().unwrap();
    // Its maximum sequence length is too small for any prompt.
    let model = crate::common::create_model(dir.path());
    let longest = |more: &[&str]| -> u32 {
        let sets = ["play.form=full", "play.memory=history_only", "play.play_tokens=16", "eval.split=train"];
        let mut command = train(&dir.path().join("run"), &["--set", &format!("model.path={model}")]);
        sets.iter().chain(more).for_each(|set| _ = command.args(["--set", set]));
        let text = fails(&mut command);
        let (_, tokens) = text.split_once("prompt and response take up to ").expect("the cause");
        tokens.split_once(" tokens").unwrap().0.parse().unwrap()
    };
    let equal = longest(&["play.episodes=2", "eval.episodes=2"]);
    assert_eq!(longest(&["play.episodes=2", "eval.episodes=1"]), equal, "training counts");
    assert!(longest(&["play.episodes=1", "eval.episodes=2"]) > longest(&["play.episodes=1", "eval.episodes=1"]));
    assert_eq!(longest(&["play.episodes=1", "eval.episodes=2"]), equal, "evaluations count");
}

#[test]
fn a_large_model_is_planned_without_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151936, "hidden_size": 2560,
        "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true,
        "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": false}"#;
    let file = dir.path().join("config.json");
    fs::write(&file, config).unwrap();
    let path = format!("model.path={}", serde_json::json!(file.to_str().unwrap()));
    let planned = |more: &[&str]| -> serde_json::Value {
        let output = ok(mage(&["train", "paper/kuhn", "--dry-run", "--json", "--set", &path]).args(more));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let whole = planned(&[]);
    assert_eq!(whole["parameters"], 4_022_468_096_u64);
    assert_eq!(whole["kv_bytes_per_token"], 294_912);
    let adapter = planned(&["--set", "engine.lora_rank=16"]);
    assert!(adapter["trainable_parameters"].as_u64().unwrap() < 100_000_000, "{adapter}");
    assert!(adapter["state_bytes"].as_u64() < whole["state_bytes"].as_u64());
}

#[test]
fn memory_warnings_suggest_lora_only_where_it_helps() {
    let dir = tempfile::tempdir().unwrap();
    let warnings = |recipe: &str, set: &[&str]| {
        let sets = set.iter().flat_map(|s| ["--set", s]);
        String::from_utf8(ok(mage(&["train", recipe, "--dry-run"]).args(sets)).stderr).unwrap()
    };
    let stored = |hidden: usize, inner: usize, layers: u64| {
        let config = serde_json::json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 1000,
            "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
            "tie_word_embeddings": true, "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": false});
        let file = dir.path().join("config.json");
        fs::write(&file, config.to_string()).unwrap();
        warnings("paper/kuhn", &[&format!("model.path={}", serde_json::json!(file.to_str().unwrap()))])
    };
    // The weights take half of the free memory; with gradients and optimizer moments they exceed it.
    let plan = ok(&mut mage(&["train", "kuhn", "--dry-run", "--json"])).stdout;
    let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap();
    let layers = (plan["free_bytes"].as_u64().unwrap() / 8 / 100_930_000).clamp(1, 1024);
    let some = stored(2560, 9728, layers);
    assert!(some.contains("not enough memory") && some.contains("engine.lora_rank"), "{some}");
    // About 10^13 parameters: too many for every machine, also with LoRA.
    let many = stored(65_536, 262_144, 200);
    assert!(many.contains("not enough memory") && !many.contains("lora_rank"), "{many}");
    // LoRA requires an existing model.
    let new = warnings(
        "kuhn",
        &["model.hidden_size=2560", "model.intermediate_size=9728", &format!("model.num_layers={layers}")],
    );
    assert!(new.contains("not enough memory") && !new.contains("lora_rank"), "{new}");
}
