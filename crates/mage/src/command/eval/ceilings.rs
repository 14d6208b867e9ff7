//! Cache of upper bounds.

use mage_env::{EnvSpec, Error, Hash, Population, solvers::OracleReport};
use std::{cell::RefCell, collections::HashMap};

/// Computed upper bounds. The cells of a sweep share task sets, and computing the bounds can take a minute.
#[derive(Default)]
pub(crate) struct CeilingCache(RefCell<HashMap<Hash, Option<OracleReport>>>);

impl CeilingCache {
    /// The upper bounds of a split of a population, if the environment has an oracle.
    pub(super) fn of(
        &self,
        env_spec: &dyn EnvSpec,
        population: &Population,
        split: &str,
        episodes: u32,
    ) -> Result<Option<OracleReport>, Error> {
        let key = Hash::of(&(population, split, episodes));
        if let Some(known) = self.0.borrow().get(&key) {
            return Ok(known.clone());
        }
        let found = env_spec.oracles(population, split, episodes)?;
        self.0.borrow_mut().insert(key, found.clone());
        Ok(found)
    }
}
