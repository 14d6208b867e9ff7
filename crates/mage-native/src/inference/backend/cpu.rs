//! CPU backend.
//!
//! Slices with the same base weights, whatever their adapters, are grouped into tasks. Each task runs all layers on one
//! core, so that its activations stay in that core's cache. If the weights are too large for every core to read, or there is
//! only one task, the cores share each GEMM instead. Neither logprob changes a bit of the results.

use super::super::sequence::{LogitQuery, LogitResult, SequenceTable};
use super::{Backend, ModelBackend, SequenceSlice, StepInputs};
use crate::cpu::Cpu;
use crate::cpu::{BLOCK_SIZE, Kernels, Target, TokenLogprob};
use crate::engine::Shared;
use crate::inference::sampling::{self, SamplingScratch};
use crate::model::{LoraSegment, PagedWorkspace, Rows, WeightSet};
use crate::weights::registry::DeviceWeights;
use mage_engine::{ActionCursor, Result};
use mage_rng::Seed;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A task of fewer multiply-adds is not worth handing to another core.
const MIN_TASK_WORK: usize = 3 << 19;
/// A task's numbers beyond this many bytes leave the core's own cache.
const CACHE: usize = 3 << 18;
/// Weights of more bytes are read once for all rows.
const LARGE_WEIGHTS: usize = 24 << 20;

/// The CPU, its pages, and the weights in use.
pub(crate) struct CpuBackend {
    shared: Arc<Shared>,
    pages: <Cpu as Kernels>::KvBlocks,
    /// By the scheduler's number; there while requests use them.
    weights: Vec<Option<Arc<DeviceWeights>>>,
    /// Which slice writes a block in this step: (step, slice).
    writers: Vec<(u64, u32)>,
    steps: u64,
    /// Numbers of slices, those under the same weights together, and among them those with the same adapter.
    order: Vec<u32>,
    tasks: Vec<Range<usize>>,
    /// As many as ever worked at once.
    workspaces: Mutex<Vec<TaskWorkspace>>,
}

/// What a task needs, kept from one to the next.
struct TaskWorkspace {
    rows: Rows,
    step: PagedWorkspace<Cpu>,
    scratch: SamplingScratch,
    /// For each row queries about: its request, its position, the number of its answer.
    queries: Vec<(u32, usize, usize)>,
}

impl CpuBackend {
    pub(crate) fn new(shared: Arc<Shared>, pages: u32) -> Self {
        let (config, kernels) = (&shared.model.config, &shared.model.kernels);
        CpuBackend {
            pages: kernels.alloc_kv_blocks(config.heads(), config.num_hidden_layers, pages as usize),
            weights: Vec::new(),
            writers: vec![(0, 0); pages as usize],
            steps: 0,
            order: Vec::new(),
            tasks: Vec::new(),
            workspaces: Mutex::default(),
            shared,
        }
    }

    /// The memory of tasks side by side rests on this: each block has one writer, and no reader but that.
    fn check(&mut self, step: &StepInputs) {
        self.steps += 1;
        for (i, slice) in step.slices.iter().enumerate() {
            let last = (slice.position + slice.count).div_ceil(BLOCK_SIZE);
            for &block in &step.block_tables[slice.block_table + slice.position / BLOCK_SIZE..slice.block_table + last]
            {
                let writer = &mut self.writers[block as usize];
                assert!(writer.0 != self.steps, "two sequences would write block {block}");
                *writer = (self.steps, i as u32);
            }
        }
        for slice in &step.slices {
            for &block in &step.block_tables[slice.block_table..slice.block_table + slice.position / BLOCK_SIZE] {
                assert!(
                    self.writers[block as usize].0 != self.steps,
                    "block {block} would be read while it is written"
                );
            }
        }
    }

    /// Deals the slices into tasks.
    fn assign_tasks(&mut self, step: &StepInputs) {
        let CpuBackend { shared, order, tasks, weights: slots, .. } = self;
        let model = &shared.model;
        // Which weights lie below does not change what a slice computes, so an address will do to tell them apart.
        let base = |number: u32| Arc::as_ptr(&set(slots, number).base);
        order.clear();
        order.extend(0..step.slices.len() as u32);
        let weights = |i: &u32| step.slices[*i as usize].weights;
        if !order.iter().map(weights).all(|w| w == weights(&order[0])) {
            order.sort_by_key(|i| (base(weights(i)), weights(i)));
        }
        let threads = rayon::current_num_threads();
        let fits = (CACHE / (model.bytes_per_token() / model.config.num_hidden_layers)).clamp(32, 256);
        let per_task = if 4 * model.layout.len > LARGE_WEIGHTS {
            usize::MAX
        } else {
            let even = step.tokens.len().div_ceil(threads);
            even.min(fits).max(MIN_TASK_WORK / model.layout.len)
        };
        tasks.clear();
        let (mut first, mut rows) = (0, 0);
        for (i, slice) in order.iter().enumerate() {
            let slice = &step.slices[*slice as usize];
            let other = i > first && base(weights(&order[first])) != base(slice.weights);
            if i > first && (other || rows + slice.count > per_task) {
                tasks.push(first..i);
                (first, rows) = (i, 0);
            }
            rows += slice.count;
        }
        if first < order.len() {
            tasks.push(first..order.len());
        }
    }

