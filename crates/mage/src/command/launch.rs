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

const RECIPE: Template = ("engine.toml", include_str!("../../templates/launch/engine.toml"));

fn templates(place: Place) -> Vec<Template> {
    match place {
        Place::Uv => vec![("start.sh", include_str!("../../templates/launch/uv.sh")), RECIPE],
        Place::Ray => vec![("submit.sh", include_str!("../../templates/launch/ray.sh")), RECIPE],
        Place::Slurm => vec![("engines.sbatch", include_str!("../../templates/launch/slurm.sbatch")), RECIPE],
        Place::Kubernetes => vec![("engines.yaml", include_str!("../../templates/launch/kubernetes.yaml")), RECIPE],
    }
}

pub(crate) fn run(args: &Launch, out: &Output) -> anyhow::Result<()> {
    for (flag, text) in [("--model", &args.model), ("--shared", &args.shared)] {
        // It goes into shell scripts, JSON and YAML as it is.
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@".contains(c)) {
            return Err(usage(format!("{flag} {text}: only letters, digits and / . _ - @ are taken")));
        }
    }
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

/// Puts the values in.
fn render(template: &str, args: &Launch) -> String {
    let backend = match args.backend {
        TrainerBackend::Jax => "jax",
        TrainerBackend::Fsdp => "fsdp",
        TrainerBackend::Megatron => "megatron",
    };
    let config = match args.backend {
        TrainerBackend::Jax => {
            format!(r#"{{"max_lora_adapters": 8, "max_lora_rank": {}, "train_micro_batch_size": 8}}"#, args.rank)
        }
        TrainerBackend::Fsdp | TrainerBackend::Megatron => format!(
            r#"{{"trainer.placement.colocate_all": false, "trainer.placement.policy_num_nodes": {}, "trainer.placement.policy_num_gpus_per_node": {}}}"#,
            args.nodes, args.gpus
        ),
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
    // JAX is one process and takes no role.
    let role = if matches!(args.backend, TrainerBackend::Jax) { "" } else { " --runtime-role trainer" };
    let values = [
        ("model", args.model.clone()),
        ("backend", backend.to_owned()),
        ("backend_config", config),
        ("role", role.to_owned()),
        ("gpus", args.gpus.to_string()),
        ("nodes", args.nodes.to_string()),
        ("all_nodes", (args.nodes + 1).to_string()),
        ("samplers", args.samplers.to_string()),
        ("last_sampler", (args.samplers - 1).to_string()),
        ("rank", args.rank.to_string()),
        ("context", args.context.to_string()),
        ("shared", args.shared.clone()),
        ("servers", servers.join(", ")),
        ("url", url.to_owned()),
    ];
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

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
                assert_eq!((recipe.vllm.servers.len(), recipe.engine.lora_rank), (3, 32));
            }
        }
    }
}
