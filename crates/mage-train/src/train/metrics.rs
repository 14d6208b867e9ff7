//! Metrics of an update, as written to `metrics.jsonl`.

use super::{Training, played_episodes};
use crate::{
    eval::EvalResult,
    recipe::{PLAY, REFLECT},
    train::health::HealthMetrics,
};
use mage_core::{RequestKind, Trajectory};
use mage_engine::{LossReport, StepReport, TokenClass};
use std::collections::BTreeMap;

/// Reports of an update's optimiser steps.
#[derive(Default)]
pub(super) struct OptimReports {
    losses: Vec<LossReport>,
    steps: Vec<StepReport>,
    learning_rate: f32,
}

impl OptimReports {
    pub(super) fn push(&mut self, loss: LossReport, step: StepReport, learning_rate: f32) {
        self.losses.push(loss);
        self.steps.push(step);
        self.learning_rate = learning_rate;
    }

    /// Adds the metrics. `kl_classes` are the token classes with a KL penalty; other divergences are not known.
    fn add_metrics(&self, kl_classes: &[(&str, TokenClass)], add: &mut impl FnMut(String, f64)) {
        let n = self.losses.len().max(1) as f64;
        let mean = |of: &dyn Fn(&LossReport) -> f64| self.losses.iter().map(of).sum::<f64>() / n;
        add("loss".into(), mean(&|r| r.loss));
        add("ratio/clip_frac".into(), mean(&|r| r.clip_fraction));
        add("ratio/max".into(), self.losses.iter().map(|r| r.max_ratio).fold(0.0, f64::max));
        add("mismatch_kl/mean".into(), mean(&|r| r.mismatch_kl));
        // Before the first step, sampler and trainer have the same weights: what remains is the disagreement of the
        // engines.
        add("mismatch_kl/first".into(), self.losses.first().map_or(0.0, |r| r.mismatch_kl));
        add("tokens/trained".into(), self.losses.iter().map(|r| r.tokens as f64).sum());
        for (name, class) in kl_classes {
            let values: Vec<f64> = self.losses.iter().filter_map(|r| r.kl.get(class).copied()).collect();
            if !values.is_empty() {
                add(format!("kl/{name}"), values.iter().sum::<f64>() / values.len() as f64);
            }
        }
        let steps = self.steps.len().max(1) as f64;
        add("optim/grad_norm".into(), self.steps.iter().map(|s| s.grad_norm).sum::<f64>() / steps);
        add("optim/lr".into(), f64::from(self.learning_rate));
        add("optim/skipped".into(), self.steps.iter().filter(|s| s.skipped.is_some()).count() as f64);
    }
}

pub(super) fn add_eval_metrics(metrics: &mut BTreeMap<String, f64>, result: &EvalResult) {
    for (n, (score, won)) in result.score.iter().zip(&result.won).enumerate() {
        let mut add = |name: &str, value: Option<f64>| {
            metrics.extend(value.map(|value| (format!("eval/episode_{}/{name}", n + 1), value)));
        };
        add("score", score.mean);
        add("se", score.se);
        add("won", won.mean);
    }
    if result.errors > 0 {
        metrics.insert("eval/errors".to_owned(), result.errors as f64);
    }
}

