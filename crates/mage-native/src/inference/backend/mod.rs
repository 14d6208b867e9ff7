//! The interface between the scheduler and the hardware that executes its steps.
//!
//! A backend computes the new tokens of many sequences and answers the logit queries about some of them. The scheduler
//! knows blocks and tokens by id only; a backend does not know the life cycle of a request.

pub(crate) mod cpu;
pub(crate) mod cuda;

use super::sequence::{LogitResult, SequenceTable};
use crate::weights::registry::DeviceWeights;
use mage_engine::Result;
use std::sync::Arc;

/// One sequence's slice of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceSlice {
    pub(crate) sequence: u32,
    pub(crate) weights: u32,
    /// The new tokens: their start in [`StepInputs::tokens`], their count, and the position of the first.
    pub(crate) token_offset: usize,
    pub(crate) num_tokens: usize,
    pub(crate) start_position: usize,
    /// Start of the sequence's block table in [`StepInputs::block_tables`]. It covers every token up to the last new one.
    pub(crate) block_table_offset: usize,
    /// How many of the last tokens need logits, and the index of the first result.
    pub(crate) num_logits: usize,
    pub(crate) logit_offset: usize,
}

/// The inputs of one scheduler step.
#[derive(Debug, Default)]
pub(crate) struct StepInputs {
    /// Blocks to copy before anything else, in order: (from, to).
    pub(crate) block_copies: Vec<(u32, u32)>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) block_tables: Vec<u32>,
    pub(crate) slices: Vec<SequenceSlice>,
    /// Number of logit queries in the step.
    pub(crate) num_logits: usize,
}

impl StepInputs {
    pub(crate) fn clear(&mut self) {
        let StepInputs { block_copies, tokens, block_tables, slices, num_logits } = self;
        block_copies.clear();
        tokens.clear();
        block_tables.clear();
        slices.clear();
        *num_logits = 0;
    }
}

/// Executes steps.
pub(crate) trait StepExecutor {
    /// Executes a step and writes its results. Within a step, no slice reads a block that another slice writes.
    fn execute(&mut self, step: &StepInputs, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()>;
}

/// A backend that holds weights.
pub(crate) trait ModelBackend: StepExecutor + Send {
    /// Sets or clears the weights of a slot. They stay set while sequences use them.
    fn set_weights(&mut self, slot: u32, weights: Option<Arc<DeviceWeights>>);
    /// Clears all slots.
    fn clear_weights(&mut self);
}
