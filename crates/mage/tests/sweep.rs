//! Tests of `mage sweep` and `mage report`.

use crate::common::{command, mage, stderr, stdout};
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
    fs::read_to_string(path).expect("exists")
}

#[test]
fn a_sweep_resumes_and_its_report_contains_all_cells() {
    let dir = tempfile::tempdir().unwrap();
    let grid = dir.path().join("grid.toml");
    fs::write(&grid, GRID).unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (grid, out) = (grid.display().to_string(), at("out"));
    let sweep = |more: &[&str]| mage(&[&["sweep", grid.as_str(), "--out", out.as_str(), "--json"], more].concat());

    let plan = sweep(&["--dry-run", "--set", "tasks=11", "--set", "optim.updates=1"]);
    let plan: serde_json::Value = serde_json::from_str(&stdout(&plan)).unwrap();
    let commands = plan["cells"].to_string();
    assert!(commands.contains("optim.updates=1\"") && commands.contains("\"--tasks\",\"11\""), "{commands}");
    let plan = sweep(&["--dry-run"]);
    let plan: serde_json::Value = serde_json::from_str(&stdout(&plan)).unwrap();
    let states: Vec<&str> = plan["cells"].as_array().unwrap().iter().map(|c| c["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "pending", "pending", "pending", "pending", "needs --endpoint"]);
    assert!(!Path::new(&out).exists(), "a dry run writes nothing");

    /// The events of cells, between the first and the last event.
    fn cells(output: &str) -> Vec<&str> {
        let lines: Vec<&str> = output.lines().collect();
        assert!(
            lines[0].contains("\"event\":\"start\"") && lines[lines.len() - 1].contains("\"event\":\"end\""),
            "{output}"
        );
        lines[1..lines.len() - 1].to_vec()
    }
    let first = sweep(&[]);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let events = stdout(&first);
    assert_eq!(events.matches("\"state\":\"finished\"").count(), 5, "{events}");
    let trajectories = Path::new(&out).join("kuhn/bayes-on-kuhn/trajectories.jsonl");
    let before = text(&trajectories);
    assert_eq!(before.lines().count(), 12);

    // A cell without its summary and half of its trajectories is completed, with identical bytes.
    let half: String = before.split_inclusive('\n').take(6).collect();
    fs::write(&trajectories, half).unwrap();
    fs::remove_file(trajectories.with_file_name("summary.json")).unwrap();
    let again = stdout(&sweep(&[]));
    assert_eq!(cells(&again).len(), 1, "{again}");
    assert!(again.contains("kuhn/bayes-on-kuhn"), "{again}");
    assert_eq!(text(&trajectories), before);
    let nothing = stdout(&sweep(&[]));
    assert!(cells(&nothing).is_empty() && nothing.contains("\"finished\":5"), "all cells are finished: {nothing}");

    fs::remove_file(trajectories.with_file_name("summary.json")).unwrap();
    let shown = mage(&["sweep", &grid, "--out", &out]);
    let progress = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(progress.contains("[1/1] kuhn/bayes-on-kuhn finished after") && progress.contains(", Pass@"), "{progress}");
    assert!(stdout(&shown).contains("all cells are finished, except those that need --endpoint; build"), "{progress}");

    // Finished cells have their scores, and their lines fit 80 columns.
    let plan = stdout(&mage(&["sweep", &grid, "--out", &out, "--dry-run"]));
    let of = |id: &str| plan.lines().find(|l| l.starts_with(&format!("{id} "))).unwrap_or_else(|| panic!("{plan}"));
    assert!(of("kuhn/MAGE-0").contains("finished, score "), "{plan}");
    assert!(
        of("kuhn/bayes-on-kuhn").contains("finished, Pass@3 ") && of("kuhn/bayes-on-kuhn").ends_with(" %"),
        "{plan}"
    );
    assert!(plan.lines().filter(|l| l.starts_with("kuhn/")).all(|l| l.chars().count() <= 80), "{plan}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&sweep(&["--dry-run"]))).unwrap();
    assert!(json["cells"][0]["result"]["score"].is_f64() || json["cells"][0]["result"]["pass_at_k"].is_f64(), "{json}");

    let page = at("page");
    let report = mage(&["report", &out, "--out", &page]);
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let csv = text(format!("{page}/report.csv"));
    assert!(csv.contains("kuhn,kuhn,MAGE,cumulative,tiny policy,,,,3,score,"), "{csv}");
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,,,3,pass_at_k,"), "{csv}");
    assert!(csv.contains("score_by_update"), "{csv}");
    assert!(!csv.contains("ReAct,,endpoint"), "the cell needs an endpoint");
    let html = text(format!("{page}/report.html"));
    assert!(html.contains("id=\"ablations\"") && html.contains("learning-kuhn"));
    assert!(Path::new(&page).join("figures/learning-kuhn.svg").exists());
    assert!(fs::read(format!("{page}/figures/learning-kuhn.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,,,3,best_pass_at_k,"), "{csv}");
    assert!(!html.contains("Table 1 lacks"), "every run was evaluated");
    assert!(html.contains("\"seed\":\"seed 0\""), "transcripts of evaluations state the seed");

    // A report of runs alone lists the missing evaluations.
    let run = format!("{out}/kuhn/MAGE-0/run");
    let alone = at("alone");
    assert!(mage(&["report", &run, "--out", &alone]).status.success());
    let report = text(format!("{alone}/report.md"));
    assert!(report.contains("Table 1 lacks 1 run") && report.contains(&format!("--preset kuhn {run}")), "{report}");
    assert!(text(format!("{page}/report.md")).contains("| MAGE | tiny policy | 3 |"));
    // Paired comparison, results by seat, and the plot of states and actions.
    assert!(csv.contains("kuhn,kuhn,MAGE,,tiny policy,,,bayes (scripted),3,pass_at_k_p_value,"), "{csv}");
    assert!(csv.contains("kuhn,kuhn,bayes,,scripted,,1,,3,score,") && csv.contains(",best_response,"), "{csv}");
    assert!(text(format!("{page}/report.md")).contains("## Paired comparison by task"));
    assert!(fs::read(format!("{page}/figures/actions-kuhn-bayes-scripted.png")).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn a_changed_sweep_repeats_changed_cells_and_keeps_old_results() {
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
    assert_eq!(states(), ["finished", "finished", "finished", "needs --endpoint"]);
    let summary = Path::new(&out).join("kuhn/bayes-on-kuhn/summary.json");
    let before = text(&summary);

    // Another number of tasks: evaluations are repeated, training is not.
    fs::write(&grid, small.replace("tasks = 12\n", "tasks = 14\n")).unwrap();
    let changed = "pending (changed)";
    assert_eq!(states(), [changed, "finished", changed, "needs --endpoint"]);
    assert_eq!(text(&summary), before, "a dry run changes nothing");
    let output = sweep(&[]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("--tasks 12 before, --tasks 14 now"), "{}", stderr(&output));
    assert!(stdout(&output).contains("\"changed\":2"), "{}", stdout(&output));
    assert_ne!(text(&summary), before);
    assert_eq!(
        text(Path::new(&out).join("replaced/kuhn/bayes-on-kuhn.1/summary.json")),
        before,
        "the old result is kept"
    );
    assert_eq!(states()[..3], ["finished"; 3]);
    let page = at("page");
    assert!(mage(&["report", &out, "--out", &page]).status.success());
    let md = text(format!("{page}/report.md"));
    assert!(
        md.contains("n 14") && !md.contains("n 12") && md.contains("skipped 2 superseded results of sweeps"),
        "{md}"
    );

    // A changed recipe file: the policy is trained and evaluated again.
    fs::write(at("mine.toml"), "[loss]\nentropy = 0.01\n").unwrap();
    let with_recipe = small.replace("recipe = [\"kuhn\"]", &format!("recipe = [\"kuhn\", \"{}\"]", at("mine.toml")));
    fs::write(&grid, &with_recipe).unwrap();
    assert!(sweep(&[]).status.success());
    assert_eq!(states()[..3], ["finished"; 3]);
    fs::write(at("mine.toml"), "[loss]\nentropy = 0.02\n").unwrap();
    assert_eq!(states()[..3], ["finished", changed, changed]);
    assert!(sweep(&[]).status.success());
    assert_eq!(states()[..3], ["finished"; 3]);
}

#[test]
fn a_dry_run_without_measured_cells_states_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let plan = mage(&["sweep", "paper/table1", "--dry-run", "--out", &out]);
    let output = stdout(&plan);
    assert!(output.contains("the time is unknown") && !output.contains(" 0 s"), "{output}");
    assert!(output.contains("60 training cells were not measured"), "{output}");
    let plan = stdout(&mage(&["sweep", "paper/table1", "--dry-run", "--out", &out, "--json"]));
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert!(plan["training_seconds"].is_null() && plan["evaluation_seconds"].is_null());
}

#[test]
fn invalid_arguments_of_sweep_and_report_exit_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().display().to_string();
    let nothing = mage(&["report", &empty]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("found no training runs, trajectories or summaries"));
    assert_eq!(mage(&["report", "/nowhere/at/all"]).status.code(), Some(2));
    let misspelt = mage(&["sweep", "tabel1"]);
    assert_eq!(misspelt.status.code(), Some(2));
    assert!(stderr(&misspelt).contains("did you mean `table1`?"), "{}", stderr(&misspelt));
    let nowhere = command().arg("report").current_dir(dir.path()).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(2), "neither runs/ nor sweeps/ exists");
    let shown = stdout(&mage(&["sweep", "recipes/tiny/table1.toml", "--dry-run", "--json", "--out", &empty]));
    assert!(shown.contains("tictactoe/MAGE-0"), "presets are also found by their file path");
    let list = stdout(&mage(&["sweep", "list"]));
    assert!(list.starts_with("tiny/: ") && list.find("tiny/table1") < list.find("paper/table1"), "{list}");
    assert!(list.contains("two cores") && list.contains("GPU"), "{list}");
    let list: serde_json::Value = serde_json::from_str(&stdout(&mage(&["sweep", "list", "--json"]))).unwrap();
    assert!(list["presets"][0]["name"].as_str().unwrap().starts_with("tiny/"), "{list}");
    assert!(stdout(&mage(&["sweep", "show", "fig5"])).contains("[[ablation]]"));
    let table: serde_json::Value =
        serde_json::from_str(&stdout(&mage(&["sweep", "show", "table1", "--json"]))).unwrap();
    assert_eq!((table["tasks"].as_u64(), table["env"][0]["name"].as_str()), (Some(128), Some("kuhn")));
    let run = command().args(["sweep", "show"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}

#[test]
fn invalid_sweeps_are_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out").display().to_string();
    let grid = dir.path().join("grid.toml").display().to_string();
    let refused = |from: &str, to: &str, more: &[&str]| {
        fs::write(&grid, GRID.replacen(from, to, 1)).unwrap();
        let errors: Vec<String> = [&["--dry-run"][..], &[]]
            .iter()
            .map(|dry_run| {
                let output = mage(&[&["sweep", grid.as_str(), "--out", out.as_str()], more, dry_run].concat());
                assert_eq!(output.status.code(), Some(2), "{to} {more:?}: {}", stderr(&output));
                stderr(&output)
            })
            .collect();
        assert!(!Path::new(&out).exists(), "{to}");
        assert_eq!(errors[0], errors[1]);
        errors[0].clone()
    };
    for (from, to, more, expected) in [
        ("episodes = 3", "episodes = 1000000000", &[][..], "`episodes`: 1000000000 is too large"),
        ("tasks = 12", "tasks = 100000000000", &[], "`tasks`: 100000000000 is too large"),
        ("tasks = 12", "tasks = \"x\"", &[], "grid.toml:4: `tasks` must be a whole number"),
        ("optim.updates=2", "optim.updates=x", &[], "grid.toml: kuhn/MAGE-0: optim.updates=x: `optim.updates` must be"),
        ("task_sets = [\"kuhn\"]", "task_sets = [\"khun\"]", &[], "unknown preset `khun`: did you mean `kuhn`?"),
        ("", "", &["--set", "tasks=0"], "tasks=0: `tasks` must not be"),
        ("", "", &["--set", "optim.updatse=1"], "unknown key `optim.updatse`"),
    ] {
        let error = refused(from, to, more);
        assert!(error.contains(expected), "{to} {more:?}: {error}");
    }
}
