//! Numbers of requests and tokens of an evaluation.

use mage_core::{RequestKind, Trajectory};
use mage_engine::ChatUsage;
use mage_remote::TokenPrices;
use serde::Serialize;
use std::collections::BTreeMap;

/// Requests and tokens of all meta-episodes.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct RequestStats {
    /// Requests by kind.
    pub(super) by_kind: BTreeMap<RequestKind, RequestCounts>,
    /// Prompt tokens.
    pub(super) prompt_tokens: u64,
    /// Completion tokens.
    pub(super) completion_tokens: u64,
}

/// Number of requests of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct RequestCounts {
    /// All requests.
    pub(super) count: u64,
    /// Requests with an invalid completion.
    pub(super) invalid: u64,
}

impl RequestStats {
    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        for request in &trajectory.requests {
            let counts = self.by_kind.entry(request.kind).or_default();
            counts.count += 1;
            counts.invalid += u64::from(request.invalid.is_some());
            let usage = request.completion.token_usage().unwrap_or_default();
            self.prompt_tokens += usage.prompt_tokens;
            self.completion_tokens += usage.completion_tokens;
        }
    }

    /// Cost of all tokens.
    pub(super) fn cost(&self, prices: TokenPrices) -> f64 {
        prices.cost(ChatUsage { prompt_tokens: self.prompt_tokens, completion_tokens: self.completion_tokens })
    }

    /// Number of invalid completions of memory requests, and number of memory requests.
    pub(super) fn memory_requests(&self) -> (u64, u64) {
        let memory = self.by_kind.iter().filter(|(kind, _)| **kind != RequestKind::Play);
        memory.fold((0, 0), |(invalid, all), (_, c)| (invalid + c.invalid, all + c.count))
    }
}
