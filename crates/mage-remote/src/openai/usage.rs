//! What did it take, and what did it cost?

use mage_engine::{Error, Result, Usage};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a million tokens cost, in whatever currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// Read.
    pub prompt: f64,
    /// Written.
    pub answer: f64,
}

impl Prices {
    /// Refuses prices that are none.
    pub fn check(&self) -> Result<()> {
        let fine = |price: f64| price.is_finite() && price >= 0.0;
        if fine(self.prompt) && fine(self.answer) {
            return Ok(());
        }
        Err(Error::invalid("prices", "a price is a finite number of at least 0 for a million tokens"))
    }

    /// What tokens cost.
    pub fn cost(&self, usage: Usage) -> f64 {
        (usage.prompt as f64 * self.prompt + usage.answer as f64 * self.answer) / 1e6
    }
}

/// Keeps count of requests while they are under way.
#[derive(Debug, Default)]
pub struct UsageTracker {
    answered: AtomicU64,
    failed: AtomicU64,
    retries: AtomicU64,
    prompt: AtomicU64,
    answer: AtomicU64,
}

/// What has been spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Requests that were answered.
    pub answered: u64,
    /// Requests that were given up.
    pub failed: u64,
    /// Attempts beyond the first, of both.
    pub retries: u64,
    /// Tokens of those answered, as the server counts them. What failed attempts took is not known.
    pub usage: Usage,
}

impl UsageTracker {
    /// What has been spent so far.
    pub fn spent(&self) -> UsageTotals {
        UsageTotals {
            answered: self.answered.load(Relaxed),
            failed: self.failed.load(Relaxed),
            retries: self.retries.load(Relaxed),
            usage: Usage { prompt: self.prompt.load(Relaxed), answer: self.answer.load(Relaxed) },
        }
    }

    pub(crate) fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn answered(&self, usage: Usage) {
        self.answered.fetch_add(1, Relaxed);
        self.prompt.fetch_add(usage.prompt, Relaxed);
        self.answer.fetch_add(usage.answer, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_million() {
        let prices = Prices { prompt: 2.0, answer: 10.0 };
        assert!((prices.cost(Usage { prompt: 500_000, answer: 100_000 }) - 2.0).abs() < 1e-12);
        assert!(prices.check().is_ok());
        assert!(Prices { prompt: f64::NAN, ..prices }.check().is_err());
        assert!(Prices { answer: -1.0, ..prices }.check().is_err());
    }
}
