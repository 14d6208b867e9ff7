//! What was done, where, and in which episode?
//!
//! Counts (episode, state, action). There may be millions of states: those seen first are counted by name up to a bound, and
//! the most frequent are shown.

use mage_core::Trajectory;
use mage_env::ParsedAction;
use serde::Serialize;
use std::collections::HashMap;

/// So many states are told apart; more are counted as left out.
const STATES: usize = 50_000;
/// So much is kept of a state's text.
const TEXT: usize = 300;

/// Counts, the most frequent first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moves {
    /// States, the most frequent first.
    pub states: Vec<String>,
    /// Actions, in alphabetical order.
    pub actions: Vec<String>,
    /// Episode (from 0), state, action, how often; indices into the lists.
    pub points: Vec<(u32, usize, usize, u64)>,
    /// Turns that are not shown.
    pub left_out: u64,
}

/// Counts while records are read.
#[derive(Default)]
pub(super) struct Counter {
    states: HashMap<String, usize>,
    actions: HashMap<String, usize>,
    counts: HashMap<(u32, usize, usize), u64>,
    uncounted: u64,
}

impl Counter {
    pub(super) fn add(&mut self, record: &Trajectory) {
        for (n, episode) in record.episodes.iter().enumerate() {
            for turn in &episode.turns {
                let name = &turn.anchor.0;
                let state = match (self.states.get(name), self.states.len()) {
                    (Some(known), _) => *known,
                    (None, STATES..) => {
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

    /// The `most` most frequent.
    pub(super) fn finish(self, most: usize) -> Moves {
        let mut points: Vec<_> = self.counts.into_iter().collect();
        points.sort_by(|(a, m), (b, n)| n.cmp(m).then(a.cmp(b)));
        let left_out = self.uncounted + points.iter().skip(most).map(|(_, n)| n).sum::<u64>();
        points.truncate(most);
        let mut frequency: HashMap<usize, u64> = HashMap::new();
        points.iter().for_each(|((_, state, _), n)| *frequency.entry(*state).or_default() += n);
        let shown = |all: HashMap<String, usize>, keep: &dyn Fn(usize) -> bool| -> Vec<(String, usize)> {
            let mut kept: Vec<_> = all.into_iter().filter(|(_, id)| keep(*id)).collect();
            kept.sort();
            kept
        };
        let mut states = shown(self.states, &|id| frequency.contains_key(&id));
        states.sort_by_key(|(_, id)| std::cmp::Reverse(frequency[id]));
        let actions = shown(self.actions, &|id| points.iter().any(|((_, _, a), _)| *a == id));
        let places = |list: &[(String, usize)]| -> HashMap<usize, usize> {
            list.iter().enumerate().map(|(place, (_, id))| (*id, place)).collect()
        };
        let (state_at, action_at) = (places(&states), places(&actions));
        Moves {
            points: points.into_iter().map(|((e, s, a), n)| (e, state_at[&s], action_at[&a], n)).collect(),
            states: states.into_iter().map(|(name, _)| super::transcript::cut(&name, TEXT)).collect(),
            actions: actions.into_iter().map(|(name, _)| super::transcript::cut(&name, TEXT)).collect(),
            left_out,
        }
    }
}
