//! The report as CSV: one value per line, in long format.

use super::{CeilingCurves, IntervalEstimate, MethodResult, Report, SliceResult, paper_results, text::single_line};
use std::fmt::Write;

/// All values of the report's tables and figures.
pub fn csv(report: &Report) -> String {
    let columns = "env,task_set,method,ablation,policy,opponent,seat,compared_with,episode,metric,value,ci_low,ci_high,n,task_set_hash";
    let mut out = format!("{columns}\n");
    for r in &report.results {
        let key = key_of(r);
        for m in &r.curve {
            line(&mut out, &key, m.k, "pass_at_k", &m.pass);
            line(&mut out, &key, m.k, "draw_or_win_at_k", &m.draw_or_win);
            line(&mut out, &key, m.k, "won", &m.won);
            line(&mut out, &key, m.k, "score", &m.score);
        }
        let last = r.curve.last().map_or(1, |m| m.k);
        if let Some(curves) = &r.ceiling {
            ceilings(&mut out, &key, curves, last);
        }
        let mut slice = |key: &CsvKey<'_>, slice: &SliceResult| {
            line(&mut out, key, 1, "score", &slice.first_score);
            line(&mut out, key, last, "score", &slice.last_score);
            line(&mut out, key, last, "pass_at_k", &slice.pass);
        };
        r.opponents.iter().for_each(|o| slice(&CsvKey { opponent: &o.name, ..key }, o));
        r.seats.iter().for_each(|s| slice(&CsvKey { seat: &s.name, ..key }, s));
    }
    for c in &report.comparisons {
        let (first, second) = (&report.results[c.first], &report.results[c.second]);
        let compared_with = format!("{} ({})", second.name(), second.policy);
        let key = CsvKey { compared_with: &compared_with, ..key_of(first) };
        for p in &c.by_episode {
            for (name, rate) in [("pass_at_k", &p.pass_at_k), ("won", &p.won)] {
                line(&mut out, &key, p.k, &format!("{name}_difference"), &(&rate.difference).into());
                line(&mut out, &key, p.k, &format!("{name}_p_value"), &exact(rate.p_value, rate.tasks));
            }
            line(&mut out, &key, p.k, "score_difference", &(&p.score).into());
        }
    }
    for run in &report.runs {
        let policy = format!("run, seed {}", run.seed);
        let key = CsvKey {
            result: [&run.env, &run.path, &run.method, run.ablation.as_deref().unwrap_or(""), &policy],
            ..CsvKey::default()
        };
        for point in &run.eval_curve {
            let margin = 1.96 * point.se;
            let interval = Some((point.score - margin, point.score + margin));
            let estimate = IntervalEstimate { value: Some(point.score), interval, n: point.update };
            line(&mut out, &key, 0, "score_by_update", &estimate);
        }
    }
    for (method, _) in paper_results::TABLE {
        for (env, _) in paper_results::ENVS {
            let rate = paper_results::pass_rate(method, env).unwrap_or_default();
            let key = CsvKey { result: [env, env, method, "", "the paper, Qwen3-4B"], ..CsvKey::default() };
            line(&mut out, &key, paper_results::K, "pass_at_k", &exact(rate, u64::from(paper_results::TASKS)));
        }
    }
    out
}

/// The key columns of a line.
#[derive(Clone, Copy, Default)]
struct CsvKey<'a> {
    /// Environment, task set, method, ablation, policy.
    result: [&'a str; 5],
    task_set_hash: &'a str,
    opponent: &'a str,
    seat: &'a str,
    compared_with: &'a str,
}

fn key_of(r: &MethodResult) -> CsvKey<'_> {
    let result = [&r.env, &r.task_set, &r.method, r.ablation.as_deref().unwrap_or(""), &r.policy];
    CsvKey { result, task_set_hash: &r.task_set_hash, ..CsvKey::default() }
}

/// Upper limits. The interval of a Bayes-adaptive lower bound ends at its upper bound.
fn ceilings(out: &mut String, key: &CsvKey<'_>, curves: &CeilingCurves, last: u32) {
    for (k, value) in (1..).zip(&curves.memoryless) {
        line(out, key, k, "memoryless_optimum", &exact(*value, 0));
    }
    for (k, value) in (1..).zip(&curves.bayes_adaptive) {
        let interval = (curves.error > 0.0).then_some((*value, value + curves.error));
        line(out, key, k, "bayes_adaptive_optimum", &IntervalEstimate { interval, ..exact(*value, 0) });
    }
    for (k, value) in (1..).zip(&curves.pass_at_k) {
        line(out, key, k, "best_pass_at_k", &exact(*value, 0));
    }
    for (opponent, value) in &curves.best_response {
        line(out, &CsvKey { opponent, ..*key }, last, "best_response", &exact(*value, 0));
    }
}

fn exact(value: f64, n: u64) -> IntervalEstimate {
    IntervalEstimate { value: Some(value), interval: None, n }
}

fn line(out: &mut String, key: &CsvKey<'_>, episode: u32, metric: &str, estimate: &IntervalEstimate) {
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| x.to_string());
    let fields: Vec<String> =
        key.result.into_iter().chain([key.opponent, key.seat, key.compared_with]).map(quote).collect();
    let (low, high) = (number(estimate.interval.map(|i| i.0)), number(estimate.interval.map(|i| i.1)));
    let (fields, value, hash) = (fields.join(","), number(estimate.value), key.task_set_hash);
    let _ = writeln!(out, "{fields},{episode},{metric},{value},{low},{high},{},{hash}", estimate.n);
}

/// Quotes a field as in RFC 4180, without line breaks and control characters. Text that a spreadsheet would read as a
/// formula gets a leading apostrophe.
fn quote(text: &str) -> String {
    let text = single_line(text);
    let text = match text.trim_start().starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text,
    };
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn separators_and_formulas_are_quoted() {
        assert_eq!(quote("plain"), "plain");
        assert_eq!(quote("a, \"b\""), "\"a, \"\"b\"\"\"");
        for formula in ["=cmd()", "+1", "-1", "@SUM(1)", " =1"] {
            assert_eq!(quote(formula), format!("'{formula}"));
        }
        assert_eq!(quote("\u{1b}=1\u{0}\u{9b}"), "'=1", "control characters do not hide a formula");
        assert_eq!(quote("\t=1\n2"), "' =1 2");
    }
}
