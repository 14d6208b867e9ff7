//! What is the best next action, all later episodes considered?
//!
//! Dynamic programming over beliefs. Within an episode the agent's knowledge is a set of *particles* (hidden type, spot,
//! weight) that all look the same to it; an action moves each of them, and what is seen next splits them into groups.
//! At an end the weights by type are the new belief, which moves by the chain into the next episode.
//!
//! A value is not one number but an expected score for every type and every episode left, under the policy that is best
//! for the belief. Both objectives, all ties and the curve by episode can be read off it, and what a policy earns from
//! a different belief as well.
//!
//! Beliefs of later episodes are either all solved ([`Way::Exact`]) or, where there are too many, only where it pays
//! ([`Way::Fenced`]); then a value comes with what nobody exceeds.

use super::{
    super::ScoreCurve,
    belief_key::{Cell, noise_free},
    full_info_bound::{Hope, Told},
    hidden_type::Hidden,
    seat_view::{Leads, SeatView, SpotId},
    value_bounds::{self, Fences},
};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

/// What a learner wants most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreObjective {
    /// The best last episode; among equals, the larger sum.
    Last,
    /// The largest sum over episodes; among equals, the better last episode.
    Sum,
}

/// Expected scores by type and episode, this episode first: `left` numbers for each type. A *joint* table is weighted
/// by how likely each type is, so that its columns add up to expected scores; a *given* table is not.
pub(super) type Table = SmallVec<[f64; 32]>;

/// Expected scores by episode, of a joint table.
pub(super) fn by_episode(joint: &[f64], left: u32) -> Vec<f64> {
    let mut out = vec![0.0; left as usize];
    for row in joint.chunks_exact(left as usize) {
        out.iter_mut().zip(row).for_each(|(o, x)| *o += x);
    }
    out
}

impl ScoreObjective {
    /// What counts first, of scores by episode.
    pub(super) fn of(self, by_episode: &[f64]) -> f64 {
        match self {
            ScoreObjective::Last => by_episode.last().copied().unwrap_or(0.0),
            ScoreObjective::Sum => by_episode.iter().sum(),
        }
    }

    fn rank(self, hope: Hope) -> Rank {
        match self {
            ScoreObjective::Last => (hope.last, hope.sum),
            ScoreObjective::Sum => (hope.sum, hope.last),
        }
    }
}

/// What counts first, and what counts among equals.
pub(super) type Rank = (f64, f64);

/// The rank of a joint table.
fn rank(objective: ScoreObjective, joint: &[f64], left: u32) -> Rank {
    let left = left as usize;
    let last = joint.iter().skip(left - 1).step_by(left).sum();
    objective.rank(Hope { last, sum: joint.iter().sum() })
}

/// The rank of a given table, by type.
pub(super) fn ranks(objective: ScoreObjective, given: &[f64], left: u32) -> Vec<Rank> {
    given.chunks_exact(left as usize).map(|row| rank(objective, row, left)).collect()
}

/// Whether rank `a` is better than `b`, where differences within `tie` do not count.
pub(super) fn better(a: Rank, b: Rank, tie: f64) -> bool {
    a.0 > b.0 + tie || (a.0 >= b.0 - tie && a.1 > b.1 + tie)
}

/// Something that may be the case: this type, at this spot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Particle {
    pub(super) hidden: u32,
    pub(super) spot: SpotId,
    pub(super) weight: f64,
}

/// The game as one seat sees it, and what it does not know.
pub(super) struct Model {
    pub(super) view: SeatView,
    pub(super) hidden: Hidden,
    told: Told,
}

impl Model {
    /// For up to so many episodes.
    pub(super) fn new(view: SeatView, hidden: Hidden, episodes: u32) -> Self {
        let told = Told::new(&view, &hidden);
        let mut model = Model { view, hidden, told };
        let best = (0..model.hidden.types.len()).map(|t| model.best_response(t)).collect();
        model.told.look_ahead(&model.hidden, best, episodes);
        model
    }

