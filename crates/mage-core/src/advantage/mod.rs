//! Advantage estimators.
//!
//! An [`Estimator`] subtracts from the credit of each transition the mean credit of comparable transitions.

mod baseline;

use crate::{AssignedCredit, Transition, credit::to_f32};
use baseline::{SingletonRule, center, leave_one_out};
use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// An advantage estimator.
///
/// It subtracts from the credit of each transition the mean credit of comparable transitions. Estimators differ in the
/// credit (the return G or the score S) and in the comparison:
///
/// | estimator | credit | compared with |
/// |---|---|---|
/// | `return_to_go` (default) | G | transitions of the same episode index |
/// | `gigpo` | S, plus w × G | transitions, episodes, meta-episodes or episodes of the same index; plus transitions in the same state |
/// | `grpo` | S (or G) | as the first part of `gigpo`, divided by the standard deviation |
/// | `rloo` | S (or G) | as `grpo`, without the transition's own unit and without division |
///
/// always within one [`BaselineScope`]: the group, all transitions against the same opponent, or the whole batch.
///
/// Returns are compared per episode index because they differ systematically between episodes: a win after a loss
/// improves by 20, an immediate win by 10, and no action caused the difference. The two-level sum of GiGPO counts the
/// own episode twice and the future once; the plain return counts both once, and learned better with either credit
/// where both were compared (Kuhn poker, one recipe, three seeds).
///
/// Penalties are part of S and G. Every level sums to zero over the units of its mean; the one exception is a scope
/// with a single transition at the episode level, which keeps its score because there is no baseline.
///
/// In a recipe: `{ kind = "gigpo", baseline = "transition", norm = "mean" }`; omitted fields have their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Estimator {
    /// G minus its mean over the transitions of the same episode index.
    ReturnToGo(ReturnToGo),
    /// An episode level from scores and a step level from returns in the same state.
    Gigpo(Gigpo),
    /// Scores minus their mean, divided by their standard deviation.
    Grpo(Grpo),
    /// Scores minus the mean of the other units (leave one out).
    Rloo(Rloo),
}

impl Default for Estimator {
    fn default() -> Self {
        Estimator::ReturnToGo(ReturnToGo::default())
    }
}

/// Parameters of [`Estimator::ReturnToGo`].
///
/// The mean is over transitions, actions and reflections alike: the gradient sums over transitions, and this constant
/// minimises the sum of squared advantages. A transition alone with its episode index gets 0.
///
/// If all meta-episodes have the same number of episodes, a constant added to the reward of every episode appears in
/// the first improvement alone and is removed by the mean: exactly at γ_step = 1 or with one turn per episode,
/// otherwise up to the discount between turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReturnToGo {
    /// The transitions to compare.
    pub scope: BaselineScope,
}

/// Parameters of [`Estimator::Gigpo`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gigpo {
    /// The transitions to compare.
    pub scope: BaselineScope,
    /// w: the weight of the step level.
    pub step_weight: f64,
    /// Normalisation of both levels.
    pub norm: AdvantageNorm,
    /// The unit of the mean at the episode level.
    pub baseline: BaselineUnit,
    /// Which states are equal at the step level.
    pub anchors: AnchorScope,
}

impl Default for Gigpo {
    /// The corrected form: scores are compared per episode and episode index.
    fn default() -> Self {
        Gigpo {
            scope: BaselineScope::Group,
            step_weight: 1.0,
            norm: AdvantageNorm::Mean,
            baseline: BaselineUnit::EpisodeIndex,
            anchors: AnchorScope::Global,
        }
    }
}

impl Gigpo {
    /// As released: the episode level averages transitions, and a state is the same in all episodes.
    pub const RELEASED: Gigpo = Gigpo {
        scope: BaselineScope::Group,
        step_weight: 1.0,
        norm: AdvantageNorm::Mean,
        baseline: BaselineUnit::Transition,
        anchors: AnchorScope::Global,
    };
}

/// Parameters of [`Estimator::Grpo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grpo {
    /// The transitions to compare.
    pub scope: BaselineScope,
    /// Normalisation. GRPO is defined by `mean_std`, which amplifies noise if most members of a group score alike.
    pub norm: AdvantageNorm,
    /// The unit of the mean.
    pub baseline: BaselineUnit,
    /// Score or return.
    pub signal: CreditSignal,
}

impl Default for Grpo {
    fn default() -> Self {
        Grpo {
            scope: BaselineScope::Group,
            norm: AdvantageNorm::MeanStd,
            baseline: BaselineUnit::Transition,
            signal: CreditSignal::Score,
        }
    }
}

/// Parameters of [`Estimator::Rloo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rloo {
    /// The transitions to compare.
    pub scope: BaselineScope,
    /// The unit to leave out. Leaving out a single transition keeps the other turns of the same episode, which have the
    /// same score; hence the default `episode_index`, where units are whole episodes of different meta-episodes.
    pub baseline: BaselineUnit,
    /// Score or return.
    pub signal: CreditSignal,
}

impl Default for Rloo {
    fn default() -> Self {
        Rloo { scope: BaselineScope::Group, baseline: BaselineUnit::EpisodeIndex, signal: CreditSignal::Score }
    }
}

/// The set of transitions that share a baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineScope {
    /// Same group: same opponent, seat and deals if the opponent is stationary.
    #[default]
    Group,
    /// Same opponent, in any group (agent-specific normalisation over the whole batch).
    Opponent,
    /// The whole batch: transitions against weak opponents get positive advantages (the ablation).
    All,
}

