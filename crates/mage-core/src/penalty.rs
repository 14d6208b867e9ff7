//! What does a badly formed answer cost?
//!
//! Two deductions are made per row, whatever the game says: a fixed one for an answer that was no action, and one that
//! grows with the length of the answer. [`PenaltyMode`] decides where they enter the credit.

use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// The deductions of one row.
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
    /// For an answer that could not be read or carried out, in play and in reflection.
    pub invalid: f32,
    /// For long answers; none when absent.
    pub length: Option<LengthPenalty>,
}

impl Default for Penalty {
    /// The paper's 0.5 brought to rewards of order one (its outcomes are ±10), no length penalty.
    fn default() -> Self {
        Penalty { invalid: 0.05, length: None }
    }
}

impl Penalty {
    /// No deductions at all.
    pub const NONE: Penalty = Penalty { invalid: 0.0, length: None };

    /// The deduction for one answer: not negative, to be put into [`Transition::penalty`](crate::Transition::penalty).
    pub fn amount(&self, valid: bool, tokens: u32) -> f32 {
        let invalid = if valid { 0.0 } else { self.invalid };
        invalid + self.length.map_or(0.0, |l| l.amount(tokens))
    }

    /// Refuses negative and infinite amounts, and a limit of zero tokens.
    pub fn validate(&self) -> Result<()> {
        let amount = |key: &str, x: f32| {
            if x.is_finite() && x >= 0.0 {
                Ok(())
            } else {
                Err(Error::invalid(
                    format!("penalty.{key}"),
                    format!("{x} is not a deduction: give a finite number, 0 or more"),
                ))
            }
        };
        amount("invalid", self.invalid)?;
        if let Some(length) = self.length {
            amount("length.weight", length.weight)?;
            if length.limit == 0 {
                return Err(Error::invalid(
                    "penalty.length.limit",
                    "0 tokens leave no room for an answer: give 1 or more",
                ));
            }
        }
        Ok(())
    }
}

/// Free up to half the limit, then rising in a straight line to `weight` at the limit (eq. 13).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthPenalty {
    /// L: the length in tokens from which the full weight is due.
    pub limit: u32,
    /// λ: the most that is deducted.
    pub weight: f32,
}

impl LengthPenalty {
    /// The deduction for an answer of so many tokens.
    pub fn amount(&self, tokens: u32) -> f32 {
        let half = f64::from(self.limit) / 2.0;
        let over = (f64::from(tokens) - half) / half;
        // A limit of 0 makes 0/0 of an empty answer: the clamp below would let the NaN through.
        let share = if over.is_nan() { 0.0 } else { over.clamp(0.0, 1.0) };
        (f64::from(self.weight) * share) as f32
    }
}

/// Where [`Transition::penalty`](crate::Transition::penalty) enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PenaltyMode {
    /// A reward of the row's own turn, added after differencing. It reaches every level: the row's score, its return
    /// and, discounted like any reward, the returns of the turns and episodes before it; only a reflection's stays with
    /// the reflection, because how a note is worded is nobody else's doing. The next episode is not paid back for it,
    /// which is what differencing would do.
    #[default]
    PerTransition,
    /// Part of the episode's reward R(τ), before differencing (the paper's appendix): a clean episode after a penalised
    /// one is credited with the improvement. A reflection's penalty counts in the episode it belongs to.
    EpisodeReward,
    /// Only the row's score, never its return (the released code): an estimator that reads returns does not see it.
    EpisodeLevelOnly,
}
