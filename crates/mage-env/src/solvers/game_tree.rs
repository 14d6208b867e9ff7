//! What can happen in one episode, and how likely is it?
//!
//! For judging a policy without luck: with its probabilities at every decision, an episode's expected score is a sum over
//! all that can happen instead of a mean over what happened to happen. An agent never gets to see one.

use crate::{ActionId, CurrentPlayer, Observation, Outcome, Strategy, TextGame};
use std::collections::HashMap;

/// Everything that can happen in one episode.
#[derive(Clone, Debug)]
pub struct GameTree {
    /// Where it may begin, with probabilities.
    pub start: Transitions,
    /// The nodes, each reached in one way only.
    pub nodes: Vec<GameNode>,
    /// What an agent can have seen when it decides; nodes it cannot tell apart share one.
    pub info_sets: Vec<InfoSet>,
}

/// Where chance and the others may lead: indices of nodes, with probabilities.
pub type Transitions = Vec<(usize, f64)>;

/// A node where the agent decides, or the end.
#[derive(Clone, Debug)]
pub enum GameNode {
    /// The agent decides: what it has seen, by index, and where each of its actions transitions.
    Decision {
        /// Index of the info_set.
        info_set: usize,
        /// By action, in the order of the info_set's legal actions.
        transitions: Vec<Transitions>,
    },
    /// The end.
    Terminal {
        /// The score in the environment's own unit.
        score: f32,
        /// For whom.
        outcome: Outcome,
    },
}

/// What an agent has seen of an episode when it decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InfoSet {
    /// What it saw first.
    pub start: Observation,
    /// What it did, by canonical name, and what it saw then.
    pub history: Vec<(String, Observation)>,
    /// What it can do now, by canonical name.
    pub legal: Vec<String>,
}

impl GameTree {
    /// The expected score and the probability of winning when `policy` gives the probability of each legal action of a
    /// info_set.
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

/// Builds the tree of a game from a seat; `None` when the others' probabilities cannot be told or there are more than
/// `limit` nodes.
pub(crate) fn grow<G: TextGame>(
    game: &G,
    start: G::State,
    seat: u8,
    others: &Strategy<G>,
    limit: usize,
) -> Option<GameTree> {
    let mut grower = Grower {
        game,
        seat,
        others,
        limit,
        tree: GameTree { start: Vec::new(), nodes: Vec::new(), info_sets: Vec::new() },
        known: HashMap::new(),
    };
    grower.tree.start = grower.lead(start, 1.0, None)?;
    Some(grower.tree)
}

struct Grower<'g, G: TextGame> {
    game: &'g G,
    seat: u8,
    others: &'g Strategy<G>,
    limit: usize,
    tree: GameTree,
    known: HashMap<InfoSet, usize>,
}

impl<G: TextGame> Grower<'_, G> {
    /// Chance and the others, until the agent moves or it is over. `before` is the info_set and action that led here.
    fn lead(&mut self, state: G::State, p: f64, before: Option<(usize, ActionId)>) -> Option<Transitions> {
        let probabilities = match self.game.current_player(&state) {
            CurrentPlayer::Terminal => return self.end(&state, p),
            CurrentPlayer::Player(s) if s == self.seat => return self.decide(state, p, before),
            CurrentPlayer::Chance => self.game.chance(&state),
            CurrentPlayer::Player(s) => self.others.policy(self.game, &state, s)?,
        };
        let mut transitions = Vec::new();
        for (action, q) in probabilities.into_iter().filter(|(_, q)| *q > 0.0) {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            transitions.extend(self.lead(next, p * q, before)?);
        }
        Some(transitions)
    }

    fn node(&mut self, node: GameNode) -> Option<usize> {
        self.tree.nodes.push(node);
        (self.tree.nodes.len() <= self.limit).then(|| self.tree.nodes.len() - 1)
    }

    fn end(&mut self, state: &G::State, p: f64) -> Option<Transitions> {
        let outcome = match self.game.returns(state)[usize::from(self.seat)] {
            r if r > 0.0 => Outcome::Won,
            r if r < 0.0 => Outcome::Lost,
            _ => Outcome::Draw,
        };
        let score = self.game.score(state, self.seat);
        Some(vec![(self.node(GameNode::Terminal { score, outcome })?, p)])
    }

    fn decide(&mut self, state: G::State, p: f64, before: Option<(usize, ActionId)>) -> Option<Transitions> {
        let now = self.game.describe(&state, self.seat);
        let actions = self.game.legal(&state);
        let legal = actions.iter().map(|a| self.game.action_name(*a)).collect();
        let seen = match before {
            None => InfoSet { start: now, history: Vec::new(), legal },
            Some((earlier, action)) => {
                let earlier = &self.tree.info_sets[earlier];
                let mut history = earlier.history.clone();
                history.push((self.game.action_name(action), now));
                InfoSet { start: earlier.start.clone(), history, legal }
            }
        };
        let info_set = match self.known.get(&seen) {
            Some(known) => *known,
            None => {
                self.tree.info_sets.push(seen.clone());
                self.known.insert(seen, self.tree.info_sets.len() - 1);
                self.tree.info_sets.len() - 1
            }
        };
        let node = self.node(GameNode::Decision { info_set, transitions: Vec::new() })?;
        let mut all = Vec::with_capacity(actions.len());
        for action in actions {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            all.push(self.lead(next, 1.0, Some((info_set, action)))?);
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
    fn always_betting_in_kuhn_earns_what_it_should() {
        // Reference points of always betting: 0, -1/3, 0 from the first seat and 0, 0, -1/3 from the second.
        let (registry, population) = kuhn();
        let expected =
            [("conservative", [0.0, 0.0]), ("aggressive", [-1.0 / 3.0, 0.0]), ("intermediate", [0.0, -1.0 / 3.0])];
        for (name, by_seat) in expected {
            for seat in 0..2_u8 {
                let mut task = population.draw("train", 2, Seed::new(1)).unwrap();
                let specs = population.in_split("train").unwrap();
                task.opponent = specs.iter().find(|(_, s)| s.name == name).map(|(_, s)| (*s).clone());
                task.seat = seat;
                let tree = registry.build(&task).unwrap().game_tree(0, 1000).unwrap();
                assert!(
                    (3..=6).contains(&tree.info_sets.len()),
                    "three cards, two situations, some of which never arise"
                );
                let bet =
                    |info_set: usize| tree.info_sets[info_set].legal.iter().map(|a| f64::from(a == "BET")).collect();
                let (value, won) = tree.value(&bet);
                assert!((value - by_seat[usize::from(seat)]).abs() < 1e-12, "{name} seat {seat}: {value}");
                assert!((0.0..=1.0).contains(&won));
            }
        }
    }

    #[test]
    fn large_games_and_searching_opponents_have_none() {
        let registry = Registry::builtin();
        let blind = registry.get("tictactoe").unwrap().populations();
        let blind = &blind.iter().find(|(name, _)| *name == "blind-line").unwrap().1;
        let build = |split| registry.build(&blind.draw(split, 2, Seed::new(1)).unwrap()).unwrap();
        assert!(build("train").game_tree(0, 10).is_none());
        assert!(build("train").game_tree(0, 10_000).is_some());
        assert!(build("out-of-domain").game_tree(0, 1_000_000).is_none());
    }
}
