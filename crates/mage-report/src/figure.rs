//! What do the numbers look like?
//!
//! Charts of everything in a report; maps of opponents and pictures of states and actions are their own.

use super::{
    Entry, Measured, Report, Run,
    chart::{self, Chart, Kind, Series},
    heat, paper, still,
};
use mage_core::Bootstrap;
use std::collections::{BTreeMap, BTreeSet};

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// Its name, for files and links.
    pub id: String,
    /// The part of the report it belongs to.
    pub part: &'static str,
    /// What it shows.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// All pictures of a report.
pub fn drawings(report: &Report) -> Vec<Drawing> {
    let mut all = Vec::new();
    let colours = Colours::new(report);
    let panels: BTreeSet<(&str, &str)> =
        report.entries.iter().map(|e| (e.panel.as_str(), e.panel_hash.as_str())).collect();
    for (panel, hash) in panels {
        let of: Vec<&Entry> = report.entries.iter().filter(|e| e.panel == panel && e.panel_hash == hash).collect();
        let panel = report.panel_name(panel, hash);
        all.extend(panel_drawings(&panel, hash, &of, &colours));
        all.extend(heat::map(&panel, hash, &of, &report.entries));
    }
    let envs: BTreeSet<&str> = report.runs.iter().map(|r| r.env.as_str()).collect();
    for env in envs {
        let of: Vec<&Run> = report.runs.iter().filter(|r| r.env == env).collect();
        all.extend(learning(env, &of, &colours));
    }
    all.extend(still::pictures(&report.entries));
    all
}

/// Whose each colour is: the same in every picture of a report.
struct Colours(Vec<(String, String)>);

impl Colours {
    /// Methods with their players, the paper's first and its own before them; runs share the colour of their evaluations.
    fn new(report: &Report) -> Self {
        let mut all = Colours(Vec::new());
        let place =
            |e: &&Entry| paper::TABLE.iter().rev().position(|(name, _)| *name == e.method).unwrap_or(usize::MAX);
        let mut entries: Vec<&Entry> = report.entries.iter().collect();
        entries.sort_by_key(place);
        for entry in entries {
            if !all.0.iter().any(|(name, player)| (name, player) == (&entry.name(), &entry.player)) {
                all.0.push((entry.name(), entry.player.clone()));
            }
        }
        for run in &report.runs {
            if !all.0.iter().any(|(name, _)| *name == run.name()) {
                all.0.push((run.name(), String::new()));
            }
        }
        all
    }

    fn of(&self, entry: &Entry) -> usize {
        let same = |(name, player): &(String, String)| (name, player) == (&entry.name(), &entry.player);
        self.0.iter().position(same).unwrap_or(0)
    }

    fn of_run(&self, name: &str) -> usize {
        self.0.iter().position(|(of, _)| of == name).unwrap_or(0)
    }
}

fn panel_drawings(panel: &str, hash: &str, of: &[&Entry], colours: &Colours) -> Vec<Drawing> {
    let mut all = Vec::new();
    let series = |which: &dyn Fn(&super::Point) -> Measured, among: &[&Entry]| -> Vec<Series> {
        // Who played is said where two played by the same method; how many tasks where they are not always the same.
        let called = |e: &Entry| {
            let name = match of.iter().filter(|o| o.name() == e.name()).count() {
                1 => e.name(),
                _ => format!("{} ({})", e.name(), e.player),
            };
            let tasks = |p: Option<&super::Point>| p.map_or(0, |p| which(p).n);
            match (tasks(e.curve.first()), tasks(e.curve.last())) {
                (first, last) if first == last => name,
                (first, last) => format!("{name} ({first} tasks, {last} at the end)"),
            }
        };
        let points = |e: &Entry| {
            e.curve.iter().filter_map(|p| which(p).value.map(|y| (f64::from(p.k), y, which(p).interval))).collect()
        };
        let one = |e: &&Entry| Series { name: called(e), kind: Kind::Measured(colours.of(e)), points: points(e) };
        among.iter().map(one).collect()
    };
    let mut pass = series(&|p| p.pass, of);
    if let Some(best) = of.iter().filter_map(|e| e.ceiling.as_ref()).find(|c| !c.pass_at.is_empty()) {
        pass.push(Series::exact(&format!("best learner ({})", best.rest_known()), &best.pass_at, "none"));
    }
    if pass.iter().any(|s| !s.points.is_empty()) {
        let title = format!("{panel}: won within k episodes (Pass@k)");
        let chart =
            Chart { title: &title, x_label: "episodes k", y_label: "share of tasks", percent: true, series: &pass };
        all.push(drawn(&format!("pass-{hash}"), "curves", &chart));
    }
    let unit = of.first().map_or("score", |e| e.unit.as_str());
    let mut score = series(&|p| p.score, of);
    if let Some(ceiling) = of.iter().find_map(|e| e.score_ceiling()) {
        score.push(Series::exact(&format!("best learner ({})", ceiling.known()), &ceiling.learner, "none"));
        let memoryless = format!("best without memory ({})", ceiling.rest_known());
        score.push(Series::exact(&memoryless, &ceiling.memoryless, "6 4"));
    }
    let whose = match (of.iter().any(|e| e.early_stop), of.iter().all(|e| e.early_stop)) {
        (_, true) => ", of tasks not yet won",
        (true, false) => ", where counted: of tasks not yet won",
        _ => "",
    };
    let title = format!("{panel}: score by episode{whose}");
    let by_episode = |title, series| Chart { title, x_label: "episode", y_label: unit, percent: false, series };
    all.push(drawn(&format!("score-{hash}"), "curves", &by_episode(&title, &score)));
    if of.iter().any(|e| e.ablation.is_some()) {
        let changed: BTreeSet<&str> = of.iter().filter(|e| e.ablation.is_some()).map(|e| e.method.as_str()).collect();
        let near: Vec<&Entry> = of.iter().copied().filter(|e| changed.contains(e.method.as_str())).collect();
        let id = format!("ablation-{hash}");
        // Where play stops at a win, winning is what is known of all tasks.
        if near.iter().any(|e| e.early_stop) {
            let title = format!("{panel}: what changes made of it, won within k episodes");
            let series = series(&|p| p.pass, &near);
            let (x_label, y_label) = ("episodes k", "share of tasks");
            let chart = Chart { title: &title, x_label, y_label, percent: true, series: &series };
            all.push(drawn(&id, "ablations", &chart));
        } else {
            let title = format!("{panel}: what changes made of it, score by episode");
            all.push(drawn(&id, "ablations", &by_episode(&title, &series(&|p| p.score, &near))));
        }
    }
    all
}

