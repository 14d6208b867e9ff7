//! The report as Markdown.

use super::{Figure, Report, ReportTable, text::single_line};
use std::fmt::Write;

/// All tables; figures as links to their files in `figures/`.
pub fn markdown(report: &Report, tables: &[ReportTable], figures: &[Figure]) -> String {
    let mut out = String::from("# Report\n");
    for table in tables {
        let _ = write!(out, "\n## {}\n\n{}\n\n", escape(&table.title), escape(&table.caption));
        let _ = writeln!(out, "| {} |", table.header.iter().map(|h| escape(h)).collect::<Vec<_>>().join(" | "));
        let _ = writeln!(out, "|{}", "---|".repeat(table.header.len()));
        for row in &table.rows {
            let _ = writeln!(out, "| {} |", row.iter().map(|c| escape(c)).collect::<Vec<_>>().join(" | "));
        }
    }
    if !figures.is_empty() {
        out.push_str("\n## Figures\n");
        for figure in figures {
            let _ = write!(out, "\n![{}](figures/{}.svg)\n", escape(&figure.title), figure.id);
        }
    }
    if !report.notes.is_empty() {
        out.push_str("\n## Notes\n\n");
        report.notes.iter().for_each(|note| _ = writeln!(out, "- {}", escape(note)));
    }
    out
}

/// Escapes Markdown and HTML syntax, without line breaks and control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in single_line(text).chars() {
        match c {
            '|' | '*' | '_' | '`' | '[' | ']' | '#' | '\\' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(c),
        }
    }
    out
}
