//! How likely can one have won at least once, within so many episodes?
//!
//! The ceiling of Pass@k, where play stops at the first win. It is another problem than the best score: whoever only has to
//! win once may risk more, and may try what teaches most as long as nothing is won. After a win nothing counts, so a value
//! is one number: the chance of a win in the episodes that are left, under the best policy for the belief. Not having won is
//! itself a thing the agent learns.

use super::{
    belief_key::{Cell, noise_free},
    belief_search::{Model, Particle, TooMuch, group_key, normalise},
};
use std::collections::HashMap;

/// More episodes than this are not looked at: each goes as deep as all before it.
pub(super) const MOST_EPISODES: u32 = 100;

/// The best chances for 1, 2, … `episodes` episodes, each the optimum of its own; nothing where that takes too much work.
pub(super) fn pass_at_k(model: &Model, episodes: u32, work_limit: u64) -> Option<Vec<f64>> {
    if episodes > MOST_EPISODES {
        return None;
    }
    let mut search = Search { model, known: vec![HashMap::new(); episodes as usize + 1], work: 0, work_limit };
    (1..=episodes).map(|k| search.from(&model.hidden.prior, k).ok()).collect()
}

struct Search<'m> {
    model: &'m Model,
    /// By number of episodes left: chances by belief.
    known: Vec<HashMap<Cell, f64>>,
    work: u64,
    work_limit: u64,
}

/// Chances within one episode, by what may be the case.
type Episode = HashMap<Cell, f64>;

impl Search<'_> {
    fn from(&mut self, belief: &[f64], left: u32) -> Result<f64, TooMuch> {
        if left == 0 {
            return Ok(0.0);
        }
        let cell = noise_free(belief.iter().copied());
        if let Some(chance) = self.known[left as usize].get(&cell) {
            return Ok(*chance);
        }
        let chance = self.over_groups(self.model.start(belief), left, &mut Episode::new())?;
        self.known[left as usize].insert(cell, chance);
        Ok(chance)
    }

    fn over_groups(&mut self, mut all: Vec<Particle>, left: u32, episode: &mut Episode) -> Result<f64, TooMuch> {
        let model = self.model;
        self.work += all.len() as u64;
        if self.work > self.work_limit {
            return Err(TooMuch);
        }
        let mut chance = 0.0;
        for group in model.groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                chance += weight * self.of_group(group, left, episode)?;
            }
        }
        Ok(chance)
    }

    fn of_group(&mut self, group: &[Particle], left: u32, episode: &mut Episode) -> Result<f64, TooMuch> {
        let model = self.model;
        let sight = &model.view.sights[model.view.spots[group[0].spot as usize].sight as usize];
        if sight.over {
            return self.at_end(group, left);
        }
        let key = model.view.transposes.then(|| group_key(group));
        if let Some(chance) = key.as_ref().and_then(|k| episode.get(k)) {
            return Ok(*chance);
        }
        let mut best: f64 = 0.0;
        for action in 0..sight.actions.len() {
            best = best.max(self.over_groups(model.after(group, action), left, episode)?);
        }
        episode.extend(key.map(|k| (k, best)));
        Ok(best)
    }

    fn at_end(&mut self, group: &[Particle], left: u32) -> Result<f64, TooMuch> {
        let model = self.model;
        let won = |p: &Particle| model.view.spots[p.spot as usize].score > 0.0;
        let mut open: Vec<Particle> = group.iter().copied().filter(|p| !won(p)).collect();
        let missed = normalise(&mut open);
        if missed == 0.0 {
            return Ok(1.0);
        }
        let belief = model.hidden.forward(&model.by_type(&open));
        Ok(1.0 - missed + missed * self.from(&belief, left - 1)?)
    }
}
