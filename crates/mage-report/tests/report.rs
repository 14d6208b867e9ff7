//! Reports from records whose numbers are known by hand.

use mage_core::{
    Bootstrap, Completion, Message, MetaEpisodeResult, RequestId, RequestKind, RequestRecord, Trajectory,
    TrajectoryKey, UnplayedEpisodes,
    episode::{Episode, Turn},
    summarise,
};
use mage_env::{Anchor, End, EnvId, Hash, Observation, OpponentSpec, OptionMap, Outcome, ParsedAction, Seed, Task};
use mage_report::{Limits, Report, csv, drawings, html, markdown, read, tables};
use serde_json::json;
use std::{fs, path::Path};

/// What a hostile model might write.
const HOSTILE: &str = "</script><img src=x onerror=alert(1)> <b>&amp; ünï 中文 \u{202e}\u{0}";

fn panel() -> Hash {
    Hash::of("panel")
}

/// A meta-episode in which these episodes were won, lost (-1) or drawn (0).
fn record(task: u64, opponent: &str, seed: u64, scores: &[f32]) -> Trajectory {
    let task = Task {
        env: EnvId::new("kuhn"),
        options: OptionMap::default(),
        opponent: Some(OpponentSpec::of_kind(opponent)),
        seat: 0,
        seed: Seed::new(task),
    };
    let seen = |text: &str| Observation { text: text.to_owned(), compact: String::new() };
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
            observation: seen("over"),
        };
        Episode { start: seen("begins"), turns: vec![turn], end: Some(End::Terminated { outcome, score: *score }) }
    });
    let calls = (0..scores.len() as u32).map(|n| RequestRecord {
        id: RequestId(n),
        kind: RequestKind::Play,
        episode: n,
        turn: 0,
        trainable: true,
        messages: vec![Message::user("PASS or BET?")],
        allowed: None,
        completion: Completion::from_text(HOSTILE),
        invalid: None,
    });
    Trajectory {
        key: TrajectoryKey {
            task_set: panel(),
            task: task.hash(),
            method: Hash::of("method"),
            weights: "weights".to_owned(),
            seed: Seed::new(seed),
        },
        task,
        stopped_early: false,
        episodes: episodes.collect(),
        requests: calls.collect(),
        error: None,
    }
}

fn write(path: &Path, records: &[Trajectory]) {
    fs::write(path, records.iter().map(|r| r.to_json_line() + "\n").collect::<String>()).unwrap();
}

/// What `mage eval --summary` would have written; `drawn` where a model played.
fn summary(records: &[Trajectory], policy: &str, approach: Option<&str>, model: bool) -> serde_json::Value {
    let results: Vec<(usize, MetaEpisodeResult)> = records.iter().filter_map(Trajectory::result).enumerate().collect();
    let episodes = results.iter().map(|(_, r)| r.episodes.len()).max().unwrap_or(0) as u32;
    json!({
        "format": 1, "env": "kuhn", "preset": "kuhn", "split": "in-domain", "unit": "chips per hand", "episodes": episodes,
        "early_stop": false, "tasks": results.len(), "seed": 0, "seeds": 1, "panel": panel(), "population": panel(),
        "ceilings": { "mean": { "memoryless": [0.125, 0.125], "sum": { "by_episode": [0.125, 0.5] }, "pass_at_k": [0.6, 0.84] } },
        "entrants": [{
            "name": policy, "policy": policy, "approach": approach, "method": Hash::of("method"), "weights": "weights",
            "drawn": model.then(|| json!({})), "errors": 0,
            "summary": summarise(&results, episodes, UnplayedEpisodes::NotCounted, Bootstrap::default()),
        }],
        "versus": [],
    })
}

/// Four tasks of two episodes: one wins at once, one in the second episode, one draws then loses, one never.
fn four() -> Vec<Trajectory> {
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
    read(&[dir.path().to_owned()], Limits::default()).unwrap()
}

fn page(report: &Report) -> String {
    html(report, &tables(report), &drawings(report))
}

