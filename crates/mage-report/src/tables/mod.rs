//! Tables of a report.

mod overview;
mod paper_comparison;

use super::{
    MethodResult, Report, SliceResult, TokenBudget,
    interval_estimate::{IntervalEstimate, NONE, mean_and_error, p_value, score},
    method_result::CeilingCurves,
};
use mage_core::{MeanEstimate, PairedRate};
use paper_comparison::{other_results, table_1};
use std::collections::{BTreeMap, BTreeSet};

/// A table of formatted cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportTable {
    /// Identifier for links and tests.
    pub id: String,
    /// Section of the report.
    pub section: &'static str,
    /// Title.
    pub title: String,
    /// Explanation of the columns.
    pub caption: String,
    /// Column names.
    pub header: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
}

/// All tables of a report.
pub fn tables(report: &Report) -> Vec<ReportTable> {
    let mut all: Vec<ReportTable> = overview::runs(report).into_iter().chain(overview::evaluations(report)).collect();
    all.extend(table_1(report));
    all.extend(by_task_set(report));
    all.extend(comparisons(report));
    all.extend(runs(report));
    all.extend(ablations(report));
    all.extend(slices(report, "opponents", "By opponent", "opponent", |r| &r.opponents));
    all.extend(slices(report, "seats", "By seat", "seat", |r| if r.seats.len() > 1 { &r.seats } else { &[] }));
    all.extend(other_results(report));
    all
}

fn to_strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|t| (*t).to_owned()).collect()
}

/// A sentence for a caption if the models of a task set had different token budgets, thinking modes or sampling parameters.
fn budget_note<'r>(results: impl IntoIterator<Item = &'r MethodResult>) -> String {
    let mut by_task_set: BTreeMap<&str, BTreeMap<&TokenBudget, BTreeSet<String>>> = BTreeMap::new();
    for r in results {
        if let Some(budget) = &r.budget {
            let same = by_task_set.entry(&r.task_set_hash).or_default().entry(budget).or_default();
            same.insert(format!("{} ({})", r.name(), r.policy));
        }
    }
    let mut notes = BTreeSet::new();
    for budgets in by_task_set.values().filter(|budgets| budgets.len() > 1) {
        notes.extend(budgets.iter().map(|(budget, names)| {
            let thinking = budget.thinking.as_deref().unwrap_or("unknown");
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (play, reflect) = (budget.play_tokens, budget.reflect_tokens);
            let names = names.join(", ");
            format!("{play} per action, {reflect} per reflection, thinking {thinking}, {}: {names}", budget.sampling)
        }));
    }
    if notes.is_empty() {
        return String::new();
    }
    let notes: Vec<String> = notes.into_iter().collect();
    format!(
        " The models had different token budgets, thinking modes or sampling parameters. Maximum tokens {}.",
        notes.join("; ")
    )
}