    /// What the best response to one type earns.
    fn best_response(&self, of: usize) -> f64 {
        let certain: Vec<f64> = (0..self.hidden.types.len()).map(|t| f64::from(u8::from(t == of))).collect();
        self.one_episode(&certain).iter().sum()
    }

    /// What someone who is told the type before every episode earns, by episode.
    pub(super) fn full_info(&self, episodes: u32) -> ScoreCurve {
        ScoreCurve { by_episode: self.earned(self.best_responses(), episodes) }
    }

    /// What someone who earns so much against each type earns, by episode.
    pub(super) fn earned(&self, by_type: &[f64], episodes: u32) -> Vec<f64> {
        let mean = |m: &Vec<f64>| m.iter().zip(by_type).map(|(p, v)| p * v).sum();
        self.hidden.marginals(episodes).iter().map(mean).collect()
    }

    /// What the best policy without memory believes at the start of every episode: the mean of what is true of them.
    pub(super) fn memoryless_belief(&self, episodes: u32) -> Vec<f64> {
        let mut mean = vec![0.0; self.hidden.types.len()];
        for m in &self.hidden.marginals(episodes) {
            mean.iter_mut().zip(m).for_each(|(a, b)| *a += b / f64::from(episodes));
        }
        mean
    }

    /// What that policy earns against each type; the least there is against one that is never met.
    pub(super) fn steady(&self, episodes: u32) -> Vec<f64> {
        let belief = self.memoryless_belief(episodes);
        given_each(self.one_episode(&belief), &belief, 1, self.view.least_score).to_vec()
    }

    /// What the best response to each type earns.
    pub(super) fn best_responses(&self) -> &[f64] {
        self.told.best()
    }

    /// What the best policy for one episode earns, by type and weighted by a belief.
    pub(super) fn one_episode(&self, belief: &[f64]) -> Table {
        let (mut memo, way) = (Memo::default(), Way::Exact { work_limit: u64::MAX });
        let search = Search { model: self, objective: ScoreObjective::Sum, way, memo: &mut memo }.best_of(belief, 1);
        search.expect("work is not limited here").joint
    }

    /// The most that may come of some particles.
    fn hope(&self, particles: &[Particle], left: u32) -> Hope {
        let mut hope = Hope::default();
        for p in particles {
            let strategy = self.hidden.types[p.hidden as usize].strategy;
            hope.add(p.weight, self.told.at_spot(strategy, p.spot, p.hidden as usize, left));
        }
        hope
    }

    fn sight(&self, p: &Particle) -> u32 {
        self.view.spots[p.spot as usize].sight
    }

    /// What may be the case at the agent's first decision (or end) of an episode, by what it sees.
    pub(super) fn start(&self, belief: &[f64]) -> Vec<Particle> {
        let types = self.hidden.types.iter().enumerate().filter(|(i, _)| belief[*i] > 0.0);
        self.gather(types.map(|(i, t)| (i as u32, belief[i], self.view.starts(t.strategy, t.deal))))
    }

    /// What may be the case after an action, by what is seen then.
    pub(super) fn after(&self, group: &[Particle], action: usize) -> Vec<Particle> {
        self.gather(group.iter().map(|p| {
            let strategy = self.hidden.types[p.hidden as usize].strategy;
            (p.hidden, p.weight, self.view.leads(strategy, p.spot, action))
        }))
    }

