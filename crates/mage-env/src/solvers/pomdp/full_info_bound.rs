//! Full-information upper bound: the value of an agent that knows the hidden type, and within an episode also the
//! state.
//!
//! The bound is cheap to compute and prunes actions that cannot be optimal.

use super::{
    hidden_type::HiddenTypes,
    seat_view::{NodeId, SeatView},
};

/// Values of both objectives: the last episode's score and the sum over episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ObjectiveValues {
    pub(super) last: f64,
    pub(super) sum: f64,
}

impl ObjectiveValues {
    /// Adds `weight` times `values`.
    pub(super) fn add(&mut self, weight: f64, values: ObjectiveValues) {
        self.last += weight * values.last;
        self.sum += weight * values.sum;
    }
}

/// Scores of an agent with full information.
pub(super) struct FullInfoBound {
    /// By strategy and node: the rest of the episode.
    rest_of_episode: Vec<Vec<f64>>,
    /// By number of later episodes and type of the current one: the later episodes.
    later_episodes: Vec<Vec<ObjectiveValues>>,
    /// By type: one episode, knowing the type only.
    best_response_values: Vec<f64>,
}

impl FullInfoBound {
    /// For one episode; [`extend`](FullInfoBound::extend) adds others.
    pub(super) fn new(view: &SeatView, hidden: &HiddenTypes) -> Self {
        let strategies = hidden.types.iter().map(|t| t.strategy + 1).max().unwrap_or(0);
        let rest_of_episode = (0..strategies).map(|strategy| {
            let mut memo = vec![None; view.nodes.len()];
            (0..view.nodes.len()).map(|node| from_node(view, strategy, node as NodeId, &mut memo)).collect()
        });
        let nothing = vec![ObjectiveValues::default(); hidden.types.len()];
        FullInfoBound {
            rest_of_episode: rest_of_episode.collect(),
            later_episodes: vec![nothing],
            best_response_values: Vec::new(),
        }
    }

    /// Extends the bound to `episodes` episodes. `best_response_values` are the scores of the best responses, by type.
    pub(super) fn extend(&mut self, hidden: &HiddenTypes, best_response_values: Vec<f64>, episodes: u32) {
        self.best_response_values = best_response_values;
        for left in 1..episodes {
            let of_type = |t: usize| {
                let mut bound = ObjectiveValues::default();
                hidden.transitions_from(t).for_each(|(to, p)| bound.add(p, self.at_start(to, left)));
                bound
            };
            let row = (0..hidden.types.len()).map(of_type).collect();
            self.later_episodes.push(row);
        }
    }

    /// Scores of the best responses, by type.
    pub(super) fn best_response_values(&self) -> &[f64] {
        &self.best_response_values
    }

    /// At the start of an episode, with `left` episodes left including it.
    pub(super) fn at_start(&self, hidden_type: usize, left: u32) -> ObjectiveValues {
        self.with_later(self.best_response_values[hidden_type], hidden_type, left)
    }

    /// At a node of an episode, with `left` episodes left including it.
    pub(super) fn at_node(&self, strategy: usize, node: NodeId, hidden_type: usize, left: u32) -> ObjectiveValues {
        self.with_later(self.rest_of_episode[strategy][node as usize], hidden_type, left)
    }

    fn with_later(&self, current: f64, hidden_type: usize, left: u32) -> ObjectiveValues {
        let later = self.later_episodes[left as usize - 1][hidden_type];
        ObjectiveValues { last: if left == 1 { current } else { later.last }, sum: current + later.sum }
    }
}

fn from_node(view: &SeatView, strategy: usize, node: NodeId, memo: &mut [Option<f64>]) -> f64 {
    if let Some(value) = memo[node as usize] {
        return value;
    }
    let here = &view.nodes[node as usize];
    let actions = view.observations[here.observation as usize].actions.len();
    let mut best = if actions == 0 { here.score } else { f64::NEG_INFINITY };
    for action in 0..actions {
        let transitions = view.transitions(strategy, node, action);
        best = best.max(transitions.iter().map(|(to, p)| p * from_node(view, strategy, *to, memo)).sum());
    }
    memo[node as usize] = Some(best);
    best
}
