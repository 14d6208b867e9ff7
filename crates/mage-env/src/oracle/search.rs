//! What is the best next action, all later episodes considered?
//!
//! Dynamic programming over beliefs. Within an episode the agent's knowledge is a set of *particles* (hidden type, spot,
//! weight) that all look the same to it; an action moves each of them, and what is seen next splits them into groups.
//! At an end the weights by type are the new belief, which moves by the chain into the next episode.
//!
//! A value is not one number but an expected score for every type and every episode left, under the policy that is best
//! for the belief. Both objectives, all ties and the curve by episode can be read off it, and what a policy earns from
//! a slightly different belief as well.

use super::{
    grid::{Cell, Grid, Point, noise_free},
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

impl Objective {
    /// What counts first, of scores by episode.
    pub(super) fn of(self, by_episode: &[f64]) -> f64 {
        match self {
            Objective::Last => by_episode.last().copied().unwrap_or(0.0),
            Objective::Sum => by_episode.iter().sum(),
        }
    }

    fn rank(self, joint: &[f64], left: u32) -> (f64, f64) {
        let left = left as usize;
        let last = joint.iter().skip(left - 1).step_by(left).sum();
        let sum = joint.iter().sum();
        match self {
            Objective::Last => (last, sum),
            Objective::Sum => (sum, last),
        }
    }
}

/// Whether rank `a` is better than `b`, where differences within `tie` do not count.
fn better(a: (f64, f64), b: (f64, f64), tie: f64) -> bool {
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

/// Values found so far, for one objective on one grid.
#[derive(Default)]
pub(super) struct Memo {
    /// By number of episodes left: given tables by grid point.
    levels: Vec<HashMap<Cell, Table>>,
    /// How many particles were moved, and numbers added up: a measure of the work done.
    work: u64,
}

impl Memo {
    /// How much has been done.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    /// How many beliefs have a value.
    pub(super) fn beliefs(&self) -> usize {
        self.levels.iter().map(HashMap::len).sum()
    }
}

/// Adding up so many numbers takes about as long as moving a particle.
const NUMBERS_PER_PARTICLE: usize = 8;

/// Too many beliefs for the work allowed.
#[derive(Debug)]
pub(super) struct TooMuch;

/// One search with its settings.
pub(super) struct Search<'m> {
    pub(super) model: &'m Model,
    pub(super) objective: Objective,
    pub(super) grid: Grid,
    pub(super) memo: &'m mut Memo,
    /// The most work that may be done.
    pub(super) work_limit: u64,
}

/// Joint tables within one episode, by what may be the case; used where positions can be reached in several ways.
type Episode = HashMap<Cell, Table>;

impl Search<'_> {
    /// Expected scores of the `left` episodes left, by type and weighted by a belief, under the best policy from it.
    pub(super) fn best_of(&mut self, belief: &[f64], left: u32) -> Result<Table, TooMuch> {
        self.over_groups(self.model.start(belief), left, &mut Episode::new())
    }

    /// The best action for a group of particles that look the same and whose weights add up to 1.
    pub(super) fn decide(&mut self, group: &[Particle], left: u32) -> Result<usize, TooMuch> {
        Ok(self.best(group, left, &mut Episode::new())?.0)
    }

    /// Expected scores given each type, in the next episode and later, by the grid's points for the belief.
    fn later(&mut self, belief: &[f64], left: u32) -> Result<Table, TooMuch> {
        let points = self.grid.points(belief);
        if let [only] = points.as_slice() {
            return self.at_point(only, left);
        }
        let mut mixed: Table = smallvec![0.0; belief.len() * left as usize];
        for point in &points {
            let given = self.at_point(point, left)?;
            let rows = mixed.chunks_exact_mut(left as usize).zip(given.chunks_exact(left as usize));
            for (t, (to, from)) in rows.enumerate().filter(|(t, _)| belief[*t] > 0.0) {
                let part = point.share * point.belief[t] / belief[t];
                to.iter_mut().zip(from).for_each(|(a, b)| *a += part * b);
            }
        }
        Ok(mixed)
    }

    fn at_point(&mut self, point: &Point, left: u32) -> Result<Table, TooMuch> {
        let level = left as usize;
        if self.memo.levels.len() <= level {
            self.memo.levels.resize_with(level + 1, HashMap::new);
        }
        if let Some(known) = self.memo.levels[level].get(&point.cell) {
            return Ok(known.clone());
        }
        let mut table = self.best_of(&point.belief, left)?;
        for (row, b) in table.chunks_exact_mut(level).zip(&point.belief).filter(|(_, b)| **b > 0.0) {
            row.iter_mut().for_each(|x| *x /= b);
        }
        self.memo.levels[level].insert(point.cell.clone(), table.clone());
        Ok(table)
    }

    fn over_groups(&mut self, mut all: Vec<Particle>, left: u32, episode: &mut Episode) -> Result<Table, TooMuch> {
        let model = self.model;
        let mut total: Table = smallvec![0.0; model.hidden.types.len() * left as usize];
        self.memo.work += (all.len() + total.len() / NUMBERS_PER_PARTICLE) as u64;
        if self.memo.work > self.work_limit {
            return Err(TooMuch);
        }
        for group in model.groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                let joint = self.of_group(group, left, episode)?;
                total.iter_mut().zip(&joint).for_each(|(t, s)| *t += weight * s);
            }
        }
        Ok(total)
    }

    fn of_group(&mut self, group: &[Particle], left: u32, episode: &mut Episode) -> Result<Table, TooMuch> {
        let model = self.model;
        if model.view.sights[model.sight(&group[0]) as usize].over {
            return self.at_end(group, left);
        }
        if !model.view.transposes {
            return Ok(self.best(group, left, episode)?.1);
        }
        let key = group_key(group);
        if let Some(known) = episode.get(&key) {
            return Ok(known.clone());
        }
        let joint = self.best(group, left, episode)?.1;
        episode.insert(key, joint.clone());
        Ok(joint)
    }

    fn at_end(&mut self, group: &[Particle], left: u32) -> Result<Table, TooMuch> {
        let model = self.model;
        let width = left as usize;
        let mut joint: Table = smallvec![0.0; model.hidden.types.len() * width];
        for p in group {
            joint[p.hidden as usize * width] += p.weight * model.view.spots[p.spot as usize].score;
        }
        if left == 1 {
            return Ok(joint);
        }
        let believed = model.by_type(group);
        let given = self.later(&model.hidden.forward(&believed), left - 1)?;
        for (t, b) in believed.iter().enumerate().filter(|(_, b)| **b > 0.0) {
            for (to, p) in model.hidden.next_of(t) {
                let later = &given[to * (width - 1)..(to + 1) * (width - 1)];
                joint[t * width + 1..(t + 1) * width].iter_mut().zip(later).for_each(|(x, y)| *x += b * p * y);
            }
        }
        Ok(joint)
    }

    fn best(&mut self, group: &[Particle], left: u32, episode: &mut Episode) -> Result<(usize, Table), TooMuch> {
        let model = self.model;
        let actions = model.view.sights[model.sight(&group[0]) as usize].actions.len();
        let mut best = (0, self.over_groups(model.after(group, 0), left, episode)?);
        let mut rank = self.objective.rank(&best.1, left);
        for action in 1..actions {
            let joint = self.over_groups(model.after(group, action), left, episode)?;
            let new = self.objective.rank(&joint, left);
            if better(new, rank, self.grid.tie()) {
                (best, rank) = ((action, joint), new);
            }
        }
        Ok(best)
    }
}

/// What may be the case, as a key: equal particles with equal weights have equal values.
pub(super) fn group_key(group: &[Particle]) -> Cell {
    let ids = group.iter().map(|p| u64::from(p.hidden) << 32 | u64::from(p.spot));
    ids.chain(noise_free(group.iter().map(|p| p.weight))).collect()
}
