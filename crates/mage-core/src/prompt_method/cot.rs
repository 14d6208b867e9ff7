//! How is a model made to reason in steps?
//!
//! It is told to, before every choice, and in which order.

use crate::{
    Completion, Memory, MemoryStep, RecallQuery, Result,
    memory::FinishedEpisode,
    prompt::{MemoryBlock, PromptSet},
};
use std::sync::Arc;

/// Remembers nothing and asks for reasoning in steps.
pub(super) struct ChainOfThought {
    prompts: Arc<PromptSet>,
}

impl ChainOfThought {
    pub(super) fn new(prompts: Arc<PromptSet>) -> Self {
        ChainOfThought { prompts }
    }
}

impl Memory for ChainOfThought {
    fn recall(&mut self, query: &RecallQuery<'_>, _answers: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let notes = self.prompts.of_method("cot", query.seat, &())?;
        Ok(MemoryStep::done(MemoryBlock { entries: Vec::new(), notes }))
    }

    fn record(&mut self, _finished: &FinishedEpisode<'_>, _answers: &[Completion]) -> Result<MemoryStep<()>> {
        Ok(MemoryStep::done(()))
    }

    fn reveals_past_episodes(&self) -> bool {
        false
    }
}
