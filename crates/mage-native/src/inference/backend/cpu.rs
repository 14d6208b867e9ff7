//! CPU backend.
//!
//! Slices with the same base weights, whatever their adapters, are grouped into tasks. Each task runs all layers on one
//! core, so that its activations stay in that core's cache. If the weights are too large for every core to read, or there is
//! only one task, the cores share each GEMM instead. Neither choice changes the results.

use super::super::sequence::{LogitQuery, SequenceTable};
use super::{ModelBackend, ScheduledStep, StepExecutor};
use crate::cpu::{Cpu, KvBlocks, Target};
use crate::engine::EngineContext;
use crate::inference::sampling::{self, SamplingScratch};
use crate::model::{LoraSegment, PagedBatch, PagedWorkspace, WeightSet};
use crate::weights::registry::DeviceWeights;
use mage_engine::model::{BLOCK_SIZE, LogitResult, SequenceSlice, TokenLogprob};
use mage_engine::{ActionCursor, Result};
use mage_rng::Seed;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A task with fewer multiply-adds is not worth running on another core.
const MIN_TASK_WORK: usize = 3 << 19;
/// Activations of one layer beyond this size exceed the core's own cache.
const CORE_CACHE_BYTES: usize = 3 << 18;
/// Weights beyond this size are read once for all rows, by all cores together.
const LARGE_WEIGHTS_BYTES: usize = 24 << 20;

/// The CPU backend: KV cache and weights in use.
pub(crate) struct CpuBackend {
    shared: Arc<EngineContext>,
    kv_blocks: KvBlocks,
    /// By weight slot; set while sequences use them.
    weights: Vec<Option<Arc<DeviceWeights>>>,
    /// The last writer of each block: (step, slice).
    writers: Vec<(u64, u32)>,
    steps: u64,
    /// Slice indices, grouped by base weights, then by adapter.
    order: Vec<u32>,
    tasks: Vec<Range<usize>>,
    /// Idle workspaces; as many exist as tasks ever ran at once.
    workspaces: Mutex<Vec<TaskWorkspace>>,
}

/// Buffers of a task, reused by later tasks.
#[derive(Default)]
struct TaskWorkspace {
    batch: PagedBatch,
    step: PagedWorkspace,
    scratch: SamplingScratch,
    /// Logit queries: sequence, position, result index.
    queries: Vec<(u32, usize, usize)>,
}

impl CpuBackend {
    pub(crate) fn new(shared: Arc<EngineContext>, kv_blocks: u32) -> Self {
        let config = &shared.model.config;
        CpuBackend {
            kv_blocks: KvBlocks::new(config.heads(), config.num_hidden_layers, kv_blocks as usize),
            weights: Vec::new(),
            writers: vec![(0, 0); kv_blocks as usize],
            steps: 0,
            order: Vec::new(),
            tasks: Vec::new(),
            workspaces: Mutex::default(),
            shared,
        }
    }

    /// Asserts that each block written in this step has one writer and no other reader, so that slices can be computed
    /// concurrently.
    fn check_block_writers(&mut self, step: &ScheduledStep) {
        self.steps += 1;
        for (i, slice) in step.slices.iter().map(|s| s.slice).enumerate() {
            let last = (slice.start_position + slice.num_tokens).div_ceil(BLOCK_SIZE);
            for &block in &step.block_tables
                [slice.block_table_offset + slice.start_position / BLOCK_SIZE..slice.block_table_offset + last]
            {
                let writer = &mut self.writers[block as usize];
                assert!(writer.0 != self.steps, "two sequences would write block {block}");
                *writer = (self.steps, i as u32);
            }
        }
        for slice in step.slices.iter().map(|s| s.slice) {
            for &block in &step.block_tables
                [slice.block_table_offset..slice.block_table_offset + slice.start_position / BLOCK_SIZE]
            {
                assert!(
                    self.writers[block as usize].0 != self.steps,
                    "block {block} would be read while it is written"
                );
            }
        }
    }

