//! What does one token cost, and how does its cost change with the policy?
//!
//! A loss is a function of two numbers per token: its log-probability and the entropy it was drawn from. [`Loss::token`]
//! gives value and derivatives in those two; an engine carries them on to its weights. The total is the sum over tokens
//! of weight times cost ([`Reduction::TokenSum`]): whoever calls scales.

use crate::{Error, Result, TokenClass, TokenInputs};
use serde::{Deserialize, Serialize};

/// What is minimised.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The main part.
    pub objective: Objective,
    /// Rewards for entropy, per class.
    pub entropy: Vec<EntropyTerm>,
    /// Penalties for leaving the reference, per class.
    pub kl: Vec<KlTerm>,
}

/// The main part of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Objective {
    /// `−log p`: imitate.
    CrossEntropy,
    /// `−ratio · advantage`.
    ImportanceSampling,
    /// `−min(ratio · advantage, clip(ratio, 1 − low, 1 + high) · advantage)`.
    PpoClip {
        /// How far the ratio may fall.
        low: f32,
        /// How far the ratio may rise.
        high: f32,
        /// For negative advantages the cost is at most `dual · |advantage|` (above 1), so that a far-off token cannot
        /// dominate.
        dual: Option<f32>,
    },
    /// `−clip(ratio, 1 − low, 1 + high) · advantage · log p`, the clipped ratio held fixed: it bounds how much a token counts,
    /// where PPO's clip makes it count for nothing (CISPO, arXiv 2506.13585).
    Cispo {
        /// How far below 1 a token's ratio still counts as it is.
        low: f32,
        /// How far above 1.
        high: f32,
    },
}

impl Objective {
    /// PPO's clip without a dual bound.
    pub const fn ppo(low: f32, high: f32) -> Self {
        Objective::PpoClip { low, high, dual: None }
    }
}

/// A reward for entropy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntropyTerm {
    /// The class it concerns; `None` for all.
    pub class: Option<TokenClass>,
    /// Reward per nat.
    pub coefficient: f32,
}

/// How the divergence from the reference is estimated from one token, with `d = log p − log p_ref`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlForm {
    /// `d`: unbiased as a value; as a loss its gradient has mean zero on-policy, so use it to measure.
    K1,
    /// `d²/2`: its gradient is an unbiased gradient of the divergence.
    K2,
    /// `exp(−d) + d − 1`: unbiased, never negative.
    K3,
}

/// A penalty for leaving the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlTerm {
    /// The class it concerns; `None` for all.
    pub class: Option<TokenClass>,
    /// The estimator.
    pub form: KlForm,
    /// Cost per nat.
    pub coefficient: f32,
}

/// How token costs become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// The sum over tokens of weight times cost: callers scale as they like.
    TokenSum,
    /// The mean over rows of each row's weighted mean: callers must undo it to mean anything else.
    RowMean,
}

/// One token's cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenCost {
    /// The cost, before the token's weight.
    pub value: f64,
    /// Its derivative by the log-probability.
    pub by_logprob: f64,
    /// Its derivative by the entropy.
    pub by_entropy: f64,
    /// New over old probability; 1 where there is no old one.
    pub ratio: f64,
    /// Whether a clip cut or bounded the gradient of the main part.
    pub clipped: bool,
    /// The divergence terms, before their coefficients; 0 where there are none.
    pub kl: f64,
}

impl Loss {
    /// A loss of the main part alone.
    pub const fn of(objective: Objective) -> Self {
        Loss { objective, entropy: Vec::new(), kl: Vec::new() }
    }

    /// With a reward for the entropy of all tokens.
    #[must_use]
    pub fn with_entropy(mut self, coefficient: f32) -> Self {
        self.entropy.push(EntropyTerm { class: None, coefficient });
        self
    }

    /// With a penalty for leaving the reference, for one class or all.
    #[must_use]
    pub fn with_kl(mut self, class: Option<TokenClass>, form: KlForm, coefficient: f32) -> Self {
        self.kl.push(KlTerm { class, form, coefficient });
        self
    }

    /// Whether advantages and old log-probabilities are used.
    pub fn needs_old(&self) -> bool {
        self.objective != Objective::CrossEntropy
    }

    /// Whether reference log-probabilities are used.
    pub fn needs_reference(&self) -> bool {
        self.kl.iter().any(|t| t.coefficient != 0.0)
    }

