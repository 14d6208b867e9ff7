//! Training runs.

use crate::common::{page, table};
use mage_report::{Figure, Report, ReportLimits, figures, load_report};
use serde_json::json;
use std::{fs, path::Path};

/// Writes a run with this recipe and one evaluation.
fn write_run(path: &Path, learning_rate: f32, seed: u64, population: &str) {
    fs::create_dir_all(path).unwrap();
    let mut recipe = mage_train::recipe::Recipe { seed, ..Default::default() };
    recipe.optim.learning_rate = learning_rate;
    fs::write(path.join("recipe.resolved.toml"), recipe.to_toml()).unwrap();
    let opponent = format!("name = \"{population}\"\nkind = \"{population}\"\nweight = 1\n");
    let opponent = format!("env = \"kuhn\"\nseats = [0.5, 0.5]\n[[opponent]]\n{opponent}");
    fs::write(path.join("population.toml"), opponent).unwrap();
    let line = "{\"update\":2,\"eval/episode_3/score\":0.5,\"eval/episode_3/se\":0.1}\n";
    fs::write(path.join("metrics.jsonl"), line).unwrap();
}

#[test]
fn a_run_in_progress_is_reported_with_its_last_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("ünï run");
    fs::create_dir(&run).unwrap();
    let mut recipe = mage_train::recipe::Recipe::default();
    recipe.optim.updates = 9;
    fs::write(run.join("recipe.resolved.toml"), recipe.to_toml()).unwrap();
    let line = |u: u32, s: f64| {
        format!("{{\"update\":{u},\"episode_3/score\":{s},\"eval/episode_3/score\":{s},\"eval/episode_3/se\":0.1}}\n")
    };
    fs::write(run.join("metrics.jsonl"), line(1, 0.25) + &line(2, 0.5) + "{\"update\":3,\"epi").unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let [run] = report.runs.as_slice() else { panic!("expected one run") };
    assert_eq!((run.updates, run.total_updates, run.finished, run.method.as_str()), (2, 9, false, "MAGE"));
    assert_eq!(run.eval_curve.iter().map(|point| point.score).collect::<Vec<_>>(), [0.25, 0.5]);
    assert!(report.notes.iter().any(|n| n.contains("in progress, 2 of 9")), "{:?}", report.notes);
    let page = page(&report);
    assert!(page.contains("2 of 9") && page.contains("0.500 ± 0.100"), "the page shows the progress and the score");
}

fn learning_figures(report: &Report) -> Vec<Figure> {
    figures(report).into_iter().filter(|f| f.id.starts_with("learning-")).collect()
}

#[test]
fn runs_are_pooled_only_if_they_differ_in_nothing_but_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| dir.path().join(name);
    write_run(&run("slow"), 1e-4, 0, "aggressive");
    write_run(&run("slow-2"), 1e-4, 1, "aggressive");
    write_run(&run("fast"), 2e-2, 0, "aggressive");
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let figures = learning_figures(&report);
    let [figure] = figures.as_slice() else { panic!("expected one figure, not {}", figures.len()) };
    assert!(figure.svg.contains("MAGE, slow: optim.learning_rate 0.0001 (2 seeds, mean and range)"), "{}", figure.svg);
    assert!(figure.svg.contains("MAGE, fast: optim.learning_rate 0.02<"), "{}", figure.svg);
    let table = table(&report, "overview-runs").unwrap();
    let paths: Vec<&String> = table.rows.iter().map(|row| &row[0]).collect();
    assert!(paths.iter().any(|p| p.ends_with("slow-2")) && paths.iter().any(|p| p.ends_with("fast")), "{paths:?}");
}

#[test]
fn runs_of_different_populations_have_different_figures() {
    let dir = tempfile::tempdir().unwrap();
    write_run(&dir.path().join("a"), 1e-4, 0, "aggressive");
    write_run(&dir.path().join("b"), 1e-4, 0, "conservative");
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let learning = learning_figures(&report);
    assert_eq!(learning.len(), 2);
    assert_ne!(learning[0].id, learning[1].id);
    assert!(report.runs.iter().all(|run| run.label.contains("population ")), "{:?}", report.runs);
}

