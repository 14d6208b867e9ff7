//! How do programs get the numbers?

use super::{Measured, Report, paper};
use std::fmt::Write;

/// One number a line, everything that is in the report's tables and figures.
pub fn csv(report: &Report) -> String {
    let mut out = String::from("env,panel,method,ablation,played_by,opponent,episode,measure,value,low,high,n\n");
    for e in &report.entries {
        let place = [&e.env, &e.panel, &e.method, e.ablation.as_deref().unwrap_or(""), &e.player];
        for p in &e.curve {
            line(&mut out, &place, "", p.k, "pass_at_k", &p.pass);
            line(&mut out, &place, "", p.k, "draw_or_win_at_k", &p.draw_or_win);
            line(&mut out, &place, "", p.k, "won", &p.won);
            line(&mut out, &place, "", p.k, "score", &p.score);
        }
        for (name, values) in e.ceiling.iter().flat_map(|c| [("memoryless", &c.memoryless), ("learner", &c.learner)]) {
            for (k, value) in (1..).zip(values) {
                line(&mut out, &place, "", k, &format!("best_{name}"), &exact(*value, 0));
            }
        }
        for (k, value) in (1..).zip(&e.pass_ceiling) {
            line(&mut out, &place, "", k, "best_pass_at_k", &exact(*value, 0));
        }
        let last = e.curve.last().map_or(1, |p| p.k);
        for o in &e.opponents {
            line(&mut out, &place, &o.name, 1, "score", &o.first);
            line(&mut out, &place, &o.name, last, "score", &o.last);
        }
    }
    for run in &report.runs {
        let player = format!("run, seed {}", run.seed);
        let place = [&run.env, &run.path, &run.method, run.ablation.as_deref().unwrap_or(""), &player];
        for j in &run.panel {
            let reach = 1.96 * j.se;
            let interval = Some((j.score - reach, j.score + reach));
            let measured = Measured { value: Some(j.score), interval, n: j.update };
            line(&mut out, &place, "", 0, "panel_by_update", &measured);
        }
    }
    for (method, _) in paper::TABLE {
        for (env, _) in paper::ENVS {
            let share = paper::share(method, env).unwrap_or_default();
            let place = [env, env, method, "", "the paper, Qwen3-4B"];
            line(&mut out, &place, "", 10, "pass_at_k", &exact(share, u64::from(paper::TASKS)));
        }
    }
    out
}

fn exact(value: f64, n: u64) -> Measured {
    Measured { value: Some(value), interval: None, n }
}

fn line(out: &mut String, place: &[&str; 5], opponent: &str, episode: u32, measure: &str, m: &Measured) {
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| x.to_string());
    let texts: Vec<String> = place.iter().copied().chain([opponent]).map(quoted).collect();
    let (low, high) = (number(m.interval.map(|i| i.0)), number(m.interval.map(|i| i.1)));
    let _ = writeln!(out, "{},{episode},{measure},{},{low},{high},{}", texts.join(","), number(m.value), m.n);
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
