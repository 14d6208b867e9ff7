//! How does the CPU execute a step?
//!
//! Sequences under the same weights, whatever their adapters, are dealt into tasks, each of which goes through all layers on one core, its numbers
//! staying in that core's cache. Where weights are too large to be read by every core, or there is work for one task
//! only, the cores share each product instead. Neither changes a bit.

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
    pages: <Cpu as Kernels>::Pages,
    /// By the scheduler's number; there while requests use them.
    weights: Vec<Option<Arc<DeviceWeights>>>,
    /// Which part writes a page in this step: (step, part).
    writers: Vec<(u64, u32)>,
    steps: u64,
    /// Numbers of parts, those under the same weights together, and among them those with the same adapter.
    order: Vec<u32>,
    tasks: Vec<Range<usize>>,
    /// As many as ever worked at once.
    spaces: Mutex<Vec<Space>>,
}

/// What a task needs, kept from one to the next.
struct Space {
    rows: Rows,
    step: PagedWorkspace<Cpu>,
    draws: SamplingScratch,
    /// For each row asked about: its request, its position, the number of its answer.
    asked: Vec<(u32, usize, usize)>,
}

impl CpuBackend {
    pub(crate) fn new(shared: Arc<Shared>, pages: u32) -> Self {
        let (config, kernels) = (&shared.model.config, &shared.model.kernels);
        CpuBackend {
            pages: kernels.pages(config.heads(), config.num_hidden_layers, pages as usize),
            weights: Vec::new(),
            writers: vec![(0, 0); pages as usize],
            steps: 0,
            order: Vec::new(),
            tasks: Vec::new(),
            spaces: Mutex::default(),
            shared,
        }
    }

    /// The memory of tasks side by side rests on this: each page has one writer, and no reader but that.
    fn check(&mut self, step: &StepInputs) {
        self.steps += 1;
        for (i, part) in step.parts.iter().enumerate() {
            let last = (part.position + part.count).div_ceil(BLOCK_SIZE);
            for &page in &step.tables[part.table + part.position / BLOCK_SIZE..part.table + last] {
                let writer = &mut self.writers[page as usize];
                assert!(writer.0 != self.steps, "two sequences would write page {page}");
                *writer = (self.steps, i as u32);
            }
        }
        for part in &step.parts {
            for &page in &step.tables[part.table..part.table + part.position / BLOCK_SIZE] {
                assert!(self.writers[page as usize].0 != self.steps, "page {page} would be read while it is written");
            }
        }
    }

    /// Deals the parts into tasks.
    fn deal(&mut self, step: &StepInputs) {
        let CpuBackend { shared, order, tasks, weights: sets, .. } = self;
        let model = &shared.model;
        // Which weights lie below does not change what a part computes, so an address will do to tell them apart.
        let base = |number: u32| Arc::as_ptr(&set(sets, number).base);
        order.clear();
        order.extend(0..step.parts.len() as u32);
        let weights = |i: &u32| step.parts[*i as usize].weights;
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
        for (i, part) in order.iter().enumerate() {
            let part = &step.parts[*part as usize];
            let other = i > first && base(weights(&order[first])) != base(part.weights);
            if i > first && (other || rows + part.count > per_task) {
                tasks.push(first..i);
                (first, rows) = (i, 0);
            }
            rows += part.count;
        }
        if first < order.len() {
            tasks.push(first..order.len());
        }
    }

