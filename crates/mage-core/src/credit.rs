//! What was each call worth, counted from its own point of view?
//!
//! Rows in, two numbers per row out ([`AssignedCredit`]): the **return** G, what followed from this call on, and the
//! **score** S, what the call's own episode was worth. Estimators (see [`Estimator`](crate::Estimator)) turn them into
//! advantages.

use crate::{PenaltyMode, Transition, TransitionKind};
use mage_env::{Error, Result};
use serde::{Deserialize, Serialize};

/// How rewards become returns and scores.
///
/// In symbols, with episodes n = 1..N of one meta-episode, turns t = 1..T_n and R_n the sum of an episode's rewards
/// (R_0 = 0), every [`CreditAssignment`] first decides what a turn earned, r̂:
///
/// | assignment | r̂ | later episodes count? |
/// |---|---|---|
/// | differential | R_n − R_{n−1} on the last turn, 0 before (eq. 5, 6) | yes |
/// | cumulative | the turn's own reward (LaMer) | yes |
/// | single | the turn's own reward | no |
/// | final only | the turn's own reward in the last episode played, 0 before | yes |
///
/// and then the [`ReturnRecursion`] adds up what followed:
///
/// * paper (eq. 7): `G(n,t) = g(n,t) + Σ_{m>n} γ_traj^(m−n) g(m,1)` with `g(n,t) = Σ_{l≥t} γ_step^(l−t) r̂(n,l)`
/// * released: `G(n,T) = r̂(n,T) + γ_traj G(n+1,1)` and `G(n,t) = r̂(n,t) + γ_step G(n,t+1)`
///
/// A reflection's return is that of the first turn of the episode it belongs to. Episode and turn numbers only order
/// the rows; rows of one turn share its reward. What is asked for is found by these numbers, never by position, so the
/// order of the rows does not matter, to the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreditConfig {
    /// What a turn is said to have earned.
    pub assignment: CreditAssignment,
    /// How later turns and episodes are added up.
    pub recursion: ReturnRecursion,
    /// Discount from one turn of an episode to the next.
    pub gamma_step: f64,
    /// Discount from one episode to the next.
    pub gamma_traj: f64,
    /// What a reflection's score is.
    pub reflection: ReflectionScore,
    /// Where penalties enter.
    pub penalty: PenaltyMode,
    /// Leave the episode before, with which `differential` charges an episode, out of the episode's own returns. Its calls
    /// cannot change it any more, so this takes away noise and moves no expectation; what an episode adds to later ones is
    /// untouched. Other assignments charge nothing: there it does nothing.
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
    /// Refuses discounts outside 0..=1.
    pub fn validate(&self) -> Result<()> {
        for (key, gamma) in [("gamma_step", self.gamma_step), ("gamma_traj", self.gamma_traj)] {
            if !(0.0..=1.0).contains(&gamma) {
                return Err(Error::invalid(
                    format!("credit.{key}"),
                    format!("{gamma} is not a discount: give a number from 0 to 1"),
                ));
            }
        }
        Ok(())
    }
}

/// What a turn is said to have earned; see the table at [`CreditConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreditAssignment {
    /// The improvement over the episode before, on the last turn. At γ = 1 the improvements add up to the last
    /// episode's reward; at γ_traj = 0.6 and three episodes they weigh the episodes 0.40, 0.24, 0.36.
    #[default]
    Differential,
    /// Every reward as it was earned.
    Cumulative,
    /// Every reward as it was earned, and later episodes do not count, whatever γ_traj says.
    Single,
    /// Only the last episode played counts. γ_traj still weighs how much earlier episodes are moved by it: 1 for the
    /// literal objective.
    FinalOnly,
}

/// How later turns and episodes are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReturnRecursion {
    /// Equation 7, the default: what comes after the episode is discounted by episodes alone. An early move shapes the
    /// next episode through what memory keeps of it, no less than the last move does, however many turns the episode
    /// goes on; so patience across episodes stays a setting of its own.
    #[default]
    Paper,
    /// One backward pass as in the released code: what comes after the episode is discounted by γ_step as well, over
    /// the rest of this episode and all of those between. The same as `paper` when episodes have one turn.
    Released,
}