/// Normalisation of advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageNorm {
    /// Subtract the mean.
    #[default]
    Mean,
    /// Subtract the mean and divide by the standard deviation (n − 1 in the denominator) plus 1e-6.
    MeanStd,
}

/// The unit of a baseline mean. Each unit counts once, independent of its number of transitions.
///
/// The unit determines the weight of each transition in the mean, not its score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineUnit {
    /// Each transition: an episode of eight turns has eight times the weight of an episode of one turn.
    Transition,
    /// Each episode: the mean of its transitions, reflections included. Early and late episodes share one baseline.
    Episode,
    /// Each meta-episode: the mean of the means of its episodes. With early stop, meta-episodes with many attempts
    /// otherwise dominate those that won at once.
    MetaEpisode,
    /// Each episode, compared only with episodes of the same index.
    #[default]
    EpisodeIndex,
}

/// Which states are equal at the step level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorScope {
    /// Equal anchors: a position in episodes 1 and 3 is one state.
    #[default]
    Global,
    /// Equal anchors and equal episode index.
    Local,
}

/// The credit that a one-level estimator compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditSignal {
    /// S, the score of the own episode. Later episodes do not count: with memory, this is learning per episode.
    #[default]
    Score,
    /// G, the return.
    Return,
}

/// The terms of an advantage, in the order of the transitions. A level that an estimator does not use is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdvantageLevels {
    /// Episode level, from scores. One-level estimators that compare units use this level.
    pub episode: Vec<f64>,
    /// Step level, from returns, unweighted.
    pub step: Vec<f64>,
    /// The weight of the step level.
    pub step_weight: f64,
}

impl Estimator {
    /// Rejects a non-finite weight.
    pub fn validate(&self) -> Result<()> {
        match self {
            Estimator::Gigpo(g) if !g.step_weight.is_finite() => Err(Error::invalid(
                "estimator.step_weight",
                format!("{} is not a weight: use a finite number", g.step_weight),
            )),
            _ => Ok(()),
        }
    }

    /// The advantage levels of each transition.
    ///
    /// # Panics
    /// If `credit` has another length than `transitions`.
    pub fn levels(&self, transitions: &[Transition], credit: &AssignedCredit) -> AdvantageLevels {
        let n = transitions.len();
        assert!(
            credit.returns.len() == n && credit.scores.len() == n,
            "{n} transitions, but {} returns and {} scores: pass the result of `assign_credit` for these transitions",
            credit.returns.len(),
            credit.scores.len(),
        );
        let to_f64 = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
        let values = |s: CreditSignal| match s {
            CreditSignal::Score => to_f64(&credit.scores),
            CreditSignal::Return => to_f64(&credit.returns),
        };
        let zeros = || vec![0.0; n];
        match *self {
            Estimator::ReturnToGo(ReturnToGo { scope }) => {
                let key = |t: &Transition| (scope.key(t), t.episode);
                let returns = values(CreditSignal::Return);
                let (unit, norm) = (BaselineUnit::Transition, AdvantageNorm::Mean);
                let step = center(transitions, &returns, key, unit, norm, SingletonRule::Zero);
                AdvantageLevels { episode: zeros(), step, step_weight: 1.0 }
            }
            Estimator::Gigpo(Gigpo { scope, step_weight, norm, baseline, anchors }) => {
                let scores = values(CreditSignal::Score);
                let keep = SingletonRule::KeepValue(scope);
                let episode = center(transitions, &scores, baseline.key(scope), baseline, norm, keep);
                let state = |t: &Transition| {
                    (scope.key(t), t.anchor, if anchors == AnchorScope::Local { t.episode } else { 0 })
                };
                let returns = values(CreditSignal::Return);
                let step = center(transitions, &returns, state, BaselineUnit::Transition, norm, SingletonRule::Zero);
                AdvantageLevels { episode, step, step_weight }
            }
            Estimator::Grpo(Grpo { scope, norm, baseline, signal }) => {
                let keep = SingletonRule::KeepValue(scope);
                let episode = center(transitions, &values(signal), baseline.key(scope), baseline, norm, keep);
                AdvantageLevels { episode, step: zeros(), step_weight: 0.0 }
            }
            Estimator::Rloo(Rloo { scope, baseline, signal }) => {
                let keep = SingletonRule::KeepValue(scope);
                let episode = leave_one_out(transitions, &values(signal), baseline.key(scope), baseline, keep);
                AdvantageLevels { episode, step: zeros(), step_weight: 0.0 }
            }
        }
    }
}

/// The advantage of each transition: the sum of its levels.
///
/// ```
/// use mage_core::{CreditConfig, Estimator, Transition, TransitionKind, advantages, assign_credit};
///
/// // Two meta-episodes of one group and one turn: one won, one lost.
/// let play = |meta_episode, reward| Transition {
///     group: 0,
///     meta_episode,
///     episode: 0,
///     turn: 0,
///     kind: TransitionKind::Play,
///     anchor: 0,
///     opponent: 0,
///     reward,
///     penalty: 0.0,
/// };
/// let transitions = [play(0, 1.0), play(1, -1.0)];
/// let credit = assign_credit(&transitions, &CreditConfig::default());
/// assert_eq!(advantages(&transitions, &credit, &Estimator::default()), [1.0, -1.0]);
/// ```
///
/// # Panics
/// If `credit` has another length than `transitions`.
pub fn advantages(transitions: &[Transition], credit: &AssignedCredit, estimator: &Estimator) -> Vec<f32> {
    let AdvantageLevels { episode, step, step_weight } = estimator.levels(transitions, credit);
    episode.iter().zip(&step).map(|(e, s)| to_f32(e + step_weight * s)).collect()
}
