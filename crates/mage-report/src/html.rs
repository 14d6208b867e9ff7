//! The report as a self-contained HTML page.
//!
//! The page loads nothing from a network. Model output is embedded as escaped JSON and inserted as text, so that it
//! cannot inject markup.

use super::{Figure, Report, ReportTable, chart::escape, interval_estimate::NONE};
use serde_json::json;
use std::fmt::Write;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Sections of the page: id, title. A section without content is left out.
const SECTIONS: [(&str, &str); 8] = [
    ("overview", "Overview"),
    ("paper", "Table 1"),
    ("training", "Training"),
    ("curves", "Evaluation"),
    ("ablations", "Ablations"),
    ("opponents", "Opponents"),
    ("actions", "Actions"),
    ("transcripts", "Transcripts"),
];

/// Renders the page.
pub fn html(report: &Report, tables: &[ReportTable], figures: &[Figure]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <title>mage report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let meta_episodes: u64 = report.results.iter().map(|e| e.meta_episodes).sum();
    let _ = write!(
        out,
        "<header>\n<h1>mage report</h1>\n<p>{} on {}, {}; {}.</p>\n</header>\n<nav aria-label=\"Sections of the report\">\n",
        count(report.results.len(), "result"),
        count(num_task_sets(report), "task set"),
        count(meta_episodes as usize, "meta-episode"),
        count(report.runs.len(), "training run")
    );
    let bodies = SECTIONS.map(|(id, name)| (id, name, section_body(id, report, tables, figures)));
    let sections = || bodies.iter().filter(|(.., body)| !body.is_empty());
    for (id, name, _) in sections() {
        let _ = writeln!(out, "<a href=\"#{id}\">{name}</a>");
    }
    out.push_str("</nav>\n<main>\n");
    for (id, name, body) in sections() {
        let _ = write!(out, "<section id=\"{id}\">\n<h2>{name}</h2>\n{body}</section>\n");
    }
    if sections().next().is_none() {
        out.push_str("<p>No training runs and no evaluations.</p>\n");
    }
    out.push_str("</main>\n");
    if !report.notes.is_empty() {
        out.push_str("<footer>\n<h2>Notes</h2>\n<ul>\n");
        report.notes.iter().for_each(|n| _ = writeln!(out, "<li>{}</li>", escape(n)));
        out.push_str("</ul>\n</footer>\n");
    }
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        data(report)
    );
    out
}

/// Figures, tables and transcripts of a section.
fn section_body(id: &str, report: &Report, tables: &[ReportTable], figures: &[Figure]) -> String {
    let mut out = String::new();
    write_figures(&mut out, &figures.iter().filter(|f| f.section == id).collect::<Vec<_>>());
    tables.iter().filter(|t| t.section == id && !t.rows.is_empty()).for_each(|t| write_table(&mut out, t));
    if id == "transcripts" && !report.transcripts.is_empty() {
        out.push_str(TRANSCRIPTS);
    }
    out
}

fn num_task_sets(report: &Report) -> usize {
    report.results.iter().map(|r| &r.task_set_hash).collect::<std::collections::BTreeSet<_>>().len()
}

fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

fn write_figures(out: &mut String, figures: &[&Figure]) {
    if figures.is_empty() {
        return;
    }
    out.push_str("<div class=\"figures\">\n");
    for figure in figures {
        let class = if figure.wide { " class=\"wide\"" } else { "" };
        let _ = write!(out, "<figure id=\"figure-{}\"{class}>\n{}</figure>\n", escape(&figure.id), figure.svg);
    }
    out.push_str("</div>\n");
}

fn write_table(out: &mut String, table: &ReportTable) {
    let id = escape(&table.id);
    // Columns of text are left-aligned, columns of numbers right-aligned.
    let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || "-≤≈<".contains(c));
    let class = |i: usize| match table.header[i].ends_with("paper") {
        true => "paper",
        false if table.rows.iter().any(|row| is_number(&row[i])) => "number",
        false if table.rows.iter().all(|row| row[i] == NONE) => "number",
        false => "text",
    };
    let classes: Vec<&str> = (0..table.header.len()).map(class).collect();
    let _ = write!(
        out,
        "<h3 id=\"table-{id}\">{}</h3>\n<p class=\"note\">{}</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-label=\"{}\">\n<table class=\"of-{id}\">\n<thead><tr>",
        escape(&table.title),
        escape(&table.caption),
        escape(&table.title)
    );
    for (h, class) in table.header.iter().zip(&classes) {
        let _ = write!(out, "<th scope=\"col\" class=\"{class}\">{}</th>", escape(h));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let class = format!("{}{}", classes[i], if cell == NONE { " none" } else { "" });
            // Intervals are in small type; several values in a cell are on separate lines.
            let format_value = |text: &str| match text.split_once(" [") {
                Some((value, rest)) => format!("{} <small>[{}</small>", escape(value), escape(rest)),
                None => escape(text),
            };
            let html = cell.split("; ").map(format_value).collect::<Vec<_>>().join("<br>");
            let _ = match i {
                0 => write!(out, "<th scope=\"row\">{html}</th>"),
                _ => write!(out, "<td class=\"{class}\">{html}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// Data of the script as JSON. `<` is escaped, so that no text can close the `script` element.
fn data(report: &Report) -> String {
    let task_set = |t: &super::Transcript| t.result.map_or("training", |i| report.results[i].task_set.as_str());
    let transcripts =
        report.transcripts.iter().map(|t| json!({ "task_set": task_set(t), "won": t.won(), "transcript": t }));
    let data = json!({ "transcripts": transcripts.collect::<Vec<_>>() }).to_string();
    data.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

const TRANSCRIPTS: &str = r#"<div class="controls">
<label>Task set <select id="t-task-set"></select></label>
<label>Method <select id="t-method"></select></label>
<label>Opponent <select id="t-opponent"></select></label>
<label>Seed <select id="t-seed"></select></label>
<label>Outcome <select id="t-won"><option value="">all</option><option value="won">won at least once</option><option value="not">never won</option></select></label>
<label>Contains <input id="t-text" type="search" placeholder="text"></label>
</div>
<p id="t-count" class="note" aria-live="polite"></p>
<div id="t-list"></div>
<p><button type="button" id="t-more" hidden>Show more</button></p>
"#;
