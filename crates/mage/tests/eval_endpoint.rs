//! `mage eval` against a model server on loopback, which may die.

mod common;
#[path = "../../mage-remote/tests/common/server.rs"]
#[allow(dead_code, reason = "it has more than is needed here")]
mod server;

use common::{command, stderr, text};
use mage_core::EpisodeRecord;
use serde_json::Value;
use server::Server;
use std::{
    collections::HashSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};
use tokio::runtime::Runtime;

/// A model server in a world of its own: when that ends, so does every connection.
struct Machine {
    server: Server,
    runtime: Runtime,
}

impl Machine {
    fn start(address: Option<SocketAddr>) -> Self {
        let runtime = mage_lab::evaluate::runtime(2).unwrap();
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        let server = runtime.block_on(Server::start_at(address, Duration::from_millis(5), model));
        Machine { server, runtime }
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

fn records(path: &Path) -> Vec<EpisodeRecord> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter_map(|l| EpisodeRecord::from_line(l).ok()).collect()
}

#[test]
fn a_server_that_dies_costs_no_finished_task_and_repeats_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("records.jsonl");
    let tasks = 60;
    let args = ["--tasks", "60", "--episodes", "2", "--method", "reflexion", "--in-flight", "8", "--attempt", "1"];
    let args = [&args[..], &["--deadline", "1", "--records", file.to_str().unwrap()]].concat();

    let machine = Machine::start(None);
    let child = eval(machine.server.address, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while machine.server.seen.requests() < 80 {
        std::thread::sleep(Duration::from_millis(5));
    }
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
    let new_calls: usize = done.iter().filter(|r| !finished.contains(&r.key)).map(|r| r.calls.len()).sum();
    assert_eq!(machine.server.seen.requests(), new_calls, "only what was missing was asked for");
    let report: Value = serde_json::from_slice(&second.stdout).unwrap();
    assert_eq!((&report["errors"], &report["summary"]["overall"]["meta_episodes"]), (&0.into(), &60.into()));

    // A third time there is nothing left to ask, and the same to say.
    let asked = machine.server.seen.requests();
    let third = run(address, &args);
    assert_eq!(third.stdout, second.stdout);
    assert_eq!(machine.server.seen.requests(), asked);
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
        assert_eq!(entrant["summary"]["overall"]["meta_episodes"], 20);
        assert_eq!(entrant["pooled"][2]["won"]["count"], 10, "a task is one observation");
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
    assert_eq!(versus[0]["pairs"], 20);
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
fn what_cannot_work_is_said_before_anything_is_asked() {
    let machine = Machine::start(None);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--method", "amem"], 2, "a-mem"),
        (&["--method", "reflexion", "--shared-memory"], 2, "no memory that tasks could share"),
        (&["--price", "1"], 2, "two numbers"),
        (&["--request", "x"], 2, "KEY=VALUE"),
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
        stderr(&output).contains("8 tasks in a row failed") && stderr(&output).contains("404"),
        "{}",
        text(&output)
    );
}
