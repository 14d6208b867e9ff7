//! Transcripts of evaluations and of training.

use crate::common::{four_records, page, report_of, summary};
use mage_report::{ReportLimits, load_report};
use mage_train::{recipe::Recipe, run_dir::RunDir};
use serde_json::json;

/// Transcripts of one task with several seeds are distinguishable.
#[test]
fn transcripts_are_labelled_with_their_seed() {
    let mut records = four_records();
    // The agent seeds of the first task in `mage eval --seed 0 --seeds 2`.
    for (record, seed) in records.iter_mut().zip([0, 1]) {
        record.key.seed = mage_train::eval::agent_seed(mage_train::train::eval_seed(seed), 0);
    }
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["seeds"] = 2.into();
    let report = report_of(&records, Some(summary));
    let mut seeds: Vec<&str> = report.transcripts.iter().map(|t| t.seed.as_str()).collect();
    seeds.sort_unstable();
    assert!(seeds.contains(&"seed 0") && seeds.contains(&"seed 1"), "{seeds:?}");
}

#[test]
fn transcripts_of_training_state_the_run_and_the_update() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let population = mage_env::Registry::builtin().get("kuhn").unwrap().default_population();
    let created = RunDir::create(&run, &Recipe::default(), &population).unwrap();
    let records = four_records();
    for (update, count) in [(9, 2), (10, 3)] {
        let stored = records.iter().take(count).map(|record| (record, json!([])));
        created.write_trajectories(update, stored).unwrap();
    }
    drop(created);
    let report = load_report(&[run], ReportLimits::default()).unwrap();
    assert_eq!(report.transcripts.iter().map(|t| t.update).collect::<Vec<_>>(), [Some(10); 3]);
    assert!(report.transcripts.iter().all(|t| t.method == "MAGE, training, seed 0"), "{:?}", report.transcripts[0]);
    assert!(page(&report).contains("\"update\":10"), "the page states it");
    let report = report_of(&records, None);
    assert!(report.transcripts.iter().all(|t| t.update.is_none()), "evaluations have no update");
}