    fn run(
        &self,
        k: &Cpu,
        step: &StepInputs,
        requests: &SequenceTable,
        task: Range<usize>,
    ) -> Vec<(usize, LogitResult)> {
        let free = self.spaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut space = free.unwrap_or_else(|| Space {
            rows: Rows::default(),
            step: PagedWorkspace::new(k),
            draws: SamplingScratch::default(),
            asked: Vec::new(),
        });
        let Space { rows, step: numbers, draws, asked } = &mut space;
        rows.clear();
        asked.clear();
        let parts = &self.order[task];
        for part in parts.iter().map(|p| &step.parts[*p as usize]) {
            let tokens = &step.tokens[part.first..part.first + part.count];
            rows.push(tokens, part.position, &step.tables[part.table..], part.table, part.asked);
            let first = part.position + part.count - part.asked;
            asked.extend((0..part.asked).map(|i| (part.request, first + i, part.answer + i)));
        }
        let mut answers = Vec::with_capacity(asked.len());
        let model = &self.shared.model;
        let vocabulary = model.config.vocab_size;
        let weights = &set(&self.weights, step.parts[parts[0] as usize].weights).base;
        let worn = self.worn(step, parts, |part| part.count);
        let asked_worn = self.worn(step, parts, |part| part.asked);
        let worn = (&worn[..], &asked_worn[..]);
        model.step(k, weights, worn, rows, &step.tables, &self.pages, numbers, |from, count, logits: &[f32]| {
            for ((request, position, number), logits) in
                asked[from..from + count].iter().zip(logits.chunks_exact(vocabulary))
            {
                answers.push((*number, answer(k, requests.at(*request).ask(*position), logits, draws)));
            }
        });
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).push(space);
        answers
    }

    /// Which rows of a task carry which adapter, where each part has as many rows as `count` says.
    fn worn(
        &self,
        step: &StepInputs,
        parts: &[u32],
        count: impl Fn(&SequenceSlice) -> usize,
    ) -> Vec<LoraSegment<'_, Cpu>> {
        let mut all: Vec<LoraSegment<'_, Cpu>> = Vec::new();
        let mut last = None;
        let mut row = 0;
        for part in parts.iter().map(|p| &step.parts[*p as usize]) {
            let rows = row..row + count(part);
            row = rows.end;
            if rows.is_empty() {
                continue; // read in pieces, and not at its end yet
            }
            let Some(adapter) = set(&self.weights, part.weights).adapter.as_deref() else { continue };
            match all.last_mut().filter(|_| last == Some(part.weights)) {
                Some(worn) => worn.rows.end = rows.end,
                None => all.push(LoraSegment { rows, adapter }),
            }
            last = Some(part.weights);
        }
        all
    }
}

fn set(sets: &[Option<Arc<DeviceWeights>>], number: u32) -> &WeightSet<Cpu> {
    sets[number as usize].as_ref().expect("weights stay while requests use them").cpu()
}

/// What a row of logits answers. What is not finite gives a log-probability that is not a number.
pub(crate) fn answer(k: &Cpu, ask: LogitQuery<'_>, logits: &[f32], draws: &mut SamplingScratch) -> LogitResult {
    let mut choice = [TokenLogprob::default()];
    match ask {
        LogitQuery::Draw { params, cursor, index } => {
            let mut rng = Seed::new(params.seed).child("sample").at(index as u64).rng();
            let allowed = cursor.and_then(ActionCursor::allowed);
            let tokens = allowed.map(|a| &a[..]);
            match sampling::draw(k.level(), logits, tokens, params, &mut rng, draws) {
                Some(drawn) => {
                    let target = Target { token: drawn.token, allowed };
                    k.distribution(logits, logits.len(), &[target], &mut choice);
                    LogitResult { token: drawn.token, logprob: choice[0].logprob, second: drawn.logprob, place: None }
                }
                None => LogitResult { token: 0, logprob: f32::NAN, second: f32::NAN, place: None },
            }
        }
        LogitQuery::Score { token, allowed } => {
            k.distribution(logits, logits.len(), &[Target { token, allowed }], &mut choice);
            LogitResult { token, logprob: choice[0].logprob, second: choice[0].entropy, place: None }
        }
    }
}

impl Backend for CpuBackend {
    fn execute(&mut self, step: &StepInputs, requests: &SequenceTable, answers: &mut [LogitResult]) -> Result<()> {
        let kernels = self.shared.model.kernels;
        kernels.copy_pages(&mut self.pages, &step.copies);
        self.check(step);
        self.deal(step);
        let (this, mut put) = (&*self, |all: Vec<(usize, LogitResult)>| {
            for (number, answer) in all {
                answers[number] = answer;
            }
        });
        match &this.tasks[..] {
            [] => {}
            [task] => put(this.run(&kernels, step, requests, task.clone())),
            tasks => {
                let enough = tasks.len() >= rayon::current_num_threads();
                let k = if enough { kernels.alone() } else { kernels };
                let run = |task: &Range<usize>| this.run(&k, step, requests, task.clone());
                let all: Vec<_> = tasks.par_iter().with_max_len(1).map(run).collect();
                all.into_iter().for_each(put);
            }
        }
        Ok(())
    }
}

impl ModelBackend for CpuBackend {
    fn hold(&mut self, number: u32, weights: Option<Arc<DeviceWeights>>) {
        put(&mut self.weights, number, weights);
    }

    fn hold_nothing(&mut self) {
        self.weights.clear();
    }
}

/// Puts weights at their number, making room for it.
pub(super) fn put<T>(all: &mut Vec<Option<T>>, number: u32, one: Option<T>) {
    let number = number as usize;
    if all.len() <= number {
        all.resize_with(number + 1, || None);
    }
    all[number] = one;
}
