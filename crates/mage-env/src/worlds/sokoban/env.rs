//! The Sokoban environment.

use super::{
    action::{ACTION_WORDS, MoveOrNoop, all_actions, format_action, parse_action},
    board::{SokobanBoard, SokobanState},
    level::{SokobanLevel, Tile},
    render::{Rendering, compact, render},
    rules::{STEP_REWARD, SokobanEpisode, Termination},
    solvability::SolvabilityChecker,
};
use crate::{ActionPhrase, Anchor, End, Env, Observation, Outcome, ParsedAction, Result, Step};
use serde::{Deserialize, Serialize};

/// How the moves of an action combine into one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepRules {
    /// The action stops at the move that ends the episode, and its rewards add up.
    #[default]
    Corrected,
    /// As released: all moves are made, even after the room is solved, and reward, observation and termination are those
    /// of the last move. An action counts as won if any of its moves solved the room. (In the released loop such an episode
    /// continues although it counts as won; here it ends with the action.)
    Faithful,
}

/// Configuration of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SokobanConfig {
    /// How the moves of an action combine into one step.
    pub step_rules: StepRules,
    /// Maximum moves per action.
    pub moves_per_action: usize,
    /// Moves after which the episode is truncated.
    pub max_steps: u32,
    /// A state that cannot be solved within this many moves is a loss.
    pub search_depth: u32,
    /// Text rendering of the room.
    pub render: Rendering,
}

/// One room; every episode starts from the same initial state.
pub struct SokobanEnv {
    config: SokobanConfig,
    board: SokobanBoard,
    start: SokobanState,
    play: SokobanEpisode,
    solvable: SolvabilityChecker,
    score: f64,
    end: Option<End>,
}

impl SokobanEnv {
    /// Creates the environment of a level.
    pub fn new(level: &SokobanLevel, config: SokobanConfig) -> Result<Self> {
        let (board, start) = SokobanBoard::new(level)?;
        let play = SokobanEpisode::new(&board, start);
        let solvable = SolvabilityChecker::new(config.search_depth);
        Ok(SokobanEnv { config, board, start, play, solvable, score: 0.0, end: None })
    }

    /// Board and initial state, for solvers only.
    pub(super) fn start(&self) -> (&SokobanBoard, SokobanState) {
        (&self.board, self.start)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        render(&self.board, &self.play.state, self.config.render, &mut text);
        text
    }

    fn observe(&self) -> Observation {
        Observation { text: self.text(), compact: compact(&self.board, &self.play.state) }
    }

    /// Applies an action's moves; returns the reward and why the episode ended, if it did.
    fn apply_moves(&mut self, moves: &[MoveOrNoop]) -> (f64, Option<Termination>) {
        let mut total = 0.0;
        let mut solved = false;
        let mut last = (0.0, None);
        for direction in moves {
            let outcome = self.play.step(&self.board, *direction, self.config.max_steps, &mut self.solvable);
            total += outcome.reward;
            solved |= outcome.solved;
            last = (outcome.reward, outcome.termination);
            if self.config.step_rules == StepRules::Corrected && outcome.termination.is_some() {
                break;
            }
        }
        match self.config.step_rules {
            StepRules::Corrected => (total, last.1),
            StepRules::Faithful => (last.0, if solved { Some(Termination::Solved) } else { last.1 }),
        }
    }
}

impl Env for SokobanEnv {
    fn reset(&mut self, _episode: u32) -> Observation {
        self.play = SokobanEpisode::new(&self.board, self.start);
        self.score = 0.0;
        self.end = None;
        self.observe()
    }

