//! Reports of records whose metrics are computed by hand.

use mage_core::{
    Completion, Message, MetaEpisodeResult, RequestId, RequestKind, RequestRecord, Trajectory, TrajectoryKey,
    UnplayedEpisodes,
    episode::{Episode, Turn},
    summarise,
};
use mage_env::{Anchor, End, EnvId, Hash, Observation, OpponentSpec, OptionMap, Outcome, ParsedAction, Seed, Task};
use mage_report::{Report, ReportLimits, csv, figures, html, load_report, markdown, tables};
use serde_json::json;
use std::{fs, path::Path};

/// Model output that attempts to inject markup.
const INJECTION: &str = "</script><img src=x onerror=alert(1)> <b>&amp; ünï 中文 \u{202e}\u{0}";

fn task_set() -> Hash {
    Hash::of("task set")
}

/// A meta-episode with the given scores: positive for a win, 0 for a draw, negative for a loss.
fn record(task: u64, opponent: &str, seed: u64, scores: &[f32]) -> Trajectory {
    let task = Task {
        env: EnvId::new("kuhn"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat: 0,
        seed: Seed::new(task),
    };
    let observation = |text: &str| Observation { text: text.to_owned(), compact: String::new() };
    let episodes = scores.iter().enumerate().map(|(n, score)| {
        let outcome = match *score {
            s if s > 0.0 => Outcome::Won,
            s if s < 0.0 => Outcome::Lost,
            _ => Outcome::Draw,
        };
        let turn = Turn {
            request: RequestId(n as u32),
            anchor: Anchor(format!("state {}", n % 2)),
            action: ParsedAction::Act(if *score > 0.0 { "BET" } else { "PASS" }.to_owned()),
            valid: true,
            reward: *score,
            observation: observation("over"),
        };
        Episode {
            start: observation("begins"),
            turns: vec![turn],
            end: Some(End::Terminated { outcome, score: *score }),
            expected: None,
        }
    });
    let requests = (0..scores.len() as u32).map(|n| RequestRecord {
        id: RequestId(n),
        kind: RequestKind::Play,
        episode: n,
        turn: 0,
        trainable: true,
        messages: vec![Message::user("PASS or BET?")],
        allowed: None,
        completion: Completion::from_text(INJECTION),
        invalid: None,
    });
    Trajectory {
        key: TrajectoryKey {
            task_set: task_set(),
            task: task.hash(),
            method: Hash::of("method"),
            weights: "weights".to_owned(),
            seed: Seed::new(seed),
        },
        task,
        stopped_early: false,
        episodes: episodes.collect(),
        requests: requests.collect(),
        error: None,
    }
}

fn write(path: &Path, records: &[Trajectory]) {
    fs::write(path, records.iter().map(|r| r.to_json_line() + "\n").collect::<String>()).unwrap();
}

/// A file as written by `mage eval --summary`; `model` is false for a scripted agent.
fn summary(records: &[Trajectory], policy: &str, prompt_method: Option<&str>, model: bool) -> serde_json::Value {
    let results: Vec<(usize, MetaEpisodeResult)> = records.iter().filter_map(Trajectory::result).enumerate().collect();
    let episodes = results.iter().map(|(_, r)| r.episodes.len()).max().unwrap_or(0) as u32;
    json!({
        "format": 3, "env": "kuhn", "preset": "kuhn", "split": "in-domain", "unit": "chips per hand", "episodes": episodes,
        "early_stop": false, "tasks": results.len(), "seed": 0, "seeds": 1, "task_set": task_set(), "population": task_set(),
        "ceilings": { "mean": { "memoryless": [0.125, 0.125], "sum": { "by_episode": [0.125, 0.5] }, "pass_at_k": [0.6, 0.84] } },
        "policies": [{
            "name": policy, "policy": policy, "prompt_method": prompt_method, "method": Hash::of("method"), "weights": "weights",
            "sampling": model.then(|| json!({})), "errors": 0,
            "summary": summarise(&results, episodes, UnplayedEpisodes::NotCounted),
        }],
        "comparisons": [],
    })
}

/// Four tasks of two episodes: a win in both, a win in the second, a draw and a loss, two losses.
fn four_records() -> Vec<Trajectory> {
    vec![
        record(1, "aggressive", 0, &[1.0, 1.0]),
        record(2, "aggressive", 0, &[-1.0, 2.0]),
        record(3, "conservative", 0, &[0.0, -1.0]),
        record(4, "conservative", 0, &[-1.0, -2.0]),
    ]
}

fn report_of(records: &[Trajectory], summary: Option<serde_json::Value>) -> Report {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("r.jsonl"), records);
    if let Some(summary) = summary {
        fs::write(dir.path().join("s.json"), serde_json::to_string_pretty(&summary).unwrap()).unwrap();
    }
    load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap()
}

