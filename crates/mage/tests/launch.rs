//! Do the scripts that `mage launch` writes behave, and is the recipe block they come with taken?
//!
//! Scripts run with stand-ins for the programs they start, in processes and folders of their own.
#![cfg(target_os = "linux")]

mod common;

use common::{command, json, mage, stderr, stdout, text};
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

/// A folder that all machines share, stand-ins for what scripts start, and what they were asked for.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Stage { dir: tempfile::tempdir().expect("a folder") };
        fs::create_dir_all(stage.path("bin")).expect("made");
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program of this name that is this script.
    fn program(&self, path: &str, body: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, format!("#!/usr/bin/env bash\n{body}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// Writes what `mage launch` says for this folder.
    fn render(&self, place: &str, backend: &str, more: &[&str]) {
        let shared = self.dir.path().display().to_string();
        let launch =
            ["--json", "launch", "--dry-run", place, "--model", "m", "--backend", backend, "--shared", &shared];
        for (name, text) in json(&mage(&[&launch, more].concat())).as_object().expect("files") {
            fs::write(self.path(name), text.as_str().expect("text")).expect("written");
        }
    }

    /// A script of these, to be run with the stand-ins.
    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(if ignores_interrupts() { "env" } else { "bash" });
        if ignores_interrupts() {
            command.args(["--default-signal=INT", "bash"]);
        }
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").expect("a path"));
        command.arg(self.path(name)).current_dir(self.dir.path()).env("PATH", path).stdin(Stdio::null());
        // One that ended its whole group would end the tests.
        command.process_group(0);
        command.env_remove("VLLM_API_KEY").env("CUDA_VISIBLE_DEVICES", "3,5,6,7,8,9,10,11").env("STOP_SECONDS", "1");
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Who of those that wrote their number into a file is still there.
    fn alive(&self, name: &str) -> Vec<String> {
        let alive = |pid: &&str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        self.read(name).lines().filter(alive).map(str::to_owned).collect()
    }
}

/// Serves until it is ended, or for two minutes; a helper of its own does not listen to SIGTERM, as SkyRL's engine does not.
const SERVES: &str = r#"root=$(cd "$(dirname "$0")" && until [ -e asked ]; do cd ..; done; pwd)
echo "$(basename "$0") cards=$CUDA_VISIBLE_DEVICES key=${VLLM_API_KEY:-} $*" >>"$root/asked"
bash -c 'trap "" TERM; echo $$ >>"$0/pids"; for n in {1..600}; do sleep 0.2; done' "$root" &
echo $$ >>"$root/pids"
for n in {1..600}; do sleep 0.2; done"#;

/// Ends with this status once four processes have written their number down.
fn gives_up(root: &str, status: u8) -> String {
    format!("for n in {{1..600}}; do [ $(wc -l <{root}/pids) = 4 ] && break; sleep 0.1; done; exit {status}")
}

/// A stage on which one machine's engines start, with vLLM as given.
fn one_machine(vllm: &str) -> Stage {
    let stage = Stage::new();
    fs::write(stage.path("asked"), "").expect("written");
    stage.program("bin/uv", SERVES);
    stage.program("engines/vllm/bin/vllm", vllm);
    stage.render("uv", "jax", &["--samplers", "2"]);
    stage
}

fn wait_for(what: impl Fn() -> bool) {
    for _ in 0..2400 {
        if what() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("it does not come to pass");
}

fn ended(child: Child) -> Output {
    child.wait_with_output().expect("it ends")
}

/// Whether these tests were started in the background by a shell that has such jobs ignore Ctrl-C: scripts inherit that and
/// cannot trap it.
fn ignores_interrupts() -> bool {
    const INTERRUPT: u64 = 1 << 1;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & INTERRUPT != 0)
}

#[test]
fn a_server_that_ends_ends_the_rest_with_its_status_and_nobody_else() {
    // The second vLLM gives up once all are there.
    let second = gives_up("${0%/engines/*}", 7);
    let stage = one_machine(&format!("case $* in *8101*) {second};; esac\n{SERVES}"));
    fs::write(stage.path("pids"), "").expect("written");
    // A caller with something else to do, in one process group with the script.
    let mut caller = Command::new("bash");
    caller
        .args(["-c", "sleep 300 & bash start.sh; status=$?; kill -0 $! && kill $! && echo caller lives; exit $status"]);
    let script = stage.script("start.sh");
    for (name, value) in script.get_envs() {
        match value {
            Some(value) => caller.env(name, value),
            None => caller.env_remove(name),
        };
    }
    let out = caller.current_dir(stage.dir.path()).process_group(0).output().expect("it runs");
    assert_eq!(out.status.code(), Some(7), "{}", text(&out));
    assert!(stderr(&out).contains("vLLM 1 ended with status 7"), "{}", text(&out));
    assert!(stdout(&out).contains("caller lives"), "{}", text(&out));
    assert_eq!(stage.read("pids").lines().count(), 4);
    wait_for(|| stage.alive("pids").is_empty());
    // The trainer has the first GPU of those offered, the samplers one each of the next.
    let asked = stage.read("asked");
    assert!(asked.contains("uv cards=3 ") && asked.contains("vllm cards=5 "), "{asked}");
}

#[test]
fn a_second_skyrl_in_the_same_folder_is_refused() {
    let stage = one_machine(SERVES);
    fs::write(stage.path("pids"), "").expect("written");
    // Somebody else's, which would take this one's requests for its own.
    let mut other = Command::new("flock");
    other.args(["-nF"]).arg(stage.path("tinker.lock")).args(["sleep", "120"]);
    let mut other = other.spawn().expect("it runs");
    wait_for(|| stage.path("tinker.lock").exists());
    let out = stage.script("start.sh").output().expect("it runs");
    other.kill().and_then(|()| other.wait()).expect("it ends");
    assert_eq!(out.status.code(), Some(75), "{}", text(&out));
    assert!(stderr(&out).contains("another SkyRL works in the shared folder"), "{}", text(&out));
    assert!(!stage.read("asked").contains("uv "), "{}", stage.read("asked"));
    wait_for(|| stage.alive("pids").is_empty());
}

#[test]
fn an_interrupt_ends_all_and_says_so() {
    let stage = one_machine(SERVES);
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        fs::write(stage.path("pids"), "").expect("written");
        let child = stage.script("start.sh").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        wait_for(|| stage.read("pids").lines().count() == 6);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("sent");
        assert!(sent.success());
        let out = ended(child);
        assert_eq!((out.status.code(), out.status.signal()), (Some(status), None), "{}", text(&out));
        // What is killed is no child of the script's, and may take a moment.
        wait_for(|| stage.alive("pids").is_empty());
    }
}

