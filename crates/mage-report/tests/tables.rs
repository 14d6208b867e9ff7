//! Tables of evaluations.

use crate::common::{four_records, page, record, report_of, summary, table, write};
use mage_env::Hash;
use mage_report::{ReportLimits, csv, load_report, markdown, tables};
use serde_json::json;
use std::fs;

#[test]
fn table_1_contains_only_task_sets_of_the_paper() {
    let records = four_records();
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["preset"] = serde_json::Value::Null;
    let report = report_of(&records, Some(summary));
    assert_eq!(report.results[0].task_set, "kuhn in-domain");
    assert!(tables(&report).iter().all(|t| t.id != "table-1"), "a table of dashes is left out");
    assert!(!page(&report).contains("id=\"paper\""));
}

/// The paper's Pass@10 is compared with our Pass@10, even if more episodes were played.
#[test]
fn table_1_compares_only_equal_k() {
    let long =
        |n: u64, won: usize| record(n, "a", 0, &(0..12).map(|i| if i == won { 1.0 } else { -1.0 }).collect::<Vec<_>>());
    // One task is won in the tenth episode, one in the eleventh.
    let records = [long(1, 9), long(2, 10)];
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let one = table(&report, "table-1").unwrap();
    let react: Vec<_> = one.rows.iter().filter(|r| r[0] == "ReAct").collect();
    assert_eq!(react.len(), 1);
    assert_eq!(react[0][2..5], ["10", "50.0 [9.5, 90.5] n 2", "64.8"]);
}

#[test]
fn results_outside_table_1_are_compared_with_ours() {
    let records = four_records();
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["policies"][0]["prompt_method"] = "mage".into();
    let report = report_of(&records, Some(summary));
    let all = tables(&report);
    let table = all.iter().find(|t| t.id == "paper").unwrap();
    let at = |task_set: &str, metric: &str| table.rows.iter().find(|r| r[0] == task_set && r[2] == metric).unwrap();
    assert_eq!(at("kuhn", "Pass@1")[1..], ["MAGE", "Pass@1", "25.0 [4.6, 69.9] n 4 (runs/x)", "59.4"]);
    assert!(table.rows.iter().all(|r| r[0] == "kuhn"), "only results that exist: {:?}", table.rows);
}

#[test]
fn methods_on_one_task_set_are_compared_by_task() {
    let mut second = four_records();
    for record in &mut second {
        record.key.method = Hash::of("other method");
    }
    // The second method loses the task that the first wins in its second episode.
    let lost = record(2, "aggressive", 0, &[-1.0, -1.0]);
    second[1].episodes = lost.episodes;
    let dir = tempfile::tempdir().unwrap();
    for (name, records, method) in [("a", four_records(), "mage"), ("b", second, "react")] {
        write(&dir.path().join(format!("{name}.jsonl")), &records);
        let mut summary = summary(&records, "runs/x", Some(method), true);
        summary["policies"][0]["method"] = json!(records[0].key.method);
        fs::write(dir.path().join(format!("{name}.json")), summary.to_string()).unwrap();
    }
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let [one] = report.comparisons.as_slice() else { panic!("expected one pair: {:?}", report.comparisons) };
    assert_eq!(
        (report.results[one.first].method.as_str(), report.results[one.second].method.as_str()),
        ("MAGE", "ReAct")
    );
    let last = &one.by_episode[1];
    assert_eq!((last.pass_at_k.tasks, last.pass_at_k.first_ahead, last.pass_at_k.second_ahead), (4, 1, 0));
    assert_eq!((last.pass_at_k.difference.mean, last.score.mean), (Some(0.25), Some(0.75)));
    let all = tables(&report);
    let table = all.iter().find(|t| t.id == "paired").unwrap();
    assert_eq!(table.rows[0][..5], ["kuhn", "MAGE (runs/x)", "ReAct (runs/x)", "4", "2"]);
    assert_eq!(table.rows[0][6..8], ["1:0", "1.000"]);
    let csv = csv(&report);
    assert!(csv.contains("kuhn,kuhn,MAGE,,runs/x,,,ReAct (runs/x),2,pass_at_k_difference,0.25,"), "{csv}");
    assert!(csv.contains("ReAct (runs/x),2,pass_at_k_p_value,1,,,4"), "{csv}");
    assert!(page(&report).contains("Paired comparison by task"));
    assert!(markdown(&report, &all, &[]).contains("## Paired comparison by task"));
}

