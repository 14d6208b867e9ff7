//! Conformance of an environment with recordings of the original implementation.
//!
//! An environment that re-implements an original replays its recordings. The command line and the tests call the same
//! code and get a [`Conformance`].

use serde::Serialize;
use std::collections::BTreeMap;

/// The result of replaying recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conformance {
    /// Comparisons by kind ("rooms", "steps", …).
    pub compared: BTreeMap<String, u64>,
    /// Skipped records by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Records with an unknown key, by key. An unknown key may be a misspelt one that should have been compared.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, u64>,
    /// Number of differences.
    pub different: u64,
    /// The first difference.
    pub first: Option<Difference>,
}

/// A difference between the original and this implementation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Location in the recording.
    pub location: String,
    /// Result of the original.
    pub expected: String,
    /// Result of this implementation.
    pub actual: String,
}

impl Conformance {
    /// Counts one comparison and keeps the first difference.
    pub fn compare<T: PartialEq + std::fmt::Debug + ?Sized>(
        &mut self,
        kind: &str,
        location: impl FnOnce() -> String,
        expected: &T,
        actual: &T,
    ) -> bool {
        *self.compared.entry(kind.to_owned()).or_default() += 1;
        if expected == actual {
            return true;
        }
        self.different += 1;
        self.first.get_or_insert_with(|| Difference {
            location: location(),
            expected: format!("{expected:#?}"),
            actual: format!("{actual:#?}"),
        });
        false
    }

    /// Counts a skipped record.
    pub fn skip(&mut self, reason: &str) {
        self.skip_many(reason, 1);
    }

    /// Counts `count` skipped records with one reason.
    pub(crate) fn skip_many(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.skipped.entry(reason.to_owned()).or_default() += count;
        }
    }

    /// Counts a record with unknown keys.
    pub fn ignore<'k>(&mut self, keys: impl IntoIterator<Item = &'k String>) {
        for key in keys {
            *self.ignored.entry(key.clone()).or_default() += 1;
        }
    }

    /// Whether something was compared and nothing differed.
    pub fn passed(&self) -> bool {
        self.different == 0 && self.compared.values().any(|n| *n > 0)
    }
}
