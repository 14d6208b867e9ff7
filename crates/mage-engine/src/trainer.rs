//! How do weights change?

use crate::{AdapterName, Error, KlForm, Loss, Objective, Reduction, Result, TokenClass, TokenForest, WeightVersion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Computes gradients and takes optimiser steps.
pub trait Trainer: Send {
    /// What this trainer can do.
    fn caps(&self) -> &TrainerCaps;

    /// Adds the gradient of `loss` over `batch` to what is already accumulated. Refuses bad batches before anything is
    /// touched.
    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport>;

    /// Takes one step with the accumulated gradient and clears it.
    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport>;

    /// Shows the weights of now to samplers under `name`: whole or not at all, and in order.
    fn publish(&mut self, name: &AdapterName) -> Result<WeightVersion>;

    /// Writes everything needed to continue exactly here.
    fn save(&self, dir: &Path) -> Result<()>;

    /// Continues exactly where [`save`](Trainer::save) was called.
    fn load(&mut self, dir: &Path) -> Result<()>;

    /// Hears that what [`save`](Trainer::save) wrote to `dir` is about to be removed, and lets go of what it stands for
    /// elsewhere.
    fn forget(&self, _dir: &Path) {}
}

/// What a trainer can do. A recipe that needs more is refused before it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerCaps {
    /// Its name, for messages and records.
    pub engine: String,
    /// Cross-entropy.
    pub cross_entropy: bool,
    /// Importance sampling.
    pub importance_sampling: bool,
    /// PPO's clip.
    pub ppo: bool,
    /// PPO's dual clip.
    pub dual_clip: bool,
    /// CISPO.
    pub cispo: bool,
    /// Rewards for entropy.
    pub entropy: bool,
    /// Estimators of the divergence from the reference.
    pub kl: Vec<KlForm>,
    /// Masks in the loss.
    pub masks: bool,
    /// Clipping by global norm.
    pub clip_norm: bool,
    /// How token costs become one number.
    pub reduction: Reduction,
    /// Whether equal inputs give equal bits, whatever the number of threads.
    pub reproducible: bool,
    /// How many tokens a row may have.
    pub max_context: usize,
}

impl TrainerCaps {
    /// Refuses a loss this trainer cannot compute, naming the part.
    pub fn check(&self, loss: &Loss) -> Result<()> {
        loss.check()?;
        let (have, what) = match loss.objective {
            Objective::CrossEntropy => (self.cross_entropy, "cross-entropy"),
            Objective::ImportanceSampling => (self.importance_sampling, "importance sampling"),
            Objective::PpoClip { dual: Some(_), .. } => (self.ppo && self.dual_clip, "PPO with a dual clip"),
            Objective::PpoClip { .. } => (self.ppo, "PPO's clip"),
            Objective::Cispo { .. } => (self.cispo, "CISPO"),
        };
        let lacks = |what: &str| Err(Error::unsupported(format!("train with {what}"), "choose another loss or engine"));
        if !have {
            return lacks(what);
        }
        if !self.entropy && loss.entropy.iter().any(|t| t.coefficient != 0.0) {
            return lacks("an entropy bonus");
        }
        match loss.kl.iter().find(|t| t.coefficient != 0.0 && !self.kl.contains(&t.form)) {
            Some(t) => lacks(&format!("the divergence estimator {:?}", t.form)),
            None => Ok(()),
        }
    }
}

/// One step of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimStep {
    /// The learning rate of this step; see [`Schedule`].
    pub learning_rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled decay, times the learning rate; matrices only (norms and biases keep their scale).
    pub weight_decay: f32,
    /// Scale the gradient down to this norm over all tensors; 0 leaves it.
    pub clip_norm: f32,
    /// Give up after this many steps in a row were skipped for numbers that are not finite.
    pub give_up_after: u32,
}

impl Default for OptimStep {
    fn default() -> Self {
        OptimStep {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
            give_up_after: 3,
        }
    }
}

impl OptimStep {
    /// Refuses values that mean nothing, naming the field.
    pub fn check(&self) -> Result<()> {
        let fields = [
            ("learning_rate", self.learning_rate, self.learning_rate >= 0.0),
            ("beta1", self.beta1, (0.0..1.0).contains(&self.beta1)),
            ("beta2", self.beta2, (0.0..1.0).contains(&self.beta2)),
            ("epsilon", self.epsilon, self.epsilon > 0.0),
            ("weight_decay", self.weight_decay, self.weight_decay >= 0.0),
            ("clip_norm", self.clip_norm, self.clip_norm >= 0.0),
        ];
        match fields.iter().find(|(_, v, ok)| !(v.is_finite() && *ok)) {
            Some((name, v, _)) => Err(Error::invalid(format!("optimiser.{name}"), format!("{v} is out of range"))),
            None => Ok(()),
        }
    }
}

