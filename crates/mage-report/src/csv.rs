//! How do programs get the numbers?

use super::{Entry, Lines, Measured, Part, Report, paper};
use std::fmt::Write;

/// One number a line, everything that is in the report's tables and figures.
pub fn csv(report: &Report) -> String {
    let columns =
        "env,panel,method,ablation,played_by,opponent,seat,against,episode,measure,value,low,high,n,panel_hash";
    let mut out = format!("{columns}\n");
    for e in &report.entries {
        let at = of(e);
        for p in &e.curve {
            line(&mut out, &at, p.k, "pass_at_k", &p.pass);
            line(&mut out, &at, p.k, "draw_or_win_at_k", &p.draw_or_win);
            line(&mut out, &at, p.k, "won", &p.won);
            line(&mut out, &at, p.k, "score", &p.score);
        }
        let last = e.curve.last().map_or(1, |p| p.k);
        if let Some(lines) = &e.ceiling {
            ceilings(&mut out, &at, lines, last);
        }
        let mut parts = |at: &Place<'_>, part: &Part| {
            line(&mut out, at, 1, "score", &part.first);
            line(&mut out, at, last, "score", &part.last);
            line(&mut out, at, last, "pass_at_k", &part.pass);
        };
        e.opponents.iter().for_each(|o| parts(&Place { opponent: &o.name, ..at }, o));
        e.seats.iter().for_each(|s| parts(&Place { seat: &s.name, ..at }, s));
    }
    for c in &report.comparisons {
        let (first, second) = (&report.entries[c.first], &report.entries[c.second]);
        let against = format!("{} ({})", second.name(), second.player);
        let at = Place { against: &against, ..of(first) };
        for p in &c.by_episode {
            for (name, rate) in [("pass_at_k", &p.pass_at_k), ("won", &p.won)] {
                line(&mut out, &at, p.k, &format!("{name}_difference"), &(&rate.difference).into());
                line(&mut out, &at, p.k, &format!("{name}_p_value"), &exact(rate.p_value, rate.tasks));
            }
            line(&mut out, &at, p.k, "score_difference", &(&p.score).into());
        }
    }
    for run in &report.runs {
        let player = format!("run, seed {}", run.seed);
        let at = Place {
            entry: [&run.env, &run.path, &run.method, run.ablation.as_deref().unwrap_or(""), &player],
            ..Place::default()
        };
        for j in &run.panel {
            let reach = 1.96 * j.se;
            let interval = Some((j.score - reach, j.score + reach));
            let measured = Measured { value: Some(j.score), interval, n: j.update };
            line(&mut out, &at, 0, "panel_by_update", &measured);
        }
    }
    for (method, _) in paper::TABLE {
        for (env, _) in paper::ENVS {
            let share = paper::share(method, env).unwrap_or_default();
            let at = Place { entry: [env, env, method, "", "the paper, Qwen3-4B"], ..Place::default() };
            line(&mut out, &at, paper::K, "pass_at_k", &exact(share, u64::from(paper::TASKS)));
        }
    }
    out
}

/// What a number is of.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    /// Environment, panel, method, ablation, who played.
    entry: [&'a str; 5],
    /// The panel's hash.
    panel: &'a str,
    opponent: &'a str,
    seat: &'a str,
    against: &'a str,
}

fn of(e: &Entry) -> Place<'_> {
    let entry = [&e.env, &e.panel, &e.method, e.ablation.as_deref().unwrap_or(""), &e.player];
    Place { entry, panel: &e.panel_hash, ..Place::default() }
}

/// What is possible. A best learner that may be better than shown has that as its interval.
fn ceilings(out: &mut String, at: &Place<'_>, lines: &Lines, last: u32) {
    for (k, value) in (1..).zip(&lines.memoryless) {
        line(out, at, k, "best_memoryless", &exact(*value, 0));
    }
    for (k, value) in (1..).zip(&lines.learner) {
        let interval = (lines.error > 0.0).then_some((*value, value + lines.error));
        line(out, at, k, "best_learner", &Measured { interval, ..exact(*value, 0) });
    }
    for (k, value) in (1..).zip(&lines.pass_at) {
        line(out, at, k, "best_pass_at_k", &exact(*value, 0));
    }
    for (opponent, value) in &lines.best_response {
        line(out, &Place { opponent, ..*at }, last, "best_response", &exact(*value, 0));
    }
}

fn exact(value: f64, n: u64) -> Measured {
    Measured { value: Some(value), interval: None, n }
}

fn line(out: &mut String, at: &Place<'_>, episode: u32, measure: &str, m: &Measured) {
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| x.to_string());
    let texts: Vec<String> = at.entry.into_iter().chain([at.opponent, at.seat, at.against]).map(quoted).collect();
    let (low, high) = (number(m.interval.map(|i| i.0)), number(m.interval.map(|i| i.1)));
    let (texts, value, panel) = (texts.join(","), number(m.value), at.panel);
    let _ = writeln!(out, "{texts},{episode},{measure},{value},{low},{high},{},{panel}", m.n);
}

/// A field as RFC 4180 has it. A text that a spreadsheet would take for a formula gets a quote in front of it.
fn quoted(text: &str) -> String {
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("=cmd()"), "'=cmd()");
    }
}
