//! Optimal scripted agent: follows a shortest solution.

use super::{
    action::format_action,
    bfs::shortest_path,
    board::{Move, SokobanBoard, SokobanState},
    render::{compact, parse_compact},
    solvability::SolvabilityChecker,
    solvable_table::placements,
    solver::{DEFAULT_MAX_STATES, SearchCost, SearchResult, solve},
};
use crate::{PromptView, ScriptedAgent, ScriptedAgentFactory, Seed, Task};

/// Words in a scripted compact reflection: final room status and number of boxes off target.
pub(super) const REFLECTION_WORDS: usize = 2;

/// Final status of a room.
pub(super) const ROOM_STATUS: [&str; 3] = ["solved", "stuck", "open"];

/// Largest box count a reflection can state.
pub(super) const MAX_COUNTED_BOXES: u32 = 9;

/// Rooms with at most this many box placements are solved by breadth-first search, others by A*.
const MAX_BFS_PLACEMENTS: usize = 1 << 14;

/// States a search for the fewest moves may store before falling back to the fewest pushes.
const MAX_MOVE_SEARCH_STATES: usize = 500_000;

/// Moves per action where legal actions are not enumerated: the paper's value.
const DEFAULT_MOVES_PER_ACTION: usize = 3;

/// Action where no plan exists.
const FALLBACK_ACTION: &str = "up";

/// A solution with the fewest moves, or with the fewest pushes if that search exceeds its limit; `None` if none exists or
/// none was found.
pub fn plan(board: &SokobanBoard, from: SokobanState) -> Option<Vec<Move>> {
    if placements(board).is_some_and(|n| n <= MAX_BFS_PLACEMENTS) {
        return shortest_path(board, from, u32::MAX);
    }
    match solve(board, from, SearchCost::Moves, MAX_MOVE_SEARCH_STATES) {
        SearchResult::Solved(solution) => Some(solution.moves),
        SearchResult::Unsolvable => None,
        SearchResult::StateLimit(_) => match solve(board, from, SearchCost::Pushes, DEFAULT_MAX_STATES) {
            SearchResult::Solved(solution) => Some(solution.moves),
            _ => None,
        },
    }
}

/// Plans from the observation and follows the plan.
#[derive(Default)]
struct Planner {
    rest: Vec<Move>,
    /// The observation the plan predicts next.
    expected: String,
}

impl ScriptedAgent for Planner {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let max_moves =
            seen.legal.iter().map(|action| action.split(' ').count()).max().unwrap_or(DEFAULT_MOVES_PER_ACTION);
        let Some((board, mut state)) = parse_compact(seen.observation) else { return FALLBACK_ACTION.to_owned() };
        if self.expected != seen.observation {
            self.rest = plan(&board, state).unwrap_or_default();
        }
        let now: Vec<Move> = self.rest.drain(..self.rest.len().min(max_moves)).collect();
        if now.is_empty() {
            return FALLBACK_ACTION.to_owned();
        }
        for direction in &now {
            board.apply(&mut state, *direction);
        }
        self.expected = compact(&board, &state);
        format_action(now.into_iter().map(Some))
    }

    fn reflect(&mut self, finished: &str) -> String {
        let Some((board, state)) = parse_compact(finished) else { return ["_"; REFLECTION_WORDS].join(" ") };
        let missing = board.boxes() - board.boxes_on_targets(&state);
        let status = match () {
            () if missing == 0 => ROOM_STATUS[0],
            () if !SolvabilityChecker::new(u32::MAX).check(&board, &state) => ROOM_STATUS[1],
            () => ROOM_STATUS[2],
        };
        format!("{status} {}", missing.min(MAX_COUNTED_BOXES))
    }
}

/// Factory of [`Planner`] agents.
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
        planner.act(&PromptView { episode: 0, memory: &[], observation, legal: &[], history: &[] })
    }

    #[test]
    fn plans_are_followed_and_recomputed_on_deviation() {
        let mut p = Planner::default();
        assert_eq!(act(&mut p, "@ - $ - . -"), "right right right");
        assert_eq!(act(&mut p, "- - - @ * -"), "up", "solved: nothing to do");
        assert_eq!(act(&mut p, "@ $ . -"), "right");
        assert_eq!(act(&mut p, "not a room"), "up");
    }

    #[test]
    fn reflections_state_facts_of_the_last_observation() {
        let mut p = Planner::default();
        assert_eq!(p.reflect("- @ * -"), "solved 0");
        assert_eq!(p.reflect("@ $ . -"), "open 1");
        assert_eq!(p.reflect("$ @ . -"), "stuck 1");
        assert_eq!(p.reflect(""), "_ _");
    }
}
