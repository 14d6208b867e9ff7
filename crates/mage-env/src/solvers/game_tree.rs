//! The game tree of one episode, for exact policy evaluation.
//!
//! With a policy's probabilities at every decision, the expected score of an episode is a sum over the tree, without
//! sampling error. Agents never see it.

use crate::{ActionId, CurrentPlayer, Observation, Outcome, Strategy, TextGame};
use std::collections::HashMap;

/// The tree of one episode.
#[derive(Clone, Debug)]
pub struct GameTree {
    /// Distribution over the first nodes.
    pub start: Transitions,
    /// The nodes; each has a single predecessor.
    pub nodes: Vec<GameNode>,
    /// The agent's information sets; nodes it cannot distinguish share one.
    pub info_sets: Vec<InfoSet>,
}

/// Distribution over next nodes (indices) after chance and the other players.
pub type Transitions = Vec<(usize, f64)>;

/// A decision of the agent, or a terminal node.
#[derive(Clone, Debug)]
pub enum GameNode {
    /// The agent decides.
    Decision {
        /// Index of the information set.
        info_set: usize,
        /// By action, in the order of the information set's legal actions.
        transitions: Vec<Transitions>,
    },
    /// The episode has ended.
    Terminal {
        /// Score in the environment's unit.
        score: f32,
        /// Outcome for the agent.
        outcome: Outcome,
    },
}

/// An information set: what the agent has observed in the episode when it decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InfoSet {
    /// The first observation.
    pub start: Observation,
    /// Its actions by canonical name, each with the observation after it.
    pub history: Vec<(String, Observation)>,
    /// The legal actions by canonical name.
    pub legal: Vec<String>,
}

impl GameTree {
    /// The expected score and the win probability when `policy` gives the probability of each legal action of an
    /// information set.
    pub fn value(&self, policy: &dyn Fn(usize) -> Vec<f64>) -> (f64, f64) {
        self.sum(&self.start, policy)
    }

    fn sum(&self, transitions: &Transitions, policy: &dyn Fn(usize) -> Vec<f64>) -> (f64, f64) {
        transitions.iter().fold((0.0, 0.0), |(score, won), (node, p)| {
            let (s, w) = match &self.nodes[*node] {
                GameNode::Terminal { score, outcome } => {
                    (f64::from(*score), if *outcome == Outcome::Won { 1.0 } else { 0.0 })
                }
                GameNode::Decision { info_set, transitions } => {
                    policy(*info_set).iter().zip(transitions).fold((0.0, 0.0), |(score, won), (q, transitions)| {
                        let (s, w) = self.sum(transitions, policy);
                        (score + q * s, won + q * w)
                    })
                }
            };
            (score + p * s, won + p * w)
        })
    }
}

/// Builds the tree of a game from a seat. `None` if the others have no action probabilities or the tree exceeds `limit`
/// nodes.
pub(crate) fn build<G: TextGame>(
    game: &G,
    start: G::State,
    seat: u8,
    others: &Strategy<G>,
    limit: usize,
) -> Option<GameTree> {
    let mut builder = GameTreeBuilder {
        game,
        seat,
        others,
        limit,
        tree: GameTree { start: Vec::new(), nodes: Vec::new(), info_sets: Vec::new() },
        info_set_ids: HashMap::new(),
    };
    builder.tree.start = builder.expand(start, 1.0, None)?;
    Some(builder.tree)
}

struct GameTreeBuilder<'g, G: TextGame> {
    game: &'g G,
    seat: u8,
    others: &'g Strategy<G>,
    limit: usize,
    tree: GameTree,
    info_set_ids: HashMap<InfoSet, usize>,
}

