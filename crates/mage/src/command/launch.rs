//! `mage launch`: what starts the engines?
//!
//! Renders templates; starts nothing. What is started is somebody else's (SkyRL, vLLM, Ray, Slurm, Kubernetes), with flags
//! that change faster than this program: the files are meant to be read and changed.

use crate::{
    cli::{Launch, Place, TrainerBackend},
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;

/// A file to be: its name and what it is made from.
type Template = (&'static str, &'static str);

const INSTALL: Template = ("install.sh", include_str!("../../templates/launch/install.sh"));
const RECIPE: Template = ("engine.toml", include_str!("../../templates/launch/engine.toml"));

fn templates(place: Place) -> [Template; 3] {
    let start = match place {
        Place::Uv => ("start.sh", include_str!("../../templates/launch/uv.sh")),
        Place::Ray => ("submit.sh", include_str!("../../templates/launch/ray.sh")),
        Place::Slurm => ("engines.sbatch", include_str!("../../templates/launch/slurm.sbatch")),
        Place::Kubernetes => ("engines.yaml", include_str!("../../templates/launch/kubernetes.yaml")),
    };
    [INSTALL, start, RECIPE]
}

/// Refuses what no template can say.
fn check(args: &Launch) -> anyhow::Result<()> {
    for (flag, text) in [("--model", &args.model), ("--shared", &args.shared)] {
        // It goes into shell scripts, JSON and YAML as it is.
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@".contains(c)) {
            return Err(usage(format!("{flag} {text}: only letters, digits and / . _ - @ are taken")));
        }
    }
    if !args.shared.starts_with('/') {
        return Err(usage(format!(
            "--shared {}: every machine must see it under one path; start it with /",
            args.shared
        )));
    }
    if vllm_rank(args.rank).is_none() {
        return Err(usage(format!(
            "--rank {}: vLLM takes adapters up to rank {}",
            args.rank,
            VLLM_RANKS[VLLM_RANKS.len() - 1]
        )));
    }
    let one_machine = matches!(args.place, Place::Uv | Place::Kubernetes);
    if args.nodes > 1 && (one_machine || pooled(args)) {
        let what = if pooled(args) { "--backend jax is one process" } else { "this place has one training machine" };
        return Err(usage(format!("--nodes {}: {what}; take ray or slurm, and fsdp or megatron", args.nodes)));
    }
    if matches!(args.place, Place::Slurm) && pooled(args) && args.samplers > args.gpus {
        let problem = "they share one node, which has no more GPUs than --gpus";
        return Err(usage(format!("--samplers {}: {problem}", args.samplers)));
    }
    Ok(())
}

/// Whether vLLM servers of our own sample. SkyRL's GPU backends bring vLLM engines along and hand out weights through them alone.
fn pooled(args: &Launch) -> bool {
    matches!(args.backend, TrainerBackend::Jax)
}

/// The ranks that vLLM's `--max-lora-rank` takes (0.32.0).
const VLLM_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, 512];

/// The least of them that holds a rank.
fn vllm_rank(rank: usize) -> Option<usize> {
    VLLM_RANKS.into_iter().find(|r| *r >= rank)
}

