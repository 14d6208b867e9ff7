//! How does the report read as text?

use super::{Drawing, Report, Table};
use std::fmt::Write;

/// All tables as Markdown; figures as links to their files in `figures/`.
pub fn markdown(report: &Report, tables: &[Table], drawings: &[Drawing]) -> String {
    let mut out = String::from("# Report\n");
    for table in tables {
        let _ = write!(out, "\n## {}\n\n{}\n\n", cell(&table.title), cell(&table.note));
        let _ = writeln!(out, "| {} |", table.header.iter().map(|h| cell(h)).collect::<Vec<_>>().join(" | "));
        let _ = writeln!(out, "|{}", "---|".repeat(table.header.len()));
        for row in &table.rows {
            let _ = writeln!(out, "| {} |", row.iter().map(|c| cell(c)).collect::<Vec<_>>().join(" | "));
        }
    }
    if !drawings.is_empty() {
        out.push_str("\n## Figures\n");
        for drawing in drawings {
            let _ = write!(out, "\n![{}](figures/{}.svg)\n", cell(&drawing.title), drawing.id);
        }
    }
    if !report.notes.is_empty() {
        out.push_str("\n## Notes\n\n");
        report.notes.iter().for_each(|note| _ = writeln!(out, "- {}", cell(note)));
    }
    out
}

/// Text that Markdown takes for nothing but text, on one line.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '#' | '\\' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(c),
        }
    }
    out
}