/// One table per task set.
fn by_task_set(report: &Report) -> Vec<ReportTable> {
    let task_sets: BTreeSet<(&str, &str)> =
        report.results.iter().map(|r| (r.task_set.as_str(), r.task_set_hash.as_str())).collect();
    let header = to_strings(&[
        "method",
        "policy",
        "tasks",
        "meta-episodes",
        "k",
        "Pass@1",
        "Pass@k",
        "best Pass@k",
        "draw or win within k",
        "won, episode 1",
        "won, episode k",
        "score, episode 1",
        "score, episode k",
        "memoryless optimum, episode k",
        "Bayes-adaptive optimum, episode k",
        "failed",
    ]);
    let row = |r: &MethodResult| {
        let (first, last) = (r.curve.first()?, r.curve.last()?);
        let ceiling = |curve: fn(&CeilingCurves) -> &Vec<f64>| {
            let value = r.score_ceiling().and_then(|c| curve(c).get(last.k as usize - 1).copied());
            value.map_or_else(|| NONE.to_owned(), score)
        };
        Some(vec![
            r.name(),
            r.policy.clone(),
            r.tasks.to_string(),
            r.meta_episodes.to_string(),
            last.k.to_string(),
            first.pass.percent(),
            last.pass.percent(),
            r.best_pass(last.k).map_or_else(|| NONE.to_owned(), |p| format!("{:.1}", 100.0 * p)),
            last.draw_or_win.percent(),
            first.won.percent(),
            with_count(last.won.percent(), &last.won, r.tasks),
            first.score.score(),
            with_count(last.score.score(), &last.score, r.tasks),
            ceiling(|c| &c.memoryless),
            ceiling(|c| &c.bayes_adaptive),
            r.errors.to_string(),
        ])
    };
    let table = |(task_set, hash): (&str, &str)| {
        let results: Vec<&MethodResult> =
            report.results.iter().filter(|r| r.task_set == task_set && r.task_set_hash == hash).collect();
        // Trajectories without a summary have no unit.
        let unit = results.iter().map(|r| r.unit.as_str()).find(|unit| *unit != "score");
        let unit = unit.map_or_else(String::new, |unit| format!("; score: {unit}"));
        let early_stop = results.iter().any(|r| r.early_stop);
        let early_stop = match early_stop {
            true => {
                " Tasks stop after their first win: scores and wins of later episodes cover the n tasks not yet won."
            }
            false => "",
        };
        let ceiling = results.iter().find_map(|r| r.ceiling.as_ref());
        let ceiling = ceiling.map_or_else(String::new, |c| {
            format!(" The Bayes-adaptive optimum is {}, over the whole population.", c.bayes_qualifier())
        });
        ReportTable {
            id: format!("task-set-{hash}"),
            section: "curves",
            title: format!("{task_set}, task set {hash}"),
            caption: format!(
                "Rates in percent{unit}; 95 % intervals over tasks.{ceiling}{early_stop}{}",
                budget_note(results.iter().copied())
            ),
            header: header.clone(),
            rows: results.into_iter().filter_map(row).collect(),
        }
    };
    task_sets.into_iter().map(table).collect()
}

/// Final evaluations of training runs, with one row per episode.
fn runs(report: &Report) -> Option<ReportTable> {
    let mut rows = Vec::new();
    for run in &report.runs {
        let head = |episode: usize| {
            [&run.path, &run.env, &run.label, &run.seed.to_string(), &run.progress(), &episode.to_string()]
                .map(String::clone)
        };
        for (n, scores) in run.episode_scores.iter().enumerate() {
            let mut row = head(n + 1).to_vec();
            row.extend(scores.iter().map(|e| mean_and_error(e.as_ref())));
            let ceiling = |curve: fn(&CeilingCurves) -> &Vec<f64>| {
                let value = run.ceiling.as_ref().and_then(|c| curve(c).get(n).copied());
                value.map_or_else(|| NONE.to_owned(), score)
            };
            row.extend([ceiling(|c| &c.memoryless), ceiling(|c| &c.bayes_adaptive)]);
            rows.push(row);
        }
    }
    (!rows.is_empty()).then(|| ReportTable {
        id: "runs".to_owned(),
        section: "training",
        title: "Training runs by episode".to_owned(),
        caption:
            "Scores on the run's own evaluation tasks, mean ± standard error; no standard error for exact expectations."
                .to_owned(),
        header: to_strings(&[
            "run",
            "environment",
            "method",
            "seed",
            "updates",
            "episode",
            "before",
            "after",
            "without memory",
            "memoryless optimum",
            "Bayes-adaptive optimum",
        ]),
        rows,
    })
}

