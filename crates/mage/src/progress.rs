//! Progress of a training run: a bar on a terminal, a line every few seconds otherwise, events with `--json`.

use crate::{
    output::Output,
    table::{duration, grouped, rounded, score},
};
use indicatif::ProgressBar;
use mage_core::MeanEstimate;
use mage_train::train::TrainEvent;
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Time between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Weight of the last update in the moving average of the update time.
const SMOOTHING: f64 = 0.1;

/// Displays the events of a training run.
pub(crate) struct TrainingProgress {
    out: Output,
    bar: Option<ProgressBar>,
    /// Label of the bar.
    label: &'static str,
    terminal: bool,
    last_line: Instant,
    updates: u64,
    /// Bayes-adaptive optimum by episode, if known.
    bayes_adaptive: Option<Vec<f64>>,
    /// Moving average of the seconds per update.
    seconds_per_update: Option<f64>,
}

impl TrainingProgress {
    pub(crate) fn new(out: Output) -> Self {
        TrainingProgress {
            out,
            bar: None,
            label: "",
            terminal: std::io::stderr().is_terminal(),
            last_line: Instant::now(),
            updates: 0,
            bayes_adaptive: None,
            seconds_per_update: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.label = "";
    }

    fn bar(&mut self, label: &'static str, total: u64, position: u64) -> &ProgressBar {
        if self.label != label {
            self.clear();
            self.label = label;
        }
        self.bar.get_or_insert_with(|| {
            let bar = match label {
                TRAINING => self.out.progress_with_message(total, TRAINING),
                _ => self.out.progress(total, label),
            };
            bar.set_position(position);
            bar.reset_eta();
            bar
        })
    }

    pub(crate) fn show(&mut self, event: TrainEvent) {
        if self.out.json {
            if !matches!(event, TrainEvent::Evaluating { .. }) {
                let _ = self.out.object(&event);
            }
            return;
        }
        match event {
            TrainEvent::Started { run, parameters, start_update, updates, memoryless, bayes_adaptive } => {
                self.updates = updates;
                let completed = if start_update == 0 { String::new() } else { format!(", {start_update} completed") };
                self.out.hint(format!("{run}: {} parameters, {updates} updates{completed}", grouped(parameters)));
                if let (Some(memoryless), Some(best)) = (&memoryless, &bayes_adaptive) {
                    let scores = |v: &[f64]| v.iter().map(|s| score(*s)).collect::<Vec<_>>().join("  ");
                    let (memoryless, best) = (scores(memoryless), scores(best));
                    self.out.hint(format!(
                        "upper bounds by episode: {memoryless} memoryless, {best} Bayes-adaptive optimum"
                    ));
                }
                self.bayes_adaptive = bayes_adaptive;
            }
            TrainEvent::Warmstart { step, steps, loss } => {
                let bar = self.bar("warm start", steps, step);
                bar.set_position(step);
                if step == steps {
                    self.clear();
                    self.out.hint(format!("warm start: {steps} steps, loss {loss:.3}"));
                }
            }
            TrainEvent::Evaluating { done, tasks } => {
                self.bar(EVALUATION, tasks as u64, done as u64).set_position(done as u64);
            }
            TrainEvent::Evaluated { update, memory, result } => {
                if self.label == EVALUATION {
                    self.clear();
                }
                let kind = if result.exact { "exact expectation" } else { "sampled" };
                let without_memory = if memory { "" } else { ", without memory" };
                let curve: Vec<String> = result.score.iter().map(estimate).collect();
                self.out.hint(format!(
                    "after {update} updates: score by episode {}, {kind}{without_memory}",
                    curve.join("  ")
                ));
            }
            TrainEvent::Updated { update, metrics, timing } => self.updated(update, &metrics, &timing),
            TrainEvent::Saved { .. } => {}
            TrainEvent::Warning { text } => self.out.warn(text),
        }
    }

    fn updated(&mut self, update: u64, metrics: &BTreeMap<String, f64>, timing: &BTreeMap<String, f64>) {
        let seconds = timing.get("total").copied().unwrap_or(f64::NAN);
        let mean = self.seconds_per_update.map_or(seconds, |mean| mean + SMOOTHING * (seconds - mean));
        self.seconds_per_update = Some(mean);
        let left = duration(mean * self.updates.saturating_sub(update) as f64);
        let text = update_text(metrics, timing, self.bayes_adaptive.as_deref());
        let updates = self.updates;
        let bar = self.bar(TRAINING, updates, update - 1);
        bar.set_position(update);
        bar.set_message(format!("{left} left, {text}"));
        if !self.terminal && self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            self.out.hint(format!("update {update} of {updates}, {left} left: {text}"));
        }
    }
}

const TRAINING: &str = "training";
const EVALUATION: &str = "evaluating";

/// Metrics of an update in one line.
fn update_text(
    metrics: &BTreeMap<String, f64>,
    timing: &BTreeMap<String, f64>,
    bayes_adaptive: Option<&[f64]>,
) -> String {
    let at = |key: &str| metrics.get(key).copied().unwrap_or(f64::NAN);
    let seconds = timing.get("total").copied().unwrap_or(f64::NAN);
    let scores: Vec<f64> = (1..).map_while(|n| metrics.get(&format!("episode_{n}/score")).copied()).collect();
    let listed: Vec<String> = scores.iter().map(|s| format!("{s:+.2}")).collect();
    let ceiling = bayes_adaptive.and_then(|b| b.get(scores.len().checked_sub(1)?));
    // Scores of one batch are noisy and can exceed the optimum, which is an expectation.
    let ceiling = ceiling.map_or_else(String::new, |c| format!(" (optimum {c:+.2})"));
    let idle = 100.0 * timing.get("rollout_tail").copied().unwrap_or(0.0) / seconds;
    format!(
        "batch score {}{ceiling} entropy {:.2} {}ep/s {}tok/s idle {idle:.0} %",
        listed.join(" "),
        at("entropy"),
        rounded(at("rollout/episodes") / seconds),
        rounded(at("tokens/trained") / seconds),
    )
}

/// A mean with its standard error; exact values have none.
pub(crate) fn estimate(e: &MeanEstimate) -> String {
    match (e.mean, e.se) {
        (Some(mean), Some(se)) if se > 0.0 => format!("{} ± {se:.3}", score(mean)),
        (Some(mean), _) => score(mean),
        (None, _) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_text_contains_scores_ceiling_and_throughput() {
        let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let metrics = of(&[
            ("episode_1/score", 0.1),
            ("episode_2/score", 0.2),
            ("entropy", 0.5),
            ("rollout/episodes", 700.0),
            ("tokens/trained", 20_000.0),
        ]);
        let timing = of(&[("total", 0.5), ("rollout_tail", 0.05)]);
        assert_eq!(
            update_text(&metrics, &timing, Some(&[0.125, 0.238])),
            "batch score +0.10 +0.20 (optimum +0.24) entropy 0.50 1.4k ep/s 40k tok/s idle 10 %"
        );
    }
}
