//! Scripted agents: baselines and experts without a model.
//!
//! A [`ScriptedAgent`] plays uniformly, an equilibrium, the Bayes-adaptive optimum or a solver's plan. It goes through
//! the same pipeline as a model and reads only the compact words of its prompt. An agent with *full information* also
//! knows the task, including hidden parts: it marks what is possible, not what is fair.

use crate::{Population, Seed, Task};
use serde::Serialize;

/// An agent that plays by fixed rules.
pub trait ScriptedAgent: Send {
    /// Chooses an action. Any text that the environment reads is valid; the caller converts it to the prompt's action
    /// format.
    fn act(&mut self, prompt: &PromptView<'_>) -> String;

    /// Writes a compact reflection on a finished episode from the compact words of its last observation.
    fn reflect(&mut self, finished: &str) -> String;
}

/// The contents of a prompt.
#[derive(Clone, Copy, Debug)]
pub struct PromptView<'a> {
    /// The episode, from 0. Not in compact prompts: only agents with full information may use it.
    pub episode: u32,
    /// The reflections in memory, oldest first, without empty ones.
    pub memory: &'a [String],
    /// The current observation in compact words.
    pub observation: &'a str,
    /// The legal actions in compact words, if listed.
    pub legal: &'a [String],
    /// The actions of this episode so far, including other players'. Not in compact prompts: only agents with full
    /// information may use it.
    pub history: &'a [String],
}

/// Creates scripted agents of one kind.
pub trait ScriptedAgentFactory: Send + Sync {
    /// Creates the agent of a task. `seed` is the agent's own, independent of the task's.
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent>;
}

/// Advance knowledge of a scripted agent, for all tasks.
#[derive(Clone, Copy, Debug)]
pub struct ScriptedAgentQuery<'a> {
    /// The agent's name.
    pub name: &'a str,
    /// The population of opponents.
    pub population: &'a Population,
    /// The split.
    pub split: &'a str,
    /// The number of episodes.
    pub episodes: u32,
}

/// Name and description of a scripted agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScriptedAgentInfo {
    /// The name.
    pub name: String,
    /// A description.
    pub description: String,
    /// Whether it knows hidden parts of the task.
    pub full_info: bool,
}

impl ScriptedAgentInfo {
    /// An agent that knows only its prompt.
    pub fn new(name: &str, description: &str) -> Self {
        ScriptedAgentInfo { name: name.to_owned(), description: description.to_owned(), full_info: false }
    }

    /// An agent that knows the task.
    pub fn with_full_info(name: &str, description: &str) -> Self {
        ScriptedAgentInfo { full_info: true, ..Self::new(name, description) }
    }
}
