//! Was this call better than could be expected?
//!
//! An [`Estimator`] subtracts from each row's credit what comparable rows got; its settings say which those are.

mod baseline;

use crate::{AssignedCredit, Transition, credit::narrow};
use baseline::{Lonely, centre, leave_one_out};
use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// How credit becomes advantages.
///
/// An estimator subtracts from each row's credit what comparable rows got. Which credit (the return G or the score
/// S), and which rows are comparable, is all that estimators differ in:
///
/// | estimator | credit | compared with |
/// |---|---|---|
/// | `return_to_go` (default) | G | rows of the same episode index |
/// | `gigpo` | S, plus w × G | rows, episodes, meta-episodes or episodes of the same index; plus rows in the same state |
/// | `grpo` | S (or G) | as `gigpo`'s first part, divided by the spread |
/// | `rloo` | S (or G) | the same, without the row's own unit |
///
/// always within one [`BaselineScope`]: the group, everything against the same opponent, or all there is.
///
/// Returns are compared per episode index because later episodes are worth other amounts than earlier ones: a win after
/// a loss improves by 20 where an immediate win improves by 10, and no action earned the difference. The two-level sum of
/// GiGPO counts the own episode twice next to the future once; the plain return does not, and learned better with either
/// credit where the two were compared (Kuhn poker, one recipe, three seeds).
///
/// Penalties are part of S and G when they arrive here, and are compared like everything else. Every level sums to zero
/// over the units it averaged, with or without them; the one exception is a scope of a single row at the episode level,
/// which keeps its score because there is nothing to compare it with.
///
/// In a recipe: `{ kind = "gigpo", baseline = "transition", norm = "mean" }`; what is left out has its default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Estimator {
    /// G minus its mean over the scope's rows of the same episode index.
    ReturnToGo(ReturnToGo),
    /// An episode level from scores and a step level from returns in the same state.
    Gigpo(Gigpo),
    /// Scores in units of their spread.
    Grpo(Grpo),
    /// Scores against everybody else's mean.
    Rloo(Rloo),
}

impl Default for Estimator {
    fn default() -> Self {
        Estimator::ReturnToGo(ReturnToGo::default())
    }
}

/// Settings of [`Estimator::ReturnToGo`].
///
/// The mean is over rows, turns and reflections alike: the gradient sums over rows, so this is the constant that leaves
/// it the least to cancel. A row alone with its episode index gets 0.
///
/// When all play equally many episodes, a constant added to every episode's reward enters the first improvement alone and
/// goes with the mean: exactly at γ_step = 1 or with one turn an episode, else up to the discount between turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReturnToGo {
    /// Which rows are compared.
    pub scope: BaselineScope,
}

/// Settings of [`Estimator::Gigpo`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gigpo {
    /// Which rows are compared.
    pub scope: BaselineScope,
    /// w: the weight of the step level.
    pub step_weight: f64,
    /// Whether differences are divided by the spread, on both levels.
    pub norm: AdvantageNorm,
    /// What the episode level averages.
    pub baseline: BaselineUnit,
    /// What counts as the same state on the step level.
    pub anchors: AnchorScope,
}

impl Default for Gigpo {
    /// The corrected form: scores compared per episode and episode index.
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
    /// As released: the episode level averages rows, and the same state in different episodes is one state.
    pub const RELEASED: Gigpo = Gigpo {
        scope: BaselineScope::Group,
        step_weight: 1.0,
        norm: AdvantageNorm::Mean,
        baseline: BaselineUnit::Transition,
        anchors: AnchorScope::Global,
    };
}

/// Settings of [`Estimator::Grpo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grpo {
    /// Which rows are compared.
    pub scope: BaselineScope,
    /// `mean_std` is what makes it GRPO; it also scales up noise once most members of a group do equally well.
    pub norm: AdvantageNorm,
    /// What is averaged.
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

/// Settings of [`Estimator::Rloo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rloo {
    /// Which rows are compared.
    pub scope: BaselineScope,
    /// What is left out of its own baseline. Leaving out a single row leaves the other turns of the same episode in,
    /// which carry the same score; hence the default, `episode_index`, where units are whole episodes and each comes
    /// from another meta-episode.
    pub baseline: BaselineUnit,
    /// Score or return.
    pub signal: CreditSignal,
}

impl Default for Rloo {
    fn default() -> Self {
        Rloo { scope: BaselineScope::Group, baseline: BaselineUnit::EpisodeIndex, signal: CreditSignal::Score }
    }
}

/// Which rows are compared with each other at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineScope {
    /// Those of the same group: the same opponent, seat and deals when groups are stationary.
    #[default]
    Group,
    /// Those against the same opponent, in whatever group (agent-specific normalisation over the whole batch).
    Opponent,
    /// All: an easy opponent's rows then look good and a hard one's bad (the ablation).
    All,
}

/// Whether differences are divided by the spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageNorm {
    /// Subtract the mean.
    #[default]
    Mean,
    /// Subtract the mean and divide by the standard deviation (n − 1 in the denominator) plus 1e-6.
    MeanStd,
}

