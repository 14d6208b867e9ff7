//! Does an environment do what the original did?
//!
//! An environment that re-implements an original replays recordings of it. The command line and the tests call the same
//! code and get the same [`Conformance`].

use serde::Serialize;
use std::collections::BTreeMap;

/// What replaying recordings showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conformance {
    /// How many of each thing were compared ("rooms", "steps", …).
    pub compared: BTreeMap<String, u64>,
    /// How many of each thing could not be compared, and were left out, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// How many records had a key that nobody looks at, by key: one that was meant to be compared may be misspelt.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, u64>,
    /// How many differed.
    pub different: u64,
    /// The first thing that differed.
    pub first: Option<Difference>,
}

/// One place where we and the original part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where in the recording.
    pub location: String,
    /// What the original did.
    pub expected: String,
    /// What we did.
    pub actual: String,
}

impl Conformance {
    /// Counts one comparison, and keeps the first difference.
    pub fn compare<T: PartialEq + std::fmt::Debug + ?Sized>(
        &mut self,
        what: &str,
        location: impl FnOnce() -> String,
        expected: &T,
        actual: &T,
    ) -> bool {
        *self.compared.entry(what.to_owned()).or_default() += 1;
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

    /// Counts something left out.
    pub fn skip(&mut self, reason: &str) {
        self.skip_many(reason, 1);
    }

    /// Counts so many things left out for one reason.
    pub fn skip_many(&mut self, reason: &str, count: u64) {
        if count > 0 {
            *self.skipped.entry(reason.to_owned()).or_default() += count;
        }
    }

    /// Counts a record with keys that nobody looks at.
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
