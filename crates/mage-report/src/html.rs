//! How does the report look in a browser?
//!
//! One file that asks nothing of any network. What a model wrote travels as data and is shown as text: it can neither close
//! a tag nor open one.

use super::{Drawing, Report, Table, chart::escaped, measured::NONE};
use serde_json::json;
use std::fmt::Write;

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The parts of the page: name, tab, what is said where there is nothing.
const PARTS: [(&str, &str, &str); 7] = [
    ("table", "Table 1", ""),
    (
        "curves",
        "Curves",
        "There are no records of evaluations among the paths: `mage eval --records FILE --summary FILE.json` makes some.",
    ),
    ("learning", "Learning", "There are no training runs among the paths."),
    ("ablations", "Ablations", "There are no ablations among the records: `mage sweep ablation-reward` makes some."),
    ("opponents", "Opponents", "There are no opponents in these records."),
    ("moves", "States & actions", "There are no records to count states and actions in."),
    ("transcripts", "Transcripts", "There are no records to read."),
];

/// The whole page.
pub fn html(report: &Report, tables: &[Table], drawings: &[Drawing]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <title>mage report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let meta: u64 = report.entries.iter().map(|e| e.meta_episodes).sum();
    let _ = write!(
        out,
        "<header>\n<h1>mage report</h1>\n<p>{} on {}, {}; {}.</p>\n</header>\n<nav role=\"tablist\" aria-label=\"Parts of the report\">\n",
        count(report.entries.len(), "result"),
        count(panels(report), "panel"),
        count(meta as usize, "meta-episode"),
        count(report.runs.len(), "training run")
    );
    for (id, name, _) in PARTS {
        let _ = writeln!(
            out,
            "<button type=\"button\" role=\"tab\" id=\"tab-{id}\" aria-controls=\"{id}\" aria-selected=\"false\">{}</button>",
            escaped(name)
        );
    }
    out.push_str("</nav>\n<main>\n");
    for (id, name, nothing) in PARTS {
        let _ = write!(
            out,
            "<section role=\"tabpanel\" id=\"{id}\" aria-labelledby=\"tab-{id}\" tabindex=\"-1\">\n<h2>{}</h2>\n",
            escaped(name)
        );
        let before = out.len();
        figures(&mut out, &drawings.iter().filter(|d| d.part == id).collect::<Vec<_>>());
        tables.iter().filter(|t| t.part == id && !t.rows.is_empty()).for_each(|t| table(&mut out, t));
        match id {
            "moves" if report.entries.iter().any(|e| !e.moves.points.is_empty()) => out.push_str(MOVES),
            "transcripts" if !report.transcripts.is_empty() => out.push_str(TRANSCRIPTS),
            _ => {}
        }
        if out.len() == before {
            let _ = writeln!(out, "<p class=\"nothing\">{}</p>", escaped(nothing));
        }
        out.push_str("</section>\n");
    }
    out.push_str("</main>\n");
    if !report.notes.is_empty() {
        out.push_str("<footer>\n<h2>Notes</h2>\n<ul>\n");
        report.notes.iter().for_each(|n| _ = writeln!(out, "<li>{}</li>", escaped(n)));
        out.push_str("</ul>\n</footer>\n");
    }
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        data(report)
    );
    out
}

fn panels(report: &Report) -> usize {
    report.entries.iter().map(|e| &e.panel_hash).collect::<std::collections::BTreeSet<_>>().len()
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

fn figures(out: &mut String, drawings: &[&Drawing]) {
    if drawings.is_empty() {
        return;
    }
    out.push_str("<div class=\"figures\">\n");
    for drawing in drawings {
        let _ = write!(out, "<figure id=\"{}\">\n{}</figure>\n", escaped(&drawing.id), drawing.svg);
    }
    out.push_str("</div>\n");
}

fn table(out: &mut String, table: &Table) {
    let (id, paper) = (escaped(&table.id), |i: usize| table.header[i].ends_with("paper"));
    let _ = write!(
        out,
        "<h3 id=\"numbers-{id}\">{}</h3>\n<p class=\"note\">{}</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-label=\"{}\">\n<table class=\"of-{id}\">\n<thead><tr>",
        escaped(&table.title),
        escaped(&table.note),
        escaped(&table.title)
    );
    for (i, h) in table.header.iter().enumerate() {
        let class = if paper(i) { " class=\"paper\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escaped(h));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            let class = match (paper(i), cell == NONE) {
                (_, true) => " class=\"none\"",
                (true, _) => " class=\"paper\"",
                _ => "",
            };
            // The number first, what qualifies it smaller; of several in one cell, each by itself.
            let one = |cell: &str| match cell.split_once(" [") {
                Some((number, rest)) => format!("{} <small>[{}</small>", escaped(number), escaped(rest)),
                None => escaped(cell),
            };
            let shown = cell.split("; ").map(one).collect::<Vec<_>>().join("<br>");
            let _ = match i {
                0 => write!(out, "<th scope=\"row\">{shown}</th>"),
                _ => write!(out, "<td{class}>{shown}</td>"),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

/// What the script draws and lists. No `<` survives in it, so nothing in it can end the element it stands in.
fn data(report: &Report) -> String {
    let moves = report.entries.iter().filter(|e| !e.moves.points.is_empty()).map(|e| {
        json!({ "name": format!("{} — {} ({})", e.panel, e.name(), e.player), "moves": e.moves, "early_stop": e.early_stop })
    });
    let panel = |t: &super::Transcript| t.entry.map_or("training", |i| report.entries[i].panel.as_str());
    let transcripts = report.transcripts.iter().map(|t| json!({ "panel": panel(t), "won": t.won(), "transcript": t }));
    let data = json!({ "moves": moves.collect::<Vec<_>>(), "transcripts": transcripts.collect::<Vec<_>>() });
    data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

const MOVES: &str = r#"<p class="note">Every sphere is an action taken in a state, in an episode; its size says how often, within that
episode. States are numbered from the most frequent. Drag to turn, wheel or pinch to come nearer; or use the arrow keys, + and −.
A policy that settles leaves few and large spheres in later episodes.</p>
<div class="controls">
<label>Play of <select id="moves-entry"></select></label>
<label>Episodes up to <input id="moves-until" type="range" min="1" max="1" value="1" aria-describedby="moves-until-text"></label>
<output id="moves-until-text"></output>
</div>
<canvas id="moves-canvas" tabindex="0" role="img" aria-label="States and actions by episode; arrow keys turn the picture"></canvas>
<p id="moves-about" class="note" aria-live="polite"></p>
<p class="note">The same pictures, from this side, are in figures/moves-….svg and .png.</p>
"#;

const TRANSCRIPTS: &str = r#"<div class="controls">
<label>Panel <select id="t-panel"></select></label>
<label>Method <select id="t-method"></select></label>
<label>Opponent <select id="t-opponent"></select></label>
<label>Seed <select id="t-seed"></select></label>
<label>Ended <select id="t-won"><option value="">any way</option><option value="won">won at least once</option><option value="not">never won</option></select></label>
<label>Says <input id="t-text" type="search" placeholder="any text"></label>
</div>
<p id="t-count" class="note" aria-live="polite"></p>
<div id="t-list"></div>
<p><button type="button" id="t-more" hidden>Show more</button></p>
"#;
