//! Text tables and number formats.

use crate::output::{BOLD, styled};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// A table of numbers: the first column left-aligned, the others right-aligned.
pub(crate) fn table<R>(header: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    layout(header, rows, CellAlignment::Right)
}

/// Lays out a table within the width of the terminal, with a bold header.
fn layout<R>(header: &[&str], rows: R, alignment: CellAlignment) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    table.add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if i == 0 { CellAlignment::Left } else { alignment });
    }
    // Some terminals report a width of 0.
    if table.width().is_some_and(|w| w < 20) {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    let text = table.to_string();
    match text.split_once('\n') {
        Some((head, body)) => format!("{}\n{}", styled(BOLD, head.trim_end()), trim_lines(body)),
        None => styled(BOLD, text.trim_end()),
    }
}

fn trim_lines(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// A signed score with three decimals.
pub(crate) fn score(x: f64) -> String {
    // Values that round to zero have no sign.
    let x = if x.abs() < 0.0005 { 0.0 } else { x };
    format!("{x:.3}")
}

/// A table of texts, all columns left-aligned.
pub(crate) fn columns<R>(header: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    layout(header, rows, CellAlignment::Left)
}

/// A duration in seconds, minutes or hours.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
