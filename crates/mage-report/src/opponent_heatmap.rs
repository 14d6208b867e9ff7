//! Heatmap of methods (rows) and opponents (columns), with a common colour scale for all heatmaps of one unit.

use super::{
    Figure, IntervalEstimate, MethodResult, SliceResult,
    chart::{WIDTH, escape, svg_header, text},
    interval_estimate::NONE,
};
use std::{collections::BTreeSet, fmt::Write};

/// The metric of a heatmap.
struct HeatmapMetric {
    name: String,
    value: fn(&SliceResult) -> IntervalEstimate,
    /// Values of the first and last colour.
    scale: (f64, f64),
    format: fn(f64) -> String,
}

/// The score of the last episode; with early stopping Pass@k, which covers all tasks.
fn metric(results: &[&MethodResult], all: &[MethodResult]) -> Option<HeatmapMetric> {
    if results.iter().any(|r| r.early_stop) {
        let k = results.iter().map(|r| r.episodes).max().unwrap_or(0);
        let (name, format) = (format!("won within {k} episodes"), |x: f64| format!("{:.0} %", 100.0 * x));
        return Some(HeatmapMetric { name, value: |s| s.pass, scale: (0.0, 1.0), format });
    }
    // Heatmaps of one unit share the colour scale.
    let unit = &results.first()?.unit;
    let same_unit = all.iter().filter(|r| r.unit == *unit && !r.early_stop);
    let values = same_unit.flat_map(|r| r.opponents.iter().filter_map(|o| o.last_score.value));
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let scale = if low < high { (low, high) } else { (low - 0.5, low + 0.5) };
    (low <= high).then(|| HeatmapMetric {
        name: "score in the last episode".to_owned(),
        value: |s| s.last_score,
        scale,
        format: |x| format!("{:.2}", if x.abs() < 0.005 { 0.0 } else { x }),
    })
}

/// The heatmap of a task set, if it has opponents. `all` are the results of the report.
pub(super) fn heatmap(task_set: &str, hash: &str, results: &[&MethodResult], all: &[MethodResult]) -> Option<Figure> {
    let names: BTreeSet<&str> = results.iter().flat_map(|r| r.opponents.iter().map(|o| o.name.as_str())).collect();
    let metric = metric(results, all).filter(|_| !names.is_empty())?;
    let label = |n: usize| 24.0 + 7.2 * n as f64;
    let left = label(results.iter().map(|r| r.name().chars().count()).max().unwrap_or(0));
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let (cell_width, cell_height) = (label(longest).max(74.0), 34.0);
    let title = format!("{task_set}: {}, by opponent", metric.name);
    let width =
        (left + cell_width * names.len() as f64 + 16.0).max(32.0 + 9.2 * title.chars().count() as f64).max(WIDTH);
    let bottom = 76.0 + cell_height * results.len() as f64;
    let mut svg = svg_header(width, bottom + 62.0, &title);
    for (i, name) in names.iter().enumerate() {
        text(&mut svg, left + cell_width * (i as f64 + 0.5), 66.0, "middle", "ink", name);
    }
    let (low, high) = metric.scale;
    for (row, r) in results.iter().enumerate() {
        let y = 76.0 + cell_height * row as f64;
        text(&mut svg, left - 10.0, y + cell_height / 2.0 + 4.5, "end", "ink", &r.name());
        for (i, name) in names.iter().enumerate() {
            let estimate = r.opponents.iter().find(|o| o.name == *name).map(metric.value).filter(|e| e.value.is_some());
            let x = left + cell_width * i as f64;
            let (fill, ink, label, tooltip) = match estimate.and_then(|e| Some((e.value?, e.n))) {
                None => ("#eeeeee".to_owned(), "#555555", NONE.to_owned(), "no data".to_owned()),
                Some((v, tasks)) => {
                    let fraction = ((v - low) / (high - low)).clamp(0.0, 1.0);
                    let ink = if fraction > 0.55 { "#ffffff" } else { "#222222" };
                    (colour_at(fraction), ink, (metric.format)(v), format!("{tasks} tasks"))
                }
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" fill=\"{fill}\"><title>{}</title></rect>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                cell_width - 3.0,
                cell_height - 3.0,
                escape(&format!("{}, {name}: {tooltip}", r.name())),
                x + cell_width / 2.0 - 1.5,
                y + cell_height / 2.0 + 3.0
            );
        }
    }
    legend(&mut svg, left, bottom + 16.0, &metric, results.first().map_or("", |r| r.unit.as_str()));
    svg.push_str("</svg>\n");
    Some(Figure { id: format!("opponents-{hash}"), section: "opponents", title, svg })
}

/// The colour scale with its range and unit.
fn legend(svg: &mut String, x: f64, y: f64, metric: &HeatmapMetric, unit: &str) {
    const STEPS: usize = 24;
    let (low, high) = metric.scale;
    for i in 0..STEPS {
        let colour = colour_at(i as f64 / (STEPS - 1) as f64);
        let at = x + 9.0 * i as f64;
        let _ = writeln!(svg, "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"9.3\" height=\"12\" fill=\"{colour}\"/>");
    }
    let end = x + 9.0 * STEPS as f64;
    text(svg, x, y + 28.0, "start", "faint", &(metric.format)(low));
    text(svg, end, y + 28.0, "end", "faint", &(metric.format)(high));
    let unit = if metric.scale == (0.0, 1.0) && metric.name.starts_with("won") { "rate of tasks" } else { unit };
    text(svg, end + 14.0, y + 11.0, "start", "faint", unit);
}

/// Colour at a fraction of the scale, from pale sand to deep blue.
fn colour_at(fraction: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * fraction).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(246.0, 23.0), mix(236.0, 78.0), mix(214.0, 132.0))
}
