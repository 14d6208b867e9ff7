//! The [`Trainer`] trait: gradients, optimiser steps, learning-rate schedules and checkpoints.
//!
//! Gradients accumulate over calls of [`forward_backward`](Trainer::forward_backward) until
//! [`optim_step`](Trainer::optim_step) uses and clears them. Samplers see new weights only after
//! [`publish`](Trainer::publish). Engines declare what they compute in [`TrainerCaps`], so that an unsupported loss is
//! refused before training; a non-finite gradient skips the step and is counted.

use crate::{Error, KlForm, Loss, Objective, Reduction, Result, TokenClass, TokenForest, WeightVersion, WeightsName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Computes gradients, takes optimiser steps and publishes weights.
pub trait Trainer: Send {
    /// Capabilities of this trainer.
    fn caps(&self) -> &TrainerCaps;

    /// Adds the gradient of `loss` over `batch` to the accumulated gradient. An invalid batch is rejected before any
    /// state changes.
    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport>;

    /// Takes one optimiser step with the accumulated gradient and clears it.
    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport>;

    /// Publishes the current weights to samplers under `name`, atomically and in order.
    fn publish(&mut self, name: &WeightsName) -> Result<WeightVersion>;

    /// Writes the complete training state.
    fn save(&self, dir: &Path) -> Result<()>;

    /// Restores the training state that [`save`](Trainer::save) wrote.
    fn load(&mut self, dir: &Path) -> Result<()>;

    /// Releases remote state that the checkpoint in `dir` refers to. Called before `dir` is removed.
    fn release_checkpoint(&self, _dir: &Path) {}
}

/// Capabilities of a trainer. A recipe that needs more is rejected before it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerCaps {
    /// Engine name, for log messages and records.
    pub engine: String,
    /// Cross-entropy.
    pub cross_entropy: bool,
    /// Importance sampling.
    pub importance_sampling: bool,
    /// PPO clipping.
    pub ppo: bool,
    /// PPO dual clipping.
    pub dual_clip: bool,
    /// CISPO.
    pub cispo: bool,
    /// Entropy bonus.
    pub entropy: bool,
    /// KL estimators.
    pub kl: Vec<KlForm>,
    /// Action masks in the loss.
    pub masks: bool,
    /// Gradient clipping by global norm.
    pub grad_clipping: bool,
    /// Reduction of token losses.
    pub reduction: Reduction,
    /// Maximum tokens of a sequence.
    pub max_seq_len: usize,
}

impl TrainerCaps {
    /// Returns an error that names the part of the loss this trainer cannot compute.
    pub fn check(&self, loss: &Loss) -> Result<()> {
        loss.check()?;
        let (supported, what) = match loss.objective {
            Objective::CrossEntropy => (self.cross_entropy, "cross-entropy"),
            Objective::ImportanceSampling => (self.importance_sampling, "importance sampling"),
            Objective::PpoClip { dual: Some(_), .. } => (self.ppo && self.dual_clip, "PPO dual clipping"),
            Objective::PpoClip { .. } => (self.ppo, "PPO clipping"),
            Objective::Cispo { .. } => (self.cispo, "CISPO"),
        };
        let missing =
            |what: &str| Err(Error::unsupported(format!("train with {what}"), "choose another loss or engine"));
        if !supported {
            return missing(what);
        }
        if !self.entropy && loss.entropy.iter().any(|t| t.coefficient != 0.0) {
            return missing("an entropy bonus");
        }
        match loss.kl.iter().find(|t| t.coefficient != 0.0 && !self.kl.contains(&t.form)) {
            Some(t) => missing(&format!("the KL estimator {:?}", t.form)),
            None => Ok(()),
        }
    }
}

/// Parameters of one AdamW step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimStep {
    /// Learning rate of this step; see [`LrSchedule`].
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay, multiplied by the learning rate. Matrices only: norms and biases are not decayed.
    pub weight_decay: f32,
    /// Maximum global gradient norm; 0 disables clipping.
    pub max_grad_norm: f32,
    /// Consecutive steps skipped for non-finite gradients after which training fails.
    pub max_nonfinite_steps: u32,
}

impl Default for OptimStep {
    fn default() -> Self {
        OptimStep {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            max_nonfinite_steps: 3,
        }
    }
}

impl OptimStep {
    /// Returns an error that names the field if a value is out of range.
    pub fn check(&self) -> Result<()> {
        let fields = [
            ("learning_rate", self.learning_rate, self.learning_rate >= 0.0),
            ("beta1", self.beta1, (0.0..1.0).contains(&self.beta1)),
            ("beta2", self.beta2, (0.0..1.0).contains(&self.beta2)),
            ("epsilon", self.epsilon, self.epsilon > 0.0),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0.0),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm >= 0.0),
        ];
        match fields.iter().find(|(_, v, ok)| !(v.is_finite() && *ok)) {
            Some((name, v, _)) => Err(Error::invalid(format!("optimiser.{name}"), format!("{v} is out of range"))),
            None => Ok(()),
        }
    }
}

/// Learning-rate schedule: linear warm-up, then decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LrSchedule {
    /// Learning rate after warm-up.
    pub peak: f32,
    /// Steps over which the learning rate rises linearly from 0 (exclusive) to the peak.
    pub warmup_steps: u64,
    /// Decay after warm-up.
    pub decay: LrDecay,
}