/// How the learning rate moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The rate after warm-up.
    pub peak: f32,
    /// Steps over which it rises from 0 (exclusive) to the peak.
    pub warmup: u64,
    /// What follows.
    pub decay: Decay,
}

/// What a learning rate does after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Decay {
    /// Stays.
    #[default]
    Constant,
    /// Falls along half a cosine to `floor · peak` at step `total`, and stays there.
    Cosine {
        /// The step at which the floor is reached, counted from the first step of all.
        total: u64,
        /// The fraction of the peak that is left.
        floor: f32,
    },
    /// Falls in a straight line to `floor · peak` at step `total`, and stays there.
    Linear {
        /// The step at which the floor is reached, counted from the first step of all.
        total: u64,
        /// The fraction of the peak that is left.
        floor: f32,
    },
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule { peak: 1e-3, warmup: 0, decay: Decay::Constant }
    }
}

impl Schedule {
    /// The learning rate of step `step`, from 0.
    pub fn at(&self, step: u64) -> f32 {
        if step < self.warmup {
            return self.peak * (step + 1) as f32 / self.warmup as f32;
        }
        let progress = |total: u64| {
            let length = total.saturating_sub(self.warmup).max(1);
            ((step - self.warmup) as f64 / length as f64).min(1.0)
        };
        let share = match self.decay {
            Decay::Constant => 1.0,
            Decay::Cosine { total, floor } => {
                let left = 0.5 * (1.0 + (std::f64::consts::PI * progress(total)).cos());
                f64::from(floor) + (1.0 - f64::from(floor)) * left
            }
            Decay::Linear { total, floor } => 1.0 - (1.0 - f64::from(floor)) * progress(total),
        };
        (f64::from(self.peak) * share) as f32
    }
}

/// What a gradient computation found. Means are over tokens, each counted by its weight's size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// The loss: the sum over tokens of weight times cost.
    pub loss: f64,
    /// How many tokens counted.
    pub tokens: u64,
    /// The sum of the sizes of their weights.
    pub weight: f64,
    /// Mean entropy in nats; not a number where the engine does not tell.
    pub entropy: f64,
    /// Mean of new over old probability.
    pub ratio: f64,
    /// The largest ratio.
    pub max_ratio: f64,
    /// The share of tokens whose gradient a clip cut.
    pub clip_fraction: f64,
    /// Mean of `ratio − 1 − log ratio`: how far the weights of now are from those that sampled.
    pub mismatch_kl: f64,
    /// Mean divergence from the reference, by class.
    pub kl: BTreeMap<TokenClass, f64>,
    /// The log-probability of each token that counted, in the order of the segments.
    #[serde(skip)]
    pub logprobs: Vec<f32>,
}

/// What an optimiser step did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The gradient's norm over all tensors, before clipping.
    pub grad_norm: f64,
    /// The first tensor whose gradient (or weight) was not finite, when the step was skipped for it.
    pub skipped: Option<String>,
    /// How many steps have been skipped in all.
    pub skipped_steps: u64,
    /// How many steps have been taken in all.
    pub steps: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_rise_and_fall() {
        let s = Schedule { peak: 1.0, warmup: 4, decay: Decay::Cosine { total: 14, floor: 0.2 } };
        assert_eq!(s.at(0), 0.25);
        assert_eq!(s.at(3), 1.0);
        assert_eq!(s.at(4), 1.0);
        assert!((s.at(9) - 0.6).abs() < 1e-6);
        assert!((s.at(14) - 0.2).abs() < 1e-6 && (s.at(1000) - 0.2).abs() < 1e-6);
        let s = Schedule { peak: 2.0, warmup: 0, decay: Decay::Linear { total: 10, floor: 0.0 } };
        assert_eq!(s.at(5), 1.0);
        assert_eq!(Schedule::default().at(77), 1e-3);
    }

    #[test]
    fn what_cannot_be_computed_is_refused() {
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
            clip_norm: false,
            reduction: Reduction::TokenSum,
            reproducible: true,
            max_context: 8,
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
    fn optimiser_settings_are_checked() {
        assert!(OptimStep::default().check().is_ok());
        let e = OptimStep { beta2: 1.0, ..Default::default() }.check().unwrap_err();
        assert_eq!(e.to_string(), "optimiser.beta2: 1 is out of range");
    }
}