#[test]
fn numbers_are_those_worked_out_by_hand() {
    let records = four();
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let [entry] = report.entries.as_slice() else { panic!("one method on one panel") };
    assert_eq!((entry.method.as_str(), entry.panel.as_str(), entry.tasks), ("ReAct", "kuhn", 4));
    let at = |k: usize| &entry.curve[k - 1];
    assert_eq!([at(1).pass.value, at(2).pass.value], [Some(0.25), Some(0.5)]);
    assert_eq!([at(1).draw_or_win.value, at(2).draw_or_win.value], [Some(0.5), Some(0.75)]);
    assert_eq!([at(1).won.value, at(2).won.value], [Some(0.25), Some(0.5)]);
    assert_eq!([at(1).score.value, at(2).score.value], [Some(-0.25), Some(0.0)]);
    // Wilson's interval of 2 in 4.
    let (low, high) = at(2).pass.interval.unwrap();
    assert!((low - 0.1500).abs() < 1e-4 && (high - 0.8500).abs() < 1e-4, "{low} {high}");
    let last: Vec<(&str, Option<f64>)> = entry.opponents.iter().map(|o| (o.name.as_str(), o.last.value)).collect();
    assert_eq!(last, [("aggressive", Some(1.5)), ("conservative", Some(-1.5))]);

    let csv = csv(&report);
    let line = |start: &str| csv.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{start} in\n{csv}"));
    assert!(
        line("kuhn,kuhn,ReAct,,runs/x,,,,2,pass_at_k,").starts_with("kuhn,kuhn,ReAct,,runs/x,,,,2,pass_at_k,0.5,0.15")
    );
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,,,2,best_learner,").contains(",0.5,,,"));
    assert!(line("kuhn,kuhn,ReAct,,runs/x,conservative,,,2,score,").contains("score,-1.5,"));
    assert!(line("webshop,webshop,MAGE,,").ends_with(",10,pass_at_k,1,,,128,"));

    let all = tables(&report);
    let one = &all[0];
    let react = one.rows.iter().find(|r| r[0] == "ReAct").unwrap();
    assert_eq!(
        react[1..5],
        ["—", "10", "—", "64.8"],
        "the paper's has a row of its own: nobody here played ten episodes"
    );
    let react = one.rows.iter().filter(|r| r[0] == "ReAct").nth(1).unwrap();
    assert_eq!(react[1..5], ["runs/x", "2", "50.0 [15.0, 85.0] n 4", "—"], "two episodes are not ten");
    let memento = one.rows.iter().find(|r| r[0] == "Memento").unwrap();
    assert_eq!(memento[1..5], ["—", "10", "—", "64.1"], "nobody played it");
    assert_eq!(one.rows.last().unwrap()[..4], ["the best learner, on average over all deals", "oracle", "2", "84.0"]);
    assert!(one.note.contains("may the paper's numbers"), "a ceiling below the paper's numbers is explained");
    let text = markdown(&report, &all, &drawings(&report));
    assert!(text.contains("50.0 \\[15.0, 85.0\\] n 4"), "{text}");
    assert!(page(&report).contains("50.0 <small>[15.0, 85.0] n 4</small>"));
    let seats: Vec<&str> = entry.seats.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(seats, ["0"]);
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,0,,2,pass_at_k,").contains("pass_at_k,0.5,0.15"));
    let drawn = drawings(&report);
    let ids: Vec<&str> = drawn.iter().map(|d| d.id.split('-').next().unwrap()).collect();
    assert_eq!(ids, ["pass", "score", "opponents", "moves"]);
    assert!(drawn[0].svg.contains("ReAct, episodes k 2: 50.0 % [15.0 %, 85.0 %]"), "{}", drawn[0].svg);
    assert!(drawn[..2].iter().all(|d| d.svg.contains("best learner (exact)")));
    assert!(line("kuhn,kuhn,ReAct,,runs/x,,,,2,best_pass_at_k,").contains("best_pass_at_k,0.84,"));
    let page = page(&report);
    let mut names: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "every element has a name of its own");
    assert!(drawn.iter().all(|d| d.svg.starts_with("<svg") && d.svg.ends_with("</svg>\n") && !d.svg.contains("NaN")));
}

/// Where play stops at a win, later scores are of those who have not won; winning within k is still everybody's.
#[test]
fn with_an_early_stop_only_pass_at_k_has_a_ceiling() {
    let records = four();
    let mut of = summary(&records, "runs/x", Some("react"), true);
    of["early_stop"] = true.into();
    let drawn = drawings(&report_of(&records, Some(of)));
    let exact: Vec<bool> = drawn[..2].iter().map(|d| d.svg.contains("(exact)")).collect();
    assert_eq!(exact, [true, false]);
}

