//! `mage launch`: launch scripts for trainer and inference servers.
//!
//! Renders templates and starts nothing. The scripts start other projects' programs (SkyRL, vLLM, Ray, Slurm,
//! Kubernetes), whose flags change often: review and adapt the files.

mod render;

use crate::{
    cli::{LaunchArgs, LaunchTarget, TrainerBackend},
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;
use render::{files, pooled, slurm_nodes, vllm_rank};

/// GPUs of a typical machine, the most that a template requests of one machine.
const GPUS_PER_MACHINE: usize = 8;

/// Rejects arguments that the templates do not support.
fn check(args: &LaunchArgs) -> anyhow::Result<()> {
    for (flag, text) in [("--model", &args.model), ("--shared-dir", &args.shared_dir)] {
        // The text is inserted into shell scripts, JSON and YAML without quoting.
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@".contains(c)) {
            return Err(usage(format!("{flag} {text:?}: only letters, digits and / . _ - @ are supported")));
        }
    }
    // A program would read another prefix as an option or as a path relative to its working directory.
    if !args.model.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/') {
        return Err(usage(format!(
            "--model {}: a name on the Hub starts with a letter or digit, a path with /",
            args.model
        )));
    }
    if args.model.contains('@') && !args.model.starts_with('/') {
        return Err(usage(format!(
            "--model {}: SkyRL and vLLM support no revision in a name; use a local directory",
            args.model
        )));
    }
    if !args.shared_dir.starts_with('/') || args.shared_dir.trim_end_matches('/').is_empty() {
        return Err(usage(format!(
            "--shared-dir {}: expected an absolute path of a directory below /, mounted there on all machines",
            args.shared_dir
        )));
    }
    if vllm_rank(args.lora_rank).is_none() {
        return Err(usage(format!(
            "--lora-rank {}: vLLM supports ranks up to {}",
            args.lora_rank,
            render::MAX_VLLM_RANK
        )));
    }
    let one_machine = matches!(args.target, LaunchTarget::Uv | LaunchTarget::Kubernetes);
    if args.nodes > 1 && (one_machine || pooled(args)) {
        let reason = if pooled(args) { "--backend jax is one process" } else { "this target has one training machine" };
        return Err(usage(format!("--nodes {}: {reason}; use ray or slurm with fsdp or megatron", args.nodes)));
    }
    let (needed, machine) = args.max_gpus_per_machine();
    if needed > GPUS_PER_MACHINE {
        return Err(usage(format!(
            "--gpus {} and --samplers {} need {needed} GPUs {machine}, but a machine has {GPUS_PER_MACHINE}; use fewer, or \
             slurm or ray with fsdp or megatron, which span several nodes",
            args.gpus(),
            args.samplers
        )));
    }
    Ok(())
}

impl LaunchArgs {
    /// Training GPUs per training node. With jax, only one has been tested.
    fn gpus(&self) -> usize {
        self.gpus.unwrap_or(match self.backend {
            TrainerBackend::Jax => 1,
            TrainerBackend::Fsdp | TrainerBackend::Megatron => 4,
        })
    }

    /// Largest number of GPUs on one machine, and a description of that machine.
    fn max_gpus_per_machine(&self) -> (usize, &'static str) {
        let gpus = self.gpus();
        match (self.target, pooled(self)) {
            (LaunchTarget::Uv, _) => (gpus + self.samplers, "on one machine"),
            (LaunchTarget::Ray, true) => (gpus + self.samplers, "on the head node"),
            (LaunchTarget::Kubernetes, false) => (gpus + self.samplers, "in one pod"),
            (LaunchTarget::Kubernetes, true) => (gpus, "in one pod"),
            (LaunchTarget::Slurm, true) => (gpus.max(self.samplers), "on a node"),
            (LaunchTarget::Ray | LaunchTarget::Slurm, false) => (gpus, "on a node"),
        }
    }
}

