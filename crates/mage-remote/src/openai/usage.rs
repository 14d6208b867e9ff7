//! Token usage, request counts and prices.

use mage_engine::{ChatUsage, Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// Prices per million tokens, in any currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenPrices {
    /// Prompt tokens.
    pub prompt: f64,
    /// Completion tokens.
    pub completion: f64,
}

impl TokenPrices {
    /// Returns an error if a price is negative or not finite.
    pub fn check(&self) -> Result<()> {
        let valid = |price: f64| price.is_finite() && price >= 0.0;
        if valid(self.prompt) && valid(self.completion) {
            return Ok(());
        }
        Err(Error::invalid("prices", "must be finite and at least 0, per million tokens"))
    }

    /// Cost of `usage`.
    pub fn cost(&self, usage: ChatUsage) -> f64 {
        (usage.prompt_tokens as f64 * self.prompt + usage.completion_tokens as f64 * self.completion) / 1e6
    }
}

/// Thread-safe counters of requests and tokens.
#[derive(Debug, Default)]
pub struct UsageTracker {
    succeeded: AtomicU64,
    failed: AtomicU64,
    retries: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    outstanding: Mutex<Option<OutstandingProblem>>,
}

/// The last failed attempt of a client whose requests are being retried.
#[derive(Clone, Debug)]
pub struct OutstandingProblem {
    /// Why the attempt failed.
    pub problem: String,
    /// When its request is given up.
    pub give_up_at: Instant,
}

/// Snapshot of a [`UsageTracker`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that failed after all retries.
    pub failed: u64,
    /// Attempts beyond the first, of all requests.
    pub retries: u64,
    /// Tokens of successful requests as the server counts them. The usage of failed attempts is unknown.
    pub usage: ChatUsage,
}

impl UsageTracker {
    /// The totals so far.
    pub fn totals(&self) -> UsageTotals {
        UsageTotals {
            succeeded: self.succeeded.load(Relaxed),
            failed: self.failed.load(Relaxed),
            retries: self.retries.load(Relaxed),
            usage: ChatUsage {
                prompt_tokens: self.prompt_tokens.load(Relaxed),
                completion_tokens: self.completion_tokens.load(Relaxed),
            },
        }
    }

    /// The last failed attempt, if no request has succeeded or been given up since.
    pub fn outstanding(&self) -> Option<OutstandingProblem> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_outstanding(&self, problem: Option<OutstandingProblem>) {
        *self.outstanding.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    pub(crate) fn count_retry(&self, problem: OutstandingProblem) {
        self.retries.fetch_add(1, Relaxed);
        self.set_outstanding(Some(problem));
    }

    pub(crate) fn count_failure(&self) {
        self.failed.fetch_add(1, Relaxed);
        self.set_outstanding(None);
    }

    pub(crate) fn count_success(&self, usage: ChatUsage) {
        self.succeeded.fetch_add(1, Relaxed);
        self.set_outstanding(None);
        self.prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
        self.completion_tokens.fetch_add(usage.completion_tokens, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_per_million_tokens() {
        let prices = TokenPrices { prompt: 2.0, completion: 10.0 };
        assert!((prices.cost(ChatUsage { prompt_tokens: 500_000, completion_tokens: 100_000 }) - 2.0).abs() < 1e-12);
        assert!(prices.check().is_ok());
        assert!(TokenPrices { prompt: f64::NAN, ..prices }.check().is_err());
        assert!(TokenPrices { completion: -1.0, ..prices }.check().is_err());
    }
}
