//! Tests of `mage eval` and `mage sweep` with a local model server that can fail.

use crate::common::{SWEEP, command, stderr, text};
use crate::server::Server;
use mage_core::Trajectory;
use serde_json::Value;
use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// A model server in a runtime of its own. Stopping the runtime closes all connections.
struct ServerProcess {
    server: Server,
    runtime: Runtime,
}

impl ServerProcess {
    fn start(address: Option<SocketAddr>) -> Self {
        Self::slow(address, Duration::from_millis(5))
    }

    /// Starts a server with this latency.
    fn slow(address: Option<SocketAddr>, latency: Duration) -> Self {
        let runtime = mage_train::train::runtime(2).unwrap();
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let server = runtime.block_on(Server::start_at(address, latency, model));
        ServerProcess { server, runtime }
    }

    /// Waits until the client has sent this many requests.
    fn wait_for(&self, requests: usize, client: &mut Child) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.server.seen.requests() < requests {
            if Instant::now() >= deadline {
                client.kill().unwrap();
                panic!("{} of {requests} requests received", self.server.seen.requests());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server and closes all connections.
    fn kill(self) -> SocketAddr {
        let address = self.server.address;
        self.runtime.shutdown_background();
        address
    }
}

/// A model that always bets, and responds to every kind of memory request.
fn model(request: &str) -> String {
    if request.contains("<plan>") {
        "<plan>Bet.</plan>"
    } else if request.contains("\"evolve\"") {
        r#"{"evolve": false}"#
    } else if request.contains("\"keywords\"") {
        r#"{"keywords": ["bet"], "context": "Betting.", "tags": ["game"]}"#
    } else if request.contains("<remark>") {
        "<remark>I bet.</remark>"
    } else {
        "<action>BET</action>"
    }
    .to_owned()
}

fn eval(at: SocketAddr, args: &[&str]) -> Command {
    let mut command = command();
    command.env_remove("MAGE_API_KEY");
    command.args(["eval", "--endpoint", &format!("http://{at}"), "--model", "tiny", "--json", "--quiet"]).args(args);
    command
}

fn run(at: SocketAddr, args: &[&str]) -> Output {
    eval(at, args).output().expect("mage starts")
}

fn records(path: &Path) -> Vec<Trajectory> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter_map(|l| Trajectory::from_json_line(l).ok()).collect()
}

#[test]
fn after_a_server_failure_finished_tasks_are_kept_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trajectories.jsonl");
    let tasks = 60;
    let at = file.to_str().unwrap();
    let args = [
        "--tasks",
        "60",
        "--seeds",
        "1",
        "--episodes",
        "2",
        "--method",
        "reflexion",
        "--max-in-flight",
        "8",
        "--trajectories",
        at,
    ];
    // Short timeouts only for the command that meets the failed server, since this machine may be busy.
    let short_timeout = [&args[..], &["--timeout", "1", "--deadline", "1"]].concat();

    let machine = ServerProcess::start(None);
    let mut child =
        eval(machine.server.address, &short_timeout).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    machine.wait_for(80, &mut child);
    let address = machine.kill();
    let first = child.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(1), "{}", text(&first));
    assert!(stderr(&first).contains("run the command again to resume"), "{}", stderr(&first));
    let before = fs::read(&file).unwrap();
    let finished: HashSet<_> = records(&file).into_iter().filter(|r| r.error.is_none()).map(|r| r.key).collect();
    assert!(!finished.is_empty() && finished.len() < tasks, "{} were finished", finished.len());
    assert!(records(&file).iter().any(|r| r.error.is_some()), "failures are recorded");

    let machine = ServerProcess::start(Some(address));
    let second = run(address, &args);
    assert!(second.status.success(), "{}", stderr(&second));
    assert!(fs::read(&file).unwrap().starts_with(&before), "existing records are unchanged");
    let done: Vec<_> = records(&file).into_iter().filter(|r| r.error.is_none()).collect();
    let keys: HashSet<_> = done.iter().map(|r| r.key.clone()).collect();
    assert_eq!((done.len(), keys.len()), (tasks, tasks), "every task is recorded once");
    assert!(keys.is_superset(&finished));
    let new_calls: usize = done.iter().filter(|r| !finished.contains(&r.key)).map(|r| r.requests.len()).sum();
    assert_eq!(machine.server.seen.requests(), new_calls, "only missing meta-episodes are requested");
    let report: Value = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!((&report["errors"], &report["summary"]["overall"]["meta_episodes"]), (&0.into(), &60.into()));

    // A third run sends no requests and prints an identical report.
    let requests = machine.server.seen.requests();
    let third = run(address, &args);
    assert_eq!(third.stdout, second.stdout);
    assert_eq!(machine.server.seen.requests(), requests);
}