    fn gather<'a>(&self, from: impl Iterator<Item = (u32, f64, &'a Leads)>) -> Vec<Particle> {
        let mut out: Vec<Particle> = Vec::new();
        for (hidden, weight, leads) in from {
            out.extend(leads.iter().map(|(spot, p)| Particle { hidden, spot: *spot, weight: weight * p }));
        }
        out.sort_unstable_by_key(|p| (self.sight(p), p.hidden, p.spot));
        out.dedup_by(|later, kept| {
            let same = later.hidden == kept.hidden && later.spot == kept.spot;
            if same {
                kept.weight += later.weight;
            }
            same
        });
        out
    }

    /// Groups of particles that look the same.
    pub(super) fn groups<'a>(&'a self, particles: &'a mut [Particle]) -> impl Iterator<Item = &'a mut [Particle]> {
        particles.chunk_by_mut(|a, b| self.sight(a) == self.sight(b))
    }

    /// The weight of each type.
    pub(super) fn by_type(&self, group: &[Particle]) -> Vec<f64> {
        let mut out = vec![0.0; self.hidden.types.len()];
        group.iter().for_each(|p| out[p.hidden as usize] += p.weight);
        out
    }
}

/// Makes the weights add up to 1, and returns what they added up to.
pub(super) fn normalise(group: &mut [Particle]) -> f64 {
    let total: f64 = group.iter().map(|p| p.weight).sum();
    if total > 0.0 {
        group.iter_mut().for_each(|p| p.weight /= total);
    }
    total
}

/// Values found so far, for one objective.
#[derive(Default)]
pub(super) struct Memo {
    /// By number of episodes left: given tables by belief, where all are solved.
    solved: Vec<HashMap<Cell, Table>>,
    /// By number of episodes left but one: what is known of all beliefs, where not all are solved.
    fences: Vec<Fences>,
    /// How many particles were moved, and numbers added up: a measure of the work done.
    work: u64,
}

impl Memo {
    /// For [`Way::Fenced`]: up to so many episodes, where somebody is known who earns `steady` against each type, whatever
    /// the episode.
    pub(super) fn fenced(model: &Model, objective: ScoreObjective, steady: &[f64], episodes: u32) -> Self {
        let mut memo = Memo::default();
        for left in 1..=episodes {
            let width = left as usize;
            let mut given: Table = smallvec![0.0; steady.len() * width];
            for (t, row) in given.chunks_exact_mut(width).enumerate() {
                row[0] = steady[t];
                for (to, p) in model.hidden.next_of(t).filter(|_| left > 1) {
                    let later = memo.fences[width - 2].given(0);
                    row[1..].iter_mut().zip(&later[to * (width - 1)..]).for_each(|(x, y)| *x += p * y);
                }
            }
            memo.fences.push(Fences::new(objective, &model.told, left, given));
        }
        memo
    }

    /// How many beliefs have a value.
    pub(super) fn beliefs(&self) -> usize {
        self.solved.iter().map(HashMap::len).sum::<usize>() + self.fences.iter().map(Fences::len).sum::<usize>()
    }
}

/// Adding up so many numbers takes about as long as moving a particle.
const NUMBERS_PER_PARTICLE: usize = 8;

/// An end this unlikely may leave a value a thousand times as uncertain.
const SELDOM: f64 = 1e-3;

/// Too many beliefs for the work allowed.
#[derive(Debug)]
pub(super) struct TooMuch;

/// Which beliefs of later episodes are solved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// All; or none, where that were more work than allowed.
    Exact {
        /// The most work that may be done.
        work_limit: u64,
    },
    /// Those whose value is so uncertain, and that are reached so often, that it matters; as long as work is allowed.
    Fenced {
        /// How uncertain a value may be, for each episode left.
        allowance: f64,
        /// From when on nothing more is solved.
        work_limit: u64,
    },
}

impl Way {
    /// Values closer than this are equal, and the next criterion decides.
    fn tie(self) -> f64 {
        match self {
            Way::Exact { .. } => EXACT_TIE,
            Way::Fenced { .. } => value_bounds::TIE,
        }
    }
}

/// Where everything is exact, values closer than this are equal.
pub(super) const EXACT_TIE: f64 = 1e-9;

/// What a policy earns, and what none exceeds.
#[derive(Clone)]
pub(super) struct Value {
    /// The policy's expected scores by type and episode, weighted.
    pub(super) joint: Table,
    /// What nobody exceeds, in what counts first. Only [`Way::Fenced`] keeps it apart from what the policy earns.
    pub(super) most: f64,
}

