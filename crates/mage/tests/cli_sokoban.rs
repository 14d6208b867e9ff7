//! Tests of the Sokoban environment on the command line.

use crate::common::{command, json, mage, mage_with_input, stderr, stdout};
use serde_json::Value;

#[test]
fn a_sokoban_turn_consists_of_several_moves() {
    let args = ["play", "sokoban", "--seed", "4", "--episodes", "1"];
    let output = mage_with_input(&args, b"north\nup\nu, l, d\nright right\nq\n");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(text.matches("the answer names no move").count(), 1, "{text}");
    assert!(text.contains("████████████") && text.contains("(up to 3 of up/down/left/right/still)"), "{text}");
    let long = mage_with_input(&args, "u u u u\nq\n");
    assert!(stdout(&long).contains("too many moves for one turn: up to 3 of up, down"), "{}", stdout(&long));
}

#[test]
fn still_is_a_legal_move() {
    let output = mage_with_input(&["play", "sokoban", "--seed", "3", "--episodes", "1"], "still\nup still\nq\n");
    assert!(output.status.success() && !stdout(&output).contains("not legal"), "{}", stdout(&output));
}

/// A level with every kind of cell, with non-default turns.
#[test]
fn the_rules_explain_every_displayed_symbol_and_the_turns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("level.txt");
    std::fs::write(&path, "########\n#@.$ * #\n#      #\n########\n").unwrap();
    let levels = format!("levels={}", path.display());
    let args = [
        "play",
        "sokoban",
        "--episodes",
        "1",
        "--max-turns",
        "4",
        "--option",
        &levels,
        "--option",
        "moves_per_action=5",
    ];
    let shown = stdout(&mage_with_input(&args, "?\nr\nl, d, d, d, u\nq\n"));
    let (before, rest) = shown.split_once("You play Sokoban").unwrap();
    let (rules, after) = rest.split_once("your move").unwrap();
    let drawn = before.lines().chain(after.lines()).filter(|l| l.starts_with("██"));
    let mut signs = std::collections::BTreeSet::new();
    for line in drawn {
        let cells: Vec<char> = line.chars().collect();
        signs.extend(cells.chunks(2).map(|pair| pair.iter().collect::<String>()));
    }
    signs.remove("  ");
    assert_eq!(signs.len(), 6, "{signs:?}");
    let explained = |sign: &String| rules.contains(&format!("{} is", sign.trim_end()));
    assert!(signs.iter().all(explained), "{signs:?}\n{rules}");
    assert!(!rules.contains("# is a wall"), "symbols of the agents' view: {rules}");
    assert!(
        rules.contains("An episode has at most 4 turns. Legal here: up to 5 of up, down, left, right, still"),
        "{rules}"
    );
    assert!(!shown.contains("names no move"), "prefixes are accepted: {shown}");
}

#[test]
fn the_score_of_a_truncated_episode_is_its_reward() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("level.txt");
    std::fs::write(&path, "########\n#@$.   #\n#  $  .#\n########\n").unwrap();
    let levels = format!("levels={}", path.display());
    let args = ["play", "sokoban", "--episodes", "1", "--max-turns", "1", "--option", &levels];
    let shown = stdout(&mage_with_input(&args, "r\n"));
    assert!(shown.contains("No turns left; score +0.9.") && shown.contains("total +0.9"), "{shown}");
    let events = stdout(&mage_with_input(&[&args[..], &["--json"]].concat(), "right\n"));
    let finished: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert!((finished["results"][0]["score"].as_f64().unwrap() - 0.9).abs() < 1e-6, "{finished}");
}