/// Scores of three episodes in `result.json`, the last of which is given.
fn scores(last: f64, se: f64) -> serde_json::Value {
    let interval = (se > 0.0).then(|| json!({ "low": last - 2.0 * se, "high": last + 2.0 * se }));
    let at = |mean: f64| json!({ "count": 8, "mean": mean, "se": se, "interval": interval });
    json!({ "score": [at(0.0), at(0.0), at(last)] })
}

/// Adds the result of a finished run, with optima of 0.1 and 0.6 in the last episode.
fn write_result(run: &Path, after: f64, se: f64, last_gap: f64) {
    let result = json!({
        "unit": "chips per hand", "updates": 200, "before": scores(0.05, se), "after": scores(after, se),
        "ceilings": {
            "mean": { "memoryless": [0.1, 0.1, 0.1], "sum": { "by_episode": [0.1, 0.3, 0.6] } },
            "episodes": 3, "seats": [{ "last_gap": last_gap, "sum_gap": 0.0 }],
        },
    });
    fs::write(run.join("result.json"), result.to_string()).unwrap();
    fs::write(run.join("metrics.jsonl"), "{\"update\":200,\"loss\":0.5}\n").unwrap();
}

#[test]
fn the_overview_shows_scores_and_the_gap_where_it_exceeds_its_uncertainty() {
    let dir = tempfile::tempdir().unwrap();
    let gap = |name: &str, after: f64, se: f64, last_gap: f64| {
        let run = dir.path().join(name);
        write_run(&run, 1e-4, 0, "aggressive");
        write_result(&run, after, se, last_gap);
        let report = load_report(&[run], ReportLimits::default()).unwrap();
        let table = table(&report, "overview-runs").unwrap();
        assert_eq!(table.header[4..], ["updates", "before", "after", "gap closed"]);
        assert!(table.rows[0][0].ends_with(name), "{:?}", table.rows);
        table.rows[0][4..].join("|")
    };
    assert_eq!(gap("exact", 0.5, 0.0, 0.0), "200|0.050|0.500|80 %");
    assert_eq!(gap("bounded", 0.5, 0.0, 0.01), "200|0.050|0.500|≤ 80 %");
    assert_eq!(gap("sampled", 0.5, 0.1, 0.0), "200|0.050 ± 0.100|0.500 ± 0.100|80 % [40, 120]");
    assert_eq!(gap("uncertain", 0.5, 0.3, 0.0), "200|0.050 ± 0.300|0.500 ± 0.300|—");
    assert_eq!(gap("worse", -0.5, 0.0, 0.0), "200|0.050|-0.500|below memoryless");
}

#[test]
fn the_result_of_a_run_whose_recipe_was_extended_stays_at_its_update() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), 1e-4, 0, "aggressive");
    write_result(dir.path(), 0.5, 0.0, 0.0);
    let text = fs::read_to_string(dir.path().join("recipe.resolved.toml")).unwrap();
    fs::write(dir.path().join("recipe.resolved.toml"), text.replace("updates = 200", "updates = 400")).unwrap();
    let line = |update: u32| format!("{{\"update\":{update},\"eval/episode_3/score\":0.25}}\n");
    fs::write(dir.path().join("metrics.jsonl"), [100, 200, 300].map(line).concat()).unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let points: Vec<(u64, f64)> = report.runs[0].eval_curve.iter().map(|p| (p.update, p.score)).collect();
    assert_eq!(points, [(0, 0.05), (100, 0.25), (200, 0.5), (300, 0.25)], "the larger final evaluation counts");
    assert_eq!(table(&report, "overview-runs").unwrap().rows[0][4..7], ["300 of 400", "0.050", "0.250"]);
}

