//! Which of our numbers stand beside the paper's?
//!
//! Only those of the same panel and the same k: winning once within five episodes is less than within ten.

use super::{Table, texts};
use crate::{
    Entry, Report,
    measured::NONE,
    paper::{self, Beside, K},
};
use std::collections::BTreeSet;

/// What sets a row of Table 1 apart: the method, who played, and within how many episodes.
type Row<'a> = (&'a str, Option<&'a str>, u32);

/// The k an entry is counted at: the paper's, or all it has.
fn counted_at(e: &Entry) -> u32 {
    K.min(e.curve.len() as u32)
}

/// Table 1: tasks won within k episodes, beside the paper's.
pub(super) fn table_1(report: &Report) -> Table {
    let in_table = |e: &&Entry| e.ablation.is_none() && paper::ENVS.iter().any(|(env, _)| e.panel == *env);
    let ours: Vec<&Entry> = report.entries.iter().filter(in_table).filter(|e| !e.curve.is_empty()).collect();
    let played = |method: &str| -> BTreeSet<(std::cmp::Reverse<u32>, &str)> {
        let of = ours.iter().filter(|e| e.method == method);
        of.map(|e| (std::cmp::Reverse(counted_at(e)), e.player.as_str())).collect()
    };
    let mut header = texts(&["method", "played by", "k"]);
    for (_, env) in paper::ENVS {
        header.push(env.to_owned());
        header.push("paper".to_owned());
    }
    let row = |(method, player, k): Row<'_>| {
        let mut row = vec![method.to_owned(), player.unwrap_or(NONE).to_owned(), k.to_string()];
        for (env, _) in paper::ENVS {
            let of = |e: &&&Entry| {
                e.method == method && Some(e.player.as_str()) == player && e.panel == env && counted_at(e) == k
            };
            let cells: Vec<String> = ours.iter().filter(of).filter_map(|e| pass(e, k)).collect();
            row.push(if cells.is_empty() { NONE.to_owned() } else { cells.join("; ") });
            let share = paper::share(method, env).filter(|_| k == K).map(|s| format!("{:.1}", 100.0 * s));
            row.push(share.unwrap_or_else(|| NONE.to_owned()));
        }
        row
    };
    let mut rows = Vec::new();
    for (method, _) in paper::TABLE {
        let played = played(method);
        // The paper's number has a row, whoever played.
        if !played.iter().any(|(k, _)| k.0 == K) {
            rows.push(row((method, None, K)));
        }
        rows.extend(played.into_iter().map(|(k, player)| row((method, Some(player), k.0))));
    }
    let others: BTreeSet<&str> =
        ours.iter().map(|e| e.method.as_str()).filter(|m| paper::spelling(m) != Some(*m)).collect();
    for method in others {
        rows.extend(played(method).into_iter().map(|(k, player)| row((method, Some(player), k.0))));
    }
    let ks: BTreeSet<u32> = ours.iter().map(|e| counted_at(e)).collect();
    let most = |env: &str, k: u32| {
        let known = ours.iter().filter(|e| e.panel == env).find_map(|e| Some((e.best_pass(k)?, e.ceiling.as_ref()?)));
        known.map(|(p, lines)| format!("{}{:.1}", if lines.estimated { "≈ " } else { "" }, 100.0 * p))
    };
    for k in ks.into_iter().rev() {
        if paper::ENVS.iter().all(|(env, _)| most(env, k).is_none()) {
            continue;
        }
        let cells =
            paper::ENVS.iter().flat_map(|(env, _)| [most(env, k).unwrap_or_else(|| NONE.to_owned()), NONE.to_owned()]);
        let head = ["the best learner, on average over all deals".to_owned(), "oracle".to_owned(), k.to_string()];
        rows.push(head.into_iter().chain(cells).collect());
    }
    Table {
        id: "table-1".to_owned(),
        part: "table",
        title: "Table 1: tasks won within k episodes, in percent".to_owned(),
        note: "Ours with 95 % intervals over tasks and their number. The paper's: Qwen3-4B, k = 10, 128 tasks, one run (standard \
               error about 4); they stand beside ours of k = 10 alone. A dash is a cell nobody played: methods that need a model \
               that follows instructions have no stand-in. The best learner is one who knows our opponents but not which it meets, over all \
               their deals (≈: estimated from their moves). A panel's luck may lie above it, and so \
               may the paper's numbers: its 128 tasks are other deals, with a ceiling of their own."
            .to_owned(),
        header,
        rows,
    }
}

/// Pass@k: `65.6 [57.1, 73.3] n 128`.
fn pass(e: &Entry, k: u32) -> Option<String> {
    let at = e.curve.get(k as usize - 1).filter(|p| p.pass.value.is_some())?;
    Some(format!("{} n {}", at.pass.percent(), at.pass.n))
}

/// The paper's other numbers, and ours of the same panel and k.
pub(super) fn beside(report: &Report) -> Table {
    let row = |b: &Beside| {
        let of = |e: &&Entry| {
            (e.panel.as_str(), e.method.as_str(), e.ablation.as_deref()) == (b.panel, b.method, b.ablation)
        };
        let number = |e: &Entry| {
            let at = e.curve.get(b.k as usize - 1)?;
            let m = if b.draws { at.draw_or_win } else { at.pass };
            m.value.map(|_| format!("{} n {} ({})", m.percent(), m.n, e.player))
        };
        let ours: Vec<String> = report.entries.iter().filter(of).filter_map(number).collect();
        vec![
            b.panel.to_owned(),
            b.ablation.map_or_else(|| b.method.to_owned(), |a| format!("{}, {a}", b.method)),
            if b.draws { format!("draw or win within {}", b.k) } else { format!("Pass@{}", b.k) },
            if ours.is_empty() { NONE.to_owned() } else { ours.join("; ") },
            format!("{:.1}", b.percent),
        ]
    };
    Table {
        id: "paper".to_owned(),
        part: "table",
        title: "The paper's numbers beside Table 1".to_owned(),
        note: "In percent, cumulative over episodes; the paper's with Qwen3-4B, ours by whom it says. A dash where nobody played \
               this panel, so changed, for so many episodes."
            .to_owned(),
        header: texts(&["panel", "method", "counted", "ours", "paper"]),
        rows: paper::BESIDE.iter().map(row).collect(),
    }
}