    fn parse(&self, text: &str) -> ParsedAction {
        match parse_action(text, self.config.moves_per_action) {
            Some(moves) => ParsedAction::Act(format_action(moves)),
            None => {
                ParsedAction::invalid("the answer names no move; write up, down, left or right, with commas between")
            }
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        let moves = match action {
            ParsedAction::Act(text) => parse_action(text, self.config.moves_per_action),
            ParsedAction::Invalid { .. } => None,
        };
        let playing = self.end.is_none();
        let (reward, termination) = match &moves {
            Some(moves) if playing => self.apply_moves(moves),
            // An unparsable action counts as one no-op.
            None if playing => (STEP_REWARD, None),
            _ => (0.0, None),
        };
        self.score += reward;
        let terminated = |outcome| End::Terminated { outcome, score: self.score as f32 };
        self.end = self.end.or(termination.map(|termination| match termination {
            Termination::Solved => terminated(Outcome::Won),
            Termination::Deadlock => terminated(Outcome::Lost),
            Termination::StepLimit => End::Truncated,
        }));
        Step { observation: self.observe(), reward: reward as f32, valid: moves.is_some() && playing, end: self.end }
    }

    /// Also accepts actions with no-ops, which [`Env::legal`] does not enumerate.
    fn allows(&self, action: &str) -> bool {
        self.end.is_none() && matches!(self.parse(action), ParsedAction::Act(_))
    }

    fn legal(&self) -> Option<Vec<String>> {
        if self.end.is_some() { Some(Vec::new()) } else { all_actions(self.config.moves_per_action) }
    }

    fn action_phrase(&self) -> Option<ActionPhrase> {
        Some(ActionPhrase { words: &ACTION_WORDS, max_words: self.config.moves_per_action })
    }

    fn anchor(&self) -> Anchor {
        Anchor(self.text())
    }

    fn render(&self) -> Option<String> {
        let mut out = String::new();
        for row in 0..self.board.rows() {
            for col in 0..self.board.cols() {
                out.push_str(match self.board.at(&self.play.state, row, col) {
                    Tile::Wall => "██",
                    Tile::Floor => "  ",
                    Tile::Target => "··",
                    Tile::BoxOnTarget => "▓▓",
                    Tile::Box => "[]",
                    Tile::Player => "☺ ",
                    Tile::PlayerOnTarget => "☺·",
                });
            }
            out.push('\n');
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(text: &str, step_rules: StepRules) -> SokobanEnv {
        let config = SokobanConfig {
            step_rules,
            moves_per_action: 3,
            max_steps: 30,
            search_depth: 100,
            render: Rendering::TextWithRowNumbers,
        };
        SokobanEnv::new(&SokobanLevel::parse(text, "t").unwrap(), config).unwrap()
    }

    fn act(w: &mut SokobanEnv, text: &str) -> (f32, bool, Option<End>) {
        let step = w.step(&w.parse(text));
        (step.reward, step.valid, step.end)
    }

    const CORRIDOR: &str = "########\n#@ $ . #\n########";

    #[test]
    fn a_corrected_action_stops_when_solved_and_sums_rewards() {
        let mut w = env(CORRIDOR, StepRules::Corrected);
        w.reset(0);
        assert_eq!(act(&mut w, "right, still, right"), (-0.3_f64 as f32, true, None));
        let (reward, valid, end) = act(&mut w, "right, right, right");
        assert!(valid && (reward - 10.9).abs() < 1e-5);
        let Some(End::Terminated { outcome: Outcome::Won, score }) = end else { panic!("{end:?}") };
        assert!((score - 10.6).abs() < 1e-5);
        assert_eq!(act(&mut w, "left"), (0.0, false, end), "the episode has ended");
        assert_eq!(w.legal(), Some(vec![]));
        let again = w.reset(1);
        assert_eq!(again.compact, "@ - $ - . -");
        assert_eq!(w.legal().unwrap().len(), 84);
    }

    #[test]
    fn a_faithful_action_continues_and_rewards_its_last_move() {
        let mut w = env(CORRIDOR, StepRules::Faithful);
        w.reset(0);
        assert_eq!(act(&mut w, "right, right"), (-0.1, true, None));
        // The first move solves the room, the second pushes the box off again, the third runs into it.
        let (reward, valid, end) = act(&mut w, "right, right, right");
        assert_eq!((reward, valid), (-0.1, true));
        assert!(matches!(end, Some(End::Terminated { outcome: Outcome::Won, .. })));
    }

    #[test]
    fn an_unparsable_action_costs_the_turn() {
        let mut w = env(CORRIDOR, StepRules::Corrected);
        let before = w.reset(0);
        let step = w.step(&w.parse("north"));
        assert_eq!((step.reward, step.valid, step.end), (-0.1, false, None));
        assert_eq!(step.observation, before);
    }

    #[test]
    fn deadlocks_lose_and_the_step_limit_truncates() {
        let mut w = env("#####\n#   #\n#@$ #\n#  .#\n#####", StepRules::Corrected);
        w.reset(0);
        let end = act(&mut w, "down, right, up").2;
        assert!(
            matches!(end, Some(End::Terminated { outcome: Outcome::Lost, .. })),
            "a box against a wall without targets"
        );
        w.reset(1);
        for n in 0..10 {
            let end = act(&mut w, "left, left, left").2;
            assert_eq!(end, (n == 9).then_some(End::Truncated));
        }
    }
}
