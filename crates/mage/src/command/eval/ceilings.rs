//! What is the best that can be done on a panel, without working it out twice?

use mage_env::{EnvSpec, Error, Hash, Population, solvers::OracleReport};
use std::{cell::RefCell, collections::HashMap};

/// Ceilings that were worked out already: the cells of a sweep share their panels, and a strong opponent's take a minute.
#[derive(Default)]
pub(crate) struct Ceilings(RefCell<HashMap<Hash, Option<OracleReport>>>);

impl Ceilings {
    /// The ceilings of a split of a population, where there are any.
    pub(super) fn of(
        &self,
        env_spec: &dyn EnvSpec,
        population: &Population,
        split: &str,
        episodes: u32,
    ) -> Result<Option<OracleReport>, Error> {
        let asked = Hash::of(&(population, split, episodes));
        if let Some(known) = self.0.borrow().get(&asked) {
            return Ok(known.clone());
        }
        let found = env_spec.oracles(population, split, episodes)?;
        self.0.borrow_mut().insert(asked, found.clone());
        Ok(found)
    }
}
