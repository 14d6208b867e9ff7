//! What must a device do for the scheduler?
//!
//! Take new tokens of many sequences in and answer what is asked about some of them. The scheduler knows pages and tokens
//! as numbers only; a device knows nothing of requests' lives.

pub(crate) mod cpu;
pub(crate) mod cuda;

use super::sequence::{LogitResult, SequenceTable};
use crate::weights::registry::DeviceWeights;
use mage_engine::Result;
use std::sync::Arc;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SequenceSlice {
    pub(crate) request: u32,
    pub(crate) weights: u32,
    /// Its new tokens: where they start in [`StepInputs::tokens`], how many, and the position of the first.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) position: usize,
    /// Its pages: where they start in [`StepInputs::tables`]. They reach as far as its last new token.
    pub(crate) table: usize,
    /// How many of its last tokens are asked about, and the number of the first answer.
    pub(crate) asked: usize,
    pub(crate) answer: usize,
}

/// What is done at once.
#[derive(Debug, Default)]
pub(crate) struct StepInputs {
    /// Pages to be copied before all else, in order: (from, to).
    pub(crate) copies: Vec<(u32, u32)>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) tables: Vec<u32>,
    pub(crate) parts: Vec<SequenceSlice>,
    /// How many answers are wanted.
    pub(crate) answers: usize,
}

impl StepInputs {
    pub(crate) fn clear(&mut self) {
        let StepInputs { copies, tokens, tables, parts, answers } = self;
        copies.clear();
        tokens.clear();
        tables.clear();
        parts.clear();
        *answers = 0;
    }
}

/// Executes steps.
pub(crate) trait Backend {
    /// Does all of a step and puts the answers into their places. Within a step, no part reads a page that another
    /// writes.
    fn execute(&mut self, step: &StepInputs, requests: &SequenceTable, answers: &mut [LogitResult]) -> Result<()>;
}

/// A device that has weights.
pub(crate) trait ModelBackend: Backend + Send {
    /// Weights by the scheduler's number: there while requests use them.
    fn hold(&mut self, number: u32, weights: Option<Arc<DeviceWeights>>);
    /// Lets go of all weights.
    fn hold_nothing(&mut self);
}
