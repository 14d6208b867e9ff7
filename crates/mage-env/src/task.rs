//! Tasks: everything that determines an agent's environment.
//!
//! A [`Task`] identifies an environment instance, so task sets, trajectories and hashes are built from tasks.

use crate::{Error, Result, deserialize};
use mage_rng::{Hash, Seed};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// The registered name of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnvId(Cow<'static, str>);

impl EnvId {
    /// A name known at compile time.
    pub const fn new(id: &'static str) -> Self {
        EnvId(Cow::Borrowed(id))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for EnvId {
    fn from(id: String) -> Self {
        EnvId(Cow::Owned(id))
    }
}

impl fmt::Display for EnvId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Options by name, of an environment or an opponent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptionMap(pub BTreeMap<String, serde_json::Value>);

impl OptionMap {
    /// Reads the options into a struct. `location` names their owner in errors.
    pub fn read<T: DeserializeOwned>(&self, location: &str) -> Result<T> {
        let map = self.0.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        deserialize::from_map(map).map_err(|problem| Error::invalid(location, problem))
    }

    /// The path of the first non-finite number. The options were read from TOML, which has `nan` and `inf`; they become
    /// `null` here. Nested keys are joined by dots, list indices count from 1.
    pub(crate) fn not_finite(&self) -> Option<String> {
        self.0.iter().find_map(|(key, value)| null_within(value).map(|inner| format!("{key}{inner}")))
    }

    /// Returns the options with one more.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }
}

/// The path to a `null` within a value, as a suffix of the value's own key.
fn null_within(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match value {
        Value::Null => Some(String::new()),
        Value::Array(items) => {
            items.iter().zip(1..).find_map(|(v, i)| null_within(v).map(|inner| format!(".{i}{inner}")))
        }
        Value::Object(map) => map.iter().find_map(|(k, v)| null_within(v).map(|inner| format!(".{k}{inner}"))),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// An opponent: a registered kind and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpponentSpec {
    /// Name in trajectories and tables. Agents never see it.
    pub name: String,
    /// A registered opponent kind.
    pub kind: String,
    /// Its parameters.
    #[serde(flatten)]
    pub params: OptionMap,
}

impl OpponentSpec {
    /// An opponent without parameters, named by its kind.
    pub fn of_kind(kind: &str) -> Self {
        OpponentSpec { name: kind.to_owned(), kind: kind.to_owned(), params: OptionMap::default() }
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The environment.
    pub env: EnvId,
    /// Options of the environment.
    pub options: OptionMap,
    /// The opponent, in games.
    pub opponent: Option<OpponentSpec>,
    /// The agent's seat; 0 in worlds.
    pub seat: u8,
    /// Determines deals, levels and all randomness except the agent's.
    pub seed: Seed,
}

impl Task {
    /// The task's hash. Equal tasks have equal hashes on every platform.
    pub fn hash(&self) -> Hash {
        Hash::of(self)
    }
}
