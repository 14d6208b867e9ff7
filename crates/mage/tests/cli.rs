//! Tests of the command line: arguments, errors, output formats, `mage play`, `mage eval` and `mage env`.

use crate::common::{command, json, mage, mage_with_input, stderr, stdout};
use std::{io::Read, path::Path, process::Stdio};

#[test]
fn invalid_arguments_exit_with_2_and_a_hint() {
    let cases: &[(&[&str], &str)] = &[
        (&["play", "chess"], "unknown environment `chess`"),
        (&["play", "--opponent", "agressive"], "did you mean `aggressive`"),
        (&["play", "--seat", "9"], "seats 0 to 1"),
        (&["play", "--option", "deal=foo"], "`deal` must be `fresh` or `fixed`"),
        (&["play", "--option", "dael=fresh"], "unknown field `dael`"),
        (&["play", "--option", "deal"], "KEY=VALUE"),
        (&["play", "--split", "trian"], "did you mean `train`"),
        (&["play", "--population", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["play", "--population", "nobody"], "neither a file nor a built-in population"),
        (&["play", "--opponent", "aggressive,aggressive"], "the name is taken"),
        (&["play", "--skip-bad"], "--skip-bad requires an environment with game files; kuhn has none"),
        (&["play", "sokoban", "--skip-bad"], "sokoban has none"),
        (&["eval", "--env", "webshop", "random", "--skip-bad"], "webshop has none"),
        (&["env", "show", "webshop", "--oracles"], "mage eval --env webshop oracle"),
        (&["eval", "clever"], "unknown policy `clever`"),
        (&["eval"], "no policy"),
        (&["eval", "--method", "react"], "--endpoint URL and --model NAME"),
        (&["eval", "nash", "--temperature", "-1"], "temperature"),
        (&["eval", "nash", "--plot", "curve.pdf"], ".svg or .png"),
        (&["eval", "tictactoe", "--env", "kuhn", "random"], "unknown policy `tictactoe`: it is an environment"),
        (&["eval", "sokoban", "random"], "use --env sokoban"),
        (&["eval", "random", "--episodes", "0"], "expected a whole number from 1 to 1000"),
        (&["env", "show", "go"], "unknown environment `go`"),
        (&["env", "conform", "kuhn", "--golden", "x"], "kuhn"),
        (&["env", "conform", "sokoban", "--golden", "/nowhere/x.jsonl"], "cannot read /nowhere/x.jsonl"),
        (&["frobnicate"], "unrecognized subcommand"),
        // Sizes are limited before anything is allocated.
        (&["eval", "random", "--tasks", "100000000"], "expected a whole number from 1 to 1000000"),
        (&["eval", "random", "--tasks", "1000000", "--episodes", "1000"], "1000000 tasks x 3 seeds x 1000 episodes"),
        (&["eval", "random", "--threads", "100000"], "expected at most 1024"),
        (&["eval", "random", "--recall", "18446744073709551615"], "expected a whole number from 1 to 10000"),
        (&["sweep", "table1", "--threads", "100000"], "expected at most 1024"),
        (
            &["bench", "sampler", "x", "--requests", "18446744073709551615"],
            "expected a whole number from 1 to 10000000",
        ),
        (
            &["bench", "sampler", "x", "--max-in-flight", "18446744073709551615"],
            "expected a whole number from 1 to 1048576",
        ),
        (
            &["bench", "sampler", "x", "--prompt-tokens", "18446744073709551615"],
            "expected a whole number from 1 to 16777216",
        ),
        (&["report", "--transcripts", "18446744073709551615"], "expected a whole number from 0 to 100000"),
        (
            &["model", "new", "--config", "c", "--tokenizer-from", "t", "--vocab-size", "18446744073709551615", "m"],
            "expected a whole number from 1 to 1048576",
        ),
        (&["launch", "uv", "--model", "/m", "--samplers", "1000000000"], "expected a whole number from 1 to 10000"),
        (&["train", "--dry-run", "--set", "play.episodes=1000000000"], "play.episodes=1000000000: `play.episodes`"),
        (&["train", "--dry-run", "--set", "eval.episodes=1000000"], "at most 1000"),
        (&["train", "--dry-run", "--set", "model.num_layers=100000"], "`model.num_layers`: 100000 is not between"),
        (&["train", "--dry-run", "--set", "model.num_heads=3"], "`model.num_heads`: 3 is no multiple of"),
        (&["train", "--dry-run", "--set", "model.max_seq_len=8"], "model.max_seq_len: prompt and response"),
        (&["train", "--dry-run", "--set", "engine.lora_rank=8"], "engine.lora_rank: LoRA needs a pretrained model"),
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
    let output = mage(&["eval", "random", "--tasks", "10", "--trajectories", "/nonexistent/trajectories.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nonexistent/trajectories.jsonl"));
}

#[test]
fn help_and_version_exit_with_0() {
    for args in [&["--help"][..], &["--version"], &["help", "play"], &["eval", "--help"]] {
        let output = mage(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty());
    }
}

#[test]
fn help_states_which_checkpoint_a_run_means() {
    let commands = ["eval", "play", "model info", "model score", "model generate", "model merge", "bench sampler"];
    for command in commands {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = stdout(&mage(&args)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("RUN is") && help.contains("last") && help.contains("RUN@best"), "{command}: {help}");
    }
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let mut child =
        command().args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(errors, "");
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = mage(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("MAGE_COMPLETE"), "{shell}");
    }
}

#[test]
fn colours_depend_on_terminal_and_environment() {
    let args = ["env", "list"];
    assert!(!stdout(&mage(&args)).contains('\x1b'), "not a terminal");
    let forced = command().args(args).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(stdout(&forced).contains('\x1b'));
    let disabled = command().args(args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!stdout(&disabled).contains('\x1b'));
}

#[test]
fn play_explains_invalid_input_and_hides_the_opponent() {
    let args = ["play", "kuhn", "--seed", "3", "--opponent", "aggressive", "--seat", "0"];
    let output = mage_with_input(&args, b"raise\n\n?\nB\nbet\np\np\nb\nb\n");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("only PASS and BET are actions"));
    assert!(text.contains("the answer names no action"));
    assert!(text.contains("Legal here: PASS, BET"));
    assert!(text.contains("Episode 3 of 3") && text.contains("total "));
    assert!(!(text + &stderr(&output)).contains("aggressive"));

    let revealed = mage_with_input(&[&args[..], &["--reveal"]].concat(), b"b\nb\nb\n");
    assert!(stdout(&revealed).contains("Your opponent was: aggressive"));
}

