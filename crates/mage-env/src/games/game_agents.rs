//! Scripted agents of every small game: equilibrium, Bayes-adaptive optimum and best response.
//!
//! They read the compact words of their prompt. [`EpisodeFacts`] recovers from them what the player has observed.

use super::GameSpec;
use crate::{
    CurrentPlayer, Error, PromptView, Result, Rng, ScriptedAgent, ScriptedAgentFactory, ScriptedAgentInfo,
    ScriptedAgentQuery, Seed, Task, TextGame,
    game::sample_action,
    registry::unknown_scripted_agent,
    solvers::{BayesAdaptiveSolver, Cfr, HistoryTree, ScoreObjective, TabularPolicy},
};
use rand::seq::IndexedRandom;
use std::{collections::HashMap, hash::Hash, sync::Arc};

/// CFR iterations of the `nash` agent's policy.
const NASH_ITERATIONS: u32 = 10_000;

pub(super) fn infos() -> Vec<ScriptedAgentInfo> {
    vec![
        ScriptedAgentInfo::new("nash", "equilibrium play: unexploitable, does not adapt"),
        ScriptedAgentInfo::new("bayes", "Bayes-adaptive optimum for the sum over episodes"),
        ScriptedAgentInfo::new("bayes-last", "Bayes-adaptive optimum for the last episode"),
        ScriptedAgentInfo::with_full_info("best-response", "best response to the opponent, whose name it knows"),
    ]
}

pub(super) fn factory<G>(spec: &GameSpec<G>, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>>
where
    G: TextGame + 'static,
    G::State: Eq + Hash,
{
    let mode = match query.name {
        "nash" => AgentMode::Nash,
        "bayes" => AgentMode::Adapt(ScoreObjective::Sum),
        "bayes-last" => AgentMode::Adapt(ScoreObjective::Last),
        "best-response" => {
            let opponents = query.population.in_split(query.split)?;
            AgentMode::KnownOpponent(opponents.into_iter().map(|(_, spec)| spec.name.clone()).collect())
        }
        name => return Err(unknown_scripted_agent(&infos(), name)),
    };
    let game = spec.game();
    let tree = HistoryTree::new(game)?;
    let facts = EpisodeFacts::of_tree(game, &tree)?;
    let (mut solved, mut equilibrium) = (Vec::new(), TabularPolicy::default());
    if let AgentMode::Nash = mode {
        let mut cfr = Cfr::new(&tree);
        cfr.run(NASH_ITERATIONS);
        equilibrium = cfr.average_policy();
    } else {
        let seats = 0..game.players();
        solved = seats.map(|s| spec.bayes(query.population, query.split, s, query.episodes)).collect::<Result<_>>()?;
    }
    let actions = tree.info_sets().iter().flat_map(|set| set.actions.iter());
    let names = actions.map(|a| (a.0, game.action_name(*a))).collect();
    Ok(Arc::new(GameAgentFactory(Arc::new(SolvedGame { facts, names, solved, equilibrium, mode }))))
}

/// Knowledge and objective of an agent.
enum AgentMode {
    /// Plays an equilibrium.
    Nash,
    /// Starts from the prior and adapts.
    Adapt(ScoreObjective),
    /// Knows which of these opponents it plays, and maximises each episode.
    KnownOpponent(Vec<String>),
}

/// A solved game, shared by the agents of all tasks.
struct SolvedGame {
    facts: EpisodeFacts,
    /// Names of actions by number.
    names: HashMap<u16, String>,
    /// The exact optimum of each seat.
    solved: Vec<BayesAdaptiveSolver>,
    equilibrium: TabularPolicy,
    mode: AgentMode,
}

struct GameAgentFactory(Arc<SolvedGame>);

impl ScriptedAgentFactory for GameAgentFactory {
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let prior = match (&self.0.mode, self.0.solved.get(usize::from(task.seat))) {
            (AgentMode::KnownOpponent(names), Some(bayes)) => {
                let index = task.opponent.as_ref().and_then(|o| names.iter().position(|n| *n == o.name));
                let known = index.and_then(|i| bayes.prior_for_opponent(i).ok());
                known.unwrap_or_else(|| bayes.prior())
            }
            (_, bayes) => bayes.map(BayesAdaptiveSolver::prior).unwrap_or_default(),
        };
        Box::new(GameAgent { game: Arc::clone(&self.0), seat: task.seat, prior, rng: seed.rng() })
    }
}

/// Recomputes its belief from the reflections in its prompt at every decision and plays the optimum for it. Without
/// reflections it plays every episode as the first.
struct GameAgent {
    game: Arc<SolvedGame>,
    seat: u8,
    prior: Vec<f64>,
    rng: Rng,
}

