//! What is a move worth, and when is it over?
//!
//! As in the reference: a tenth of a point for every step, one for a box that reaches or leaves a target, ten for the last
//! one. The room is over when it is solved, when it can no longer be solved, and at a number of steps.

use super::{
    board::{Board, Move, Moved, State},
    solvable::Solvable,
};

/// What every step costs.
pub const STEP: f64 = -0.1;
const BOX_ON: f64 = 1.0;
const BOX_OFF: f64 = -1.0;
const ALL_ON: f64 = 10.0;

/// A room under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Play {
    /// Where everything is.
    pub state: State,
    /// How many steps were made; standing still is none.
    pub steps: u32,
    /// How many boxes are on targets.
    pub placed: u32,
}

/// What came of one move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Its points.
    pub reward: f64,
    /// Why the room is over, if it is.
    pub over: Option<Over>,
    /// What changed.
    pub moved: Moved,
    /// Whether every box is on a target now.
    pub solved: bool,
}

/// Why a room is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Every box is on a target.
    Solved,
    /// There is no solution left.
    Dead,
    /// Too many steps.
    OutOfSteps,
}

impl Play {
    /// A room at its start.
    pub fn new(board: &Board, start: State) -> Self {
        Play { state: start, steps: 0, placed: board.placed(&start) }
    }

    /// Makes a move; `None` is standing still, which only costs. It may be called after the end, as the reference may.
    pub fn step(&mut self, board: &Board, way: Option<Move>, max_steps: u32, solvable: &mut Solvable) -> Moment {
        let Some(way) = way else {
            return Moment { reward: STEP, over: None, moved: Moved::Nothing, solved: false };
        };
        self.steps += 1;
        let moved = board.go(&mut self.state, way);
        let placed = board.placed(&self.state);
        let mut reward = STEP;
        if placed > self.placed {
            reward += BOX_ON;
        } else if placed < self.placed {
            reward += BOX_OFF;
        }
        self.placed = placed;
        let solved = board.solved(&self.state);
        if solved {
            reward += ALL_ON;
        }
        let over = if solved {
            Some(Over::Solved)
        } else if self.steps == max_steps {
            // Equality, not "at least": a turn that runs past the limit in the reference goes on.
            Some(Over::OutOfSteps)
        } else if !solvable.check(board, &self.state) {
            Some(Over::Dead)
        } else {
            None
        };
        Moment { reward, over, moved, solved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sokoban::level::Level;

    fn play(text: &str, moves: &str) -> Vec<(f64, Option<Over>, bool)> {
        let (board, start) = Board::new(&Level::parse(text, "t").unwrap()).unwrap();
        let mut play = Play::new(&board, start);
        let mut solvable = Solvable::new(100);
        moves
            .chars()
            .map(|c| {
                let way = "udlr".find(c).map(|i| Move::ALL[i]);
                let m = play.step(&board, way, 6, &mut solvable);
                (m.reward, m.over, m.moved != Moved::Nothing)
            })
            .collect()
    }

    #[test]
    fn points_and_endings() {
        let room = "#######\n#@ $. #\n#     #\n#######";
        assert_eq!(play(room, "urr")[..2], [(-0.1, None, false), (-0.1, None, true)]);
        assert_eq!(play(room, "rr")[1], (-0.1 + 1.0 + 10.0, Some(Over::Solved), true));
        assert_eq!(play(room, "rrr")[2], (-0.1 - 1.0, Some(Over::Dead), true), "pushed on, into a corner");
        assert_eq!(play(room, "lslsl")[4], (-0.1, None, false));
        assert_eq!(play(room, "llllll")[5], (-0.1, Some(Over::OutOfSteps), false));
        assert_eq!(play(room, "lllllll")[6], (-0.1, None, false), "the reference's limit is met once");
    }

    #[test]
    fn staying_solved_pays_again_in_the_reference() {
        assert_eq!(play("######\n#@ $.#\n######", "rrl")[2], (-0.1 + 10.0, Some(Over::Solved), true));
    }
}