#[test]
fn play_accepts_early_exit_and_invalid_utf8() {
    for input in [&b""[..], b"q\n", b"b\nq\n", b"\xff\xfe\nb\n", b"b"] {
        let output = mage_with_input(&["play", "--seed", "1"], input);
        assert!(output.status.success(), "{input:?}: {}", stderr(&output));
    }
}

#[test]
fn play_with_json_emits_one_event_per_line() {
    let output = mage_with_input(&["play", "--json", "--seed", "5", "--episodes", "2"], b"raise\nbet\nBET\nbet\nbet\n");
    assert!(output.status.success());
    let events: Vec<serde_json::Value> = stdout(&output).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(events[0]["event"], "start");
    assert_eq!(events.last().unwrap()["event"], "finished");
    assert!(events.iter().any(|e| e["event"] == "rejected"));
    assert_eq!(events.iter().filter(|e| e["event"] == "episode_end").count(), 2);
}

#[test]
fn evaluation_is_deterministic_and_counts_tasks_and_seeds() {
    let args = ["eval", "random", "--tasks", "500", "--json", "--seed", "7"];
    let first = mage(&args);
    assert_eq!(first.stdout, mage(&args).stdout);
    let report = json(&first);
    assert_eq!(report["tasks"], 500);
    let curve = report["summary"]["overall"]["by_episode"].as_array().unwrap();
    assert_eq!(curve.len(), 3);
    // Three seeds by default; a task with all seeds is one observation, also by opponent and seat.
    assert_eq!(report["seeds"], 3);
    let counts = |at: &serde_json::Value| {
        [&at["score"]["count"], &at["won"]["tasks"], &at["won"]["trials"]].map(serde_json::Value::as_u64)
    };
    assert!(curve.iter().all(|at| counts(at) == [Some(500), Some(500), Some(1500)]));
    let seats = report["summary"]["by_seat"].as_object().unwrap().values();
    assert_eq!(seats.map(|s| s["by_episode"][0]["score"]["count"].as_u64().unwrap()).sum::<u64>(), 500);
    assert_ne!(first.stdout, mage(&["eval", "random", "--tasks", "500", "--json", "--seed", "8"]).stdout);
}