    /// Refuses settings that mean nothing, naming the field.
    pub fn check(&self) -> Result<()> {
        let clip = match self.objective {
            Objective::CrossEntropy | Objective::ImportanceSampling => None,
            Objective::PpoClip { low, high, dual } => Some(("ppo", low, high, dual)),
            Objective::Cispo { low, high } => Some(("cispo", low, high, None)),
        };
        if let Some((loss, low, high, dual)) = clip {
            for (name, v, ok) in [("low", low, (0.0..=1.0).contains(&low)), ("high", high, high >= 0.0)] {
                if !(v.is_finite() && ok) {
                    return Err(Error::invalid(format!("loss.{loss}.{name}"), format!("{v} is no clip bound")));
                }
            }
            if let Some(d) = dual.filter(|d| !(d.is_finite() && *d > 1.0)) {
                return Err(Error::invalid("loss.ppo.dual", format!("{d} is not above 1")));
            }
        }
        let coefficients = (self.entropy.iter().map(|t| ("entropy", t.coefficient)))
            .chain(self.kl.iter().map(|t| ("kl", t.coefficient)));
        for (name, v) in coefficients {
            if !v.is_finite() {
                return Err(Error::invalid(format!("loss.{name}"), format!("{v} is not a finite coefficient")));
            }
        }
        Ok(())
    }

    /// The reward per nat of entropy for a class.
    pub fn entropy_coefficient(&self, class: TokenClass) -> f32 {
        self.entropy.iter().filter(|t| t.class.is_none_or(|c| c == class)).map(|t| t.coefficient).sum()
    }

