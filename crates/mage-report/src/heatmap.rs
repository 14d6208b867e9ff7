//! Heatmaps with a label in every cell, as SVG.

use super::{
    Figure,
    chart::{WIDTH, escape, svg_header, text},
    interval_estimate::NONE,
};
use std::fmt::Write;

/// A heatmap.
pub(super) struct Heatmap<'a> {
    pub(super) title: &'a str,
    /// Names of the columns.
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<HeatmapRow>,
    /// Values of the first and the last colour.
    pub(super) scale: (f64, f64),
    /// Text of a value.
    pub(super) format: fn(f64) -> String,
    /// Unit of the values, below the colour scale.
    pub(super) unit: &'a str,
}

/// A row of a heatmap.
pub(super) struct HeatmapRow {
    pub(super) name: String,
    /// Value of each column with its tooltip; `None` without data.
    pub(super) cells: Vec<Option<(f64, String)>>,
}

/// Height of a row.
const ROW: f64 = 34.0;
/// Distance of the first row from the top.
const TOP: f64 = 76.0;

/// Renders the heatmap to a figure.
pub(super) fn figure(id: &str, section: &'static str, heatmap: &Heatmap<'_>) -> Figure {
    let label = |names: &mut dyn Iterator<Item = &String>| {
        24.0 + 7.2 * names.map(|name| name.chars().count()).max().unwrap_or(0) as f64
    };
    let left = label(&mut heatmap.rows.iter().map(|row| &row.name));
    let cell = label(&mut heatmap.columns.iter()).max(62.0);
    let text_width = 32.0 + 9.2 * heatmap.title.chars().count().max(heatmap.unit.chars().count()) as f64;
    let width = (left + cell * heatmap.columns.len() as f64 + 16.0).max(text_width).max(WIDTH);
    let bottom = TOP + ROW * heatmap.rows.len() as f64;
    let mut svg = svg_header(width, bottom + 80.0, heatmap.title);
    let at_x = |column: usize| left + cell * column as f64;
    for (i, name) in heatmap.columns.iter().enumerate() {
        text(&mut svg, at_x(i) + cell / 2.0, TOP - 10.0, "middle", "ink", name);
    }
    let (low, high) = heatmap.scale;
    for (row, y) in heatmap.rows.iter().zip((0..).map(|n| TOP + ROW * f64::from(n))) {
        text(&mut svg, left - 10.0, y + ROW / 2.0 + 4.5, "end", "ink", &row.name);
        for (i, (value, column)) in row.cells.iter().zip(&heatmap.columns).enumerate() {
            let (fill, ink, label, tooltip) = match value {
                None => ("#eeeeee".to_owned(), "#555555", NONE.to_owned(), "no data"),
                Some((value, tooltip)) => {
                    let fraction = ((value - low) / (high - low)).clamp(0.0, 1.0);
                    let ink = if fraction > 0.55 { "#ffffff" } else { "#222222" };
                    (colour_at(fraction), ink, (heatmap.format)(*value), tooltip.as_str())
                }
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" fill=\"{fill}\"><title>{}</title></rect>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                at_x(i),
                cell - 3.0,
                ROW - 3.0,
                escape(&format!("{}, {column}: {tooltip}", row.name)),
                at_x(i) + cell / 2.0 - 1.5,
                y + ROW / 2.0 + 3.0
            );
        }
    }
    legend(&mut svg, left, bottom + 16.0, heatmap);
    svg.push_str("</svg>\n");
    Figure { id: id.to_owned(), section, title: heatmap.title.to_owned(), svg, wide: width > 1.2 * WIDTH }
}

/// The colour scale with its range and unit.
fn legend(svg: &mut String, x: f64, y: f64, heatmap: &Heatmap<'_>) {
    const STEPS: usize = 24;
    for i in 0..STEPS {
        let colour = colour_at(i as f64 / (STEPS - 1) as f64);
        let at = x + 9.0 * i as f64;
        let _ = writeln!(svg, "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"9.3\" height=\"12\" fill=\"{colour}\"/>");
    }
    let end = x + 9.0 * STEPS as f64;
    text(svg, x, y + 28.0, "start", "faint", &(heatmap.format)(heatmap.scale.0));
    text(svg, end, y + 28.0, "end", "faint", &(heatmap.format)(heatmap.scale.1));
    text(svg, 16.0, y + 50.0, "start", "faint", heatmap.unit);
}

/// Colour at a fraction of the scale, from pale sand to deep blue.
fn colour_at(fraction: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * fraction).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(246.0, 23.0), mix(236.0, 78.0), mix(214.0, 132.0))
}