/// Learning-rate decay after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum LrDecay {
    /// No decay.
    #[default]
    Constant,
    /// Half-cosine decay to `min_lr_ratio · peak` at step `total`, constant after it.
    Cosine {
        /// The step at which the minimum is reached, counted from the first step of the run.
        total: u64,
        /// Final learning rate as a fraction of the peak.
        min_lr_ratio: f32,
    },
    /// Linear decay to `min_lr_ratio · peak` at step `total`, constant after it.
    Linear {
        /// The step at which the minimum is reached, counted from the first step of the run.
        total: u64,
        /// Final learning rate as a fraction of the peak.
        min_lr_ratio: f32,
    },
}

impl Default for LrSchedule {
    fn default() -> Self {
        LrSchedule { peak: 1e-3, warmup_steps: 0, decay: LrDecay::Constant }
    }
}

impl LrSchedule {
    /// Learning rate of step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f32 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f32 / self.warmup_steps as f32;
        }
        let progress = |total: u64| {
            let length = total.saturating_sub(self.warmup_steps).max(1);
            ((step - self.warmup_steps) as f64 / length as f64).min(1.0)
        };
        let ratio = match self.decay {
            LrDecay::Constant => 1.0,
            LrDecay::Cosine { total, min_lr_ratio } => {
                let left = 0.5 * (1.0 + (std::f64::consts::PI * progress(total)).cos());
                f64::from(min_lr_ratio) + (1.0 - f64::from(min_lr_ratio)) * left
            }
            LrDecay::Linear { total, min_lr_ratio } => 1.0 - (1.0 - f64::from(min_lr_ratio)) * progress(total),
        };
        (f64::from(self.peak) * ratio) as f32
    }
}

/// Statistics of a gradient computation. Means are over tokens, weighted by the absolute value of their weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// The loss: the sum over tokens of weight times token loss.
    pub loss: f64,
    /// Number of tokens with a non-zero weight.
    pub tokens: u64,
    /// Sum of the absolute values of the weights.
    pub weight: f64,
    /// Mean entropy in nats; NaN if the engine does not report it.
    pub entropy: f64,
    /// Mean ratio of new to old probability.
    pub ratio: f64,
    /// Maximum ratio.
    pub max_ratio: f64,
    /// Fraction of tokens whose gradient was clipped.
    pub clip_fraction: f64,
    /// Mean of `ratio − 1 − log ratio`: divergence of the current weights from those that sampled.
    pub mismatch_kl: f64,
    /// Mean KL divergence from the reference policy, by token class.
    pub kl: BTreeMap<TokenClass, f64>,
    /// Log-prob of each token with a non-zero weight, in segment order.
    #[serde(skip)]
    pub logprobs: Vec<f32>,
}

/// Statistics of an optimiser step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// First tensor with a non-finite gradient (or weight), if the step was skipped.
    pub skipped: Option<String>,
    /// Total steps skipped.
    pub skipped_steps: u64,
    /// Total steps taken.
    pub steps: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lr_schedule_warms_up_and_decays() {
        let s = LrSchedule { peak: 1.0, warmup_steps: 4, decay: LrDecay::Cosine { total: 14, min_lr_ratio: 0.2 } };
        assert_eq!(s.at(0), 0.25);
        assert_eq!(s.at(3), 1.0);
        assert_eq!(s.at(4), 1.0);
        assert!((s.at(9) - 0.6).abs() < 1e-6);
        assert!((s.at(14) - 0.2).abs() < 1e-6 && (s.at(1000) - 0.2).abs() < 1e-6);
        let s = LrSchedule { peak: 2.0, warmup_steps: 0, decay: LrDecay::Linear { total: 10, min_lr_ratio: 0.0 } };
        assert_eq!(s.at(5), 1.0);
        assert_eq!(LrSchedule::default().at(77), 1e-3);
    }

    #[test]
    fn unsupported_losses_are_rejected() {
        let caps = TrainerCaps {
            engine: "test".into(),
            cross_entropy: true,
            importance_sampling: false,
            ppo: true,
            dual_clip: false,
            cispo: false,
            entropy: false,
            kl: vec![KlForm::K3],
            masks: false,
            grad_clipping: false,
            reduction: Reduction::TokenSum,
            max_seq_len: 8,
        };
        assert!(caps.check(&Loss::of(Objective::CrossEntropy)).is_ok());
        assert!(caps.check(&Loss::of(Objective::CrossEntropy).with_entropy(0.1)).is_err());
        assert!(caps.check(&Loss::of(Objective::ImportanceSampling)).is_err());
        assert!(caps.check(&Loss::of(Objective::Cispo { low: 0.2, high: 0.2 })).is_err());
        assert!(caps.check(&Loss::of(Objective::PpoClip { low: 0.2, high: 0.2, dual: Some(3.0) })).is_err());
        let e = caps.check(&Loss::of(Objective::ppo(0.2, 0.2)).with_kl(None, KlForm::K1, 0.1)).unwrap_err();
        assert!(e.to_string().contains("K1"), "{e}");
    }

    #[test]
    fn out_of_range_optimiser_settings_are_rejected() {
        assert!(OptimStep::default().check().is_ok());
        let e = OptimStep { beta2: 1.0, ..Default::default() }.check().unwrap_err();
        assert_eq!(e.to_string(), "optimiser.beta2: 1 is out of range");
    }
}
