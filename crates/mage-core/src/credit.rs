//! Credit assignment: returns and scores of transitions.
//!
//! [`assign_credit`] computes two values per transition ([`AssignedCredit`]): the **return** G, the discounted sum of
//! credit from it on, and the **score** S, the credit of its episode. An [`Estimator`](crate::Estimator) turns them into
//! advantages.

use crate::{PenaltyMode, Transition, TransitionKind};
use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// Parameters of credit assignment.
///
/// Let n = 1..N be the episodes of a meta-episode, t = 1..T_n the turns of an episode, and R_n the sum of an episode's
/// rewards (R_0 = 0). The [`CreditAssignment`] first determines the credit r̂ of each turn:
///
/// | assignment | r̂ | later episodes count? |
/// |---|---|---|
/// | differential | R_n − R_{n−1} on the last turn, 0 before (eq. 5, 6) | yes |
/// | cumulative | the turn's own reward (LaMer) | yes |
/// | single | the turn's own reward | no |
/// | final only | the turn's own reward in the last episode played, 0 before | yes |
///
/// The [`ReturnRecursion`] then sums the credit of later turns:
///
/// * paper (eq. 7): `G(n,t) = g(n,t) + Σ_{m>n} γ_traj^(m−n) g(m,1)` with `g(n,t) = Σ_{l≥t} γ_step^(l−t) r̂(n,l)`
/// * released: `G(n,T) = r̂(n,T) + γ_traj G(n+1,1)` and `G(n,t) = r̂(n,t) + γ_step G(n,t+1)`
///
/// The return of a reflection is the return of the first turn of its episode. Transitions of one turn share its reward.
/// Episode and turn indices alone determine the order, so permuting the input changes no bit of the output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreditConfig {
    /// Credit of each turn.
    pub assignment: CreditAssignment,
    /// How later turns and episodes are summed.
    pub recursion: ReturnRecursion,
    /// Discount per turn within an episode.
    pub gamma_step: f64,
    /// Discount per episode.
    pub gamma_traj: f64,
    /// Score of a reflection.
    pub reflection: ReflectionScore,
    /// Where penalties enter.
    pub penalty: PenaltyMode,
    /// Omit R_(n−1), which `differential` subtracts, from the returns of episode n. The actions of episode n cannot
    /// change R_(n−1), so this reduces variance without changing the expected gradient. The effect on returns of other
    /// episodes is unchanged. No effect with other assignments.
    pub omit_previous_return: bool,
}

impl Default for CreditConfig {
    fn default() -> Self {
        CreditConfig {
            assignment: CreditAssignment::Differential,
            recursion: ReturnRecursion::Paper,
            gamma_step: 0.95,
            gamma_traj: 0.6,
            reflection: ReflectionScore::Corrected,
            penalty: PenaltyMode::PerTransition,
            omit_previous_return: false,
        }
    }
}

impl CreditConfig {
    /// Rejects discounts outside 0..=1.
    pub fn validate(&self) -> Result<()> {
        for (key, gamma) in [("gamma_step", self.gamma_step), ("gamma_traj", self.gamma_traj)] {
            if !(0.0..=1.0).contains(&gamma) {
                return Err(Error::invalid(
                    format!("credit.{key}"),
                    format!("{gamma} is not a discount: use a number from 0 to 1"),
                ));
            }
        }
        Ok(())
    }
}

/// Credit of each turn; see the table at [`CreditConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditAssignment {
    /// The improvement over the previous episode, on the last turn. At γ = 1 the improvements sum to the reward of the
    /// last episode; at γ_traj = 0.6 and three episodes they weight the episodes 0.40, 0.24, 0.36.
    #[default]
    Differential,
    /// Each turn keeps its reward.
    Cumulative,
    /// Each turn keeps its reward, and later episodes do not count, regardless of γ_traj.
    Single,
    /// Only the last episode played counts. γ_traj still discounts its effect on earlier episodes: use 1 for the
    /// undiscounted objective.
    FinalOnly,
}

/// How later turns and episodes are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReturnRecursion {
    /// Equation 7, the default: later episodes are discounted by γ_traj alone. An early action influences the next
    /// episode through memory as much as the last action does, regardless of the length of the episode.
    #[default]
    Paper,
    /// One backward pass as in the released code: later episodes are also discounted by γ_step over the remaining turns
    /// of this episode and all turns of the episodes between. Equal to `paper` if episodes have one turn.
    Released,
}