    /// Groups the slices into tasks.
    fn assign_tasks(&mut self, step: &ScheduledStep) {
        let CpuBackend { shared, order, tasks, weights: slots, .. } = self;
        let model = &shared.model;
        // The order of groups does not change results, so base weights can be compared by address.
        let base = |index: u32| Arc::as_ptr(&weight_set(slots, index).base);
        order.clear();
        order.extend(0..step.slices.len() as u32);
        let weights = |i: &u32| step.slices[*i as usize].weights;
        if !order.iter().map(weights).all(|w| w == weights(&order[0])) {
            order.sort_by_key(|i| (base(weights(i)), weights(i)));
        }
        let threads = rayon::current_num_threads();
        let fits = (CORE_CACHE_BYTES / (model.bytes_per_token() / model.config.num_hidden_layers)).clamp(32, 256);
        let per_task = if 4 * model.layout.len > LARGE_WEIGHTS_BYTES {
            usize::MAX
        } else {
            let even = step.tokens.len().div_ceil(threads);
            even.min(fits).max(MIN_TASK_WORK / model.layout.len)
        };
        tasks.clear();
        let (mut first, mut rows) = (0, 0);
        for (i, slice) in order.iter().enumerate() {
            let num_tokens = step.slices[*slice as usize].slice.num_tokens;
            let other = i > first && base(weights(&order[first])) != base(weights(slice));
            if i > first && (other || rows + num_tokens > per_task) {
                tasks.push(first..i);
                (first, rows) = (i, 0);
            }
            rows += num_tokens;
        }
        if first < order.len() {
            tasks.push(first..order.len());
        }
    }

    /// Computes the slices of a task.
    ///
    /// # Safety
    /// [`check_block_writers`](Self::check_block_writers) must have accepted the step, and tasks that run concurrently must
    /// have different slices.
    #[allow(unsafe_code)]
    unsafe fn run_task(
        &self,
        cpu: &Cpu,
        step: &ScheduledStep,
        sequences: &SequenceTable,
        task: Range<usize>,
    ) -> Vec<(usize, LogitResult)> {
        let free = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut workspace = free.unwrap_or_default();
        let TaskWorkspace { batch, step: buffers, scratch, queries } = &mut workspace;
        batch.clear();
        queries.clear();
        let slices = &self.order[task];
        for scheduled in slices.iter().map(|p| &step.slices[*p as usize]) {
            let slice = &scheduled.slice;
            let tokens = &step.tokens[slice.token_offset..slice.token_offset + slice.num_tokens];
            batch.push(
                tokens,
                slice.start_position,
                &step.block_tables[slice.block_table_offset..],
                slice.block_table_offset,
                slice.num_logits,
            );
            let first = slice.start_position + slice.num_tokens - slice.num_logits;
            queries.extend((0..slice.num_logits).map(|i| (scheduled.sequence, first + i, scheduled.logit_offset + i)));
        }
        let mut results = Vec::with_capacity(queries.len());
        let model = &self.shared.model;
        let vocab_size = model.config.vocab_size;
        let weights = &weight_set(&self.weights, step.slices[slices[0] as usize].weights).base;
        let lora = self.lora_segments(step, slices, |slice| slice.num_tokens);
        let logit_lora = self.lora_segments(step, slices, |slice| slice.num_logits);
        let lora = (&lora[..], &logit_lora[..]);
        let on_logits = |from: usize, count: usize, logits: &[f32]| {
            let queries = queries[from..from + count].iter();
            for ((sequence, position, index), logits) in queries.zip(logits.chunks_exact(vocab_size)) {
                let query = sequences.at(*sequence).logit_query(*position);
                results.push((*index, evaluate_query(cpu, query, logits, scratch)));
            }
        };
        let (tables, kv_blocks) = (&step.block_tables, &self.kv_blocks);
        // SAFETY: each block that a slice writes has no other writer or reader, and concurrent tasks have other slices.
        unsafe { model.paged_forward(cpu, weights, lora, batch, tables, kv_blocks, buffers, on_logits) };
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
        results
    }