#[test]
fn evaluation_resumes_from_its_trajectories() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trajectories.jsonl");
    let path = path.to_str().unwrap();
    let args = ["eval", "random", "--tasks", "300", "--json", "--trajectories", path];
    let whole = mage(&args);
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() / 3]).unwrap();
    let resumed = mage(&args);
    assert_eq!(json(&whole)["summary"], json(&resumed)["summary"]);
    assert_eq!(std::fs::read(path).unwrap(), bytes);

    // Duplicate records count once.
    std::fs::write(path, [&bytes[..], &bytes[..]].concat()).unwrap();
    assert_eq!(json(&whole)["summary"], json(&mage(&args))["summary"]);

    // A file of another kind is not changed.
    std::fs::write(path, "my notes").unwrap();
    assert_eq!(mage(&args).status.code(), Some(1));
    assert_eq!(std::fs::read(path).unwrap(), b"my notes");
}

#[test]
fn early_stop_has_an_upper_bound_for_pass_at_k_only() {
    let args = ["eval", "bayes", "--tasks", "100", "--early-stop"];
    let report = json(&mage(&[&args[..], &["--json"]].concat()));
    assert!(report["relative"].is_null(), "later scores cover only the tasks not yet won");
    assert!(report["summary"]["overall"]["by_episode"][2]["score"]["count"].as_u64().unwrap() < 100);
    let best: Vec<f64> = serde_json::from_value(report["ceilings"]["mean"]["pass_at_k"].clone()).unwrap();
    assert!(best.len() == 3 && best[0] < best[1] && best[1] < best[2], "{best:?}");
    let shown = stdout(&mage(&args));
    assert!(shown.contains("best Pass@k") && !shown.contains("memoryless"), "{shown}");
    assert!(shown.contains(&format!("{:.1} %", 100.0 * best[2])), "{shown}");
    assert!(shown.contains("cover the n tasks not yet won") && shown.contains("won within 3"), "{shown}");
}

#[test]
fn the_plot_has_all_policies_and_the_gap_closed_has_an_interval() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("both.svg");
    let args = ["eval", "bayes", "nash", "--tasks", "2000", "--plot", path.to_str().unwrap()];
    let output = mage(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let plot = std::fs::read_to_string(&path).unwrap();
    assert!(plot.contains(">bayes</text>") && plot.contains(">nash</text>"), "{plot}");
    assert!(plot.contains("Bayes-adaptive optimum (exact)"), "{plot}");
    let shown = stdout(&output);
    let row = shown.lines().skip_while(|l| !l.contains("memoryless optimum")).nth(3).unwrap();
    assert!(row.trim_end().ends_with(']') && row.contains(" % ["), "{row}");
    assert!(shown.contains("2000 tasks with 3 seeds each") && shown.contains("counts once"), "{shown}");
}

#[test]
fn the_population_file_in_the_help_is_valid() {
    let help = stdout(&mage(&["eval", "--help"]));
    let lines = help.lines().skip_while(|l| !l.contains("env = \"kuhn\"")).take_while(|l| !l.contains("Defaults:"));
    let file: String = lines.map(|l| format!("{}\n", l.trim())).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("example.toml");
    std::fs::write(&path, &file).unwrap();
    let args = ["eval", "nash", "--tasks", "8", "--split", "out-of-domain", "--json", "--population"];
    let report = json(&mage(&[&args[..], &[path.to_str().unwrap()]].concat()));
    assert!(report["summary"]["by_opponent"]["stranger"].is_object(), "{file}");
}

