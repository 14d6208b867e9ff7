//! The command line as a person and as a program meet it.

mod common;

use common::{command, json, mage, mage_with_input, stderr, stdout};
use std::{io::Read, path::Path, process::Stdio};

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
        (&["play", "--skip-bad"], "--skip-bad is for environments that read many game files; kuhn does not"),
        (&["play", "sokoban", "--skip-bad"], "sokoban does not"),
        (&["eval", "--env", "webshop", "--policy", "random", "--skip-bad"], "webshop does not"),
        (&["env", "show", "webshop", "--oracles"], "mage eval --env webshop --policy told measures what is possible"),
        (&["eval", "--policy", "clever"], "unknown policy `clever`"),
        (&["eval"], "--policy"),
        (&["eval", "--method", "react"], "--endpoint URL and --model NAME"),
        (&["eval", "--policy", "nash", "--temperature", "-1"], "temperature"),
        (&["eval", "--policy", "nash", "--plot", "curve.pdf"], ".svg or .png"),
        (&["eval", "tictactoe", "--env", "kuhn", "--policy", "random"], "cannot be used with"),
        (&["eval", "--policy", "random", "--episodes", "0"], "0 is not in 1..=1000"),
        (&["env", "show", "go"], "unknown environment `go`"),
        (&["env", "conform", "kuhn", "--golden", "x"], "kuhn"),
        (&["env", "conform", "sokoban", "--golden", "/nowhere/x.jsonl"], "cannot read /nowhere/x.jsonl"),
        (&["frobnicate"], "unrecognized subcommand"),
        (&[], "Usage"),
    ];
    for (args, expected) in cases {
        let output = mage(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

#[test]
fn failures_exit_with_1() {
    let output = mage(&["eval", "--policy", "random", "--tasks", "10", "--records", "/nonexistent/records.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/records.jsonl"));
}

#[test]
fn help_and_version_are_no_failures() {
    for args in [&["--help"][..], &["--version"], &["help", "play"], &["eval", "--help"]] {
        let output = mage(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        command().args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(complaint, "");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = mage(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("eval"), "{shell}");
    }
}

#[test]
fn colours_only_where_wanted() {
    let args = ["env", "list"];
    assert!(!stdout(&mage(&args)).contains('\x1b'), "not a terminal");
    let forced = command().args(args).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(stdout(&forced).contains('\x1b'));
    let refused = command().args(args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!stdout(&refused).contains('\x1b'));
}

#[test]
fn playing_explains_wrong_input_and_hides_the_opponent() {
    let args = ["play", "kuhn", "--seed", "3", "--opponent", "aggressive", "--seat", "0"];
    let output = mage_with_input(&args, b"raise\n\n?\nB\nbet\np\np\nb\nb\n");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("only PASS and BET are actions"));
    assert!(text.contains("the answer names no action"));
    assert!(text.contains("Possible here: PASS, BET"));
    assert!(text.contains("Episode 3 of 3") && text.contains("total "));
    assert!(!(text + &stderr(&output)).contains("aggressive"));

    let revealed = mage_with_input(&[&args[..], &["--reveal"]].concat(), b"b\nb\nb\n");
    assert!(stdout(&revealed).contains("Your opponent was: aggressive"));
}

#[test]
fn leaving_early_and_odd_bytes_are_fine() {
    for input in [&b""[..], b"q\n", b"b\nq\n", b"\xff\xfe\nb\n", b"b"] {
        let output = mage_with_input(&["play", "--seed", "1"], input);
        assert!(output.status.success(), "{input:?}: {}", stderr(&output));
    }
}

#[test]
fn a_program_can_play() {
    let output = mage_with_input(&["play", "--json", "--seed", "5", "--episodes", "2"], b"raise\nbet\nBET\nbet\nbet\n");
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
    let first = mage(&args);
    assert_eq!(first.stdout, mage(&args).stdout);
    let report = json(&first);
    assert_eq!(report["tasks"], 500);
    let curve = report["summary"]["overall"]["by_episode"].as_array().unwrap();
    assert_eq!(curve.len(), 3);
    // Three seeds unless it says otherwise; a task with all of them is one observation, against whom and from where it may be.
    assert_eq!(report["seeds"], 3);
    let counted = |at: &serde_json::Value| {
        [&at["score"]["count"], &at["won"]["tasks"], &at["won"]["trials"]].map(serde_json::Value::as_u64)
    };
    assert!(curve.iter().all(|at| counted(at) == [Some(500), Some(500), Some(1500)]));
    let seats = report["summary"]["by_seat"].as_object().unwrap().values();
    assert_eq!(seats.map(|s| s["by_episode"][0]["score"]["count"].as_u64().unwrap()).sum::<u64>(), 500);
    assert_ne!(first.stdout, mage(&["eval", "--policy", "random", "--tasks", "500", "--json", "--seed", "8"]).stdout);
}

#[test]
fn evaluation_goes_on_from_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("records.jsonl");
    let path = path.to_str().unwrap();
    let args = ["eval", "--policy", "random", "--tasks", "300", "--json", "--records", path];
    let whole = mage(&args);
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 3]).unwrap();
    let resumed = mage(&args);
    assert_eq!(json(&whole)["summary"], json(&resumed)["summary"]);
    assert_eq!(std::fs::read(path).unwrap(), bytes);

    // A record that stands twice counts once.
    std::fs::write(path, [&bytes[..], &bytes[..]].concat()).unwrap();
    assert_eq!(json(&whole)["summary"], json(&mage(&args))["summary"]);

    // A file that is something else is left alone.
    std::fs::write(path, "my notes").unwrap();
    assert_eq!(mage(&args).status.code(), Some(1));
    assert_eq!(std::fs::read(path).unwrap(), b"my notes");
}