    /// The LoRA segments of a task, where each slice has `count` rows.
    fn lora_segments(
        &self,
        step: &ScheduledStep,
        slices: &[u32],
        count: impl Fn(&SequenceSlice) -> usize,
    ) -> Vec<LoraSegment<'_>> {
        let mut all: Vec<LoraSegment<'_>> = Vec::new();
        let mut last = None;
        let mut row = 0;
        for slice in slices.iter().map(|p| &step.slices[*p as usize]) {
            let rows = row..row + count(&slice.slice);
            row = rows.end;
            if rows.is_empty() {
                continue; // prefill that has not reached the last token
            }
            let Some(adapter) = weight_set(&self.weights, slice.weights).adapter.as_deref() else { continue };
            match all.last_mut().filter(|_| last == Some(slice.weights)) {
                Some(lora) => lora.rows.end = rows.end,
                None => all.push(LoraSegment { rows, adapter }),
            }
            last = Some(slice.weights);
        }
        all
    }
}

fn weight_set(slots: &[Option<Arc<DeviceWeights>>], index: u32) -> &WeightSet {
    slots[index as usize].as_ref().expect("weights stay set while sequences use them").cpu()
}

/// Evaluates a query on one row of logits. Non-finite logits give a NaN log-probability.
pub(crate) fn evaluate_query(
    cpu: &Cpu,
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
            match sampling::sample(cpu.level(), logits, tokens, params, &mut rng, scratch) {
                Some(sampled) => {
                    let target = Target { token: sampled.token, allowed };
                    cpu.token_logprobs(logits, logits.len(), &[target], &mut logprob);
                    let (token, aux) = (sampled.token, sampled.logprob);
                    LogitResult { token, logprob: logprob[0].logprob, aux, ..Default::default() }
                }
                None => LogitResult { logprob: f32::NAN, aux: f32::NAN, ..Default::default() },
            }
        }
        LogitQuery::Score { token, allowed } => {
            cpu.token_logprobs(logits, logits.len(), &[Target { token, allowed }], &mut logprob);
            LogitResult { token, logprob: logprob[0].logprob, aux: logprob[0].entropy, ..Default::default() }
        }
    }
}

impl StepExecutor for CpuBackend {
    #[allow(unsafe_code)]
    fn execute(&mut self, step: &ScheduledStep, sequences: &SequenceTable, results: &mut [LogitResult]) -> Result<()> {
        self.kv_blocks.copy(&step.block_copies);
        self.check_block_writers(step);
        self.assign_tasks(step);
        let (this, mut write) = (&*self, |all: Vec<(usize, LogitResult)>| {
            for (index, result) in all {
                results[index] = result;
            }
        });
        let cpu = &this.shared.model.cpu;
        match &this.tasks[..] {
            [] => {}
            // SAFETY: the step was checked above, and no other task runs.
            [task] => write(unsafe { this.run_task(cpu, step, sequences, task.clone()) }),
            tasks => {
                let enough = tasks.len() >= rayon::current_num_threads();
                let cpu = if enough { cpu.single_threaded() } else { *cpu };
                // SAFETY: the step was checked above, and the tasks are disjoint ranges of `order`, whose slices differ.
                let run = |task: &Range<usize>| unsafe { this.run_task(&cpu, step, sequences, task.clone()) };
                let all: Vec<_> = tasks.par_iter().with_max_len(1).map(run).collect();
                all.into_iter().for_each(write);
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

/// Sets a slot, growing the vector if needed.
pub(super) fn set_slot<T>(slots: &mut Vec<Option<T>>, slot: u32, value: Option<T>) {
    let slot = slot as usize;
    if slots.len() <= slot {
        slots.resize_with(slot + 1, || None);
    }
    slots[slot] = value;
}