/// What a reflection's score is. Its return is the next episode's first return either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReflectionScore {
    /// The score of the episode it helps: the next episode's credit at every level.
    #[default]
    Corrected,
    /// 0, as released: at the episode level a reflection is then pushed towards or away from by the group's mean
    /// alone, whatever its quality.
    Faithful,
}

/// What [`credit`] found, in the order of the rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssignedCredit {
    /// G: the discounted sum of what followed from this row on.
    pub returns: Vec<f32>,
    /// S: what the row's episode earned as a whole, and what the row itself was penalised.
    pub scores: Vec<f32>,
}

/// The return and the score of every row.
///
/// ```
/// use mage_core::{CreditAssignment, CreditConfig, TransitionKind, Transition, assign_credit};
///
/// // One meta-episode: a loss, a reflection, a win; one turn each.
/// let row = |episode, kind, reward| Transition {
///     group: 0, meta_episode: 0, episode, turn: 0, kind, anchor: 0, opponent: 0, reward, penalty: 0.0,
/// };
/// let rows = [row(0, TransitionKind::Play, -10.0), row(1, TransitionKind::Reflect, 0.0), row(1, TransitionKind::Play, 10.0)];
///
/// let mage = assign_credit(&rows, &CreditConfig::default());
/// assert_eq!(mage.scores, [-10.0, 20.0, 20.0]);
/// assert_eq!(mage.returns, [-10.0 + 0.6 * 20.0, 20.0, 20.0]);
///
/// let lamer = assign_credit(&rows, &CreditConfig { assignment: CreditAssignment::Cumulative, ..CreditConfig::default() });
/// assert_eq!(lamer.returns, [-10.0 + 0.6 * 10.0, 10.0, 10.0]);
/// ```
pub fn assign_credit(rows: &[Transition], credit: &CreditConfig) -> AssignedCredit {
    let mut out = AssignedCredit { returns: vec![0.0; rows.len()], scores: vec![0.0; rows.len()] };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| {
        let place = |i: usize| (rows[i].meta_episode, rows[i].episode, rows[i].kind, rows[i].turn);
        // The amounts come last so that sums over rows of one turn do not depend on the input's order either.
        place(a)
            .cmp(&place(b))
            .then(rows[a].reward.total_cmp(&rows[b].reward))
            .then(rows[a].penalty.total_cmp(&rows[b].penalty))
    });
    for meta_episode in order.chunk_by(|&a, &b| rows[a].meta_episode == rows[b].meta_episode) {
        let mut episodes: Vec<Episode<'_>> = meta_episode
            .chunk_by(|&a, &b| rows[a].episode == rows[b].episode)
            .map(|members| Episode::new(rows, members, credit.penalty))
            .collect();
        assign(&mut episodes, credit.assignment);
        add_up(&mut episodes, credit);
        for episode in &episodes {
            episode.write(rows, credit, &mut out);
        }
    }
    out
}

/// The return of every row: [`credit`] without the scores.
pub fn returns(rows: &[Transition], how: &CreditConfig) -> Vec<f32> {
    assign_credit(rows, how).returns
}

/// One episode of one meta-episode, and the reflections that belong to it.
struct Episode<'a> {
    turns: Vec<Turn<'a>>,
    reflections: &'a [usize],
    /// Σ of what the turns earned once the assignment is applied, before penalties of their own.
    score: f64,
    /// The reward of the episode before, where the last turn is charged with it.
    charged: f64,
}

struct Turn<'a> {
    rows: &'a [usize],
    /// The turn's reward; the assignment rewrites it.
    earned: f64,
    /// Deducted after the assignment.
    penalty: f64,
    /// G.
    value: f64,
}

impl<'a> Episode<'a> {
    /// `members` stand in order of phase (play first) and turn.
    fn new(rows: &[Transition], members: &'a [usize], mode: PenaltyMode) -> Self {
        let plays = members.partition_point(|&i| rows[i].kind == TransitionKind::Play);
        let (played, reflections) = members.split_at(plays);
        let penalties = |of: &[usize]| of.iter().map(|&i| f64::from(rows[i].penalty)).sum::<f64>();
        let mut turns: Vec<Turn<'a>> = played
            .chunk_by(|&a, &b| rows[a].turn == rows[b].turn)
            .map(|of| {
                let reward: f64 = of.iter().map(|&i| f64::from(rows[i].reward)).sum();
                let (inside, after) = match mode {
                    PenaltyMode::EpisodeReward => (penalties(of), 0.0),
                    PenaltyMode::PerTransition => (0.0, penalties(of)),
                    PenaltyMode::EpisodeLevelOnly => (0.0, 0.0),
                };
                Turn { rows: of, earned: reward - inside, penalty: after, value: 0.0 }
            })
            .collect();
        if let (PenaltyMode::EpisodeReward, Some(first)) = (mode, turns.first_mut()) {
            first.earned -= penalties(reflections);
        }
        Episode { turns, reflections, score: 0.0, charged: 0.0 }
    }

