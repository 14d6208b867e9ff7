//! A game from one seat: decision and terminal nodes, observations and transitions.
//!
//! A [`SeatView`] keeps only the nodes at which the agent decides or the game ends. Chance and the other seats between
//! two nodes are marginalised once for each strategy of the others, into a distribution over next nodes. Equal states
//! are one node regardless of history: Tic-Tac-Toe has 5,478 nodes instead of 549,946 histories.

use super::super::best_response::missing_policy;
use crate::{ActionId, ActionList, CurrentPlayer, Error, Game, Result, Seed, Strategy};
use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    ops::Range,
};

/// Maximum number of states of a game.
const MAX_STATES: usize = 1_000_000;

/// Index of a node.
pub(super) type NodeId = u32;

/// A distribution over nodes.
pub(super) type NodeDistribution = [(NodeId, f64)];

/// One seat's view of a game against a list of strategies.
pub(super) struct SeatView {
    pub(super) nodes: Vec<SeatNode>,
    /// Distinct observations: the text, and whether it is terminal.
    pub(super) observations: Vec<SeatObservation>,
    observation_ids: HashMap<(String, bool), u32>,
    /// By strategy and (node, action) slot.
    tables: Vec<TransitionTable>,
    /// Initial distributions by strategy and deal.
    starts: Vec<Vec<Vec<(NodeId, f64)>>>,
    /// Probabilities of the chance openings; a single 1 where deals are fresh.
    pub(super) deals: Vec<f64>,
    /// Whether some node has several predecessors, so that memoising values within an episode pays.
    pub(super) has_transpositions: bool,
    /// Maximum absolute score of a terminal node.
    pub(super) max_abs_score: f64,
    /// Minimum score of a terminal node.
    pub(super) min_score: f64,
}

/// A decision or terminal node.
pub(super) struct SeatNode {
    /// Index of its observation.
    pub(super) observation: u32,
    /// Score if terminal.
    pub(super) score: f64,
    /// Slot of its first action in the transition tables.
    first_slot: usize,
}

/// An observation and its legal actions.
pub(super) struct SeatObservation {
    pub(super) terminal: bool,
    pub(super) actions: ActionList,
}

/// Distributions by slot, in one array.
#[derive(Default)]
struct TransitionTable {
    flat: Vec<(NodeId, f64)>,
    ranges: Vec<Range<u32>>,
}

impl SeatView {
    /// The view of `seat` against each of `strategies`. With `fixed` deals, each chance opening (all chance nodes
    /// before the first decision) is a deal of its own.
    pub(super) fn new<G: Game>(game: &G, seat: u8, strategies: &[Strategy<G>], fixed: bool) -> Result<Self>
    where
        G::State: Eq + Hash,
    {
        let graph = StateGraph::new(game)?;
        let mut view = SeatView {
            nodes: Vec::new(),
            observations: Vec::new(),
            observation_ids: HashMap::new(),
            tables: Vec::new(),
            starts: Vec::new(),
            deals: Vec::new(),
            has_transpositions: false,
            max_abs_score: 0.0,
            min_score: f64::INFINITY,
        };
        let mut node_of = vec![None; graph.states.len()];
        let mut slots = Vec::new(); // state after each (node, action)
        for (p, state) in graph.states.iter().enumerate() {
            let terminal = match game.current_player(state) {
                CurrentPlayer::Terminal => true,
                CurrentPlayer::Player(mover) if mover == seat => false,
                _ => continue,
            };
            let score = if terminal { f64::from(game.returns(state)[usize::from(seat)]) } else { 0.0 };
            let actions = if terminal { ActionList::new() } else { game.legal(state) };
            let observation = view.observation(game.observe(state, seat), terminal, actions)?;
            node_of[p] = Some(view.nodes.len() as NodeId);
            view.nodes.push(SeatNode { observation, score, first_slot: slots.len() });
            view.max_abs_score = view.max_abs_score.max(score.abs());
            if terminal {
                view.min_score = view.min_score.min(score);
            }
            slots.extend(graph.children[p].iter().map(|(_, child)| *child));
        }

        let openings = if fixed { graph.openings(game) } else { vec![(0, 1.0)] };
        view.deals = openings.iter().map(|(_, p)| *p).collect();
        let mut in_degree = vec![0_u8; view.nodes.len()];
        for strategy in strategies {
            let walk = TransitionWalk { game, graph: &graph, node_of: &node_of, strategy };
            let mut table = TransitionTable::default();
            for slot in &slots {
                let transitions = walk.next_nodes(*slot)?;
                transitions.iter().for_each(|(s, _)| in_degree[*s as usize] = in_degree[*s as usize].saturating_add(1));
                table.push(&transitions);
            }
            view.tables.push(table);
            view.starts.push(openings.iter().map(|(p, _)| walk.next_nodes(*p)).collect::<Result<_>>()?);
        }
        view.has_transpositions = in_degree.iter().any(|n| usize::from(*n) > strategies.len());
        Ok(view)
    }

