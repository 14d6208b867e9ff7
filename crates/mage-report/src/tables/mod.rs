//! Which numbers stand side by side?

mod beside_the_paper;

use super::{
    Entry, Part, Report,
    measured::{Measured, NONE, p_value, score},
};
use beside_the_paper::{beside, table_1};
use mage_core::{MeanEstimate, PairedRate};
use std::collections::BTreeSet;

/// A table of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name for links and tests.
    pub id: String,
    /// The part of the report it belongs to.
    pub part: &'static str,
    /// What people call it.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// The columns.
    pub header: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// All tables of a report.
pub fn tables(report: &Report) -> Vec<Table> {
    let mut all = vec![table_1(report)];
    all.extend(curves(report));
    all.extend(paired(report));
    all.extend(runs(report));
    all.extend(ablations(report));
    all.extend(parts(report, "opponents", "By opponent", "opponent", |e| &e.opponents));
    all.extend(parts(report, "seats", "By seat", "seat", |e| if e.seats.len() > 1 { &e.seats } else { &[] }));
    all.push(beside(report));
    all
}

fn texts(of: &[&str]) -> Vec<String> {
    of.iter().map(|t| (*t).to_owned()).collect()
}

/// Every panel by itself.
fn curves(report: &Report) -> Vec<Table> {
    let panels: BTreeSet<(&str, &str)> =
        report.entries.iter().map(|e| (e.panel.as_str(), e.panel_hash.as_str())).collect();
    let header = texts(&[
        "method",
        "played by",
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
        "best without memory, k",
        "best learner, k",
        "failed",
    ]);
    let row = |e: &Entry| {
        let (Some(first), Some(last)) = (e.curve.first(), e.curve.last()) else { return Vec::new() };
        let line = |of: fn(&super::entry::Lines) -> &Vec<f64>| {
            let value = e.score_ceiling().and_then(|c| of(c).get(last.k as usize - 1).copied());
            value.map_or_else(|| NONE.to_owned(), score)
        };
        vec![
            e.name(),
            e.player.clone(),
            e.tasks.to_string(),
            e.meta_episodes.to_string(),
            last.k.to_string(),
            first.pass.percent(),
            last.pass.percent(),
            e.best_pass(last.k).map_or_else(|| NONE.to_owned(), |p| format!("{:.1}", 100.0 * p)),
            last.draw_or_win.percent(),
            first.won.percent(),
            with_count(last.won.percent(), &last.won, e.tasks),
            first.score.score(),
            with_count(last.score.score(), &last.score, e.tasks),
            line(|c| &c.memoryless),
            line(|c| &c.learner),
            e.errors.to_string(),
        ]
    };
    let table = |(panel, hash): (&str, &str)| {
        let of: Vec<&Entry> = report.entries.iter().filter(|e| e.panel == panel && e.panel_hash == hash).collect();
        // Records that no summary speaks of have no unit.
        let unit = of.iter().map(|e| e.unit.as_str()).find(|unit| *unit != "score");
        let unit = unit.map_or_else(String::new, |unit| format!("; score: {unit}"));
        let stops = of.iter().any(|e| e.early_stop);
        let stop = match stops {
            true => {
                " Tasks stop at their first win: scores and wins of later episodes are of those not yet won, n at the end."
            }
            false => "",
        };
        let known = of.iter().find_map(|e| e.ceiling.as_ref());
        let known =
            known.map_or_else(String::new, |c| format!(" What is best is {}, over the whole population.", c.known()));
        Table {
            id: format!("panel-{hash}"),
            part: "curves",
            title: format!("{panel}, panel {hash}"),
            note: format!("Rates in percent{unit}; 95 % intervals over tasks.{known}{stop}"),
            header: header.clone(),
            rows: of.into_iter().map(row).collect(),
        }
    };
    panels.into_iter().map(table).collect()
}

/// Training runs, by episode.
fn runs(report: &Report) -> Option<Table> {
    if report.runs.is_empty() {
        return None;
    }
    let estimate = |e: Option<(f64, f64)>| match e {
        None => NONE.to_owned(),
        Some((mean, 0.0)) => score(mean),
        Some((mean, se)) => format!("{} ± {}", score(mean), score(se)),
    };
    let mut rows = Vec::new();
    for run in &report.runs {
        let head = |episode: &str| {
            let state = if run.finished { run.of.to_string() } else { format!("{} of {}", run.updates, run.of) };
            vec![run.env.clone(), run.name(), run.seed.to_string(), state, episode.to_owned()]
        };
        if run.table.is_empty() {
            let newest = run.panel.last().map(|j| (j.score, j.se));
            let mut row = head("last");
            row.extend([NONE.to_owned(), estimate(newest), NONE.to_owned(), NONE.to_owned(), NONE.to_owned()]);
            rows.push(row);
        }
        for (n, judged) in run.table.iter().enumerate() {
            let mut row = head(&(n + 1).to_string());
            row.extend(judged.iter().map(|e| estimate(*e)));
            let line = |of: fn(&super::entry::Lines) -> &Vec<f64>| {
                let value = run.lines.as_ref().and_then(|l| of(l).get(n).copied());
                value.map_or_else(|| NONE.to_owned(), score)
            };
            row.extend([line(|l| &l.memoryless), line(|l| &l.learner)]);
            rows.push(row);
        }
    }
    Some(Table {
        id: "runs".to_owned(),
        part: "learning",
        title: "Training runs".to_owned(),
        note: "Scores on the run's own panel, mean ± standard error; no standard error where nothing was left to luck. A run \
               in progress shows its newest panel."
            .to_owned(),
        header: texts(&[
            "environment", "method", "seed", "updates", "episode", "before", "after", "memory blanked",
            "best without memory", "best learner",
        ]),
        rows,
    })
}