    /// What one token costs, given its log-probability and the entropy of its distribution under the weights of now.
    pub fn token(&self, logprob: f32, entropy: f32, t: &TokenInputs) -> TokenCost {
        let logprob = f64::from(logprob);
        let advantage = f64::from(t.advantage);
        let mut cost = TokenCost { ratio: 1.0, ..Default::default() };
        if self.needs_old() {
            cost.ratio = (logprob - f64::from(t.old_logprob)).exp();
        }
        match self.objective {
            Objective::CrossEntropy => {
                cost.value = -logprob;
                cost.by_logprob = -1.0;
            }
            Objective::ImportanceSampling => {
                cost.value = -cost.ratio * advantage;
                cost.by_logprob = cost.value;
            }
            Objective::PpoClip { low, high, dual } => {
                let free = cost.ratio * advantage;
                let bounded = cost.ratio.clamp(1.0 - f64::from(low), 1.0 + f64::from(high)) * advantage;
                let floor = dual.filter(|_| advantage < 0.0).map(|d| f64::from(d) * advantage);
                let gain = free.min(bounded);
                cost.clipped = bounded < free || floor.is_some_and(|f| f > gain);
                cost.value = -floor.map_or(gain, |f| gain.max(f));
                cost.by_logprob = if cost.clipped { 0.0 } else { -free };
            }
            Objective::Cispo { low, high } => {
                let held = cost.ratio.clamp(1.0 - f64::from(low), 1.0 + f64::from(high));
                cost.clipped = held != cost.ratio;
                cost.by_logprob = -held * advantage;
                cost.value = cost.by_logprob * logprob;
            }
        }
        let reward = f64::from(self.entropy_coefficient(t.class));
        cost.value -= reward * f64::from(entropy);
        cost.by_entropy = -reward;
        for term in self.kl.iter().filter(|k| k.class.is_none_or(|c| c == t.class) && k.coefficient != 0.0) {
            let d = logprob - f64::from(t.ref_logprob);
            let (value, slope) = match term.form {
                KlForm::K1 => (d, 1.0),
                KlForm::K2 => (d * d / 2.0, d),
                KlForm::K3 => ((-d).exp_m1() + d, -(-d).exp_m1()),
            };
            cost.kl += value;
            cost.value += f64::from(term.coefficient) * value;
            cost.by_logprob += f64::from(term.coefficient) * slope;
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inputs(advantage: f32, old: f32, reference: f32) -> TokenInputs {
        TokenInputs { weight: 1.0, advantage, old_logprob: old, ref_logprob: reference, class: TokenClass(1) }
    }

    fn losses() -> Vec<Loss> {
        let mut all = Vec::new();
        for objective in [
            Objective::CrossEntropy,
            Objective::ImportanceSampling,
            Objective::ppo(0.2, 0.3),
            Objective::PpoClip { low: 0.2, high: 0.2, dual: Some(3.0) },
        ] {
            for form in [KlForm::K1, KlForm::K2, KlForm::K3] {
                all.push(Loss::of(objective).with_entropy(0.1).with_kl(Some(TokenClass(1)), form, 0.3));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn derivatives_are_slopes(a in -2.0f32..2.0, old in -3.0f32..0.0, r in -3.0f32..0.0, lp in -3.0f32..0.0) {
            for loss in losses() {
                let t = inputs(a, old, r);
                let h = 1e-3_f32;
                let (low, mid, high) = (loss.token(lp - h, 0.7, &t), loss.token(lp, 0.7, &t), loss.token(lp + h, 0.7, &t));
                prop_assume!(low.clipped == high.clipped); // no slope at a kink
                let width = f64::from(lp + h) - f64::from(lp - h);
                let slope = (high.value - low.value) / width;
                prop_assert!((slope - mid.by_logprob).abs() <= 1e-4 * (1.0 + slope.abs()), "{loss:?}: {slope} {mid:?}");
                let up = loss.token(lp, 0.8, &t);
                prop_assert!(((up.value - mid.value) / 0.1 - mid.by_entropy).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn ppo_clips_on_the_side_that_gains() {
        let loss = Loss::of(Objective::ppo(0.2, 0.3));
        let at = |ratio: f32, a: f32| loss.token(ratio.ln(), 0.0, &inputs(a, 0.0, 0.0));
        assert!((at(1.5, 1.0).value + 1.3).abs() < 1e-6 && at(1.5, 1.0).clipped);
        assert!(!at(1.5, -1.0).clipped && (at(1.5, -1.0).value - 1.5).abs() < 1e-6);
        assert!((at(0.5, -1.0).value - 0.8).abs() < 1e-6 && at(0.5, -1.0).clipped);
        assert!(!at(0.5, 1.0).clipped);
        let dual = Loss::of(Objective::PpoClip { low: 0.2, high: 0.2, dual: Some(3.0) });
        let far = dual.token(10.0_f32.ln(), 0.0, &inputs(-1.0, 0.0, 0.0));
        assert!((far.value - 3.0).abs() < 1e-6 && far.clipped && far.by_logprob == 0.0);
    }

    #[test]
    fn cispo_bounds_what_ppo_cuts() {
        let loss = Loss::of(Objective::Cispo { low: 0.2, high: 0.3 });
        // Ratio, advantage; then what is held, and whether that is a bound.
        for (ratio, a, held, clipped) in
            [(1.1, 2.0, 1.1, false), (1.5, 2.0, 1.3, true), (1.5, -2.0, 1.3, true), (0.5, 2.0, 0.8, true)]
        {
            let logprob = -0.7_f32;
            let cost = loss.token(logprob, 0.0, &inputs(a, logprob - f32::ln(ratio), 0.0));
            assert!((cost.by_logprob + f64::from(held * a)).abs() < 1e-6, "{ratio} {a}: {cost:?}");
            assert!((cost.value - f64::from(held * a * 0.7)).abs() < 1e-6, "{ratio} {a}: {cost:?}");
            assert_eq!(cost.clipped, clipped, "{ratio} {a}");
            // What is held is a number: the slope is that of a weighted log-probability.
            let held = Loss::of(Objective::CrossEntropy).token(logprob + 1e-3, 0.0, &inputs(0.0, 0.0, 0.0)).value
                - Loss::of(Objective::CrossEntropy).token(logprob, 0.0, &inputs(0.0, 0.0, 0.0)).value;
            let slope = held / 1e-3 * f64::from(a) * cost.ratio.clamp(0.8, 1.3);
            assert!((slope - cost.by_logprob).abs() < 1e-3 * slope.abs(), "{slope} {cost:?}");
        }
        // On policy it is importance sampling.
        let (on, t) = (loss.token(-0.7, 0.0, &inputs(1.5, -0.7, 0.0)), inputs(1.5, -0.7, 0.0));
        let sampled = Loss::of(Objective::ImportanceSampling).token(-0.7, 0.0, &t);
        assert_eq!(on.by_logprob, sampled.by_logprob);
    }

    #[test]
    fn terms_concern_their_class_only() {
        let loss = Loss::of(Objective::CrossEntropy).with_kl(Some(TokenClass(2)), KlForm::K2, 1.0);
        assert_eq!(loss.token(-1.0, 0.0, &inputs(0.0, 0.0, -2.0)).kl, 0.0);
        let mine = TokenInputs { class: TokenClass(2), ..inputs(0.0, 0.0, -2.0) };
        assert!((loss.token(-1.0, 0.0, &mine).kl - 0.5).abs() < 1e-9);
    }

    #[test]
    fn senseless_settings_are_refused() {
        let bad = [
            Loss::of(Objective::ppo(-0.1, 0.2)),
            Loss::of(Objective::PpoClip { low: 0.2, high: 0.2, dual: Some(0.5) }),
            Loss::of(Objective::Cispo { low: 1.5, high: 0.2 }),
            Loss::of(Objective::Cispo { low: 1.0, high: f32::INFINITY }),
            Loss::of(Objective::CrossEntropy).with_entropy(f32::NAN),
        ];
        for loss in bad {
            assert!(loss.check().is_err(), "{loss:?}");
        }
    }
}
