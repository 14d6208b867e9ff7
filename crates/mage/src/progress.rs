//! What does a run look like while it goes on?
//!
//! A bar with a line under it on a terminal, a line every few seconds elsewhere, events for programs.

use crate::{
    output::Output,
    table::{score, span},
};
use indicatif::ProgressBar;
use mage_train::{eval::evaluator::EvalEstimate, train::TrainEvent};
use std::{
    collections::BTreeMap,
    io::IsTerminal,
    time::{Duration, Instant},
};

/// Time between two lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(5);

/// How much the newest update counts for the time that is left.
const NEWEST: f64 = 0.1;

/// Shows a run as it goes.
pub(crate) struct TrainingProgress {
    out: Output,
    bar: Option<ProgressBar>,
    /// What the bar counts.
    counting: &'static str,
    terminal: bool,
    told: Instant,
    updates: u64,
    /// The best learner's score by episode, where it is known.
    bayes_adaptive: Option<Vec<f64>>,
    /// Seconds an update takes, of late.
    pace: Option<f64>,
}

impl TrainingProgress {
    pub(crate) fn new(out: Output) -> Self {
        TrainingProgress {
            out,
            bar: None,
            counting: "",
            terminal: std::io::stderr().is_terminal(),
            told: Instant::now(),
            updates: 0,
            bayes_adaptive: None,
            pace: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.counting = "";
    }

    fn bar(&mut self, counting: &'static str, of: u64, from: u64) -> &ProgressBar {
        if self.counting != counting {
            self.clear();
            self.counting = counting;
        }
        self.bar.get_or_insert_with(|| {
            let bar = match counting {
                TRAINING => self.out.progress_with_words(of),
                _ => self.out.progress(of, counting),
            };
            bar.set_position(from);
            bar.reset_eta();
            bar
        })
    }

    fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) if self.terminal => bar.suspend(|| self.out.hint(text)),
            _ => self.out.hint(text),
        }
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
                let go = if start_update == 0 { String::new() } else { format!(", {start_update} done") };
                self.line(&format!("{run}: {parameters} parameters, {updates} updates{go}"));
                if let (Some(memoryless), Some(best)) = (&memoryless, &bayes_adaptive) {
                    let scores = |v: &[f64]| v.iter().map(|s| score(*s)).collect::<Vec<_>>().join("  ");
                    let (low, high) = (scores(memoryless), scores(best));
                    self.line(&format!("to be had by episode: {low} without memory, {high} by the best learner"));
                }
                self.bayes_adaptive = bayes_adaptive;
            }
            TrainEvent::Warmstart { step, steps, loss } => {
                let bar = self.bar("warm start", steps, step);
                bar.set_position(step);
                if step == steps {
                    self.clear();
                    self.line(&format!("warm start: {steps} steps, loss {loss:.3}"));
                }
            }
            TrainEvent::Evaluating { done, tasks: of } => {
                self.bar("playing the panel", of as u64, done as u64).set_position(done as u64);
            }
            TrainEvent::Evaluated { update, memory, result } => {
                if self.counting == "playing the panel" {
                    self.clear();
                }
                let how = if result.exact { "expected" } else { "as played" };
                let blanked = if memory { "" } else { ", memory blanked" };
                let curve: Vec<String> = result.score.iter().map(estimate).collect();
                self.line(&format!("after {update} updates: {} by episode, {how}{blanked}", curve.join("  ")));
            }
            TrainEvent::Updated { update, metrics, timing } => self.updated(update, &metrics, &timing),
            TrainEvent::Saved { .. } => {}
            TrainEvent::Warning { text } => match &self.bar {
                Some(bar) => bar.suspend(|| self.out.warn(text)),
                None => self.out.warn(text),
            },
        }
    }

    fn updated(&mut self, update: u64, metrics: &BTreeMap<String, f64>, timing: &BTreeMap<String, f64>) {
        let took = timing.get("total").copied().unwrap_or(f64::NAN);
        let pace = self.pace.map_or(took, |pace| pace + NEWEST * (took - pace));
        self.pace = Some(pace);
        let left = span(pace * self.updates.saturating_sub(update) as f64);
        let words = words(metrics, timing, self.bayes_adaptive.as_deref());
        let updates = self.updates;
        let bar = self.bar(TRAINING, updates, update - 1);
        bar.set_position(update);
        bar.set_prefix(format!("{:.1} updates/s, {left} left", 1.0 / pace));
        bar.set_message(words.clone());
        if !self.terminal && self.told.elapsed() >= PAUSE {
            self.told = Instant::now();
            self.line(&format!("update {update} of {updates}, {left} left: {words}"));
        }
    }
}

const TRAINING: &str = "training";

/// An update in a line.
fn words(metrics: &BTreeMap<String, f64>, timing: &BTreeMap<String, f64>, bayes_adaptive: Option<&[f64]>) -> String {
    let at = |key: &str| metrics.get(key).copied().unwrap_or(f64::NAN);
    let took = timing.get("total").copied().unwrap_or(f64::NAN);
    let scores: Vec<f64> = (1..).map_while(|n| metrics.get(&format!("episode_{n}/score")).copied()).collect();
    let listed: Vec<String> = scores.iter().map(|s| format!("{s:+.2}")).collect();
    let ceiling = bayes_adaptive.and_then(|b| b.get(scores.len().checked_sub(1)?));
    let ceiling = ceiling.map_or_else(String::new, |c| format!(" of {c:+.2}"));
    let idle = 100.0 * timing.get("rollout_tail").copied().unwrap_or(0.0) / took;
    format!(
        "score {}{ceiling} entropy {:.2} {}ep/s {}tok/s idle {idle:.0} %",
        listed.join(" "),
        at("entropy"),
        rounded(at("rollout/episodes") / took),
        rounded(at("tokens/trained") / took),
    )
}

/// A rate in a few signs.
fn rounded(rate: f64) -> String {
    match rate {
        r if r >= 1e4 => format!("{:.0}k ", r / 1e3),
        r if r >= 1e3 => format!("{:.1}k ", r / 1e3),
        r => format!("{r:.0} "),
    }
}

/// A mean with its error, if it has one.
pub(crate) fn estimate(e: &EvalEstimate) -> String {
    if e.se == 0.0 { score(e.mean) } else { format!("{} ± {:.3}", score(e.mean), e.se) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_says_how_far_it_is_from_the_ceiling_and_how_fast_it_goes() {
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
            words(&metrics, &timing, Some(&[0.125, 0.238])),
            "score +0.10 +0.20 of +0.24 entropy 0.50 1.4k ep/s 40k tok/s idle 10 %"
        );
    }
}
