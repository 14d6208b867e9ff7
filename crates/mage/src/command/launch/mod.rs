//! `mage launch`: what starts the engines?
//!
//! Renders templates; starts nothing. What is started is somebody else's (SkyRL, vLLM, Ray, Slurm, Kubernetes), with flags
//! that change faster than this program: the files are meant to be read and changed.

mod render;

use crate::{
    cli::{LaunchArgs, LaunchTarget, TrainerBackend},
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;
use render::{files, pooled, vllm_rank};

/// What the usual machine has, and no template asks one for more.
const MACHINE: usize = 8;

/// Refuses what no template can say.
fn check(args: &LaunchArgs) -> anyhow::Result<()> {
    for (flag, text) in [("--model", &args.model), ("--shared", &args.shared)] {
        // It goes into shell scripts, JSON and YAML as it is.
        if text.is_empty() || !text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-@".contains(c)) {
            return Err(usage(format!("{flag} {text:?}: only letters, digits and / . _ - @ are taken")));
        }
    }
    // Else a program would take it for an option, or look for it in the folder it happens to run in.
    if !args.model.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/') {
        return Err(usage(format!(
            "--model {}: a name on the Hub starts with a letter or a digit, a folder's path with /",
            args.model
        )));
    }
    if args.model.contains('@') && !args.model.starts_with('/') {
        return Err(usage(format!(
            "--model {}: SkyRL and vLLM take no revision with a name; give a folder that holds it",
            args.model
        )));
    }
    if !args.shared.starts_with('/') || args.shared.trim_end_matches('/').is_empty() {
        return Err(usage(format!(
            "--shared {}: every machine must see it under one path; start it with /, and name a folder",
            args.shared
        )));
    }
    if vllm_rank(args.lora_rank).is_none() {
        return Err(usage(format!(
            "--lora-rank {}: vLLM takes adapters up to rank {}",
            args.lora_rank,
            render::TOP_RANK
        )));
    }
    let one_machine = matches!(args.target, LaunchTarget::Uv | LaunchTarget::Kubernetes);
    if args.nodes > 1 && (one_machine || pooled(args)) {
        let what = if pooled(args) { "--backend jax is one process" } else { "this place has one training machine" };
        return Err(usage(format!("--nodes {}: {what}; take ray or slurm, and fsdp or megatron", args.nodes)));
    }
    let (needed, whose) = args.one_machine();
    if needed > MACHINE {
        return Err(usage(format!(
            "--gpus {} and --samplers {} need {needed} GPUs {whose}, and a machine has {MACHINE}; take fewer, or slurm or ray \
             with fsdp or megatron, which spread over nodes",
            args.gpus(),
            args.samplers
        )));
    }
    Ok(())
}

impl LaunchArgs {
    /// GPUs that train on each training node. Only one has been seen to work with jax.
    fn gpus(&self) -> usize {
        self.gpus.unwrap_or(match self.backend {
            TrainerBackend::Jax => 1,
            TrainerBackend::Fsdp | TrainerBackend::Megatron => 4,
        })
    }

    /// How many GPUs the machine with the most of them needs, and which one that is.
    fn one_machine(&self) -> (usize, &'static str) {
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
        return Err(usage(format!("{}: it is there already; give another --out", path.display())));
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    for (path, (_, text)) in paths().zip(&files) {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        if !out.json {
            out.line(path.display())?;
        }
    }
    let (needed, whose) = args.one_machine();
    if out.json {
        let written: Vec<_> = paths().collect();
        return out.object(&serde_json::json!({ "written": written, "gpus": needed, "where": whose }));
    }
    out.hint(format!("{needed} GPUs are needed {whose}"));
    out.hint(
        "nothing was started: read the scripts, run them, then ask `mage doctor --engine RECIPE` with engine.toml",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    pub(super) fn args(words: &[&str]) -> LaunchArgs {
        let cli = crate::cli::Cli::try_parse_from(["mage", "launch"].iter().chain(words)).unwrap();
        let crate::cli::Command::Launch(args) = cli.command else { panic!("not a launch") };
        args
    }

    #[test]
    fn what_no_template_can_say_is_refused() {
        let refused = [
            ("uv --model a;b", "only letters"),
            ("uv --model a'b", "only letters"),
            ("uv --model a\"b", "only letters"),
            ("uv --model a$b", "only letters"),
            ("uv --model a\nb", "\"a\\nb\": only letters"),
            ("uv --model=", "only letters"),
            ("uv --model=--host", "starts with a letter"),
            ("uv --model ../m", "starts with a letter"),
            ("uv --model org/name@main", "no revision"),
            ("uv --model m --shared here", "start it with /"),
            ("uv --model m --shared /", "name a folder"),
            ("uv --model m --nodes 2", "one training machine"),
            ("kubernetes --model m --nodes 2", "one training machine"),
            ("ray --model m --nodes 2 --backend jax", "one process"),
            ("uv --model m --lora-rank 1000", "up to rank 512"),
            ("uv --model m --gpus 8", "need 12 GPUs on one machine"),
            ("ray --model m --gpus 5 --backend jax", "need 9 GPUs on the head node"),
            ("kubernetes --model m --gpus 5", "need 9 GPUs in one pod"),
            ("slurm --model m --gpus 2 --samplers 9 --backend jax", "need 9 GPUs on a node"),
            ("slurm --model m --gpus 9", "need 9 GPUs on a node"),
        ];
        for (line, words) in refused {
            let e = check(&args(&line.split(' ').collect::<Vec<_>>())).expect_err(line).to_string();
            assert!(e.contains(words), "{line}: {e}");
        }
        let e = check(&args(&["uv", "--model", "a b"])).unwrap_err().to_string();
        assert!(e.contains("only letters"), "{e}");
    }

    #[test]
    fn what_fits_is_taken_and_defaults_fit_one_machine() {
        for place in ["uv", "ray", "slurm", "kubernetes"] {
            for backend in ["jax", "fsdp", "megatron"] {
                let args = args(&[place, "--model", "m", "--backend", backend]);
                check(&args).unwrap();
                assert!(args.one_machine().0 <= MACHINE);
            }
        }
        for line in [
            "slurm --model /models/m --nodes 4 --gpus 8 --samplers 16 --backend megatron",
            "slurm --model m --gpus 2 --samplers 8 --backend jax",
            "ray --model m --gpus 8 --samplers 32",
            "kubernetes --model m --gpus 1 --samplers 32 --backend jax",
            "uv --model 01-ai/Yi --shared /shared/",
        ] {
            check(&args(&line.split(' ').collect::<Vec<_>>())).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
}
