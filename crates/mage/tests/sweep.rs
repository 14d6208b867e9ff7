//! Sweeps and reports from the command line: cells, stopping and going on, the page at the end.

mod common;

use common::{command, mage, stderr, stdout};
use std::{fs, path::Path};

const GRID: &str = r#"
    description = "a test"
    policy = "tiny policy"
    tasks = 12
    episodes = 3
    seeds = [0]
    set = ["optim.updates=2", "rollout.groups=2", "warmstart.steps=2", "warmstart.batch_size=4", "eval.tasks=6",
           "eval.final_tasks=6", "eval.every=1", "trajectories.every=1"]
    [[env]]
    name = "kuhn"
    task_sets = ["kuhn"]
    recipe = ["kuhn"]
    agents = ["bayes"]
    [[method]]
    name = "MAGE"
    train = ["mage"]
    [[method]]
    name = "ReAct"
    prompt = "react"
    [[ablation]]
    name = "cumulative"
    set = ["method.credit.assignment=cumulative"]
"#;

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("it was written")
}

#[test]
fn a_sweep_goes_on_where_it_stopped_and_makes_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let grid = dir.path().join("grid.toml");
    fs::write(&grid, GRID).unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (grid, out) = (grid.display().to_string(), at("out"));
    let sweep = |more: &[&str]| mage(&[&["sweep", grid.as_str(), "--out", out.as_str(), "--json"], more].concat());

    let plan = sweep(&["--dry-run"]);
    let plan: serde_json::Value = serde_json::from_str(&stdout(&plan)).unwrap();
    let states: Vec<&str> = plan["cells"].as_array().unwrap().iter().map(|c| c["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["to do", "to do", "to do", "to do", "to do", "waits for --endpoint"]);
    assert!(!Path::new(&out).exists(), "a plan writes nothing");

    /// What was said about cells: the first and the last line are about the whole.
    fn cells(said: &str) -> Vec<&str> {
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            lines[0].contains("\"event\":\"begin\"") && lines[lines.len() - 1].contains("\"event\":\"end\""),
            "{said}"
        );
        lines[1..lines.len() - 1].to_vec()
    }
    let first = sweep(&[]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let events = stdout(&first);
    assert_eq!(events.matches("\"state\":\"finished\"").count(), 5, "{events}");
    let records = Path::new(&out).join("kuhn/bayes-on-kuhn/records.jsonl");
    let before = text(&records);
    assert_eq!(before.lines().count(), 12);

    // One cell lost its result, and half of its records: only that is done again, and to the same bytes.
    let half: String = before.split_inclusive('\n').take(6).collect();
    fs::write(&records, half).unwrap();
    fs::remove_file(records.with_file_name("summary.json")).unwrap();
    let again = stdout(&sweep(&[]));
    assert_eq!(cells(&again).len(), 1, "{again}");
    assert!(again.contains("kuhn/bayes-on-kuhn"), "{again}");
    assert_eq!(text(&records), before);
    let nothing = stdout(&sweep(&[]));
    assert!(
        cells(&nothing).is_empty() && nothing.contains("\"finished\":5"),
        "nothing left to do, and it says so: {nothing}"
    );

    let page = at("page");
    let report = mage(&["report", &out, "--out", &page]);
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let csv = text(format!("{page}/report.csv"));
    assert!(csv.contains("kuhn,kuhn,MAGE,cumulative,tiny policy,,,,3,score,"), "{csv}");
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,,,3,pass_at_k,"), "{csv}");
    assert!(csv.contains("panel_by_update"), "{csv}");
    assert!(!csv.contains("ReAct,,endpoint"), "nobody played it");
    let html = text(format!("{page}/report.html"));
    assert!(html.contains("id=\"ablations\"") && html.contains("learning-kuhn"));
    assert!(Path::new(&page).join("figures/learning-kuhn.svg").exists());
    assert!(fs::read(format!("{page}/figures/learning-kuhn.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,,,3,best_pass_at_k,"), "{csv}");
    assert!(!html.contains("Table 1 lacks"), "every run was measured");

    // Runs alone: what is missing, and how to get it.
    let run = format!("{out}/kuhn/MAGE-0/run");
    let alone = at("alone");
    assert!(mage(&["report", &run, "--out", &alone]).status.success());
    let said = text(format!("{alone}/report.md"));
    assert!(said.contains("Table 1 lacks 1 run") && said.contains(&format!("--preset kuhn --policy {run}")), "{said}");
    assert!(text(format!("{page}/report.md")).contains("| MAGE | tiny policy | 3 |"));
    // Task by task, by seat, and the picture that the page lets one turn.
    assert!(csv.contains("kuhn,kuhn,MAGE,,tiny policy,,,bayes (scripted),3,pass_at_k_p_value,"), "{csv}");
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,1,,3,score,") && csv.contains(",best_response,"), "{csv}");
    assert!(text(format!("{page}/report.md")).contains("## Task by task"));
    assert!(fs::read(format!("{page}/figures/moves-1.png")).unwrap().starts_with(b"\x89PNG"));
}

/// Results of what was asked for before are no results of what is asked for now; nor are they thrown away.
#[test]
fn a_changed_sweep_does_again_what_changed_and_keeps_what_was() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (grid, out) = (at("grid.toml"), at("out"));
    let small = GRID.replace("optim.updates=2", "optim.updates=1").split("[[ablation]]").next().unwrap().to_owned();
    fs::write(&grid, &small).unwrap();
    let sweep = |more: &[&str]| mage(&[&["sweep", grid.as_str(), "--out", out.as_str(), "--json"], more].concat());
    let states = || -> Vec<String> {
        let plan: serde_json::Value = serde_json::from_str(&stdout(&sweep(&["--dry-run"]))).unwrap();
        plan["cells"].as_array().unwrap().iter().map(|c| c["state"].as_str().unwrap().to_owned()).collect()
    };
    assert!(sweep(&[]).status.success());
    assert_eq!(states(), ["finished", "finished", "finished", "waits for --endpoint"]);
    let summary = Path::new(&out).join("kuhn/bayes-on-kuhn/summary.json");
    let before = text(&summary);

    // Another number of tasks: what is played is played again, what is trained is not.
    fs::write(&grid, small.replace("tasks = 12\n", "tasks = 14\n")).unwrap();
    let again = "changed: to do again";
    assert_eq!(states(), [again, "finished", again, "waits for --endpoint"]);
    assert_eq!(text(&summary), before, "a plan changes nothing");
    let said = sweep(&[]);
    assert!(said.status.success());
    assert!(stderr(&said).contains("--tasks 12 before, --tasks 14 now"), "{}", stderr(&said));
    assert!(stdout(&said).contains("\"changed\":2"), "{}", stdout(&said));
    assert_ne!(text(&summary), before);
    assert_eq!(text(Path::new(&out).join("replaced/kuhn/bayes-on-kuhn.1/summary.json")), before, "nothing is lost");
    assert_eq!(states()[..3], ["finished"; 3]);
    let page = at("page");
    assert!(mage(&["report", &out, "--out", &page]).status.success());
    let md = text(format!("{page}/report.md"));
    assert!(md.contains("n 14") && !md.contains("n 12") && md.contains("2 results that sweeps have replaced"), "{md}");

    // Another recipe under the same name, and with it other weights: trained again, and measured again.
    fs::write(at("mine.toml"), "[loss]\nentropy = 0.01\n").unwrap();
    let own = small.replace("recipe = [\"kuhn\"]", &format!("recipe = [\"kuhn\", \"{}\"]", at("mine.toml")));
    fs::write(&grid, &own).unwrap();
    assert!(sweep(&[]).status.success());
    assert_eq!(states()[..3], ["finished"; 3]);
    fs::write(at("mine.toml"), "[loss]\nentropy = 0.02\n").unwrap();
    assert_eq!(states()[..3], ["finished", again, again]);
    assert!(sweep(&[]).status.success());
    assert_eq!(states()[..3], ["finished"; 3]);
}

/// What was not tried is not said to take no time.
#[test]
fn a_plan_without_a_trial_names_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let plan = mage(&["sweep", "paper/table1", "--dry-run", "--out", &out]);
    let said = stdout(&plan);
    assert!(said.contains("how long they take is not known") && !said.contains(" 0 s"), "{said}");
    assert!(said.contains("60 training cells were not tried"), "{said}");
    let plan = stdout(&mage(&["sweep", "paper/table1", "--dry-run", "--out", &out, "--json"]));
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert!(plan["training_seconds"].is_null() && plan["play_seconds"].is_null());
}

#[test]
fn what_cannot_be_done_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().display().to_string();
    let nothing = mage(&["report", &empty]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("nothing to report"));
    assert_eq!(mage(&["report", "/nowhere/at/all"]).status.code(), Some(2));
    assert_eq!(mage(&["sweep", "tabel1"]).status.code(), Some(2));
    let nowhere = command().arg("report").current_dir(dir.path()).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(2), "neither runs nor sweeps");
    let shown = stdout(&mage(&["sweep", "recipes/tiny/table1.toml", "--dry-run", "--json", "--out", &empty]));
    assert!(shown.contains("tictactoe/MAGE-0"), "presets are found by the path of a recipe too");
    assert!(stdout(&mage(&["sweep", "list"])).contains("paper/table1"));
    assert!(stdout(&mage(&["sweep", "show", "fig5"])).contains("[[ablation]]"));
    let run = command().args(["sweep", "show"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}