fn page(report: &Report) -> String {
    html(report, &tables(report), &figures(report))
}

#[test]
fn metrics_match_hand_computed_values() {
    let records = four_records();
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let [result] = report.results.as_slice() else { panic!("expected one result") };
    assert_eq!((result.method.as_str(), result.task_set.as_str(), result.tasks), ("ReAct", "kuhn", 4));
    let at = |k: usize| &result.curve[k - 1];
    assert_eq!([at(1).pass.value, at(2).pass.value], [Some(0.25), Some(0.5)]);
    assert_eq!([at(1).draw_or_win.value, at(2).draw_or_win.value], [Some(0.5), Some(0.75)]);
    assert_eq!([at(1).won.value, at(2).won.value], [Some(0.25), Some(0.5)]);
    assert_eq!([at(1).score.value, at(2).score.value], [Some(-0.25), Some(0.0)]);
    // Wilson interval of 2 out of 4.
    let (low, high) = at(2).pass.interval.unwrap();
    assert!((low - 0.1500).abs() < 1e-4 && (high - 0.8500).abs() < 1e-4, "{low} {high}");
    let last: Vec<(&str, Option<f64>)> =
        result.opponents.iter().map(|o| (o.name.as_str(), o.last_score.value)).collect();
    assert_eq!(last, [("aggressive", Some(1.5)), ("conservative", Some(-1.5))]);

    let csv = csv(&report);
    let line = |start: &str| csv.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{csv}"));
    assert!(
        line("kuhn,kuhn,ReAct,,runs/x,,,,2,pass_at_k,").starts_with("kuhn,kuhn,ReAct,,runs/x,,,,2,pass_at_k,0.5,0.15")
    );
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,,,2,bayes_adaptive_optimum,").contains(",0.5,,,"));
    assert!(line("kuhn,kuhn,ReAct,,runs/x,conservative,,,2,score,").contains("score,-1.5,"));
    assert!(line("webshop,webshop,MAGE,,").ends_with(",10,pass_at_k,1,,,128,"));

    let all = tables(&report);
    let one = &all[0];
    let react = one.rows.iter().find(|r| r[0] == "ReAct").unwrap();
    assert_eq!(
        react[1..5],
        ["—", "10", "—", "64.8"],
        "the paper's result is in a separate row without a result of ten episodes"
    );
    let react = one.rows.iter().filter(|r| r[0] == "ReAct").nth(1).unwrap();
    assert_eq!(
        react[1..5],
        ["runs/x", "2", "50.0 [15.0, 85.0] n 4", "—"],
        "results of two episodes are not compared with Pass@10"
    );
    let memento = one.rows.iter().find(|r| r[0] == "Memento").unwrap();
    assert_eq!(memento[1..5], ["—", "10", "—", "64.1"], "no result of ours");
    assert_eq!(one.rows.last().unwrap()[..4], ["Bayes-adaptive optimum, mean over all deals", "oracle", "2", "84.0"]);
    assert!(one.caption.contains("may the paper's numbers"), "the caption explains results above the optimum");
    let text = markdown(&report, &all, &figures(&report));
    assert!(text.contains("50.0 \\[15.0, 85.0\\] n 4"), "{text}");
    assert!(page(&report).contains("50.0 <small>[15.0, 85.0] n 4</small>"));
    let seats: Vec<&str> = result.seats.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(seats, ["0"]);
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,0,,2,pass_at_k,").contains("pass_at_k,0.5,0.15"));
    let figures = figures(&report);
    let ids: Vec<&str> = figures.iter().map(|f| f.id.split('-').next().unwrap()).collect();
    assert_eq!(ids, ["pass", "score", "opponents", "actions"]);
    assert!(figures[0].svg.contains("ReAct, episodes k 2: 50.0 % [15.0 %, 85.0 %]"), "{}", figures[0].svg);
    assert!(figures[..2].iter().all(|f| f.svg.contains("Bayes-adaptive optimum (exact)")));
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,,,2,best_pass_at_k,").contains("best_pass_at_k,0.84,"));
    let page = page(&report);
    let mut names: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "element ids are unique");
    assert!(figures.iter().all(|f| f.svg.starts_with("<svg") && f.svg.ends_with("</svg>\n") && !f.svg.contains("NaN")));
}

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
fn table_1_contains_only_task_sets_of_the_paper() {
    let records = four_records();
    let mut summary = summary(&records, "runs/x", Some("react"), true);
    summary["preset"] = serde_json::Value::Null;
    let report = report_of(&records, Some(summary));
    assert_eq!(report.results[0].task_set, "kuhn in-domain");
    assert!(tables(&report).iter().all(|t| t.id != "table-1"), "a table of dashes is left out");
    assert!(!page(&report).contains("tab-table"));
}

