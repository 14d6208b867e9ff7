//! Tests of the scripts and the recipe that `mage launch` writes.
//!
//! Scripts run in their own process groups and directories, with fake programs in place of SkyRL, vLLM, Slurm and uv.
#![cfg(target_os = "linux")]

use crate::common::{command, json, mage, stderr, stdout, text};
use std::{
    fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

const BACKENDS: [&str; 3] = ["jax", "fsdp", "megatron"];

/// A shared directory with fake programs and a log of their invocations.
struct Sandbox {
    dir: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Self {
        let sandbox = Sandbox { dir: tempfile::tempdir().expect("a folder") };
        fs::create_dir_all(sandbox.path("bin")).expect("created");
        sandbox
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates an executable bash script.
    fn program(&self, path: &str, body: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(&path, format!("#!/usr/bin/env bash\n{body}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// Writes the output of `mage launch` for this directory.
    fn render(&self, target: &str, backend: &str, more: &[&str]) {
        let shared = self.dir.path().display().to_string();
        let launch =
            ["--json", "launch", "--dry-run", target, "--model", "m", "--backend", backend, "--shared-dir", &shared];
        for (name, text) in json(&mage(&[&launch, more].concat())).as_object().expect("files") {
            fs::write(self.path(name), text.as_str().expect("text")).expect("written");
        }
    }

    /// A command that runs a script with the fake programs.
    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(if ignores_interrupts() { "env" } else { "bash" });
        if ignores_interrupts() {
            command.args(["--default-signal=INT", "bash"]);
        }
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").expect("a path"));
        command.arg(self.path(name)).current_dir(self.dir.path()).env("PATH", path).stdin(Stdio::null());
        // In its own process group, so that the script cannot stop the tests.
        command.process_group(0);
        command.env_remove("VLLM_API_KEY").env("CUDA_VISIBLE_DEVICES", "3,5,6,7,8,9,10,11").env("STOP_SECONDS", "1");
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The running processes among those whose ids are in a file.
    fn alive(&self, name: &str) -> Vec<String> {
        let alive = |pid: &&str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        self.read(name).lines().filter(alive).map(str::to_owned).collect()
    }
}

/// A fake server: runs until stopped, at most two minutes. Its child process ignores SIGTERM, like SkyRL's engine.
const SERVER: &str = r#"root=$(cd "$(dirname "$0")" && until [ -e invocations ]; do cd ..; done; pwd)
echo "$(basename "$0") gpus=$CUDA_VISIBLE_DEVICES key=${VLLM_API_KEY:-} $*" >>"$root/invocations"
bash -c 'trap "" TERM; echo $$ >>"$0/pids"; for n in {1..600}; do sleep 0.2; done' "$root" &
echo $$ >>"$root/pids"
for n in {1..600}; do sleep 0.2; done"#;

/// A script that exits with this status once four processes have started.
fn exits_with(root: &str, status: u8) -> String {
    format!("for n in {{1..600}}; do [ $(wc -l <{root}/pids) = 4 ] && break; sleep 0.1; done; exit {status}")
}

/// A sandbox for the servers of one machine, with this vLLM script.
fn one_machine(vllm: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("invocations"), "").expect("written");
    sandbox.program("bin/uv", SERVER);
    sandbox.program("engines/vllm/bin/vllm", vllm);
    sandbox.render("uv", "jax", &["--samplers", "2"]);
    sandbox
}

fn wait_for(condition: impl Fn() -> bool) {
    for _ in 0..2400 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("timed out");
}

fn wait(child: Child) -> Output {
    child.wait_with_output().expect("exits")
}

/// Whether SIGINT is ignored, as in background jobs of a shell. Scripts inherit this and cannot trap the signal.
fn ignores_interrupts() -> bool {
    const INTERRUPT: u64 = 1 << 1;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & INTERRUPT != 0)
}

#[test]
fn when_one_server_exits_the_script_stops_the_others_and_no_other_process() {
    // The second vLLM server exits once all have started.
    let second = exits_with("${0%/engines/*}", 7);
    let sandbox = one_machine(&format!("case $* in *8101*) {second};; esac\n{SERVER}"));
    fs::write(sandbox.path("pids"), "").expect("written");
    // A caller with another child process, in one process group with the script.
    let mut caller = Command::new("bash");
    caller
        .args(["-c", "sleep 300 & bash start.sh; status=$?; kill -0 $! && kill $! && echo caller lives; exit $status"]);
    let script = sandbox.script("start.sh");
    for (name, value) in script.get_envs() {
        match value {
            Some(value) => caller.env(name, value),
            None => caller.env_remove(name),
        };
    }
    let out = caller.current_dir(sandbox.dir.path()).process_group(0).output().expect("runs");
    assert_eq!(out.status.code(), Some(7), "{}", text(&out));
    assert!(stderr(&out).contains("vLLM 1 exited with status 7"), "{}", text(&out));
    assert!(stdout(&out).contains("caller lives"), "{}", text(&out));
    assert_eq!(sandbox.read("pids").lines().count(), 4);
    wait_for(|| sandbox.alive("pids").is_empty());
    // The trainer gets the first visible GPU, the samplers the next ones.
    let invocations = sandbox.read("invocations");
    assert!(invocations.contains("uv gpus=3 ") && invocations.contains("vllm gpus=5 "), "{invocations}");
}

#[test]
fn a_second_skyrl_in_one_shared_directory_is_rejected() {
    let sandbox = one_machine(SERVER);
    fs::write(sandbox.path("pids"), "").expect("written");
    // Another SkyRL, which would process the requests of this one.
    let mut other = Command::new("flock");
    other.args(["-nF"]).arg(sandbox.path("tinker.lock")).args(["sleep", "120"]);
    let mut other = other.spawn().expect("runs");
    wait_for(|| sandbox.path("tinker.lock").exists());
    let out = sandbox.script("start.sh").output().expect("runs");
    other.kill().and_then(|()| other.wait()).expect("exits");
    assert_eq!(out.status.code(), Some(75), "{}", text(&out));
    assert!(stderr(&out).contains("another SkyRL uses the shared directory"), "{}", text(&out));
    assert!(!sandbox.read("invocations").contains("uv "), "{}", sandbox.read("invocations"));
    wait_for(|| sandbox.alive("pids").is_empty());
}

#[test]
fn a_signal_stops_all_servers_and_sets_the_exit_status() {
    let sandbox = one_machine(SERVER);
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        fs::write(sandbox.path("pids"), "").expect("written");
        let child = sandbox.script("start.sh").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        wait_for(|| sandbox.read("pids").lines().count() == 6);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("sent");
        assert!(sent.success());
        let out = wait(child);
        assert_eq!((out.status.code(), out.status.signal()), (Some(status), None), "{}", text(&out));
        // The killed processes are not children of the script and may exit later.
        wait_for(|| sandbox.alive("pids").is_empty());
    }
}

#[test]
fn too_few_gpus_are_rejected_before_a_server_starts() {
    let sandbox = one_machine(SERVER);
    let out = sandbox.script("start.sh").env("CUDA_VISIBLE_DEVICES", "0,1").output().expect("runs");
    assert!(!out.status.success() && stderr(&out).contains("3 GPUs required"), "{}", text(&out));
    assert_eq!(sandbox.read("invocations"), "");
}

#[test]
fn a_slurm_job_requires_a_key_and_exits_with_the_failed_server() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("invocations"), "").expect("written");
    fs::write(sandbox.path("pids"), "").expect("written");
    sandbox.program("bin/scontrol", "printf 'one\\ntwo\\n'");
    sandbox.program("bin/hostname", "echo 127.0.1.1 10.0.0.7");
    // srun … -w NODE COMMAND…
    sandbox.program("bin/srun", "while [ \"$1\" != -w ]; do shift; done; shift 2; exec \"$@\"");
    sandbox.program("engines/vllm/bin/vllm", SERVER);
    sandbox.program("bin/uv", &exits_with("${0%/bin/*}", 9));
    sandbox.render("slurm", "jax", &["--samplers", "2"]);
    let job = || {
        let mut job = sandbox.script("engines.sbatch");
        job.env("SLURM_JOB_NODELIST", "one,two");
        job
    };
    let out = job().output().expect("runs");
    assert!(!out.status.success() && stderr(&out).contains("VLLM_API_KEY: set it to a secret"), "{}", text(&out));
    let out = job().env("VLLM_API_KEY", "hush").output().expect("runs");
    assert_eq!(out.status.code(), Some(9), "{}", text(&out));
    assert!(stderr(&out).contains("SkyRL on one exited with status 9"), "{}", text(&out));
    assert_eq!(sandbox.read("pids").lines().count(), 4);
    wait_for(|| sandbox.alive("pids").is_empty());
    let invocations = sandbox.read("invocations");
    assert!(invocations.lines().all(|l| l.contains("key=hush") && l.contains("--host 10.0.0.7")), "{invocations}");
    assert!(!invocations.contains("--api-key") && !text(&out).contains("hush"), "{invocations}{}", text(&out));
}