/// With an early stop, curves say whose they are and of how many; the map of opponents is of all tasks.
#[test]
fn with_an_early_stop_counts_are_in_sight() {
    let mut records = four();
    records[0].episodes.truncate(1);
    records[0].requests.truncate(1);
    records[0].stopped_early = true;
    let mut of = summary(&records, "runs/x", Some("react"), true);
    (of["early_stop"], of["episodes"]) = (true.into(), 2.into());
    let report = report_of(&records, Some(of));
    let drawn = drawings(&report);
    let find = |id: &str| drawn.iter().find(|d| d.id.starts_with(id)).unwrap();
    assert!(find("score").title.ends_with("score by episode, of tasks not yet won"), "{}", find("score").title);
    assert!(find("score").svg.contains(">ReAct (4 tasks, 3 at the end)</text>"), "{}", find("score").svg);
    assert!(find("pass").svg.contains(">ReAct</text>"), "all of them, always");
    let map = find("opponents");
    assert!(map.title.contains("won within 2 episodes") && map.svg.contains(">100 %</text>"), "{}", map.svg);
    assert!(map.svg.contains(">share of tasks</text>"), "a legend");
    let all = tables(&report);
    let curves = all.iter().find(|t| t.part == "curves").unwrap();
    assert!(
        curves.note.contains("not yet won") && curves.rows[0].iter().any(|c| c.ends_with("] n 3")),
        "{:?}",
        curves.rows
    );
}

/// So does the picture of changes: of winning, which is known of all tasks.
#[test]
fn with_an_early_stop_changes_are_shown_by_what_was_won() {
    let picture = |early_stop: bool| {
        let dir = tempfile::tempdir().unwrap();
        let records = four();
        write(&dir.path().join("r.jsonl"), &records);
        let mut of = summary(&records, "runs/x", None, true);
        of["early_stop"] = early_stop.into();
        fs::write(dir.path().join("s.json"), of.to_string()).unwrap();
        let about =
            json!({ "env": "kuhn", "method": "MAGE", "ablation": "no notes", "player": "p", "seed": 0, "command": [] });
        fs::write(dir.path().join("cell.json"), about.to_string()).unwrap();
        let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
        drawings(&report).into_iter().find(|d| d.part == "ablations").unwrap()
    };
    assert!(picture(false).svg.contains(">chips per hand</text>"));
    assert!(
        picture(true).svg.contains(">share of tasks</text>") && picture(true).title.ends_with("won within k episodes")
    );
}

/// Colours of maps in one unit mean the same, and a legend says what.
#[test]
fn maps_of_opponents_share_their_colours() {
    let dir = tempfile::tempdir().unwrap();
    for (name, scores) in [("a", [[1.0_f32, 1.0], [0.0, 0.0]]), ("b", [[5.0, 5.0], [1.0, 1.0]])] {
        let mut records = vec![record(1, "aggressive", 0, &scores[0]), record(2, "conservative", 0, &scores[1])];
        records.iter_mut().for_each(|r| r.key.task_set = Hash::of(name));
        write(&dir.path().join(format!("{name}.jsonl")), &records);
    }
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    let maps: Vec<String> = drawings(&report).into_iter().filter(|d| d.part == "opponents").map(|d| d.svg).collect();
    let colour_of = |svg: &str, value: &str| -> String {
        let before = &svg[..svg.find(&format!(">{value}</text>")).unwrap()];
        before.rsplit("fill=\"").nth(1).unwrap()[..7].to_owned()
    };
    let [one, other] = maps.as_slice() else { panic!("two maps") };
    assert_eq!(colour_of(one, "1.00"), colour_of(other, "1.00"), "the same score, the same colour");
    assert!(
        [one, other].iter().all(|m| m.contains(">0.00</text>") && m.contains(">5.00</text>")),
        "the ends of the scale"
    );
}

/// Play of one task with several seeds can be told apart.
#[test]
fn transcripts_say_which_seed_they_are_of() {
    use mage_env::Seed;
    let mut records = four();
    // The luck that `mage eval --seed 0 --seeds 2` gives its first task.
    for (record, seed) in records.iter_mut().zip([0, 1]) {
        record.key.seed = Seed::new(seed).child("agent").at(0);
    }
    let mut of = summary(&records, "runs/x", Some("react"), true);
    of["seeds"] = 2.into();
    let report = report_of(&records, Some(of));
    let mut seeds: Vec<&str> = report.transcripts.iter().map(|t| t.seed.as_str()).collect();
    seeds.sort_unstable();
    assert!(seeds.contains(&"seed 0") && seeds.contains(&"seed 1"), "{seeds:?}");
}