/// The paper's Pass@10 is compared with our Pass@10, even if more episodes were played.
#[test]
fn table_1_compares_only_equal_k() {
    let long =
        |n: u64, won: usize| record(n, "a", 0, &(0..12).map(|i| if i == won { 1.0 } else { -1.0 }).collect::<Vec<_>>());
    // One task is won in the tenth episode, one in the eleventh.
    let records = [long(1, 9), long(2, 10)];
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let one = &tables(&report)[0];
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
fn estimated_and_bounded_ceilings_are_not_labelled_exact() {
    let records = four_records();
    let labels = |ceilings: serde_json::Value| {
        let mut summary = summary(&records, "runs/x", Some("react"), true);
        ceilings.as_object().unwrap().iter().for_each(|(k, v)| summary["ceilings"][k] = v.clone());
        let report = report_of(&records, Some(summary));
        let figures = figures(&report);
        let cell = tables(&report)[0].rows.last().unwrap()[3].clone();
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
    let sampling = |play: u32, thinking: Option<&str>| json!({ "params": { "play_tokens": play, "reflect_tokens": 256 }, "thinking": thinking });
    let note = "The models had different token budgets or thinking modes.";
    let equal = captions([sampling(512, Some("on")), sampling(512, Some("on"))]);
    assert!(equal.iter().all(|caption| !caption.contains(note)), "{equal:?}");
    for caption in captions([sampling(512, Some("on")), sampling(2048, None)]) {
        let expected = format!(
            "{note} Maximum tokens 2048 per action, 256 per reflection, thinking unknown: Reflexion (model); 512 per \
             action, 256 per reflection, thinking on: ReAct (model)."
        );
        assert!(caption.ends_with(&expected), "{caption}");
    }
    assert!(captions([sampling(512, Some("off")), sampling(512, Some("on"))]).iter().all(|c| c.contains(note)));
}

#[test]
fn states_and_actions_are_counted_by_episode() {
    let report = report_of(&four_records(), None);
    let counts = &report.results[0].actions;
    assert_eq!(counts.actions, ["BET", "PASS"]);
    let mut points = counts.points.clone();
    points.sort_unstable();
    // Episode 1 is in state 0 with one BET, episode 2 in state 1 with two.
    let count = |e, a| points.iter().find(|p| (p.0, p.2) == (e, a)).map(|p| p.3);
    assert_eq!([count(0, 0), count(0, 1), count(1, 0), count(1, 1)], [Some(1), Some(3), Some(2), Some(2)]);
}

#[test]
fn seeds_of_one_task_are_one_observation() {
    let records = [four_records(), vec![record(1, "aggressive", 1, &[-1.0, -1.0])]].concat();
    let report = report_of(&records, None);
    let result = &report.results[0];
    assert_eq!((result.tasks, result.meta_episodes), (4, 5));
    // Task 1 was won with one seed of two: (0.5 + 1 + 0 + 0) / 4.
    assert_eq!((result.curve[1].pass.value, result.curve[1].pass.n), (Some(0.375), 4));
}

#[test]
fn a_scripted_agent_does_not_represent_a_prompt_method() {
    let records = four_records();
    let report = report_of(&records, Some(summary(&records, "bayes", Some("reflexion"), false)));
    assert_eq!((report.results[0].method.as_str(), report.results[0].policy.as_str()), ("bayes", "scripted"));
    let one = &tables(&report)[0];
    assert_eq!(one.rows.iter().find(|r| r[0] == "Reflexion").unwrap()[3], "—");
    let scripted = one.rows.iter().find(|r| r[0] == "bayes").unwrap();
    assert_eq!(scripted[1], "scripted");
}

#[test]
fn model_output_cannot_inject_markup() {
    let mut records = four_records();
    records[0].task.opponent = Some(OpponentSpec::of_kind("<svg onload=alert(2)>"));
    let page = page(&report_of(&records, None));
    assert!(!page.contains("<img"), "only tags of the page");
    assert!(!page.contains("<svg onload"));
    assert_eq!(page.matches("</script>").count(), 2, "only the two script elements of the page");
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let completions = data["transcripts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["transcript"]["episodes"][0]["steps"][0]["completion"]);
    assert!(
        completions.clone().count() == 4 && completions.into_iter().all(|c| c == INJECTION),
        "completions are embedded unchanged"
    );
    for external in ["http://", "https://", "//cdn", "@import", "url("] {
        let rest = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!rest.contains(external), "{external}");
    }
}

#[test]
fn a_summary_substitutes_for_missing_records() {
    let records = four_records();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    fs::write(&file, serde_json::to_string_pretty(&summary(&records, "runs/x", Some("memento"), true)).unwrap())
        .unwrap();
    let report = load_report(&[file], ReportLimits::default()).unwrap();
    assert_eq!(report.results[0].method, "Memento");
    assert_eq!(report.results[0].curve[1].pass.value, Some(0.5));
    assert!(report.notes[0].contains("read from the summary"));
}

#[test]
fn damaged_inputs_are_skipped_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    write(&path, &four_records());
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1] = "{\"key\":12}";
    fs::write(&path, lines.join("\n") + "\n{\"key\":{\"pan").unwrap();
    fs::write(dir.path().join("broken.json"), "{\n \"format\": 1, \"env\": \"kuhn\", \"split\": ").unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    assert_eq!(report.results[0].meta_episodes, 3);
    assert!(report.notes.iter().any(|n| n.contains("line 2")), "{:?}", report.notes);
    assert!(report.notes.iter().any(|n| n.contains("broken.json")), "{:?}", report.notes);
}

