//! Figures of evaluations.

use crate::common::{four_records, record, report_of, summary, table, write};
use mage_env::Hash;
use mage_report::{ReportLimits, figures, load_report, tables};
use serde_json::json;
use std::fs;

/// With early stopping, later scores cover only the tasks not yet won, but Pass@k covers all tasks.
#[test]
fn with_early_stop_only_pass_at_k_has_a_ceiling() {
    let records = four_records();
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["early_stop"] = true.into();
    let figures = figures(&report_of(&records, Some(summary)));
    let exact: Vec<bool> = figures[..2].iter().map(|f| f.svg.contains("(exact)")).collect();
    assert_eq!(exact, [true, false]);
}

/// With early stopping, curves are labelled with their number of tasks; the heatmap of opponents covers all tasks.
#[test]
fn with_early_stop_task_counts_are_shown() {
    let mut records = four_records();
    records[0].episodes.truncate(1);
    records[0].requests.truncate(1);
    records[0].stopped_early = true;
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    (summary["early_stop"], summary["episodes"]) = (true.into(), 2.into());
    let report = report_of(&records, Some(summary));
    let figures = figures(&report);
    let find = |id: &str| figures.iter().find(|f| f.id.starts_with(id)).unwrap();
    assert!(find("score").title.ends_with("score by episode, tasks not yet won"), "{}", find("score").title);
    assert!(find("score").svg.contains(">ReAct (4 tasks, 3 at the end)</text>"), "{}", find("score").svg);
    assert!(find("pass").svg.contains(">ReAct</text>"), "Pass@k covers all tasks");
    let heatmap = find("opponents");
    assert!(
        heatmap.title.contains("won within 2 episodes") && heatmap.svg.contains(">100 %</text>"),
        "{}",
        heatmap.svg
    );
    assert!(heatmap.svg.contains(">rate of tasks</text>"), "the legend names the metric");
    let all = tables(&report);
    let curves = all.iter().find(|t| t.section == "curves").unwrap();
    assert!(
        curves.caption.contains("not yet won") && curves.rows[0].iter().any(|c| c.ends_with("] n 3")),
        "{:?}",
        curves.rows
    );
}

/// With early stopping, the figure of ablations shows Pass@k, which covers all tasks.
#[test]
fn with_early_stop_ablations_are_compared_by_pass_at_k() {
    let ablation_figure = |early_stop: bool| {
        let dir = tempfile::tempdir().unwrap();
        let records = four_records();
        write(&dir.path().join("r.jsonl"), &records);
        let mut summary = summary(&records, "runs/x", None, true);
        summary["early_stop"] = early_stop.into();
        fs::write(dir.path().join("s.json"), summary.to_string()).unwrap();
        let cell =
            json!({ "env": "kuhn", "method": "MAGE", "ablation": "no notes", "policy": "p", "seed": 0, "command": [] });
        fs::write(dir.path().join("cell.json"), cell.to_string()).unwrap();
        let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
        figures(&report).into_iter().find(|f| f.section == "ablations").unwrap()
    };
    assert!(ablation_figure(false).svg.contains(">chips per hand</text>"));
    let figure = ablation_figure(true);
    assert!(figure.svg.contains(">rate of tasks</text>") && figure.title.ends_with("won within k episodes"));
}

/// Heatmaps of one unit have the same colour scale, which the legend shows.
#[test]
fn opponent_heatmaps_of_one_unit_share_their_colour_scale() {
    let dir = tempfile::tempdir().unwrap();
    for (name, scores) in [("a", [[1.0_f32, 1.0], [0.0, 0.0]]), ("b", [[5.0, 5.0], [1.0, 1.0]])] {
        let mut records = vec![record(1, "aggressive", 0, &scores[0]), record(2, "conservative", 0, &scores[1])];
        records.iter_mut().for_each(|r| r.key.task_set = Hash::of(name));
        write(&dir.path().join(format!("{name}.jsonl")), &records);
    }
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let heatmaps: Vec<String> =
        figures(&report).into_iter().filter(|f| f.section == "opponents").map(|f| f.svg).collect();
    let colour_of = |svg: &str, value: &str| -> String {
        let before = &svg[..svg.find(&format!(">{value}</text>")).unwrap()];
        before.rsplit("fill=\"").nth(1).unwrap()[..7].to_owned()
    };
    let [first, second] = heatmaps.as_slice() else { panic!("expected two heatmaps") };
    assert_eq!(colour_of(first, "1.00"), colour_of(second, "1.00"), "equal scores have equal colours");
    assert!(
        [first, second].iter().all(|m| m.contains(">0.00</text>") && m.contains(">5.00</text>")),
        "the legend shows both ends of the scale"
    );
}

