//! `mage report`: what came out of it all?

use crate::{
    cli::ReportArgs,
    output::{BOLD, Output, styled},
    usage,
};
use anyhow::Context;
use mage_report::{Limits, Painter, csv, drawings, html, markdown, read, tables};
use serde_json::json;
use std::{fs, path::PathBuf};

pub(crate) fn run(args: &ReportArgs, out: &Output) -> anyhow::Result<()> {
    if let Some(missing) = args.paths.iter().find(|p| !p.exists()) {
        return Err(usage(format!("{} does not exist", missing.display())));
    }
    let mut paths = args.paths.clone();
    if paths.is_empty() {
        // Where `mage train` and `mage sweep` put things.
        paths = ["runs", "sweeps"].map(PathBuf::from).into_iter().filter(|p| p.exists()).collect();
        if paths.is_empty() {
            return Err(usage(
                "there is neither a folder runs nor one called sweeps here; name what is to be reported",
            ));
        }
    }
    let limits = Limits { transcripts: args.transcripts, ..Limits::default() };
    let report = out.waiting("reading", || read(&paths, limits))?;
    if report.is_empty() {
        let what = report.notes.join("\n");
        return Err(usage(format!("there is nothing to report here: no training run, no records, no summary\n{what}")));
    }
    let (tables, drawings) = (tables(&report), drawings(&report));
    let figures = args.out.join("figures");
    fs::create_dir_all(&figures).with_context(|| format!("cannot make {}", figures.display()))?;
    let mut files = Vec::new();
    let mut put = |name: &str, bytes: &[u8]| {
        files.push(name.to_owned());
        let path = args.out.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    put("report.html", html(&report, &tables, &drawings).as_bytes())?;
    put("report.md", markdown(&report, &tables, &drawings).as_bytes())?;
    put("report.csv", csv(&report).as_bytes())?;
    let painter = Painter::default();
    for drawing in &drawings {
        put(&format!("figures/{}.svg", drawing.id), drawing.svg.as_bytes())?;
        let picture = out.waiting("painting", || painter.png(&drawing.svg))?;
        put(&format!("figures/{}.png", drawing.id), &picture)?;
    }
    if out.json {
        return out.object(&json!({ "out": args.out, "files": files, "report": report }));
    }
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    out.line(format!(
        "{}, {}, {}: open {}",
        count(report.entries.len(), "result"),
        count(report.runs.len(), "run"),
        count(drawings.len(), "figure"),
        styled(BOLD, args.out.join("report.html").display())
    ))?;
    report.notes.iter().for_each(|note| out.hint(note));
    Ok(())
}