#[test]
fn draws_are_reported_if_there_are_any() {
    let args = ["eval", "--env", "tictactoe", "perfect", "--tasks", "24", "--episodes", "2"];
    let eval = |more: &[&str]| stdout(&mage(&[&args[..], more].concat()));
    for shown in [eval(&["--seeds", "1"]), eval(&["--seeds", "2"])] {
        assert!(shown.contains("drew") && shown.contains("draw or win within k"), "{shown}");
        assert!(shown.contains("100.0 %"), "a perfect player never loses:\n{shown}");
    }
    let kuhn = stdout(&mage(&["eval", "nash", "--tasks", "24"]));
    assert!(!kuhn.contains("drew"), "Kuhn poker has no draws:\n{kuhn}");
}

#[test]
fn populations_are_read_from_files() {
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
        let base = ["eval", "random", "--tasks", "40", "--json", "--population", path.to_str().unwrap()];
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
        ("env = \"kuhn\"", "no opponents"),
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
fn tictactoe_can_be_played_against_every_kind_of_opponent() {
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
        let rejected = mage(&["play", "tictactoe", "--opponent", opponent]);
        assert_eq!(rejected.status.code(), Some(2));
        assert!(stderr(&rejected).contains(expected), "{}", stderr(&rejected));
    }
}

#[test]
fn tictactoe_rules_describe_the_displayed_board() {
    let output = mage_with_input(&["play", "tictactoe", "--seat", "0", "--seed", "1"], "?\nq\n");
    let text = stdout(&output);
    assert!(text.contains("an empty cell is blank") && !text.contains("a dot is"), "{text}");
    assert!(text.contains("An episode has at most 8 turns. Legal here: (1,1), (1,2)"), "{text}");
}

#[test]
fn upper_bounds_are_qualified_by_their_accuracy() {
    let play = |opponents: &str| {
        let args = ["play", "tictactoe", "--opponent", opponents, "--seat", "0", "--seed", "1", "--episodes", "2"];
        stdout(&mage_with_input(&args, "1 1\n1 2\n1 3\n2 1\n2 2\n2 3\n3 1\n3 2\n3 3\n".repeat(4)))
    };
    let known = play("preferred_1,preferred_2");
    assert!(known.contains("Bayes-adaptive optimum") && !known.contains("at least"), "{known}");
    // The scores are printed before the bounds, which take longer to compute.
    assert!(known.find("total ").unwrap() < known.find("Bayes-adaptive optimum").unwrap(), "{known}");
    let shown =
        stdout(&mage(&["env", "show", "tictactoe", "--oracles", "--opponent", "mcts-3,blind-row-1,blind-row-2"]));
    assert!(shown.contains("note: estimated: an opponent has no known action probabilities"), "{shown}");
    assert!(shown.contains("exact for the sampled move frequencies"), "{shown}");
    let known = stdout(&mage(&["env", "show", "tictactoe", "--oracles", "--opponent", "blind-row-1,blind-row-2"]));
    assert!(known.contains("all values are exact to the decimals shown"), "{known}");
    let eval = ["eval", "--env", "tictactoe", "perfect", "--tasks", "20"];
    let measured = stdout(&mage(&[&eval[..], &["--opponent", "blind-row-1,blind-row-2"]].concat()));
    assert!(!measured.contains("at least") && !measured.contains("at most"), "{measured}");
}

#[cfg(feature = "long")]
#[test]
fn intractable_optima_are_reported_as_bounds() {
    // Seven mixed strategies over many episodes: too many beliefs to solve.
    let opponents = "random,biased_random,perfect,blind-row-1,blind-row-2,blind-column-1,blind-column-2";
    let args = ["eval", "--env", "tictactoe", "perfect", "--tasks", "5", "-n", "30", "--opponent", opponents];
    let measured = stdout(&mage(&args));
    assert!(measured.contains("Pass@k") && measured.contains("Bayes-adaptive optimum, at least"), "{measured}");
    assert!(measured.contains("gap closed, at most"), "{measured}");
}