/// A curve that never moves has a scale to be read by, and a long title is not cut.
#[test]
fn flat_curves_and_long_titles_can_be_read() {
    use mage_report::chart::{Chart, Kind, Series, svg};
    let flat =
        [Series { name: "m".to_owned(), kind: Kind::Measured(0), points: vec![(1.0, 0.0, None), (2.0, 0.0, None)] }];
    let title = "a title of which there is much more than would fit into the width of one such picture of ours at its usual size";
    let drawn = svg(&Chart { title, x_label: "x", y_label: "y", percent: false, series: &flat });
    assert!(drawn.contains(">0.4</text>") && !drawn.contains("0.00000"), "{drawn}");
    let size: f64 = drawn.split("font-size=\"").nth(2).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(size < 12.0 && 0.62 * size * title.len() as f64 <= 680.0, "{size}");
}

/// Equal curves do not hide each other.
#[test]
fn equal_curves_are_both_seen() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let mut records = four();
        records.iter_mut().for_each(|r| r.key.method = Hash::of(name));
        write(&dir.path().join(format!("{name}.jsonl")), &records);
    }
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    let svg = drawings(&report).remove(0).svg;
    let lines: Vec<&str> = svg.split("<polyline points=\"").skip(1).map(|l| l.split('"').next().unwrap()).collect();
    assert!(lines.len() == 2 && lines[0] != lines[1], "moved aside");
    let of = |what: &str| -> Vec<String> {
        let all = svg.split(what).skip(1).map(|l| l.split('"').next().unwrap().to_owned());
        all.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    };
    assert!(of("stroke-dasharray=\"").len() == 2 && of(" d=\"").len() == 2, "dashes and marks of their own");
}

/// Table 1 is of the paper's panels: what was played on another does not stand beside its numbers.
#[test]
fn a_panel_of_ones_own_is_not_in_table_1() {
    let records = four();
    let mut of = summary(&records, "runs/x", Some("react"), true);
    of["preset"] = serde_json::Value::Null;
    let report = report_of(&records, Some(of));
    assert_eq!(report.entries[0].panel, "kuhn in-domain");
    let react = tables(&report)[0].rows.iter().find(|r| r[0] == "ReAct").unwrap().clone();
    assert_eq!(react[1..5], ["—", "10", "—", "64.8"]);
}

/// The paper's Pass@10 stands beside ours of ten episodes, also where more were played.
#[test]
fn only_equal_k_stand_beside_each_other() {
    let long =
        |n: u64, won: usize| record(n, "a", 0, &(0..12).map(|i| if i == won { 1.0 } else { -1.0 }).collect::<Vec<_>>());
    // One is won in the tenth episode, one in the eleventh.
    let records = [long(1, 9), long(2, 10)];
    let report = report_of(&records, Some(summary(&records, "runs/x", Some("react"), true)));
    let one = &tables(&report)[0];
    let react: Vec<_> = one.rows.iter().filter(|r| r[0] == "ReAct").collect();
    assert_eq!(react.len(), 1);
    assert_eq!(react[0][2..5], ["10", "50.0 [9.5, 90.5] n 2", "64.8"]);
}

/// Ours stand beside the paper's further numbers too.
#[test]
fn the_papers_other_numbers_have_ours_beside_them() {
    let records = four();
    let mut of = summary(&records, "runs/x", Some("react"), true);
    of["entrants"][0]["approach"] = "mage".into();
    let report = report_of(&records, Some(of));
    let all = tables(&report);
    let beside = all.iter().find(|t| t.id == "paper").unwrap();
    let at = |panel: &str, counted: &str| beside.rows.iter().find(|r| r[0] == panel && r[2] == counted).unwrap();
    assert_eq!(at("kuhn", "Pass@1")[1..], ["MAGE", "Pass@1", "25.0 [4.6, 69.9] n 4 (runs/x)", "59.4"]);
    assert_eq!(at("webshop", "Pass@5")[3..], ["—", "100.0"]);
}