    fn run(
        &self,
        k: &Cpu,
        step: &StepInputs,
        sequences: &SequenceTable,
        task: Range<usize>,
    ) -> Vec<(usize, LogitResult)> {
        let free = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut workspace = free.unwrap_or_else(|| TaskWorkspace {
            rows: Rows::default(),
            step: PagedWorkspace::new(k),
            scratch: SamplingScratch::default(),
            queries: Vec::new(),
        });
        let TaskWorkspace { rows, step: buffers, scratch, queries } = &mut workspace;
        rows.clear();
        queries.clear();
        let slices = &self.order[task];
        for slice in slices.iter().map(|p| &step.slices[*p as usize]) {
            let tokens = &step.tokens[slice.first..slice.first + slice.count];
            rows.push(
                tokens,
                slice.position,
                &step.block_tables[slice.block_table..],
                slice.block_table,
                slice.num_logits,
            );
            let first = slice.position + slice.count - slice.num_logits;
            queries.extend((0..slice.num_logits).map(|i| (slice.sequence, first + i, slice.first_logit + i)));
        }
        let mut results = Vec::with_capacity(queries.len());
        let model = &self.shared.model;
        let vocabulary = model.config.vocab_size;
        let weights = &set(&self.weights, step.slices[slices[0] as usize].weights).base;
        let lora = self.lora_segments(step, slices, |slice| slice.count);
        let logit_lora = self.lora_segments(step, slices, |slice| slice.num_logits);
        let lora = (&lora[..], &logit_lora[..]);
        model.step(k, weights, lora, rows, &step.block_tables, &self.pages, buffers, |from, count, logits: &[f32]| {
            for ((sequence, position, number), logits) in
                queries[from..from + count].iter().zip(logits.chunks_exact(vocabulary))
            {
                results.push((
                    *number,
                    evaluate_query(k, sequences.at(*sequence).logit_query(*position), logits, scratch),
                ));
            }
        });
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        results
    }

    /// Which rows of a task carry which adapter, where each slice has as many rows as `count` says.
    fn lora_segments(
        &self,
        step: &StepInputs,
        slices: &[u32],
        count: impl Fn(&SequenceSlice) -> usize,
    ) -> Vec<LoraSegment<'_, Cpu>> {
        let mut all: Vec<LoraSegment<'_, Cpu>> = Vec::new();
        let mut last = None;
        let mut row = 0;
        for slice in slices.iter().map(|p| &step.slices[*p as usize]) {
            let rows = row..row + count(slice);
            row = rows.end;
            if rows.is_empty() {
                continue; // read in pieces, and not at its end yet
            }
            let Some(adapter) = set(&self.weights, slice.weights).adapter.as_deref() else { continue };
            match all.last_mut().filter(|_| last == Some(slice.weights)) {
                Some(lora) => lora.rows.end = rows.end,
                None => all.push(LoraSegment { rows, adapter }),
            }
            last = Some(slice.weights);
        }
        all
    }
}

fn set(slots: &[Option<Arc<DeviceWeights>>], number: u32) -> &WeightSet<Cpu> {
    slots[number as usize].as_ref().expect("weights stay while requests use them").cpu()
}

/// What a row of logits results. What is not finite gives a log-probability that is not a number.
pub(crate) fn evaluate_query(
    k: &Cpu,
    query: LogitQuery<'_>,
    logits: &[f32],
    scratch: &mut SamplingScratch,
) -> LogitResult {
    let mut logprob = [TokenLogprob::default()];
    match query {
        LogitQuery::Sample { params, cursor, index } => {
            let mut rng = Seed::new(params.seed).child("sample").at(index as u64).rng();
            let allowed = cursor.and_then(ActionCursor::allowed);
            let tokens = allowed.map(|a| &a[..]);
            match sampling::draw(k.level(), logits, tokens, params, &mut rng, scratch) {
                Some(drawn) => {
                    let target = Target { token: drawn.token, allowed };
                    k.token_logprobs(logits, logits.len(), &[target], &mut logprob);
                    LogitResult {
                        token: drawn.token,
                        logprob: logprob[0].logprob,
                        second: drawn.logprob,
                        trie_node: None,
                    }
                }
                None => LogitResult { token: 0, logprob: f32::NAN, second: f32::NAN, trie_node: None },
            }
        }
        LogitQuery::Score { token, allowed } => {
            k.token_logprobs(logits, logits.len(), &[Target { token, allowed }], &mut logprob);
            LogitResult { token, logprob: logprob[0].logprob, second: logprob[0].entropy, trie_node: None }
        }
    }
}

impl Backend for CpuBackend {
    fn execute(&mut self, step: &StepInputs, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()> {
        let kernels = self.shared.model.kernels;
        kernels.copy_blocks(&mut self.pages, &step.block_copies);
        self.check(step);
        self.assign_tasks(step);
        let (this, mut put) = (&*self, |all: Vec<(usize, LogitResult)>| {
            for (number, answer) in all {
                results[number] = answer;
            }
        });
        match &this.tasks[..] {
            [] => {}
            [task] => put(this.run(&kernels, step, sequences, task.clone())),
            tasks => {
                let enough = tasks.len() >= rayon::current_num_threads();
                let k = if enough { kernels.single_threaded() } else { kernels };
                let run = |task: &Range<usize>| this.run(&k, step, sequences, task.clone());
                let all: Vec<_> = tasks.par_iter().with_max_len(1).map(run).collect();
                all.into_iter().for_each(put);
            }
        }
        Ok(())
    }
}

impl ModelBackend for CpuBackend {
    fn set_weights(&mut self, slot: u32, weights: Option<Arc<DeviceWeights>>) {
        set_slot(&mut self.weights, slot, weights);
    }

    fn clear_weights(&mut self) {
        self.weights.clear();
    }
}

/// Puts weights at their number, making room for it.
pub(super) fn set_slot<T>(slots: &mut Vec<Option<T>>, slot: u32, value: Option<T>) {
    let slot = slot as usize;
    if slots.len() <= slot {
        slots.resize_with(slot + 1, || None);
    }
    slots[slot] = value;
}
