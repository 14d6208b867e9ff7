//! `mage eval` against a model server on loopback, which may die.

mod common;
#[path = "../../mage-remote/tests/common/server.rs"]
#[allow(dead_code, reason = "it has more than is needed here")]
mod server;

use common::{command, stderr, text};
use mage_core::Trajectory;
use serde_json::Value;
use server::Server;
use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// A model server in a world of its own: when that ends, so does every connection.
struct Machine {
    server: Server,
    runtime: Runtime,
}

impl Machine {
    fn start(address: Option<SocketAddr>) -> Self {
        Self::slow(address, Duration::from_millis(5))
    }

    /// One that takes this long for every answer.
    fn slow(address: Option<SocketAddr>, latency: Duration) -> Self {
        let runtime = mage_train::eval::runtime(2).unwrap();
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let server = runtime.block_on(Server::start_at(address, latency, model));
        Machine { server, runtime }
    }

    /// Waits until a program has made so many requests.
    fn wait_for(&self, requests: usize, by: &mut Child) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.server.seen.requests() < requests {
            if Instant::now() >= deadline {
                by.kill().unwrap();
                panic!("{} of {requests} requests came", self.server.seen.requests());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Pulls the plug.
    fn kill(self) -> SocketAddr {
        let address = self.server.address;
        self.runtime.shutdown_background();
        address
    }
}

/// A model that always bets and always has something to say.
fn model(asked: &str) -> String {
    if asked.contains("<plan>") {
        "<plan>Bet.</plan>"
    } else if asked.contains("\"evolve\"") {
        r#"{"evolve": false}"#
    } else if asked.contains("\"keywords\"") {
        r#"{"keywords": ["bet"], "context": "Betting.", "tags": ["game"]}"#
    } else if asked.contains("<remark>") {
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
fn a_server_that_dies_costs_no_finished_task_and_repeats_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.jsonl");
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
        "--in-flight",
        "8",
        "--records",
        at,
    ];
    // Only who meets the dead server gives up soon: the others wait, however busy this machine is.
    let hasty = [&args[..], &["--timeout", "1", "--deadline", "1"]].concat();

    let machine = Machine::start(None);
    let mut child = eval(machine.server.address, &hasty).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    machine.wait_for(80, &mut child);
    let address = machine.kill();
    let first = child.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(1), "{}", text(&first));
    assert!(stderr(&first).contains("run the command again to go on"), "{}", stderr(&first));
    let before = fs::read(&file).unwrap();
    let finished: HashSet<_> = records(&file).into_iter().filter(|r| r.error.is_none()).map(|r| r.key).collect();
    assert!(!finished.is_empty() && finished.len() < tasks, "{} were finished", finished.len());
    assert!(records(&file).iter().any(|r| r.error.is_some()), "failures are written down");

    let machine = Machine::start(Some(address));
    let second = run(address, &args);
    assert!(second.status.success(), "{}", stderr(&second));
    assert!(fs::read(&file).unwrap().starts_with(&before), "what was there is untouched");
    let done: Vec<_> = records(&file).into_iter().filter(|r| r.error.is_none()).collect();
    let keys: HashSet<_> = done.iter().map(|r| r.key.clone()).collect();
    assert_eq!((done.len(), keys.len()), (tasks, tasks), "every task once");
    assert!(keys.is_superset(&finished));
    let new_calls: usize = done.iter().filter(|r| !finished.contains(&r.key)).map(|r| r.requests.len()).sum();
    assert_eq!(machine.server.seen.requests(), new_calls, "only what was missing was asked for");
    let report: Value = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!((&report["errors"], &report["summary"]["overall"]["meta_episodes"]), (&0.into(), &60.into()));

    // A third time there is nothing left to ask, and the same to say.
    let asked = machine.server.seen.requests();
    let third = run(address, &args);
    assert_eq!(third.stdout, second.stdout);
    assert_eq!(machine.server.seen.requests(), asked);
}

/// Starts a command, presses Ctrl-C once the server has seen so many requests, and waits.
#[cfg(unix)]
fn interrupted(mut command: Command, machine: &Machine, requests: usize) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    machine.wait_for(requests, &mut child);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs").success());
    child.wait_with_output().unwrap()
}

