//! Warnings about the health of training, each reported once until its cause is gone.

use crate::recipe::HealthThresholds;
use mage_engine::TrainerCaps;
use std::collections::BTreeSet;

/// Measurements of an update that the health check reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthMetrics {
    /// Fraction of the updates done.
    pub done: f64,
    /// Mean entropy of actions, in nats.
    pub entropy: f64,
    /// KL divergence of actions from the reference policy.
    pub kl_play: f64,
    /// KL divergence of reflections from the reference policy.
    pub kl_reflect: f64,
    /// KL divergence between sampler and trainer before the first step.
    pub mismatch_kl: f64,
    /// Fraction of invalid actions.
    pub invalid: f64,
    /// Fraction of reflections that state the facts.
    pub factual: Option<f64>,
    /// Whether a step was skipped because of non-finite values.
    pub skipped: bool,
    /// Meta-episodes that failed.
    pub errors: usize,
}

/// Compares metrics with thresholds and remembers the active warnings.
pub struct HealthCheck {
    active: BTreeSet<&'static str>,
    /// Whether the engine supports an entropy bonus.
    entropy_supported: bool,
    /// Whether it supports a KL penalty.
    kl_supported: bool,
}

impl HealthCheck {
    /// A check whose advice is limited to what the engine supports.
    pub fn new(engine: &TrainerCaps) -> Self {
        HealthCheck { active: BTreeSet::new(), entropy_supported: engine.entropy, kl_supported: !engine.kl.is_empty() }
    }

    /// Warnings that were not active before.
    pub fn check(&mut self, thresholds: &HealthThresholds, metrics: &HealthMetrics) -> Vec<String> {
        let divergence = |what: &str, name: &'static str, kl: f64| {
            let text = format!(
                "{what} diverge from the reference policy (KL {kl:.2} nats per token); raise loss.{name} or lower \
                 optim.learning_rate"
            );
            (name, kl > thresholds.max_kl, text)
        };
        let conditions = [
            (
                "entropy",
                metrics.done < 0.5 && metrics.entropy < thresholds.min_entropy,
                format!(
                    "action entropy collapsed early ({:.3} nats), exploration has stopped; {}",
                    metrics.entropy,
                    match self.entropy_supported {
                        true => "raise loss.entropy",
                        false => "lower optim.learning_rate (this engine has no entropy bonus)",
                    }
                ),
            ),
            divergence("actions", "kl_play", metrics.kl_play),
            divergence("reflections", "kl_reflect", metrics.kl_reflect),
            (
                "mismatch_kl",
                metrics.mismatch_kl > thresholds.max_mismatch_kl,
                format!(
                    "sampler and trainer disagree (KL {:.4} nats per token before the first step); run `mage doctor --engine`",
                    metrics.mismatch_kl
                ),
            ),
            (
                "invalid",
                metrics.invalid > thresholds.max_invalid,
                format!(
                    "{:.0} % of actions are invalid; set play.mask_actions = true if the engine supports masks",
                    100.0 * metrics.invalid
                ),
            ),
            (
                "factual",
                metrics.factual.is_some_and(|f| f < thresholds.min_factual),
                format!(
                    "only {:.0} % of reflections state the facts; {}",
                    100.0 * metrics.factual.unwrap_or(0.0),
                    match self.kl_supported {
                        true => "if the fraction is falling, raise loss.kl_reflect, else warmstart.steps",
                        false =>
                            "if the fraction is falling, lower optim.learning_rate, else run a warm start first \
                             (`mage warmstart`)",
                    }
                ),
            ),
            (
                "non_finite",
                metrics.skipped,
                "an optimiser step was skipped because of non-finite values; lower optim.learning_rate if this repeats"
                    .to_owned(),
            ),
            (
                "errors",
                metrics.errors > 0,
                format!(
                    "{} meta-episodes failed and are left out of the batch; see their trajectories",
                    metrics.errors
                ),
            ),
        ];
        let mut warnings = Vec::new();
        for (name, raised, text) in conditions {
            if !raised {
                self.active.remove(name);
            } else if self.active.insert(name) {
                warnings.push(text);
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> HealthCheck {
        HealthCheck { active: BTreeSet::new(), entropy_supported: true, kl_supported: true }
    }

    #[test]
    fn advice_is_limited_to_what_the_engine_supports() {
        let mut check = HealthCheck::new(&mage_remote::tinker::TinkerBackend::Jax.trainer_caps(256));
        let metrics = HealthMetrics { entropy: 0.0, factual: Some(0.1), ..HealthMetrics::default() };
        let warnings = check.check(&HealthThresholds::default(), &metrics);
        assert!(warnings.len() == 2 && warnings.iter().all(|w| w.contains("optim.learning_rate")), "{warnings:?}");
        assert!(warnings.iter().all(|w| !w.contains("raise")), "{warnings:?}");
    }

    #[test]
    fn warnings_repeat_only_after_their_cause_was_gone() {
        let thresholds = HealthThresholds::default();
        let mut health = check();
        let bad = HealthMetrics { entropy: 0.01, done: 0.2, ..HealthMetrics::default() };
        assert!(health.check(&thresholds, &bad)[0].contains("loss.entropy"));
        assert!(health.check(&thresholds, &bad).is_empty());
        assert!(health.check(&thresholds, &HealthMetrics { entropy: 0.5, ..bad }).is_empty());
        assert_eq!(health.check(&thresholds, &bad).len(), 1);
        let late = HealthMetrics { done: 0.9, ..bad };
        assert!(check().check(&thresholds, &late).is_empty(), "low entropy is fine in the second half");
        let metrics = HealthMetrics {
            kl_play: 2.0,
            kl_reflect: 2.0,
            invalid: 0.5,
            factual: Some(0.1),
            skipped: true,
            errors: 3,
            ..late
        };
        assert_eq!(check().check(&thresholds, &metrics).len(), 6);
    }
}
