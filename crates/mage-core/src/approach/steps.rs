//! How is a model made to reason in steps?
//!
//! It is told to, before every choice, and in which order.

use crate::{
    Answer, Asking, Memory, Query, Result,
    memory::Finished,
    prompt::{Block, PromptSet},
};
use std::sync::Arc;

/// Remembers nothing and asks for reasoning in steps.
pub(super) struct StepByStep {
    prompts: Arc<PromptSet>,
}

impl StepByStep {
    pub(super) fn new(prompts: Arc<PromptSet>) -> Self {
        StepByStep { prompts }
    }
}

impl Memory for StepByStep {
    fn recall(&mut self, query: &Query<'_>, _answers: &[Answer]) -> Result<Asking<Block>> {
        let notes = self.prompts.of_method("cot", query.seat, &())?;
        Ok(Asking::done(Block { entries: Vec::new(), notes }))
    }

    fn record(&mut self, _finished: &Finished<'_>, _answers: &[Answer]) -> Result<Asking<()>> {
        Ok(Asking::done(()))
    }

    fn continuous(&self) -> bool {
        false
    }
}