#[test]
fn oracles_hint_at_splits_with_other_opponents() {
    let population = "env = \"tictactoe\"\n[[opponent]]\nname = \"a\"\nkind = \"preferred_1\"\n[[opponent]]\nname = \"b\"\n\
                      kind = \"preferred_2\"\nsplits = [\"out-of-domain\"]\n";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    std::fs::write(&path, population).unwrap();
    let show = ["env", "show", "tictactoe", "--oracles", "--population", path.to_str().unwrap()];
    let output = mage(&show);
    let hint = "These are the in-domain opponents; use --split out-of-domain for others.";
    assert!(stderr(&output).contains(hint), "{}", stderr(&output));
    let output = mage(&[&show[..], &["--split", "out-of-domain"]].concat());
    assert!(stderr(&output).contains("use --split train or --split in-domain for others"), "{}", stderr(&output));
    let output = mage(&["env", "show", "tictactoe", "--oracles"]);
    assert!(
        !stderr(&output).contains("--split train"),
        "the other splits have the same opponents: {}",
        stderr(&output)
    );
}

#[test]
fn an_evaluation_of_several_policies_starts_with_one_row_per_policy() {
    let args = ["eval", "--env", "tictactoe", "perfect", "random", "--tasks", "5", "--opponent", "random"];
    let output = mage(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("policy") && lines[0].contains("gain") && lines[0].contains("Pass@3"), "{text}");
    assert!(lines[1].starts_with("perfect") && lines[2].starts_with("random"), "{text}");
    assert!(lines[..3].iter().all(|line| line.chars().count() <= 80), "{text}");
}

#[cfg(unix)]
#[test]
fn results_are_printed_even_if_the_plot_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("full.svg");
    std::os::unix::fs::symlink("/dev/full", &plot).unwrap();
    let output = mage(&["eval", "random", "--tasks", "5", "--plot", plot.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("full.svg: No space left"), "{}", stderr(&output));
    assert!(stdout(&output).contains("random on kuhn"), "{}", stdout(&output));
}

#[test]
fn errors_in_a_population_file_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.toml");
    let opponent = "env = \"tictactoe\"\n[[opponent]]\nname = \"fox\"\nkind = ";
    for (text, expected) in [
        (
            format!("{opponent}\"MCTS-100\""),
            "mine.toml:3: opponent `fox`: unknown kind of opponent `MCTS-100`: did you mean `mcts-100`?",
        ),
        (format!("{opponent}\"mcts\"\nsimulations = \"many\""), "`simulations` must be a whole number"),
        (format!("{opponent}\"mcts\"\nsimulations = 99999999999999999999"), "is too large"),
        (format!("{opponent}\"preferred\"\norder = [[1, 9]]"), "[1, 9] is not on the board"),
        (format!("{opponent}\"random\"\nweight = \"big\""), "mine.toml:5: `opponent.1.weight` must be a number"),
        (format!("{opponent}\"random\"\nsplits = [\"out-of-domain\"]"), "no opponent in split `in-domain`"),
        (
            "env = \"tictactoe\"\nseats = [1]\n[[opponent]]\nname = \"a\"\nkind = \"random\"".to_owned(),
            "`seats` lists 1 weights",
        ),
        ("env = \"tictactoe\"".to_owned(), "no opponents"),
        ("env = ".to_owned(), ""),
    ] {
        std::fs::write(&path, &text).unwrap();
        let output = mage(&["env", "show", "tictactoe", "--population", path.to_str().unwrap()]);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {error}");
        assert!(error.contains("mine.toml") && error.contains(expected), "{text}: {error}");
        for word in ["u64", "i64", "i128", "u8", "f64", "usize", "sequence"] {
            assert!(!error.contains(word), "{error}");
        }
    }
}
