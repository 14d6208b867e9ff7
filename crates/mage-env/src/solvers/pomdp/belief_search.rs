//! Dynamic programming over beliefs.
//!
//! Within an episode, the agent's information is a group of weighted *particles* (hidden type, node) with the same
//! observation. An action moves every particle; the next observation splits them into groups. At a terminal node the
//! weights by type are the posterior, and the transition of hidden types turns it into the belief of the next episode.
//!
//! The value of a belief is a table: the expected score for every type and every remaining episode, under the policy
//! that is optimal for the belief. Both objectives, their tie-breaks and the curve by episode follow from it, and so
//! does the score of that policy from a different belief (the table is a generalised alpha vector).
//!
//! Beliefs of later episodes are either all solved ([`SearchMode::Exact`]) or only where the gap matters
//! ([`SearchMode::Bounded`]); the value then comes with an upper bound.

use super::{
    super::ScoreCurve,
    belief_key::{BeliefKey, belief_key},
    full_info_bound::{FullInfoBound, ObjectiveValues},
    hidden_type::HiddenTypes,
    seat_view::{NodeDistribution, NodeId, SeatView},
    value_bounds::{self, ValueBounds},
};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

/// The objective of a Bayes-adaptive policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreObjective {
    /// Maximise the last episode, then the sum.
    Last,
    /// Maximise the sum over episodes, then the last episode.
    Sum,
}

/// Expected scores by type and episode, current episode first: `left` values per type. A *joint* table is weighted by
/// the probability of each type, so its columns sum to expected scores; a *conditional* table is not weighted.
pub(super) type ScoreTable = SmallVec<[f64; 32]>;

/// Expected scores by episode of a joint table.
pub(super) fn by_episode(joint: &[f64], left: u32) -> Vec<f64> {
    let mut out = vec![0.0; left as usize];
    for row in joint.chunks_exact(left as usize) {
        out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
    }
    out
}

impl ScoreObjective {
    /// The primary criterion.
    pub(super) fn of(self, by_episode: &[f64]) -> f64 {
        match self {
            ScoreObjective::Last => by_episode.last().copied().unwrap_or(0.0),
            ScoreObjective::Sum => by_episode.iter().sum(),
        }
    }

    fn lex_value(self, values: ObjectiveValues) -> LexValue {
        match self {
            ScoreObjective::Last => (values.last, values.sum),
            ScoreObjective::Sum => (values.sum, values.last),
        }
    }
}

/// A lexicographic value: the primary criterion, then the tie-break.
pub(super) type LexValue = (f64, f64);

/// Lexicographic value of a joint table.
fn lex_value(objective: ScoreObjective, joint: &[f64], left: u32) -> LexValue {
    let left = left as usize;
    let last = joint.iter().skip(left - 1).step_by(left).sum();
    objective.lex_value(ObjectiveValues { last, sum: joint.iter().sum() })
}

/// Lexicographic values of a conditional table, by type.
pub(super) fn lex_values(objective: ScoreObjective, conditional: &[f64], left: u32) -> Vec<LexValue> {
    conditional.chunks_exact(left as usize).map(|row| lex_value(objective, row, left)).collect()
}

/// Whether `a` is better than `b`, ignoring differences up to `tie`.
pub(super) fn lex_better(a: LexValue, b: LexValue, tie: f64) -> bool {
    a.0 > b.0 + tie || (a.0 >= b.0 - tie && a.1 > b.1 + tie)
}

/// A hypothesis: hidden type and node, with its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Particle {
    pub(super) hidden: u32,
    pub(super) node: NodeId,
    pub(super) weight: f64,
}

/// The partially observable decision process of one seat against hidden opponents.
pub(super) struct AdaptationPomdp {
    pub(super) view: SeatView,
    pub(super) hidden: HiddenTypes,
    full_info: FullInfoBound,
}

impl AdaptationPomdp {
    /// For up to `episodes` episodes.
    pub(super) fn new(view: SeatView, hidden: HiddenTypes, episodes: u32) -> Self {
        let full_info = FullInfoBound::new(&view, &hidden);
        let mut model = AdaptationPomdp { view, hidden, full_info };
        let best = (0..model.hidden.types.len()).map(|t| model.best_response(t)).collect();
        model.full_info.extend(&model.hidden, best, episodes);
        model
    }

