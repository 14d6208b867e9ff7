//! Who plays a room as well as it can be played?

use super::{
    board::{Board, Move, State},
    path::shortest_path,
    render::{compact, from_compact},
    solvable::Solvable,
    solver::{Cost, DEFAULT_STATES, Verdict, solve},
    table::placements,
    turn::write_turn,
};
use crate::{PromptView, ScriptedAgent, ScriptedAgentFactory, Seed, Task};

/// How many words a factual compact reflection has: how it went, and how many boxes were not placed.
pub(super) const REFLECTION_WORDS: usize = 2;

/// How a room was left.
pub(super) const LEFT: [&str; 3] = ["solved", "stuck", "open"];

/// The most boxes a reflection counts.
pub(super) const COUNTED: u32 = 9;

/// Rooms with no more placements of their boxes than this are searched breadth first, others with A*.
const SMALL: usize = 1 << 14;

/// States a search for the fewest moves may store before it settles for the fewest pushes.
const MOVES_STATES: usize = 500_000;

/// How many moves it makes where turns are not listed: the paper's number, which every turn may have.
const UNLISTED: usize = 3;

/// What it does where there is nothing to be done.
const STUCK: &str = "up";

/// A solution with the fewest moves; with the fewest pushes where that takes too long; `None` if there is none, or none was
/// found.
pub fn plan(board: &Board, from: State) -> Option<Vec<Move>> {
    if placements(board).is_some_and(|n| n <= SMALL) {
        return shortest_path(board, from, u32::MAX);
    }
    match solve(board, from, Cost::Moves, MOVES_STATES) {
        Verdict::Solved(solution) => Some(solution.moves),
        Verdict::Impossible => None,
        Verdict::GaveUp(_) => match solve(board, from, Cost::Pushes, DEFAULT_STATES) {
            Verdict::Solved(solution) => Some(solution.moves),
            _ => None,
        },
    }
}

/// Plans from what it sees, and follows the plan.
#[derive(Default)]
struct Planner {
    rest: Vec<Move>,
    /// What should be seen next.
    expected: String,
}

impl ScriptedAgent for Planner {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let most = seen.legal.iter().map(|turn| turn.split(' ').count()).max().unwrap_or(UNLISTED);
        let Some((board, mut state)) = from_compact(seen.observation) else { return STUCK.to_owned() };
        if self.expected != seen.observation {
            self.rest = plan(&board, state).unwrap_or_default();
        }
        let now: Vec<Move> = self.rest.drain(..self.rest.len().min(most)).collect();
        if now.is_empty() {
            return STUCK.to_owned();
        }
        for way in &now {
            board.go(&mut state, *way);
        }
        self.expected = compact(&board, &state);
        write_turn(now.into_iter().map(Some))
    }

    fn reflect(&mut self, finished: &str) -> String {
        let Some((board, state)) = from_compact(finished) else { return ["_"; REFLECTION_WORDS].join(" ") };
        let missing = board.boxes() - board.placed(&state);
        let left = match () {
            () if missing == 0 => LEFT[0],
            () if !Solvable::new(u32::MAX).check(&board, &state) => LEFT[1],
            () => LEFT[2],
        };
        format!("{left} {}", missing.min(COUNTED))
    }
}

/// Makes players that follow a shortest solution.
pub(super) struct Optimal;

impl ScriptedAgentFactory for Optimal {
    fn make(&self, _task: &Task, _seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(Planner::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(planner: &mut Planner, observation: &str) -> String {
        planner.act(&PromptView { episode: 0, memory: &[], observation, legal: &[], done: &[] })
    }

    #[test]
    fn plans_are_followed_and_filled_up() {
        let mut p = Planner::default();
        assert_eq!(act(&mut p, "@ - $ - . -"), "right right right");
        assert_eq!(act(&mut p, "- - - @ * -"), "up", "solved: nothing to do");
        assert_eq!(act(&mut p, "@ $ . -"), "right");
        assert_eq!(act(&mut p, "not a room"), "up");
    }

    #[test]
    fn reflections_are_facts_of_the_last_view() {
        let mut p = Planner::default();
        assert_eq!(p.reflect("- @ * -"), "solved 0");
        assert_eq!(p.reflect("@ $ . -"), "open 1");
        assert_eq!(p.reflect("$ @ . -"), "stuck 1");
        assert_eq!(p.reflect(""), "_ _");
    }
}