/// One search with its settings.
pub(super) struct Search<'m> {
    pub(super) model: &'m Model,
    pub(super) objective: ScoreObjective,
    pub(super) way: Way,
    pub(super) memo: &'m mut Memo,
}

/// Values within one episode, by what may be the case; used where positions can be reached in several ways.
type Episode = HashMap<Cell, Value>;

impl Search<'_> {
    /// The best policy from a belief with `left` episodes left.
    pub(super) fn best_of(&mut self, belief: &[f64], left: u32) -> Result<Value, TooMuch> {
        self.over_groups(self.model.start(belief), left, 1.0, &mut Episode::new())
    }

    /// The best action for a group of particles that look the same and whose weights add up to 1.
    pub(super) fn decide(&mut self, group: &[Particle], left: u32) -> Result<usize, TooMuch> {
        Ok(self.best(group, left, 1.0, &mut Episode::new())?.0)
    }

    /// Expected scores given each type, in the next episode and later, and what nobody exceeds. `reach` is how likely an
    /// episode is to end so.
    fn later(&mut self, belief: &[f64], left: u32, reach: f64) -> Result<(Table, f64), TooMuch> {
        match self.way {
            Way::Exact { .. } => Ok((self.solved(belief, left)?, 0.0)),
            Way::Fenced { allowance, .. } => {
                let fences = &self.memo.fences[left as usize - 1];
                let (plan, rank) = fences.below(belief);
                let most = fences.above(belief).max(rank.0);
                let given = fences.given(plan).clone();
                self.memo.work += (fences.size() / NUMBERS_PER_PARTICLE) as u64;
                // A value can be no surer than those of the episodes that follow, so that these must be surer.
                let allowed = allowance * f64::from(left);
                let matters = most - rank.0 > allowed && (most - rank.0) * reach > allowed * SELDOM;
                if !matters || fences.solved_for(belief).is_some_and(|for_allowance| for_allowance <= allowance) {
                    return Ok((given, most));
                }
                // What is begun when work runs out is left, and what was known before stands.
                let Ok(found) = self.best_of(belief, left) else { return Ok((given, most)) };
                let least = self.model.view.least_score;
                let given = given_each(found.joint, belief, left, least);
                let most = found.most.min(most);
                self.memo.fences[left as usize - 1].add(belief, given.clone(), most, left, allowance);
                if left > 1 {
                    // Whoever has a plan for so many episodes has one for fewer.
                    let shorter = given.chunks_exact(left as usize).flat_map(|row| &row[..left as usize - 1]);
                    self.memo.fences[left as usize - 2].add_plan(shorter.copied().collect(), left - 1);
                }
                Ok((given, most))
            }
        }
    }

    fn solved(&mut self, belief: &[f64], left: u32) -> Result<Table, TooMuch> {
        let level = left as usize;
        if self.memo.solved.len() <= level {
            self.memo.solved.resize_with(level + 1, HashMap::new);
        }
        let cell = noise_free(belief.iter().copied());
        if let Some(known) = self.memo.solved[level].get(&cell) {
            return Ok(known.clone());
        }
        let found = self.best_of(belief, left)?;
        let given = given_each(found.joint, belief, left, 0.0);
        self.memo.solved[level].insert(cell, given.clone());
        Ok(given)
    }

    fn over_groups(
        &mut self,
        mut all: Vec<Particle>,
        left: u32,
        reach: f64,
        episode: &mut Episode,
    ) -> Result<Value, TooMuch> {
        let model = self.model;
        let mut total = Value { joint: smallvec![0.0; model.hidden.types.len() * left as usize], most: 0.0 };
        self.memo.work += (all.len() + total.joint.len() / NUMBERS_PER_PARTICLE) as u64;
        let (Way::Exact { work_limit } | Way::Fenced { work_limit, .. }) = self.way;
        if self.memo.work > work_limit {
            return Err(TooMuch);
        }
        for group in model.groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                let value = self.of_group(group, left, reach * weight, episode)?;
                total.joint.iter_mut().zip(&value.joint).for_each(|(t, s)| *t += weight * s);
                total.most += weight * value.most;
            }
        }
        Ok(total)
    }

    fn of_group(&mut self, group: &[Particle], left: u32, reach: f64, episode: &mut Episode) -> Result<Value, TooMuch> {
        let model = self.model;
        if model.view.sights[model.sight(&group[0]) as usize].over {
            return self.at_end(group, left, reach);
        }
        if !model.view.transposes {
            return Ok(self.best(group, left, reach, episode)?.1);
        }
        let key = group_key(group);
        if let Some(known) = episode.get(&key) {
            return Ok(known.clone());
        }
        let value = self.best(group, left, reach, episode)?.1;
        episode.insert(key, value.clone());
        Ok(value)
    }

    fn at_end(&mut self, group: &[Particle], left: u32, reach: f64) -> Result<Value, TooMuch> {
        let model = self.model;
        let width = left as usize;
        let mut joint: Table = smallvec![0.0; model.hidden.types.len() * width];
        let mut score = 0.0;
        for p in group {
            let scored = p.weight * model.view.spots[p.spot as usize].score;
            joint[p.hidden as usize * width] += scored;
            score += scored;
        }
        if left == 1 {
            return Ok(Value { joint, most: score });
        }
        let believed = model.by_type(group);
        let (given, most) = self.later(&model.hidden.forward(&believed), left - 1, reach)?;
        for (t, b) in believed.iter().enumerate().filter(|(_, b)| **b > 0.0) {
            for (to, p) in model.hidden.next_of(t) {
                let later = &given[to * (width - 1)..(to + 1) * (width - 1)];
                joint[t * width + 1..(t + 1) * width].iter_mut().zip(later).for_each(|(x, y)| *x += b * p * y);
            }
        }
        let now = if self.objective == ScoreObjective::Sum { score } else { 0.0 };
        Ok(Value { joint, most: now + most })
    }

    fn best(
        &mut self,
        group: &[Particle],
        left: u32,
        reach: f64,
        episode: &mut Episode,
    ) -> Result<(usize, Value), TooMuch> {
        let model = self.model;
        let tie = self.way.tie();
        let actions = model.view.sights[model.sight(&group[0]) as usize].actions.len();
        let mut best = (0, self.over_groups(model.after(group, 0), left, reach, episode)?);
        let mut best_rank = rank(self.objective, &best.1.joint, left);
        for action in 1..actions {
            let after = model.after(group, action);
            let hope = self.objective.rank(model.hope(&after, left));
            if !better(hope, best_rank, tie) {
                best.1.most = best.1.most.max(hope.0);
                continue;
            }
            let value = self.over_groups(after, left, reach, episode)?;
            let most = best.1.most.max(value.most);
            let new = rank(self.objective, &value.joint, left);
            if better(new, best_rank, tie) {
                (best, best_rank) = ((action, value), new);
            }
            best.1.most = most;
        }
        Ok(best)
    }
}

/// From a joint table to a given one: what is earned if a type that was held possible is the case, and `least` in every
/// episode otherwise, which whoever did not expect it earns at least.
fn given_each(mut joint: Table, belief: &[f64], left: u32, least: f64) -> Table {
    for (row, b) in joint.chunks_exact_mut(left as usize).zip(belief) {
        row.iter_mut().for_each(|x| *x = if *b > 0.0 { *x / b } else { least });
    }
    joint
}

/// What may be the case, as a key: equal particles with equal weights have equal values.
pub(super) fn group_key(group: &[Particle]) -> Cell {
    let ids = group.iter().map(|p| u64::from(p.hidden) << 32 | u64::from(p.spot));
    ids.chain(noise_free(group.iter().map(|p| p.weight))).collect()
}
