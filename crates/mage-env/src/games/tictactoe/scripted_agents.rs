//! Scripted agents for Tic-Tac-Toe.

use super::{
    best_response::TicTacToeBestResponse,
    minimax::MinimaxSolution,
    rules::{Board, BoardCell, TicTacToe, WinLine},
    spec::TicTacToeSpec,
    text::{read_board, read_facts},
    win_game::WinGame,
};
use crate::{
    Error, Game, Hash, OpponentSchedule, PromptView, Result, Rng, ScriptedAgent, ScriptedAgentFactory,
    ScriptedAgentInfo, ScriptedAgentQuery, Seed, Strategy, Task, TextGame,
    solvers::{BayesAdaptiveSolver, ScoreObjective},
};
use rand::seq::IndexedRandom;
use std::{collections::HashMap, sync::Arc};

pub(super) fn infos() -> Vec<ScriptedAgentInfo> {
    vec![
        ScriptedAgentInfo::new("perfect", "minimax: never loses, does not adapt"),
        ScriptedAgentInfo::new("textbook", "completes a line, else blocks one, else plays at random"),
        ScriptedAgentInfo::new("bayes", "Bayes-adaptive optimum: values a move by its score and its information"),
        ScriptedAgentInfo::with_full_info("best-response", "best response to the opponent, which it knows"),
    ]
}

pub(super) fn factory(
    env_spec: &TicTacToeSpec,
    query: &ScriptedAgentQuery<'_>,
) -> Result<Arc<dyn ScriptedAgentFactory>> {
    match query.name {
        "perfect" => Ok(Arc::new(PerfectAgentFactory)),
        "textbook" => Ok(Arc::new(TextbookAgentFactory)),
        "bayes" => Ok(Arc::new(TicTacToeBayesAgentFactory::new(env_spec, query)?)),
        "best-response" => Ok(Arc::new(BestResponseAgentFactory::new(env_spec, query)?)),
        other => {
            let known = infos().into_iter().map(|d| d.name).chain(["random".to_owned()]);
            Err(Error::unknown("policy", other, known))
        }
    }
}

/// The factual reflection: the last observation without the seat word.
fn facts_of(finished: &str) -> String {
    finished.split_once(' ').map_or(finished, |(_, facts)| facts).to_owned()
}

fn action_word(cell: Option<BoardCell>, legal: &[String]) -> String {
    match cell {
        Some(cell) => TicTacToe.action_name(cell.action()),
        None => legal.first().cloned().unwrap_or_default(),
    }
}

/// Plays perfectly, uniformly among the best moves.
struct PerfectAgent {
    rng: Rng,
}

impl PerfectAgent {
    fn new(seed: Seed) -> Self {
        PerfectAgent { rng: seed.child("ties").rng() }
    }

    fn choose(&mut self, board: &Board) -> Option<BoardCell> {
        MinimaxSolution::perfect().best_moves(board).choose(&mut self.rng).copied()
    }
}

impl ScriptedAgent for PerfectAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let cell = read_board(prompt.observation).and_then(|b| self.choose(&b));
        action_word(cell, prompt.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

struct PerfectAgentFactory;

impl ScriptedAgentFactory for PerfectAgentFactory {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(PerfectAgent::new(seed))
    }
}

/// Completes a line, else blocks the opponent's, else plays at random.
struct TextbookAgent {
    rng: Rng,
}

impl TextbookAgent {
    fn choose(&mut self, board: &Board) -> Option<BoardCell> {
        let own = board.mover();
        let empty: Vec<BoardCell> = BoardCell::all().filter(|c| board.is_empty(*c)).collect();
        let completes = |cell: &BoardCell, seat: u8| {
            WinLine::all().any(|line| {
                line.cells().any(|c| c == *cell)
                    && line.cells().filter(|c| c != cell).all(|c| board.mark(c) == Some(seat))
            })
        };
        let forced = empty.iter().find(|c| completes(c, own)).or_else(|| empty.iter().find(|c| completes(c, 1 - own)));
        forced.copied().or_else(|| empty.choose(&mut self.rng).copied())
    }
}

impl ScriptedAgent for TextbookAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let cell = read_board(prompt.observation).and_then(|b| self.choose(&b));
        action_word(cell, prompt.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

struct TextbookAgentFactory;

impl ScriptedAgentFactory for TextbookAgentFactory {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(TextbookAgent { rng: seed.child("textbook").rng() })
    }
}

/// An opponent with the best response to each of its phases.
struct OpponentBestResponses {
    schedule: OpponentSchedule<TicTacToe>,
    responses: Vec<TicTacToeBestResponse>,
}

