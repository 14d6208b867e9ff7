//! `mage report`: report of runs and evaluations.

use crate::{
    cli::ReportArgs,
    output::{BOLD, Output, styled},
    text::shell_quote,
    usage,
};
use anyhow::Context;
use mage_report::{
    PngRenderer, ReportLimits, TrainingRun, csv, figures, html, load_report, markdown, tables, unevaluated_runs,
};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn run(args: &ReportArgs, out: &Output) -> anyhow::Result<()> {
    if let Some(missing) = args.paths.iter().find(|p| !p.exists()) {
        return Err(usage(format!("{} does not exist", missing.display())));
    }
    let mut paths = args.paths.clone();
    if paths.is_empty() {
        // The default output directories of `mage train` and `mage sweep`.
        paths = ["runs", "sweeps"].map(PathBuf::from).into_iter().filter(|p| p.exists()).collect();
        if paths.is_empty() {
            return Err(usage("neither runs/ nor sweeps/ exists here; name the paths to report"));
        }
    }
    let limits = ReportLimits { transcripts: args.transcripts, ..ReportLimits::default() };
    let mut report = out.spinner("reading", || load_report(&paths, limits))?;
    if report.is_empty() {
        let notes = report.notes.join("\n");
        return Err(usage(format!("found no training runs, trajectories or summaries\n{notes}")));
    }
    let advice = how_to_evaluate(&unevaluated_runs(&report));
    report.notes.extend(advice);
    let (tables, figures) = (tables(&report), figures(&report));
    let figure_dir = args.out.join("figures");
    fs::create_dir_all(&figure_dir).with_context(|| format!("cannot create {}", figure_dir.display()))?;
    let mut files = Vec::new();
    let mut write = |name: &str, bytes: &[u8]| {
        files.push(name.to_owned());
        let path = args.out.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write("report.html", html(&report, &tables, &figures).as_bytes())?;
    write("report.md", markdown(&report, &tables, &figures).as_bytes())?;
    write("report.csv", csv(&report).as_bytes())?;
    let renderer = PngRenderer::default();
    for figure in &figures {
        write(&format!("figures/{}.svg", figure.id), figure.svg.as_bytes())?;
        let png = out.spinner("rendering", || renderer.png(&figure.svg))?;
        write(&format!("figures/{}.png", figure.id), &png)?;
    }
    if out.json {
        return out.object(&json!({ "out": args.out, "files": files, "report": report }));
    }
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    out.line(format!(
        "{}, {}, {}: open {}",
        count(report.results.len(), "result"),
        count(report.runs.len(), "run"),
        count(figures.len(), "figure"),
        styled(BOLD, args.out.join("report.html").display())
    ))?;
    report.notes.iter().for_each(|note| out.hint(note));
    Ok(())
}

/// How to add the runs that Table 1 lacks.
fn how_to_evaluate(runs: &[&TrainingRun]) -> Option<String> {
    let first = runs.first()?;
    let noun = if runs.len() == 1 { "run" } else { "runs" };
    let path = |end: &str| shell_quote(Path::new(&format!("{}{end}", first.path)));
    Some(format!(
        "Table 1 lacks {} {noun} without an evaluation on the paper's task set. For example: mage eval --preset {} {} \
         --tasks 128 --episodes 10 --early-stop --trajectories {} --summary {}, then add these files to the report",
        runs.len(),
        first.env,
        path(""),
        path(".jsonl"),
        path(".json"),
    ))
}
