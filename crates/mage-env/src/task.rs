//! Which task is this, exactly?
//!
//! A [`Task`] names everything that decides what an agent faces, so that panels, records and hashes can be made of it.

use crate::{Error, Result, deserialize};
use mage_rng::{Hash, Seed};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// The name an environment is registered under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnvId(Cow<'static, str>);

impl EnvId {
    /// A name known when compiling.
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

/// Settings by name, of an environment or an opponent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OptionMap(pub BTreeMap<String, serde_json::Value>);

impl OptionMap {
    /// Reads the settings into a struct. `place` says whose settings they are, for the error.
    pub fn read<T: DeserializeOwned>(&self, place: &str) -> Result<T> {
        let map = self.0.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        deserialize::from_map(map).map_err(|problem| Error::invalid(place, problem))
    }

    /// The name of the first number that is none, in settings read from a file whose format has `nan` and `inf` but no
    /// `null`, as TOML has: those numbers become `null` here. Names within a setting follow a dot, places in a list count
    /// from 1.
    pub(crate) fn not_finite(&self) -> Option<String> {
        self.0.iter().find_map(|(key, value)| null_within(value).map(|inner| format!("{key}{inner}")))
    }

    /// The same settings with one more.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<serde_json::Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }
}

/// Where a value holds `null`, as what follows the value's own name.
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

/// Which opponent: a kind the environment knows, and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpponentSpec {
    /// What records and tables call it. Agents never see it.
    pub name: String,
    /// What it is: a kind registered with the environment.
    pub kind: String,
    /// Its parameters.
    #[serde(flatten)]
    pub params: OptionMap,
}

impl OpponentSpec {
    /// An opponent that needs no parameters, called by its kind.
    pub fn of_kind(kind: &str) -> Self {
        OpponentSpec { name: kind.to_owned(), kind: kind.to_owned(), params: OptionMap::default() }
    }
}

/// One task, nameable and repeatable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The environment.
    pub env: EnvId,
    /// Its settings.
    pub options: OptionMap,
    /// Who sits opposite, in games.
    pub opponent: Option<OpponentSpec>,
    /// The agent's seat; 0 in worlds.
    pub seat: u8,
    /// Decides deals, levels and everybody's luck but the agent's.
    pub seed: Seed,
}

impl Task {
    /// The task's name for machines: equal tasks, equal hashes, on every platform.
    pub fn hash(&self) -> Hash {
        Hash::of(self)
    }
}