/// Creates a fake SkyRL repository: a release, a patch release, and branches with other protocol versions.
fn skyrl_repository(dir: &Path) -> bool {
    let git = |args: &[&str]| {
        let config = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "init.defaultBranch=main",
        ];
        Command::new("git").args(config).args(args).current_dir(dir).stdout(Stdio::null()).status()
    };
    fs::create_dir_all(dir.join("skyrl")).expect("created");
    if git(&["init", "-q"]).is_err() {
        eprintln!("SKIPPED: git is not installed");
        return false;
    }
    for (version, sdk, name) in [
        ("0.4.0", "tinker>=0.25.0,<0.26.0", &["tag", "skyrl-v0.4.0"][..]),
        ("0.4.1", "tinker<0.26,>=0.25.2", &["branch", "patched"]),
        ("0.5.0", "tinker>=0.36", &["branch", "later"]),
        ("0.3.0", "tinker>=0.3.0,<=0.24.1", &["branch", "earlier"]),
    ] {
        fs::write(dir.join("skyrl/__init__.py"), format!("__version__ = \"{version}\"\n")).expect("written");
        let project = format!("name = \"skyrl\"\ntinker = [\n    \"{sdk}\",\n    \"fastapi\",\n]\n");
        fs::write(dir.join("pyproject.toml"), project).expect("written");
        for step in [&["add", "."][..], &["commit", "-qm", version], name] {
            assert!(git(step).expect("git").success(), "{step:?}");
        }
    }
    true
}

