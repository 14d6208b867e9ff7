//! Penalties for invalid and long completions.
//!
//! A transition can have two deductions, independent of the game: a constant for a completion that is not a valid
//! action, and one that grows with its length. [`PenaltyMode`] decides where they enter the credit.

use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// Deductions of a transition.
///
/// ```
/// use mage_core::{LengthPenalty, Penalty};
///
/// let penalty = Penalty { invalid: 0.5, length: Some(LengthPenalty { limit: 3072, weight: 2.0 }) };
/// assert_eq!(penalty.amount(true, 1536), 0.0);
/// assert_eq!(penalty.amount(true, 2304), 1.0);
/// assert_eq!(penalty.amount(false, 4000), 2.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Penalty {
    /// For a completion that could not be parsed or executed, in play and in reflection.
    pub invalid: f32,
    /// For long completions; none if absent.
    pub length: Option<LengthPenalty>,
}

impl Default for Penalty {
    /// The paper's 0.5 scaled to rewards of order one (its outcomes are ±10), no length penalty.
    fn default() -> Self {
        Penalty { invalid: 0.05, length: None }
    }
}

impl Penalty {
    /// No deductions.
    pub const NONE: Penalty = Penalty { invalid: 0.0, length: None };

    /// The deduction for one completion, not negative: a [`Transition::penalty`](crate::Transition::penalty).
    pub fn amount(&self, valid: bool, tokens: u32) -> f32 {
        let invalid = if valid { 0.0 } else { self.invalid };
        invalid + self.length.map_or(0.0, |length| length.amount(tokens))
    }

    /// Rejects negative and infinite amounts, and a limit of zero tokens.
    pub fn validate(&self) -> Result<()> {
        let check = |key: &str, x: f32| {
            if x.is_finite() && x >= 0.0 {
                Ok(())
            } else {
                Err(Error::invalid(
                    format!("penalty.{key}"),
                    format!("{x} is not a deduction: use a finite number, 0 or more"),
                ))
            }
        };
        check("invalid", self.invalid)?;
        if let Some(length) = self.length {
            check("length.weight", length.weight)?;
            if length.limit == 0 {
                return Err(Error::invalid("penalty.length.limit", "must be at least 1 token"));
            }
        }
        Ok(())
    }
}

/// Length penalty: 0 up to half the limit, then linear up to `weight` at the limit (eq. 13).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthPenalty {
    /// L: the length in tokens from which the full weight applies.
    pub limit: u32,
    /// λ: the maximum deduction.
    pub weight: f32,
}

impl LengthPenalty {
    /// The deduction for a completion of `tokens` tokens.
    pub fn amount(&self, tokens: u32) -> f32 {
        let half = f64::from(self.limit) / 2.0;
        let over = (f64::from(tokens) - half) / half;
        // A limit of 0 with an empty completion is 0/0, and `clamp` does not remove the NaN.
        let fraction = if over.is_nan() { 0.0 } else { over.clamp(0.0, 1.0) };
        (f64::from(self.weight) * fraction) as f32
    }
}

/// Where [`Transition::penalty`](crate::Transition::penalty) enters the credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PenaltyMode {
    /// Part of the reward of the transition's turn, added after differencing. It reaches every level: the score of the
    /// transition, its return and, discounted like any reward, the returns of earlier turns and episodes. The penalty
    /// of a reflection stays with the reflection, because no other action determines its text. Differencing would
    /// credit the next episode with a penalty of this one; this mode does not.
    #[default]
    PerTransition,
    /// Part of the episode's reward R(τ), before differencing (the paper's appendix): an episode without penalty after
    /// a penalised one is credited with the improvement. A reflection's penalty counts in the episode it belongs to.
    EpisodeReward,
    /// Subtracted from the score of the transition only, never from its return (the released code). Estimators that use
    /// returns ignore it.
    EpisodeLevelOnly,
}
