//! Per-token policy losses.
//!
//! A loss is a function of two values per token: its log-prob and the entropy of the distribution it was sampled from.
//! [`Loss::token_loss`] returns the value and both derivatives; an engine backpropagates them. The total is the sum
//! over tokens of weight times token loss ([`Reduction::TokenSum`]); the caller scales the weights.

use crate::{Error, Result, TokenClass, TokenInputs};
use serde::{Deserialize, Serialize};

/// A loss: an objective with entropy and KL terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Objective.
    pub objective: Objective,
    /// Entropy bonuses by token class.
    pub entropy: Vec<EntropyTerm>,
    /// KL penalties by token class.
    pub kl: Vec<KlTerm>,
}

/// Objective of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Objective {
    /// `−log p`.
    CrossEntropy,
    /// `−ratio · advantage`.
    ImportanceSampling,
    /// `−min(ratio · advantage, clip(ratio, 1 − low, 1 + high) · advantage)`.
    PpoClip {
        /// Lower clip range.
        low: f32,
        /// Upper clip range.
        high: f32,
        /// Dual clip, above 1: for negative advantages the loss is at most `dual · |advantage|`, so that a token with
        /// an extreme ratio cannot dominate.
        dual: Option<f32>,
    },
    /// `−clip(ratio, 1 − low, 1 + high) · advantage · log p` with a stop-gradient on the clipped ratio (CISPO, arXiv
    /// 2506.13585). A clipped token keeps a bounded gradient, which PPO sets to zero.
    Cispo {
        /// Lower clip range.
        low: f32,
        /// Upper clip range.
        high: f32,
    },
}

impl Objective {
    /// PPO clipping without dual clip.
    pub const fn ppo(low: f32, high: f32) -> Self {
        Objective::PpoClip { low, high, dual: None }
    }
}

/// An entropy bonus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntropyTerm {
    /// Token class; `None` for all.
    pub class: Option<TokenClass>,
    /// Bonus per nat.
    pub coefficient: f32,
}

/// Per-token estimator of the KL divergence from the reference policy, with `d = log p − log p_ref`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlForm {
    /// `d`: an unbiased value. As a loss its gradient has mean zero on-policy, so use it only for measurement.
    K1,
    /// `d²/2`: its gradient is an unbiased gradient of the divergence.
    K2,
    /// `exp(−d) + d − 1`: unbiased and non-negative.
    K3,
}

/// A KL penalty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KlTerm {
    /// Token class; `None` for all.
    pub class: Option<TokenClass>,
    /// Estimator.
    pub form: KlForm,
    /// Penalty per nat.
    pub coefficient: f32,
}

/// Reduction of token losses to a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Sum over tokens of weight times loss. The caller chooses the scale.
    TokenSum,
    /// Mean over sequences of each sequence's weighted mean. Callers must undo it for any other scale.
    SequenceMean,
}

/// Loss of one token, with derivatives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLoss {
    /// The loss before the weight of the token.
    pub value: f64,
    /// Derivative with respect to the log-prob.
    pub d_logprob: f64,
    /// Derivative with respect to the entropy.
    pub d_entropy: f64,
    /// Ratio of new to old probability; 1 for cross-entropy.
    pub ratio: f64,
    /// Whether the objective was clipped.
    pub clipped: bool,
    /// Sum of the KL terms before their coefficients; 0 without a KL term.
    pub kl: f64,
}

impl Loss {
    /// A loss without entropy and KL terms.
    pub const fn of(objective: Objective) -> Self {
        Loss { objective, entropy: Vec::new(), kl: Vec::new() }
    }

    /// Adds an entropy bonus for all tokens.
    #[must_use]
    pub fn with_entropy(mut self, coefficient: f32) -> Self {
        self.entropy.push(EntropyTerm { class: None, coefficient });
        self
    }

    /// Adds a KL penalty for one token class or all.
    #[must_use]
    pub fn with_kl(mut self, class: Option<TokenClass>, form: KlForm, coefficient: f32) -> Self {
        self.kl.push(KlTerm { class, form, coefficient });
        self
    }

    /// Whether advantages and old log-probs are used.
    pub(crate) fn needs_old_logprobs(&self) -> bool {
        self.objective != Objective::CrossEntropy
    }

