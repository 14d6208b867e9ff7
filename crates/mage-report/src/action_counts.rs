//! Frequencies of states and actions by episode.
//!
//! The number of states can be in the millions: only the first ones seen are counted individually, and only the most
//! frequent ones are reported.

use mage_core::Trajectory;
use mage_env::ParsedAction;
use serde::Serialize;
use std::collections::HashMap;

/// Number of states that are counted individually; steps in other states are counted as omitted.
const MAX_STATES: usize = 50_000;
/// Maximum length of a state's or action's text, in characters.
const MAX_TEXT: usize = 300;

/// Frequencies of (episode, state, action).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ActionCounts {
    /// States, most frequent first.
    pub states: Vec<String>,
    /// Actions, in alphabetical order.
    pub actions: Vec<String>,
    /// Episode (from 0), index of the state, index of the action, count; most frequent first.
    pub points: Vec<(u32, usize, usize, u64)>,
    /// Number of steps that are not in `points`.
    pub omitted: u64,
}

/// Accumulates counts while trajectories are read.
#[derive(Default)]
pub(super) struct ActionCounter {
    states: HashMap<String, usize>,
    actions: HashMap<String, usize>,
    counts: HashMap<(u32, usize, usize), u64>,
    uncounted: u64,
}

impl ActionCounter {
    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        for (n, episode) in trajectory.episodes.iter().enumerate() {
            for turn in &episode.turns {
                let name = &turn.anchor.0;
                let state = match (self.states.get(name), self.states.len()) {
                    (Some(known), _) => *known,
                    (None, MAX_STATES..) => {
                        self.uncounted += 1;
                        continue;
                    }
                    (None, next) => {
                        self.states.insert(name.clone(), next);
                        next
                    }
                };
                let action = match &turn.action {
                    ParsedAction::Act(action) if turn.valid => action.as_str(),
                    _ => "(invalid)",
                };
                let next = self.actions.len();
                let action = match self.actions.get(action) {
                    Some(known) => *known,
                    None => *self.actions.entry(action.to_owned()).or_insert(next),
                };
                *self.counts.entry((n as u32, state, action)).or_default() += 1;
            }
        }
    }

    /// The `limit` most frequent combinations.
    pub(super) fn finish(self, limit: usize) -> ActionCounts {
        let mut points: Vec<_> = self.counts.into_iter().collect();
        points.sort_by(|(a, m), (b, n)| n.cmp(m).then(a.cmp(b)));
        let omitted = self.uncounted + points.iter().skip(limit).map(|(_, n)| n).sum::<u64>();
        points.truncate(limit);
        let mut frequency: HashMap<usize, u64> = HashMap::new();
        points.iter().for_each(|((_, state, _), n)| *frequency.entry(*state).or_default() += n);
        let sorted = |all: HashMap<String, usize>, keep: &dyn Fn(usize) -> bool| -> Vec<(String, usize)> {
            let mut kept: Vec<_> = all.into_iter().filter(|(_, id)| keep(*id)).collect();
            kept.sort();
            kept
        };
        let mut states = sorted(self.states, &|id| frequency.contains_key(&id));
        states.sort_by_key(|(_, id)| std::cmp::Reverse(frequency[id]));
        let actions = sorted(self.actions, &|id| points.iter().any(|((_, _, a), _)| *a == id));
        let index_by_id = |list: &[(String, usize)]| -> HashMap<usize, usize> {
            list.iter().enumerate().map(|(index, (_, id))| (*id, index)).collect()
        };
        let (state_index, action_index) = (index_by_id(&states), index_by_id(&actions));
        ActionCounts {
            points: points.into_iter().map(|((e, s, a), n)| (e, state_index[&s], action_index[&a], n)).collect(),
            states: states.into_iter().map(|(name, _)| super::transcript::truncate(&name, MAX_TEXT)).collect(),
            actions: actions.into_iter().map(|(name, _)| super::transcript::truncate(&name, MAX_TEXT)).collect(),
            omitted,
        }
    }
}