    /// Distribution over the agent's first node.
    pub(super) fn starts(&self, strategy: usize, deal: usize) -> &NodeDistribution {
        &self.starts[strategy][deal]
    }

    /// Distribution over next nodes after the `action`-th legal action.
    pub(super) fn transitions(&self, strategy: usize, node: NodeId, action: usize) -> &NodeDistribution {
        self.tables[strategy].get(self.nodes[node as usize].first_slot + action)
    }

    /// Index of an observation by text.
    pub(super) fn observation_id(&self, text: &str, terminal: bool) -> Option<u32> {
        self.observation_ids.get(&(text.to_owned(), terminal)).copied()
    }

    fn observation(&mut self, text: String, terminal: bool, actions: ActionList) -> Result<u32> {
        if let Some(id) = self.observation_id(&text, terminal) {
            if self.observations[id as usize].actions != actions {
                return Err(Error::invalid(
                    "oracle",
                    format!("`{text}` covers states with different legal actions; `observe` must distinguish them"),
                ));
            }
            return Ok(id);
        }
        let id = self.observations.len() as u32;
        self.observation_ids.insert((text, terminal), id);
        self.observations.push(SeatObservation { terminal, actions });
        Ok(id)
    }
}

impl TransitionTable {
    fn push(&mut self, transitions: &NodeDistribution) {
        let start = self.flat.len() as u32;
        self.flat.extend_from_slice(transitions);
        self.ranges.push(start..self.flat.len() as u32);
    }

    fn get(&self, slot: usize) -> &NodeDistribution {
        let range = &self.ranges[slot];
        &self.flat[range.start as usize..range.end as usize]
    }
}

/// Whether a strategy has a policy (action probabilities) in every state.
pub(in crate::solvers) fn states_probabilities<G: Game>(game: &G, strategy: &Strategy<G>) -> Result<bool>
where
    G::State: Eq + Hash,
{
    let stated = |s: &G::State| match game.current_player(s) {
        CurrentPlayer::Player(mover) => strategy.policy(game, s, mover).is_some(),
        _ => true,
    };
    Ok(StateGraph::new(game)?.states.iter().all(stated))
}

/// All states of a game, without duplicates; state 0 is initial.
struct StateGraph<S> {
    states: Vec<S>,
    children: Vec<Vec<(ActionId, u32)>>,
}

impl<S: Clone + Eq + Hash> StateGraph<S> {
    fn new<G: Game<State = S>>(game: &G) -> Result<Self> {
        let start = game.initial(&mut Seed::new(0).rng());
        if (1..8).any(|seed| game.initial(&mut Seed::new(seed).rng()) != start) {
            return Err(Error::invalid(
                "oracle",
                "the game has random initial states; exact solvers need a single one",
            ));
        }
        let mut index = HashMap::from([(start.clone(), 0)]);
        let mut found = StateGraph { states: vec![start], children: Vec::new() };
        let mut at = 0;
        while at < found.states.len() {
            let state = found.states[at].clone();
            let actions = game.legal(&state);
            let mut children = Vec::with_capacity(actions.len());
            for a in actions {
                let mut next = state.clone();
                game.apply(&mut next, a);
                let fresh = found.states.len() as u32;
                let id = *index.entry(next.clone()).or_insert(fresh);
                if id == fresh {
                    found.states.push(next);
                }
                children.push((a, id));
            }
            found.children.push(children);
            if found.states.len() > MAX_STATES {
                let problem = format!("more than {MAX_STATES} states; exact solvers support smaller games only");
                return Err(Error::invalid("oracle", problem));
            }
            at += 1;
        }
        found.reject_cycles()?;
        Ok(found)
    }

