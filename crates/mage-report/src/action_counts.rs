//! Frequencies of actions in the most frequent states, by episode.
//!
//! The number of states can be in the millions: only the first ones seen are counted individually, and only the most
//! frequent ones are reported.

use super::transcript::truncate;
use mage_core::Trajectory;
use mage_env::ParsedAction;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

/// Number of states that are counted individually.
const MAX_COUNTED: usize = 50_000;
/// Number of states that are reported.
const MAX_STATES: usize = 8;
/// Number of actions per state that are reported.
const MAX_ACTIONS: usize = 4;
/// Maximum length of a state's or action's text, in characters.
const MAX_TEXT: usize = 300;

/// Frequencies of states and actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActionCounts {
    /// The most frequent states, most frequent first.
    pub states: Vec<StateCounts>,
    /// Number of steps in all states.
    pub steps: u64,
}

/// Frequencies in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateCounts {
    /// The state.
    pub state: String,
    /// Number of steps by episode.
    pub steps: Vec<u64>,
    /// The most frequent actions with their numbers of steps by episode, most frequent first.
    pub actions: Vec<(String, Vec<u64>)>,
}

/// Number of steps by action and episode (from 0).
type StateCounter = BTreeMap<String, BTreeMap<usize, u64>>;

/// Accumulates counts while trajectories are read.
#[derive(Default)]
pub(super) struct ActionCounter {
    states: HashMap<String, StateCounter>,
    steps: u64,
    episodes: usize,
}

impl ActionCounter {
    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        self.episodes = self.episodes.max(trajectory.episodes.len());
        for (n, episode) in trajectory.episodes.iter().enumerate() {
            for turn in &episode.turns {
                self.steps += 1;
                let state = &turn.anchor.0;
                if self.states.len() == MAX_COUNTED && !self.states.contains_key(state) {
                    continue;
                }
                let action = match &turn.action {
                    ParsedAction::Act(action) if turn.valid => action.as_str(),
                    _ => "(invalid)",
                };
                let counts = self.states.entry(state.clone()).or_default();
                *counts.entry(action.to_owned()).or_default().entry(n).or_default() += 1;
            }
        }
    }

    /// The most frequent states and actions.
    pub(super) fn finish(self) -> ActionCounts {
        let episodes = self.episodes;
        let total = |counts: &BTreeMap<usize, u64>| counts.values().sum::<u64>();
        let mut states: Vec<(u64, String, StateCounter)> = self
            .states
            .into_iter()
            .map(|(state, actions)| (actions.values().map(total).sum(), state, actions))
            .collect();
        states.sort_by(|(m, a, _), (n, b, _)| n.cmp(m).then(a.cmp(b)));
        let state = |(_, state, actions): (u64, String, StateCounter)| {
            let mut actions: Vec<_> = actions.into_iter().collect();
            actions.sort_by_key(|(_, counts)| Reverse(total(counts)));
            let at = |counts: &BTreeMap<usize, u64>, n: usize| counts.get(&n).copied().unwrap_or(0);
            let steps = (0..episodes).map(|n| actions.iter().map(|(_, counts)| at(counts, n)).sum()).collect();
            actions.truncate(MAX_ACTIONS);
            let by_episode = |counts: BTreeMap<usize, u64>| (0..episodes).map(|n| at(&counts, n)).collect();
            let actions = actions.into_iter().map(|(action, counts)| (truncate(&action, MAX_TEXT), by_episode(counts)));
            StateCounts { state: truncate(&state, MAX_TEXT), steps, actions: actions.collect() }
        };
        ActionCounts { states: states.into_iter().take(MAX_STATES).map(state).collect(), steps: self.steps }
    }
}
