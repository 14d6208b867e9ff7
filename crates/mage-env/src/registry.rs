//! Which environments are there?
//!
//! Environments and opponents register themselves; a crate outside this repository adds both without a fork (see
//! `examples/outside`).

use crate::{Env, EnvId, Error, Population, Result, Schema, Task, oracle::OracleReport};
use std::{collections::BTreeMap, sync::Arc};

/// Makes instances of one environment.
pub trait EnvFactory: Send + Sync {
    /// The name it goes by.
    fn id(&self) -> EnvId;

    /// What it says about itself.
    fn schema(&self) -> Schema;

    /// Builds the environment of a task, or says what is wrong with the task.
    fn build(&self, task: &Task) -> Result<Box<dyn Env>>;

    /// Checks that a population's opponents exist and their parameters make sense.
    fn check(&self, population: &Population) -> Result<()>;

    /// What is trained on and evaluated with when the user names nothing else.
    fn default_population(&self) -> Population;

    /// The best that can be done against a population, where it can be computed.
    fn oracles(&self, _population: &Population, _split: &str, _episodes: u32) -> Result<Option<OracleReport>> {
        Ok(None)
    }
}

/// All known environments.
#[derive(Clone, Default)]
pub struct Registry {
    factories: BTreeMap<String, Arc<dyn EnvFactory>>,
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
        registry.register(crate::kuhn::KuhnFactory::default());
        registry
    }

    /// Adds an environment, or replaces one of the same name.
    pub fn register(&mut self, factory: impl EnvFactory + 'static) {
        self.factories.insert(factory.id().as_str().to_owned(), Arc::new(factory));
    }

    /// The environment called `id`.
    pub fn get(&self, id: &str) -> Result<&Arc<dyn EnvFactory>> {
        self.factories.get(id).ok_or_else(|| Error::unknown("environment", id, self.factories.keys()))
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn EnvFactory>> {
        self.factories.values()
    }

    /// Builds the environment of a task.
    pub fn build(&self, task: &Task) -> Result<Box<dyn Env>> {
        self.get(task.env.as_str())?.build(task)
    }
}
