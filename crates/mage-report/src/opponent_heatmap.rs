//! Heatmap of methods (rows) and opponents (columns), with a common colour scale for all heatmaps of one unit.

use super::{
    Figure, IntervalEstimate, MethodResult, SliceResult,
    heatmap::{self, Heatmap, HeatmapRow},
};
use std::collections::BTreeSet;

/// The metric of a heatmap.
struct HeatmapMetric<'a> {
    name: String,
    unit: &'a str,
    value: fn(&SliceResult) -> IntervalEstimate,
    /// Values of the first and last colour.
    scale: (f64, f64),
    format: fn(f64) -> String,
}

/// The score of the last episode; with early stopping Pass@k, which covers all tasks.
fn metric<'a>(results: &[&'a MethodResult], all: &[MethodResult]) -> Option<HeatmapMetric<'a>> {
    if results.iter().any(|r| r.early_stop) {
        let k = results.iter().map(|r| r.episodes).max().unwrap_or(0);
        return Some(HeatmapMetric {
            name: format!("won within {k} episodes"),
            unit: "rate of tasks",
            value: |s| s.pass,
            scale: (0.0, 1.0),
            format: |x| format!("{:.0} %", 100.0 * x),
        });
    }
    // Heatmaps of one unit share the colour scale.
    let unit = &results.first()?.unit;
    let same_unit = all.iter().filter(|r| r.unit == *unit && !r.early_stop);
    let values = same_unit.flat_map(|r| r.opponents.iter().filter_map(|o| o.last_score.value));
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let scale = if low < high { (low, high) } else { (low - 0.5, low + 0.5) };
    (low <= high).then(|| HeatmapMetric {
        name: "score in the last episode".to_owned(),
        unit,
        value: |s| s.last_score,
        scale,
        format: |x| format!("{:.2}", if x.abs() < 0.005 { 0.0 } else { x }),
    })
}

/// The heatmap of a task set, if it has opponents. `all` are the results of the report.
pub(super) fn heatmap(task_set: &str, results: &[&MethodResult], all: &[MethodResult]) -> Option<Figure> {
    let names: BTreeSet<&str> = results.iter().flat_map(|r| r.opponents.iter().map(|o| o.name.as_str())).collect();
    let metric = metric(results, all).filter(|_| !names.is_empty())?;
    let cell = |r: &MethodResult, name: &str| {
        let estimate = r.opponents.iter().find(|o| o.name == name).map(metric.value)?;
        Some((estimate.value?, format!("{} tasks", estimate.n)))
    };
    let row =
        |r: &&MethodResult| HeatmapRow { name: r.name(), cells: names.iter().map(|name| cell(r, name)).collect() };
    let title = format!("{task_set}: {}, by opponent", metric.name);
    let heatmap = Heatmap {
        title: &title,
        columns: names.iter().map(|name| (*name).to_owned()).collect(),
        rows: results.iter().map(row).collect(),
        scale: metric.scale,
        format: metric.format,
        unit: metric.unit,
    };
    Some(heatmap::figure(&format!("opponents {task_set}"), "opponents", &heatmap))
}