pub(crate) fn run(args: &Launch, out: &Output) -> anyhow::Result<()> {
    check(args)?;
    let files: Vec<(&str, String)> = templates(args.place).into_iter().map(|(n, t)| (n, render(t, args))).collect();
    if out.json {
        let all: serde_json::Map<String, serde_json::Value> =
            files.into_iter().map(|(name, text)| (name.to_owned(), text.into())).collect();
        return out.object(&all);
    }
    if args.dry_run {
        for (name, text) in &files {
            out.line(format!("{}\n{text}", styled(BOLD, format!("# {name}"))))?;
        }
        return Ok(());
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    for (name, text) in &files {
        let path = args.out.join(name);
        if path.exists() {
            return Err(usage(format!("{}: it is there already; give another --out", path.display())));
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        out.line(path.display())?;
    }
    out.hint("nothing was started: read the script, run it, then ask `mage doctor --engine` with engine.toml");
    Ok(())
}

/// What SkyRL's backend is told at its start.
fn backend_config(args: &Launch) -> String {
    let optim = mage_lab::recipe::Recipe::default().optim;
    // 0.98 as 0.98, not as the nearest double to the nearest float.
    let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
    let mut config = match args.backend {
        TrainerBackend::Jax => {
            serde_json::json!({"max_lora_adapters": 8, "max_lora_rank": args.rank, "train_micro_batch_size": 8})
        }
        TrainerBackend::Fsdp | TrainerBackend::Megatron => serde_json::json!({
            "trainer.placement.colocate_all": false,
            "trainer.placement.policy_num_nodes": args.nodes,
            "trainer.placement.policy_num_gpus_per_node": args.gpus,
            "generator.inference_engine.num_engines": args.samplers,
            // Requests carry the learning rate alone.
            "trainer.policy.optimizer_config.max_grad_norm": number(optim.clip_norm),
            "trainer.policy.optimizer_config.adam_betas": [number(optim.beta1), number(optim.beta2)],
            "trainer.policy.optimizer_config.weight_decay": number(optim.weight_decay),
        }),
    };
    if let (TrainerBackend::Megatron, Some(config)) = (args.backend, config.as_object_mut()) {
        // Sampler weights are then the adapter, and not the whole model with the adapter in it.
        config.insert("trainer.policy.megatron_config.lora_config.merge_lora".into(), false.into());
        config.insert("trainer.policy.model.lora.lora_sync_path".into(), format!("{}/lora", args.shared).into());
        config.insert("trainer.logprobs_chunk_size".into(), serde_json::Value::Null);
    }
    config.to_string()
}

/// Puts the values in.
fn render(template: &str, args: &Launch) -> String {
    let backend = match args.backend {
        TrainerBackend::Jax => "jax",
        TrainerBackend::Fsdp => "fsdp",
        TrainerBackend::Megatron => "megatron",
    };
    let servers: Vec<String> = (0..args.samplers)
        .map(|i| match args.place {
            Place::Kubernetes => format!("\"http://mage-vllm-{i}.mage-vllm:8100\""),
            Place::Slurm => format!("\"http://SAMPLER_NODE:{}\"", 8100 + i),
            Place::Uv | Place::Ray => format!("\"http://127.0.0.1:{}\"", 8100 + i),
        })
        .collect();
    let url = match args.place {
        Place::Kubernetes => "http://mage-tinker:8000",
        Place::Slurm => "http://TRAINER_NODE:8000",
        Place::Uv | Place::Ray => "http://127.0.0.1:8000",
    };
    let pooled = pooled(args);
    let engines = format!("{}/engines", args.shared);
    let (project, env, flags) = match pooled {
        true => (
            engines.clone(),
            format!("VIRTUAL_ENV={engines}/skyrl UV_PROJECT_ENVIRONMENT={engines}/skyrl "),
            "--no-sync --extra tinker --extra jax".to_owned(),
        ),
        false => (format!("{engines}/SkyRL"), String::new(), format!("--extra tinker --extra {backend}")),
    };
    let own_engines = if pooled { 0 } else { args.samplers };
    let cards: Vec<String> = (0..args.gpus + own_engines).map(|i| i.to_string()).collect();
    let optim = mage_lab::recipe::Recipe::default().optim;
    let config = backend_config(args);
    let values = [
        ("model", args.model.clone()),
        ("backend", backend.to_owned()),
        ("backend_config_quoted", serde_json::Value::from(config.clone()).to_string()),
        ("backend_config", config),
        ("project", project),
        ("skyrl_env", env),
        ("skyrl_flags", flags),
        ("trainer_cards", cards.join(",")),
        ("tinker_gpus", cards.len().to_string()),
        ("gpus", args.gpus.to_string()),
        ("nodes", args.nodes.to_string()),
        ("all_nodes", (args.nodes + if pooled { 1 } else { args.samplers.div_ceil(args.gpus) }).to_string()),
        ("samplers", args.samplers.to_string()),
        ("last_sampler", (args.samplers - 1).to_string()),
        ("rank", args.rank.to_string()),
        ("vllm_rank", vllm_rank(args.rank).unwrap_or(args.rank).to_string()),
        ("context", args.context.to_string()),
        ("shared", args.shared.clone()),
        ("servers", servers.join(", ")),
        ("url", url.to_owned()),
        ("clip_norm", format!("{:?}", optim.clip_norm)),
        ("beta1", format!("{:?}", optim.beta1)),
        ("beta2", format!("{:?}", optim.beta2)),
        ("weight_decay", format!("{:?}", optim.weight_decay)),
    ];
    let text = chosen(&chosen(template, "pool", pooled), "gpu", !pooled);
    values.iter().fold(text, |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

/// The template with the lines between `{{#name}}` and `{{/name}}`, or without them.
fn chosen(template: &str, name: &str, keep: bool) -> String {
    let (open, close) = (format!("{{{{#{name}}}}}"), format!("{{{{/{name}}}}}"));
    let mut inside = false;
    let mut text = String::new();
    for line in template.lines() {
        match line {
            mark if mark == open => inside = true,
            mark if mark == close => inside = false,
            _ if inside && !keep => {}
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::process::Command;

    fn args(line: &str) -> Launch {
        let cli = crate::cli::Cli::try_parse_from(line.split(' ')).unwrap();
        let crate::cli::Command::Launch(args) = cli.command else { panic!("not a launch") };
        args
    }

    #[test]
    fn nothing_is_left_open_and_nobody_listens_to_the_world() {
        for place in ["uv", "ray", "slurm", "kubernetes"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&format!("mage launch {place} --model Qwen/Qwen3-4B --backend {backend} --samplers 3"));
                for (name, template) in templates(args.place) {
                    let text = render(template, &args);
                    assert!(!text.contains("{{"), "{place}/{name}:\n{text}");
                    assert!(!text.contains("0.0.0.0") || place == "kubernetes", "{place}/{name}");
                }
                let recipe = render(RECIPE.1, &args);
                let mut composer = mage_lab::recipe::Composer::new();
                composer.add("kuhn").unwrap();
                composer.add_text(&recipe, "engine.toml").unwrap();
                let recipe = composer.finish().unwrap();
                recipe.check().unwrap_or_else(|e| panic!("{place}, {backend}: {e}"));
                let servers = if backend == "jax" { 3 } else { 0 };
                assert_eq!((recipe.vllm.servers.len(), recipe.engine.lora_rank), (servers, 32));
            }
        }
    }

    #[test]
    fn scripts_are_scripts_and_json_stays_json() {
        for place in ["uv", "ray", "slurm"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&format!("mage launch {place} --model Qwen/Qwen3-4B --backend {backend} --rank 12"));
                for (name, template) in templates(args.place).into_iter().take(2) {
                    let text = render(template, &args);
                    assert!(!text.contains("--max-lora-rank 12"), "vLLM takes 16:\n{text}");
                    let Ok(read) = Command::new("bash").args(["-n", "-c", &text]).output() else {
                        eprintln!("SKIPPED: there is no bash to read scripts");
                        return;
                    };
                    assert!(read.status.success(), "{place}/{name}: {}", String::from_utf8_lossy(&read.stderr));
                }
                let config: serde_json::Value = serde_json::from_str(&backend_config(&args)).unwrap();
                assert!(config.is_object() && !backend_config(&args).contains('\''), "it goes into single quotes");
            }
        }
    }

    #[test]
    fn what_no_template_can_say_is_refused() {
        for (line, words) in [
            ("uv --model a;b", "only letters"),
            ("uv --model m --shared here", "start it with /"),
            ("uv --model m --nodes 2", "one training machine"),
            ("kubernetes --model m --nodes 2", "one training machine"),
            ("ray --model m --nodes 2 --backend jax", "one process"),
            ("slurm --model m --gpus 2 --samplers 3 --backend jax", "share one node"),
            ("uv --model m --rank 1000", "up to rank 512"),
        ] {
            let e = check(&args(&format!("mage launch {line}"))).unwrap_err().to_string();
            assert!(e.contains(words), "{line}: {e}");
        }
        check(&args("mage launch slurm --model m --nodes 4 --backend megatron")).unwrap();
    }
}
