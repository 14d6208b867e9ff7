//! An evaluation under faults: killed processes, a server that dies, and environments that panic.

use crate::common::{stderr, text};
use crate::faulty_kuhn::{Fault, FaultyKuhn, task_number};
use crate::server::Server;
use mage_core::Trajectory;
use mage_env::Task;
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Variable with the command line of a child process, one argument per line.
const CHILD_ARGUMENTS: &str = "MAGE_TEST_CHILD_ARGUMENTS";

const TASKS: usize = 60;

/// One task in four panics: in its build, its reset or its first step.
fn fault(task: &Task) -> Option<Fault> {
    let number = task_number(task);
    let faults = [Fault::PanicInBuild, Fault::PanicInReset, Fault::PanicInStep];
    number.is_multiple_of(4).then(|| faults[(number / 4 % 3) as usize])
}

/// Runs mage with panicking environments in a process of its own, if a test has set its arguments.
#[test]
fn child_process() {
    let Some(arguments) = std::env::var_os(CHILD_ARGUMENTS) else { return };
    let mut app = mage::App::builtin();
    app.registry.register(FaultyKuhn::new(fault));
    mage::run(&app, arguments.to_str().unwrap().lines().map(OsString::from));
}

/// `mage eval` in a child process, with panicking environments.
fn eval(at: SocketAddr, dir: &Path) -> Child {
    let path = |name: &str| dir.join(name).display().to_string();
    let arguments = format!(
        "mage\neval\n--endpoint\nhttp://{at}\n--model\ntiny\n--quiet\n--tasks\n{TASKS}\n--seeds\n1\n--episodes\n2\n\
         --max-in-flight\n8\n--deadline\n120\n--trajectories\n{}\n--summary\n{}",
        path("trajectories.jsonl"),
        path("summary.json")
    );
    let (_, test) = concat!(module_path!(), "::child_process").split_once("::").unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD_ARGUMENTS, arguments)
        .env_remove("MAGE_API_KEY")
        // Backtraces would fill the pipe, and the process would block: the pipe is read after it ends.
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A model server in a runtime of its own, which can die with all connections.
struct ServerProcess {
    server: Server,
    runtime: tokio::runtime::Runtime,
}

impl ServerProcess {
    fn start(at: &str) -> Self {
        let runtime = mage_train::train::runtime(2).unwrap();
        let script = |request: &str| {
            if request.contains("<remark>") { "<remark>I bet.</remark>" } else { "<action>BET</action>" }.to_owned()
        };
        let server = runtime.block_on(Server::start_at(at.parse().unwrap(), Duration::from_millis(10), script));
        ServerProcess { server, runtime }
    }

    /// Waits until it has received `requests` more requests.
    fn wait_for(&self, requests: usize, child: &mut Child) {
        let (target, deadline) = (self.server.seen.requests() + requests, Instant::now() + Duration::from_secs(60));
        while self.server.seen.requests() < target {
            if Instant::now() >= deadline {
                child.kill().unwrap();
                panic!("{} of {target} requests received", self.server.seen.requests());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn finished(dir: &Path) -> Vec<Trajectory> {
    let text = fs::read_to_string(dir.join("trajectories.jsonl")).unwrap();
    let all = text.lines().filter_map(|l| Trajectory::from_json_line(l).ok());
    all.filter(|t| t.error.is_none()).collect()
}

/// The summary of a completed evaluation with failures.
fn summary(output: &Output, dir: &Path) -> Value {
    assert!(stderr(output).contains("meta-episodes failed"), "{}", text(output));
    serde_json::from_slice(&fs::read(dir.join("summary.json")).unwrap()).unwrap()
}

#[test]
fn a_killed_evaluation_with_a_dead_server_and_panics_gives_the_undisturbed_result() {
    let dir = tempfile::tempdir().unwrap();
    let (calm, disturbed) = (dir.path().join("calm"), dir.path().join("disturbed"));
    fs::create_dir(&calm).unwrap();
    fs::create_dir(&disturbed).unwrap();
    let machine = ServerProcess::start("127.0.0.1:0");
    let address = machine.server.address;
    let expected = summary(&eval(address, &calm).wait_with_output().unwrap(), &calm);

    // Killed while it plays.
    let mut first = eval(address, &disturbed);
    machine.wait_for(60, &mut first);
    first.kill().unwrap();
    first.wait().unwrap();
    let after_first: HashSet<_> = finished(&disturbed).into_iter().map(|t| t.key).collect();
    // The server dies and returns; then the process is killed again.
    let mut second = eval(address, &disturbed);
    machine.wait_for(40, &mut second);
    machine.runtime.shutdown_background();
    std::thread::sleep(Duration::from_millis(300));
    let machine = ServerProcess::start(&address.to_string());
    machine.wait_for(20, &mut second);
    second.kill().unwrap();
    second.wait().unwrap();
    let after_second: HashSet<_> = finished(&disturbed).into_iter().map(|t| t.key).collect();
    assert!(after_second.is_superset(&after_first) && after_second.len() < TASKS);

    let before = machine.server.seen.requests();
    let result = summary(&eval(address, &disturbed).wait_with_output().unwrap(), &disturbed);
    assert_eq!(result, expected);
    let all = finished(&disturbed);
    let keys: HashSet<_> = all.iter().map(|t| t.key.clone()).collect();
    assert_eq!(keys.len(), all.len(), "no finished meta-episode is repeated");
    let stored = fs::read_to_string(disturbed.join("trajectories.jsonl")).unwrap();
    let stored = stored.lines().map(|line| Trajectory::from_json_line(line).unwrap());
    let faults: HashMap<_, _> = stored.filter_map(|t| Some((t.key.clone(), fault(&t.task)?))).collect();
    assert_eq!(faults.len(), TASKS - all.len(), "failures are recorded");
    let count = |fault: Fault| faults.values().filter(|f| **f == fault).count();
    let missing = all.iter().filter(|t| !after_second.contains(&t.key));
    // An environment that panics in its first step receives one action.
    let expected_requests = missing.map(|t| t.requests.len()).sum::<usize>() + count(Fault::PanicInStep);
    assert_eq!(machine.server.seen.requests() - before, expected_requests, "only missing meta-episodes are played");
    let failures = result["policies"][0]["failures"].as_object().unwrap();
    for (fault, place) in [(Fault::PanicInBuild, "build"), (Fault::PanicInReset, "reset"), (Fault::PanicInStep, "step")]
    {
        assert!(count(fault) > 0, "{fault:?}");
        let reason = format!("the meta-episode panicked: injected panic in {place}");
        assert_eq!(failures[&reason].as_u64(), Some(count(fault) as u64), "{failures:?}");
    }
    assert_eq!(failures.len(), 3, "{failures:?}");
}