#[test]
fn install_checks_out_the_reference_and_rejects_other_protocol_versions() {
    let sandbox = Sandbox::new();
    if !skyrl_repository(&sandbox.path("upstream")) {
        return;
    }
    sandbox.program("bin/uv", "echo \"$*\" >>\"${0%/bin/*}/invocations\"");
    sandbox.render("slurm", "fsdp", &[]);
    let install = |reference: Option<&str>| {
        let mut command = sandbox.script("install.sh");
        let upstream = format!("url.file://{}.insteadOf", sandbox.path("upstream").display());
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", upstream);
        command.env("GIT_CONFIG_VALUE_0", "https://github.com/NovaSky-AI/SkyRL").env_remove("SKYRL_REF");
        reference.map(|r| command.env("SKYRL_REF", r));
        let _ = fs::remove_file(sandbox.path("invocations"));
        let out = command.output().expect("runs");
        (out.status.success(), text(&out), sandbox.read("invocations"), sandbox.read("engines/SkyRL/skyrl/__init__.py"))
    };
    let synced = "sync --extra tinker --extra fsdp\n".to_owned();
    for (reference, version) in [(None, "0.4.0"), (Some("patched"), "0.4.1"), (None, "0.4.0")] {
        let (success, output, invocations, installed) = install(reference);
        assert!(
            success && invocations == synced && installed.contains(version),
            "{reference:?}: {output}{invocations}{installed}"
        );
    }
    for (reference, expected) in [
        ("later", "SKYRL_REF=later is SkyRL 0.5.0 with SDK \"tinker>=0.36\""),
        ("earlier", "mage supports SDK 0.25"),
        ("nowhere", "SKYRL_REF=nowhere cannot be fetched"),
    ] {
        let (success, output, invocations, _) = install(Some(reference));
        assert!(!success && invocations.is_empty() && output.contains(expected), "{reference}: {output}{invocations}");
    }
}

#[test]
fn environments_are_recreated_only_when_their_packages_change() {
    let sandbox = Sandbox::new();
    sandbox.program("bin/uv", "echo \"$*\" >>\"${0%/bin/*}/invocations\"; [ $1 != venv ] || mkdir -p \"${@: -1}\"");
    sandbox.render("uv", "jax", &[]);
    let install = || {
        let _ = fs::remove_file(sandbox.path("invocations"));
        let out = sandbox.script("install.sh").output().expect("runs");
        assert!(out.status.success(), "{}", text(&out));
        sandbox.read("invocations")
    };
    assert!(install().contains("vllm==0.32.0"));
    assert_eq!(install(), "");
    let changed = sandbox.read("install.sh").replace("vllm==0.32.0", "vllm==0.33.0");
    fs::write(sandbox.path("install.sh"), changed).expect("written");
    let invocations = install();
    assert!(invocations.contains("vllm==0.33.0") && !invocations.contains("skyrl["), "{invocations}");
}

#[test]
fn every_engine_recipe_is_accepted_by_train() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let shape = r#"{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096}"#;
    fs::write(path("config.json"), shape).expect("written");
    fs::write(path("text"), "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let new =
        ["model", "new", "--config", &path("config.json"), "--tokenizer-from", &path("text"), "--vocab-size", "300"];
    let created = mage(&[&new[..], &[&path("model")]].concat());
    assert!(created.status.success(), "{}", text(&created));
    for target in ["uv", "ray", "slurm", "kubernetes"] {
        for backend in BACKENDS {
            let out = path(&format!("{target}-{backend}"));
            let launch = ["launch", target, "--model", &path("model"), "--backend", backend, "--out", &out];
            let written = mage(&launch);
            assert!(written.status.success(), "{}", text(&written));
            assert!(stderr(&mage(&launch)).contains("exists already"));
            // A dry run needs neither a key nor a server.
            let mut train = command();
            train.args(["train", "kuhn", &format!("{out}/engine.toml"), "--dry-run"]).env_remove("VLLM_API_KEY");
            let planned = train.current_dir(dir.path()).output().expect("runs");
            assert!(planned.status.success(), "{target}, {backend}: {}", text(&planned));
        }
    }
}
