//! Which numbers stand side by side?

use super::{
    Entry, Report,
    measured::{NONE, score},
    paper,
};
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
    all.extend(runs(report));
    all.extend(ablations(report));
    all.extend(opponents(report));
    all.push(beside());
    all
}

fn texts(of: &[&str]) -> Vec<String> {
    of.iter().map(|t| (*t).to_owned()).collect()
}

/// Table 1: Pass@k at the last episode, beside the paper's.
fn table_1(report: &Report) -> Table {
    let in_table = |e: &&Entry| e.ablation.is_none() && paper::ENVS.iter().any(|(env, _)| e.panel == *env);
    let ours: Vec<&Entry> = report.entries.iter().filter(in_table).collect();
    let players = |method: &str| -> BTreeSet<&str> {
        ours.iter().filter(|e| e.method == method).map(|e| e.player.as_str()).collect()
    };
    let mut header = texts(&["method", "played by"]);
    for (_, env) in paper::ENVS {
        header.push(env.to_owned());
        header.push("paper".to_owned());
    }
    let row = |method: &str, player: Option<&str>| {
        let mut row = vec![method.to_owned(), player.unwrap_or(NONE).to_owned()];
        for (env, _) in paper::ENVS {
            let of = |e: &&&Entry| e.method == method && Some(e.player.as_str()) == player && e.panel == env;
            let cells: Vec<String> = ours.iter().filter(of).filter_map(|e| pass(e)).collect();
            row.push(if cells.is_empty() { NONE.to_owned() } else { cells.join("; ") });
            let share = paper::share(method, env).map(|s| format!("{:.1}", 100.0 * s));
            row.push(share.unwrap_or_else(|| NONE.to_owned()));
        }
        row
    };
    let mut rows = Vec::new();
    for (method, _) in paper::TABLE {
        let players = players(method);
        if players.is_empty() {
            rows.push(row(method, None));
        }
        rows.extend(players.into_iter().map(|p| row(method, Some(p))));
    }
    let others: BTreeSet<&str> =
        ours.iter().map(|e| e.method.as_str()).filter(|m| paper::spelling(m) != Some(*m)).collect();
    for method in others {
        rows.extend(players(method).into_iter().map(|p| row(method, Some(p))));
    }
    let most = |env: &str| {
        let known = ours.iter().filter(|e| e.panel == env);
        known.filter_map(|e| e.pass_ceiling.get(e.last()?.k as usize - 1)).next().map(|p| format!("{:.1}", 100.0 * p))
    };
    if paper::ENVS.iter().any(|(env, _)| most(env).is_some()) {
        let cells =
            paper::ENVS.iter().flat_map(|(env, _)| [most(env).unwrap_or_else(|| NONE.to_owned()), NONE.to_owned()]);
        rows.push(texts(&["the most that is possible", "oracle"]).into_iter().chain(cells).collect());
    }
    Table {
        id: "table-1".to_owned(),
        part: "table",
        title: "Table 1: tasks won within k episodes, in percent".to_owned(),
        note: "Ours with 95 % intervals and the number of tasks; k is 10 unless it says otherwise. The paper's: Qwen3-4B, \
               k = 10, 128 tasks, one run (standard error about 4). A dash is a cell nobody played: methods that need a model \
               that follows instructions have no stand-in."
            .to_owned(),
        header,
        rows,
    }
}

/// Pass@k at the last episode: `65.6 [57.1, 73.3] n 128`.
fn pass(e: &Entry) -> Option<String> {
    let last = e.last().filter(|p| p.pass.value.is_some())?;
    let k = if last.k == 10 { String::new() } else { format!(" @{}", last.k) };
    Some(format!("{} n {}{k}", last.pass.percent(), last.pass.n))
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
            let value = e.ceiling.as_ref().and_then(|c| of(c).get(last.k as usize - 1).copied());
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
            e.pass_ceiling.get(last.k as usize - 1).map_or_else(|| NONE.to_owned(), |p| format!("{:.1}", 100.0 * p)),
            last.draw_or_win.percent(),
            first.won.percent(),
            last.won.percent(),
            first.score.score(),
            last.score.score(),
            line(|c| &c.memoryless),
            line(|c| &c.learner),
            e.errors.to_string(),
        ]
    };
    let table = |(panel, hash): (&str, &str)| {
        let of: Vec<&Entry> = report.entries.iter().filter(|e| e.panel == panel && e.panel_hash == hash).collect();
        let unit = of.first().map_or("score", |e| e.unit.as_str());
        let stops = of.iter().any(|e| e.early_stop);
        let stop = if stops { " Tasks stop at their first win: later episodes are of those not yet won." } else { "" };
        Table {
            id: format!("panel-{hash}"),
            part: "curves",
            title: format!("{panel}, panel {hash}"),
            note: format!("Rates in percent, scores in {unit}, 95 % intervals.{stop}"),
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
                e.panel.clone(),
                e.method.clone(),
                e.ablation.clone().unwrap_or_else(|| "unchanged".to_owned()),
                last.pass.n.to_string(),
                first.pass.percent(),
                last.pass.percent(),
                first.score.score(),
                last.score.score(),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        id: "ablations".to_owned(),
        part: "ablations",
        title: "Ablations".to_owned(),
        note: "Each change beside the method as it is, on the same tasks.".to_owned(),
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

/// Scores by opponent.
fn opponents(report: &Report) -> Option<Table> {
    let rows: Vec<Vec<String>> = report
        .entries
        .iter()
        .flat_map(|e| {
            e.opponents.iter().map(|o| {
                vec![
                    e.panel.clone(),
                    e.name(),
                    e.player.clone(),
                    o.name.clone(),
                    o.first.n.to_string(),
                    o.first.score(),
                    o.last.score(),
                ]
            })
        })
        .collect();
    (!rows.is_empty()).then(|| Table {
        id: "opponents".to_owned(),
        part: "opponents",
        title: "By opponent".to_owned(),
        note: "Mean score in the first and in the last episode, 95 % intervals.".to_owned(),
        header: texts(&["panel", "method", "played by", "opponent", "tasks", "first episode", "last episode"]),
        rows,
    })
}

fn beside() -> Table {
    Table {
        id: "paper".to_owned(),
        part: "table",
        title: "The paper's numbers beside Table 1".to_owned(),
        note: "All the paper's, of MAGE with Qwen3-4B, in percent; cumulative over episodes.".to_owned(),
        header: texts(&["panel", "counted", "paper"]),
        rows: paper::BESIDE.iter().map(|(panel, what, value)| texts(&[panel, what, value])).collect(),
    }
}