#[cfg(unix)]
#[test]
fn ctrl_c_is_heard_at_once_and_what_is_finished_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.jsonl");
    let args =
        ["--tasks", "60", "--seeds", "1", "--episodes", "2", "--in-flight", "4", "--records", file.to_str().unwrap()];
    let machine = Machine::start(None);
    let first = interrupted(eval(machine.server.address, &args), &machine, 60);
    assert_eq!(first.status.code(), Some(130), "{}", text(&first));
    let finished: HashSet<_> = records(&file).into_iter().map(|r| r.key).collect();
    assert!(!finished.is_empty() && finished.len() < 60, "{} were finished", finished.len());
    assert!(records(&file).iter().all(|r| r.error.is_none()), "what was given up is no failure");

    // Nothing comes back from this one: waiting for it is given up as well.
    let address = machine.kill();
    let before = fs::read(&file).unwrap();
    let machine = Machine::slow(Some(address), Duration::from_secs(3600));
    assert_eq!(interrupted(eval(address, &args), &machine, 1).status.code(), Some(130));
    assert_eq!(fs::read(&file).unwrap(), before);

    machine.kill();
    let machine = Machine::start(Some(address));
    let last = run(address, &args);
    assert!(last.status.success(), "{}", stderr(&last));
    let all = records(&file);
    let new_calls: usize = all.iter().filter(|r| !finished.contains(&r.key)).map(|r| r.requests.len()).sum();
    assert_eq!((all.len(), machine.server.seen.requests()), (60, new_calls), "nothing is repeated");
}

#[test]
fn memories_are_retrieved_by_an_embedding_endpoint() {
    let machine = Machine::start(None);
    let dir = tempfile::tempdir().unwrap();
    let (file, summary) = (dir.path().join("records.jsonl"), dir.path().join("summary.json"));
    let url = format!("http://{}", machine.server.address);
    let args = ["--tasks", "4", "--episodes", "3", "--method", "a-mem,memento", "--embedding-model", "letters"];
    let places = ["--embeddings", &url, "--records", file.to_str().unwrap(), "--summary", summary.to_str().unwrap()];
    let output = eval(machine.server.address, &[&args[..], &places].concat()).env("MAGE_API_KEY", "sk-1").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let bodies = machine.server.seen.bodies.lock().unwrap().clone();
    let embedded: Vec<&Value> = bodies.iter().filter(|b| b["input"].is_array()).collect();
    assert!(!embedded.is_empty() && embedded.iter().all(|b| b["model"] == "letters"), "{embedded:?}");
    let calls: usize = records(&file).iter().map(|r| r.requests.len()).sum();
    assert_eq!(bodies.len() - embedded.len(), calls, "every other request is a call on record");
    let written: Value = serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
    for entrant in written["entrants"].as_array().unwrap() {
        let by = entrant["embeddings"].as_str().unwrap();
        assert!(by.contains("letters"), "{by}");
        assert_eq!(entrant["errors"], 0);
    }
    // Retrieved by words, it is another method: its records are others.
    let words = run(machine.server.address, &["--tasks", "4", "--episodes", "3", "--method", "a-mem"]);
    let words: Value = serde_json::from_slice(&words.stdout).unwrap();
    assert_ne!(words["method"], written["entrants"][0]["method"]);
}

