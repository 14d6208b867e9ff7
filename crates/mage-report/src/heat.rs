//! Against whom does it go well?
//!
//! Methods down, opponents across, in colours that mean the same on every map of one unit.

use super::{
    Drawing, Entry, Measured, Part,
    chart::{WIDTH, escaped, opening, text},
    measured::NONE,
};
use std::{collections::BTreeSet, fmt::Write};

/// What a map shows.
struct Shown {
    what: String,
    of: fn(&Part) -> Measured,
    /// Where colours begin and end.
    scale: (f64, f64),
    form: fn(f64) -> String,
}

/// The scores of the last episode; where play stopped at the first win, the share of tasks won, which is of all tasks.
fn shown(of: &[&Entry], all: &[Entry]) -> Option<Shown> {
    if of.iter().any(|e| e.early_stop) {
        let k = of.iter().map(|e| e.episodes).max().unwrap_or(0);
        let (what, form) = (format!("won within {k} episodes"), |x: f64| format!("{:.0} %", 100.0 * x));
        return Some(Shown { what, of: |p| p.pass, scale: (0.0, 1.0), form });
    }
    // Maps in one unit share their colours.
    let unit = &of.first()?.unit;
    let same = all.iter().filter(|e| e.unit == *unit && !e.early_stop);
    let values = same.flat_map(|e| e.opponents.iter().filter_map(|o| o.last.value));
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)));
    let scale = if low < high { (low, high) } else { (low - 0.5, low + 0.5) };
    (low <= high).then(|| Shown {
        what: "score in the last episode".to_owned(),
        of: |p| p.last,
        scale,
        form: |x| format!("{:.2}", if x.abs() < 0.005 { 0.0 } else { x }),
    })
}

/// The map of a panel, where there are opponents; `all` are the entries of the report.
pub(super) fn map(panel: &str, hash: &str, of: &[&Entry], all: &[Entry]) -> Option<Drawing> {
    let names: BTreeSet<&str> = of.iter().flat_map(|e| e.opponents.iter().map(|o| o.name.as_str())).collect();
    let shown = shown(of, all).filter(|_| !names.is_empty())?;
    let label = |n: usize| 24.0 + 7.2 * n as f64;
    let left = label(of.iter().map(|e| e.name().chars().count()).max().unwrap_or(0));
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let (wide, tall) = (label(longest).max(74.0), 34.0);
    let title = format!("{panel}: {}, by opponent", shown.what);
    let width = (left + wide * names.len() as f64 + 16.0).max(32.0 + 9.2 * title.chars().count() as f64).max(WIDTH);
    let below = 76.0 + tall * of.len() as f64;
    let mut svg = opening(width, below + 62.0, &title);
    for (i, name) in names.iter().enumerate() {
        text(&mut svg, left + wide * (i as f64 + 0.5), 66.0, "middle", "ink", name);
    }
    let (low, high) = shown.scale;
    for (row, e) in of.iter().enumerate() {
        let y = 76.0 + tall * row as f64;
        text(&mut svg, left - 10.0, y + tall / 2.0 + 4.5, "end", "ink", &e.name());
        for (i, name) in names.iter().enumerate() {
            let found = e.opponents.iter().find(|o| o.name == *name).map(shown.of).filter(|m| m.value.is_some());
            let x = left + wide * i as f64;
            let (fill, ink, label, about) = match found.and_then(|m| Some((m.value?, m.n))) {
                None => ("#eeeeee".to_owned(), "#555555", NONE.to_owned(), "not played".to_owned()),
                Some((v, tasks)) => {
                    let share = ((v - low) / (high - low)).clamp(0.0, 1.0);
                    let ink = if share > 0.55 { "#ffffff" } else { "#222222" };
                    (blend(share), ink, (shown.form)(v), format!("{tasks} tasks"))
                }
            };
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\" fill=\"{fill}\"><title>{}</title></rect>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
                wide - 3.0,
                tall - 3.0,
                escaped(&format!("{}, {name}: {about}", e.name())),
                x + wide / 2.0 - 1.5,
                y + tall / 2.0 + 3.0
            );
        }
    }
    legend(&mut svg, left, below + 16.0, &shown, of.first().map_or("", |e| e.unit.as_str()));
    svg.push_str("</svg>\n");
    Some(Drawing { id: format!("opponents-{hash}"), part: "opponents", title, svg })
}

/// What the colours mean.
fn legend(svg: &mut String, x: f64, y: f64, shown: &Shown, unit: &str) {
    const STEPS: usize = 24;
    let (low, high) = shown.scale;
    for i in 0..STEPS {
        let colour = blend(i as f64 / (STEPS - 1) as f64);
        let at = x + 9.0 * i as f64;
        let _ = writeln!(svg, "<rect x=\"{at:.1}\" y=\"{y:.1}\" width=\"9.3\" height=\"12\" fill=\"{colour}\"/>");
    }
    let end = x + 9.0 * STEPS as f64;
    text(svg, x, y + 28.0, "start", "faint", &(shown.form)(low));
    text(svg, end, y + 28.0, "end", "faint", &(shown.form)(high));
    let unit = if shown.scale == (0.0, 1.0) && shown.what.starts_with("won") { "share of tasks" } else { unit };
    text(svg, end + 14.0, y + 11.0, "start", "faint", unit);
}

/// From pale sand to deep blue.
fn blend(share: f64) -> String {
    let mix = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(246.0, 23.0), mix(236.0, 78.0), mix(214.0, 132.0))
}