impl<G: TextGame> GameTreeBuilder<'_, G> {
    /// Plays chance and the others until the agent moves or the game ends. `previous` is the agent's last information
    /// set and action.
    fn expand(&mut self, state: G::State, p: f64, previous: Option<(usize, ActionId)>) -> Option<Transitions> {
        let probabilities = match self.game.current_player(&state) {
            CurrentPlayer::Terminal => return self.terminal(&state, p),
            CurrentPlayer::Player(s) if s == self.seat => return self.decide(state, p, previous),
            CurrentPlayer::Chance => self.game.chance(&state),
            CurrentPlayer::Player(s) => self.others.policy(self.game, &state, s)?,
        };
        let mut transitions = Vec::new();
        for (action, q) in probabilities.into_iter().filter(|(_, q)| *q > 0.0) {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            transitions.extend(self.expand(next, p * q, previous)?);
        }
        Some(transitions)
    }

    fn node(&mut self, node: GameNode) -> Option<usize> {
        self.tree.nodes.push(node);
        (self.tree.nodes.len() <= self.limit).then(|| self.tree.nodes.len() - 1)
    }

    fn terminal(&mut self, state: &G::State, p: f64) -> Option<Transitions> {
        let outcome = match self.game.returns(state)[usize::from(self.seat)] {
            r if r > 0.0 => Outcome::Won,
            r if r < 0.0 => Outcome::Lost,
            _ => Outcome::Draw,
        };
        let score = self.game.score(state, self.seat);
        Some(vec![(self.node(GameNode::Terminal { score, outcome })?, p)])
    }

    fn decide(&mut self, state: G::State, p: f64, previous: Option<(usize, ActionId)>) -> Option<Transitions> {
        let now = self.game.describe(&state, self.seat);
        let actions = self.game.legal(&state);
        let legal = actions.iter().map(|a| self.game.action_name(*a)).collect();
        let info = match previous {
            None => InfoSet { start: now, history: Vec::new(), legal },
            Some((earlier, action)) => {
                let earlier = &self.tree.info_sets[earlier];
                let mut history = earlier.history.clone();
                history.push((self.game.action_name(action), now));
                InfoSet { start: earlier.start.clone(), history, legal }
            }
        };
        let info_set = match self.info_set_ids.get(&info) {
            Some(id) => *id,
            None => {
                self.tree.info_sets.push(info.clone());
                self.info_set_ids.insert(info, self.tree.info_sets.len() - 1);
                self.tree.info_sets.len() - 1
            }
        };
        let node = self.node(GameNode::Decision { info_set, transitions: Vec::new() })?;
        let mut all = Vec::with_capacity(actions.len());
        for action in actions {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            all.push(self.expand(next, 1.0, Some((info_set, action)))?);
        }
        self.tree.nodes[node] = GameNode::Decision { info_set, transitions: all };
        Some(vec![(node, p)])
    }
}

#[cfg(test)]
mod tests {
    use crate::{Population, Registry, Seed};

    fn kuhn() -> (Registry, Population) {
        let registry = Registry::builtin();
        let population = registry.get("kuhn").unwrap().default_population();
        (registry, population)
    }

    #[test]
    fn value_of_always_betting_in_kuhn_is_exact() {
        // Values of always betting: 0, -1/3, 0 from the first seat and 0, 0, -1/3 from the second.
        let (registry, population) = kuhn();
        let expected =
            [("conservative", [0.0, 0.0]), ("aggressive", [-1.0 / 3.0, 0.0]), ("intermediate", [0.0, -1.0 / 3.0])];
        for (name, by_seat) in expected {
            for seat in 0..2_u8 {
                let mut task = population.sample_task("train", 2, Seed::new(1)).unwrap();
                let specs = population.in_split("train").unwrap();
                task.opponent = specs.iter().find(|(_, s)| s.name == name).map(|(_, s)| (*s).clone());
                task.seat = seat;
                let tree = registry.build(&task).unwrap().game_tree(0, 1000).unwrap();
                assert!((3..=6).contains(&tree.info_sets.len()), "three cards, two situations, some unreachable");
                let bet =
                    |info_set: usize| tree.info_sets[info_set].legal.iter().map(|a| f64::from(a == "BET")).collect();
                let (value, won) = tree.value(&bet);
                assert!((value - by_seat[usize::from(seat)]).abs() < 1e-12, "{name} seat {seat}: {value}");
                assert!((0.0..=1.0).contains(&won));
            }
        }
    }

    #[test]
    fn large_games_and_mcts_opponents_have_no_tree() {
        let registry = Registry::builtin();
        let blind = registry.get("tictactoe").unwrap().populations();
        let blind = &blind.iter().find(|(name, _)| *name == "blind-line").unwrap().1;
        let build = |split| registry.build(&blind.sample_task(split, 2, Seed::new(1)).unwrap()).unwrap();
        assert!(build("train").game_tree(0, 10).is_none());
        assert!(build("train").game_tree(0, 10_000).is_some());
        assert!(build("out-of-domain").game_tree(0, 1_000_000).is_none());
    }
}
