//! Who plays by rule, so that the machine and its numbers can be checked?
//!
//! A [`ScriptedAgent`] is an agent without a model: uniform play, an equilibrium, the Bayes-adaptive optimum, a solver. It
//! goes through everything a model goes through. It knows only the compact words that stand in its prompt, except where
//! it is marked *told*: then it also knows the task, hidden parts included, and marks what is possible, not what is fair.

use crate::{Population, Seed, Task};
use serde::Serialize;

/// An agent that plays by rule.
pub trait ScriptedAgent: Send {
    /// Chooses an action: any text that the environment reads will do, and is put into the form that the prompt asks for.
    fn act(&mut self, seen: &PromptView<'_>) -> String;

    /// Writes a compact reflection on a finished episode, from the compact words of its last observation.
    fn reflect(&mut self, finished: &str) -> String;
}

/// What stands in a prompt.
#[derive(Clone, Copy, Debug)]
pub struct PromptView<'a> {
    /// The episode, from 0. It stands in no compact prompt: only an agent that is told the task may look.
    pub episode: u32,
    /// The reflections in memory, oldest first; empty ones left out.
    pub memory: &'a [String],
    /// The current observation in compact words.
    pub observation: &'a str,
    /// The legal actions in compact words, where they are listed.
    pub legal: &'a [String],
    /// What was done in this episode, somebody else's doing included. It stands in no compact prompt: only an agent that
    /// is told the task may look.
    pub history: &'a [String],
}

/// Makes references of one sort for many tasks.
pub trait ScriptedAgentFactory: Send + Sync {
    /// One for this task. `seed` is the agent's own luck, apart from the task's.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent>;
}

/// What a reference may be told about the tasks to come: the same for all of them.
#[derive(Clone, Copy, Debug)]
pub struct ScriptedAgentQuery<'a> {
    /// Which reference.
    pub name: &'a str,
    /// Whom it may meet.
    pub population: &'a Population,
    /// In which split.
    pub split: &'a str,
    /// Over how many episodes.
    pub episodes: u32,
}

/// A line about a reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScriptedAgentInfo {
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// Whether it is told hidden parts of the task.
    pub full_info: bool,
}

impl ScriptedAgentInfo {
    /// A reference that knows its prompt alone.
    pub fn new(name: &str, about: &str) -> Self {
        ScriptedAgentInfo { name: name.to_owned(), about: about.to_owned(), full_info: false }
    }

    /// A reference that is told the task.
    pub fn with_full_info(name: &str, about: &str) -> Self {
        ScriptedAgentInfo { full_info: true, ..Self::new(name, about) }
    }
}