/// What rests on samples, or is a bound, is not called exact.
#[test]
fn ceilings_say_how_they_are_known() {
    let records = four();
    let drawn = |ceilings: serde_json::Value| {
        let mut of = summary(&records, "runs/x", Some("react"), true);
        ceilings.as_object().unwrap().iter().for_each(|(k, v)| of["ceilings"][k] = v.clone());
        let report = report_of(&records, Some(of));
        let drawn = drawings(&report);
        let table = tables(&report)[0].rows.last().unwrap()[3].clone();
        (drawn[0].svg.clone(), drawn[1].svg.clone(), table)
    };
    let (pass, score, most) = drawn(json!({ "sampled_opponents": [{ "name": "mcts" }] }));
    assert!(pass.contains("best learner (estimated)") && !pass.contains("(exact)"));
    assert!(score.contains("best learner (estimated)") && score.contains("best without memory (estimated)"));
    assert_eq!(most, "≈ 84.0");
    let (_, score, _) = drawn(json!({ "episodes": 2, "seats": [{ "last_gap": 0.01, "sum_gap": 0.0 }] }));
    assert!(score.contains("best learner (at least)") && score.contains("best without memory (exact)"));
}

/// Two methods on one panel, task by task.
#[test]
fn methods_are_compared_task_by_task() {
    let mut theirs = four();
    for record in &mut theirs {
        record.key.method = Hash::of("other method");
    }
    // The other loses its second win.
    let lost = record(2, "aggressive", 0, &[-1.0, -1.0]);
    theirs[1].episodes = lost.episodes;
    let dir = tempfile::tempdir().unwrap();
    for (name, records, approach) in [("a", four(), "mage"), ("b", theirs, "react")] {
        write(&dir.path().join(format!("{name}.jsonl")), &records);
        let mut of = summary(&records, "runs/x", Some(approach), true);
        of["entrants"][0]["method"] = json!(records[0].key.method);
        fs::write(dir.path().join(format!("{name}.json")), of.to_string()).unwrap();
    }
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    let [one] = report.comparisons.as_slice() else { panic!("one pair: {:?}", report.comparisons) };
    assert_eq!(
        (report.entries[one.first].method.as_str(), report.entries[one.second].method.as_str()),
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
    assert!(page(&report).contains("Task by task"));
    assert!(markdown(&report, &all, &[]).contains("## Task by task"));
}

#[test]
fn states_and_actions_are_counted_by_episode() {
    let report = report_of(&four(), None);
    let moves = &report.entries[0].moves;
    assert_eq!(moves.actions, ["BET", "PASS"]);
    let mut points = moves.points.clone();
    points.sort_unstable();
    // Episode 1 is in state 0, episode 2 in state 1; one bet, then two.
    let of = |e, a| points.iter().find(|p| (p.0, p.2) == (e, a)).map(|p| p.3);
    assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1)], [Some(1), Some(3), Some(2), Some(2)]);
}

#[test]
fn seeds_of_one_task_are_one_observation() {
    let records = [four(), vec![record(1, "aggressive", 1, &[-1.0, -1.0])]].concat();
    let report = report_of(&records, None);
    let entry = &report.entries[0];
    assert_eq!((entry.tasks, entry.meta_episodes), (4, 5));
    // Task 1 was won with one seed of two: (0.5 + 1 + 0 + 0) / 4.
    assert_eq!((entry.curve[1].pass.value, entry.curve[1].pass.n), (Some(0.375), 4));
}

#[test]
fn an_agent_that_plays_by_rule_stands_in_for_no_method() {
    let records = four();
    let report = report_of(&records, Some(summary(&records, "bayes", Some("reflexion"), false)));
    assert_eq!((report.entries[0].method.as_str(), report.entries[0].player.as_str()), ("bayes", "scripted"));
    let one = &tables(&report)[0];
    assert_eq!(one.rows.iter().find(|r| r[0] == "Reflexion").unwrap()[3], "—");
    let rule = one.rows.iter().find(|r| r[0] == "bayes").unwrap();
    assert_eq!(rule[1], "scripted");
}

#[test]
fn what_a_model_wrote_stays_text() {
    let mut records = four();
    records[0].task.opponent = Some(OpponentSpec::of_kind("<svg onload=alert(2)>"));
    let page = page(&report_of(&records, None));
    assert!(!page.contains("<img"), "only the page's own tags");
    assert!(!page.contains("<svg onload"));
    assert_eq!(page.matches("</script>").count(), 2, "the two that the page closes itself");
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    let said =
        data["transcripts"].as_array().unwrap().iter().map(|t| &t["transcript"]["episodes"][0]["steps"][0]["answer"]);
    assert!(said.clone().count() == 4 && said.into_iter().all(|a| a == HOSTILE), "and nothing of it is lost");
    for outside in ["http://", "https://", "//cdn", "@import", "url("] {
        let used = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!used.contains(outside), "{outside}");
    }
}