/// Runs a command and interrupts it with Ctrl-C after this many requests.
#[cfg(unix)]
fn run_and_interrupt(mut command: Command, machine: &ServerProcess, requests: usize) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    machine.wait_for(requests, &mut child);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs").success());
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_immediately_and_keeps_finished_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trajectories.jsonl");
    let args = [
        "--tasks",
        "60",
        "--seeds",
        "1",
        "--episodes",
        "2",
        "--max-in-flight",
        "4",
        "--trajectories",
        file.to_str().unwrap(),
    ];
    let machine = ServerProcess::start(None);
    let first = run_and_interrupt(eval(machine.server.address, &args), &machine, 60);
    assert_eq!(first.status.code(), Some(130), "{}", text(&first));
    let finished: HashSet<_> = records(&file).into_iter().map(|r| r.key).collect();
    assert!(!finished.is_empty() && finished.len() < 60, "{} were finished", finished.len());
    assert!(records(&file).iter().all(|r| r.error.is_none()), "cancelled meta-episodes are not failures");

    // Ctrl-C also cancels requests to a server that does not respond.
    let address = machine.kill();
    let before = fs::read(&file).unwrap();
    let machine = ServerProcess::slow(Some(address), Duration::from_secs(3600));
    assert_eq!(run_and_interrupt(eval(address, &args), &machine, 1).status.code(), Some(130));
    assert_eq!(fs::read(&file).unwrap(), before);

    machine.kill();
    let machine = ServerProcess::start(Some(address));
    let last = run(address, &args);
    assert!(last.status.success(), "{}", stderr(&last));
    let all = records(&file);
    let new_calls: usize = all.iter().filter(|r| !finished.contains(&r.key)).map(|r| r.requests.len()).sum();
    assert_eq!((all.len(), machine.server.seen.requests()), (60, new_calls), "finished tasks are not repeated");
}

#[test]
fn memory_retrieval_uses_the_embedding_endpoint() {
    let machine = ServerProcess::start(None);
    let dir = tempfile::tempdir().unwrap();
    let (file, summary) = (dir.path().join("trajectories.jsonl"), dir.path().join("summary.json"));
    let url = format!("http://{}", machine.server.address);
    let args = ["--tasks", "4", "--episodes", "3", "--method", "a-mem,memento", "--embedding-model", "letters"];
    let options = [
        "--embedding-endpoint",
        &url,
        "--trajectories",
        file.to_str().unwrap(),
        "--summary",
        summary.to_str().unwrap(),
    ];
    let output = eval(machine.server.address, &[&args[..], &options].concat()).env("MAGE_API_KEY", "sk-1").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let bodies = machine.server.seen.bodies.lock().unwrap().clone();
    let embedded: Vec<&Value> = bodies.iter().filter(|b| b["input"].is_array()).collect();
    assert!(!embedded.is_empty() && embedded.iter().all(|b| b["model"] == "letters"), "{embedded:?}");
    let calls: usize = records(&file).iter().map(|r| r.requests.len()).sum();
    assert_eq!(bodies.len() - embedded.len(), calls, "every other request is recorded");
    let written: Value = serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
    for policy in written["policies"].as_array().unwrap() {
        let embeddings = policy["embeddings"].as_str().unwrap();
        assert!(embeddings.contains("letters"), "{embeddings}");
        assert_eq!(policy["errors"], 0);
    }
    // Lexical retrieval is another method with other records.
    let lexical = run(machine.server.address, &["--tasks", "4", "--episodes", "3", "--method", "a-mem"]);
    let lexical: Value = serde_json::from_slice(&lexical.stdout).unwrap();
    assert_ne!(lexical["method"], written["policies"][0]["method"]);
}