/// Score of a reflection. Its return is the first return of the next episode in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReflectionScore {
    /// The score of the next episode.
    #[default]
    Corrected,
    /// 0, as released: at the episode level its advantage is the negative group mean, independent of its quality.
    Faithful,
}

/// Returns and scores, in the order of the transitions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssignedCredit {
    /// G: the discounted sum of credit from this transition on.
    pub returns: Vec<f32>,
    /// S: the credit of the transition's episode, minus the transition's own penalty.
    pub scores: Vec<f32>,
}

/// Computes the return and the score of each transition.
///
/// ```
/// use mage_core::{CreditAssignment, CreditConfig, Transition, TransitionKind, assign_credit};
/// use TransitionKind::{Play, Reflect};
///
/// // One meta-episode: a loss, a reflection, a win; one turn each.
/// let transition = |episode, kind, reward| Transition {
///     group: 0, meta_episode: 0, episode, turn: 0, kind, anchor: 0, opponent: 0, reward, penalty: 0.0,
/// };
/// let transitions = [transition(0, Play, -10.0), transition(1, Reflect, 0.0), transition(1, Play, 10.0)];
///
/// let mage = assign_credit(&transitions, &CreditConfig::default());
/// assert_eq!(mage.scores, [-10.0, 20.0, 20.0]);
/// assert_eq!(mage.returns, [-10.0 + 0.6 * 20.0, 20.0, 20.0]);
///
/// let cumulative = CreditConfig { assignment: CreditAssignment::Cumulative, ..CreditConfig::default() };
/// let lamer = assign_credit(&transitions, &cumulative);
/// assert_eq!(lamer.returns, [-10.0 + 0.6 * 10.0, 10.0, 10.0]);
/// ```
pub fn assign_credit(transitions: &[Transition], config: &CreditConfig) -> AssignedCredit {
    let mut out = AssignedCredit { returns: vec![0.0; transitions.len()], scores: vec![0.0; transitions.len()] };
    let mut order: Vec<usize> = (0..transitions.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |i: usize| {
            let t = &transitions[i];
            (t.meta_episode, t.episode, t.kind, t.turn)
        };
        // Amounts come last, so that sums over transitions of one turn do not depend on the input order either.
        key(a)
            .cmp(&key(b))
            .then(transitions[a].reward.total_cmp(&transitions[b].reward))
            .then(transitions[a].penalty.total_cmp(&transitions[b].penalty))
    });
    for meta_episode in order.chunk_by(|&a, &b| transitions[a].meta_episode == transitions[b].meta_episode) {
        let mut episodes: Vec<EpisodeCredit<'_>> = meta_episode
            .chunk_by(|&a, &b| transitions[a].episode == transitions[b].episode)
            .map(|members| EpisodeCredit::new(transitions, members, config.penalty))
            .collect();
        apply_assignment(&mut episodes, config.assignment);
        compute_returns(&mut episodes, config);
        for episode in &episodes {
            episode.write(transitions, config, &mut out);
        }
    }
    out
}

/// The return of each transition: [`assign_credit`] without the scores.
pub fn returns(transitions: &[Transition], config: &CreditConfig) -> Vec<f32> {
    assign_credit(transitions, config).returns
}

/// One episode of a meta-episode, with the reflections that belong to it.
struct EpisodeCredit<'a> {
    turns: Vec<TurnCredit<'a>>,
    reflections: &'a [usize],
    /// Sum of the credit of its turns after the assignment, before penalties per transition.
    score: f64,
    /// The reward of the previous episode, if it was subtracted from the last turn.
    previous: f64,
}

struct TurnCredit<'a> {
    transitions: &'a [usize],
    /// r̂: the reward of the turn; the assignment overwrites it.
    credit: f64,
    /// Deducted after the assignment.
    penalty: f64,
    /// G.
    value: f64,
}

impl<'a> EpisodeCredit<'a> {
    /// `members` are sorted by kind (play first) and turn.
    fn new(transitions: &[Transition], members: &'a [usize], mode: PenaltyMode) -> Self {
        let plays = members.partition_point(|&i| transitions[i].kind == TransitionKind::Play);
        let (played, reflections) = members.split_at(plays);
        let penalties = |of: &[usize]| of.iter().map(|&i| f64::from(transitions[i].penalty)).sum::<f64>();
        let mut turns: Vec<TurnCredit<'a>> = played
            .chunk_by(|&a, &b| transitions[a].turn == transitions[b].turn)
            .map(|of| {
                let reward: f64 = of.iter().map(|&i| f64::from(transitions[i].reward)).sum();
                let (before, after) = match mode {
                    PenaltyMode::EpisodeReward => (penalties(of), 0.0),
                    PenaltyMode::PerTransition => (0.0, penalties(of)),
                    PenaltyMode::EpisodeLevelOnly => (0.0, 0.0),
                };
                TurnCredit { transitions: of, credit: reward - before, penalty: after, value: 0.0 }
            })
            .collect();
        if let (PenaltyMode::EpisodeReward, Some(first)) = (mode, turns.first_mut()) {
            first.credit -= penalties(reflections);
        }
        EpisodeCredit { turns, reflections, score: 0.0, previous: 0.0 }
    }