    fn write(&self, rows: &[Transition], credit: &CreditConfig, out: &mut AssignedCredit) {
        // Inside the episode's reward the penalty has been paid already.
        let own_penalty = |i: usize| match credit.penalty {
            PenaltyMode::EpisodeReward => 0.0,
            PenaltyMode::PerTransition | PenaltyMode::EpisodeLevelOnly => f64::from(rows[i].penalty),
        };
        for turn in &self.turns {
            for &i in turn.rows {
                out.returns[i] = narrow(turn.value);
                out.scores[i] = narrow(self.score - own_penalty(i));
            }
        }
        // A call before the episode helps all of it; one made in the middle helps from its own turn on.
        let follows = |i: usize| {
            let helped = self.turns.iter().find(|t| rows[t.rows[0]].turn >= rows[i].turn);
            helped.map_or(0.0, |t| t.value)
        };
        for &i in self.reflections {
            let reaches_return = credit.penalty == PenaltyMode::PerTransition;
            out.returns[i] = narrow(follows(i) - if reaches_return { own_penalty(i) } else { 0.0 });
            let score = match credit.reflection {
                ReflectionScore::Corrected => self.score,
                ReflectionScore::Faithful => 0.0,
            };
            out.scores[i] = narrow(score - own_penalty(i));
        }
    }
}

/// Rewrites what each turn earned, and sets each episode's score. An episode nobody played (rows of a meta-episode that
/// broke off after a reflection) earns nothing and is not compared with.
fn assign(episodes: &mut [Episode<'_>], assignment: CreditAssignment) {
    let final_played = episodes.iter().rposition(|e| !e.turns.is_empty());
    let mut previous = 0.0;
    for (n, episode) in episodes.iter_mut().enumerate() {
        let total: f64 = episode.turns.iter().map(|t| t.earned).sum();
        let Some((last, before)) = episode.turns.split_last_mut() else { continue };
        episode.score = match assignment {
            CreditAssignment::Differential => {
                before.iter_mut().for_each(|t| t.earned = 0.0);
                last.earned = total - previous;
                episode.charged = previous;
                last.earned
            }
            CreditAssignment::Cumulative | CreditAssignment::Single => total,
            CreditAssignment::FinalOnly if Some(n) == final_played => total,
            CreditAssignment::FinalOnly => {
                episode.turns.iter_mut().for_each(|t| t.earned = 0.0);
                0.0
            }
        };
        previous = total;
    }
}

/// Sets every turn's value, from the last to the first.
fn add_up(episodes: &mut [Episode<'_>], credit: &CreditConfig) {
    let gamma_traj = if credit.assignment == CreditAssignment::Single { 0.0 } else { credit.gamma_traj };
    // What the episodes after this one are worth, seen from its end.
    let mut beyond = 0.0;
    for episode in episodes.iter_mut().rev().filter(|e| !e.turns.is_empty()) {
        // The two recursions differ only in whether this goes through the turns' discount or past it.
        let (mut carried, outside) = match credit.recursion {
            ReturnRecursion::Paper => (0.0, beyond),
            ReturnRecursion::Released => (beyond, 0.0),
        };
        for turn in episode.turns.iter_mut().rev() {
            let within = turn.earned - turn.penalty + carried;
            turn.value = within + outside;
            carried = credit.gamma_step * within;
        }
        beyond = gamma_traj * episode.turns[0].value;
        if credit.omit_previous_return {
            let mut charge = episode.charged;
            for turn in episode.turns.iter_mut().rev() {
                turn.value += charge;
                charge *= credit.gamma_step;
            }
        }
    }
}

/// To the width of the wire. What does not fit becomes the largest number that does, so that finite stays finite.
pub(crate) fn narrow(x: f64) -> f32 {
    x.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}