/// What a baseline averages: each unit counts once, however many rows it has.
///
/// A row's score is always its own; the unit decides only how much each row weighs in the mean it is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BaselineUnit {
    /// Each row: an episode of eight turns counts eight times one that was decided at once.
    Transition,
    /// Each episode, whatever its length: the mean of its rows, reflections included. Early and late episodes share one
    /// baseline.
    Episode,
    /// Each meta-episode, whatever its number of episodes: the mean of its episodes' means. With early stop this keeps
    /// those who needed many attempts from outvoting those who needed one.
    MetaEpisode,
    /// Each episode, compared only with episodes of the same index.
    #[default]
    EpisodeIndex,
}

/// What counts as the same state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorScope {
    /// The anchor alone: the same position in episodes 1 and 3 is one state.
    #[default]
    Global,
    /// The anchor and the episode index, on every turn.
    Local,
}

/// Which credit a one-level estimator compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditSignal {
    /// S, the row's own episode. Nothing later counts: with memory this is per-episode learning.
    #[default]
    Score,
    /// G, everything that followed.
    Return,
}

/// The parts an advantage is the sum of, in the order of the rows. A level that an estimator does not have is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdvantageLevels {
    /// From scores of episodes. One-level estimators that compare whole units put their result here.
    pub episode: Vec<f64>,
    /// From returns of single calls, before its weight.
    pub step: Vec<f64>,
    /// The weight of the step level.
    pub step_weight: f64,
}

impl Estimator {
    /// Refuses a weight that is not finite.
    pub fn validate(&self) -> Result<()> {
        match self {
            Estimator::Gigpo(g) if !g.step_weight.is_finite() => Err(Error::invalid(
                "estimator.step_weight",
                format!("{} is not a weight: give a finite number", g.step_weight),
            )),
            _ => Ok(()),
        }
    }

    /// The levels of every row.
    ///
    /// # Panics
    /// When `credited` was not made from these rows (other lengths).
    pub fn levels(&self, rows: &[Transition], credited: &AssignedCredit) -> AdvantageLevels {
        let n = rows.len();
        assert!(
            credited.returns.len() == n && credited.scores.len() == n,
            "{n} rows, but {} returns and {} scores: pass what `credit` made of the same rows",
            credited.returns.len(),
            credited.scores.len(),
        );
        let widen = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
        let signal = |s: CreditSignal| match s {
            CreditSignal::Score => widen(&credited.scores),
            CreditSignal::Return => widen(&credited.returns),
        };
        let none = || vec![0.0; n];
        match *self {
            Estimator::ReturnToGo(ReturnToGo { scope }) => {
                let key = |r: &Transition| (scope.key(r), r.episode);
                let values = widen(&credited.returns);
                let step = centre(rows, &values, key, BaselineUnit::Transition, AdvantageNorm::Mean, Lonely::Zero);
                AdvantageLevels { episode: none(), step, step_weight: 1.0 }
            }
            Estimator::Gigpo(Gigpo { scope, step_weight, norm, baseline, anchors }) => {
                let scores = widen(&credited.scores);
                let episode = centre(rows, &scores, baseline.key(scope), baseline, norm, Lonely::Keeps(scope));
                let state = |r: &Transition| {
                    (scope.key(r), r.anchor, if anchors == AnchorScope::Local { r.episode } else { 0 })
                };
                let values = widen(&credited.returns);
                let step = centre(rows, &values, state, BaselineUnit::Transition, norm, Lonely::Zero);
                AdvantageLevels { episode, step, step_weight }
            }
            Estimator::Grpo(Grpo { scope, norm, baseline, signal: s }) => {
                let episode = centre(rows, &signal(s), baseline.key(scope), baseline, norm, Lonely::Keeps(scope));
                AdvantageLevels { episode, step: none(), step_weight: 0.0 }
            }
            Estimator::Rloo(Rloo { scope, baseline, signal: s }) => {
                let episode = leave_one_out(rows, &signal(s), baseline.key(scope), baseline, Lonely::Keeps(scope));
                AdvantageLevels { episode, step: none(), step_weight: 0.0 }
            }
        }
    }
}

/// The advantage of every row: the sum of its levels.
///
/// ```
/// use mage_core::{CreditConfig, Estimator, TransitionKind, Transition, advantages, assign_credit};
///
/// // Two meta-episodes of one group and one turn: one won, one lost.
/// let row = |meta_episode, reward| Transition {
///     group: 0, meta_episode, episode: 0, turn: 0, kind: TransitionKind::Play, anchor: 0, opponent: 0, reward, penalty: 0.0,
/// };
/// let rows = [row(0, 1.0), row(1, -1.0)];
/// let credited = assign_credit(&rows, &CreditConfig::default());
/// assert_eq!(advantages(&rows, &credited, &Estimator::default()), [1.0, -1.0]);
/// ```
///
/// # Panics
/// When `credited` was not made from these rows (other lengths).
pub fn advantages(rows: &[Transition], credited: &AssignedCredit, estimator: &Estimator) -> Vec<f32> {
    let AdvantageLevels { episode, step, step_weight } = estimator.levels(rows, credited);
    episode.iter().zip(&step).map(|(e, s)| narrow(e + step_weight * s)).collect()
}