pub(crate) fn run(args: &LaunchArgs, out: &Output) -> anyhow::Result<()> {
    check(args)?;
    let files = files(args);
    if args.dry_run && out.json {
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
    let paths = || files.iter().map(|(name, _)| args.out.join(name));
    if let Some(path) = paths().find(|p| p.exists()) {
        return Err(usage(format!("{} exists already; choose another --out", path.display())));
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    for (path, (_, text)) in paths().zip(&files) {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        if !out.json {
            out.line(path.display())?;
        }
    }
    let (needed, machine) = args.max_gpus_per_machine();
    if out.json {
        let written: Vec<_> = paths().collect();
        return out.object(&serde_json::json!({ "written": written, "gpus": needed, "gpus_location": machine }));
    }
    let nodes = slurm_nodes(args);
    let machine = match args.target {
        LaunchTarget::Slurm if nodes > 1 => format!("on each of {nodes} nodes"),
        _ => machine.to_owned(),
    };
    out.hint(format!("needs {needed} GPUs {machine}"));
    out.hint(
        "nothing was started: review the scripts, run them, and check the servers with `mage doctor --engine RECIPE engine.toml`",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    pub(super) fn args(words: &[&str]) -> LaunchArgs {
        let cli = crate::cli::Cli::try_parse_from(["mage", "launch"].iter().chain(words)).unwrap();
        let crate::cli::Command::Launch(args) = cli.command else { panic!("expected `mage launch`") };
        args
    }

    #[test]
    fn unsupported_arguments_are_rejected() {
        let rejected = [
            ("uv --model a;b", "only letters"),
            ("uv --model a'b", "only letters"),
            ("uv --model a\"b", "only letters"),
            ("uv --model a$b", "only letters"),
            ("uv --model a\nb", "\"a\\nb\": only letters"),
            ("uv --model=", "only letters"),
            ("uv --model=--host", "starts with a letter"),
            ("uv --model ../m", "starts with a letter"),
            ("uv --model org/name@main", "no revision"),
            ("uv --model m --shared-dir here", "absolute path"),
            ("uv --model m --shared-dir /", "below /"),
            ("uv --model m --nodes 2", "one training machine"),
            ("kubernetes --model m --nodes 2", "one training machine"),
            ("ray --model m --nodes 2 --backend jax", "one process"),
            ("uv --model m --lora-rank 1000", "up to 512"),
            ("uv --model m --gpus 8", "need 12 GPUs on one machine"),
            ("ray --model m --gpus 5 --backend jax", "need 9 GPUs on the head node"),
            ("kubernetes --model m --gpus 5", "need 9 GPUs in one pod"),
            ("slurm --model m --gpus 2 --samplers 9 --backend jax", "need 9 GPUs on a node"),
            ("slurm --model m --gpus 9", "need 9 GPUs on a node"),
        ];
        for (line, expected) in rejected {
            let e = check(&args(&line.split(' ').collect::<Vec<_>>())).expect_err(line).to_string();
            assert!(e.contains(expected), "{line}: {e}");
        }
        let e = check(&args(&["uv", "--model", "a b"])).unwrap_err().to_string();
        assert!(e.contains("only letters"), "{e}");
    }

    #[test]
    fn supported_arguments_are_accepted_and_defaults_fit_one_machine() {
        for target in ["uv", "ray", "slurm", "kubernetes"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&[target, "--model", "m", "--backend", backend]);
                check(&args).unwrap();
                assert!(args.max_gpus_per_machine().0 <= GPUS_PER_MACHINE);
            }
        }
        for line in [
            "slurm --model /models/m --nodes 4 --gpus 8 --samplers 16 --backend megatron",
            "slurm --model m --gpus 2 --samplers 8 --backend jax",
            "ray --model m --gpus 8 --samplers 32",
            "kubernetes --model m --gpus 1 --samplers 32 --backend jax",
            "uv --model 01-ai/Yi --shared-dir /shared/",
        ] {
            check(&args(&line.split(' ').collect::<Vec<_>>())).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
}