    fn reject_cycles(&self) -> Result<()> {
        let mut in_degree = vec![0_u32; self.states.len()];
        self.children.iter().flatten().for_each(|(_, c)| in_degree[*c as usize] += 1);
        let mut ready: VecDeque<u32> = if in_degree[0] == 0 { VecDeque::from([0]) } else { VecDeque::new() };
        let mut done = 0;
        while let Some(p) = ready.pop_front() {
            done += 1;
            for (_, c) in &self.children[p as usize] {
                in_degree[*c as usize] -= 1;
                if in_degree[*c as usize] == 0 {
                    ready.push_back(*c);
                }
            }
        }
        if done == self.states.len() {
            return Ok(());
        }
        Err(Error::invalid(
            "oracle",
            "states can repeat, so a game may not terminate; exact solvers need acyclic games",
        ))
    }

    /// States after all chance openings, with probabilities.
    fn openings<G: Game<State = S>>(&self, game: &G) -> Vec<(u32, f64)> {
        let mut out = Vec::new();
        let mut open = vec![(0_u32, 1.0)];
        while let Some((p, weight)) = open.pop() {
            let state = &self.states[p as usize];
            if game.current_player(state) == CurrentPlayer::Chance {
                open.extend(game.chance(state).iter().map(|(a, q)| (self.child(p, *a), weight * q)));
            } else {
                out.push((p, weight));
            }
        }
        merge_duplicates(&mut out);
        out
    }

    fn child(&self, p: u32, a: ActionId) -> u32 {
        let found = self.children[p as usize].iter().find(|(b, _)| *b == a);
        found.expect("chance and policies name legal actions").1
    }
}

/// Computes the distribution from a state to the agent's next node, for one strategy of the others.
struct TransitionWalk<'a, G: Game> {
    game: &'a G,
    graph: &'a StateGraph<G::State>,
    node_of: &'a [Option<NodeId>],
    strategy: &'a Strategy<G>,
}

impl<G: Game> TransitionWalk<'_, G>
where
    G::State: Eq + Hash,
{
    fn next_nodes(&self, state: u32) -> Result<Vec<(NodeId, f64)>> {
        let mut out = Vec::new();
        let mut open = vec![(state, 1.0)];
        while let Some((p, weight)) = open.pop() {
            if let Some(node) = self.node_of[p as usize] {
                out.push((node, weight));
                continue;
            }
            let state = &self.graph.states[p as usize];
            let player = self.game.current_player(state);
            let probs = match player {
                CurrentPlayer::Player(mover) => {
                    let policy = self.strategy.policy(self.game, state, mover);
                    policy.ok_or_else(|| missing_policy(self.game, state, mover))?
                }
                _ => self.game.chance(state),
            };
            let legal = &self.graph.children[p as usize];
            let total: f64 = probs.iter().map(|(_, q)| q).sum();
            let valid = |(a, q): &(ActionId, f64)| *q >= 0.0 && (*q == 0.0 || legal.iter().any(|(b, _)| a == b));
            if (total - 1.0).abs() > 1e-9 || !probs.iter().all(valid) {
                let seen = self.game.observe(state, 0);
                let whose = match player {
                    CurrentPlayer::Player(mover) => format!("the strategy in seat {mover}"),
                    _ => "chance".to_owned(),
                };
                let problem = format!("{whose} has no distribution over the legal actions at `{seen}`");
                return Err(Error::invalid("oracle", problem));
            }
            let possible = probs.iter().filter(|(_, q)| *q > 0.0);
            open.extend(possible.map(|(a, q)| (self.graph.child(p, *a), weight * q)));
        }
        merge_duplicates(&mut out);
        Ok(out)
    }
}

fn merge_duplicates(transitions: &mut Vec<(u32, f64)>) {
    transitions.sort_by_key(|(id, _)| *id);
    transitions.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 += later.1;
        }
        same
    });
}