    /// Score of the best response to one type.
    fn best_response(&self, of: usize) -> f64 {
        let certain: Vec<f64> = (0..self.hidden.types.len()).map(|t| f64::from(u8::from(t == of))).collect();
        self.one_episode(&certain).iter().sum()
    }

    /// Score by episode of an agent that knows the type before every episode.
    pub(super) fn full_info(&self, episodes: u32) -> ScoreCurve {
        ScoreCurve { by_episode: self.scores_by_episode(self.best_response_values(), episodes) }
    }

    /// Expected score by episode of a policy with these scores by type.
    pub(super) fn scores_by_episode(&self, by_type: &[f64], episodes: u32) -> Vec<f64> {
        let mean = |m: &Vec<f64>| m.iter().zip(by_type).map(|(p, v)| p * v).sum();
        self.hidden.marginals(episodes).iter().map(mean).collect()
    }

    /// Belief of the best memoryless policy at the start of every episode: the mean marginal.
    pub(super) fn memoryless_belief(&self, episodes: u32) -> Vec<f64> {
        let mut mean = vec![0.0; self.hidden.types.len()];
        for m in &self.hidden.marginals(episodes) {
            mean.iter_mut().zip(m).for_each(|(a, b)| *a += b / f64::from(episodes));
        }
        mean
    }

    /// Score by type of the best memoryless policy. Types with zero belief get the minimum score.
    pub(super) fn memoryless_scores(&self, episodes: u32) -> Vec<f64> {
        let belief = self.memoryless_belief(episodes);
        condition_on_type(self.one_episode(&belief), &belief, 1, self.view.min_score).to_vec()
    }

    /// Scores of the best responses, by type.
    pub(super) fn best_response_values(&self) -> &[f64] {
        self.full_info.best_response_values()
    }

    /// Joint score table of the best policy for a single episode.
    pub(super) fn one_episode(&self, belief: &[f64]) -> ScoreTable {
        let (mut memo, mode) = (ValueMemo::default(), SearchMode::Exact { work_limit: u64::MAX });
        let search =
            BeliefSearch { model: self, objective: ScoreObjective::Sum, mode, memo: &mut memo }.solve_belief(belief, 1);
        search.expect("the work limit is infinite").joint
    }

    /// Upper bound of the value of some particles.
    fn upper_bound(&self, particles: &[Particle], left: u32) -> ObjectiveValues {
        let mut bound = ObjectiveValues::default();
        for p in particles {
            let strategy = self.hidden.types[p.hidden as usize].strategy;
            bound.add(p.weight, self.full_info.at_node(strategy, p.node, p.hidden as usize, left));
        }
        bound
    }

    fn observation(&self, p: &Particle) -> u32 {
        self.view.nodes[p.node as usize].observation
    }

    /// Particles at the agent's first decision (or terminal node) of an episode, sorted by observation.
    pub(super) fn initial_particles(&self, belief: &[f64]) -> Vec<Particle> {
        let types = self.hidden.types.iter().enumerate().filter(|(i, _)| belief[*i] > 0.0);
        self.collect_particles(types.map(|(i, t)| (i as u32, belief[i], self.view.starts(t.strategy, t.deal))))
    }

    /// Particles after an action, sorted by observation.
    pub(super) fn after_action(&self, group: &[Particle], action: usize) -> Vec<Particle> {
        self.collect_particles(group.iter().map(|p| {
            let strategy = self.hidden.types[p.hidden as usize].strategy;
            (p.hidden, p.weight, self.view.transitions(strategy, p.node, action))
        }))
    }

    fn collect_particles<'a>(&self, from: impl Iterator<Item = (u32, f64, &'a NodeDistribution)>) -> Vec<Particle> {
        let mut out: Vec<Particle> = Vec::new();
        for (hidden, weight, transitions) in from {
            out.extend(transitions.iter().map(|(node, p)| Particle { hidden, node: *node, weight: weight * p }));
        }
        out.sort_unstable_by_key(|p| (self.observation(p), p.hidden, p.node));
        out.dedup_by(|later, kept| {
            let same = later.hidden == kept.hidden && later.node == kept.node;
            if same {
                kept.weight += later.weight;
            }
            same
        });
        out
    }

    /// Groups of particles with the same observation.
    pub(super) fn observation_groups<'a>(
        &'a self,
        particles: &'a mut [Particle],
    ) -> impl Iterator<Item = &'a mut [Particle]> {
        particles.chunk_by_mut(|a, b| self.observation(a) == self.observation(b))
    }

    /// Total weight of each type.
    pub(super) fn type_weights(&self, group: &[Particle]) -> Vec<f64> {
        let mut out = vec![0.0; self.hidden.types.len()];
        group.iter().for_each(|p| out[p.hidden as usize] += p.weight);
        out
    }
}

