//! Rendering of the launch templates.

use crate::cli::{LaunchArgs, LaunchTarget, TrainerBackend};
use serde_json::{Value, json};

/// Name of an output file and its template.
type Template = (&'static str, &'static str);

const INSTALL: Template = ("install.sh", include_str!("../../../templates/launch/install.sh"));
const RECIPE: Template = ("engine.toml", include_str!("../../../templates/launch/engine.toml"));
/// Shell functions that start, monitor and stop the processes of a script.
const CHILDREN: &str = include_str!("../../../templates/launch/children.sh");

fn templates(target: LaunchTarget) -> [Template; 3] {
    let start = match target {
        LaunchTarget::Uv => ("start.sh", include_str!("../../../templates/launch/uv.sh")),
        LaunchTarget::Ray => ("submit.sh", include_str!("../../../templates/launch/ray.sh")),
        LaunchTarget::Slurm => ("engines.sbatch", include_str!("../../../templates/launch/slurm.sbatch")),
        LaunchTarget::Kubernetes => ("engines.yaml", include_str!("../../../templates/launch/kubernetes.yaml")),
    };
    [INSTALL, start, RECIPE]
}

/// The rendered files with their names.
pub(super) fn files(args: &LaunchArgs) -> Vec<(&'static str, String)> {
    templates(args.target).into_iter().map(|(name, template)| (name, render(template, args))).collect()
}

/// Nodes of a Slurm allocation: those that train, and those for the samplers.
pub(super) fn slurm_nodes(args: &LaunchArgs) -> usize {
    args.nodes + if pooled(args) { 1 } else { args.samplers.div_ceil(args.gpus()) }
}

/// Whether separate vLLM servers sample. SkyRL's GPU backends include vLLM engines, the only way to sample their
/// weights.
pub(super) fn pooled(args: &LaunchArgs) -> bool {
    matches!(args.backend, TrainerBackend::Jax)
}

/// Values that vLLM 0.32.0 accepts for `--max-lora-rank`.
const VLLM_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, MAX_VLLM_RANK];
/// The largest of them.
pub(super) const MAX_VLLM_RANK: usize = 512;

/// The smallest value that is at least `rank`.
pub(super) fn vllm_rank(rank: usize) -> Option<usize> {
    VLLM_RANKS.into_iter().find(|r| *r >= rank)
}

fn shared(args: &LaunchArgs) -> &str {
    args.shared_dir.trim_end_matches('/')
}

/// SkyRL's `--backend-config`.
fn backend_config(args: &LaunchArgs) -> String {
    let optim = mage_train::recipe::Recipe::default().optim;
    // Via text, so that 0.98 is written as 0.98 and not as the double of the nearest float.
    let number = |x: f32| x.to_string().parse::<f64>().unwrap_or(f64::from(x));
    let mut config = match args.backend {
        TrainerBackend::Jax => json!({
            "max_lora_adapters": 8,
            "max_lora_rank": args.lora_rank,
            "fully_sharded_data_parallel_size": args.gpus(),
            "train_micro_batch_size": 8 * args.gpus(),
        }),
        TrainerBackend::Fsdp | TrainerBackend::Megatron => json!({
            "trainer.placement.colocate_all": false,
            "trainer.placement.policy_num_nodes": args.nodes,
            "trainer.placement.policy_num_gpus_per_node": args.gpus(),
            "generator.inference_engine.num_engines": args.samplers,
            "generator.inference_engine.engine_init_kwargs.max_model_len": args.max_seq_len,
            // Requests contain only the learning rate.
            "trainer.policy.optimizer_config.max_grad_norm": number(optim.max_grad_norm),
            "trainer.policy.optimizer_config.adam_betas": [number(optim.beta1), number(optim.beta2)],
            "trainer.policy.optimizer_config.weight_decay": number(optim.weight_decay),
        }),
    };
    if let (TrainerBackend::Megatron, Some(config)) = (args.backend, config.as_object_mut()) {
        // Publish the adapter to the samplers, rather than the merged model.
        config.insert("trainer.policy.megatron_config.lora_config.merge_lora".into(), false.into());
        config.insert("trainer.policy.model.lora.lora_sync_path".into(), format!("{}/lora", shared(args)).into());
        config.insert("trainer.logprobs_chunk_size".into(), Value::Null);
    }
    config.to_string()
}

/// Additional environment variables of SkyRL.
fn skyrl_env(args: &LaunchArgs) -> Vec<(&'static str, String)> {
    if pooled(args) {
        let environment = format!("{}/engines/skyrl", shared(args));
        return vec![("VIRTUAL_ENV", environment.clone()), ("UV_PROJECT_ENVIRONMENT", environment)];
    }
    // By default, its engines search for free ports from the API's port on.
    vec![("SKYRL_VLLM_START_PORT", "8200".to_owned())]
}