#[test]
fn a_machine_with_too_few_gpus_is_refused_before_anything_starts() {
    let stage = one_machine(SERVES);
    let out = stage.script("start.sh").env("CUDA_VISIBLE_DEVICES", "0,1").output().expect("it runs");
    assert!(!out.status.success() && stderr(&out).contains("3 GPUs are needed"), "{}", text(&out));
    assert_eq!(stage.read("asked"), "");
}

#[test]
fn a_slurm_job_ends_with_the_part_that_died_and_wants_a_key() {
    let stage = Stage::new();
    fs::write(stage.path("asked"), "").expect("written");
    fs::write(stage.path("pids"), "").expect("written");
    stage.program("bin/scontrol", "printf 'one\\ntwo\\n'");
    stage.program("bin/hostname", "echo 127.0.1.1 10.0.0.7");
    // srun … -w NODE COMMAND…
    stage.program("bin/srun", "while [ \"$1\" != -w ]; do shift; done; shift 2; exec \"$@\"");
    stage.program("engines/vllm/bin/vllm", SERVES);
    stage.program("bin/uv", &gives_up("${0%/bin/*}", 9));
    stage.render("slurm", "jax", &["--samplers", "2"]);
    let job = || {
        let mut job = stage.script("engines.sbatch");
        job.env("SLURM_JOB_NODELIST", "one,two");
        job
    };
    let out = job().output().expect("it runs");
    assert!(!out.status.success() && stderr(&out).contains("VLLM_API_KEY: set it to a secret"), "{}", text(&out));
    let out = job().env("VLLM_API_KEY", "hush").output().expect("it runs");
    assert_eq!(out.status.code(), Some(9), "{}", text(&out));
    assert!(stderr(&out).contains("SkyRL on one ended with status 9"), "{}", text(&out));
    assert_eq!(stage.read("pids").lines().count(), 4);
    wait_for(|| stage.alive("pids").is_empty());
    let asked = stage.read("asked");
    assert!(asked.lines().all(|l| l.contains("key=hush") && l.contains("--host 10.0.0.7")), "{asked}");
    assert!(!asked.contains("--api-key") && !text(&out).contains("hush"), "{asked}{}", text(&out));
}