/// Normalises the weights and returns their sum.
pub(super) fn normalise(group: &mut [Particle]) -> f64 {
    let total: f64 = group.iter().map(|p| p.weight).sum();
    if total > 0.0 {
        group.iter_mut().for_each(|p| p.weight /= total);
    }
    total
}

/// Memo of solved values for one objective.
#[derive(Default)]
pub(super) struct ValueMemo {
    /// Conditional tables by episodes left and belief, in exact mode.
    exact: Vec<HashMap<BeliefKey, ScoreTable>>,
    /// Value bounds by episodes left minus one, in bounded mode.
    bounds: Vec<ValueBounds>,
    /// Work done, in particle moves.
    work: u64,
}

impl ValueMemo {
    /// For [`SearchMode::Bounded`]: bounds for up to `episodes` episodes. The first lower bound is a policy that scores
    /// `memoryless_scores` by type in every episode.
    pub(super) fn bounded(
        model: &AdaptationPomdp,
        objective: ScoreObjective,
        memoryless_scores: &[f64],
        episodes: u32,
    ) -> Self {
        let mut memo = ValueMemo::default();
        for left in 1..=episodes {
            let width = left as usize;
            let mut conditional: ScoreTable = smallvec![0.0; memoryless_scores.len() * width];
            for (t, row) in conditional.chunks_exact_mut(width).enumerate() {
                row[0] = memoryless_scores[t];
                for (to, p) in model.hidden.transitions_from(t).filter(|_| left > 1) {
                    let later = memo.bounds[width - 2].scores(0);
                    row[1..].iter_mut().zip(&later[to * (width - 1)..]).for_each(|(x, y)| *x += p * y);
                }
            }
            memo.bounds.push(ValueBounds::new(objective, &model.full_info, left, conditional));
        }
        memo
    }

    /// Number of solved beliefs.
    pub(super) fn num_beliefs(&self) -> usize {
        self.exact.iter().map(HashMap::len).sum::<usize>()
            + self.bounds.iter().map(ValueBounds::num_points).sum::<usize>()
    }
}

/// This many float additions cost about as much as moving one particle.
const FLOATS_PER_PARTICLE: usize = 8;

/// Below this probability of reaching a belief, the tolerated gap grows in inverse proportion.
const RARE_REACH: f64 = 1e-3;

/// The work limit was reached.
#[derive(Debug)]
pub(super) struct WorkLimitExceeded;

/// Which beliefs of later episodes are solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SearchMode {
    /// All beliefs.
    Exact {
        /// Work limit; beyond it the search fails.
        work_limit: u64,
    },
    /// Beliefs whose gap, weighted by the probability of reaching them, exceeds the tolerance.
    Bounded {
        /// Tolerated gap per remaining episode.
        tolerance: f64,
        /// Work limit; beyond it no further belief is solved.
        work_limit: u64,
    },
}

impl SearchMode {
    /// Values within this difference count as equal; the tie-break decides.
    fn tie(self) -> f64 {
        match self {
            SearchMode::Exact { .. } => EXACT_TIE,
            SearchMode::Bounded { .. } => value_bounds::BOUND_TIE,
        }
    }
}

/// Tie tolerance of exact values.
pub(super) const EXACT_TIE: f64 = 1e-9;

/// Value of a policy and an upper bound of the optimum.
#[derive(Clone)]
pub(super) struct PolicyValue {
    /// The policy's joint score table.
    pub(super) joint: ScoreTable,
    /// Upper bound of the primary criterion. Maintained in [`SearchMode::Bounded`] only.
    pub(super) upper: f64,
}

