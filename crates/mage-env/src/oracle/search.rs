//! What is the best next action, all later episodes considered?
//!
//! Dynamic programming over beliefs. Within an episode the agent's knowledge is a set of *particles* (hidden type, spot,
//! weight) that all look the same to it; an action moves each of them, and what is seen next splits them into groups.
//! At an end the weights by type are the new belief, which moves by the chain into the next episode. Values are curves:
//! the expected score of this and every later episode under the best policy, so both objectives and all ties can be
//! read off one object.

use super::{
    grid::{Cell, Grid},
    hidden::Hidden,
    view::{Leads, SeatView, SpotId},
};
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

/// What a learner wants most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The best last episode; among equals, the larger sum.
    Last,
    /// The largest sum over episodes; among equals, the better last episode.
    Sum,
}

/// Values closer than this are equal, and the next criterion decides; at last, the order of actions.
const TIE: f64 = 1e-9;

/// Expected scores by episode, this one first.
pub(super) type Scores = SmallVec<[f64; 12]>;

impl Objective {
    fn rank(self, scores: &[f64]) -> (f64, f64) {
        let (last, sum) = (scores.last().copied().unwrap_or(0.0), scores.iter().sum());
        match self {
            Objective::Last => (last, sum),
            Objective::Sum => (sum, last),
        }
    }

    fn prefers(self, a: &[f64], b: &[f64]) -> bool {
        let (a, b) = (self.rank(a), self.rank(b));
        a.0 > b.0 + TIE || (a.0 >= b.0 - TIE && a.1 > b.1 + TIE)
    }
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
}

impl Model {
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
    /// By number of episodes left.
    levels: Vec<HashMap<Cell, Scores>>,
    /// How many particles were moved, a measure of the work done.
    pub(super) work: u64,
}

impl Memo {
    /// How many beliefs have a value.
    pub(super) fn beliefs(&self) -> usize {
        self.levels.iter().map(HashMap::len).sum()
    }
}

/// Too many beliefs for the work allowed.
#[derive(Debug)]
pub(super) struct TooMuch;

/// One search with its settings.
pub(super) struct Search<'m> {
    pub(super) model: &'m Model,
    pub(super) objective: Objective,
    pub(super) grid: Grid,
    pub(super) memo: &'m mut Memo,
    /// The most particles that may be moved.
    pub(super) work_limit: u64,
}

/// Values within one episode, by what may be the case; used where positions can be reached in several ways.
type Episode = HashMap<Cell, Scores>;

impl Search<'_> {
    /// Expected scores of the episodes left under the best policy from a belief.
    pub(super) fn from_belief(&mut self, belief: &[f64], left: u32) -> Result<Scores, TooMuch> {
        if left == 0 {
            return Ok(Scores::new());
        }
        let level = left as usize;
        if self.memo.levels.len() <= level {
            self.memo.levels.resize_with(level + 1, HashMap::new);
        }
        let (cell, belief) = self.grid.place(belief);
        if let Some(known) = self.memo.levels[level].get(&cell) {
            return Ok(known.clone());
        }
        let scores = self.over_groups(self.model.start(&belief), left, &mut Episode::new())?;
        self.memo.levels[level].insert(cell, scores.clone());
        Ok(scores)
    }

    /// The best action for a group of particles that look the same and whose weights add up to 1.
    pub(super) fn decide(&mut self, group: &[Particle], left: u32) -> Result<usize, TooMuch> {
        Ok(self.best(group, left, &mut Episode::new())?.0)
    }

    fn over_groups(&mut self, mut all: Vec<Particle>, left: u32, episode: &mut Episode) -> Result<Scores, TooMuch> {
        self.memo.work += all.len() as u64;
        if self.memo.work > self.work_limit {
            return Err(TooMuch);
        }
        let model = self.model;
        let mut total: Scores = smallvec![0.0; left as usize];
        for group in model.groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                let scores = self.of_group(group, left, episode)?;
                total.iter_mut().zip(&scores).for_each(|(t, s)| *t += weight * s);
            }
        }
        Ok(total)
    }

    fn of_group(&mut self, group: &[Particle], left: u32, episode: &mut Episode) -> Result<Scores, TooMuch> {
        let model = self.model;
        let spots = &model.view.spots;
        if model.view.sights[model.sight(&group[0]) as usize].over {
            let mut scores: Scores = smallvec![group.iter().map(|p| p.weight * spots[p.spot as usize].score).sum()];
            if left > 1 {
                let next = model.hidden.forward(&model.by_type(group));
                scores.extend(self.from_belief(&next, left - 1)?);
            }
            return Ok(scores);
        }
        if !model.view.transposes {
            return Ok(self.best(group, left, episode)?.1);
        }
        let key = group_key(group);
        if let Some(known) = episode.get(&key) {
            return Ok(known.clone());
        }
        let scores = self.best(group, left, episode)?.1;
        episode.insert(key, scores.clone());
        Ok(scores)
    }

    fn best(&mut self, group: &[Particle], left: u32, episode: &mut Episode) -> Result<(usize, Scores), TooMuch> {
        let model = self.model;
        let actions = model.view.sights[model.sight(&group[0]) as usize].actions.len();
        let mut best = (0, self.over_groups(model.after(group, 0), left, episode)?);
        for action in 1..actions {
            let scores = self.over_groups(model.after(group, action), left, episode)?;
            if self.objective.prefers(&scores, &best.1) {
                best = (action, scores);
            }
        }
        Ok(best)
    }
}

/// What may be the case, as a key: equal particles with equal weights have equal values.
pub(super) fn group_key(group: &[Particle]) -> Cell {
    let ids = group.iter().map(|p| u64::from(p.hidden) << 32 | u64::from(p.spot));
    ids.chain(Grid::FINEST.cell(group.iter().map(|p| p.weight))).collect()
}
