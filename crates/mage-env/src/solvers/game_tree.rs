//! What can happen in one episode, and how likely is it?
//!
//! For judging a policy without luck: with its probabilities at every decision, an episode's expected score is a sum over
//! all that can happen instead of a mean over what happened to happen. An agent never gets to see one.

use crate::{ActionId, Observation, Outcome, Strategy, TextGame, Turn};
use std::collections::HashMap;

/// Everything that can happen in one episode.
#[derive(Clone, Debug)]
pub struct GameTree {
    /// Where it may begin, with probabilities.
    pub start: Leads,
    /// The places, each reached in one way only.
    pub places: Vec<Place>,
    /// What an agent can have seen when it decides; places it cannot tell apart share one.
    pub sights: Vec<Sight>,
}

/// Where chance and the others may lead: indices of places, with probabilities.
pub type Leads = Vec<(usize, f64)>;

/// A place where the agent decides, or the end.
#[derive(Clone, Debug)]
pub enum Place {
    /// The agent decides: what it has seen, by index, and where each of its actions leads.
    Decide {
        /// Index of the sight.
        sight: usize,
        /// By action, in the order of the sight's legal actions.
        leads: Vec<Leads>,
    },
    /// The end.
    End {
        /// The score in the environment's own unit.
        score: f32,
        /// For whom.
        outcome: Outcome,
    },
}

/// What an agent has seen of an episode when it decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sight {
    /// What it saw first.
    pub start: Observation,
    /// What it did, by canonical name, and what it saw then.
    pub turns: Vec<(String, Observation)>,
    /// What it can do now, by canonical name.
    pub legal: Vec<String>,
}

impl GameTree {
    /// The expected score and the probability of winning when `policy` gives the probability of each legal action of a
    /// sight.
    pub fn value(&self, policy: &dyn Fn(usize) -> Vec<f64>) -> (f64, f64) {
        self.sum(&self.start, policy)
    }

    fn sum(&self, leads: &Leads, policy: &dyn Fn(usize) -> Vec<f64>) -> (f64, f64) {
        leads.iter().fold((0.0, 0.0), |(score, won), (place, p)| {
            let (s, w) = match &self.places[*place] {
                Place::End { score, outcome } => (f64::from(*score), if *outcome == Outcome::Won { 1.0 } else { 0.0 }),
                Place::Decide { sight, leads } => {
                    policy(*sight).iter().zip(leads).fold((0.0, 0.0), |(score, won), (q, leads)| {
                        let (s, w) = self.sum(leads, policy);
                        (score + q * s, won + q * w)
                    })
                }
            };
            (score + p * s, won + p * w)
        })
    }
}

/// Builds the tree of a game from a seat; `None` when the others' probabilities cannot be told or there are more than
/// `limit` places.
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
        tree: GameTree { start: Vec::new(), places: Vec::new(), sights: Vec::new() },
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
    known: HashMap<Sight, usize>,
}

impl<G: TextGame> Grower<'_, G> {
    /// Chance and the others, until the agent moves or it is over. `before` is the sight and action that led here.
    fn lead(&mut self, state: G::State, p: f64, before: Option<(usize, ActionId)>) -> Option<Leads> {
        let probabilities = match self.game.turn(&state) {
            Turn::Over => return self.end(&state, p),
            Turn::Player(s) if s == self.seat => return self.decide(state, p, before),
            Turn::Chance => self.game.chance(&state),
            Turn::Player(s) => self.others.policy(self.game, &state, s)?,
        };
        let mut leads = Vec::new();
        for (action, q) in probabilities.into_iter().filter(|(_, q)| *q > 0.0) {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            leads.extend(self.lead(next, p * q, before)?);
        }
        Some(leads)
    }

    fn place(&mut self, place: Place) -> Option<usize> {
        self.tree.places.push(place);
        (self.tree.places.len() <= self.limit).then(|| self.tree.places.len() - 1)
    }

    fn end(&mut self, state: &G::State, p: f64) -> Option<Leads> {
        let outcome = match self.game.returns(state)[usize::from(self.seat)] {
            r if r > 0.0 => Outcome::Won,
            r if r < 0.0 => Outcome::Lost,
            _ => Outcome::Draw,
        };
        let score = self.game.score(state, self.seat);
        Some(vec![(self.place(Place::End { score, outcome })?, p)])
    }

    fn decide(&mut self, state: G::State, p: f64, before: Option<(usize, ActionId)>) -> Option<Leads> {
        let now = self.game.describe(&state, self.seat);
        let actions = self.game.legal(&state);
        let legal = actions.iter().map(|a| self.game.action_name(*a)).collect();
        let seen = match before {
            None => Sight { start: now, turns: Vec::new(), legal },
            Some((earlier, action)) => {
                let earlier = &self.tree.sights[earlier];
                let mut turns = earlier.turns.clone();
                turns.push((self.game.action_name(action), now));
                Sight { start: earlier.start.clone(), turns, legal }
            }
        };
        let sight = match self.known.get(&seen) {
            Some(known) => *known,
            None => {
                self.tree.sights.push(seen.clone());
                self.known.insert(seen, self.tree.sights.len() - 1);
                self.tree.sights.len() - 1
            }
        };
        let place = self.place(Place::Decide { sight, leads: Vec::new() })?;
        let mut all = Vec::with_capacity(actions.len());
        for action in actions {
            let mut next = state.clone();
            self.game.apply(&mut next, action);
            all.push(self.lead(next, 1.0, Some((sight, action)))?);
        }
        self.tree.places[place] = Place::Decide { sight, leads: all };
        Some(vec![(place, p)])
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
                assert!((3..=6).contains(&tree.sights.len()), "three cards, two situations, some of which never arise");
                let bet = |sight: usize| tree.sights[sight].legal.iter().map(|a| f64::from(a == "BET")).collect();
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
