//! Ceilings of worlds, from a solver that sees the full state.
//!
//! A world has no hidden opponent, so the adaptive and the full-information optimum coincide: the ceiling is the
//! solver's result within the turn limit. Random play is the floor.

use crate::{Population, Result};

/// Solves tasks of a world.
pub trait WorldSolver {
    /// Solves a sample of tasks of a split. `progress` receives the number of finished tasks and the total.
    fn solve(
        &self,
        population: &Population,
        split: &str,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<SolvedSplit>;
}

/// Solver results of one split, task by task so that means have confidence intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolvedSplit {
    /// The split.
    pub split: String,
    /// Turn limit of an episode.
    pub turns: u32,
    /// The turn limit in the world's unit: "21 moves".
    pub budget: String,
    /// Cost measures of solutions, such as "fewest moves".
    pub measures: Vec<&'static str>,
    /// Results by task.
    pub tasks: Vec<SolvedTask>,
}

/// Solver result of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolvedTask {
    /// Whether the task is solvable within the turn limit; `None` if the search was cut off.
    pub within_turns: Option<bool>,
    /// Minimum costs, in the order of the split's measures; `None` without a solution.
    pub min_costs: Vec<Option<u32>>,
    /// Whether random play solved it in one episode.
    pub solved_by_random: bool,
}
