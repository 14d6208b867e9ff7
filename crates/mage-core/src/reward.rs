//! Reward rules: from the end of an episode and its step rewards to the rewards of credit assignment.
//!
//! An environment reports how an episode ended and what each step earned in its own unit; a [`RewardRule`] converts
//! both. The choice matters: if failures cost nothing and play stops at the first success, differential and cumulative
//! credit are equal. Recipes and reports therefore state the rule.

use mage_env::{End, Error, Outcome, Result};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;

/// Converts the end and the steps of an episode to rewards, one per step.
///
/// ```
/// use mage_core::RewardRule;
/// use mage_env::{End, Outcome};
///
/// let lost = End::Terminated { outcome: Outcome::Lost, score: -2.0 };
/// let rule = RewardRule::Outcome { won: 10.0, lost: -10.0, draw: 0.0, truncated: 0.0 };
/// assert_eq!(rule.apply(lost, &[0.0, -2.0]), [0.0, -10.0]);
/// assert_eq!(RewardRule::Score { scale: 5.0 }.apply(lost, &[0.0, -2.0]), [0.0, -10.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RewardRule {
    /// One reward for the outcome, on the last step. The environment's rewards are ignored.
    Outcome {
        /// The agent won.
        won: f32,
        /// The agent lost.
        lost: f32,
        /// A draw.
        draw: f32,
        /// The turn limit was reached.
        truncated: f32,
    },
    /// The environment's reward of each step times `scale`.
    Score {
        /// The factor; 1 keeps the unit.
        scale: f32,
    },
}

impl Default for RewardRule {
    /// The environment's unit: rewards of order one. The recipes' learning rates and entropy bonus are tuned for it.
    fn default() -> Self {
        RewardRule::Score { scale: 1.0 }
    }
}

impl RewardRule {
    /// The reward of each step of an episode with end `end` and step rewards `steps`.
    pub fn apply(&self, end: End, steps: &[f32]) -> Vec<f32> {
        match *self {
            RewardRule::Score { scale } => steps.iter().map(|r| r * scale).collect(),
            RewardRule::Outcome { won, lost, draw, truncated } => {
                let mut rewards = vec![0.0; steps.len()];
                if let Some(last) = rewards.last_mut() {
                    *last = match end {
                        End::Terminated { outcome: Outcome::Won, .. } => won,
                        End::Terminated { outcome: Outcome::Lost, .. } => lost,
                        End::Terminated { outcome: Outcome::Draw, .. } => draw,
                        End::Truncated => truncated,
                    };
                }
                rewards
            }
        }
    }

    /// Rejects non-finite values.
    pub fn validate(&self) -> Result<()> {
        let values: &[(&str, f32)] = match *self {
            RewardRule::Score { scale } => &[("scale", scale)],
            RewardRule::Outcome { won, lost, draw, truncated } => {
                &[("won", won), ("lost", lost), ("draw", draw), ("truncated", truncated)]
            }
        };
        match values.iter().find(|(_, x)| !x.is_finite()) {
            Some((key, x)) => {
                Err(Error::invalid(format!("reward.{key}"), format!("{x} is not a reward: use a finite number")))
            }
            None => Ok(()),
        }
    }
}

/// A named rule. Its meaning can depend on the environment: see [`RewardPreset::rule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardPreset {
    /// The paper's appendix: +10 for success, −10 for failure, 0 otherwise. A draw is neither. Reaching the turn limit
    /// is neither in a game, but it is the failure in environments that cannot be lost otherwise (Sokoban, ALFWorld,
    /// WebShop).
    Paper,
    /// The rewards of the released code, per environment. Failure costs nothing in ALFWorld and WebShop.
    Code,
    /// The environment's unit.
    #[default]
    Score,
}

/// Environments in which reaching the turn limit is the only failure.
const FAIL_BY_TRUNCATION: [&str; 3] = ["alfworld", "sokoban", "webshop"];
/// Environments with rewards in the released code.
const RELEASED: [&str; 5] = ["alfworld", "kuhn", "sokoban", "tictactoe", "webshop"];

impl RewardPreset {
    /// The rule in `env`. Only `code` can fail: it is defined for the paper's five environments.
    pub fn rule(self, env: &str) -> Result<RewardRule> {
        let outcome = |lost, truncated| RewardRule::Outcome { won: 10.0, lost, draw: 0.0, truncated };
        Ok(match self {
            RewardPreset::Score => RewardRule::Score { scale: 1.0 },
            RewardPreset::Paper if FAIL_BY_TRUNCATION.contains(&env) => outcome(-10.0, -10.0),
            RewardPreset::Paper => outcome(-10.0, 0.0),
            RewardPreset::Code => match env {
                "kuhn" => RewardRule::Score { scale: 5.0 },
                "sokoban" => RewardRule::Score { scale: 1.0 },
                "tictactoe" => outcome(-10.0, 0.0),
                "alfworld" | "webshop" => outcome(0.0, 0.0),
                _ => {
                    return Err(Error::invalid(
                        "reward",
                        format!(
                            "preset `code` has no rewards for environment `{env}` (it has them for {}); \
                             use `score`, `paper` or an explicit rule",
                            RELEASED.join(", ")
                        ),
                    ));
                }
            },
        })
    }
}

/// Reward rule of a recipe: `"paper"`, `"code"`, `"score"`, or an explicit [`RewardRule`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RewardSpec {
    /// A named rule.
    Preset(RewardPreset),
    /// An explicit rule.
    Rule(RewardRule),
}

impl Default for RewardSpec {
    fn default() -> Self {
        RewardSpec::Preset(RewardPreset::default())
    }
}

impl RewardSpec {
    /// The validated rule in `env`.
    pub fn rule(&self, env: &str) -> Result<RewardRule> {
        match self {
            RewardSpec::Preset(preset) => preset.rule(env),
            RewardSpec::Rule(rule) => rule.validate().map(|()| *rule),
        }
    }
}

impl<'de> Deserialize<'de> for RewardSpec {
    // Implemented by hand: serde's untagged enums report every mistake as "did not match any variant".
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NameOrRule;
        impl<'de> de::Visitor<'de> for NameOrRule {
            type Value = RewardSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a reward preset (paper, code, score) or a reward rule")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> std::result::Result<RewardSpec, E> {
                RewardPreset::deserialize(de::value::StrDeserializer::new(name)).map(RewardSpec::Preset)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> std::result::Result<RewardSpec, A::Error> {
                RewardRule::deserialize(de::value::MapAccessDeserializer::new(map)).map(RewardSpec::Rule)
            }
        }
        deserializer.deserialize_any(NameOrRule)
    }
}