#[test]
fn upper_bounds_are_reported_by_split() {
    // A directory without level files.
    let dir = tempfile::tempdir().unwrap();
    let mage = |args: &[&str]| command().args(args).env_remove("MAGE_DATA").current_dir(dir.path()).output().unwrap();
    let report = json(&mage(&["env", "show", "sokoban", "--oracles", "--json"]));
    let splits = report["oracles"]["splits"].as_array().unwrap();
    for name in ["train", "in-domain", "out-of-domain"] {
        let split = splits.iter().find(|s| s["split"] == name).unwrap();
        assert_eq!((&split["tasks"], &split["max_turns"]), (&1000.into(), &7.into()));
        assert_eq!((&split["solvable"]["rate"], &split["undecided"]), (&1.0.into(), &0.into()));
        let moves = split["optimal"]["fewest moves"]["mean"].as_f64().unwrap();
        let pushes = split["optimal"]["fewest pushes"]["mean"].as_f64().unwrap();
        assert!(pushes > 1.0 && moves > pushes && moves < 21.0, "{moves} {pushes}");
        let random = &split["random_win_rate"];
        assert!(random["rate"].as_f64().unwrap() < 0.2 && random["interval"]["high"].as_f64().unwrap() < 0.25);
    }
    let absent = report["oracles"]["unavailable"].as_object().unwrap();
    assert_eq!(absent.keys().collect::<Vec<_>>(), ["boxoban", "boxoban-hard", "boxoban-medium"]);
    assert!(absent["boxoban"].as_str().unwrap().contains("set MAGE_DATA"), "{absent:?}");
    let one = stdout(&mage(&["env", "show", "sokoban", "--oracles", "--split", "train"]));
    assert!(one.contains("7 (21 moves)") && one.contains("100.0 % [99.6, 100.0]"), "{one}");
    assert!(!one.contains("in-domain") && one.contains("95 % intervals"), "{one}");
    let absent = mage(&["env", "show", "sokoban", "--oracles", "--split", "boxoban", "--option", "levels=/nowhere"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(stderr(&absent).contains("/nowhere: no such level file or directory"), "{}", stderr(&absent));
}

#[test]
fn splits_are_listed_with_their_maximum_turns() {
    let shown = stdout(&mage(&["env", "show", "sokoban"]));
    for split in ["train", "in-domain", "out-of-domain", "boxoban", "boxoban-medium", "boxoban-hard"] {
        assert!(shown.lines().any(|l| l.split_whitespace().next() == Some(split)), "{split}: {shown}");
    }
    let report = json(&mage(&["env", "show", "sokoban", "--json", "--option", "moves_per_action=1"]));
    let turns = |name: &str| {
        let splits = report["splits"].as_array().unwrap();
        splits.iter().find(|s| s["name"] == name).unwrap()["max_turns"].as_u64().unwrap()
    };
    assert_eq!(turns("train"), 21, "the same number of moves, one per turn");
    assert_eq!([turns("boxoban"), turns("boxoban-medium"), turns("boxoban-hard")], [90, 150, 150]);
}

#[test]
fn invalid_levels_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("level.txt");
    let option = format!("levels={}", path.display());
    let commands: [&[&str]; 2] = [
        &["play", "sokoban", "--option", &option],
        &["eval", "--env", "sokoban", "optimal", "--tasks", "2", "--option", &option],
    ];
    let assert_rejected = |expected: &str| {
        for args in commands {
            let output = mage(args);
            assert_eq!(output.status.code(), Some(2), "{args:?}");
            assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        }
    };
    assert_rejected("level.txt: no such level file or directory\n");
    for (level, expected) in [
        ("", "contains no level"),
        ("#####\n# $.#\n#####\n", "level at line 1: there is no player"),
        ("#####\n#@$.#\n####\n", "level.txt, line 3: the row has 4 cells"),
        ("######\n#@$$.#\n######\n", "more boxes than targets (2 and 1)"),
        ("#####\n#@$x#\n#####\n", "line 2: `x` in column 4 is not a level character"),
    ] {
        std::fs::write(&path, level).unwrap();
        assert_rejected(expected);
    }
    std::fs::write(&path, "#####\n#@$.#\n#####\n").unwrap();
    for args in commands {
        assert!(mage(args).status.success());
    }
    let played = mage_with_input(&[commands[0], &["--episodes", "1"]].concat(), b"r\n");
    assert!(stdout(&played).contains("Solved."), "{}", stdout(&played));
}

#[test]
fn scripted_agents_are_evaluated_in_every_split() {
    let report = |extra: &[&str]| {
        let base = ["eval", "--env", "sokoban", "--tasks", "60", "--seeds", "1", "--episodes", "2", "--json"];
        json(&mage(&[&base[..], extra].concat()))
    };
    let won = |report: &Value| report["summary"]["overall"]["by_episode"][1]["won"]["rate"].as_f64().unwrap();
    for split in ["train", "in-domain", "out-of-domain"] {
        assert_eq!(won(&report(&["optimal", "--split", split])), 1.0, "{split}");
    }
    assert!(won(&report(&["random"])) < 0.3);
    assert_eq!(won(&report(&["optimal", "--option", "step_rules=faithful", "--option", "boxes=1"])), 1.0);
    assert_eq!(won(&report(&["optimal", "--max-turns", "1"])), 0.0, "no task is solvable in three moves");
}

#[test]
fn recordings_of_the_original_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rooms.jsonl");
    // A hand-made room, marked as retried, so that only its views and steps are compared.
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
        mage(&["env", "conform", "sokoban", "--json", "--golden", path.to_str().unwrap()])
    };
    let good = conform(&room("10.9"));
    assert_eq!(json(&good)["compared"]["steps"], 1);
    let bad = conform(&room("10.8"));
    assert_eq!(bad.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["different"], 1);
    assert!(
        report["first"]["location"].as_str().unwrap().contains("line 1 (seed 1, 3 by 5, 1 boxes), step 1 (action 4)")
    );
    assert!(report["first"]["expected"].as_str().unwrap().contains("10.8"));
    // Missing and misspelt keys are reported.
    let incomplete = json(&conform(&room("10.9").replace("\"shortest\"", "\"shortst\"")));
    assert_eq!(incomplete["skipped"]["shortest solutions of records without `shortest`"], 1);
    assert_eq!((&incomplete["ignored"]["shortst"], &incomplete["compared"]["steps"]), (&1.into(), &1.into()));
    assert!(incomplete["compared"].get("shortest solutions").is_none());
    let incomplete = json(&conform(&room("10.9").replace("\"steps\"", "\"stesp\"")));
    assert_eq!(incomplete["skipped"]["steps of records without `steps`"], 1);
    assert!(incomplete["compared"].get("steps").is_none());
    let output = mage(&["env", "conform", "sokoban", "--golden", path.to_str().unwrap()]);
    assert!(stdout(&output).contains("1 with the unknown key `stesp`, which was ignored"), "{}", stdout(&output));
    let unreadable = conform("{}\n");
    assert_eq!(unreadable.status.code(), Some(2));
    assert!(stderr(&unreadable).contains("line 1: not a recorded room"));
    assert_eq!(conform("").status.code(), Some(1), "without a comparison the command fails");
}
