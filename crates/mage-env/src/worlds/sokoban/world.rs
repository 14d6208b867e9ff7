//! What does an agent in a room face?

use super::{
    board::{Board, State},
    level::{Cell, Level},
    render::{Rendering, compact, render},
    rules::{Over, Play, STEP},
    solvable::Solvable,
    turn::{TURN_WORDS, all_turns, read_turn, write_turn},
};
use crate::{Anchor, End, Env, Observation, Outcome, ParsedAction, Phrase, Result, Step};
use serde::{Deserialize, Serialize};

/// How the moves of a turn make one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnRules {
    /// The turn stops at the move that ends the room, and its points add up.
    #[default]
    Corrected,
    /// As released: all moves are made, even after the room is solved, and points, view and end are the last move's. A
    /// turn counts as won if any of its moves solved the room. (In the released loop such an episode runs on although it is
    /// counted as won; here it ends with the turn.)
    Faithful,
}

/// What a room is played by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorldSettings {
    /// How a turn's moves are put together.
    pub turns: TurnRules,
    /// How many moves a turn may have.
    pub moves_per_turn: usize,
    /// After how many moves the room is over.
    pub max_steps: u32,
    /// Rooms that cannot be solved within so many moves are lost.
    pub search_depth: u32,
    /// How the room is printed.
    pub render: Rendering,
}

/// One room, to be attempted again and again from the same start.
pub struct SokobanWorld {
    settings: WorldSettings,
    board: Board,
    start: State,
    play: Play,
    solvable: Solvable,
    score: f64,
    end: Option<End>,
}

impl SokobanWorld {
    /// A level to play.
    pub fn new(level: &Level, settings: WorldSettings) -> Result<Self> {
        let (board, start) = Board::new(level)?;
        let play = Play::new(&board, start);
        let solvable = Solvable::new(settings.search_depth);
        Ok(SokobanWorld { settings, board, start, play, solvable, score: 0.0, end: None })
    }

    /// The room and its start, for solvers. An agent never gets here.
    pub(super) fn start(&self) -> (&Board, State) {
        (&self.board, self.start)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        render(&self.board, &self.play.state, self.settings.render, &mut text);
        text
    }

    fn observe(&self) -> Observation {
        Observation { text: self.text(), compact: compact(&self.board, &self.play.state) }
    }

    /// Makes a turn's moves; points, and how the room ended.
    fn make(&mut self, wishes: &[Option<super::board::Move>]) -> (f64, Option<Over>) {
        let mut total = 0.0;
        let mut solved = false;
        let mut last = (0.0, None);
        for wish in wishes {
            let moment = self.play.step(&self.board, *wish, self.settings.max_steps, &mut self.solvable);
            total += moment.reward;
            solved |= moment.solved;
            last = (moment.reward, moment.over);
            if self.settings.turns == TurnRules::Corrected && moment.over.is_some() {
                break;
            }
        }
        match self.settings.turns {
            TurnRules::Corrected => (total, last.1),
            TurnRules::Faithful => (last.0, if solved { Some(Over::Solved) } else { last.1 }),
        }
    }
}

impl Env for SokobanWorld {
    fn begin(&mut self, _episode: u32) -> Observation {
        self.play = Play::new(&self.board, self.start);
        self.score = 0.0;
        self.end = None;
        self.observe()
    }