    /// Whether reference log-probs are used.
    pub fn needs_ref_logprobs(&self) -> bool {
        self.kl.iter().any(|t| t.coefficient != 0.0)
    }

    /// Returns an error that names the field if a setting is out of range.
    pub fn check(&self) -> Result<()> {
        let clip = match self.objective {
            Objective::CrossEntropy | Objective::ImportanceSampling => None,
            Objective::PpoClip { low, high, dual } => Some(("ppo", low, high, dual)),
            Objective::Cispo { low, high } => Some(("cispo", low, high, None)),
        };
        if let Some((loss, low, high, dual)) = clip {
            for (name, v, ok) in [("low", low, (0.0..=1.0).contains(&low)), ("high", high, high >= 0.0)] {
                if !(v.is_finite() && ok) {
                    return Err(Error::invalid(
                        format!("loss.{loss}.{name}"),
                        format!("{v} is not a valid clip range"),
                    ));
                }
            }
            if let Some(d) = dual.filter(|d| !(d.is_finite() && *d > 1.0)) {
                return Err(Error::invalid("dual clip", format!("{d} is not above 1")));
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

    /// Total entropy bonus per nat of a token class.
    fn entropy_coefficient(&self, class: TokenClass) -> f32 {
        self.entropy.iter().filter(|t| t.class.is_none_or(|c| c == class)).map(|t| t.coefficient).sum()
    }

    /// Loss of one token, given its log-prob and the entropy of its distribution under the current weights.
    pub fn token_loss(&self, logprob: f32, entropy: f32, t: &TokenInputs) -> TokenLoss {
        let logprob = f64::from(logprob);
        let advantage = f64::from(t.advantage);
        let mut out = TokenLoss { ratio: 1.0, ..Default::default() };
        if self.needs_old_logprobs() {
            out.ratio = (logprob - f64::from(t.old_logprob)).exp();
        }
        match self.objective {
            Objective::CrossEntropy => {
                out.value = -logprob;
                out.d_logprob = -1.0;
            }
            Objective::ImportanceSampling => {
                out.value = -out.ratio * advantage;
                out.d_logprob = out.value;
            }
            Objective::PpoClip { low, high, dual } => {
                let unclipped = out.ratio * advantage;
                let clipped = out.ratio.clamp(1.0 - f64::from(low), 1.0 + f64::from(high)) * advantage;
                let dual_clipped = dual.filter(|_| advantage < 0.0).map(|d| f64::from(d) * advantage);
                let surrogate = unclipped.min(clipped);
                out.clipped = clipped < unclipped || dual_clipped.is_some_and(|d| d > surrogate);
                out.value = -dual_clipped.map_or(surrogate, |d| surrogate.max(d));
                out.d_logprob = if out.clipped { 0.0 } else { -unclipped };
            }
            Objective::Cispo { low, high } => {
                let clipped_ratio = out.ratio.clamp(1.0 - f64::from(low), 1.0 + f64::from(high));
                let clipped = clipped_ratio * advantage;
                out.clipped = clipped_ratio != out.ratio;
                out.d_logprob = -clipped;
                out.value = out.d_logprob * logprob;
            }
        }
        let bonus = f64::from(self.entropy_coefficient(t.class));
        out.value -= bonus * f64::from(entropy);
        out.d_entropy = -bonus;
        for term in self.kl.iter().filter(|k| k.class.is_none_or(|c| c == t.class) && k.coefficient != 0.0) {
            let d = logprob - f64::from(t.ref_logprob);
            let (value, slope) = match term.form {
                KlForm::K1 => (d, 1.0),
                KlForm::K2 => (d * d / 2.0, d),
                KlForm::K3 => ((-d).exp_m1() + d, -(-d).exp_m1()),
            };
            out.kl += value;
            out.value += f64::from(term.coefficient) * value;
            out.d_logprob += f64::from(term.coefficient) * slope;
        }
        out
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
        fn derivatives_match_finite_differences(a in -2.0f32..2.0, old in -3.0f32..0.0, r in -3.0f32..0.0, lp in -3.0f32..0.0) {
            for loss in losses() {
                let t = inputs(a, old, r);
                let h = 1e-3_f32;
                let (low, mid, high) = (loss.token_loss(lp - h, 0.7, &t), loss.token_loss(lp, 0.7, &t), loss.token_loss(lp + h, 0.7, &t));
                prop_assume!(low.clipped == high.clipped); // not differentiable at the clip bound
                let width = f64::from(lp + h) - f64::from(lp - h);
                let slope = (high.value - low.value) / width;
                prop_assert!((slope - mid.d_logprob).abs() <= 1e-4 * (1.0 + slope.abs()), "{loss:?}: {slope} {mid:?}");
                let up = loss.token_loss(lp, 0.8, &t);
                prop_assert!(((up.value - mid.value) / 0.1 - mid.d_entropy).abs() < 1e-4);
            }
        }
    }

    #[test]
    fn ppo_clips_only_improvements() {
        let loss = Loss::of(Objective::ppo(0.2, 0.3));
        let at = |ratio: f32, a: f32| loss.token_loss(ratio.ln(), 0.0, &inputs(a, 0.0, 0.0));
        assert!((at(1.5, 1.0).value + 1.3).abs() < 1e-6 && at(1.5, 1.0).clipped);
        assert!(!at(1.5, -1.0).clipped && (at(1.5, -1.0).value - 1.5).abs() < 1e-6);
        assert!((at(0.5, -1.0).value - 0.8).abs() < 1e-6 && at(0.5, -1.0).clipped);
        assert!(!at(0.5, 1.0).clipped);
        let dual = Loss::of(Objective::PpoClip { low: 0.2, high: 0.2, dual: Some(3.0) });
        let extreme = dual.token_loss(10.0_f32.ln(), 0.0, &inputs(-1.0, 0.0, 0.0));
        assert!((extreme.value - 3.0).abs() < 1e-6 && extreme.clipped && extreme.d_logprob == 0.0);
    }

    #[test]
    fn cispo_keeps_a_bounded_gradient_for_clipped_tokens() {
        let loss = Loss::of(Objective::Cispo { low: 0.2, high: 0.3 });
        // Ratio, advantage, expected clipped ratio, whether it is clipped.
        for (ratio, a, clipped_ratio, clipped) in
            [(1.1, 2.0, 1.1, false), (1.5, 2.0, 1.3, true), (1.5, -2.0, 1.3, true), (0.5, 2.0, 0.8, true)]
        {
            let logprob = -0.7_f32;
            let cost = loss.token_loss(logprob, 0.0, &inputs(a, logprob - f32::ln(ratio), 0.0));
            assert!((cost.d_logprob + f64::from(clipped_ratio * a)).abs() < 1e-6, "{ratio} {a}: {cost:?}");
            assert!((cost.value - f64::from(clipped_ratio * a * 0.7)).abs() < 1e-6, "{ratio} {a}: {cost:?}");
            assert_eq!(cost.clipped, clipped, "{ratio} {a}");
            // The clipped ratio is a constant: the derivative is that of a weighted log-prob.
            let change =
                Loss::of(Objective::CrossEntropy).token_loss(logprob + 1e-3, 0.0, &inputs(0.0, 0.0, 0.0)).value
                    - Loss::of(Objective::CrossEntropy).token_loss(logprob, 0.0, &inputs(0.0, 0.0, 0.0)).value;
            let slope = change / 1e-3 * f64::from(a) * cost.ratio.clamp(0.8, 1.3);
            assert!((slope - cost.d_logprob).abs() < 1e-3 * slope.abs(), "{slope} {cost:?}");
        }
        // On-policy, CISPO equals importance sampling.
        let (on, t) = (loss.token_loss(-0.7, 0.0, &inputs(1.5, -0.7, 0.0)), inputs(1.5, -0.7, 0.0));
        let sampled = Loss::of(Objective::ImportanceSampling).token_loss(-0.7, 0.0, &t);
        assert_eq!(on.d_logprob, sampled.d_logprob);
    }

    #[test]
    fn terms_apply_to_their_class_only() {
        let loss = Loss::of(Objective::CrossEntropy).with_kl(Some(TokenClass(2)), KlForm::K2, 1.0);
        assert_eq!(loss.token_loss(-1.0, 0.0, &inputs(0.0, 0.0, -2.0)).kl, 0.0);
        let matching = TokenInputs { class: TokenClass(2), ..inputs(0.0, 0.0, -2.0) };
        assert!((loss.token_loss(-1.0, 0.0, &matching).kl - 0.5).abs() < 1e-9);
    }

    #[test]
    fn out_of_range_settings_are_rejected() {
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
