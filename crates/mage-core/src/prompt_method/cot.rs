//! Chain of thought: an instruction to reason in a fixed order of steps before each action.

use crate::{
    Completion, Memory, MemoryStep, RecallQuery, Result,
    memory::FinishedEpisode,
    prompt::{MemoryBlock, PromptSet},
};
use std::sync::Arc;

/// A memory without content that adds the chain-of-thought instruction to each prompt.
pub(super) struct ChainOfThought {
    prompts: Arc<PromptSet>,
}

impl ChainOfThought {
    pub(super) fn new(prompts: Arc<PromptSet>) -> Self {
        ChainOfThought { prompts }
    }
}

impl Memory for ChainOfThought {
    fn recall(&mut self, query: &RecallQuery<'_>, _completions: &[Completion]) -> Result<MemoryStep<MemoryBlock>> {
        let notes = self.prompts.method_prompt("cot", query.seat, &())?;
        Ok(MemoryStep::done(MemoryBlock { entries: Vec::new(), notes }))
    }

    fn record(&mut self, _finished: &FinishedEpisode<'_>, _completions: &[Completion]) -> Result<MemoryStep<()>> {
        Ok(MemoryStep::done(()))
    }

    fn reveals_past_episodes(&self) -> bool {
        false
    }
}
