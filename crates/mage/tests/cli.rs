//! The command line as a person and as a program meet it.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

fn mage() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mage"));
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    mage().args(args).output().unwrap()
}

fn run_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child =
        mage().args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn mistakes_on_the_command_line_exit_with_2_and_say_what_to_do() {
    let cases: &[(&[&str], &str)] = &[
        (&["play", "chess"], "unknown environment `chess`"),
        (&["play", "--opponent", "agressive"], "did you mean `aggressive`"),
        (&["play", "--seat", "9"], "seats 0 to 1"),
        (&["play", "--option", "deal=foo"], "expected `fresh` or `fixed`"),
        (&["play", "--option", "dael=fresh"], "unknown field `dael`"),
        (&["play", "--option", "deal"], "KEY=VALUE"),
        (&["play", "--split", "trian"], "did you mean `train`"),
        (&["play", "--population", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["play", "--population", "nobody"], "no built-in population of that name"),
        (&["play", "--opponent", "aggressive,aggressive"], "the name is taken"),
        (&["eval", "--policy", "clever"], "unknown policy `clever`"),
        (&["eval"], "--policy"),
        (&["eval", "--policy", "random", "--episodes", "0"], "0 is not in 1..=1000"),
        (&["env", "show", "go"], "unknown environment `go`"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&[], "Usage"),
    ];
    for (args, expected) in cases {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn failures_exit_with_1() {
    let output = run(&["eval", "--policy", "random", "--tasks", "10", "--records", "/nonexistent/records.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/records.jsonl"));
    let output = run(&["env", "conform", "kuhn", "--golden", "x"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn help_and_version_are_no_failures() {
    for args in [&["--help"][..], &["--version"], &["help", "play"], &["eval", "--help"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = mage().args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(complaint, "");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("eval"), "{shell}");
    }
}

#[test]
fn colours_only_where_wanted() {
    let args = ["env", "list"];
    assert!(!stdout(&run(&args)).contains('\x1b'), "not a terminal");
    let forced = mage().args(args).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(stdout(&forced).contains('\x1b'));
    let refused = mage().args(args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!stdout(&refused).contains('\x1b'));
}

#[test]
fn playing_explains_wrong_input_and_hides_the_opponent() {
    let args = ["play", "kuhn", "--seed", "3", "--opponent", "aggressive", "--seat", "0"];
    let output = run_with_input(&args, b"raise\n\n?\nB\nbet\np\np\nb\nb\n");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("only PASS and BET are actions"));
    assert!(text.contains("the answer names no action"));
    assert!(text.contains("possible here: PASS, BET"));
    assert!(text.contains("Episode 3 of 3") && text.contains("total "));
    assert!(!(text + &stderr(&output)).contains("aggressive"));

    let revealed = run_with_input(&[&args[..], &["--reveal"]].concat(), b"b\nb\nb\n");
    assert!(stdout(&revealed).contains("Your opponent was: aggressive"));
}

#[test]
fn leaving_early_and_odd_bytes_are_fine() {
    for input in [&b""[..], b"q\n", b"b\nq\n", b"\xff\xfe\nb\n", b"b"] {
        let output = run_with_input(&["play", "--seed", "1"], input);
        assert!(output.status.success(), "{input:?}: {}", stderr(&output));
    }
}

#[test]
fn a_program_can_play() {
    let output = run_with_input(&["play", "--json", "--seed", "5", "--episodes", "2"], b"raise\nbet\nBET\nbet\nbet\n");
    assert!(output.status.success());
    let events: Vec<serde_json::Value> = stdout(&output).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events[0]["event"], "start");
    assert_eq!(events.last().unwrap()["event"], "close");
    assert!(events.iter().any(|e| e["event"] == "refused"));
    assert_eq!(events.iter().filter(|e| e["event"] == "end").count(), 2);
}

#[test]
fn evaluation_repeats_exactly_and_counts_what_it_says() {
    let args = ["eval", "--policy", "random", "--tasks", "500", "--json", "--seed", "7"];
    let first = run(&args);
    assert_eq!(first.stdout, run(&args).stdout);
    let report = json(&first);
    assert_eq!(report["tasks"], 500);
    let curve = report["summary"]["overall"]["by_episode"].as_array().unwrap();
    assert_eq!(curve.len(), 3);
    assert!(curve.iter().all(|at| at["score"]["count"] == 500 && at["won"]["of"] == 500));
    assert_ne!(first.stdout, run(&["eval", "--policy", "random", "--tasks", "500", "--json", "--seed", "8"]).stdout);
}

#[test]
fn evaluation_goes_on_from_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let path = path.to_str().unwrap();
    let args = ["eval", "--policy", "random", "--tasks", "300", "--json", "--records", path];
    let whole = run(&args);
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 3]).unwrap();
    let resumed = run(&args);
    assert_eq!(json(&whole)["summary"], json(&resumed)["summary"]);
    assert_eq!(std::fs::read(path).unwrap(), bytes);

    // A record that stands twice counts once.
    std::fs::write(path, [&bytes[..], &bytes[..]].concat()).unwrap();
    assert_eq!(json(&whole)["summary"], json(&run(&args))["summary"]);

    // A file that is something else is left alone.
    std::fs::write(path, "my notes").unwrap();
    assert_eq!(run(&args).status.code(), Some(1));
    assert_eq!(std::fs::read(path).unwrap(), b"my notes");
}

#[test]
fn with_early_stop_there_are_no_ceilings_to_compare_with() {
    let args = ["eval", "--policy", "bayes", "--tasks", "100", "--early-stop", "--json"];
    let report = json(&run(&args));
    assert!(report["ceilings"].is_null() && report["against"].is_null());
    assert!(report["summary"]["overall"]["by_episode"][2]["score"]["count"].as_u64().unwrap() < 100);
}

#[test]
fn populations_come_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let text = r#"
        env = "kuhn"
        seats = [1.0, 0.0]
        [[opponent]]
        name = "statue"
        kind = "table"
        bet = {}
        [[opponent]]
        name = "weathercock"
        kind = "switching"
        between = ["conservative", { kind = "table", bet = { K = 1.0 } }]
        stay = 0.5
    "#;
    std::fs::write(&path, text).unwrap();
    let args = |extra: &[&str]| {
        let base = ["eval", "--policy", "random", "--tasks", "40", "--json", "--population", path.to_str().unwrap()];
        run(&[&base[..], extra].concat())
    };
    let report = json(&args(&[]));
    let names: Vec<&String> = report["summary"]["by_opponent"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["statue", "weathercock"]);
    assert_eq!(report["summary"]["by_seat"].as_object().unwrap().len(), 1);
    let report = json(&args(&["--opponent", "statue"]));
    assert_eq!(report["summary"]["by_opponent"].as_object().unwrap().len(), 1);

    std::fs::write(&path, text.replace("stay = 0.5", "stay = 1.5")).unwrap();
    let output = args(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("`stay` is a probability, not 1.5"));

    let mistakes = [
        ("env = \"kuhn\"", "it has no opponents"),
        ("env = \"kuhn\"\n[[opponent]]\nname = \"a\"\nkind = \"aggressive\"\nwieght = 3", "did you mean `weight`"),
        (
            "env = \"kuhn\"\n[[opponent]]\nname = \"a\"\nkind = \"switching\"\nstay = 0.5\nbetween = [\"switching\", \"aggressive\"]",
            "cannot switch between switching",
        ),
        ("env = \"kuhn\"\n[[opponent]]\nname = \"fox\"\nkind = \"table\"\nbet = { Z = 1.0 }", "opponent `fox`"),
    ];
    for (text, expected) in mistakes {
        std::fs::write(&path, text).unwrap();
        let output = args(&[]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert!(Path::new(&path).exists());
}

#[test]
fn sokoban_is_played_in_turns_of_moves() {
    let args = ["play", "sokoban", "--seed", "4", "--episodes", "1"];
    let output = run_with_input(&args, b"north\nup\nup, left, down\nright right\nq\n");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("the answer names no move") && text.contains("████████████"));
}

#[test]
fn sokoban_is_evaluated_by_rule_in_every_split() {
    let report = |extra: &[&str]| {
        let base = ["eval", "--env", "sokoban", "--tasks", "60", "--episodes", "2", "--json"];
        json(&run(&[&base[..], extra].concat()))
    };
    let won =
        |report: &serde_json::Value| report["summary"]["overall"]["by_episode"][1]["won"]["rate"].as_f64().unwrap();
    for split in ["train", "in-domain", "out-of-domain"] {
        assert_eq!(won(&report(&["--policy", "optimal", "--split", split])), 1.0, "{split}");
    }
    assert!(won(&report(&["--policy", "random"])) < 0.3);
    assert_eq!(won(&report(&["--policy", "optimal", "--option", "turns=faithful", "--option", "boxes=1"])), 1.0);
    assert_eq!(won(&report(&["--policy", "optimal", "--turns", "1"])), 0.0, "three moves solve nothing");
}

#[test]
fn sokoban_recordings_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rooms.jsonl");
    // One room made by hand: retried, so that only its views and steps are compared.
    let room = |reward: &str| {
        format!(
            r##"{{"dim":[3,5],"boxes":1,"search_depth":30,"max_steps":30,"seed":1,"retried_with_hash_seed":true,
            "room_fixed":[[0,0,0,0,0],[0,1,1,2,0],[0,0,0,0,0]],"room_state":[[0,0,0,0,0],[0,5,4,2,0],[0,0,0,0,0]],
            "obs":"0: # # # # #\n1: # P X O #\n2: # # # # #","shortest":[4],
            "steps":[[4,"0: # # # # #\n1: # _ P √ #\n2: # # # # #",{reward},true,true,true]]}}"##
        )
        .replace('\n', " ")
        .replace("# #  ", "# #\\n")
    };
    let conform = |text: &str| {
        std::fs::write(&path, text).unwrap();
        run(&["env", "conform", "sokoban", "--json", "--golden", path.to_str().unwrap()])
    };
    let good = conform(&room("10.9"));
    assert_eq!(json(&good)["compared"]["steps"], 1);
    let bad = conform(&room("10.8"));
    assert_eq!(bad.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["different"], 1);
    assert!(report["first"]["place"].as_str().unwrap().contains("line 1 (seed 1, 3 by 5, 1 boxes), step 1 (action 4)"));
    assert!(report["first"]["expected"].as_str().unwrap().contains("10.8"));
    let unreadable = conform("{}\n");
    assert_eq!(unreadable.status.code(), Some(1));
    assert!(stderr(&unreadable).contains("line 1: not a recorded room"));
    assert_eq!(conform("").status.code(), Some(1), "nothing compared is no success");
}
