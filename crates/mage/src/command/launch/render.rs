//! What do the files say?

use crate::cli::{LaunchArgs, LaunchTarget, TrainerBackend};
use serde_json::{Value, json};

/// A file to be: its name and what it is made from.
type Template = (&'static str, &'static str);

const INSTALL: Template = ("install.sh", include_str!("../../../templates/launch/install.sh"));
const RECIPE: Template = ("engine.toml", include_str!("../../../templates/launch/engine.toml"));
/// How a script starts, watches and ends what it consists of.
const CHILDREN: &str = include_str!("../../../templates/launch/children.sh");

fn templates(place: LaunchTarget) -> [Template; 3] {
    let start = match place {
        LaunchTarget::Uv => ("start.sh", include_str!("../../../templates/launch/uv.sh")),
        LaunchTarget::Ray => ("submit.sh", include_str!("../../../templates/launch/ray.sh")),
        LaunchTarget::Slurm => ("engines.sbatch", include_str!("../../../templates/launch/slurm.sbatch")),
        LaunchTarget::Kubernetes => ("engines.yaml", include_str!("../../../templates/launch/kubernetes.yaml")),
    };
    [INSTALL, start, RECIPE]
}

/// The files, by name.
pub(super) fn files(args: &LaunchArgs) -> Vec<(&'static str, String)> {
    templates(args.target).into_iter().map(|(name, template)| (name, render(template, args))).collect()
}

/// Whether vLLM servers of our own sample. SkyRL's GPU backends bring vLLM engines along and hand out weights through them alone.
pub(super) fn pooled(args: &LaunchArgs) -> bool {
    matches!(args.backend, TrainerBackend::Jax)
}

/// The ranks that vLLM's `--max-lora-rank` takes (0.32.0).
const VLLM_RANKS: [usize; 9] = [1, 8, 16, 32, 64, 128, 256, 320, TOP_RANK];
/// The largest.
pub(super) const TOP_RANK: usize = 512;

/// The least of them that holds a rank.
pub(super) fn vllm_rank(rank: usize) -> Option<usize> {
    VLLM_RANKS.into_iter().find(|r| *r >= rank)
}

fn shared(args: &LaunchArgs) -> &str {
    args.shared.trim_end_matches('/')
}

/// What SkyRL's backend is told at its start.
fn backend_config(args: &LaunchArgs) -> String {
    let optim = mage_train::recipe::Recipe::default().optim;
    // 0.98 as 0.98, not as the nearest double to the nearest float.
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
            "generator.inference_engine.engine_init_kwargs.max_model_len": args.context,
            // Requests carry the learning rate alone.
            "trainer.policy.optimizer_config.max_grad_norm": number(optim.max_grad_norm),
            "trainer.policy.optimizer_config.adam_betas": [number(optim.beta1), number(optim.beta2)],
            "trainer.policy.optimizer_config.weight_decay": number(optim.weight_decay),
        }),
    };
    if let (TrainerBackend::Megatron, Some(config)) = (args.backend, config.as_object_mut()) {
        // Sampler weights are then the adapter, and not the whole model with the adapter in it.
        config.insert("trainer.policy.megatron_config.lora_config.merge_lora".into(), false.into());
        config.insert("trainer.policy.model.lora.lora_sync_path".into(), format!("{}/lora", shared(args)).into());
        config.insert("trainer.logprobs_chunk_size".into(), Value::Null);
    }
    config.to_string()
}

/// What SkyRL's environment holds beside what is there.
fn skyrl_env(args: &LaunchArgs) -> Vec<(&'static str, String)> {
    if pooled(args) {
        let environment = format!("{}/engines/skyrl", shared(args));
        return vec![("VIRTUAL_ENV", environment.clone()), ("UV_PROJECT_ENVIRONMENT", environment)];
    }
    // Its engines would look for free ports from the API's own on.
    vec![("SKYRL_VLLM_START_PORT", "8200".to_owned())]
}

/// Where the sampling servers are.
fn servers(args: &LaunchArgs) -> String {
    let address = |i: usize| match args.target {
        LaunchTarget::Kubernetes => format!("\"http://mage-vllm-{i}.mage-vllm:8100\""),
        LaunchTarget::Slurm => format!("\"http://SAMPLER_NODE:{}\"", 8100 + i),
        LaunchTarget::Uv | LaunchTarget::Ray => format!("\"http://127.0.0.1:{}\"", 8100 + i),
    };
    (0..args.samplers).map(address).collect::<Vec<_>>().join(", ")
}