impl GameAgent {
    /// The action, or `None` if no known opponent plays like this and the belief gives no advice.
    fn choose(&mut self, prompt: &PromptView<'_>) -> Option<u16> {
        let seen = self.game.facts.at_decision(self.seat, prompt.observation)?;
        let objective = match self.game.mode {
            AgentMode::Nash => {
                let policy = self.game.equilibrium.get(self.seat, seen.last()?)?;
                return Some(sample_action(policy, &mut self.rng).0);
            }
            AgentMode::Adapt(objective) => Some(objective),
            AgentMode::KnownOpponent(_) => None,
        };
        let bayes = &self.game.solved[usize::from(self.seat)];
        let mut belief = self.prior.clone();
        for facts in prompt.memory {
            // Reflections that are not factual, or that fit no known opponent, are ignored.
            if let Ok(Some(updated)) = self.game.facts.update(bayes, &belief, facts) {
                belief = updated;
            }
        }
        let left = bayes.episodes().saturating_sub(prompt.memory.len() as u32).max(1);
        let (left, objective) = objective.map_or((1, ScoreObjective::Sum), |objective| (left, objective));
        let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
        bayes.best_action(&belief, left, objective, &seen).ok().flatten().map(|a| a.0)
    }
}

impl ScriptedAgent for GameAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        match self.choose(prompt) {
            Some(action) => self.game.names[&action].clone(),
            None => prompt.legal.choose(&mut self.rng).cloned().unwrap_or_default(),
        }
    }

    fn reflect(&mut self, finished: &str) -> String {
        self.game.facts.of_end(self.seat, finished).unwrap_or_default().to_owned()
    }
}

/// What a player has observed in an episode of a small game, by the compact words of its prompts.
///
/// The compact words of a decision, and the facts of a finished game ([`TextGame::facts`]), determine the player's
/// observations ([`Game::observe`](crate::Game::observe)) up to there.
#[derive(Default)]
pub struct EpisodeFacts {
    decisions: HashMap<(u8, String), Vec<String>>,
    finished: HashMap<(u8, String), Vec<String>>,
    /// Facts by the compact words of the last observation.
    ends: HashMap<(u8, String), String>,
}

impl EpisodeFacts {
    /// The tables of a game. Fails if its compact words do not determine what a player has observed.
    pub fn new<G: TextGame>(game: &G) -> Result<Self> {
        Self::of_tree(game, &HistoryTree::new(game)?)
    }

    fn of_tree<G: TextGame>(game: &G, tree: &HistoryTree<G>) -> Result<Self> {
        let mut tables = EpisodeFacts::default();
        for seat in 0..game.players() {
            let mut open = vec![(0, Vec::new())];
            while let Some((id, mut seen)) = open.pop() {
                let node = &tree.nodes()[id];
                let compact = || game.describe(&node.state, seat).compact;
                match node.current_player {
                    CurrentPlayer::Terminal => {
                        seen.push(game.observe(&node.state, seat));
                        let facts = game.facts(&node.state, seat);
                        insert(&mut tables.ends, (seat, compact()), facts.clone())?;
                        insert(&mut tables.finished, (seat, facts), seen.clone())?;
                    }
                    CurrentPlayer::Player(mover) if mover == seat => {
                        seen.push(game.observe(&node.state, seat));
                        insert(&mut tables.decisions, (seat, compact()), seen.clone())?;
                    }
                    _ => {}
                }
                open.extend(node.edges.iter().map(|e| (e.child, seen.clone())));
            }
        }
        Ok(tables)
    }

    /// The observations at the player's decisions so far, from the compact words of the current one.
    fn at_decision(&self, seat: u8, compact: &str) -> Option<&[String]> {
        self.decisions.get(&(seat, compact.to_owned())).map(Vec::as_slice)
    }

    /// The facts of a finished game, from the compact words of its last observation.
    fn of_end(&self, seat: u8, compact: &str) -> Option<&str> {
        self.ends.get(&(seat, compact.to_owned())).map(String::as_str)
    }

    /// The observations of the player in `seat` in a finished game: at its decisions and at the end, as
    /// [`BayesAdaptiveSolver::update`] takes them.
    pub fn observations(&self, seat: u8, facts: &str) -> Result<&[String]> {
        let words: Vec<&str> = facts.split_whitespace().collect();
        self.finished.get(&(seat, words.join(" "))).map(Vec::as_slice).ok_or_else(|| {
            Error::invalid("facts about a game", format!("`{facts}` does not describe a game from seat {seat}"))
        })
    }

    /// The belief for the next episode after a game with these facts, as [`BayesAdaptiveSolver::update`]. `None` if no
    /// possible opponent plays like that.
    pub fn update(&self, bayes: &BayesAdaptiveSolver, belief: &[f64], facts: &str) -> Result<Option<Vec<f64>>> {
        let observations = self.observations(bayes.seat(), facts)?;
        bayes.update(belief, &observations.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn insert<V: PartialEq>(table: &mut HashMap<(u8, String), V>, key: (u8, String), value: V) -> Result<()> {
    match table.get(&key) {
        Some(known) if *known != value => Err(Error::invalid(
            "scripted agent",
            format!(
                "`{}` covers different observations of seat {}; the compact words must tell them apart",
                key.1, key.0
            ),
        )),
        _ => {
            table.insert(key, value);
            Ok(())
        }
    }
}