/// URLs of the vLLM servers, as TOML.
fn servers(args: &LaunchArgs) -> String {
    let address = |i: usize| match args.target {
        LaunchTarget::Kubernetes => format!("\"http://mage-vllm-{i}.mage-vllm:8100\""),
        LaunchTarget::Slurm => format!("\"http://SAMPLER_NODE:{}\"", 8100 + i),
        LaunchTarget::Uv | LaunchTarget::Ray => format!("\"http://127.0.0.1:{}\"", 8100 + i),
    };
    (0..args.samplers).map(address).collect::<Vec<_>>().join(", ")
}

/// Renders a template.
fn render(template: &str, args: &LaunchArgs) -> String {
    let backend = match args.backend {
        TrainerBackend::Jax => "jax",
        TrainerBackend::Fsdp => "fsdp",
        TrainerBackend::Megatron => "megatron",
    };
    let url = match args.target {
        LaunchTarget::Kubernetes => "http://mage-tinker:8000",
        LaunchTarget::Uv | LaunchTarget::Ray | LaunchTarget::Slurm => "http://127.0.0.1:8000",
    };
    let (pooled, shared, gpus) = (pooled(args), shared(args), args.gpus());
    let (project, flags) = match pooled {
        true => (format!("{shared}/engines"), "--no-sync --extra tinker --extra jax".to_owned()),
        false => (format!("{shared}/engines/SkyRL"), format!("--extra tinker --extra {backend}")),
    };
    let env = skyrl_env(args);
    let job_env: serde_json::Map<String, Value> = env
        .iter()
        .map(|(k, v)| ((*k).to_owned(), v.clone().into()))
        .chain([("HF_HOME".to_owned(), format!("{shared}/hf").into())])
        .collect();
    let own_engines = if pooled { 0 } else { args.samplers };
    let optim = mage_train::recipe::Recipe::default().optim;
    let config = backend_config(args);
    let values = [
        ("children", CHILDREN.trim_end().to_owned()),
        ("model", args.model.clone()),
        ("backend", backend.to_owned()),
        ("backend_config_quoted", Value::from(config.clone()).to_string()),
        ("backend_config", config),
        ("project", project),
        ("skyrl_env", env.iter().map(|(k, v)| format!("{k}={v} ")).collect()),
        ("job_env", Value::from(job_env).to_string()),
        ("skyrl_flags", flags),
        ("trainer_gpus", (0..gpus).map(|i| i.to_string()).collect::<Vec<_>>().join(",")),
        ("tinker_gpus", (gpus + own_engines).to_string()),
        ("machine_gpus", (gpus + args.samplers).to_string()),
        ("node_gpus", (if pooled { gpus.max(args.samplers) } else { gpus }).to_string()),
        ("gpus", gpus.to_string()),
        ("nodes", args.nodes.to_string()),
        ("all_nodes", slurm_nodes(args).to_string()),
        ("samplers", args.samplers.to_string()),
        ("last_sampler", (args.samplers - 1).to_string()),
        ("rank", args.lora_rank.to_string()),
        ("vllm_rank", vllm_rank(args.lora_rank).unwrap_or(args.lora_rank).to_string()),
        ("context", args.max_seq_len.to_string()),
        ("shared", shared.to_owned()),
        ("servers", servers(args)),
        ("url", url.to_owned()),
        ("clip_norm", format!("{:?}", optim.max_grad_norm)),
        ("beta1", format!("{:?}", optim.beta1)),
        ("beta2", format!("{:?}", optim.beta2)),
        ("weight_decay", format!("{:?}", optim.weight_decay)),
    ];
    let text = select_section(&select_section(template, "pool", pooled), "gpu", !pooled);
    values.iter().fold(text, |text, (name, value)| text.replace(&format!("{{{{{name}}}}}"), value))
}