#[test]
fn with_early_stop_there_is_the_ceiling_of_winning_once() {
    let args = ["eval", "--policy", "bayes", "--tasks", "100", "--early-stop"];
    let report = json(&mage(&[&args[..], &["--json"]].concat()));
    assert!(report["against"].is_null(), "later scores are of those who have not won");
    assert!(report["summary"]["overall"]["by_episode"][2]["score"]["count"].as_u64().unwrap() < 100);
    let best: Vec<f64> = serde_json::from_value(report["ceilings"]["mean"]["pass_at_k"].clone()).unwrap();
    assert!(best.len() == 3 && best[0] < best[1] && best[1] < best[2], "{best:?}");
    let shown = stdout(&mage(&args));
    assert!(shown.contains("at best") && !shown.contains("without memory"), "{shown}");
    assert!(shown.contains(&format!("{:.1} %", 100.0 * best[2])), "{shown}");
    assert!(shown.contains("are of the tasks not yet won") && shown.contains("won within 3"), "{shown}");
}

/// Several are drawn in one picture; how far one has come is said with how sure that is.
#[test]
fn everybody_is_drawn_and_the_way_has_an_interval() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("both.svg");
    let args = ["eval", "--policy", "bayes,nash", "--tasks", "60", "--plot", path.to_str().unwrap()];
    let output = mage(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let drawn = std::fs::read_to_string(&path).unwrap();
    assert!(drawn.contains(">bayes</text>") && drawn.contains(">nash</text>"), "{drawn}");
    assert!(drawn.contains("best learner (exact)"), "{drawn}");
    let shown = stdout(&output);
    let row = shown.lines().skip_while(|l| !l.contains("of the way")).nth(3).unwrap();
    assert!(row.trim_end().ends_with(']') && row.contains(" % ["), "{row}");
    assert!(shown.contains("60 tasks with 3 seeds each") && shown.contains("counts once"), "{shown}");
}

/// The help of `--population` is a file that works.
#[test]
fn the_help_teaches_what_a_population_file_is() {
    let help = stdout(&mage(&["eval", "--help"]));
    let lines = help.lines().skip_while(|l| !l.contains("env = \"kuhn\"")).take_while(|l| !l.contains("Defaults:"));
    let file: String = lines.map(|l| format!("{}\n", l.trim())).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("taught.toml");
    std::fs::write(&path, &file).unwrap();
    let args = ["eval", "--policy", "nash", "--tasks", "8", "--split", "out-of-domain", "--json", "--population"];
    let report = json(&mage(&[&args[..], &[path.to_str().unwrap()]].concat()));
    assert!(report["summary"]["by_opponent"]["stranger"].is_object(), "{file}");
}

