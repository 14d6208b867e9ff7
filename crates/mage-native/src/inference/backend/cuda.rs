//! CUDA backend.
//!
//! Sequences with the same weights run together. The uniform variate for a sampled token comes from the same RNG stream as on
//! the CPU, so the two differ only where rounding moves a boundary across it. Action-mask tries are cached in GPU memory; the
//! sampling kernel receives each sequence's trie node and returns the node its sampled token leads to.

use super::super::sequence::{LogitQuery, SequenceTable};
use super::cpu::set_slot;
use super::{ModelBackend, ScheduledStep, StepExecutor};
use crate::gpu::{GpuModel, failed};
use crate::weights::registry::DeviceWeights;
use mage_cuda::{Candidates, KernelLogitQuery, ModelRunner, StepBatch, TokenTrie};
use mage_engine::model::{LogitResult, SequenceSlice};
use mage_engine::{ActionCursor, ActionSet, Result};
use mage_rng::Seed;
use rand::RngExt;
use std::sync::Arc;

/// The model runner with its KV cache, and the weights in use.
pub(crate) struct CudaBackend {
    runner: ModelRunner,
    /// By weight slot; set while sequences use them.
    weights: Vec<Option<Arc<DeviceWeights>>>,
    /// Slice indices, grouped by weights.
    order: Vec<u32>,
    tokens: Vec<u32>,
    slices: Vec<SequenceSlice>,
    results: Vec<LogitResult>,
}

impl CudaBackend {
    pub(crate) fn new(gpu: &GpuModel, num_blocks: u32, batch_invariant: bool) -> Result<Self> {
        Ok(CudaBackend {
            runner: ModelRunner::new(&gpu.model, num_blocks as usize, batch_invariant).map_err(failed)?,
            weights: Vec::new(),
            order: Vec::new(),
            tokens: Vec::new(),
            slices: Vec::new(),
            results: Vec::new(),
        })
    }
}

/// An action set in the format of the GPU.
fn trie(set: &ActionSet) -> TokenTrie<'_> {
    TokenTrie { id: set.id(), data: set.trie_data() }
}

/// The tokens allowed at a trie node.
fn candidates(cursor: &ActionCursor) -> Candidates<'_> {
    Candidates::TrieNode(trie(cursor.set()), cursor.node())
}

/// A logit query in the form of the sampling kernel.
fn kernel_query(query: LogitQuery<'_>) -> KernelLogitQuery<'_> {
    match query {
        LogitQuery::Score { token, allowed } => KernelLogitQuery::score(token, allowed.map(|a| &a[..])),
        LogitQuery::Sample { params, cursor, index } => {
            let mut rng = Seed::new(params.seed).child("sample").at(index as u64).rng();
            // At most the largest f32 below 1, so that the variate stays below the total probability.
            let uniform = (rng.random::<f64>() as f32).min(1.0 - f32::EPSILON / 2.0);
            KernelLogitQuery {
                token: None,
                candidates: cursor.map_or(Candidates::All, candidates),
                top_k: params.top_k,
                temperature: params.temperature,
                top_p: params.top_p,
                min_p: params.min_p,
                uniform,
            }
        }
    }
}

impl StepExecutor for CudaBackend {
    fn execute(&mut self, step: &ScheduledStep, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()> {
        let CudaBackend { runner, weights, order, tokens, slices, results: group_results } = self;
        runner.copy_blocks(&step.block_copies).map_err(failed)?;
        order.clear();
        order.extend(0..step.slices.len() as u32);
        order.sort_by_key(|i| step.slices[*i as usize].weights);
        for group in order.chunk_by(|a, b| step.slices[*a as usize].weights == step.slices[*b as usize].weights) {
            tokens.clear();
            slices.clear();
            let mut queries = Vec::with_capacity(group.len());
            let mut indices = Vec::with_capacity(group.len());
            for scheduled in group.iter().map(|i| &step.slices[*i as usize]) {
                let slice = &scheduled.slice;
                slices.push(SequenceSlice { token_offset: tokens.len(), ..*slice });
                tokens.extend_from_slice(&step.tokens[slice.token_offset..slice.token_offset + slice.num_tokens]);
                let sequence = sequences.at(scheduled.sequence);
                let first_query = slice.start_position + slice.num_tokens - slice.num_logits;
                for i in 0..slice.num_logits {
                    queries.push(kernel_query(sequence.logit_query(first_query + i)));
                    indices.push(scheduled.logit_offset + i);
                }
            }
            let slot = step.slices[group[0] as usize].weights as usize;
            let device_weights = weights[slot].as_ref().expect("weights stay set while sequences use them");
            group_results.clear();
            group_results.resize(queries.len(), LogitResult::default());
            let batch = StepBatch { tokens, block_tables: &step.block_tables, sequences: slices, queries: &queries };
            runner.step(device_weights.cuda().as_ref(), &batch, group_results).map_err(failed)?;
            for (index, result) in indices.into_iter().zip(group_results.iter()) {
                results[index] = *result;
            }
        }
        Ok(())
    }
}

impl ModelBackend for CudaBackend {
    fn set_weights(&mut self, slot: u32, weights: Option<Arc<DeviceWeights>>) {
        set_slot(&mut self.weights, slot, weights);
    }

    fn clear_weights(&mut self) {
        self.weights.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_format_of_an_action_set_is_valid() {
        let mut rng = Seed::new(8).rng();
        for i in 0..200 {
            let action = |_| (0..rng.random_range(0..6)).map(|_| rng.random_range(0..9_u32)).collect::<Vec<_>>();
            let actions: Vec<Vec<u32>> = (0..1 + i % 20).map(action).collect();
            // The end-of-thinking token is only compared, so it may be outside the vocabulary.
            let set = ActionSet::new(actions, Some(9), (i % 2 == 0).then_some(1000)).unwrap();
            trie(&set).check(10).unwrap();
            assert!(trie(&set).check(9).unwrap_err().to_string().contains("token 9 of 9"));
        }
    }
}