/// Best responses to every opponent of a population, by opponent and the agent's seat.
struct BestResponseAgentFactory {
    by_opponent: HashMap<(Hash, u8), Arc<OpponentBestResponses>>,
}

impl BestResponseAgentFactory {
    fn new(env_spec: &TicTacToeSpec, query: &ScriptedAgentQuery<'_>) -> Result<Self> {
        let mut by_opponent = HashMap::new();
        for (_, spec) in query.population.in_split(query.split)? {
            let schedule = env_spec.opponents.build(spec)?;
            let phases = env_spec.phases_with_policies(spec, &schedule);
            for seat in 0..2 {
                let responses = phases.iter().map(|(strategy, _)| TicTacToeBestResponse::against(&**strategy, seat));
                let responses = responses.collect::<Result<_>>()?;
                let value = Arc::new(OpponentBestResponses { schedule: schedule.clone(), responses });
                by_opponent.insert((Hash::of(spec), seat), value);
            }
        }
        Ok(BestResponseAgentFactory { by_opponent })
    }
}

impl ScriptedAgentFactory for BestResponseAgentFactory {
    /// Plays perfectly against opponents outside the population it was built for.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let spec = task.opponent.as_ref().map(|spec| (Hash::of(spec), task.seat));
        match spec.and_then(|key| self.by_opponent.get(&key)) {
            Some(found) => Box::new(BestResponseAgent { best_responses: Arc::clone(found), task_seed: task.seed }),
            None => Box::new(PerfectAgent::new(seed)),
        }
    }
}

struct BestResponseAgent {
    best_responses: Arc<OpponentBestResponses>,
    /// Determines the phase of a switching opponent in each episode.
    task_seed: Seed,
}

impl ScriptedAgent for BestResponseAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let schedule = &self.best_responses.schedule;
        let now: &Strategy<TicTacToe> = schedule.in_episode(self.task_seed, prompt.episode);
        let phase = schedule.phases().iter().position(|s| Arc::ptr_eq(s, now)).unwrap_or(0);
        let cell = read_board(prompt.observation).and_then(|b| self.best_responses.responses[phase].best_move(&b));
        action_word(cell, prompt.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// The Bayes-adaptive solver of each seat the agent may take.
struct TicTacToeBayesAgentFactory {
    by_seat: [Option<Arc<BayesAdaptiveSolver>>; 2],
    episodes: u32,
}

impl TicTacToeBayesAgentFactory {
    fn new(env_spec: &TicTacToeSpec, query: &ScriptedAgentQuery<'_>) -> Result<Self> {
        let mut by_seat = [None, None];
        let shares = query.population.seat_shares(2)?;
        for seat in (0..2).filter(|s| shares[*s] > 0.0) {
            let bayes = env_spec.bayes(query.population, query.split, seat as u8, query.episodes)?;
            by_seat[seat] = Some(Arc::new(bayes));
        }
        Ok(TicTacToeBayesAgentFactory { by_seat, episodes: query.episodes })
    }
}

impl ScriptedAgentFactory for TicTacToeBayesAgentFactory {
    /// Plays perfectly from seats without a solver.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let perfect = PerfectAgent::new(seed);
        match self.by_seat.get(usize::from(task.seat)) {
            Some(Some(bayes)) => {
                let (bayes, episodes) = (Arc::clone(bayes), self.episodes);
                Box::new(TicTacToeBayesAgent { bayes, perfect, episodes, belief: vec![], observations: vec![] })
            }
            _ => Box::new(perfect),
        }
    }
}

struct TicTacToeBayesAgent {
    bayes: Arc<BayesAdaptiveSolver>,
    /// Plays on boards that no possible opponent leads to.
    perfect: PerfectAgent,
    /// Number of episodes.
    episodes: u32,
    /// Belief at the start of this episode.
    belief: Vec<f64>,
    /// Observations at its decisions in this episode.
    observations: Vec<String>,
}

impl TicTacToeBayesAgent {
    /// The belief after the reflections in memory. Reflections that are invalid, or impossible for every known
    /// opponent, are ignored.
    fn belief_from_memory(&self, prompt: &PromptView<'_>) -> Vec<f64> {
        let seat = self.bayes.seat();
        prompt.memory.iter().filter_map(|text| read_facts(text)).fold(self.bayes.prior(), |belief, game| {
            let texts = observations_of(&game, seat);
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.bayes.update(&belief, &texts).ok().flatten().unwrap_or(belief)
        })
    }