/// A search with its settings.
pub(super) struct BeliefSearch<'m> {
    pub(super) model: &'m AdaptationPomdp,
    pub(super) objective: ScoreObjective,
    pub(super) mode: SearchMode,
    pub(super) memo: &'m mut ValueMemo,
}

/// Values within one episode by particle group; used where transpositions occur.
type EpisodeMemo = HashMap<BeliefKey, PolicyValue>;

impl BeliefSearch<'_> {
    /// Solves a belief with `left` episodes left.
    pub(super) fn solve_belief(&mut self, belief: &[f64], left: u32) -> Result<PolicyValue, WorkLimitExceeded> {
        self.expected_value(self.model.initial_particles(belief), left, 1.0, &mut EpisodeMemo::new())
    }

    /// Index of the best action for a normalised group of particles with the same observation.
    pub(super) fn best_action_index(&mut self, group: &[Particle], left: u32) -> Result<usize, WorkLimitExceeded> {
        Ok(self.best_action(group, left, 1.0, &mut EpisodeMemo::new())?.0)
    }

    /// Conditional score table of the later episodes, and an upper bound. `reach` is the probability of reaching this
    /// belief.
    fn next_episode_value(
        &mut self,
        belief: &[f64],
        left: u32,
        reach: f64,
    ) -> Result<(ScoreTable, f64), WorkLimitExceeded> {
        match self.mode {
            SearchMode::Exact { .. } => Ok((self.solve_exact(belief, left)?, 0.0)),
            SearchMode::Bounded { tolerance, .. } => {
                let bounds = &self.memo.bounds[left as usize - 1];
                let (alpha, lex_value) = bounds.lower(belief);
                let upper = bounds.upper(belief).max(lex_value.0);
                let conditional = bounds.scores(alpha).clone();
                self.memo.work += (bounds.scan_cost() / FLOATS_PER_PARTICLE) as u64;
                // The gap of a value is at least the sum of later gaps, so later episodes need a smaller tolerance.
                let allowed = tolerance * f64::from(left);
                let matters = upper - lex_value.0 > allowed && (upper - lex_value.0) * reach > allowed * RARE_REACH;
                if !matters
                    || bounds.solved_tolerance(belief).is_some_and(|solved_tolerance| solved_tolerance <= tolerance)
                {
                    return Ok((conditional, upper));
                }
                // A search cut short by the work limit is discarded; the previous bounds stay valid.
                let Ok(found) = self.solve_belief(belief, left) else { return Ok((conditional, upper)) };
                let least = self.model.view.min_score;
                let conditional = condition_on_type(found.joint, belief, left, least);
                let upper = found.upper.min(upper);
                self.memo.bounds[left as usize - 1].add_solved(belief, conditional.clone(), upper, left, tolerance);
                if left > 1 {
                    // A policy for `left` episodes is also a policy for one episode fewer.
                    let shorter = conditional.chunks_exact(left as usize).flat_map(|row| &row[..left as usize - 1]);
                    self.memo.bounds[left as usize - 2].add_alpha(shorter.copied().collect(), left - 1);
                }
                Ok((conditional, upper))
            }
        }
    }

    fn solve_exact(&mut self, belief: &[f64], left: u32) -> Result<ScoreTable, WorkLimitExceeded> {
        let level = left as usize;
        if self.memo.exact.len() <= level {
            self.memo.exact.resize_with(level + 1, HashMap::new);
        }
        let key = belief_key(belief.iter().copied());
        if let Some(known) = self.memo.exact[level].get(&key) {
            return Ok(known.clone());
        }
        let found = self.solve_belief(belief, left)?;
        let conditional = condition_on_type(found.joint, belief, left, 0.0);
        self.memo.exact[level].insert(key, conditional.clone());
        Ok(conditional)
    }

    fn expected_value(
        &mut self,
        mut all: Vec<Particle>,
        left: u32,
        reach: f64,
        episode: &mut EpisodeMemo,
    ) -> Result<PolicyValue, WorkLimitExceeded> {
        let model = self.model;
        let mut total = PolicyValue { joint: smallvec![0.0; model.hidden.types.len() * left as usize], upper: 0.0 };
        self.memo.work += (all.len() + total.joint.len() / FLOATS_PER_PARTICLE) as u64;
        let (SearchMode::Exact { work_limit } | SearchMode::Bounded { work_limit, .. }) = self.mode;
        if self.memo.work > work_limit {
            return Err(WorkLimitExceeded);
        }
        for group in model.observation_groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                let value = self.group_value(group, left, reach * weight, episode)?;
                total.joint.iter_mut().zip(&value.joint).for_each(|(t, s)| *t += weight * s);
                total.upper += weight * value.upper;
            }
        }
        Ok(total)
    }

    fn group_value(
        &mut self,
        group: &[Particle],
        left: u32,
        reach: f64,
        episode: &mut EpisodeMemo,
    ) -> Result<PolicyValue, WorkLimitExceeded> {
        let model = self.model;
        if model.view.observations[model.observation(&group[0]) as usize].terminal {
            return self.terminal_value(group, left, reach);
        }
        if !model.view.has_transpositions {
            return Ok(self.best_action(group, left, reach, episode)?.1);
        }
        let key = group_key(group);
        if let Some(known) = episode.get(&key) {
            return Ok(known.clone());
        }
        let value = self.best_action(group, left, reach, episode)?.1;
        episode.insert(key, value.clone());
        Ok(value)
    }

    fn terminal_value(&mut self, group: &[Particle], left: u32, reach: f64) -> Result<PolicyValue, WorkLimitExceeded> {
        let model = self.model;
        let width = left as usize;
        let mut joint: ScoreTable = smallvec![0.0; model.hidden.types.len() * width];
        let mut score = 0.0;
        for p in group {
            let scored = p.weight * model.view.nodes[p.node as usize].score;
            joint[p.hidden as usize * width] += scored;
            score += scored;
        }
        if left == 1 {
            return Ok(PolicyValue { joint, upper: score });
        }
        let believed = model.type_weights(group);
        let (conditional, upper) = self.next_episode_value(&model.hidden.predict(&believed), left - 1, reach)?;
        for (t, b) in believed.iter().enumerate().filter(|(_, b)| **b > 0.0) {
            for (to, p) in model.hidden.transitions_from(t) {
                let later = &conditional[to * (width - 1)..(to + 1) * (width - 1)];
                joint[t * width + 1..(t + 1) * width].iter_mut().zip(later).for_each(|(x, y)| *x += b * p * y);
            }
        }
        let now = if self.objective == ScoreObjective::Sum { score } else { 0.0 };
        Ok(PolicyValue { joint, upper: now + upper })
    }

    fn best_action(
        &mut self,
        group: &[Particle],
        left: u32,
        reach: f64,
        episode: &mut EpisodeMemo,
    ) -> Result<(usize, PolicyValue), WorkLimitExceeded> {
        let model = self.model;
        let tie = self.mode.tie();
        let actions = model.view.observations[model.observation(&group[0]) as usize].actions.len();
        let mut best = (0, self.expected_value(model.after_action(group, 0), left, reach, episode)?);
        let mut best_value = lex_value(self.objective, &best.1.joint, left);
        for action in 1..actions {
            let after = model.after_action(group, action);
            let bound = self.objective.lex_value(model.upper_bound(&after, left));
            if !lex_better(bound, best_value, tie) {
                best.1.upper = best.1.upper.max(bound.0);
                continue;
            }
            let value = self.expected_value(after, left, reach, episode)?;
            let upper = best.1.upper.max(value.upper);
            let new = lex_value(self.objective, &value.joint, left);
            if lex_better(new, best_value, tie) {
                (best, best_value) = ((action, value), new);
            }
            best.1.upper = upper;
        }
        Ok(best)
    }
}

/// Turns a joint table into a conditional one: divides by the belief. Types with zero belief get `least`, the minimum
/// score, in every episode: a valid lower bound of a policy that did not expect them.
fn condition_on_type(mut joint: ScoreTable, belief: &[f64], left: u32, least: f64) -> ScoreTable {
    for (row, b) in joint.chunks_exact_mut(left as usize).zip(belief) {
        row.iter_mut().for_each(|x| *x = if *b > 0.0 { *x / b } else { least });
    }
    joint
}

/// Memo key of a particle group.
pub(super) fn group_key(group: &[Particle]) -> BeliefKey {
    let ids = group.iter().map(|p| u64::from(p.hidden) << 32 | u64::from(p.node));
    ids.chain(belief_key(group.iter().map(|p| p.weight))).collect()
}