/// Lines of metrics of two updates, and their times, the second of which was repeated.
fn write_metrics(run: &Path, kl: &str) {
    let line = |update: u32| {
        format!(
            "{{\"update\":{update},\"loss\":-0.5,\"entropy\":1.{update}{kl},\"episode_1/score\":0.1,\"episode_2/score\":0.2,\"episode_3/score\":0.3}}\n"
        )
    };
    fs::write(run.join("metrics.jsonl"), line(1) + &line(2)).unwrap();
    let time = |update: u32, train: f64| {
        format!(
            "{{\"update\":{update},\"total\":10,\"rollout\":4,\"train\":{train},\"checkpoint\":0.01,\"attempt\":1}}\n"
        )
    };
    fs::write(run.join("timing.jsonl"), time(1, 3.0) + &time(2, 77.0) + &time(2, 5.0)).unwrap();
}

#[test]
fn metrics_of_training_are_drawn_if_the_run_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    write_run(&one, 1e-4, 0, "aggressive");
    write_metrics(&one, "");
    let training = |paths: &[&Path]| -> Vec<Figure> {
        let paths: Vec<_> = paths.iter().copied().map(Path::to_path_buf).collect();
        figures(&load_report(&paths, ReportLimits::default()).unwrap())
    };
    let ids = |figures: &[Figure]| figures.iter().map(|f| f.id.clone()).collect::<Vec<_>>();
    // No KL divergence, clip fraction or gradient norm is known, and there was no evaluation.
    let single = training(&[&one]);
    assert_eq!(ids(&single), ["loss-kuhn", "entropy-kuhn", "return-kuhn", "time-kuhn"]);
    assert!(single.iter().all(|f| f.section == "training" && !f.svg.contains("NaN")));
    assert!(single[1].svg.contains("MAGE, updates 2: 1.200"), "{}", single[1].svg);
    assert!((1..=3).all(|k| single[2].svg.contains(&format!(">episode {k}</text>"))), "{}", single[2].svg);
    assert!(single[3].svg.contains("train, updates 2: 5.000"), "the repeated update counts: {}", single[3].svg);
    assert!(!single[3].svg.contains(">checkpoint</text>"), "short phases are left out");
    // Lines of several runs are named as in all other figures.
    write_run(&two, 2e-2, 0, "aggressive");
    write_metrics(&two, ",\"kl/play\":0.01");
    let both = training(&[&one, &two]);
    let parts =
        ["return-kuhn-episode-1", "return-kuhn-episode-3", "time-kuhn-total", "time-kuhn-rollout", "time-kuhn-train"];
    assert_eq!(ids(&both), [&["loss-kuhn", "entropy-kuhn", "kl-play-kuhn"], &parts[..]].concat());
    let (one, two) = ("MAGE, one: optim.learning_rate 0.0001", "MAGE, two: optim.learning_rate 0.02");
    assert!(both[0].svg.contains(&format!(">{one}</text>")) && both[0].svg.contains(&format!(">{two}</text>")));
    assert!(!both[2].svg.contains(one) && both[2].svg.contains(two), "only one run has the metric");
    // Runs that differ in the seed are one line.
    let three = dir.path().join("three");
    write_run(&three, 1e-4, 1, "aggressive");
    write_metrics(&three, "");
    let text = fs::read_to_string(three.join("metrics.jsonl")).unwrap();
    fs::write(three.join("metrics.jsonl"), text.replace(":1.2", ":1.4")).unwrap();
    let seeds = training(&[&dir.path().join("one"), &three]);
    assert_eq!(ids(&seeds), ids(&single));
    assert!(
        seeds[1].svg.contains("MAGE (2 seeds, mean and range), updates 2: 1.300 [1.200, 1.400]"),
        "{}",
        seeds[1].svg
    );
    assert!(seeds[2].title.ends_with("by update, 2 seeds, mean and range"), "{}", seeds[2].title);
}