#[test]
fn a_missing_embedding_endpoint_is_an_error() {
    let machine = ServerProcess::start(None);
    let args = ["--tasks", "12", "--episodes", "3", "--method", "a-mem", "--embedding-model", "letters"];
    let nowhere = format!("http://{}/v9", machine.server.address);
    let output =
        run(machine.server.address, &[&args[..], &["--embedding-endpoint", &nowhere, "--max-in-flight", "4"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(stderr(&output).contains("404"), "{}", text(&output));
}

#[test]
fn an_endpoint_that_refuses_the_first_request_ends_the_evaluation() {
    let machine = ServerProcess::start(None);
    let mut command = command();
    let url = format!("http://{}/v9", machine.server.address);
    let output = command.args(["eval", "--endpoint", &url, "--model", "tiny", "--tasks", "500"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let error = stderr(&output);
    assert!(error.contains("check --endpoint, --model and the API key") && error.contains("404 Not Found"), "{error}");
    assert!(output.stdout.is_empty(), "no tables without results: {}", text(&output));
}

#[test]
fn failures_are_counted_by_reason_on_screen_and_in_json() {
    let machine = ServerProcess::slow(None, Duration::from_secs(3600));
    let args = ["--tasks", "3", "--seeds", "1", "--episodes", "1", "--timeout", "0.2", "--deadline", "0.3"];
    let output = run(machine.server.address, &args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        stderr(&output).contains("3 meta-episodes failed: ") && stderr(&output).contains("no response within 0.2 s")
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failures = report["failures"].as_object().unwrap();
    assert!(failures.keys().all(|reason| reason.contains("no response within 0.2 s")), "{failures:?}");
    assert_eq!(failures.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), 3);
    let url = format!("http://{}", machine.server.address);
    let output = command().args(["eval", "--endpoint", &url, "--model", "tiny"]).args(args).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("3 meta-episodes failed:") && shown.contains("no response within 0.2 s"), "{shown}");
    assert!(!shown.contains("Pass@k"), "no tables without results: {shown}");
}

#[test]
fn an_unreachable_endpoint_is_reported_while_requests_are_retried() {
    // A port that was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let mut child = command()
        .args(["eval", "--endpoint", &url, "--model", "tiny", "--tasks", "3", "--deadline", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let line = lines.find_map(|line| line.ok().filter(|l| l.contains("retrying for"))).unwrap_or_default();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains(&format!(": connection refused ({url}")), "{line}");
}

/// Prompt methods of a sweep.
const METHODS: &str = r#"
    [[method]]
    name = "ReAct"
    prompt = "react"
    [[method]]
    name = "Memento"
    prompt = "memento"
"#;

#[test]
fn a_sweep_evaluates_an_endpoint_and_its_report_contains_the_cells() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("grid.toml"), [SWEEP, METHODS].concat()).unwrap();
    let machine = ServerProcess::start(None);
    let url = format!("http://{}", machine.server.address);
    let sweep = |more: &[&str]| {
        let args = ["sweep", &at("grid.toml"), "--out", &at("out"), "--json"];
        command().args(args).args(more).env_remove("MAGE_API_KEY").output().unwrap()
    };
    let scripted = sweep(&[]);
    assert!(scripted.status.success() && machine.server.seen.requests() == 0, "{}", text(&scripted));
    let with = ["--endpoint", &url, "--model", "tiny", "--embedding-endpoint", &url, "--embedding-model", "letters"];
    let prompted = sweep(&with);
    assert!(prompted.status.success(), "{}", text(&prompted));
    let cells = |output: &Output| String::from_utf8_lossy(&output.stdout).matches("\"event\":\"cell\"").count();
    assert_eq!(cells(&prompted), 2, "the scripted cell is not repeated");
    assert!(machine.server.seen.bodies.lock().unwrap().iter().any(|b| b["input"].is_array()), "memento retrieves");
    let requests = machine.server.seen.requests();
    assert!(sweep(&with).status.success());
    assert_eq!(machine.server.seen.requests(), requests, "finished cells are not repeated");
    assert_eq!(cells(&sweep(&[])), 0, "without an endpoint no cell is run");

    let report = command().args(["report", &at("out"), "--out", &at("page")]).output().unwrap();
    assert!(report.status.success(), "{}", text(&report));
    let page = fs::read_to_string(at("page/report.md")).unwrap();
    for row in ["| ReAct | tiny | 2 |", "| Memento | tiny | 2 |", "| random | scripted | 2 |", "| A-MEM | — | 10 |"] {
        assert!(page.contains(row), "{row} is missing:\n{page}");
    }

    // With another model the cells are repeated, and the old results are kept.
    let other = sweep(&["--endpoint", &url, "--model", "other"]);
    assert!(other.status.success(), "{}", text(&other));
    assert_eq!(cells(&other), 2, "{}", text(&other));
    assert!(
        stderr(&other).contains("--model tiny") && stderr(&other).contains("--model other now"),
        "{}",
        text(&other)
    );
    assert!(Path::new(&at("out/replaced/kuhn/ReAct-on-kuhn.1/summary.json")).exists());
    let cell = fs::read_to_string(at("out/kuhn/ReAct-on-kuhn/cell.json")).unwrap();
    assert!(cell.contains("\"other\"") && !cell.contains("tiny"), "{cell}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_a_sweep_within_a_cell() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("grid.toml"), [SWEEP, METHODS].concat()).unwrap();
    let machine = ServerProcess::slow(None, Duration::from_secs(3600));
    let url = format!("http://{}", machine.server.address);
    let sweep = || {
        let mut sweep = command();
        sweep.args(["sweep", &at("grid.toml"), "--out", &at("out"), "--json", "--endpoint", &url, "--model", "tiny"]);
        sweep
    };
    let stopped = run_and_interrupt(sweep(), &machine, 1);
    assert_eq!(stopped.status.code(), Some(130), "{}", text(&stopped));
    let events = String::from_utf8_lossy(&stopped.stdout).into_owned();
    let of_cells = events.lines().filter(|l| l.contains("\"event\":\"cell\""));
    let states: Vec<bool> = of_cells.map(|l| l.contains("\"state\":\"finished\"")).collect();
    assert_eq!(
        states,
        [true, false],
        "the scripted cell is finished, the first endpoint cell stopped, the rest not started:\n{events}"
    );
    let address = machine.kill();
    let machine = ServerProcess::start(Some(address));
    let rest = sweep().output().unwrap();
    assert!(rest.status.success(), "{}", text(&rest));
    assert!(machine.server.seen.requests() > 0 && Path::new(&at("out/kuhn/Memento-on-kuhn/summary.json")).exists());
}

#[test]
fn the_summary_contains_all_policies_and_paired_comparisons() {
    let machine = ServerProcess::start(None);
    let dir = tempfile::tempdir().unwrap();
    let (file, summary) = (dir.path().join("trajectories.jsonl"), dir.path().join("summary.json"));
    let args =
        ["--tasks", "10", "--episodes", "3", "--seeds", "2", "--method", "react,memento,a-mem", "--price", "1,2"];
    let files = ["--trajectories", file.to_str().unwrap(), "--summary", summary.to_str().unwrap()];
    let args = [&args[..], &files].concat();
    let output = eval(machine.server.address, &args).env("MAGE_API_KEY", "sk-hidden").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(machine.server.seen.keys.lock().unwrap().iter().all(|k| k.as_deref() == Some("Bearer sk-hidden")));
    let written = fs::read_to_string(&summary).unwrap();
    for shown in [&text(&output), &written, &fs::read_to_string(&file).unwrap()] {
        assert!(!shown.contains("sk-hidden"), "the key is not written");
    }
    let written: Value = serde_json::from_str(&written).unwrap();
    let [react, memento, a_mem] = written["policies"].as_array().unwrap().as_slice() else {
        panic!("expected three policies")
    };
    for policy in [react, memento, a_mem] {
        assert_eq!(policy["task_set"], written["task_set"]);
        let sampling = &policy["sampling"];
        assert!(
            sampling["thinking"].is_null() && sampling["params"].get("max_tokens").is_none(),
            "as sent: {sampling}"
        );
        assert_eq!(sampling["params"]["play_tokens"], policy["episode_config"]["play_tokens"]);
        assert_eq!(policy["summary"]["overall"]["meta_episodes"], 20);
        assert_eq!(policy["summary"]["overall"]["by_episode"][2]["won"]["tasks"], 10, "a task is one observation");
        assert_eq!(policy["by_seed"].as_array().unwrap().len(), 2);
        assert!(policy["ceilings"].is_object() && policy["relative"].is_object());
        let requests = &policy["requests"];
        let tokens = |key: &str| requests[key].as_f64().unwrap();
        let cost = (tokens("prompt_tokens") + 2.0 * tokens("completion_tokens")) / 1e6;
        assert!((policy["cost"].as_f64().unwrap() - cost).abs() < 1e-9);
    }
    assert_ne!(react["method"], memento["method"]);
    assert!(react["requests"]["by_kind"]["plan"].is_null());
    assert_eq!(memento["requests"]["by_kind"]["plan"], serde_json::json!({"count": 60, "invalid": 0}));
    assert_eq!(a_mem["requests"]["by_kind"]["note"]["count"], 40, "none after the last episode");
    assert_eq!(a_mem["requests"]["by_kind"]["evolve"]["count"], 20, "from the second memory item on");
    let comparisons = written["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.len(), 2);
    assert_eq!((&comparisons[0]["tasks"], &comparisons[0]["seeds"]), (&Value::from(10), &Value::from(2)));
    // The model's actions do not depend on its memory.
    assert_eq!(comparisons[0]["by_episode"][0]["won"]["p_value"], 1.0);
    assert_eq!(comparisons[0]["by_episode"][0]["score"]["mean"], 0.0);

    let output = command()
        .args(["eval", "--endpoint", &format!("http://{}", machine.server.address), "--model", "tiny", "--quiet"])
        .args(&args)
        .env("MAGE_API_KEY", "sk-hidden")
        .output()
        .unwrap();
    let shown = text(&output);
    for expected in [
        "tiny/memento on kuhn",
        "tiny/react compared with tiny/a-mem",
        "0 of 60 memory requests had an invalid completion",
        "2 seeds",
    ] {
        assert!(shown.contains(expected), "`{expected}` is missing:\n{shown}");
    }
}

#[test]
fn the_report_states_sampling_parameters_token_budgets_and_thinking() {
    let machine = ServerProcess::start(None);
    let url = format!("http://{}", machine.server.address);
    let small = ["--tasks", "2", "--seeds", "1", "--episodes", "1", "--quiet"];
    let shown = |policies: &[&str]| {
        let mut command = command();
        command.args(["eval", "--endpoint", &url, "--model", "tiny"]).args(small).args(policies);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        crate::common::stdout(&output)
    };
    let budget = "at most 4096 tokens per action, 4096 per reflection";
    let line = format!("sampling: temperature 0.7, top-p 0.8, no top-k, {budget}, thinking unknown");
    let defaults = shown(&["bayes"]);
    assert_eq!(defaults.matches("sampling: ").count(), 1, "none for a scripted agent: {defaults}");
    assert!(defaults.contains(&line), "{line}: {defaults}");
    let set = shown(&["--temperature", "0.5", "--top-k", "20", "--max-tokens", "64", "--thinking", "off"]);
    let line =
        "sampling: temperature 0.5, top-p 0.8, top-k 20, at most 64 tokens per action, 64 per reflection, thinking off";
    assert!(set.contains(line), "{set}");
}

#[test]
fn trajectories_of_other_requests_are_not_reused() {
    let machine = ServerProcess::start(None);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trajectories.jsonl");
    let common = ["--tasks", "3", "--episodes", "2", "--seeds", "1", "--trajectories", file.to_str().unwrap()];
    for (options, expected_records) in [
        (&[][..], 3),
        (&["--thinking", "on"][..], 6),
        (&["--extra-body", "top_k=5"][..], 9),
        (&["--extra-body", "top_k=5"][..], 9),
        (&[][..], 9),
    ] {
        let output = run(machine.server.address, &[&common[..], options].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(records(&file).len(), expected_records, "{options:?}");
    }
}

#[test]
fn invalid_options_are_rejected_before_any_request() {
    let machine = ServerProcess::start(None);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--method", "amem"], 2, "a-mem"),
        (&["--method", "reflexion", "--shared-memory"], 2, "no memory that tasks can share"),
        (&["--price", "1"], 2, "two prices"),
        (&["--extra-body", "x"], 2, "KEY=VALUE"),
        (&["--temperature", "-1"], 2, "temperature"),
        (&["--preset", "sokoban-9"], 2, "unknown preset"),
    ];
    for (args, code, expected) in cases {
        let output = run(machine.server.address, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    let output = command().args(["eval", "--endpoint", "http://me:pw@host", "--model", "m"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output).contains("pw@"), "{}", text(&output));
    assert_eq!(machine.server.seen.requests(), 0);
}

#[test]
fn an_evaluation_stops_after_several_consecutive_failures() {
    let machine = ServerProcess::slow(None, Duration::from_secs(3600));
    let args = ["--tasks", "100", "--max-in-flight", "4", "--timeout", "0.05", "--deadline", "0.1"];
    let output = run(machine.server.address, &args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let error = stderr(&output);
    assert!(error.contains("8 consecutive tasks failed") && error.contains("no response within"), "{error}");
}