#[test]
fn different_token_budgets_are_stated_under_every_table_that_compares_them() {
    let captions = |budgets: [serde_json::Value; 2]| {
        let dir = tempfile::tempdir().unwrap();
        for (n, (method, sampling)) in ["react", "reflexion"].into_iter().zip(budgets).enumerate() {
            let mut records = four_records();
            records.iter_mut().for_each(|r| r.key.method = Hash::of(method));
            let mut summary = summary(&records, "model", Some(method), true);
            summary["policies"][0]["method"] = json!(Hash::of(method));
            summary["policies"][0]["sampling"] = sampling;
            write(&dir.path().join(format!("{n}.jsonl")), &records);
            fs::write(dir.path().join(format!("{n}.json")), summary.to_string()).unwrap();
        }
        let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
        assert_eq!(report.results.len(), 2);
        let all = tables(&report);
        let compared = |t: &&mage_report::ReportTable| ["table-1", "paired"].contains(&&*t.id) || t.section == "curves";
        let captions: Vec<String> = all.iter().filter(compared).map(|t| t.caption.clone()).collect();
        assert_eq!(captions.len(), 3);
        captions
    };
    let sampling = |play: u32, thinking: Option<&str>| {
        json!({
            "params": { "play_tokens": play, "reflect_tokens": 256, "temperature": 0.5, "top_p": 1.0 },
            "thinking": thinking,
        })
    };
    let note = "The models had different token budgets, thinking modes or sampling parameters.";
    let equal = captions([sampling(512, Some("on")), sampling(512, Some("on"))]);
    assert!(equal.iter().all(|caption| !caption.contains(note)), "{equal:?}");
    for caption in captions([sampling(512, Some("on")), sampling(2048, None)]) {
        let expected = format!(
            "{note} Maximum tokens 2048 per action, 256 per reflection, thinking unknown, temperature 0.5, top-p 1: \
             Reflexion (model); 512 per action, 256 per reflection, thinking on, temperature 0.5, top-p 1: ReAct (model)."
        );
        assert!(caption.ends_with(&expected), "{caption}");
    }
    assert!(captions([sampling(512, Some("off")), sampling(512, Some("on"))]).iter().all(|c| c.contains(note)));
}

#[test]
fn the_overview_has_a_row_per_evaluation() {
    let records = four_records();
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let all = tables(&report);
    assert_eq!(all[0].id, "overview-evaluations", "it comes first");
    let [row] = all[0].rows.as_slice() else { panic!("expected one row: {:?}", all[0].rows) };
    assert!(row[0].ends_with("r.jsonl"), "{row:?}");
    assert_eq!(row[1..6], ["kuhn", "kuhn", "runs/x", "ReAct", "4"]);
    let value = |cell: &str| cell.split(' ').next().unwrap().to_owned();
    // Gains by task: 0, 3, -1 and -1.
    assert_eq!([value(&row[6]), value(&row[7]), value(&row[8])], ["-0.250", "0.000", "0.250"]);
    assert_eq!(row[9], "—", "four tasks are less certain than the gap is wide");
    let page = page(&report);
    let nav = page.split("<nav").nth(1).unwrap().split("</nav>").next().unwrap();
    let links: Vec<&str> = nav.split("href=\"#").skip(1).map(|l| l.split('"').next().unwrap()).collect();
    assert_eq!(links, ["overview", "paper", "curves", "opponents", "actions", "transcripts"], "no empty sections");
    // With early stopping, the last episode covers other tasks than the first.
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["early_stop"] = true.into();
    let row = table(&report_of(&records, Some(summary)), "overview-evaluations").unwrap().rows.remove(0);
    assert_eq!(row[8..], ["—", "—"]);
}

#[test]
fn evaluations_that_differ_in_weights_or_settings_are_separate() {
    let policies = |change: fn(&mut mage_core::TrajectoryKey)| -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            let mut records = four_records();
            if name == "b" {
                records.iter_mut().for_each(|r| change(&mut r.key));
            }
            let mut summary = summary(&records, "runs/x", Some("react"), true);
            summary["policies"][0]["method"] = json!(records[0].key.method);
            summary["policies"][0]["weights"] = json!(records[0].key.weights);
            write(&dir.path().join(format!("{name}.jsonl")), &records);
            fs::write(dir.path().join(format!("{name}.json")), summary.to_string()).unwrap();
        }
        let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
        report.results.iter().map(|r| r.policy.clone()).collect()
    };
    assert_eq!(policies(|_| ()), ["runs/x"], "the same evaluation twice");
    for (what, change) in [
        ("weights", (|key| key.weights = "trained further".to_owned()) as fn(&mut mage_core::TrajectoryKey)),
        ("settings", |key| key.method = Hash::of("another temperature")),
    ] {
        let policies = policies(change);
        assert!(
            policies.len() == 2 && policies.iter().all(|p| p.starts_with(&format!("runs/x [{what} "))),
            "{policies:?}"
        );
    }
}