/// Puts the values in.
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
        ("trainer_cards", (0..gpus).map(|i| i.to_string()).collect::<Vec<_>>().join(",")),
        ("tinker_gpus", (gpus + own_engines).to_string()),
        ("machine_gpus", (gpus + args.samplers).to_string()),
        ("node_gpus", (if pooled { gpus.max(args.samplers) } else { gpus }).to_string()),
        ("gpus", gpus.to_string()),
        ("nodes", args.nodes.to_string()),
        ("all_nodes", (args.nodes + if pooled { 1 } else { args.samplers.div_ceil(gpus) }).to_string()),
        ("samplers", args.samplers.to_string()),
        ("last_sampler", (args.samplers - 1).to_string()),
        ("rank", args.lora_rank.to_string()),
        ("vllm_rank", vllm_rank(args.lora_rank).unwrap_or(args.lora_rank).to_string()),
        ("context", args.context.to_string()),
        ("shared", shared.to_owned()),
        ("servers", servers(args)),
        ("url", url.to_owned()),
        ("clip_norm", format!("{:?}", optim.max_grad_norm)),
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
    use super::{super::tests::args, *};
    use std::process::Command;

    /// Every place with every backend.
    fn all(options: &[&str], mut look: impl FnMut(&str, &LaunchArgs)) {
        for place in ["uv", "ray", "slurm", "kubernetes"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&[&[place, "--model", "Qwen/Qwen3-4B", "--backend", backend], options].concat());
                look(&format!("{place}, {backend}"), &args);
            }
        }
    }

    fn text(args: &LaunchArgs) -> String {
        files(args).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn nothing_is_left_open_and_nobody_listens_to_the_world() {
        all(&[], |name, args| {
            let text = text(args);
            assert!(!text.contains("{{"), "{name}:\n{text}");
            assert!(!text.contains("0.0.0.0") || matches!(args.target, LaunchTarget::Kubernetes), "{name}");
        });
    }

    #[test]
    fn every_engine_block_is_taken_by_recipes() {
        all(&["--samplers", "3"], |name, args| {
            for base in mage_train::recipe::builtin_names() {
                let mut composer = mage_train::recipe::Composer::new();
                // Methods stand on a recipe.
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
    fn scripts_are_scripts_and_json_stays_json() {
        all(&["--lora-rank", "12"], |name, args| {
            for (file, text) in files(args).into_iter().filter(|(file, _)| !file.ends_with("ml")) {
                assert!(!text.contains("--max-lora-rank 12"), "vLLM takes 16:\n{text}");
                let Ok(read) = Command::new("bash").args(["-n", "-c", &text]).output() else {
                    eprintln!("SKIPPED: there is no bash to read scripts");
                    return;
                };
                assert!(read.status.success(), "{name}, {file}: {}", String::from_utf8_lossy(&read.stderr));
            }
            let config = backend_config(args);
            assert!(serde_json::from_str::<Value>(&config).unwrap().is_object());
            assert!(!config.contains(['\'', '$', '`', '\\']), "it goes into quotes: {config}");
        });
    }

    /// An option that changes nothing is one that a reader believes in for nothing.
    #[test]
    fn every_option_changes_what_is_written() {
        for changed in
            [["--gpus", "2"], ["--samplers", "3"], ["--lora-rank", "12"], ["--context", "512"], ["--shared", "/s"]]
        {
            all(&changed, |name, with| {
                let mut without = String::new();
                all(&[], |other, args| {
                    if other == name {
                        without = text(args);
                    }
                });
                assert_ne!(text(with), without, "{name}: {changed:?}");
            });
        }
    }

    #[test]
    fn parts_on_one_machine_have_gpus_of_their_own() {
        let start = |line: &str| {
            let args = args(&line.split(' ').collect::<Vec<_>>());
            files(&args).swap_remove(1).1
        };
        let ray = start("ray --model m --backend jax --gpus 3 --samplers 2");
        // Without a number Ray hides no GPU from a job.
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
    fn models_by_name_are_kept_beside_the_engines_everywhere() {
        all(&["--shared", "/s", "--samplers", "2"], |name, args| {
            let start = files(args).swap_remove(1).1;
            // Scripts hand theirs on; a job or a pod has an environment of its own.
            let parts = match args.target {
                LaunchTarget::Uv | LaunchTarget::Slurm => 1,
                LaunchTarget::Ray | LaunchTarget::Kubernetes => 1 + usize::from(pooled(args)),
            };
            assert_eq!(start.lines().filter(|l| l.contains("HF_HOME") && l.contains("/s/hf")).count(), parts, "{name}");
        });
    }

    #[test]
    fn who_listens_beyond_loopback_asks_for_a_key_that_no_file_holds() {
        for place in ["slurm", "kubernetes"] {
            let args = args(&[place, "--model", "m", "--backend", "jax"]);
            let text = text(&args);
            let asked =
                if place == "slurm" { "${VLLM_API_KEY:?" } else { "name: VLLM_API_KEY, valueFrom: {secretKeyRef" };
            assert!(text.contains(asked) && text.contains("key_env = \"VLLM_API_KEY\""), "{text}");
            assert!(!text.contains("--api-key"), "arguments are seen by everybody on a machine");
        }
    }
}
