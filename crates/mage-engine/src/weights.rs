//! Which weights?
//!
//! Base, adapters, the frozen reference and past selves as opponents are all a name and a version, from the first day.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The name of a set of weights: the base model, an adapter, a past self.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AdapterName(Arc<str>);

impl AdapterName {
    /// The weights a request means when it names none.
    pub const POLICY: &'static str = "policy";
    /// The model without any adapter, where an engine keeps it.
    pub const BASE: &'static str = "base";

    /// A name.
    pub fn new(name: &str) -> Self {
        AdapterName(name.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for AdapterName {
    fn default() -> Self {
        AdapterName::new(Self::POLICY)
    }
}

impl From<&str> for AdapterName {
    fn from(name: &str) -> Self {
        AdapterName::new(name)
    }
}

impl fmt::Display for AdapterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How often the weights under a name have been published; larger is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightVersion(pub u64);

/// Exactly one set of weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightsId {
    /// Its name.
    pub name: AdapterName,
    /// Its version.
    pub version: WeightVersion,
}

impl fmt::Display for WeightsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version.0)
    }
}
