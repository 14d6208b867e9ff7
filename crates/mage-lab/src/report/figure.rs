//! What do the numbers look like?
//!
//! Charts of everything in a report, and a heat map of opponents.

use super::{
    Entry, Measured, Report, Run,
    chart::{self, Chart, Kind, Series, WIDTH, opening, text},
    paper,
};
use mage_core::Bootstrap;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

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
        all.extend(panel_drawings(panel, hash, &of, &colours));
    }
    let envs: BTreeSet<&str> = report.runs.iter().map(|r| r.env.as_str()).collect();
    for env in envs {
        let of: Vec<&Run> = report.runs.iter().filter(|r| r.env == env).collect();
        all.extend(learning(env, &of, &colours));
    }
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
        // Who played is said where two played by the same method.
        let called = |e: &Entry| match of.iter().filter(|o| o.name() == e.name()).count() {
            1 => e.name(),
            _ => format!("{} ({})", e.name(), e.player),
        };
        let points = |e: &Entry| {
            e.curve.iter().filter_map(|p| which(p).value.map(|y| (f64::from(p.k), y, which(p).interval))).collect()
        };
        let one = |e: &&Entry| Series { name: called(e), kind: Kind::Measured(colours.of(e)), points: points(e) };
        among.iter().map(one).collect()
    };
    let mut pass = series(&|p| p.pass, of);
    if let Some(best) = of.iter().map(|e| &e.pass_ceiling).find(|c| !c.is_empty()) {
        pass.push(Series::exact("best learner (exact)", best, "none"));
    }
    if pass.iter().any(|s| !s.points.is_empty()) {
        let title = format!("{panel}: won within k episodes (Pass@k)");
        let chart =
            Chart { title: &title, x_label: "episodes k", y_label: "share of tasks", percent: true, series: &pass };
        all.push(lines(&format!("pass-{hash}"), "curves", &chart));
    }
    let unit = of.first().map_or("score", |e| e.unit.as_str());
    let mut score = series(&|p| p.score, of);
    if let Some(ceiling) = of.iter().find_map(|e| e.ceiling.as_ref()) {
        score.push(Series::exact("best learner (exact)", &ceiling.learner, "none"));
        score.push(Series::exact("best without memory (exact)", &ceiling.memoryless, "6 4"));
    }
    let title = format!("{panel}: score by episode");
    let by_episode = |title, series| Chart { title, x_label: "episode", y_label: unit, percent: false, series };
    all.push(lines(&format!("score-{hash}"), "curves", &by_episode(&title, &score)));
    if of.iter().any(|e| e.ablation.is_some()) {
        let changed: BTreeSet<&str> = of.iter().filter(|e| e.ablation.is_some()).map(|e| e.method.as_str()).collect();
        let near: Vec<&Entry> = of.iter().copied().filter(|e| changed.contains(e.method.as_str())).collect();
        let title = format!("{panel}: what changes made of it");
        let id = format!("ablation-{hash}");
        all.push(lines(&id, "ablations", &by_episode(&title, &series(&|p| p.score, &near))));
    }
    all.extend(heat_map(panel, hash, of));
    all
}

fn lines(id: &str, part: &'static str, chart: &Chart<'_>) -> Drawing {
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
    if let Some((memoryless, learner)) = of.iter().find_map(|r| r.ceiling) {
        let line = |name: &str, y, dashes| Series {
            name: name.to_owned(),
            kind: Kind::Exact(dashes),
            points: vec![(0.0, y, None), (last, y, None)],
        };
        series.push(line("best learner (exact)", learner, "none"));
        series.push(line("best without memory (exact)", memoryless, "6 4"));
    }
    let unit = of.first().map_or("score", |r| r.unit.as_str());
    let title = format!("{env}: score of the last episode while learning");
    let id = format!("learning-{}", file_name(env));
    let chart = Chart { title: &title, x_label: "updates", y_label: unit, percent: false, series: &series };
    Some(lines(&id, "learning", &chart))
}

/// A name that files can have.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Last-episode score, methods down and opponents across.
fn heat_map(panel: &str, hash: &str, of: &[&Entry]) -> Option<Drawing> {
    let names: BTreeSet<&str> = of.iter().flat_map(|e| e.opponents.iter().map(|o| o.name.as_str())).collect();
    let values = of.iter().flat_map(|e| e.opponents.iter().filter_map(|o| o.last.value));
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)));
    if low > high {
        return None;
    }
    let label = |n: usize| 24.0 + 7.2 * n as f64;
    let left = label(of.iter().map(|e| e.name().chars().count()).max().unwrap_or(0));
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let (wide, tall) = (label(longest).max(74.0), 34.0);
    let title = format!("{panel}: score in the last episode, by opponent");
    let width = (left + wide * names.len() as f64 + 16.0).max(32.0 + 9.2 * title.chars().count() as f64).max(WIDTH);
    let mut svg = opening(width, 76.0 + tall * of.len() as f64 + 12.0, &title);
    for (i, name) in names.iter().enumerate() {
        text(&mut svg, left + wide * (i as f64 + 0.5), 66.0, "middle", "ink", name);
    }
    for (row, e) in of.iter().enumerate() {
        let y = 76.0 + tall * row as f64;
        text(&mut svg, left - 10.0, y + tall / 2.0 + 4.5, "end", "ink", &e.name());
        for (i, name) in names.iter().enumerate() {
            let found = e.opponents.iter().find(|o| o.name == *name).and_then(|o| o.last.value);
            let x = left + wide * i as f64;
            let (fill, ink, label) = match found {
                None => ("#eeeeee".to_owned(), "#555555", super::measured::NONE.to_owned()),
                Some(v) => {
                    let share = if high > low { (v - low) / (high - low) } else { 0.5 };
                    (blend(share), if share > 0.55 { "#ffffff" } else { "#222222" }, format!("{v:.2}"))
                }
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" fill=\"{fill}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                wide - 3.0,
                tall - 3.0,
                x + wide / 2.0 - 1.5,
                y + tall / 2.0 + 3.0
            );
        }
    }
    svg.push_str("</svg>\n");
    Some(Drawing { id: format!("opponents-{hash}"), part: "opponents", title, svg })
}

/// From pale sand to deep blue.
fn blend(share: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(246.0, 23.0), mix(236.0, 78.0), mix(214.0, 132.0))
}