/// Ablations, next to the unchanged method on the same task set.
fn ablations(report: &Report) -> Option<ReportTable> {
    let ablated: Vec<&MethodResult> = report.results.iter().filter(|r| r.ablation.is_some()).collect();
    let related = |r: &&MethodResult| {
        ablated.iter().any(|a| a.method == r.method && a.task_set_hash == r.task_set_hash && a.policy == r.policy)
    };
    let shown: Vec<&MethodResult> = report.results.iter().filter(related).collect();
    let rows: Vec<Vec<String>> = shown
        .iter()
        .filter_map(|r| {
            let (first, last) = (r.curve.first()?, r.curve.last()?);
            Some(vec![
                report.task_set_name(&r.task_set, &r.task_set_hash),
                r.method.clone(),
                r.ablation.clone().unwrap_or_else(|| "none".to_owned()),
                last.pass.n.to_string(),
                first.pass.percent(),
                last.pass.percent(),
                first.score.score(),
                with_count(last.score.score(), &last.score, r.tasks),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| ReportTable {
        id: "ablations".to_owned(),
        section: "ablations",
        title: "Ablations".to_owned(),
        caption: "Each ablation next to the unchanged method on the same tasks; 95 % intervals over tasks. Where tasks stop after \
                  their first win, the last score covers the n tasks not yet won."
            .to_owned()
            + &budget_note(shown),
        header: to_strings(&[
            "task set",
            "method",
            "ablation",
            "tasks",
            "Pass@1",
            "Pass@k",
            "score, episode 1",
            "score, episode k",
        ]),
        rows,
    })
}

/// A value of the last episode, followed by its number of tasks if that is not all of them.
fn with_count(value: String, estimate: &IntervalEstimate, tasks: u64) -> String {
    if estimate.n < tasks { format!("{value} n {}", estimate.n) } else { value }
}

/// Paired comparisons.
fn comparisons(report: &Report) -> Option<ReportTable> {
    let difference = |m: &MeanEstimate, format_value: &dyn Fn(f64) -> String| match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", format_value(x), format_value(i.low), format_value(i.high)),
        (Some(x), None) => format_value(x),
        (None, _) => NONE.to_owned(),
    };
    let points = |x: f64| format!("{:.1}", if x.abs() < 0.0005 { 0.0 } else { 100.0 * x });
    let ahead = |r: &PairedRate| format!("{}:{}", r.first_ahead, r.second_ahead);
    let rows: Vec<Vec<String>> = report
        .comparisons
        .iter()
        .filter_map(|c| {
            let (first, second, last) = (&report.results[c.first], &report.results[c.second], c.by_episode.last()?);
            let label = |r: &MethodResult| format!("{} ({})", r.name(), r.policy);
            Some(vec![
                report.task_set_name(&first.task_set, &first.task_set_hash),
                label(first),
                label(second),
                last.pass_at_k.tasks.to_string(),
                last.k.to_string(),
                difference(&last.pass_at_k.difference, &points),
                ahead(&last.pass_at_k),
                p_value(last.pass_at_k.p_value),
                difference(&last.score, &score),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| ReportTable {
        id: "paired".to_owned(),
        section: "curves",
        title: "Paired comparison by task".to_owned(),
        caption: "First minus second on their common tasks, 95 % intervals over tasks. Ahead: number of tasks that one won more \
                  often. p: McNemar's test in which a task with all its seeds counts once, not corrected for the number of rows. \
                  The intervals do not include the variance between training seeds. Score: of episode k; where tasks stop after a \
                  win, over the tasks that neither has won."
            .to_owned()
            + &budget_note(report.comparisons.iter().flat_map(|c| [c.first, c.second]).map(|i| &report.results[i])),
        header: to_strings(&[
            "task set",
            "first",
            "second",
            "tasks",
            "k",
            "Pass@k, points",
            "ahead",
            "p",
            "score",
        ]),
        rows,
    })
}

/// Scores by opponent or by seat.
fn slices(
    report: &Report,
    id: &str,
    title: &str,
    column: &str,
    slices_of: fn(&MethodResult) -> &[SliceResult],
) -> Option<ReportTable> {
    let row = |r: &MethodResult, slice: &SliceResult| {
        vec![
            report.task_set_name(&r.task_set, &r.task_set_hash),
            r.name(),
            r.policy.clone(),
            slice.name.clone(),
            slice.pass.n.to_string(),
            slice.pass.percent(),
            slice.first_score.score(),
            with_count(slice.last_score.score(), &slice.last_score, slice.pass.n),
        ]
    };
    let rows: Vec<Vec<String>> =
        report.results.iter().flat_map(|r| slices_of(r).iter().map(move |slice| row(r, slice))).collect();
    (!rows.is_empty()).then(|| ReportTable {
        id: id.to_owned(),
        section: "opponents",
        title: title.to_owned(),
        caption: "Pass@k in percent and mean score of the first and of the last episode, 95 % intervals over tasks. Where tasks \
                  stop after their first win, the last episode covers the n tasks not yet won."
            .to_owned(),
        header: to_strings(&[
            "task set",
            "method",
            "policy",
            column,
            "tasks",
            "Pass@k",
            "first episode",
            "last episode",
        ]),
        rows,
    })
}