    fn choose(&mut self, prompt: &PromptView<'_>) -> Option<BoardCell> {
        let board = read_board(prompt.observation)?;
        if board.moves().count() < 2 {
            self.belief = self.belief_from_memory(prompt);
            self.observations.clear();
        }
        self.observations.push(WinGame.observe(&board, self.bayes.seat()));
        let texts: Vec<&str> = self.observations.iter().map(String::as_str).collect();
        // Without reflections in its prompt, every episode counts as the first.
        let left = self.episodes.saturating_sub(prompt.memory.len() as u32).clamp(1, self.bayes.episodes());
        let best = self.bayes.best_action(&self.belief, left, ScoreObjective::Sum, &texts).ok().flatten();
        best.map(BoardCell::of).or_else(|| self.perfect.choose(&board))
    }
}

impl ScriptedAgent for TicTacToeBayesAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let cell = self.choose(prompt);
        action_word(cell, prompt.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// A seat's observations of a finished game: at each of its decisions and at the end.
fn observations_of(game: &Board, seat: u8) -> Vec<String> {
    let moves: Vec<BoardCell> = game.moves().collect();
    let boards = (0..=moves.len()).filter_map(|n| Board::after(moves[..n].iter().copied()));
    boards.filter(|b| b.over() || b.mover() == seat).map(|b| WinGame.observe(&b, seat)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{End, EnvSpec, Outcome, ParsedAction};

    /// Win rate by episode over tasks of a population; the agent's reflections are its memory.
    fn wins(name: &str, tasks: u64, use_memory: bool) -> [f64; 3] {
        let env_spec = TicTacToeSpec::default();
        let population = env_spec.default_population();
        let query = ScriptedAgentQuery { name, population: &population, split: "train", episodes: 3 };
        let factory = env_spec.scripted_agent(&query).unwrap();
        let mut won = [0.0; 3];
        for i in 0..tasks {
            let task = population.sample_task("train", 2, Seed::new(i)).unwrap();
            let mut env = env_spec.build(&task).unwrap();
            let mut agent = factory.make(&task, Seed::new(i).child("agent"));
            let mut memory: Vec<String> = Vec::new();
            for (episode, won) in (0..).zip(&mut won) {
                let mut observation = env.reset(episode).compact;
                let end = loop {
                    let legal = env.legal().unwrap();
                    let prompt =
                        PromptView { episode, memory: &memory, observation: &observation, legal: &legal, history: &[] };
                    let step = env.step(&ParsedAction::Act(agent.act(&prompt)));
                    assert!(step.valid);
                    observation = step.observation.compact;
                    if let Some(end) = step.end {
                        break end;
                    }
                };
                let reflection = agent.reflect(&observation);
                if use_memory {
                    memory.push(reflection);
                }
                assert!(!matches!(end, End::Terminated { outcome: Outcome::Lost, .. }), "these agents never lose");
                *won += f64::from(u8::from(matches!(end, End::Terminated { outcome: Outcome::Won, .. })));
            }
        }
        won.map(|w| w / tasks as f64)
    }

    #[test]
    fn bayes_finds_the_blind_line_and_best_response_knows_it() {
        let bayes = wins("bayes", 300, true);
        assert!((bayes[0] - 4.0 / 6.0).abs() < 0.09, "{bayes:?}");
        assert_eq!(bayes[1..], [1.0, 1.0]);
        let without_memory = wins("bayes", 300, false);
        assert!(without_memory.iter().all(|w| (w - 4.0 / 6.0).abs() < 0.09), "{without_memory:?}");
        assert_eq!(wins("best-response", 60, true), [1.0; 3]);
    }

    #[test]
    fn perfect_agent_does_not_adapt() {
        let perfect = wins("perfect", 300, true);
        assert!(perfect.iter().all(|w| *w < 0.6), "{perfect:?}");
    }

    #[test]
    fn textbook_agent_completes_and_blocks_lines() {
        let mut agent = TextbookAgentFactory.make(
            &TicTacToeSpec::default().default_population().sample_task("train", 2, Seed::new(1)).unwrap(),
            Seed::new(1),
        );
        let mut choice = |observation: &str| {
            agent.act(&PromptView { episode: 0, memory: &[], observation, legal: &[], history: &[] })
        };
        assert_eq!(choice("X X . O O . . . ."), "(1,3)", "a win comes first");
        assert_eq!(choice("X . . O O . . . X"), "(2,3)", "then a block");
    }

    #[test]
    fn unknown_agent_error_suggests_the_nearest_name() {
        let env_spec = TicTacToeSpec::default();
        let population = env_spec.default_population();
        let query = ScriptedAgentQuery { name: "perfekt", population: &population, split: "train", episodes: 3 };
        let error = env_spec.scripted_agent(&query).err().unwrap().to_string();
        assert!(error.contains("did you mean `perfect`"), "{error}");
    }
}