/// A repository that stands for SkyRL's: a release, a patch on it, and a main line that speaks another dialect.
fn skyrl_repository(dir: &Path) -> bool {
    let git = |args: &[&str]| {
        let who = [
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "init.defaultBranch=main",
        ];
        Command::new("git").args(who).args(args).current_dir(dir).stdout(Stdio::null()).status()
    };
    fs::create_dir_all(dir.join("skyrl")).expect("made");
    if git(&["init", "-q"]).is_err() {
        eprintln!("SKIPPED: there is no git");
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
fn an_installation_follows_a_changed_reference_and_refuses_another_dialect() {
    let stage = Stage::new();
    if !skyrl_repository(&stage.path("upstream")) {
        return;
    }
    stage.program("bin/uv", "echo \"$*\" >>\"${0%/bin/*}/asked\"");
    stage.render("slurm", "fsdp", &[]);
    let install = |reference: Option<&str>| {
        let mut command = stage.script("install.sh");
        let upstream = format!("url.file://{}.insteadOf", stage.path("upstream").display());
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", upstream);
        command.env("GIT_CONFIG_VALUE_0", "https://github.com/NovaSky-AI/SkyRL").env_remove("SKYRL_REF");
        reference.map(|r| command.env("SKYRL_REF", r));
        let _ = fs::remove_file(stage.path("asked"));
        let out = command.output().expect("it runs");
        (out.status.success(), text(&out), stage.read("asked"), stage.read("engines/SkyRL/skyrl/__init__.py"))
    };
    let synced = "sync --extra tinker --extra fsdp\n".to_owned();
    for (reference, version) in [(None, "0.4.0"), (Some("patched"), "0.4.1"), (None, "0.4.0")] {
        let (worked, said, asked, there) = install(reference);
        assert!(worked && asked == synced && there.contains(version), "{reference:?}: {said}{asked}{there}");
    }
    for (reference, words) in [
        ("later", "SKYRL_REF=later is SkyRL 0.5.0 for the SDK \"tinker>=0.36\""),
        ("earlier", "mage speaks the dialect of 0.25"),
        ("nowhere", "SKYRL_REF=nowhere cannot be had"),
    ] {
        let (worked, said, asked, _) = install(Some(reference));
        assert!(!worked && asked.is_empty() && said.contains(words), "{reference}: {said}{asked}");
    }
}

#[test]
fn other_packages_make_an_environment_anew_and_the_same_do_not() {
    let stage = Stage::new();
    stage.program("bin/uv", "echo \"$*\" >>\"${0%/bin/*}/asked\"; [ $1 != venv ] || mkdir -p \"${@: -1}\"");
    stage.render("uv", "jax", &[]);
    let install = || {
        let _ = fs::remove_file(stage.path("asked"));
        let out = stage.script("install.sh").output().expect("it runs");
        assert!(out.status.success(), "{}", text(&out));
        stage.read("asked")
    };
    assert!(install().contains("vllm==0.32.0"));
    assert_eq!(install(), "");
    let changed = stage.read("install.sh").replace("vllm==0.32.0", "vllm==0.33.0");
    fs::write(stage.path("install.sh"), changed).expect("written");
    let asked = install();
    assert!(asked.contains("vllm==0.33.0") && !asked.contains("skyrl["), "{asked}");
}

#[test]
fn train_takes_every_engine_block() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let shape = r#"{"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096}"#;
    fs::write(path("config.json"), shape).expect("written");
    fs::write(path("text"), "PASS or BET? The King bets.\n".repeat(20)).expect("written");
    let new =
        ["model", "new", "--config", &path("config.json"), "--tokenizer-from", &path("text"), "--vocab-size", "300"];
    let made = mage(&[&new[..], &[&path("model")]].concat());
    assert!(made.status.success(), "{}", text(&made));
    for place in ["uv", "ray", "slurm", "kubernetes"] {
        for backend in BACKENDS {
            let out = path(&format!("{place}-{backend}"));
            let launch = ["launch", place, "--model", &path("model"), "--backend", backend, "--out", &out];
            let written = mage(&launch);
            assert!(written.status.success(), "{}", text(&written));
            assert!(stderr(&mage(&launch)).contains("there already"));
            // No key and no server: a plan needs neither.
            let mut train = command();
            train.args(["train", "kuhn", &format!("{out}/engine.toml"), "--dry-run"]).env_remove("VLLM_API_KEY");
            let planned = train.current_dir(dir.path()).output().expect("it runs");
            assert!(planned.status.success(), "{place}, {backend}: {}", text(&planned));
        }
    }
}