    fn parse(&self, text: &str) -> ParsedAction {
        match read_turn(text, self.settings.moves_per_turn) {
            Some(wishes) => ParsedAction::Act(write_turn(wishes)),
            None => {
                ParsedAction::invalid("the answer names no move; write up, down, left or right, with commas between")
            }
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        let wishes = match action {
            ParsedAction::Act(turn) => read_turn(turn, self.settings.moves_per_turn),
            ParsedAction::Invalid { .. } => None,
        };
        let playing = self.end.is_none();
        let (reward, over) = match &wishes {
            Some(wishes) if playing => self.make(wishes),
            // What cannot be read is one move of standing still.
            None if playing => (STEP, None),
            _ => (0.0, None),
        };
        self.score += reward;
        let terminated = |outcome| End::Terminated { outcome, score: self.score as f32 };
        self.end = self.end.or(over.map(|over| match over {
            Over::Solved => terminated(Outcome::Won),
            Over::Dead => terminated(Outcome::Lost),
            Over::OutOfSteps => End::Truncated,
        }));
        Step { observation: self.observe(), reward: reward as f32, valid: wishes.is_some() && playing, end: self.end }
    }

    /// Standing still can be said too; it is not among the turns worth listing.
    fn allows(&self, action: &str) -> bool {
        self.end.is_none() && matches!(self.parse(action), ParsedAction::Act(_))
    }

    fn legal(&self) -> Option<Vec<String>> {
        if self.end.is_some() { Some(Vec::new()) } else { all_turns(self.settings.moves_per_turn) }
    }

    fn phrase(&self) -> Option<Phrase> {
        Some(Phrase { words: &TURN_WORDS, most: self.settings.moves_per_turn })
    }

    fn anchor(&self) -> Anchor {
        Anchor(self.text())
    }

    fn picture(&self) -> Option<String> {
        let mut out = String::new();
        for row in 0..self.board.rows() {
            for col in 0..self.board.cols() {
                out.push_str(match self.board.at(&self.play.state, row, col) {
                    Cell::Wall => "██",
                    Cell::Floor => "  ",
                    Cell::Target => "··",
                    Cell::BoxOnTarget => "▓▓",
                    Cell::Box => "[]",
                    Cell::Player => "☺ ",
                    Cell::PlayerOnTarget => "☺·",
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

    fn world(text: &str, turns: TurnRules) -> SokobanWorld {
        let settings = WorldSettings {
            turns,
            moves_per_turn: 3,
            max_steps: 30,
            search_depth: 100,
            render: Rendering::TextWithRowNumbers,
        };
        SokobanWorld::new(&Level::parse(text, "t").unwrap(), settings).unwrap()
    }

    fn turn(w: &mut SokobanWorld, text: &str) -> (f32, bool, Option<End>) {
        let step = w.step(&w.parse(text));
        (step.reward, step.valid, step.end)
    }

    const CORRIDOR: &str = "########\n#@ $ . #\n########";

    #[test]
    fn a_corrected_turn_stops_when_solved_and_adds_up() {
        let mut w = world(CORRIDOR, TurnRules::Corrected);
        w.begin(0);
        assert_eq!(turn(&mut w, "right, still, right"), (-0.3_f64 as f32, true, None));
        let (reward, valid, end) = turn(&mut w, "right, right, right");
        assert!(valid && (reward - 10.9).abs() < 1e-5);
        let Some(End::Terminated { outcome: Outcome::Won, score }) = end else { panic!("{end:?}") };
        assert!((score - 10.6).abs() < 1e-5);
        assert_eq!(turn(&mut w, "left"), (0.0, false, end), "over is over");
        assert_eq!(w.legal(), Some(vec![]));
        let again = w.begin(1);
        assert_eq!(again.compact, "@ - $ - . -");
        assert_eq!(w.legal().unwrap().len(), 84);
    }

    #[test]
    fn a_faithful_turn_goes_on_and_counts_its_last_move() {
        let mut w = world(CORRIDOR, TurnRules::Faithful);
        w.begin(0);
        assert_eq!(turn(&mut w, "right, right"), (-0.1, true, None));
        // The first move solves the room, the second pushes the box off again, the third runs into it.
        let (reward, valid, end) = turn(&mut w, "right, right, right");
        assert_eq!((reward, valid), (-0.1, true));
        assert!(matches!(end, Some(End::Terminated { outcome: Outcome::Won, .. })));
    }

    #[test]
    fn what_cannot_be_read_costs_the_turn() {
        let mut w = world(CORRIDOR, TurnRules::Corrected);
        let before = w.begin(0);
        let step = w.step(&w.parse("north"));
        assert_eq!((step.reward, step.valid, step.end), (-0.1, false, None));
        assert_eq!(step.observation, before);
    }

    #[test]
    fn dead_ends_lose_and_long_walks_are_cut() {
        let mut w = world("#####\n#   #\n#@$ #\n#  .#\n#####", TurnRules::Corrected);
        w.begin(0);
        let end = turn(&mut w, "down, right, up").2;
        assert!(matches!(end, Some(End::Terminated { outcome: Outcome::Lost, .. })), "a box on a wall without targets");
        w.begin(1);
        for n in 0..10 {
            let end = turn(&mut w, "left, left, left").2;
            assert_eq!(end, (n == 9).then_some(End::Truncated));
        }
    }
}
