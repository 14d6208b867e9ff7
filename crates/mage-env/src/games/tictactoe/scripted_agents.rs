//! Who plays Tic-Tac-Toe by rule?

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

pub(super) fn docs() -> Vec<ScriptedAgentInfo> {
    vec![
        ScriptedAgentInfo::new("perfect", "minimax: never loses, and learns nothing about anybody"),
        ScriptedAgentInfo::new("textbook", "wins if it can, blocks if it must, else plays anywhere"),
        ScriptedAgentInfo::new("bayes", "the best possible learner: weighs what a move earns and what it reveals"),
        ScriptedAgentInfo::with_full_info("best-response", "the likeliest win against the opponent it is told"),
    ]
}

pub(super) fn maker(env_spec: &TicTacToeSpec, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
    match query.name {
        "perfect" => Ok(Arc::new(PerfectMaker)),
        "textbook" => Ok(Arc::new(TextbookMaker)),
        "bayes" => Ok(Arc::new(BayesMaker::new(env_spec, query)?)),
        "best-response" => Ok(Arc::new(ToldMaker::new(env_spec, query)?)),
        other => {
            let known = docs().into_iter().map(|d| d.name).chain(["random".to_owned()]);
            Err(Error::unknown("policy", other, known))
        }
    }
}

/// The facts: all that the last observation says but who began.
fn facts_of(finished: &str) -> String {
    finished.split_once(' ').map_or(finished, |(_, facts)| facts).to_owned()
}

fn named(cell: Option<BoardCell>, legal: &[String]) -> String {
    match cell {
        Some(cell) => TicTacToe.action_name(cell.action()),
        None => legal.first().cloned().unwrap_or_default(),
    }
}

/// Plays perfectly, any of the best moves alike.
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
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let cell = read_board(seen.observation).and_then(|b| self.choose(&b));
        named(cell, seen.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

struct PerfectMaker;

impl ScriptedAgentFactory for PerfectMaker {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(PerfectAgent::new(seed))
    }
}

/// Completes a line, or keeps the other from it, or plays anywhere.
struct Textbook {
    rng: Rng,
}

impl Textbook {
    fn choose(&mut self, board: &Board) -> Option<BoardCell> {
        let own = board.mover();
        let empty: Vec<BoardCell> = BoardCell::all().filter(|c| board.is_empty(*c)).collect();
        let completes = |cell: &BoardCell, seat: u8| {
            WinLine::all().any(|line| {
                line.cells().any(|c| c == *cell)
                    && line.cells().filter(|c| c != cell).all(|c| board.mark(c) == Some(seat))
            })
        };
        let found = empty.iter().find(|c| completes(c, own)).or_else(|| empty.iter().find(|c| completes(c, 1 - own)));
        found.copied().or_else(|| empty.choose(&mut self.rng).copied())
    }
}

impl ScriptedAgent for Textbook {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let cell = read_board(seen.observation).and_then(|b| self.choose(&b));
        named(cell, seen.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

struct TextbookMaker;

impl ScriptedAgentFactory for TextbookMaker {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(Textbook { rng: seed.child("textbook").rng() })
    }
}

/// An opponent with the best answer to each of its phases.
struct Answered {
    rival: OpponentSchedule<TicTacToe>,
    answers: Vec<TicTacToeBestResponse>,
}

/// Best answers to everybody in a population, by opponent and the agent's seat.
struct ToldMaker {
    answered: HashMap<(Hash, u8), Arc<Answered>>,
}

impl ToldMaker {
    fn new(env_spec: &TicTacToeSpec, query: &ScriptedAgentQuery<'_>) -> Result<Self> {
        let mut answered = HashMap::new();
        for (_, spec) in query.population.in_split(query.split)? {
            let rival = env_spec.opponents.build(spec)?;
            let known = env_spec.known_phases(spec, &rival);
            for seat in 0..2 {
                let answers = known.iter().map(|(strategy, _)| TicTacToeBestResponse::against(&**strategy, seat));
                let answers = answers.collect::<Result<_>>()?;
                answered.insert((Hash::of(spec), seat), Arc::new(Answered { rival: rival.clone(), answers }));
            }
        }
        Ok(ToldMaker { answered })
    }
}

impl ScriptedAgentFactory for ToldMaker {
    /// Plays perfectly against opponents from outside the population it was made for.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let spec = task.opponent.as_ref().map(|spec| (Hash::of(spec), task.seat));
        match spec.and_then(|key| self.answered.get(&key)) {
            Some(answered) => Box::new(ToldAgent { answered: Arc::clone(answered), task_seed: task.seed }),
            None => Box::new(PerfectAgent::new(seed)),
        }
    }
}

