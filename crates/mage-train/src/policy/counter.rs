//! Counts of the completions of a policy, readable while it runs.

use super::Policy;
use crate::Result;
use mage_core::{Completion, MetaEpisode, Request};
use mage_engine::BoxFuture;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Thread-safe counts of completions and their tokens.
#[derive(Debug, Default)]
pub struct CompletionCounter {
    completions: AtomicU64,
    tokens: AtomicU64,
}

impl CompletionCounter {
    /// Completions so far.
    pub fn completions(&self) -> u64 {
        self.completions.load(Relaxed)
    }

    /// Completion tokens so far.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }

    fn add(&self, completion: &Completion) {
        self.completions.fetch_add(1, Relaxed);
        self.tokens.fetch_add(completion.token_usage().unwrap_or_default().completion_tokens, Relaxed);
    }
}

/// A policy whose completions are counted.
pub(super) struct CountedPolicy<P> {
    pub(super) inner: P,
    pub(super) counter: Arc<CompletionCounter>,
}

impl<P: Policy> Policy for CountedPolicy<P> {
    fn respond<'a>(&'a mut self, request: &'a Request, meta: &MetaEpisode) -> BoxFuture<'a, Result<Completion>> {
        let completion = self.inner.respond(request, meta);
        Box::pin(async {
            let completion = completion.await?;
            self.counter.add(&completion);
            Ok(completion)
        })
    }
}
