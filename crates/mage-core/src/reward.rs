//! What is the end of an episode worth?
//!
//! An environment reports how an episode ended and what each step earned in its own unit. A [`RewardRule`] turns that
//! into the rewards credit assignment starts from. The choice is not cosmetic: when failing costs nothing and play stops
//! at the first success, differential and cumulative credit are the same numbers, so the rule belongs in every recipe
//! and every report.

use mage_env::{End, Error, Outcome, Result};
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;

/// How an episode's end and steps become rewards, one per step.
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
    /// One number for how it ended, paid on the last step; the environment's own rewards are dropped.
    Outcome {
        /// The agent won.
        won: f32,
        /// The agent lost.
        lost: f32,
        /// Nobody won.
        draw: f32,
        /// The turns ran out.
        truncated: f32,
    },
    /// The environment's own reward of each step, in its own unit times `scale`.
    Score {
        /// The factor; 1 keeps the unit.
        scale: f32,
    },
}

impl Default for RewardRule {
    /// The environment's own unit: rewards of order one, which is what the learning rates and the entropy bonus of the
    /// recipes were measured with.
    fn default() -> Self {
        RewardRule::Score { scale: 1.0 }
    }
}

impl RewardRule {
    /// The reward of each step of an episode that ended as `end` and whose steps earned `steps`.
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

    /// Refuses numbers that are not finite.
    pub fn validate(&self) -> Result<()> {
        let numbers: &[(&str, f32)] = match *self {
            RewardRule::Score { scale } => &[("scale", scale)],
            RewardRule::Outcome { won, lost, draw, truncated } => {
                &[("won", won), ("lost", lost), ("draw", draw), ("truncated", truncated)]
            }
        };
        match numbers.iter().find(|(_, x)| !x.is_finite()) {
            Some((key, x)) => {
                Err(Error::invalid(format!("reward.{key}"), format!("{x} is not a reward: give a finite number")))
            }
            None => Ok(()),
        }
    }
}

/// A rule by name. What a name means can depend on the environment: ask [`RewardPreset::rule`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardPreset {
    /// The paper's appendix: +10 for success, −10 for failure, 0 for neither. A draw is neither. Running out of turns
    /// is neither in a game, but it is *the* failure in a world that cannot be lost otherwise (Sokoban, ALFWorld,
    /// WebShop).
    Paper,
    /// What the released code pays, environment by environment; failure is free in ALFWorld and WebShop.
    Code,
    /// The environment's own unit.
    #[default]
    Score,
}

/// Worlds in which running out of turns is how one fails.
const WORLDS: [&str; 3] = ["alfworld", "sokoban", "webshop"];
/// Environments the released code has rewards for.
const RELEASED: [&str; 5] = ["alfworld", "kuhn", "sokoban", "tictactoe", "webshop"];

impl RewardPreset {
    /// The rule this name stands for in `env`. Only `code` can fail: it is defined for the paper's five environments.
    pub fn rule(self, env: &str) -> Result<RewardRule> {
        let outcome = |lost, truncated| RewardRule::Outcome { won: 10.0, lost, draw: 0.0, truncated };
        Ok(match self {
            RewardPreset::Score => RewardRule::Score { scale: 1.0 },
            RewardPreset::Paper if WORLDS.contains(&env) => outcome(-10.0, -10.0),
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
                             use `score`, `paper` or a rule of your own",
                            RELEASED.join(", ")
                        ),
                    ));
                }
            },
        })
    }
}

/// RewardSpec as a recipe asks for them: `"paper"`, `"code"`, `"score"`, or a [`RewardRule`] written out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RewardSpec {
    /// By name.
    Preset(RewardPreset),
    /// In numbers.
    Rule(RewardRule),
}

impl Default for RewardSpec {
    fn default() -> Self {
        RewardSpec::Preset(RewardPreset::default())
    }
}

impl RewardSpec {
    /// The rule in `env`, checked.
    pub fn rule(&self, env: &str) -> Result<RewardRule> {
        match self {
            RewardSpec::Preset(preset) => preset.rule(env),
            RewardSpec::Rule(rule) => rule.validate().map(|()| *rule),
        }
    }
}

impl<'de> Deserialize<'de> for RewardSpec {
    // By hand, because serde's untagged enums answer every mistake with "did not match any variant".
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
