//! Comparison with the paper's results.
//!
//! Only results of the same task set and the same k are compared: a win within five episodes is rarer than within ten.

use super::{ReportTable, budget_note, to_strings};
use crate::{
    MethodResult, Report,
    interval_estimate::NONE,
    paper_results::{self, K, PaperResult},
};
use std::collections::BTreeSet;

/// Key of a row of Table 1: method, policy, k.
type Table1Row<'a> = (&'a str, Option<&'a str>, u32);

/// The k at which a result is reported: the paper's, or its number of episodes if that is smaller.
fn reported_k(r: &MethodResult) -> u32 {
    K.min(r.curve.len() as u32)
}

/// Table 1: rate of tasks won within k episodes, next to the paper's.
pub(super) fn table_1(report: &Report) -> Option<ReportTable> {
    let in_table =
        |r: &&MethodResult| r.ablation.is_none() && paper_results::ENVS.iter().any(|(env, _)| r.task_set == *env);
    let ours: Vec<&MethodResult> = report.results.iter().filter(in_table).filter(|r| !r.curve.is_empty()).collect();
    if ours.is_empty() {
        return None;
    }
    let policies_of = |method: &str| -> BTreeSet<(std::cmp::Reverse<u32>, &str)> {
        let results = ours.iter().filter(|r| r.method == method);
        results.map(|r| (std::cmp::Reverse(reported_k(r)), r.policy.as_str())).collect()
    };
    let mut header = to_strings(&["method", "policy", "k"]);
    for (_, env) in paper_results::ENVS {
        header.push(env.to_owned());
        header.push("paper".to_owned());
    }
    let row = |(method, policy, k): Table1Row<'_>| {
        let mut row = vec![method.to_owned(), policy.unwrap_or(NONE).to_owned(), k.to_string()];
        for (env, _) in paper_results::ENVS {
            let matches = |r: &&&MethodResult| {
                r.method == method && Some(r.policy.as_str()) == policy && r.task_set == env && reported_k(r) == k
            };
            let cells: Vec<String> = ours.iter().filter(matches).filter_map(|r| pass(r, k)).collect();
            row.push(if cells.is_empty() { NONE.to_owned() } else { cells.join("; ") });
            let paper = paper_results::pass_rate(method, env).filter(|_| k == K).map(|s| format!("{:.1}", 100.0 * s));
            row.push(paper.unwrap_or_else(|| NONE.to_owned()));
        }
        row
    };
    let mut rows = Vec::new();
    for (method, _) in paper_results::TABLE {
        let policies = policies_of(method);
        // The paper's result has a row even without a result of ours.
        if !policies.iter().any(|(k, _)| k.0 == K) {
            rows.push(row((method, None, K)));
        }
        rows.extend(policies.into_iter().map(|(k, policy)| row((method, Some(policy), k.0))));
    }
    let others: BTreeSet<&str> =
        ours.iter().map(|r| r.method.as_str()).filter(|m| paper_results::canonical_name(m) != Some(*m)).collect();
    for method in others {
        rows.extend(policies_of(method).into_iter().map(|(k, policy)| row((method, Some(policy), k.0))));
    }
    let ks: BTreeSet<u32> = ours.iter().map(|r| reported_k(r)).collect();
    let best = |env: &str, k: u32| {
        let known =
            ours.iter().filter(|r| r.task_set == env).find_map(|r| Some((r.best_pass(k)?, r.ceiling.as_ref()?)));
        known.map(|(p, curves)| format!("{}{:.1}", if curves.estimated { "≈ " } else { "" }, 100.0 * p))
    };
    for k in ks.into_iter().rev() {
        if paper_results::ENVS.iter().all(|(env, _)| best(env, k).is_none()) {
            continue;
        }
        let cells = paper_results::ENVS
            .iter()
            .flat_map(|(env, _)| [best(env, k).unwrap_or_else(|| NONE.to_owned()), NONE.to_owned()]);
        let head = ["Bayes-adaptive optimum, mean over all deals".to_owned(), "oracle".to_owned(), k.to_string()];
        rows.push(head.into_iter().chain(cells).collect());
    }
    Some(ReportTable {
        id: "table-1".to_owned(),
        section: "paper",
        title: "Table 1: tasks won within k episodes, in percent".to_owned(),
        caption: "Ours with 95 % intervals over tasks and the number of tasks. The paper's: Qwen3-4B, k = 10, 128 tasks, one run \
                  (standard error about 4), shown only next to ours of k = 10. A dash is a cell without an evaluation; scripted \
                  agents do not stand in for methods that need an instruction-following model. The Bayes-adaptive optimum knows \
                  the population of opponents but not the opponent, and averages over all deals (≈: estimated by sampling the \
                  opponents). A result on a finite task set may exceed it by chance, and so may the paper's numbers: its 128 \
                  tasks are other deals with another optimum."
            .to_owned()
            + &budget_note(ours),
        header,
        rows,
    })
}

/// Pass@k: `65.6 [57.1, 73.3] n 128`.
fn pass(r: &MethodResult, k: u32) -> Option<String> {
    let at = r.curve.get(k as usize - 1).filter(|m| m.pass.value.is_some())?;
    Some(format!("{} n {}", at.pass.percent(), at.pass.n))
}

/// The paper's results outside Table 1, and ours of the same task set and k.
pub(super) fn other_results(report: &Report) -> Option<ReportTable> {
    let row = |paper: &PaperResult| -> Option<Vec<String>> {
        let matches = |r: &&MethodResult| {
            (r.task_set.as_str(), r.method.as_str(), r.ablation.as_deref())
                == (paper.task_set, paper.method, paper.ablation)
        };
        let value = |r: &MethodResult| {
            let at = r.curve.get(paper.k as usize - 1)?;
            let rate = if paper.draws { at.draw_or_win } else { at.pass };
            rate.value.map(|_| format!("{} n {} ({})", rate.percent(), rate.n, r.policy))
        };
        let ours: Vec<String> = report.results.iter().filter(matches).filter_map(value).collect();
        if ours.is_empty() {
            return None;
        }
        Some(vec![
            paper.task_set.to_owned(),
            paper.ablation.map_or_else(|| paper.method.to_owned(), |a| format!("{}, {a}", paper.method)),
            if paper.draws { format!("draw or win within {}", paper.k) } else { format!("Pass@{}", paper.k) },
            ours.join("; "),
            format!("{:.1}", paper.percent),
        ])
    };
    let rows: Vec<_> = paper_results::OTHER_RESULTS.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| ReportTable {
        id: "paper".to_owned(),
        section: "paper",
        title: "The paper's results outside Table 1".to_owned(),
        caption:
            "In percent, cumulative over episodes; the paper's with Qwen3-4B, ours with the policy in parentheses."
                .to_owned(),
        header: to_strings(&["task set", "method", "metric", "ours", "paper"]),
        rows,
    })
}
