//! Training methods as data: memory, credit assignment and estimator.
//!
//! A [`Method`] consists of these three settings, so that a comparison of methods runs the same code.

use crate::{
    BaselineScope, CreditAssignment, CreditConfig, Estimator, Gigpo, Grpo, PenaltyMode, ReflectionScore,
    ReturnRecursion, ReturnToGo,
};
use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// A method of training on meta-episodes.
///
/// | name | memory | credit | estimator |
/// |---|---|---|---|
/// | `mage` | yes | differential, eq. 7 | return to go |
/// | `mage_paper` | yes | differential, eq. 7, penalties in the episode's reward, reflections score 0 | GiGPO as released |
/// | `mage_released` | yes | differential, released recursion, penalties in scores only, reflections score 0 | GiGPO as released |
/// | `lamer` | yes | cumulative, eq. 7 | return to go |
/// | `lamer_released` | yes | cumulative, the rest as `mage_released` | GiGPO as released |
/// | `own_episode` | yes | single | return to go |
/// | `gigpo` | no | single | GiGPO as released |
/// | `grpo` | no | single | GRPO |
/// | `pg_clip` | yes | differential, eq. 7 | return to go, baseline over the whole batch instead of the group |
///
/// `mage`, `lamer` and `own_episode` differ in one field, and so do `mage_released` and `lamer_released`: compare
/// within these sets. `pg_clip` is plain policy gradient without groups; the difference to `mage` is the effect of
/// groups. `own_episode` is the control that separates the effect of memory from the effect of credit across episodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Method {
    /// Whether an episode has access to earlier ones. Without memory, episodes are independent.
    pub memory: bool,
    /// Parameters of credit assignment.
    pub credit: CreditConfig,
    /// The advantage estimator.
    pub estimator: Estimator,
}

impl Default for Method {
    fn default() -> Self {
        Method { memory: true, credit: CreditConfig::default(), estimator: Estimator::default() }
    }
}

impl Method {
    /// The names accepted by [`Method::named`].
    pub const NAMES: [&str; 9] =
        ["mage", "mage_paper", "mage_released", "lamer", "lamer_released", "own_episode", "gigpo", "grpo", "pg_clip"];

    /// A method by name; see the table at [`Method`].
    ///
    /// ```
    /// use mage_core::{CreditAssignment, CreditConfig, Method};
    ///
    /// let mage = Method::named("mage")?;
    /// let lamer = Method::named("lamer")?;
    /// assert_eq!(lamer.credit, CreditConfig { assignment: CreditAssignment::Cumulative, ..mage.credit });
    /// # Ok::<(), mage_env::Error>(())
    /// ```
    pub fn named(name: &str) -> Result<Method> {
        let return_to_go = Estimator::ReturnToGo(ReturnToGo { scope: BaselineScope::Group });
        let gigpo = Estimator::Gigpo(Gigpo::RELEASED);
        let corrected = |assignment| CreditConfig { assignment, ..CreditConfig::default() };
        let released = |assignment| CreditConfig {
            assignment,
            recursion: ReturnRecursion::Released,
            reflection: ReflectionScore::Faithful,
            penalty: PenaltyMode::EpisodeLevelOnly,
            ..CreditConfig::default()
        };
        let (memory, credit, estimator) = match name {
            "mage" => (true, corrected(CreditAssignment::Differential), return_to_go),
            "mage_paper" => {
                let credit = CreditConfig {
                    reflection: ReflectionScore::Faithful,
                    penalty: PenaltyMode::EpisodeReward,
                    ..CreditConfig::default()
                };
                (true, credit, gigpo)
            }
            "mage_released" => (true, released(CreditAssignment::Differential), gigpo),
            "lamer" => (true, corrected(CreditAssignment::Cumulative), return_to_go),
            "lamer_released" => (true, released(CreditAssignment::Cumulative), gigpo),
            "own_episode" => (true, corrected(CreditAssignment::Single), return_to_go),
            "gigpo" => (false, corrected(CreditAssignment::Single), gigpo),
            "grpo" => (false, corrected(CreditAssignment::Single), Estimator::Grpo(Grpo::default())),
            "pg_clip" => {
                let whole_batch = Estimator::ReturnToGo(ReturnToGo { scope: BaselineScope::All });
                (true, corrected(CreditAssignment::Differential), whole_batch)
            }
            _ => return Err(Error::unknown("method", name, Method::NAMES)),
        };
        Ok(Method { memory, credit, estimator })
    }

    /// Rejects invalid settings.
    pub fn validate(&self) -> Result<()> {
        self.credit.validate()?;
        self.estimator.validate()
    }
}
