//! Names and versions of weights. The base model, adapters, the reference policy and past policies used as opponents
//! are all identified by a name and a version.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Name of published weights: the base model, an adapter, or a past policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightsName(Arc<str>);

impl WeightsName {
    /// Default weights of a request.
    pub const POLICY: &'static str = "policy";
    /// The base model without an adapter, if the engine keeps it.
    pub const BASE: &'static str = "base";

    /// Creates a name.
    pub fn new(name: &str) -> Self {
        WeightsName(name.into())
    }

    /// The name as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for WeightsName {
    fn default() -> Self {
        WeightsName::new(Self::POLICY)
    }
}

impl From<&str> for WeightsName {
    fn from(name: &str) -> Self {
        WeightsName::new(name)
    }
}

impl fmt::Display for WeightsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Version of the weights published under a name; it increases by one with each publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WeightVersion(pub u64);

/// One version of published weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightsId {
    /// Name.
    pub name: WeightsName,
    /// Version.
    pub version: WeightVersion,
}

impl fmt::Display for WeightsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.version.0)
    }
}