/// What changes made of it: each beside the unchanged method on the same panel.
fn ablations(report: &Report) -> Option<Table> {
    let changed: Vec<&Entry> = report.entries.iter().filter(|e| e.ablation.is_some()).collect();
    let near = |e: &&Entry| {
        changed.iter().any(|c| c.method == e.method && c.panel_hash == e.panel_hash && c.player == e.player)
    };
    let rows: Vec<Vec<String>> = report
        .entries
        .iter()
        .filter(near)
        .filter_map(|e| {
            let (first, last) = (e.curve.first()?, e.curve.last()?);
            Some(vec![
                report.panel_name(&e.panel, &e.panel_hash),
                e.method.clone(),
                e.ablation.clone().unwrap_or_else(|| "unchanged".to_owned()),
                last.pass.n.to_string(),
                first.pass.percent(),
                last.pass.percent(),
                first.score.score(),
                with_count(last.score.score(), &last.score, e.tasks),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        id: "ablations".to_owned(),
        part: "ablations",
        title: "Ablations".to_owned(),
        note: "Each change beside the method as it is, on the same tasks; 95 % intervals over tasks. Where tasks stop at their first \
               win, the last score is of those not yet won, n of them."
            .to_owned(),
        header: texts(&[
            "panel",
            "method",
            "changed",
            "tasks",
            "Pass@1",
            "Pass@k",
            "score, episode 1",
            "score, episode k",
        ]),
        rows,
    })
}

/// A number of the last episode, with how many tasks played it where these are not all.
fn with_count(shown: String, m: &Measured, tasks: u64) -> String {
    if m.n < tasks { format!("{shown} n {}", m.n) } else { shown }
}

/// One method beside another, task by task.
fn paired(report: &Report) -> Option<Table> {
    let number = |m: &MeanEstimate, form: &dyn Fn(f64) -> String| match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", form(x), form(i.low), form(i.high)),
        (Some(x), None) => form(x),
        (None, _) => NONE.to_owned(),
    };
    let points = |x: f64| format!("{:.1}", if x.abs() < 0.0005 { 0.0 } else { 100.0 * x });
    let ahead = |r: &PairedRate| format!("{}:{}", r.first_ahead, r.second_ahead);
    let rows: Vec<Vec<String>> = report
        .comparisons
        .iter()
        .filter_map(|c| {
            let (first, second, last) = (&report.entries[c.first], &report.entries[c.second], c.by_episode.last()?);
            let whom = |e: &Entry| format!("{} ({})", e.name(), e.player);
            Some(vec![
                report.panel_name(&first.panel, &first.panel_hash),
                whom(first),
                whom(second),
                last.pass_at_k.tasks.to_string(),
                last.k.to_string(),
                number(&last.pass_at_k.difference, &points),
                ahead(&last.pass_at_k),
                p_value(last.pass_at_k.p_value),
                number(&last.score, &score),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        id: "paired".to_owned(),
        part: "curves",
        title: "Task by task".to_owned(),
        note: "First minus second on the tasks that both played, 95 % intervals over tasks. Ahead: tasks in which one won more \
               often. p: McNemar's test in which a task with all its seeds counts once; not corrected for the number of rows. \
               Trained policies are compared as they are: the luck of training is in no interval. Score: of episode k, where \
               tasks stop at a win of those that neither has won."
            .to_owned(),
        header: texts(&[
            "panel", "first", "second", "tasks", "k", "Pass@k, points", "ahead", "p", "score",
        ]),
        rows,
    })
}

/// Scores by opponent, or by seat.
fn parts(report: &Report, id: &str, title: &str, what: &str, of: fn(&Entry) -> &[Part]) -> Option<Table> {
    let row = |e: &Entry, part: &Part| {
        vec![
            report.panel_name(&e.panel, &e.panel_hash),
            e.name(),
            e.player.clone(),
            part.name.clone(),
            part.pass.n.to_string(),
            part.pass.percent(),
            part.first.score(),
            with_count(part.last.score(), &part.last, part.pass.n),
        ]
    };
    let rows: Vec<Vec<String>> =
        report.entries.iter().flat_map(|e| of(e).iter().map(move |part| row(e, part))).collect();
    (!rows.is_empty()).then(|| Table {
        id: id.to_owned(),
        part: "opponents",
        title: title.to_owned(),
        note: "Pass@k in percent and mean score in the first and in the last episode, 95 % intervals over tasks. Where tasks stop \
               at their first win, the last episode is of those not yet won, n of them."
            .to_owned(),
        header: texts(&["panel", "method", "played by", what, "tasks", "Pass@k", "first episode", "last episode"]),
        rows,
    })
}
