//! What did a model have to be asked, and what did that take?

use mage_core::{RequestKind, Trajectory};
use mage_engine::ChatUsage;
use mage_remote::TokenPrices;
use serde::Serialize;
use std::collections::BTreeMap;

/// Calls and tokens, added up.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RequestStats {
    /// By purpose.
    pub(super) calls: BTreeMap<RequestKind, Calls>,
    /// Tokens read.
    pub(super) prompt_tokens: u64,
    /// Tokens written.
    pub(super) answer_tokens: u64,
}

/// Calls of one purpose.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Calls {
    pub(super) asked: u64,
    /// Whose answer could not be used.
    pub(super) unusable: u64,
}

impl RequestStats {
    pub(super) fn add(&mut self, record: &Trajectory) {
        for call in &record.requests {
            let calls = self.calls.entry(call.kind).or_default();
            calls.asked += 1;
            calls.unusable += u64::from(call.invalid.is_some());
            let used = call.completion.token_usage().unwrap_or_default();
            self.prompt_tokens += used.prompt_tokens;
            self.answer_tokens += used.completion_tokens;
        }
    }

    /// What it cost.
    pub(super) fn cost(&self, prices: TokenPrices) -> f64 {
        prices.cost(ChatUsage { prompt_tokens: self.prompt_tokens, completion_tokens: self.answer_tokens })
    }

    /// Answers to memory's own questions that could not be used, and how many there were.
    pub(super) fn memory(&self) -> (u64, u64) {
        let own = self.calls.iter().filter(|(p, _)| **p != RequestKind::Play);
        own.fold((0, 0), |(bad, all), (_, c)| (bad + c.unusable, all + c.asked))
    }
}