#[test]
fn a_summary_speaks_for_records_that_are_not_there() {
    let records = four();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.json");
    fs::write(&file, serde_json::to_string_pretty(&summary(&records, "runs/x", Some("memento"), true)).unwrap())
        .unwrap();
    let report = read(&[file], Limits::default()).unwrap();
    assert_eq!(report.entries[0].method, "Memento");
    assert_eq!(report.entries[0].curve[1].pass.value, Some(0.5));
    assert!(report.notes[0].contains("from its summary"));
}

#[test]
fn damage_is_left_out_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    write(&path, &four());
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1] = "{\"key\":12}";
    fs::write(&path, lines.join("\n") + "\n{\"key\":{\"pan").unwrap();
    fs::write(dir.path().join("broken.json"), "{\n \"format\": 1, \"env\": \"kuhn\", \"split\": ").unwrap();
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    assert_eq!(report.entries[0].meta_episodes, 3);
    assert!(report.notes.iter().any(|n| n.contains("line 2")), "{:?}", report.notes);
    assert!(report.notes.iter().any(|n| n.contains("broken.json")), "{:?}", report.notes);
}

#[test]
fn nothing_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    assert!(read(&[dir.path().to_owned()], Limits::default()).unwrap().is_empty());
    fs::write(dir.path().join("r.jsonl"), "").unwrap();
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    assert!(report.is_empty());
    assert!(page(&report).contains("There are no records"), "and the page says so");
    assert!(read(&[dir.path().join("nowhere")], Limits::default()).is_err());
}

#[test]
fn failures_count_until_they_are_made_good() {
    let mut failed = record(5, "aggressive", 0, &[1.0]);
    failed.error = Some("timeout".to_owned());
    let mut records = four();
    records.push(failed);
    let mut retried = records[0].clone();
    retried.error = Some("first attempt".to_owned());
    records.insert(0, retried);
    let report = report_of(&records, None);
    assert_eq!((report.entries[0].meta_episodes, report.entries[0].errors), (4, 1));
}

#[test]
fn a_page_has_bounds() {
    let records: Vec<Trajectory> = (0..200).map(|i| record(i, "aggressive", 0, &[1.0, -1.0])).collect();
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("r.jsonl"), &records);
    let limits = Limits { transcripts: 10, text: 5, bytes: 2500, spheres: 2 };
    let report = read(&[dir.path().to_owned()], limits).unwrap();
    assert_eq!(report.entries[0].meta_episodes, 200, "all of them count");
    assert!(!report.transcripts.is_empty() && report.transcripts.len() < 10);
    assert!(report.transcripts[0].episodes[0].steps[0].answer.contains("more characters"));
    assert_eq!((report.entries[0].moves.points.len(), report.entries[0].moves.left_out), (2, 0));
    let left = 200 - report.transcripts.len();
    assert!(report.notes.iter().any(|n| n.starts_with(&format!("{left} more meta-episodes"))), "{:?}", report.notes);
}

#[test]
fn a_run_in_progress_is_shown_as_far_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("ünï run");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("recipe.resolved.toml"), "[optim]\nupdates = 9\n").unwrap();
    let line = |u: u32, s: f64| {
        format!("{{\"update\":{u},\"episode_3/score\":{s},\"eval/episode_3/score\":{s},\"eval/episode_3/se\":0.1}}\n")
    };
    fs::write(run.join("metrics.jsonl"), line(1, 0.25) + &line(2, 0.5) + "{\"update\":3,\"epi").unwrap();
    let report = read(&[dir.path().to_owned()], Limits::default()).unwrap();
    let [run] = report.runs.as_slice() else { panic!("one run") };
    assert_eq!((run.updates, run.of, run.finished, run.method.as_str()), (2, 9, false, "MAGE"));
    assert_eq!(run.panel.iter().map(|j| j.score).collect::<Vec<_>>(), [0.25, 0.5]);
    assert!(report.notes.iter().any(|n| n.contains("in progress, 2 of 9")), "{:?}", report.notes);
    let page = page(&report);
    assert!(page.contains("2 of 9") && page.contains("0.500 ± 0.100"), "and so does the page");
}
