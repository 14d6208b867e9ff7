//! The environment registry.
//!
//! Environments and opponents are registered by name. An external crate can add both without a fork (see
//! `examples/outside`).

use crate::{
    Conformance, Env, EnvId, EnvInfo, Error, HumanPlayer, Population, Result, ScriptedAgentFactory, ScriptedAgentInfo,
    ScriptedAgentQuery, Seed, Task, WorldSolver, solvers::OracleReport,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The specification of an environment: builds its instances and describes its capabilities.
pub trait EnvSpec: Send + Sync {
    /// The registered name.
    fn id(&self) -> EnvId;

    /// The description.
    fn info(&self) -> EnvInfo;

    /// The rules, in sentences, for environments without prompt templates of their own.
    fn rules(&self) -> &str {
        ""
    }

    /// Builds the environment of a task. Fails if the task is invalid.
    fn build(&self, task: &Task) -> Result<Box<dyn Env>>;

    /// Builds the environment of a task with a human player as opponent; `None` without an opponent seat.
    fn build_with_human(&self, _task: &Task, _human: Arc<dyn HumanPlayer>) -> Result<Option<Box<dyn Env>>> {
        Ok(None)
    }

    /// Checks that a population's opponents exist and have valid parameters.
    fn check(&self, population: &Population) -> Result<()>;

    /// The population used by default.
    fn default_population(&self) -> Population;

    /// The built-in populations by name.
    fn populations(&self) -> Vec<(&'static str, Population)> {
        Vec::new()
    }

    /// The ceilings of a population, if they can be computed.
    fn oracles(&self, _population: &Population, _split: &str, _episodes: u32) -> Result<Option<OracleReport>> {
        Ok(None)
    }

    /// The solver of a world's tasks, if there is one.
    fn solver(&self) -> Option<&dyn WorldSolver> {
        None
    }

    /// The default turn limit of an episode in a split: [`EnvInfo::max_turns`] unless splits differ.
    fn max_turns(&self, _population: &Population, _split: &str) -> Result<u32> {
        Ok(self.info().max_turns)
    }

    /// The scripted agents, except `random`, which exists in every environment.
    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        Vec::new()
    }

    /// The factory of one of the [`scripted_agents`](EnvSpec::scripted_agents).
    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        Err(unknown_scripted_agent(&self.scripted_agents(), query.name))
    }

    /// Assigns start states from a finite dataset to tasks of one split, without replacement. Task `i` gets the item at
    /// `first` plus `i` of an endless sequence in which no item repeats before all have occurred. Does nothing where
    /// starts are generated.
    fn assign_without_replacement(&self, _tasks: &mut [Task], _first: u64, _seed: Seed) -> Result<()> {
        Ok(())
    }

    /// Warnings about a split, such as files excluded by the options.
    fn warnings(&self, _population: &Population, _split: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Exports tasks as files for the original environment and returns their paths; `data` is the folder of its data
    /// files.
    fn export(&self, _tasks: &[Task], _out: &Path, _data: Option<&Path>) -> Result<Vec<PathBuf>> {
        Err(Error::invalid(self.id().as_str(), "its tasks have no export format"))
    }

    /// Replays recordings of the original environment; `data` is the folder of its data files.
    fn conform(&self, _golden: &Path, _data: Option<&Path>) -> Result<Conformance> {
        Err(Error::invalid(self.id().as_str(), "it has no recordings of an original environment"))
    }
}

/// Error for an unknown scripted agent.
pub(crate) fn unknown_scripted_agent(known: &[ScriptedAgentInfo], name: &str) -> Error {
    let known = known.iter().map(|d| d.name.as_str()).chain(["random"]);
    Error::unknown("policy", name, known)
}

/// The registered environments.
#[derive(Clone, Default)]
pub struct Registry {
    specs: BTreeMap<String, Arc<dyn EnvSpec>>,
}

impl Registry {
    /// The environments of this crate.
    ///
    /// ```
    /// let registry = mage_env::Registry::builtin();
    /// assert!(registry.get("kuhn").is_ok());
    /// ```
    pub fn builtin() -> Self {
        let mut registry = Registry::default();
        registry.register(crate::alfworld::AlfworldSpec::default());
        registry.register(crate::kuhn::KuhnSpec::default());
        registry.register(crate::tictactoe::TicTacToeSpec::default());
        registry.register(crate::sokoban::SokobanSpec::default());
        registry.register(crate::webshop::WebshopSpec);
        registry
    }

    /// Adds or replaces an environment.
    pub fn register(&mut self, env_spec: impl EnvSpec + 'static) {
        self.specs.insert(env_spec.id().as_str().to_owned(), Arc::new(env_spec));
    }

    /// The environment called `id`.
    pub fn get(&self, id: &str) -> Result<&Arc<dyn EnvSpec>> {
        self.specs.get(id).ok_or_else(|| Error::unknown("environment", id, self.specs.keys()))
    }

    /// All environments, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn EnvSpec>> {
        self.specs.values()
    }

    /// Builds the environment of a task.
    pub fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        self.get(task.env.as_str())?.build(task)
    }
}