#[test]
fn empty_inputs_give_an_empty_report() {
    let dir = tempfile::tempdir().unwrap();
    assert!(load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap().is_empty());
    fs::write(dir.path().join("r.jsonl"), "").unwrap();
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    assert!(report.is_empty());
    assert!(page(&report).contains("No training runs and no evaluations."), "the page says so");
    assert!(load_report(&[dir.path().join("nowhere")], ReportLimits::default()).is_err());
}

#[test]
fn failures_count_until_a_retry_succeeds() {
    let mut failed = record(5, "aggressive", 0, &[1.0]);
    failed.error = Some("timeout".to_owned());
    let mut records = four_records();
    records.push(failed);
    let mut retried = records[0].clone();
    retried.error = Some("first attempt".to_owned());
    records.insert(0, retried);
    let report = report_of(&records, None);
    assert_eq!((report.results[0].meta_episodes, report.results[0].errors), (4, 1));
}

#[test]
fn report_size_is_limited() {
    let records: Vec<Trajectory> = (0..200).map(|i| record(i, "aggressive", 0, &[1.0, -1.0])).collect();
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("r.jsonl"), &records);
    let limits = ReportLimits { transcripts: 10, text: 5, bytes: 2500, spheres: 2 };
    let report = load_report(&[dir.path().to_owned()], limits).unwrap();
    assert_eq!(report.results[0].meta_episodes, 200, "all meta-episodes are evaluated");
    assert!(!report.transcripts.is_empty() && report.transcripts.len() < 10);
    assert!(report.transcripts[0].episodes[0].steps[0].completion.contains("more characters"));
    assert_eq!((report.results[0].actions.points.len(), report.results[0].actions.omitted), (2, 0));
    let omitted = 200 - report.transcripts.len();
    assert!(report.notes.iter().any(|n| n.starts_with(&format!("{omitted} more meta-episodes"))), "{:?}", report.notes);
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
fn runs_are_pooled_only_if_they_differ_in_nothing_but_the_seed() {
    let dir = tempfile::tempdir().unwrap();
    let run = |name: &str| dir.path().join(name);
    write_run(&run("slow"), 1e-4, 0, "aggressive");
    write_run(&run("slow-2"), 1e-4, 1, "aggressive");
    write_run(&run("fast"), 2e-2, 0, "aggressive");
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let figures = figures(&report);
    let learning: Vec<_> = figures.iter().filter(|f| f.section == "learning").collect();
    let [figure] = learning.as_slice() else { panic!("expected one figure, not {}", learning.len()) };
    assert!(figure.svg.contains("MAGE, slow: optim.learning_rate 0.0001 (2 seeds)"), "{}", figure.svg);
    assert!(figure.svg.contains("MAGE, fast: optim.learning_rate 0.02<"), "{}", figure.svg);
    let table = tables(&report).into_iter().find(|t| t.id == "runs").unwrap();
    let paths: Vec<&String> = table.rows.iter().map(|row| &row[0]).collect();
    assert!(paths.iter().any(|p| p.ends_with("slow-2")) && paths.iter().any(|p| p.ends_with("fast")), "{paths:?}");
}

#[test]
fn runs_of_different_populations_have_different_figures() {
    let dir = tempfile::tempdir().unwrap();
    write_run(&dir.path().join("a"), 1e-4, 0, "aggressive");
    write_run(&dir.path().join("b"), 1e-4, 0, "conservative");
    let report = load_report(&[dir.path().to_owned()], ReportLimits::default()).unwrap();
    let learning = figures(&report).into_iter().filter(|f| f.section == "learning").collect::<Vec<_>>();
    assert_eq!(learning.len(), 2);
    assert_ne!(learning[0].id, learning[1].id);
    assert!(report.runs.iter().all(|run| run.label.contains("population ")), "{:?}", report.runs);
}