/// A constant curve gets a readable axis, and a long title fits into the figure.
#[test]
fn constant_curves_and_long_titles_are_readable() {
    use mage_report::chart::{Chart, LineStyle, Series, svg};
    let flat = [Series {
        name: "m".to_owned(),
        style: LineStyle::Measured(0),
        points: vec![(1.0, 0.0, None), (2.0, 0.0, None)],
    }];
    let title = "a title of which there is much more than would fit into the width of one such picture of ours at its usual size";
    let drawn = svg(&Chart { title, x_label: "x", y_label: "y", percent: false, series: &flat });
    assert!(drawn.contains(">0.4</text>") && !drawn.contains("0.00000"), "{drawn}");
    let size: f64 = drawn.split("font-size=\"").nth(2).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(size < 12.0 && 0.62 * size * title.len() as f64 <= 680.0, "{size}");
}

#[test]
fn identical_curves_are_both_visible() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let mut records = four_records();
        records.iter_mut().for_each(|r| r.key.method = Hash::of(name));
        write(&dir.path().join(format!("{name}.jsonl")), &records);
    }
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let svg = figures(&report).remove(0).svg;
    let lines: Vec<&str> = svg.split("<polyline points=\"").skip(1).map(|l| l.split('"').next().unwrap()).collect();
    assert!(lines.len() == 2 && lines[0] != lines[1], "lines have an offset");
    let distinct = |attribute: &str| -> Vec<String> {
        let all = svg.split(attribute).skip(1).map(|l| l.split('"').next().unwrap().to_owned());
        all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    };
    assert!(
        distinct("stroke-dasharray=\"").len() == 2 && distinct(" d=\"").len() == 2,
        "dash patterns and markers differ"
    );
}

#[test]
fn estimated_and_bounded_ceilings_are_not_labelled_exact() {
    let records = four_records();
    let labels = |ceilings: serde_json::Value| {
        let mut summary = summary(&records, "runs/x", Some("react"), true);
        ceilings.as_object().unwrap().iter().for_each(|(k, v)| summary["ceilings"][k] = v.clone());
        let report = report_of(&records, Some(summary));
        let figures = figures(&report);
        let cell = table(&report, "table-1").unwrap().rows.last().unwrap()[3].clone();
        (figures[0].svg.clone(), figures[1].svg.clone(), cell)
    };
    let (pass, score, best) = labels(json!({ "sampled_opponents": [{ "name": "mcts" }] }));
    assert!(pass.contains("Bayes-adaptive optimum (estimated)") && !pass.contains("(exact)"));
    assert!(score.contains("Bayes-adaptive optimum (estimated)") && score.contains("memoryless optimum (estimated)"));
    assert_eq!(best, "≈ 84.0");
    let (_, score, _) = labels(json!({ "episodes": 2, "seats": [{ "last_gap": 0.01, "sum_gap": 0.0 }] }));
    assert!(score.contains("Bayes-adaptive optimum (at least)") && score.contains("memoryless optimum (exact)"));
}

#[test]
fn figures_have_readable_unique_file_names() {
    let dir = tempfile::tempdir().unwrap();
    for (n, split) in ["in-domain", "in domain"].into_iter().enumerate() {
        let mut records = four_records();
        records.iter_mut().for_each(|r| r.key.task_set = Hash::of(split));
        let mut summary = summary(&records, "runs/../Ünï 1", Some("react"), true);
        summary["preset"] = serde_json::Value::Null;
        (summary["split"], summary["task_set"]) = (split.into(), json!(Hash::of(split)));
        write(&dir.path().join(format!("{n}.jsonl")), &records);
        fs::write(dir.path().join(format!("{n}.json")), summary.to_string()).unwrap();
    }
    let ids = || -> Vec<String> {
        let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
        figures(&report).into_iter().map(|f| f.id).collect()
    };
    let expected = [
        "pass-kuhn-in-domain",
        "score-kuhn-in-domain",
        "opponents-kuhn-in-domain",
        "pass-kuhn-in-domain-2",
        "score-kuhn-in-domain-2",
        "opponents-kuhn-in-domain-2",
        "actions-kuhn-in-domain-react-runs-n-1",
        "actions-kuhn-in-domain-react-runs-n-1-2",
    ];
    assert_eq!(ids(), expected);
    assert_eq!(ids(), ids(), "names are stable");
}