    fn write(&self, transitions: &[Transition], config: &CreditConfig, out: &mut AssignedCredit) {
        // With `EpisodeReward` the reward of the episode already contains the penalty.
        let own_penalty = |i: usize| match config.penalty {
            PenaltyMode::EpisodeReward => 0.0,
            PenaltyMode::PerTransition | PenaltyMode::EpisodeLevelOnly => f64::from(transitions[i].penalty),
        };
        for turn in &self.turns {
            for &i in turn.transitions {
                out.returns[i] = to_f32(turn.value);
                out.scores[i] = to_f32(self.score - own_penalty(i));
            }
        }
        // A request before the episode precedes all of its turns; one in the middle precedes its own turn.
        let value_after = |i: usize| {
            let next = self.turns.iter().find(|t| transitions[t.transitions[0]].turn >= transitions[i].turn);
            next.map_or(0.0, |t| t.value)
        };
        for &i in self.reflections {
            let penalise_return = config.penalty == PenaltyMode::PerTransition;
            out.returns[i] = to_f32(value_after(i) - if penalise_return { own_penalty(i) } else { 0.0 });
            let score = match config.reflection {
                ReflectionScore::Corrected => self.score,
                ReflectionScore::Faithful => 0.0,
            };
            out.scores[i] = to_f32(score - own_penalty(i));
        }
    }
}

/// Overwrites the credit of each turn, and sets the score of each episode. With differential credit, the last turn
/// gets the differential return: the episode's return minus that of the previous episode (equations 5 and 6). An
/// episode without turns (its meta-episode ended after a reflection) has no credit and is skipped in the difference.
fn apply_assignment(episodes: &mut [EpisodeCredit<'_>], assignment: CreditAssignment) {
    let final_played = episodes.iter().rposition(|e| !e.turns.is_empty());
    let mut previous = 0.0;
    for (n, episode) in episodes.iter_mut().enumerate() {
        let total: f64 = episode.turns.iter().map(|t| t.credit).sum();
        let Some((last, before)) = episode.turns.split_last_mut() else { continue };
        episode.score = match assignment {
            CreditAssignment::Differential => {
                before.iter_mut().for_each(|t| t.credit = 0.0);
                last.credit = total - previous;
                episode.previous = previous;
                last.credit
            }
            CreditAssignment::Cumulative | CreditAssignment::Single => total,
            CreditAssignment::FinalOnly if Some(n) == final_played => total,
            CreditAssignment::FinalOnly => {
                episode.turns.iter_mut().for_each(|t| t.credit = 0.0);
                0.0
            }
        };
        previous = total;
    }
}

/// Sets the value of each turn, from the last to the first.
fn compute_returns(episodes: &mut [EpisodeCredit<'_>], config: &CreditConfig) {
    let gamma_traj = if config.assignment == CreditAssignment::Single { 0.0 } else { config.gamma_traj };
    // Discounted value of the later episodes at the end of the current one.
    let mut later_episodes = 0.0;
    for episode in episodes.iter_mut().rev().filter(|e| !e.turns.is_empty()) {
        // The recursions differ only in whether the turn discount applies to `later_episodes`.
        let (mut carried, outside) = match config.recursion {
            ReturnRecursion::Paper => (0.0, later_episodes),
            ReturnRecursion::Released => (later_episodes, 0.0),
        };
        for turn in episode.turns.iter_mut().rev() {
            let within = turn.credit - turn.penalty + carried;
            turn.value = within + outside;
            carried = config.gamma_step * within;
        }
        later_episodes = gamma_traj * episode.turns[0].value;
        if config.omit_previous_return {
            let mut correction = episode.previous;
            for turn in episode.turns.iter_mut().rev() {
                turn.value += correction;
                correction *= config.gamma_step;
            }
        }
    }
}

/// Converts to `f32`, clamped to its range, so that finite values stay finite.
pub(crate) fn to_f32(x: f64) -> f32 {
    x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}
