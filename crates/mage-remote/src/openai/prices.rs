//! Prices of tokens.

use mage_engine::{ChatUsage, Error, Result};
use serde::{Deserialize, Serialize};

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
