//! Decode steps as CUDA graphs: captured once, then replayed.

use super::{DecodeInputLayout, ModelRunner, StepBatch};
use crate::TILE_WORDS;
use crate::error::Result;
use crate::graph::{CudaGraph, GraphCapture};
use crate::lora::WeightsRef;
use crate::step_inputs::KernelLogitQuery;
use mage_engine::model::{BLOCK_SIZE, LogitResult, LoraLayout};
use std::collections::HashMap;
use std::sync::Arc;

/// Captured graphs by weight address, adapter address and batch size. New weights allocated at a reused address reuse
/// the old graph.
#[derive(Default)]
pub(super) struct GraphCache(HashMap<GraphKey, (CudaGraph, Option<Arc<LoraLayout>>)>);

/// Addresses of the base weights, of the adapter and of the adapter's layout (kept alive, so that its address is not
/// reused), and the number of rows.
type GraphKey = (u64, u64, usize, usize);

impl GraphCache {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Maximum number of graphs. Most belong to weights that no longer exist.
const MAX_GRAPHS: usize = 128;

/// Batch sizes that are captured: a step is padded to the next one.
pub(super) fn bucket(rows: usize) -> usize {
    match rows {
        0..=16 => rows.next_power_of_two(),
        17..=64 => rows.next_multiple_of(16),
        65..=256 => rows.next_multiple_of(32),
        _ => rows.next_multiple_of(128),
    }
}

impl ModelRunner {
    /// A step in which every sequence has one new token, with one logit query each.
    pub(super) fn step_graph(
        &mut self,
        weights: WeightsRef<'_>,
        step: &StepBatch<'_>,
        results: &mut [LogitResult],
    ) -> Result<()> {
        let num_sequences = step.sequences.len();
        if num_sequences == 0 {
            return Ok(());
        }
        let rows = bucket(num_sequences);
        self.reserve(weights, rows, rows)?;
        let offsets = DecodeInputLayout::of(rows);
        let p = &mut self.step_inputs;
        p.clear();
        p.push_zeros(offsets.tables);
        p.push(step.block_tables.iter().copied());
        // Padding rows write to a spare block.
        let padding_table = p.push([self.num_blocks as u32]) - offsets.tables;
        for index in 0..rows {
            let (token, position, block, table_offset) = match step.sequences.get(index) {
                Some(slice) => {
                    let block = step.block_tables[slice.block_table_offset + slice.start_position / BLOCK_SIZE];
                    (step.tokens[slice.token_offset], slice.start_position, block, slice.block_table_offset)
                }
                None => (0, 0, self.num_blocks as u32, padding_table),
            };
            p.data[offsets.tokens + index] = token;
            p.data[offsets.positions + index] = position as u32;
            p.data[offsets.slots + index] = block * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32;
            p.data[offsets.table_offsets + index] = table_offset as u32;
            let tile = [index, 1, table_offset, position + 1, 0].map(|x| x as u32);
            p.data[offsets.tiles + index * TILE_WORDS..][..TILE_WORDS].copy_from_slice(&tile);
            let query = step.queries.get(index).copied().unwrap_or(KernelLogitQuery::score(0, Some(&[0])));
            p.set_query(offsets.queries, index, &query, self.tries.node_offset(index));
        }
        if self.step_inputs.data.len() <= self.pinned_inputs.len() {
            self.pinned_inputs.upload(&self.stream, &self.step_inputs.data, &self.device_inputs)?;
        } else {
            self.device_inputs.upload(&self.stream, &self.step_inputs.data)?;
        }
        let layout = weights.adapter.map(|a| &a.layout);
        let key = (
            weights.base.at(0),
            weights.adapter.map_or(0, |a| a.weights.at(0)),
            layout.map_or(0, |p| Arc::as_ptr(p) as usize),
            rows,
        );
        if !self.graphs.0.contains_key(&key) {
            // Runs once without capture, so that all GEMMs are planned.
            self.cublas.tuning = !self.batch_invariant;
            let graph = self
                .run(weights, rows, &offsets)
                .and_then(|()| self.stream.wait())
                .and_then(|()| self.capture(weights, rows, &offsets));
            self.cublas.tuning = false;
            let graph = graph?;
            if self.graphs.0.len() >= MAX_GRAPHS {
                self.graphs.clear();
            }
            self.graphs.0.insert(key, (graph, layout.map(Arc::clone)));
        }
        let (graph, _) = &self.graphs.0[&key];
        // SAFETY: all memory it refers to is valid: reallocation clears the graphs, and the weights are those given.
        unsafe { graph.replay(&self.stream) }?;
        self.pinned_inputs.wait(&self.stream)?;
        // SAFETY: the only stream whose kernels write the results is idle.
        let pinned_results = unsafe { self.pinned_results.as_slice() };
        results[..num_sequences].copy_from_slice(&pinned_results[..num_sequences]);
        Ok(())
    }

    fn run(&mut self, weights: WeightsRef<'_>, rows: usize, offsets: &DecodeInputLayout) -> Result<()> {
        let (num_decode, tiles) = if self.batch_invariant { (0, rows) } else { (rows, 0) };
        if self.use_fused_gemm(weights, rows) {
            self.layers_fused(weights, rows, offsets)?;
        } else {
            self.layers(weights, rows, (num_decode, offsets), (offsets.tiles, tiles))?;
        }
        // Results go directly to pinned host memory: a copy would only start after the last of them.
        self.lm_head(weights, self.workspace.hidden.at(0), rows, offsets.queries, self.pinned_results.device_ptr())
    }

    fn capture(&mut self, weights: WeightsRef<'_>, rows: usize, offsets: &DecodeInputLayout) -> Result<CudaGraph> {
        let capture = GraphCapture::new(&self.stream)?;
        self.run(weights, rows, offsets)?;
        capture.finish()
    }
}
