//! Which environments are there?
//!
//! Environments and opponents register themselves; a crate outside this repository adds both without a fork (see
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

/// Makes instances of one environment.
pub trait EnvSpec: Send + Sync {
    /// The name it goes by.
    fn id(&self) -> EnvId;

    /// What it says about itself.
    fn info(&self) -> EnvInfo;

    /// Builds the environment of a task, or says what is wrong with the task.
    fn build(&self, task: &Task) -> Result<Box<dyn Env>>;

    /// The environment of a task with a guest in the opponent's place; `None` where there is no such place.
    fn build_with_human(&self, _task: &Task, _guest: Arc<dyn HumanPlayer>) -> Result<Option<Box<dyn Env>>> {
        Ok(None)
    }

    /// Checks that a population's opponents exist and their parameters make sense.
    fn check(&self, population: &Population) -> Result<()>;

    /// What is trained on and evaluated with when the user names nothing else.
    fn default_population(&self) -> Population;

    /// Populations that come with the environment, by name.
    fn populations(&self) -> Vec<(&'static str, Population)> {
        Vec::new()
    }

    /// The best that can be done against a population, where it can be computed.
    fn oracles(&self, _population: &Population, _split: &str, _episodes: u32) -> Result<Option<OracleReport>> {
        Ok(None)
    }

    /// Who says what is possible in a world's tasks, where there is a solver.
    fn solver(&self) -> Option<&dyn WorldSolver> {
        None
    }

    /// How many turns an episode in a split may take unless somebody says otherwise: what the env_info says, where splits do
    /// not differ.
    fn max_turns(&self, _population: &Population, _split: &str) -> Result<u32> {
        Ok(self.info().max_turns)
    }

    /// The agents that play by rule here; `random` needs no mention, the machinery has it.
    fn scripted_agents(&self) -> Vec<ScriptedAgentInfo> {
        Vec::new()
    }

    /// One of the [`scripted_agents`](EnvSpec::scripted_agents), ready to be made for any task.
    fn scripted_agent(&self, query: &ScriptedAgentQuery<'_>) -> Result<Arc<dyn ScriptedAgentFactory>> {
        Err(unknown_scripted_agent(&self.scripted_agents(), query.name))
    }

    /// Gives tasks of one split starts from a finite stock, without replacement: task `i` gets number `first + i` of an
    /// endless row in which nothing comes again before everything has come. Does nothing where starts are made up.
    fn assign_without_replacement(&self, _tasks: &mut [Task], _first: u64, _seed: Seed) -> Result<()> {
        Ok(())
    }

    /// What a user should know before playing, such as files that are left out as asked.
    fn warnings(&self, _population: &Population, _split: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Writes tasks as files that the original can play, where there is one, and says where they are; `data` is the folder
    /// of its data files.
    fn export(&self, _tasks: &[Task], _out: &Path, _data: Option<&Path>) -> Result<Vec<PathBuf>> {
        Err(Error::invalid(self.id().as_str(), "its tasks cannot be written as files of an original"))
    }

    /// Replays recordings of the original engine, where there is one; `data` is the folder of its data files.
    fn conform(&self, _golden: &Path, _data: Option<&Path>) -> Result<Conformance> {
        Err(Error::invalid(self.id().as_str(), "there are no recordings of an original engine to compare with"))
    }
}

/// Says which agents there are when one is asked for that is not.
pub(crate) fn unknown_scripted_agent(known: &[ScriptedAgentInfo], name: &str) -> Error {
    let known = known.iter().map(|d| d.name.as_str()).chain(["random"]);
    Error::unknown("policy", name, known)
}

/// All known environments.
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

    /// Adds an environment, or replaces one of the same name.
    pub fn register(&mut self, env_spec: impl EnvSpec + 'static) {
        self.specs.insert(env_spec.id().as_str().to_owned(), Arc::new(env_spec));
    }

    /// The environment called `id`.
    pub fn get(&self, id: &str) -> Result<&Arc<dyn EnvSpec>> {
        self.specs.get(id).ok_or_else(|| Error::unknown("environment", id, self.specs.keys()))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn EnvSpec>> {
        self.specs.values()
    }

    /// Builds the environment of a task.
    pub fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        self.get(task.env.as_str())?.build(task)
    }
}