struct ToldAgent {
    answered: Arc<Answered>,
    /// Decides which phase an opponent that switches is in.
    task_seed: Seed,
}

impl ScriptedAgent for ToldAgent {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let rival = &self.answered.rival;
        let now: &Strategy<TicTacToe> = rival.in_episode(self.task_seed, seen.episode);
        let phase = rival.phases().iter().position(|s| Arc::ptr_eq(s, now)).unwrap_or(0);
        let cell = read_board(seen.observation).and_then(|b| self.answered.answers[phase].best_move(&b));
        named(cell, seen.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// The best possible learners, one for each seat the agent may take.
struct BayesMaker {
    by_seat: [Option<Arc<BayesAdaptiveSolver>>; 2],
    episodes: u32,
}

impl BayesMaker {
    fn new(env_spec: &TicTacToeSpec, query: &ScriptedAgentQuery<'_>) -> Result<Self> {
        let mut by_seat = [None, None];
        let shares = query.population.seat_shares(2)?;
        for seat in (0..2).filter(|s| shares[*s] > 0.0) {
            let bayes = env_spec.bayes(query.population, query.split, seat as u8, query.episodes)?;
            by_seat[seat] = Some(Arc::new(bayes));
        }
        Ok(BayesMaker { by_seat, episodes: query.episodes })
    }
}

impl ScriptedAgentFactory for BayesMaker {
    /// Plays perfectly from seats it was not made for.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let perfect = PerfectAgent::new(seed);
        match self.by_seat.get(usize::from(task.seat)) {
            Some(Some(bayes)) => {
                let (bayes, episodes) = (Arc::clone(bayes), self.episodes);
                Box::new(BayesAgent { bayes, perfect, episodes, belief: vec![], seen: vec![] })
            }
            _ => Box::new(perfect),
        }
    }
}

struct BayesAgent {
    bayes: Arc<BayesAdaptiveSolver>,
    /// Takes over where nobody expected could have led.
    perfect: PerfectAgent,
    /// How many there are.
    episodes: u32,
    /// What is believed at the start of this episode.
    belief: Vec<f64>,
    /// The boards it decided on.
    seen: Vec<String>,
}

impl BayesAgent {
    /// What the reflections in memory tell. One that cannot be, because it is made up or about somebody unknown, is passed
    /// over.
    fn remember(&self, seen: &PromptView<'_>) -> Vec<f64> {
        let seat = self.bayes.seat();
        seen.memory.iter().filter_map(|text| read_facts(text)).fold(self.bayes.prior(), |belief, game| {
            let texts = texts_of(&game, seat);
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            self.bayes.update(&belief, &texts).ok().flatten().unwrap_or(belief)
        })
    }

