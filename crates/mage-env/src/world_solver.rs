//! What does a solver reach that sees everything?
//!
//! In a world nobody is hidden, so there is no gap between one who knows and one who learns: the ceiling is what a solver
//! does within the turns of an episode. Random play beside it is the floor.

use crate::{Population, Result};

/// Solves tasks of a world.
pub trait WorldSolver {
    /// Solves some tasks of a split; `each` hears how many of how many are done.
    fn solve(&self, population: &Population, split: &str, each: &mut dyn FnMut(usize, usize)) -> Result<SolvedSplit>;
}

/// How the tasks of one split fare, each on its own, so that whoever prints them can say how sure a mean is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolvedSplit {
    /// The split.
    pub split: String,
    /// How many turns an episode has.
    pub turns: u32,
    /// What the turns amount to, in words: "21 moves".
    pub budget: String,
    /// What solutions are measured by, such as "fewest moves".
    pub measures: Vec<&'static str>,
    /// The tasks.
    pub tasks: Vec<SolvedTask>,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolvedTask {
    /// Whether it can be done within the turns; `None` where the search was given up before it could tell.
    pub within_turns: Option<bool>,
    /// What a best solution takes, by each of the split's measures; `None` where none was found.
    pub min_costs: Vec<Option<u32>>,
    /// Whether random play did it, in one episode.
    pub solved_by_random: bool,
}