#[test]
fn draws_are_counted_where_there_are_any() {
    let args = ["eval", "--env", "tictactoe", "--policy", "perfect", "--tasks", "24", "--episodes", "2"];
    let drawn = |more: &[&str]| stdout(&mage(&[&args[..], more].concat()));
    for shown in [drawn(&["--seeds", "1"]), drawn(&["--seeds", "2"])] {
        assert!(shown.contains("drew") && shown.contains("won or drew by then"), "{shown}");
        assert!(shown.contains("100.0 %"), "a perfect player never loses:\n{shown}");
    }
    let kuhn = stdout(&mage(&["eval", "--policy", "nash", "--tasks", "24"]));
    assert!(!kuhn.contains("drew"), "nobody draws at poker:\n{kuhn}");
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
        mage(&[&base[..], extra].concat())
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
fn tictactoe_is_played_on_a_board_against_anybody_that_comes_along() {
    for opponent in ["mcts-1000", "mcts-7", "by-rows", "perfect", "blind-row-1"] {
        let args = ["play", "tictactoe", "--opponent", opponent, "--seat", "0", "--seed", "1"];
        let output = mage_with_input(&args, b"(4,4)\nmiddle\n2 2\n(2, 2)\nq\n");
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(text.contains("├───┼───┼───┤") && text.contains("│ X │"), "{text}");
        assert!(text.contains("(4, 4) is not on the board") && text.contains("names no cell"), "{text}");
        assert!(text.contains("(2,2) is taken"), "{text}");
        assert!(!(text + &stderr(&output)).contains(opponent));
    }
    for (opponent, expected) in [
        ("nobody", "unknown kind of opponent `nobody`; known: biased_random, blind_line, mcts, mcts-N, perfect"),
        ("mcts-4000000000", "4000000000 simulations a move; there may be 1 to 1000"),
        ("mcts-x", "did you mean `mcts-N`?"),
    ] {
        let refused = mage(&["play", "tictactoe", "--opponent", opponent]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    }
}

#[test]
fn tictactoe_rules_speak_of_the_board_that_is_drawn() {
    let output = mage_with_input(&["play", "tictactoe", "--seat", "0", "--seed", "1"], "?\nq\n");
    let text = stdout(&output);
    assert!(text.contains("an empty cell is blank") && !text.contains("a dot is"), "{text}");
    assert!(text.contains("An episode has 8 turns. Possible here: (1,1), (1,2)"), "{text}");
}

#[test]
fn a_ceiling_that_is_a_lower_bound_says_so() {
    let play = |opponents: &str| {
        let args = ["play", "tictactoe", "--opponent", opponents, "--seat", "0", "--seed", "1", "--episodes", "2"];
        stdout(&mage_with_input(&args, "1 1\n1 2\n1 3\n2 1\n2 2\n2 3\n3 1\n3 2\n3 3\n".repeat(4)))
    };
    let known = play("preferred_1,preferred_2");
    assert!(known.contains("best learner") && !known.contains("at least"), "{known}");
    // What was played comes first: what was possible takes longer to say.
    assert!(known.find("total ").unwrap() < known.find("best learner").unwrap(), "{known}");
    let shown =
        stdout(&mage(&["env", "show", "tictactoe", "--oracles", "--opponent", "mcts-3,blind-row-1,blind-row-2"]));
    assert!(shown.contains("note: estimated: an opponent here cannot state its probabilities"), "{shown}");
    assert!(shown.contains("exact for the moves that were counted"), "{shown}");
    let known = stdout(&mage(&["env", "show", "tictactoe", "--oracles", "--opponent", "blind-row-1,blind-row-2"]));
    assert!(known.contains("all values are exact to the decimals shown"), "{known}");
    let eval = ["eval", "--env", "tictactoe", "--policy", "perfect", "--tasks", "20"];
    let measured = stdout(&mage(&[&eval[..], &["--opponent", "blind-row-1,blind-row-2"]].concat()));
    assert!(!measured.contains("at least") && !measured.contains("at most"), "{measured}");
}

#[cfg(feature = "long")]
#[test]
fn ceilings_that_cannot_be_had_are_bounded() {
    // Seven who mix, over many episodes: more beliefs than anybody can look at.
    let whom = "random,biased_random,perfect,blind-row-1,blind-row-2,blind-column-1,blind-column-2";
    let args = ["eval", "--env", "tictactoe", "--policy", "perfect", "--tasks", "5", "-n", "30", "--opponent", whom];
    let measured = stdout(&mage(&args));
    assert!(measured.contains("won by then") && measured.contains("best learner, at least"), "{measured}");
    assert!(measured.contains("of the way, at most"), "{measured}");
}

#[test]
fn a_split_that_was_not_asked_for_is_pointed_at() {
    let population = "env = \"tictactoe\"\n[[opponent]]\nname = \"a\"\nkind = \"preferred_1\"\n[[opponent]]\nname = \"b\"\n\
                      kind = \"preferred_2\"\nsplits = [\"out-of-domain\"]\n";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, population).unwrap();
    let show = ["env", "show", "tictactoe", "--oracles", "--population", path.to_str().unwrap()];
    let output = mage(&show);
    let said = "These are the in-domain opponents; --split out-of-domain shows others.";
    assert!(stderr(&output).contains(said), "{}", stderr(&output));
    let output = mage(&[&show[..], &["--split", "out-of-domain"]].concat());
    assert!(stderr(&output).contains("--split train or --split in-domain shows others"), "{}", stderr(&output));
    let output = mage(&["env", "show", "tictactoe", "--oracles"]);
    assert!(!stderr(&output).contains("--split train"), "the same as was shown: {}", stderr(&output));
}

#[test]
fn the_environment_may_be_named_as_elsewhere() {
    let eval = ["--policy", "perfect", "--tasks", "5", "--opponent", "random", "--json"];
    let named = mage(&[&["eval", "tictactoe"], &eval[..]].concat());
    assert!(named.status.success(), "{}", stderr(&named));
    assert_eq!(stdout(&named), stdout(&mage(&[&["eval", "--env", "tictactoe"], &eval[..]].concat())));
}

#[test]
fn mistakes_in_a_population_file_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let opponent = "env = \"tictactoe\"\n[[opponent]]\nname = \"fox\"\nkind = ";
    for (text, expected) in [
        (
            format!("{opponent}\"MCTS-100\""),
            "opponent `fox`: unknown kind of opponent `MCTS-100`: did you mean `mcts-100`?",
        ),
        (
            format!("{opponent}\"mcts\"\nsimulations = \"many\""),
            "`simulations`: it is the text \"many\", expected a whole number",
        ),
        (format!("{opponent}\"mcts\"\nsimulations = 99999999999999999999"), "which is too large"),
        (format!("{opponent}\"preferred\"\norder = [[1, 9]]"), "[1, 9] is not on the board"),
        (format!("{opponent}\"random\"\nweight = \"big\""), "expected a number"),
        (format!("{opponent}\"random\"\nsplits = [\"out-of-domain\"]"), "no opponent in split `in-domain`"),
        (
            "env = \"tictactoe\"\nseats = [1]\n[[opponent]]\nname = \"a\"\nkind = \"random\"".to_owned(),
            "`seats` lists 1 weights",
        ),
        ("env = \"tictactoe\"".to_owned(), "it has no opponents"),
        ("env = ".to_owned(), ""),
    ] {
        std::fs::write(&path, &text).unwrap();
        let output = mage(&["env", "show", "tictactoe", "--population", path.to_str().unwrap()]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains("mine.toml") && said.contains(expected), "{text}: {said}");
        for word in ["u64", "i64", "i128", "u8", "f64", "usize", "sequence"] {
            assert!(!said.contains(word), "{said}");
        }
    }
}