/// Keeps or removes the lines between `{{#name}}` and `{{/name}}`.
fn select_section(template: &str, name: &str, keep: bool) -> String {
    let (open, close) = (format!("{{{{#{name}}}}}"), format!("{{{{/{name}}}}}"));
    let mut inside = false;
    let mut text = String::new();
    for line in template.lines() {
        match line {
            marker if marker == open => inside = true,
            marker if marker == close => inside = false,
            _ if inside && !keep => {}
            _ => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::tests::args, *};
    use std::process::Command;

    /// Calls `check` for every target with every backend.
    fn for_all(options: &[&str], mut check: impl FnMut(&str, &LaunchArgs)) {
        for target in ["uv", "ray", "slurm", "kubernetes"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&[&[target, "--model", "Qwen/Qwen3-4B", "--backend", backend], options].concat());
                check(&format!("{target}, {backend}"), &args);
            }
        }
    }

    fn text(args: &LaunchArgs) -> String {
        files(args).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn no_placeholder_remains_and_no_server_listens_on_all_addresses() {
        for_all(&[], |name, args| {
            let text = text(args);
            assert!(!text.contains("{{"), "{name}:\n{text}");
            assert!(!text.contains("0.0.0.0") || matches!(args.target, LaunchTarget::Kubernetes), "{name}");
        });
    }

    #[test]
    fn every_engine_block_merges_into_every_recipe() {
        for_all(&["--samplers", "3"], |name, args| {
            for base in mage_train::recipe::builtin_names() {
                let mut composer = mage_train::recipe::Composer::new();
                // Methods need a recipe.
                composer.add("kuhn").unwrap();
                composer.add(&base).unwrap();
                composer.add_text(&render(RECIPE.1, args), "engine.toml").unwrap();
                let recipe = composer.finish().unwrap();
                recipe.check().unwrap_or_else(|e| panic!("{name}, {base}: {e}"));
                let servers = if pooled(args) { 3 } else { 0 };
                assert_eq!((recipe.vllm.servers.len(), recipe.engine.lora_rank), (servers, 32), "{name}");
                assert_eq!(recipe.vllm.key_env, "VLLM_API_KEY", "{name}");
            }
        });
    }

    #[test]
    fn scripts_and_json_are_syntactically_valid() {
        for_all(&["--lora-rank", "12"], |name, args| {
            for (file, text) in files(args).into_iter().filter(|(file, _)| !file.ends_with("ml")) {
                assert!(!text.contains("--max-lora-rank 12"), "vLLM requires 16:\n{text}");
                let Ok(parsed) = Command::new("bash").args(["-n", "-c", &text]).output() else {
                    eprintln!("SKIPPED: bash is not installed");
                    return;
                };
                assert!(parsed.status.success(), "{name}, {file}: {}", String::from_utf8_lossy(&parsed.stderr));
            }
            let config = backend_config(args);
            assert!(serde_json::from_str::<Value>(&config).unwrap().is_object());
            assert!(!config.contains(['\'', '$', '`', '\\']), "the config is inserted into single quotes: {config}");
        });
    }

    #[test]
    fn every_option_affects_the_output() {
        for changed in [
            ["--gpus", "2"],
            ["--samplers", "3"],
            ["--lora-rank", "12"],
            ["--max-seq-len", "512"],
            ["--shared-dir", "/s"],
        ] {
            for_all(&changed, |name, with| {
                let mut without = String::new();
                for_all(&[], |other, args| {
                    if other == name {
                        without = text(args);
                    }
                });
                assert_ne!(text(with), without, "{name}: {changed:?}");
            });
        }
    }

    #[test]
    fn processes_on_one_machine_use_disjoint_gpus() {
        let start = |line: &str| {
            let args = args(&line.split(' ').collect::<Vec<_>>());
            files(&args).swap_remove(1).1
        };
        let ray = start("ray --model m --backend jax --gpus 3 --samplers 2");
        // Without --entrypoint-num-gpus, a Ray job sees all GPUs.
        let jobs: Vec<&str> = ray.split("submit \"mage-").skip(1).collect();
        assert!(
            jobs.len() == 2 && jobs.iter().all(|j| j.contains("__internal_head__") || j.contains("\"$head\"")),
            "{ray}"
        );
        assert!(jobs[0].contains("--entrypoint-num-gpus 3") && jobs[1].contains("--entrypoint-num-gpus 1"), "{ray}");
        assert!(ray.contains("\"fully_sharded_data_parallel_size\":3"), "{ray}");
        let slurm = start("slurm --model m --backend jax --gpus 2 --samplers 3");
        assert!(slurm.contains("#SBATCH --gpus-per-node=3") && slurm.contains("CUDA_VISIBLE_DEVICES=0,1 "), "{slurm}");
        let spread = start("slurm --model m --backend fsdp --nodes 2 --gpus 4 --samplers 5");
        assert!(spread.contains("#SBATCH --nodes=4") && spread.contains("#SBATCH --gpus-per-node=4"), "{spread}");
        let pod = start("kubernetes --model m --backend fsdp --gpus 4 --samplers 3");
        assert!(pod.contains("nvidia.com/gpu: 7"), "{pod}");
    }

    #[test]
    fn the_hub_cache_is_in_the_shared_directory_for_every_target() {
        for_all(&["--shared-dir", "/s", "--samplers", "2"], |name, args| {
            let start = files(args).swap_remove(1).1;
            // Scripts pass their environment on; each Ray job and pod sets it.
            let settings = match args.target {
                LaunchTarget::Uv | LaunchTarget::Slurm => 1,
                LaunchTarget::Ray | LaunchTarget::Kubernetes => 1 + usize::from(pooled(args)),
            };
            assert_eq!(
                start.lines().filter(|l| l.contains("HF_HOME") && l.contains("/s/hf")).count(),
                settings,
                "{name}"
            );
        });
    }

    #[test]
    fn servers_beyond_loopback_require_a_key_that_no_file_contains() {
        for target in ["slurm", "kubernetes"] {
            let args = args(&[target, "--model", "m", "--backend", "jax"]);
            let text = text(&args);
            let key =
                if target == "slurm" { "${VLLM_API_KEY:?" } else { "name: VLLM_API_KEY, valueFrom: {secretKeyRef" };
            assert!(text.contains(key) && text.contains("key_env = \"VLLM_API_KEY\""), "{text}");
            assert!(!text.contains("--api-key"), "process arguments are visible to other users");
        }
    }
}
