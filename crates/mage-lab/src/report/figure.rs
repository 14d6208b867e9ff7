//! What do the numbers look like?
//!
//! SVG by hand: lines with bands, and a heat map. Colours are attributes, so that a file stands by itself; the page
//! overrides them by class, in the light and in the dark.

use super::{Entry, Measured, Report, Run};
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
    let panels: BTreeSet<(&str, &str)> =
        report.entries.iter().map(|e| (e.panel.as_str(), e.panel_hash.as_str())).collect();
    for (panel, hash) in panels {
        let of: Vec<&Entry> = report.entries.iter().filter(|e| e.panel == panel && e.panel_hash == hash).collect();
        all.extend(panel_drawings(panel, hash, &of));
    }
    let envs: BTreeSet<&str> = report.runs.iter().map(|r| r.env.as_str()).collect();
    for env in envs {
        let of: Vec<&Run> = report.runs.iter().filter(|r| r.env == env).collect();
        all.extend(learning(env, &of));
    }
    all
}

fn panel_drawings(panel: &str, hash: &str, of: &[&Entry]) -> Vec<Drawing> {
    let mut all = Vec::new();
    let series = |which: &dyn Fn(&super::Point) -> Measured, among: &[&Entry]| -> Vec<Series> {
        let colour = |e: &Entry| of.iter().position(|o| std::ptr::eq(*o, e)).unwrap_or(0);
        let points = |e: &Entry| {
            e.curve.iter().filter_map(|p| which(p).value.map(|y| (f64::from(p.k), y, which(p).interval))).collect()
        };
        among.iter().map(|e| Series { name: e.name(), kind: Kind::Measured(colour(e)), points: points(e) }).collect()
    };
    let pass = series(&|p| p.pass, of);
    if pass.iter().any(|s| !s.points.is_empty()) {
        let title = format!("{panel}: won within k episodes (Pass@k)");
        all.push(lines(&format!("pass-{hash}"), "curves", title, "episodes k", "share of tasks", true, &pass));
    }
    let unit = of.first().map_or("score", |e| e.unit.as_str());
    let mut score = series(&|p| p.score, of);
    if let Some(ceiling) = of.iter().find_map(|e| e.ceiling.as_ref()) {
        let line = |name: &str, values: &[f64], dashes| Series {
            name: name.to_owned(),
            kind: Kind::Exact(dashes),
            points: (1..).zip(values).map(|(k, y)| (f64::from(k), *y, None)).collect(),
        };
        score.push(line("best learner (exact)", &ceiling.learner, "none"));
        score.push(line("best without memory (exact)", &ceiling.memoryless, "6 4"));
    }
    let title = format!("{panel}: score by episode");
    all.push(lines(&format!("score-{hash}"), "curves", title, "episode", unit, false, &score));
    if of.iter().any(|e| e.ablation.is_some()) {
        let changed: BTreeSet<&str> = of.iter().filter(|e| e.ablation.is_some()).map(|e| e.method.as_str()).collect();
        let near: Vec<&Entry> = of.iter().copied().filter(|e| changed.contains(e.method.as_str())).collect();
        let title = format!("{panel}: what changes made of it");
        let id = format!("ablation-{hash}");
        all.push(lines(&id, "ablations", title, "episode", unit, false, &series(&|p| p.score, &near)));
    }
    all.extend(heat_map(panel, hash, of));
    all
}

