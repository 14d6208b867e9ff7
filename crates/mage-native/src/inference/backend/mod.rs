//! The interface between the scheduler and the hardware that executes its steps.
//!
//! A backend computes the new tokens of many sequences and answers the logit queries about some of them. The scheduler
//! knows blocks and tokens by id only; a backend does not know the life cycle of a request.

pub(crate) mod cpu;
pub(crate) mod cuda;

use super::sequence::SequenceTable;
use crate::weights::registry::DeviceWeights;
use mage_engine::Result;
use mage_engine::model::{LogitResult, SequenceSlice};
use std::sync::Arc;

/// One sequence's slice of a step, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledSlice {
    pub(crate) sequence: u32,
    /// Weight slot.
    pub(crate) weights: u32,
    /// Index of its first result.
    pub(crate) logit_offset: usize,
    pub(crate) slice: SequenceSlice,
}

/// One scheduler step. Its sequences may use different weights; a GPU runs one `StepBatch` per set of weights.
#[derive(Debug, Default)]
pub(crate) struct ScheduledStep {
    /// Blocks to copy before anything else, in order: (from, to).
    pub(crate) block_copies: Vec<(u32, u32)>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) block_tables: Vec<u32>,
    pub(crate) slices: Vec<ScheduledSlice>,
    /// Number of logit queries in the step.
    pub(crate) num_logits: usize,
}

impl ScheduledStep {
    pub(crate) fn clear(&mut self) {
        let ScheduledStep { block_copies, tokens, block_tables, slices, num_logits } = self;
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
    fn execute(&mut self, step: &ScheduledStep, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()>;
}

/// A backend that holds weights.
pub(crate) trait ModelBackend: StepExecutor + Send {
    /// Sets or clears the weights of a slot. They stay set while sequences use them.
    fn set_weights(&mut self, slot: u32, weights: Option<Arc<DeviceWeights>>);
    /// Clears all slots.
    fn clear_weights(&mut self);
}