fn drawn(id: &str, part: &'static str, chart: &Chart<'_>) -> Drawing {
    Drawing { id: id.to_owned(), part, title: chart.title.to_owned(), svg: chart::svg(chart) }
}

/// Last-episode score by update; runs that differ in their seed alone are one line.
fn learning(env: &str, of: &[&Run], colours: &Colours) -> Option<Drawing> {
    let names: BTreeSet<String> = of.iter().map(|r| r.name()).collect();
    let mut series = Vec::new();
    for name in names {
        let mine: Vec<&&Run> = of.iter().filter(|r| r.name() == name).collect();
        let mut by_update: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
        // Training's own scores are of other opponents: they stand in only where no run has seen its panel yet.
        let judged = mine.iter().any(|run| !run.panel.is_empty());
        for run in &mine {
            for j in &run.panel {
                by_update.entry(j.update).or_default().push((j.score, j.se));
            }
            if !judged {
                run.training.iter().for_each(|(u, score)| by_update.entry(*u).or_default().push((*score, 0.0)));
            }
        }
        let points = by_update.into_iter().map(|(update, scores)| match scores.as_slice() {
            [(score, se)] => (update as f64, *score, Some((score - 1.96 * se, score + 1.96 * se))),
            several => {
                let mean = Bootstrap::default().at(update).mean(several.iter().map(|(s, _)| *s));
                let measured = Measured::from(&mean);
                (update as f64, measured.value.unwrap_or_default(), measured.interval)
            }
        });
        let seeds = if mine.len() > 1 { format!(" ({} seeds)", mine.len()) } else { String::new() };
        let points = points.collect();
        series.push(Series { name: format!("{name}{seeds}"), kind: Kind::Measured(colours.of_run(&name)), points });
    }
    series.retain(|s| !s.points.is_empty());
    let last = series.iter().flat_map(|s| &s.points).map(|p| p.0).fold(f64::NAN, f64::max);
    if !last.is_finite() {
        return None;
    }
    let lines = of.iter().find_map(|r| r.lines.as_ref());
    if let (Some((memoryless, learner)), Some(known)) = (of.iter().find_map(|r| r.ceiling), lines) {
        let line = |name: &str, y, dashes| Series {
            name: name.to_owned(),
            kind: Kind::Exact(dashes),
            points: vec![(0.0, y, None), (last, y, None)],
        };
        series.push(line(&format!("best learner ({})", known.known()), learner, "none"));
        series.push(line(&format!("best without memory ({})", known.rest_known()), memoryless, "6 4"));
    }
    let unit = of.first().map_or("score", |r| r.unit.as_str());
    let title = format!("{env}: score of the last episode while learning");
    let id = format!("learning-{}", file_name(env));
    let chart = Chart { title: &title, x_label: "updates", y_label: unit, percent: false, series: &series };
    Some(drawn(&id, "learning", &chart))
}

/// A name that files can have.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