#[test]
fn an_embedding_endpoint_that_is_not_there_is_said() {
    let machine = Machine::start(None);
    let args = ["--tasks", "12", "--episodes", "3", "--method", "a-mem", "--embedding-model", "letters"];
    let nowhere = format!("http://{}/v9", machine.server.address);
    let output = run(machine.server.address, &[&args[..], &["--embeddings", &nowhere, "--in-flight", "4"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(stderr(&output).contains("404"), "{}", text(&output));
}

const GRID: &str = r#"
    description = "a test"
    policy = "tiny policy"
    tasks = 6
    episodes = 2
    seeds = [0]
    [[env]]
    name = "kuhn"
    task_sets = ["kuhn"]
    agents = ["random"]
    [[method]]
    name = "ReAct"
    prompt = "react"
    [[method]]
    name = "Memento"
    prompt = "memento"
"#;

#[test]
fn a_sweep_asks_an_endpoint_and_its_report_has_the_cells() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("grid.toml"), GRID).unwrap();
    let machine = Machine::start(None);
    let url = format!("http://{}", machine.server.address);
    let sweep = |more: &[&str]| {
        let own = ["sweep", &at("grid.toml"), "--out", &at("out"), "--json"];
        command().args(own).args(more).env_remove("MAGE_API_KEY").output().unwrap()
    };
    let by_rule = sweep(&[]);
    assert!(by_rule.status.success() && machine.server.seen.requests() == 0, "{}", text(&by_rule));
    let with = ["--endpoint", &url, "--model", "tiny", "--embeddings", &url, "--embedding-model", "letters"];
    let asked = sweep(&with);
    assert!(asked.status.success(), "{}", text(&asked));
    let cells = |output: &Output| String::from_utf8_lossy(&output.stdout).matches("\"event\":\"cell\"").count();
    assert_eq!(cells(&asked), 2, "the rule is not played again");
    assert!(machine.server.seen.bodies.lock().unwrap().iter().any(|b| b["input"].is_array()), "memento retrieves");
    let requests = machine.server.seen.requests();
    assert!(sweep(&with).status.success());
    assert_eq!(machine.server.seen.requests(), requests, "nothing is asked twice");
    assert_eq!(cells(&sweep(&[])), 0, "and nothing where nobody is named");

    let report = command().args(["report", &at("out"), "--out", &at("page")]).output().unwrap();
    assert!(report.status.success(), "{}", text(&report));
    let page = fs::read_to_string(at("page/report.md")).unwrap();
    for row in ["| ReAct | tiny | 2 |", "| Memento | tiny | 2 |", "| random | rule | 2 |", "| A-MEM | — | 10 |"] {
        assert!(page.contains(row), "{row} is missing:\n{page}");
    }

    // Another model is another question: it is asked, and the old answers are kept.
    let other = sweep(&["--endpoint", &url, "--model", "other"]);
    assert!(other.status.success(), "{}", text(&other));
    assert_eq!(cells(&other), 2, "{}", text(&other));
    assert!(
        stderr(&other).contains("--model tiny") && stderr(&other).contains("--model other now"),
        "{}",
        text(&other)
    );
    assert!(Path::new(&at("out/replaced/kuhn/ReAct-on-kuhn.1/summary.json")).exists());
    let players = fs::read_to_string(at("out/kuhn/ReAct-on-kuhn/cell.json")).unwrap();
    assert!(players.contains("\"other\"") && !players.contains("tiny"), "{players}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_is_heard_within_a_cell_of_a_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("grid.toml"), GRID).unwrap();
    let machine = Machine::slow(None, Duration::from_secs(3600));
    let url = format!("http://{}", machine.server.address);
    let sweep = || {
        let mut sweep = command();
        sweep.args(["sweep", &at("grid.toml"), "--out", &at("out"), "--json", "--endpoint", &url, "--model", "tiny"]);
        sweep
    };
    let stopped = interrupted(sweep(), &machine, 1);
    assert_eq!(stopped.status.code(), Some(130), "{}", text(&stopped));
    let events = String::from_utf8_lossy(&stopped.stdout).into_owned();
    let of_cells = events.lines().filter(|l| l.contains("\"event\":\"cell\""));
    let states: Vec<bool> = of_cells.map(|l| l.contains("\"state\":\"finished\"")).collect();
    assert_eq!(states, [true, false], "the rule was played, the model was not, and the rest not begun:\n{events}");
    let address = machine.kill();
    let machine = Machine::start(Some(address));
    let rest = sweep().output().unwrap();
    assert!(rest.status.success(), "{}", text(&rest));
    assert!(machine.server.seen.requests() > 0 && Path::new(&at("out/kuhn/Memento-on-kuhn/summary.json")).exists());
}

#[test]
fn methods_are_compared_on_one_panel_and_everything_is_in_the_summary() {
    let machine = Machine::start(None);
    let dir = tempfile::tempdir().unwrap();
    let (file, summary) = (dir.path().join("records.jsonl"), dir.path().join("summary.json"));
    let args =
        ["--tasks", "10", "--episodes", "3", "--seeds", "2", "--method", "react,memento,a-mem", "--price", "1,2"];
    let files = ["--records", file.to_str().unwrap(), "--summary", summary.to_str().unwrap()];
    let args = [&args[..], &files].concat();
    let output = eval(machine.server.address, &args).env("MAGE_API_KEY", "sk-hidden").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(machine.server.seen.keys.lock().unwrap().iter().all(|k| k.as_deref() == Some("Bearer sk-hidden")));
    let written = fs::read_to_string(&summary).unwrap();
    for shown in [&text(&output), &written, &fs::read_to_string(&file).unwrap()] {
        assert!(!shown.contains("sk-hidden"), "the key is written nowhere");
    }
    let written: Value = serde_json::from_str(&written).unwrap();
    let [react, memento, a_mem] = written["entrants"].as_array().unwrap().as_slice() else { panic!("three entrants") };
    for entrant in [react, memento, a_mem] {
        assert_eq!(entrant["panel"], written["panel"]);
        let drawn = &entrant["drawn"];
        assert!(drawn["thinking"].is_null() && drawn["params"].get("max_tokens").is_none(), "as it was sent: {drawn}");
        assert_eq!(drawn["params"]["play_tokens"], entrant["settings"]["play_tokens"]);
        assert_eq!(entrant["summary"]["overall"]["meta_episodes"], 20);
        assert_eq!(entrant["summary"]["overall"]["by_episode"][2]["won"]["tasks"], 10, "a task is one observation");
        assert_eq!(entrant["by_seed"].as_array().unwrap().len(), 2);
        assert!(entrant["ceilings"].is_object() && entrant["against"].is_object());
        let tally = &entrant["tally"];
        let tokens = |key: &str| tally[key].as_f64().unwrap();
        let cost = (tokens("prompt_tokens") + 2.0 * tokens("answer_tokens")) / 1e6;
        assert!((entrant["cost"].as_f64().unwrap() - cost).abs() < 1e-9);
    }
    assert_ne!(react["method"], memento["method"]);
    assert!(react["tally"]["calls"]["plan"].is_null());
    assert_eq!(memento["tally"]["calls"]["plan"], serde_json::json!({"asked": 60, "unusable": 0}));
    assert_eq!(a_mem["tally"]["calls"]["note"]["asked"], 40, "not after the last episode");
    assert_eq!(a_mem["tally"]["calls"]["evolve"]["asked"], 20, "from the second note on");
    let versus = written["versus"].as_array().unwrap();
    assert_eq!(versus.len(), 2);
    assert_eq!((&versus[0]["tasks"], &versus[0]["seeds"]), (&Value::from(10), &Value::from(2)));
    // The model plays the same way whatever it remembers.
    assert_eq!(versus[0]["by_episode"][0]["won"]["p_value"], 1.0);
    assert_eq!(versus[0]["by_episode"][0]["score"]["mean"], 0.0);

    let people = command()
        .args(["eval", "--endpoint", &format!("http://{}", machine.server.address), "--model", "tiny", "--quiet"])
        .args(&args)
        .env("MAGE_API_KEY", "sk-hidden")
        .output()
        .unwrap();
    let shown = text(&people);
    for words in
        ["tiny/memento plays kuhn", "tiny/react against tiny/a-mem", "0 of 60 memory calls unusable", "2 seeds"]
    {
        assert!(shown.contains(words), "`{words}` is missing:\n{shown}");
    }
}

#[test]
fn records_of_other_requests_are_not_taken_for_these() {
    let machine = Machine::start(None);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.jsonl");
    let common = ["--tasks", "3", "--episodes", "2", "--seeds", "1", "--records", file.to_str().unwrap()];
    for (besides, records_then) in [
        (&[][..], 3),
        (&["--thinking", "on"][..], 6),
        (&["--extra-body", "top_k=5"][..], 9),
        (&["--extra-body", "top_k=5"][..], 9),
        (&[][..], 9),
    ] {
        let output = run(machine.server.address, &[&common[..], besides].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(records(&file).len(), records_then, "{besides:?}");
    }
}

#[test]
fn what_cannot_work_is_said_before_anything_is_asked() {
    let machine = Machine::start(None);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--method", "amem"], 2, "a-mem"),
        (&["--method", "reflexion", "--shared-memory"], 2, "no memory that tasks could share"),
        (&["--price", "1"], 2, "two numbers"),
        (&["--extra-body", "x"], 2, "KEY=VALUE"),
        (&["--temperature", "-1"], 2, "temperature"),
        (&["--preset", "sokoban-9"], 2, "unknown preset"),
    ];
    for (args, code, words) in cases {
        let output = run(machine.server.address, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let output = command().args(["eval", "--endpoint", "http://me:pw@host", "--model", "m"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output).contains("pw@"), "{}", text(&output));
    assert_eq!(machine.server.seen.requests(), 0);
    // A place where no model is: a few refusals are enough to know.
    let nowhere = format!("http://{}/v9", machine.server.address);
    let args = ["eval", "--endpoint", &nowhere, "--model", "m", "--in-flight", "4", "--quiet"];
    let output = command().args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(
        stderr(&output).contains("8 consecutive tasks failed") && stderr(&output).contains("404"),
        "{}",
        text(&output)
    );
}
