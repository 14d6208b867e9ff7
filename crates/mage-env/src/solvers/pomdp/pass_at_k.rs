//! The ceiling of Pass@k: the maximum probability of at least one win within k episodes.
//!
//! This objective differs from the best score. A policy that needs a single win may take more risk and may explore as
//! long as it has not won. After a win nothing counts, so the value of a belief is one number: the probability of a win
//! in the remaining episodes under the best policy. The absence of a win is itself an observation.

use super::{
    belief_key::{BeliefKey, belief_key},
    belief_search::{AdaptationPomdp, Particle, WorkLimitExceeded, group_key, normalise},
};
use std::collections::HashMap;

/// Limit on the number of episodes; each k is a separate optimum.
pub(super) const MAX_EPISODES: u32 = 100;

/// The maximum probabilities for 1, 2, … `episodes` episodes, each its own optimum; `None` beyond the work limit.
pub(super) fn pass_at_k(model: &AdaptationPomdp, episodes: u32, work_limit: u64) -> Option<Vec<f64>> {
    if episodes > MAX_EPISODES {
        return None;
    }
    let mut search = PassAtKSearch { model, known: vec![HashMap::new(); episodes as usize + 1], work: 0, work_limit };
    (1..=episodes).map(|k| search.from(&model.hidden.prior, k).ok()).collect()
}

struct PassAtKSearch<'m> {
    model: &'m AdaptationPomdp,
    /// Win probabilities by episodes left and belief.
    known: Vec<HashMap<BeliefKey, f64>>,
    work: u64,
    work_limit: u64,
}

/// Win probabilities within one episode, by particle group.
type EpisodeChances = HashMap<BeliefKey, f64>;

impl PassAtKSearch<'_> {
    fn from(&mut self, belief: &[f64], left: u32) -> Result<f64, WorkLimitExceeded> {
        if left == 0 {
            return Ok(0.0);
        }
        let cell = belief_key(belief.iter().copied());
        if let Some(chance) = self.known[left as usize].get(&cell) {
            return Ok(*chance);
        }
        let chance = self.expected_value(self.model.initial_particles(belief), left, &mut EpisodeChances::new())?;
        self.known[left as usize].insert(cell, chance);
        Ok(chance)
    }

    fn expected_value(
        &mut self,
        mut all: Vec<Particle>,
        left: u32,
        episode: &mut EpisodeChances,
    ) -> Result<f64, WorkLimitExceeded> {
        let model = self.model;
        self.work += all.len() as u64;
        if self.work > self.work_limit {
            return Err(WorkLimitExceeded);
        }
        let mut chance = 0.0;
        for group in model.observation_groups(&mut all) {
            let weight = normalise(group);
            if weight > 0.0 {
                chance += weight * self.group_value(group, left, episode)?;
            }
        }
        Ok(chance)
    }

    fn group_value(
        &mut self,
        group: &[Particle],
        left: u32,
        episode: &mut EpisodeChances,
    ) -> Result<f64, WorkLimitExceeded> {
        let model = self.model;
        let observation = &model.view.observations[model.view.nodes[group[0].node as usize].observation as usize];
        if observation.terminal {
            return self.terminal_value(group, left);
        }
        let key = model.view.has_transpositions.then(|| group_key(group));
        if let Some(chance) = key.as_ref().and_then(|k| episode.get(k)) {
            return Ok(*chance);
        }
        let mut best: f64 = 0.0;
        for action in 0..observation.actions.len() {
            best = best.max(self.expected_value(model.after_action(group, action), left, episode)?);
        }
        episode.extend(key.map(|k| (k, best)));
        Ok(best)
    }

    fn terminal_value(&mut self, group: &[Particle], left: u32) -> Result<f64, WorkLimitExceeded> {
        let model = self.model;
        let won = |p: &Particle| model.view.nodes[p.node as usize].score > 0.0;
        let mut open: Vec<Particle> = group.iter().copied().filter(|p| !won(p)).collect();
        let missed = normalise(&mut open);
        if missed == 0.0 {
            return Ok(1.0);
        }
        let belief = model.hidden.predict(&model.type_weights(&open));
        Ok(1.0 - missed + missed * self.from(&belief, left - 1)?)
    }
}
