//! Steps of single tokens, recorded once and replayed.

use super::{BLOCK_SIZE, ITEM, ModelRunner, Single, StepBatch};
use crate::error::Result;
use crate::graph::{Graph, GraphCapture};
use crate::lora::{GpuLoraLayout, WeightsRef};
use crate::step_inputs::{GpuLogitQuery, GpuLogitResult};
use std::collections::HashMap;
use std::sync::Arc;

/// What was recorded, by where the weights and the adapter are and the number of rows. CudaWeights that come to lie where others lay are read by
/// what was recorded with those.
#[derive(Default)]
pub(super) struct Graphs(HashMap<Key, (Graph, Option<Arc<GpuLoraLayout>>)>);

/// Addresses of weights, of an adapter and of what says where its parts are (kept, so that nothing else comes to lie there),
/// and the number of rows.
type Key = (u64, u64, usize, usize);

impl Graphs {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// More than this many are not kept: most are of weights that are gone.
const MOST: usize = 128;

/// Numbers of rows that are recorded: a step is padded to the next.
pub(super) fn bucket(rows: usize) -> usize {
    match rows {
        0..=16 => rows.next_power_of_two(),
        17..=64 => rows.next_multiple_of(16),
        65..=256 => rows.next_multiple_of(32),
        _ => rows.next_multiple_of(128),
    }
}

impl ModelRunner {
    /// A step of single tokens, all of them asked about.
    pub(super) fn recorded(
        &mut self,
        w: WeightsRef<'_>,
        step: &StepBatch<'_>,
        answers: &mut [GpuLogitResult],
    ) -> Result<()> {
        let count = step.sequences.len();
        if count == 0 {
            return Ok(());
        }
        let rows = bucket(count);
        self.reserve(w, rows, rows)?;
        let at = Single::of(rows);
        let p = &mut self.packet;
        p.clear();
        p.leave(at.tables);
        p.put(step.block_tables.iter().copied());
        // Rows that stand for nothing write to a page that nobody uses.
        let spare = p.put([self.count as u32]) - at.tables;
        for row in 0..rows {
            let (token, position, page, list) = match step.sequences.get(row) {
                Some(part) => {
                    let page = step.block_tables[part.block_table_offset + part.start_position / BLOCK_SIZE];
                    (step.tokens[part.token_offset], part.start_position, page, part.block_table_offset)
                }
                None => (0, 0, self.count as u32, spare),
            };
            p.words[at.tokens + row] = token;
            p.words[at.positions + row] = position as u32;
            p.words[at.cells + row] = page * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32;
            p.words[at.lists + row] = list as u32;
            let item = [row, 1, list, position + 1, 0].map(|x| x as u32);
            p.words[at.items + row * ITEM..][..ITEM].copy_from_slice(&item);
            let ask = step.queries.get(row).copied().unwrap_or(GpuLogitQuery::score(0, Some(&[0])));
            p.ask(at.asks, row, &ask, self.tries.node(row));
        }
        if self.packet.words.len() <= self.sent.len() {
            self.sent.send(&self.stream, &self.packet.words, &self.words)?;
        } else {
            self.words.put(&self.stream, &self.packet.words)?;
        }
        let places = w.adapter.map(|a| &a.layout);
        let key = (
            w.base.at(0),
            w.adapter.map_or(0, |a| a.weights.at(0)),
            places.map_or(0, |p| Arc::as_ptr(p) as usize),
            rows,
        );
        if !self.graphs.0.contains_key(&key) {
            // Once as it is: what the products need to plan they plan now.
            self.products.tuning = !self.invariant;
            let graph =
                self.run(w, rows, &at).and_then(|()| self.stream.wait()).and_then(|()| self.record(w, rows, &at));
            self.products.tuning = false;
            let graph = graph?;
            if self.graphs.0.len() >= MOST {
                self.graphs.clear();
            }
            self.graphs.0.insert(key, (graph, places.map(Arc::clone)));
        }
        let (graph, _) = &self.graphs.0[&key];
        // SAFETY: everything it refers to is there: buffers that move clear the graphs, and the weights are those given.
        unsafe { graph.replay(&self.stream) }?;
        self.stream.wait()?;
        answers[..count].copy_from_slice(&self.brought.here()[..count]);
        Ok(())
    }

    fn run(&mut self, w: WeightsRef<'_>, rows: usize, at: &Single) -> Result<()> {
        let (single, items) = if self.invariant { (0, rows) } else { (rows, 0) };
        if self.is_dense(w, rows) {
            self.layers_dense(w, rows, at)?;
        } else {
            self.layers(w, rows, (single, at), (at.items, items))?;
        }
        // Straight to where they are read: a copy would only start once all are there.
        self.tell(w, self.space.state.at(0), rows, at.asks, self.brought.on_card())
    }

    fn record(&mut self, w: WeightsRef<'_>, rows: usize, at: &Single) -> Result<Graph> {
        let recording = GraphCapture::new(&self.stream)?;
        self.run(w, rows, at)?;
        recording.graph()
    }
}
