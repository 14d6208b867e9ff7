//! Metrics of evaluations, computed by hand.

use crate::common::{four_records, page, record, report_of, summary, table};
use mage_report::{StateCounts, csv, figures, markdown, tables};

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
    let one = all.iter().find(|t| t.id == "table-1").unwrap();
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
fn states_and_actions_are_counted_by_episode() {
    let report = report_of(&four_records(), None);
    let counts = &report.results[0].actions;
    // Episode 1 is in state 0 with one BET, episode 2 in state 1 with two.
    let state = |name: &str, steps: [u64; 2], bets: [u64; 2], passes: [u64; 2]| {
        let mut actions = vec![("BET".to_owned(), bets.to_vec()), ("PASS".to_owned(), passes.to_vec())];
        actions.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().sum::<u64>()));
        StateCounts { state: name.to_owned(), steps: steps.to_vec(), actions }
    };
    let expected = [state("state 0", [4, 0], [1, 0], [3, 0]), state("state 1", [0, 4], [0, 2], [0, 2])];
    assert_eq!((counts.states.as_slice(), counts.steps), (expected.as_slice(), 8));
    let figures = figures(&report);
    let figure = figures.iter().find(|f| f.section == "actions").unwrap();
    assert!(figure.svg.contains(">state 0: PASS</text>") && figure.svg.contains(">75 %</text>"), "{}", figure.svg);
    assert!(figure.svg.contains("ep. 1: 3 of 4 steps in the state: state 0</title>"), "{}", figure.svg);
    assert!(figure.svg.contains("these states have 100 % of all steps</text>"), "{}", figure.svg);
}

#[test]
fn a_scripted_agent_does_not_represent_a_prompt_method() {
    let records = four_records();
    let report = report_of(&records, Some(summary(&records, "bayes", Some("reflexion"), false)));
    assert_eq!((report.results[0].method.as_str(), report.results[0].policy.as_str()), ("bayes", "scripted"));
    let one = table(&report, "table-1").unwrap();
    assert_eq!(one.rows.iter().find(|r| r[0] == "Reflexion").unwrap()[3], "—");
    let scripted = one.rows.iter().find(|r| r[0] == "bayes").unwrap();
    assert_eq!(scripted[1], "scripted");
}

#[test]
fn drawings_of_states_are_numbered_and_texts_are_shortened() {
    let mut records = four_records();
    for turn in records.iter_mut().flat_map(|r| &mut r.episodes).flat_map(|e| &mut e.turns) {
        let text = if turn.anchor.0 == "state 0" { "###\n#P#\n###".to_owned() } else { "long ".repeat(20) };
        turn.anchor = mage_env::Anchor(text);
    }
    let figures = figures(&report_of(&records, None));
    let svg = &figures.iter().find(|f| f.section == "actions").unwrap().svg;
    assert!(svg.contains(">state 1: PASS</text>") && svg.contains("in the state: ###\n#P#\n###</title>"), "{svg}");
    assert!(svg.contains(">long long long long long long long l…: BET</text>"), "{svg}");
}