impl Training {
    /// The metrics of an update. None depends on the clock.
    pub(super) fn update_metrics(&self, trajectories: &[Trajectory], reports: &OptimReports) -> BTreeMap<String, f64> {
        let mut metrics = BTreeMap::new();
        let mut add = |key: String, value: f64| _ = metrics.insert(key, value);
        let completed: Vec<&Trajectory> = trajectories.iter().filter(|t| t.error.is_none()).collect();
        add("update".into(), self.progress.update as f64);
        add("episodes".into(), self.progress.episodes as f64);
        add("rollout/episodes".into(), played_episodes(trajectories) as f64);
        add("errors".into(), (trajectories.len() - completed.len()) as f64);
        for n in 0..self.context.episode_config().episodes as usize {
            let episodes: Vec<_> = completed.iter().filter_map(|t| t.episodes.get(n)).collect();
            let count = episodes.len().max(1) as f64;
            add(format!("episode_{}/score", n + 1), episodes.iter().map(|e| f64::from(e.score())).sum::<f64>() / count);
            add(format!("episode_{}/won", n + 1), episodes.iter().filter(|e| e.won()).count() as f64 / count);
        }
        let (mut surprisal, mut play_tokens, mut reflect_tokens, mut reflections) = (0.0, 0_u64, 0_u64, 0_u64);
        for record in completed.iter().flat_map(|t| &t.requests) {
            let Some(tokens) = &record.completion.tokens else { continue };
            if record.kind == RequestKind::Play {
                surprisal -= tokens.logprobs.iter().map(|l| f64::from(*l)).sum::<f64>();
                play_tokens += tokens.response.len() as u64;
            } else {
                reflect_tokens += tokens.response.len() as u64;
                reflections += 1;
            }
        }
        // The mean surprisal of sampled tokens is an unbiased estimate of the entropy.
        add("entropy".into(), surprisal / play_tokens.max(1) as f64);
        add("tokens/play_total".into(), play_tokens as f64);
        add("tokens/reflect_mean".into(), reflect_tokens as f64 / reflections.max(1) as f64);
        let (invalid, actions) =
            completed.iter().map(|t| t.invalid_actions()).fold((0, 0), |(i, a), (x, y)| (i + x, a + y));
        add("invalid_action".into(), f64::from(invalid) / f64::from(actions.max(1)));
        let factual: Option<Vec<(u32, u32)>> =
            completed.iter().map(|t| self.context.warm_start.count_factual(t)).collect();
        if let Some(factual) = factual.filter(|_| reflections > 0) {
            let (count, total) = factual.into_iter().fold((0, 0), |(c, t), (x, y)| (c + x, t + y));
            add("factual".into(), f64::from(count) / f64::from(total.max(1)));
        }
        let loss = &self.recipe.loss;
        let classes = [("play", PLAY, loss.kl_play), ("reflect", REFLECT, loss.kl_reflect)];
        let kl_classes: Vec<_> =
            classes.iter().filter(|(_, _, coefficient)| *coefficient > 0.0).map(|(n, c, _)| (*n, *c)).collect();
        reports.add_metrics(&kl_classes, &mut add);
        metrics
    }

    /// Input of the health check.
    pub(super) fn health_metrics(
        &self,
        metrics: &BTreeMap<String, f64>,
        trajectories: &[Trajectory],
        collected_ahead: bool,
    ) -> HealthMetrics {
        let get = |key: &str| metrics.get(key).copied();
        HealthMetrics {
            done: self.progress.update as f64 / self.recipe.optim.updates.max(1) as f64,
            entropy: get("entropy").unwrap_or(1.0),
            kl_play: get("kl/play").unwrap_or(0.0),
            kl_reflect: get("kl/reflect").unwrap_or(0.0),
            mismatch_kl: engine_mismatch_kl(metrics, collected_ahead),
            invalid: get("invalid_action").unwrap_or(0.0),
            factual: get("factual"),
            skipped: get("optim/skipped").unwrap_or(0.0) > 0.0,
            errors: trajectories.iter().filter(|t| t.error.is_some()).count(),
        }
    }
}

/// Divergence of sampler and trainer with equal weights. A batch collected ahead was sampled with the previous weights
/// and does not measure it: then 0.
fn engine_mismatch_kl(metrics: &BTreeMap<String, f64>, collected_ahead: bool) -> f64 {
    if collected_ahead { 0.0 } else { metrics.get("mismatch_kl/first").copied().unwrap_or(0.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_mismatch_is_measured_on_batches_of_equal_weights() {
        let metrics = BTreeMap::from([("mismatch_kl/first".to_owned(), 0.3)]);
        assert_eq!((engine_mismatch_kl(&metrics, false), engine_mismatch_kl(&metrics, true)), (0.3, 0.0));
    }
}
