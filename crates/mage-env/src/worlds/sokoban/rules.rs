//! Rewards and termination, as in the reference.
//!
//! Every step costs 0.1; a box that reaches or leaves a target yields +1 or -1; solving the room yields +10. An episode
//! ends when the room is solved, when it can no longer be solved, and at the step limit.

use super::{
    board::{Move, MoveEffect, SokobanBoard, SokobanState},
    solvability::SolvabilityChecker,
};

/// Reward of every step.
pub const STEP_REWARD: f64 = -0.1;
const BOX_ON_TARGET_REWARD: f64 = 1.0;
const BOX_OFF_TARGET_REWARD: f64 = -1.0;
const ALL_ON_TARGET_REWARD: f64 = 10.0;

/// Dynamic state of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SokobanEpisode {
    /// Positions of player and boxes.
    pub state: SokobanState,
    /// Steps taken; no-ops do not count.
    pub steps: u32,
    /// Number of boxes on targets.
    pub boxes_on_targets: u32,
}

/// Result of one move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoveOutcome {
    /// Reward.
    pub reward: f64,
    /// Why the episode ended, if it did.
    pub termination: Option<Termination>,
    /// Effect on the state.
    pub effect: MoveEffect,
    /// Whether every box is on a target.
    pub solved: bool,
}

/// Why an episode ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// Every box is on a target.
    Solved,
    /// The room can no longer be solved.
    Deadlock,
    /// The step limit was reached.
    StepLimit,
}

impl SokobanEpisode {
    /// The start of an episode.
    pub fn new(board: &SokobanBoard, start: SokobanState) -> Self {
        SokobanEpisode { state: start, steps: 0, boxes_on_targets: board.boxes_on_targets(&start) }
    }

    /// Applies a move; `None` is a no-op that only costs the step reward. May be called after termination, as in the
    /// reference.
    pub fn step(
        &mut self,
        board: &SokobanBoard,
        direction: Option<Move>,
        max_steps: u32,
        solvable: &mut SolvabilityChecker,
    ) -> MoveOutcome {
        let Some(direction) = direction else {
            return MoveOutcome { reward: STEP_REWARD, termination: None, effect: MoveEffect::Blocked, solved: false };
        };
        self.steps += 1;
        let effect = board.apply(&mut self.state, direction);
        let on_targets = board.boxes_on_targets(&self.state);
        let mut reward = STEP_REWARD;
        if on_targets > self.boxes_on_targets {
            reward += BOX_ON_TARGET_REWARD;
        } else if on_targets < self.boxes_on_targets {
            reward += BOX_OFF_TARGET_REWARD;
        }
        self.boxes_on_targets = on_targets;
        let solved = board.is_solved(&self.state);
        if solved {
            reward += ALL_ON_TARGET_REWARD;
        }
        let termination = if solved {
            Some(Termination::Solved)
        } else if self.steps == max_steps {
            // Equality, not "at least": in the reference an action that runs past the limit continues.
            Some(Termination::StepLimit)
        } else if !solvable.check(board, &self.state) {
            Some(Termination::Deadlock)
        } else {
            None
        };
        MoveOutcome { reward, termination, effect, solved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sokoban::level::SokobanLevel;

    fn play(text: &str, moves: &str) -> Vec<(f64, Option<Termination>, bool)> {
        let (board, start) = SokobanBoard::new(&SokobanLevel::parse(text, "t").unwrap()).unwrap();
        let mut play = SokobanEpisode::new(&board, start);
        let mut solvable = SolvabilityChecker::new(100);
        moves
            .chars()
            .map(|c| {
                let direction = "udlr".find(c).map(|i| Move::ALL[i]);
                let m = play.step(&board, direction, 6, &mut solvable);
                (m.reward, m.termination, m.effect != MoveEffect::Blocked)
            })
            .collect()
    }

    #[test]
    fn rewards_and_termination() {
        let room = "#######\n#@ $. #\n#     #\n#######";
        assert_eq!(play(room, "urr")[..2], [(-0.1, None, false), (-0.1, None, true)]);
        assert_eq!(play(room, "rr")[1], (-0.1 + 1.0 + 10.0, Some(Termination::Solved), true));
        assert_eq!(
            play(room, "rrr")[2],
            (-0.1 - 1.0, Some(Termination::Deadlock), true),
            "pushed further, into a corner"
        );
        assert_eq!(play(room, "lslsl")[4], (-0.1, None, false));
        assert_eq!(play(room, "llllll")[5], (-0.1, Some(Termination::StepLimit), false));
        assert_eq!(play(room, "lllllll")[6], (-0.1, None, false), "the reference checks the limit by equality");
    }

    #[test]
    fn remaining_solved_is_rewarded_again_as_in_the_reference() {
        assert_eq!(play("######\n#@ $.#\n######", "rrl")[2], (-0.1 + 10.0, Some(Termination::Solved), true));
    }
}