    fn choose(&mut self, seen: &PromptView<'_>) -> Option<BoardCell> {
        let board = read_board(seen.observation)?;
        if board.moves().count() < 2 {
            self.belief = self.remember(seen);
            self.seen.clear();
        }
        self.seen.push(WinGame.observe(&board, self.bayes.seat()));
        let texts: Vec<&str> = self.seen.iter().map(String::as_str).collect();
        // With nothing in its prompt it takes every episode for the first.
        let left = self.episodes.saturating_sub(seen.memory.len() as u32).clamp(1, self.bayes.episodes());
        let best = self.bayes.best_action(&self.belief, left, ScoreObjective::Sum, &texts).ok().flatten();
        best.map(BoardCell::of).or_else(|| self.perfect.choose(&board))
    }
}

impl ScriptedAgent for BayesAgent {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let cell = self.choose(seen);
        named(cell, seen.legal)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// What a seat saw in a finished game, at each of its decisions and at the end, as an oracle reads it.
fn texts_of(game: &Board, seat: u8) -> Vec<String> {
    let moves: Vec<BoardCell> = game.moves().collect();
    let boards = (0..=moves.len()).filter_map(|n| Board::after(moves[..n].iter().copied()));
    boards.filter(|b| b.over() || b.mover() == seat).map(|b| WinGame.observe(&b, seat)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{End, EnvSpec, Outcome, ParsedAction};

    /// WinGame by episode over tasks of a population, the agent's reflections being its memory.
    fn wins(name: &str, tasks: u64, memory: bool) -> [f64; 3] {
        let env_spec = TicTacToeSpec::default();
        let population = env_spec.default_population();
        let query = ScriptedAgentQuery { name, population: &population, split: "train", episodes: 3 };
        let maker = env_spec.scripted_agent(&query).unwrap();
        let mut won = [0.0; 3];
        for i in 0..tasks {
            let task = population.draw("train", 2, Seed::new(i)).unwrap();
            let mut env = env_spec.build(&task).unwrap();
            let mut agent = maker.make(&task, Seed::new(i).child("agent"));
            let mut notes: Vec<String> = Vec::new();
            for (episode, won) in (0..).zip(&mut won) {
                let mut observation = env.reset(episode).compact;
                let end = loop {
                    let legal = env.legal().unwrap();
                    let seen =
                        PromptView { episode, memory: &notes, observation: &observation, legal: &legal, history: &[] };
                    let step = env.step(&ParsedAction::Act(agent.act(&seen)));
                    assert!(step.valid);
                    observation = step.observation.compact;
                    if let Some(end) = step.end {
                        break end;
                    }
                };
                let note = agent.reflect(&observation);
                if memory {
                    notes.push(note);
                }
                assert!(!matches!(end, End::Terminated { outcome: Outcome::Lost, .. }), "nobody here loses");
                *won += f64::from(u8::from(matches!(end, End::Terminated { outcome: Outcome::Won, .. })));
            }
        }
        won.map(|w| w / tasks as f64)
    }

    #[test]
    fn the_learner_finds_the_blind_line_and_the_told_one_knows_it() {
        let learner = wins("bayes", 300, true);
        assert!((learner[0] - 4.0 / 6.0).abs() < 0.09, "{learner:?}");
        assert_eq!(learner[1..], [1.0, 1.0]);
        let blanked = wins("bayes", 300, false);
        assert!(blanked.iter().all(|w| (w - 4.0 / 6.0).abs() < 0.09), "{blanked:?}");
        assert_eq!(wins("best-response", 60, true), [1.0; 3]);
    }

    #[test]
    fn the_perfect_one_learns_nothing() {
        let perfect = wins("perfect", 300, true);
        assert!(perfect.iter().all(|w| *w < 0.6), "{perfect:?}");
    }

    #[test]
    fn the_textbook_completes_and_blocks_lines() {
        let mut agent = TextbookMaker
            .make(&TicTacToeSpec::default().default_population().draw("train", 2, Seed::new(1)).unwrap(), Seed::new(1));
        let mut choice = |observation: &str| {
            agent.act(&PromptView { episode: 0, memory: &[], observation, legal: &[], history: &[] })
        };
        assert_eq!(choice("X X . O O . . . ."), "(1,3)", "a win comes first");
        assert_eq!(choice("X . . O O . . . X"), "(2,3)", "then a block");
    }

    #[test]
    fn unknown_agents_are_named() {
        let env_spec = TicTacToeSpec::default();
        let population = env_spec.default_population();
        let query = ScriptedAgentQuery { name: "perfekt", population: &population, split: "train", episodes: 3 };
        let error = env_spec.scripted_agent(&query).err().unwrap().to_string();
        assert!(error.contains("did you mean `perfect`"), "{error}");
    }
}