/// Last-episode score by update; runs that differ in their seed alone are one line.
fn learning(env: &str, of: &[&Run]) -> Option<Drawing> {
    let names: BTreeSet<String> = of.iter().map(|r| r.name()).collect();
    let mut series = Vec::new();
    for (colour, name) in names.into_iter().enumerate() {
        let mine: Vec<&&Run> = of.iter().filter(|r| r.name() == name).collect();
        let mut by_update: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
        for run in &mine {
            for j in &run.panel {
                by_update.entry(j.update).or_default().push((j.score, j.se));
            }
            if run.panel.is_empty() {
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
        series.push(Series { name: format!("{name}{seeds}"), kind: Kind::Measured(colour), points });
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
    Some(lines(&id, "learning", title, "updates", unit, false, &series))
}

/// A name that files can have.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Colours that people with any colour vision can tell apart, readable on white and on black.
const COLOURS: [&str; 8] = ["#d1495b", "#2f7fc1", "#2a9d6f", "#b07aa1", "#c98a12", "#5c6f82", "#8c564b", "#17a2b8"];

struct Series {
    name: String,
    kind: Kind,
    points: Vec<PlotPoint>,
}

/// Where, how much, and its interval.
type PlotPoint = (f64, f64, Option<(f64, f64)>);

#[derive(Clone, Copy)]
enum Kind {
    /// Measured, in the colour of this number.
    Measured(usize),
    /// Known exactly, with these dashes.
    Exact(&'static str),
}

impl Kind {
    fn colour(self) -> &'static str {
        match self {
            Kind::Measured(n) => COLOURS[n % COLOURS.len()],
            Kind::Exact(_) => "#777777",
        }
    }

    /// The ninth line and later ones are dashed, to tell them from the first.
    fn dashes(self) -> &'static str {
        match self {
            Kind::Exact(dashes) => dashes,
            Kind::Measured(n) => ["none", "2 3", "8 3 2 3"][(n / COLOURS.len()).min(2)],
        }
    }
}

const WIDTH: f64 = 680.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 46.0;
const PLOT: f64 = 290.0;

fn lines(
    id: &str,
    part: &'static str,
    title: String,
    x_label: &str,
    y_label: &str,
    percent: bool,
    series: &[Series],
) -> Drawing {
    let all = || series.iter().flat_map(|s| &s.points);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)))
    };
    let (x_low, x_high) = bounds(&mut all().map(|p| p.0));
    let ends = |p: &PlotPoint| p.2.map_or([p.1, p.1, p.1], |(low, high)| [low, p.1, high]);
    let (y_low, y_high) = if percent { (0.0, 1.0) } else { bounds(&mut all().flat_map(ends)) };
    let (x_low, x_high) = if x_low < x_high { (x_low, x_high) } else { (x_low - 0.5, x_low + 0.5) };
    let step = tick_step(y_high - y_low);
    let (low, high) = ((y_low / step).floor() * step, (y_high / step).ceil() * step);
    let high = if high > low { high } else { low + step };
    let at_x = |x: f64| LEFT + 14.0 + (WIDTH - LEFT - RIGHT - 28.0) * (x - x_low) / (x_high - x_low);
    let at_y = |y: f64| TOP + PLOT * (high - y) / (high - low);

    // The legend flows below, as many to a line as fit.
    let mut places = Vec::new();
    let (mut x, mut y) = (LEFT, TOP + PLOT + 70.0);
    for s in series {
        let width = 38.0 + 7.2 * s.name.chars().count() as f64;
        if x + width > WIDTH && x > LEFT {
            (x, y) = (LEFT, y + 22.0);
        }
        places.push((x, y));
        x += width + 10.0;
    }
    let mut svg = opening(WIDTH, y + 18.0, &title);
    let ticks = ((high - low) / step).round() as usize;
    for i in 0..=ticks {
        let value = low + step * i as f64;
        let y = at_y(value);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#e3e3e3\"/>",
            WIDTH - RIGHT
        );
        let label = if percent { format!("{:.0} %", 100.0 * value) } else { trimmed(value, step) };
        text(&mut svg, LEFT - 8.0, y + 4.5, "end", "faint", &label);
    }
    let x_step = tick_step(x_high - x_low).max(1.0);
    let mut tick = (x_low / x_step).ceil() * x_step;
    while tick <= x_high + 1e-9 {
        text(&mut svg, at_x(tick), TOP + PLOT + 20.0, "middle", "faint", &trimmed(tick, x_step));
        tick += x_step;
    }
    text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT + 42.0, "middle", "ink", x_label);
    let _ = writeln!(
        svg,
        "<text class=\"ink\" transform=\"translate(15 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#222222\">{}</text>",
        TOP + PLOT / 2.0,
        escaped(y_label)
    );
    // Many bands on top of each other must not hide the lines.
    let opacity = (0.5 / series.len().max(1) as f64).clamp(0.05, 0.14);
    for s in series {
        let band: Vec<_> = s.points.iter().filter_map(|p| p.2.map(|i| (p.0, i))).collect();
        if band.len() > 1 {
            let up = band.iter().map(|(x, (low, _))| (x, low));
            let down = band.iter().rev().map(|(x, (_, high))| (x, high));
            let corners: Vec<String> =
                up.chain(down).map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                svg,
                "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"{opacity:.2}\"/>",
                corners.join(" "),
                s.kind.colour()
            );
        }
    }
    for s in series {
        let path: Vec<String> = s.points.iter().map(|p| format!("{:.1},{:.1}", at_x(p.0), at_y(p.1))).collect();
        stroke(&mut svg, &format!("<polyline points=\"{}\" fill=\"none\"", path.join(" ")), s.kind);
        let few = s.points.len() <= 30 && matches!(s.kind, Kind::Measured(_));
        for (x, y, interval) in s.points.iter().filter(|_| few) {
            let about =
                interval.map_or_else(String::new, |(a, b)| format!(" [{}, {}]", shown(a, percent), shown(b, percent)));
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>",
                at_x(*x),
                at_y(*y),
                s.kind.colour(),
                escaped(&format!("{}, {x_label} {x}: {}{about}", s.name, shown(*y, percent)))
            );
        }
    }
    for (s, (x, y)) in series.iter().zip(places) {
        stroke(&mut svg, &format!("<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"", x + 24.0), s.kind);
        text(&mut svg, x + 30.0, y + 4.5, "start", "ink", &s.name);
    }
    svg.push_str("</svg>\n");
    Drawing { id: id.to_owned(), part, title, svg }
}

fn stroke(svg: &mut String, shape: &str, kind: Kind) {
    let class = if matches!(kind, Kind::Exact(_)) { "exact" } else { "line" };
    let _ = writeln!(
        svg,
        "{shape} class=\"{class}\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"/>",
        kind.colour(),
        kind.dashes()
    );
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

fn opening(width: f64, height: f64, title: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect class=\"paper\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n",
        escaped(title)
    );
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"16\" y=\"26\" font-size=\"15\" font-weight=\"600\" fill=\"#222222\">{}</text>",
        escaped(title)
    );
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, content: &str) {
    let fill = if class == "faint" { "#666666" } else { "#222222" };
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{}</text>",
        escaped(content)
    );
}

fn shown(x: f64, percent: bool) -> String {
    if percent { format!("{:.1} %", 100.0 * x) } else { super::measured::score(x) }
}

/// A number with as many decimals as its neighbours need.
fn trimmed(x: f64, step: f64) -> String {
    let decimals = (-step.log10()).ceil().clamp(0.0, 6.0) as usize;
    let x = if x.abs() < step / 1000.0 { 0.0 } else { x };
    format!("{x:.decimals$}")
}

/// A round distance between grid lines: 1, 2 or 5 times a power of ten, about six of them.
fn tick_step(range: f64) -> f64 {
    let rough = (range / 6.0).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough * 0.999).unwrap_or(10.0 * power)
}

/// Text that markup takes for nothing but text, in attributes too.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML has no room for these, however they are written.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
