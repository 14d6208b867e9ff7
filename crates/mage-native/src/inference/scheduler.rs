//! The scheduler: continuous batching with chunked prefill, prefix caching and preemption.
//!
//! Sequences join and leave between steps. Each step decodes one token of every running sequence whose prompt is computed,
//! and prefills the others up to a token budget, so that long prompts do not delay decoding. Full blocks enter the prefix
//! tree when they are scheduled and can be shared from the next step on. When blocks run out, unreferenced blocks are evicted
//! in LRU order; then the newest running sequence is preempted and recomputed later. None of this changes a result.

use super::backend::{ScheduledSlice, ScheduledStep, StepExecutor};
use super::kv_cache::block_pool::BlockPool;
use super::kv_cache::prefix_tree::{NONE, PrefixTree};
use super::response::SamplerResponse;
use super::sequence::{Sequence, SequenceTable, SequenceTask};
use mage_engine::model::{BLOCK_SIZE, LogitResult, SequenceSlice};
use mage_engine::{Error, FinishReason, Renderer, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Partial block matches shorter than this are computed rather than copied.
const MIN_COPY_TOKENS: usize = 2;
/// A partial match that is still being computed is worth a step of waiting if it is longer than the ready one by this many
/// tokens.
const MIN_WAIT_GAIN: usize = 4;
/// How often a sequence waits for a partial match.
const MAX_PREFIX_WAITS: u32 = 2;
/// How many waiting sequences may be skipped in one step.
const MAX_SKIPPED: usize = 512;

/// Limits of a step and of the KV cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchedulerLimits {
    pub(crate) num_blocks: u32,
    /// Prefill tokens per step, in addition to one token per decoding sequence.
    pub(crate) max_prefill_tokens: usize,
    pub(crate) max_running: usize,
}

/// Counters of the inference engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerStats {
    /// Requests completed.
    pub finished: u64,
    /// Requests cancelled by the caller.
    pub cancelled: u64,
    /// Steps executed.
    pub steps: u64,
    /// Tokens computed.
    pub computed_tokens: u64,
    /// Tokens of prompts and scored sequences.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache. A token counts once, however often its sequence is preempted.
    pub prefix_hit_tokens: u64,
    /// Cached blocks evicted.
    pub evicted_blocks: u64,
    /// Preemptions for lack of KV-cache blocks.
    pub preemptions: u64,
    /// Blocks in the prefix tree now.
    pub cached_blocks: u64,
    /// Blocks in the KV cache.
    pub total_blocks: u64,
}

/// The scheduler.
pub(crate) struct Scheduler {
    pub(crate) sequences: SequenceTable,
    limits: SchedulerLimits,
    pool: BlockPool,
    tree: PrefixTree,
    /// Root of the prefix tree by weight slot.
    roots: Vec<u32>,
    /// Running sequences, oldest first.
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    skipped: Vec<u32>,
    /// Running sequences still in prefill, in scheduling order.
    prefilling: Vec<u32>,
    step: ScheduledStep,
    results: Vec<LogitResult>,
    now: u64,
    pub(crate) stats: SamplerStats,
    /// Decodes tokens to find stop texts.
    renderer: Option<Arc<Renderer>>,
    /// Whether computed blocks are shared.
    prefix_caching: bool,
    spare_block_lists: Vec<Vec<u32>>,
}

enum Scheduled {
    Planned,
    /// Another sequence computes the needed prefix in this step.
    Wait,
    OutOfBlocks,
}

impl Scheduler {
    pub(crate) fn new(limits: SchedulerLimits, prefix_caching: bool, renderer: Option<Arc<Renderer>>) -> Self {
        Scheduler {
            sequences: SequenceTable::default(),
            pool: BlockPool::new(limits.num_blocks),
            limits,
            tree: PrefixTree::default(),
            roots: Vec::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            skipped: Vec::new(),
            prefilling: Vec::new(),
            step: ScheduledStep::default(),
            results: Vec::new(),
            now: 0,
            stats: SamplerStats { total_blocks: u64::from(limits.num_blocks), ..Default::default() },
            renderer,
            prefix_caching,
            spare_block_lists: Vec::new(),
        }
    }

    /// Adds a weight slot and returns its index.
    pub(crate) fn add_weights(&mut self) -> u32 {
        let root = self.tree.add_root();
        match self.roots.iter().position(|r| *r == NONE) {
            Some(i) => {
                self.roots[i] = root;
                i as u32
            }
            None => {
                self.roots.push(root);
                self.roots.len() as u32 - 1
            }
        }
    }

    /// Removes a weight slot that no sequence uses, with its cached blocks.
    pub(crate) fn drop_weights(&mut self, weights: u32) {
        let root = std::mem::replace(&mut self.roots[weights as usize], NONE);
        let pool = &mut self.pool;
        self.tree.remove_root(root, |block| pool.free(block));
    }

    pub(crate) fn idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Adds a sequence to the waiting queue and returns its key. Fails if the KV cache can never hold it.
    pub(crate) fn add_sequence(&mut self, mut sequence: Sequence) -> Result<u32> {
        if sequence.max_blocks() > self.pool.capacity() {
            let problem = format!(
                "its {} tokens (prompt and response) exceed the {} tokens of the KV cache; lower max_tokens or raise cache_mib",
                sequence.max_len,
                self.pool.capacity() * BLOCK_SIZE
            );
            return Err(Error::invalid("request", problem));
        }
        sequence.blocks = self.spare_block_lists.pop().unwrap_or_default();
        self.stats.prompt_tokens += sequence.num_prompt_tokens() as u64;
        let key = self.sequences.insert(sequence);
        self.waiting.push_back(key);
        Ok(key)
    }

    /// Removes a sequence whose caller is gone.
    pub(crate) fn cancel(&mut self, key: u32) {
        self.running.retain(|k| *k != key);
        self.waiting.retain(|k| *k != key);
        self.remove_sequence(key);
        self.stats.cancelled += 1;
    }

    /// Removes all sequences after a backend failure and clears the KV cache.
    pub(crate) fn abort_all(&mut self) -> impl Iterator<Item = Sequence> {
        let all = self.sequences.drain();
        self.running.clear();
        self.waiting.clear();
        self.tree = PrefixTree::default();
        self.pool = BlockPool::new(self.limits.num_blocks);
        self.roots.clear();
        all
    }

    /// Executes one step: schedule, execute, process outputs. Finished sequences are passed to `done`; streamed tokens go to
    /// their response handles.
    pub(crate) fn step(
        &mut self,
        backend: &mut (impl StepExecutor + ?Sized),
        mut done: impl FnMut(Sequence, Option<Error>),
    ) -> Result<()> {
        self.schedule();
        self.results.clear();
        self.results.resize(self.step.num_logits, LogitResult::default());
        backend.execute(&self.step, &self.sequences, &mut self.results)?;
        self.process_outputs(&mut done);
        self.stats.steps += 1;
        self.stats.computed_tokens += self.step.tokens.len() as u64;
        self.stats.cached_blocks = self.tree.num_blocks() as u64;
        Ok(())
    }

    fn schedule(&mut self) {
        self.now += 1;
        self.step.clear();
        let has_waiting = !self.waiting.is_empty();
        let budget =
            if has_waiting { self.limits.max_prefill_tokens.div_ceil(2) } else { self.limits.max_prefill_tokens };
        let mut left = budget - self.assign_prefill_quotas(budget);
        let mut i = 0;
        while i < self.running.len() {
            let key = self.running[i];
            let seq = self.sequences.at_mut(key);
            let decoding = num_uncomputed(seq) == 1;
            let max_tokens = if decoding { 1 } else { std::mem::take(&mut seq.prefill_quota) };
            if max_tokens > 0 {
                let before = self.step.tokens.len();
                match self.schedule_sequence(key, max_tokens) {
                    Scheduled::Planned => {
                        let planned = self.step.tokens.len() - before;
                        left += if decoding { 0 } else { max_tokens - planned };
                    }
                    Scheduled::Wait => left += if decoding { 0 } else { max_tokens },
                    Scheduled::OutOfBlocks => {
                        self.sequences.at_mut(key).prefill_quota = if decoding { 0 } else { max_tokens };
                        self.preempt_last();
                        continue; // retry the same sequence, unless it was the one preempted
                    }
                }
            }
            i += 1;
        }
        if has_waiting {
            left += self.limits.max_prefill_tokens - budget;
        }
        self.admit_waiting(left);
    }

    /// Assigns each sequence in prefill its tokens for this step and returns their sum. The budget is divided evenly, at least
    /// one block per sequence. If it does not suffice for all, sequences alternate, the least recently prefilled first, so
    /// that long prompts do not delay a short one behind them.
    fn assign_prefill_quotas(&mut self, budget: usize) -> usize {
        let Scheduler { sequences, running, prefilling, now, .. } = self;
        prefilling.clear();
        prefilling.extend(running.iter().copied().filter(|k| num_uncomputed(sequences.at(*k)) > 1));
        let per_sequence = (budget / prefilling.len().max(1)).max(BLOCK_SIZE);
        if prefilling.len() * per_sequence > budget {
            prefilling.sort_by_key(|k| sequences.at(*k).last_prefill_step); // stable sort: ties go to the oldest
        }
        let mut assigned = 0;
        for key in prefilling.iter() {
            let seq = sequences.at_mut(*key);
            seq.prefill_quota = per_sequence.min(num_uncomputed(seq)).min(budget - assigned);
            assigned += seq.prefill_quota;
            if seq.prefill_quota > 0 {
                seq.last_prefill_step = *now;
            }
        }
        assigned
    }

    /// Starts waiting sequences in FIFO order while budget and blocks last.
    fn admit_waiting(&mut self, mut left: usize) {
        while left > 0 && self.running.len() < self.limits.max_running && self.skipped.len() < MAX_SKIPPED {
            // Decoding sequences need new blocks now and then.
            let reserve = self.running.len() / 8;
            if !self.running.is_empty() && self.pool.num_free() + self.tree.num_evictable() <= reserve {
                break;
            }
            let Some(key) = self.waiting.pop_front() else { break };
            let root = self.roots[self.sequences.at(key).weights as usize];
            self.tree.acquire(root);
            self.sequences.at_mut(key).prefix_node = root;
            let before = self.step.tokens.len();
            match self.schedule_sequence(key, left) {
                Scheduled::Planned => {
                    self.sequences.at_mut(key).last_prefill_step = self.now;
                    left -= (self.step.tokens.len() - before).min(left);
                    self.running.push(key);
                }
                Scheduled::Wait => {
                    self.free_blocks(key);
                    self.skipped.push(key);
                }
                Scheduled::OutOfBlocks => {
                    self.free_blocks(key);
                    self.waiting.push_front(key);
                    break;
                }
            }
        }
        while let Some(key) = self.skipped.pop() {
            self.waiting.push_front(key);
        }
    }

    /// Schedules up to `max_tokens` tokens of a sequence.
    fn schedule_sequence(&mut self, key: u32, max_tokens: usize) -> Scheduled {
        if let Some(wait) = self.reuse_prefix(key) {
            return wait;
        }
        let (num_tokens, computed, num_blocks_held) = {
            let seq = self.sequences.at(key);
            (seq.num_tokens(), seq.num_computed, seq.blocks.len())
        };
        let mut n = max_tokens.min(num_tokens - computed);
        for num_blocks in num_blocks_held..(computed + n).div_ceil(BLOCK_SIZE) {
            match self.alloc_block() {
                Some(block) => self.sequences.at_mut(key).blocks.push(block),
                None if num_blocks * BLOCK_SIZE > computed => {
                    n = num_blocks * BLOCK_SIZE - computed; // as far as the allocated blocks reach
                    break;
                }
                None => return Scheduled::OutOfBlocks,
            }
        }
        let seq = self.sequences.at_mut(key);
        let end = computed + n;
        let num_logits = end.saturating_sub(seq.first_logit_position().max(computed));
        let slice = SequenceSlice {
            token_offset: self.step.tokens.len(),
            num_tokens: n,
            start_position: computed,
            block_table_offset: self.step.block_tables.len(),
            num_logits,
        };
        let (weights, logit_offset) = (seq.weights, self.step.num_logits);
        self.step.slices.push(ScheduledSlice { sequence: key, weights, logit_offset, slice });
        self.step.num_logits += num_logits;
        self.step.tokens.extend_from_slice(&seq.tokens[computed..end]);
        self.step.block_tables.extend_from_slice(&seq.blocks[..end.div_ceil(BLOCK_SIZE)]);
        let inserted =
            insert_full_blocks(&mut self.tree, &mut self.pool, seq, end, self.now, self.prefix_caching, false);
        if inserted
            && self.prefix_caching
            && end == seq.prompt_len
            && end > seq.num_full_blocks * BLOCK_SIZE
            && seq.tail_node == NONE
        {
            // The last, partly filled block of the prompt: other samples of the same prompt can copy its start.
            let tokens = &seq.tokens[seq.num_full_blocks * BLOCK_SIZE..end];
            if let Ok(tail) = self.tree.insert(seq.prefix_node, tokens, seq.blocks[seq.num_full_blocks], self.now) {
                seq.tail_node = tail;
            }
        }
        Scheduled::Planned
    }

    /// Extends a sequence by cached blocks: shares full ones and copies the start of a partial match.
    fn reuse_prefix(&mut self, key: u32) -> Option<Scheduled> {
        let seq = self.sequences.at_mut(key);
        let max_tokens = seq.first_logit_position();
        if seq.num_computed > max_tokens
            || seq.num_computed != seq.num_full_blocks * BLOCK_SIZE
            || seq.blocks.len() != seq.num_full_blocks
        {
            return None;
        }
        while seq.num_computed + BLOCK_SIZE <= max_tokens {
            match self.tree.child(seq.prefix_node, &seq.tokens[seq.num_computed..seq.num_computed + BLOCK_SIZE]) {
                Some(child) if self.tree.is_ready(child, self.now) => {
                    self.tree.acquire(child);
                    self.tree.release(seq.prefix_node);
                    seq.prefix_node = child;
                    seq.blocks.push(self.tree.block(child));
                    seq.num_full_blocks += 1;
                    seq.num_computed += BLOCK_SIZE;
                }
                Some(_) => return Some(Scheduled::Wait),
                None => break,
            }
        }
        let (best, ready) =
            self.tree.partial_matches(seq.prefix_node, &seq.tokens[seq.num_computed..max_tokens], self.now);
        let ready_len = ready.map_or(0, |s| s.len);
        if best.is_some_and(|s| s.len >= ready_len + MIN_WAIT_GAIN) && seq.prefix_waits < MAX_PREFIX_WAITS {
            seq.prefix_waits += 1;
            return Some(Scheduled::Wait);
        }
        if let Some(start) = ready.filter(|s| s.len >= MIN_COPY_TOKENS) {
            self.tree.acquire(start.node);
            if let Some(block) = self.alloc_block() {
                self.step.block_copies.push((start.block, block));
                let seq = self.sequences.at_mut(key);
                seq.blocks.push(block);
                seq.num_computed += start.len;
            }
            self.tree.release(start.node);
        }
        None
    }

    fn alloc_block(&mut self) -> Option<u32> {
        self.pool.alloc().or_else(|| {
            let block = self.tree.evict()?;
            self.stats.evicted_blocks += 1;
            Some(block)
        })
    }

    /// Preempts the newest running sequence: frees its blocks and puts it at the front of the waiting queue.
    fn preempt_last(&mut self) {
        if let Some(key) = self.running.pop() {
            self.free_blocks(key);
            self.waiting.push_front(key);
            self.stats.preemptions += 1;
        }
    }

    /// Releases a sequence's blocks. Computed blocks stay in the prefix tree until they are evicted.
    fn free_blocks(&mut self, key: u32) {
        let seq = self.sequences.at_mut(key);
        if seq.prefix_node == NONE {
            return;
        }
        let computed = seq.num_computed;
        insert_full_blocks(&mut self.tree, &mut self.pool, seq, computed, self.now, self.prefix_caching, true);
        if seq.tail_node != NONE {
            self.tree.take(seq.tail_node); // returns `blocks[num_full_blocks]` to the sequence
            seq.tail_node = NONE;
        }
        let mut rest = seq.num_full_blocks;
        if self.prefix_caching && computed > seq.num_full_blocks * BLOCK_SIZE {
            let tokens =
                &seq.tokens[seq.num_full_blocks * BLOCK_SIZE..computed.min((seq.num_full_blocks + 1) * BLOCK_SIZE)];
            if let Ok(node) = self.tree.insert(seq.prefix_node, tokens, seq.blocks[seq.num_full_blocks], self.now) {
                self.tree.release(node);
                rest += 1;
            }
        }
        for &block in &seq.blocks[rest..] {
            self.pool.free(block);
        }
        self.tree.release(seq.prefix_node);
        seq.blocks.clear();
        (seq.prefix_node, seq.num_full_blocks, seq.num_computed) = (NONE, 0, 0);
    }

    fn remove_sequence(&mut self, key: u32) -> Sequence {
        self.free_blocks(key);
        let mut seq = self.sequences.remove(key);
        self.spare_block_lists.push(std::mem::take(&mut seq.blocks));
        seq
    }

    /// Applies the results of a step and removes finished sequences.
    fn process_outputs(&mut self, done: &mut impl FnMut(Sequence, Option<Error>)) {
        let slices = std::mem::take(&mut self.step.slices);
        let mut any_finished = false;
        for &ScheduledSlice { sequence, logit_offset, slice, .. } in &slices {
            let seq = self.sequences.at_mut(sequence);
            self.stats.prefix_hit_tokens += seq.count_prefix_hits(slice.start_position, slice.num_tokens) as u64;
            seq.num_computed += slice.num_tokens;
            let computed = seq.num_computed;
            insert_full_blocks(&mut self.tree, &mut self.pool, seq, computed, self.now, self.prefix_caching, true);
            let results = &self.results[logit_offset..logit_offset + slice.num_logits];
            let end = apply_results(seq, results, self.renderer.as_deref());
            if end.is_some() {
                let seq = self.remove_sequence(sequence);
                self.stats.finished += 1;
                any_finished = true;
                done(seq, end.flatten());
            }
        }
        if any_finished {
            self.running.retain(|k| self.sequences.get(*k).is_some());
        }
        self.step.slices = slices;
    }
}

/// Number of tokens of a sequence not computed yet.
fn num_uncomputed(seq: &Sequence) -> usize {
    seq.num_tokens() - seq.num_computed
}

/// Inserts the blocks that are full at `end` into the prefix tree and returns whether all are in. If the tree already has a
/// block with the same tokens, the sequence switches to it, but only with `replace_duplicates`, when both are computed.
fn insert_full_blocks(
    tree: &mut PrefixTree,
    pool: &mut BlockPool,
    seq: &mut Sequence,
    end: usize,
    now: u64,
    prefix_caching: bool,
    replace_duplicates: bool,
) -> bool {
    if !prefix_caching {
        return false;
    }
    while (seq.num_full_blocks + 1) * BLOCK_SIZE <= end {
        if seq.tail_node != NONE {
            tree.take(seq.tail_node);
            seq.tail_node = NONE;
        }
        let tokens = &seq.tokens[seq.num_full_blocks * BLOCK_SIZE..(seq.num_full_blocks + 1) * BLOCK_SIZE];
        match tree.insert(seq.prefix_node, tokens, seq.blocks[seq.num_full_blocks], now) {
            Ok(node) => {
                tree.release(seq.prefix_node);
                seq.prefix_node = node;
            }
            Err(other) if replace_duplicates => {
                tree.acquire(other);
                tree.release(seq.prefix_node);
                seq.prefix_node = other;
                pool.free(std::mem::replace(&mut seq.blocks[seq.num_full_blocks], tree.block(other)));
            }
            Err(_) => return false,
        }
        seq.num_full_blocks += 1;
    }
    true
}

/// Applies results to a sequence. Returns `Some` when it has finished, with an error if it failed.
fn apply_results(seq: &mut Sequence, results: &[LogitResult], renderer: Option<&Renderer>) -> Option<Option<Error>> {
    match &mut seq.task {
        SequenceTask::Sample { params, cursor, sample } => {
            let result = results.first()?;
            if !result.is_finite() {
                return Some(Some(non_finite_logits(&sample.weights.to_string())));
            }
            let token = result.token;
            let complete = match cursor {
                Some(c) => {
                    // The backend may have advanced in the trie already.
                    let allowed = match result.next_node() {
                        Some(node) => c.advance_to(token, node),
                        None => c.advance(token),
                    };
                    if !allowed {
                        return Some(Some(token_not_allowed(token)));
                    }
                    c.complete()
                }
                None => false,
            };
            seq.tokens.push(token);
            sample.tokens.push(token);
            sample.logprobs.push(result.logprob);
            sample.processed_logprobs.push(result.aux);
            seq.response.push_token(token);
            let stopped = complete || params.stop_ids.contains(&token);
            let stopped = match stopped {
                true => Ok(true),
                false => ends_with_stop_text(renderer, &params.stop_texts, &sample.tokens),
            };
            match stopped {
                Ok(true) => {
                    sample.finish = FinishReason::Stop;
                    Some(None)
                }
                Ok(false) => (seq.tokens.len() >= seq.max_len).then_some(None),
                Err(e) => Some(Some(e)),
            }
        }
        SequenceTask::Score { scores, .. } => {
            for result in results {
                if !result.is_finite() {
                    return Some(Some(non_finite_logits(&scores.weights.to_string())));
                }
                scores.logprobs.push(result.logprob);
                scores.entropies.push(result.aux);
            }
            (seq.num_computed + 1 >= seq.max_len).then_some(None)
        }
    }
}

pub(crate) fn non_finite_logits(weights: &str) -> Error {
    Error::invalid(
        format!("weights {weights}"),
        "they produce non-finite logits (NaN or infinity); restore an earlier checkpoint",
    )
}

fn token_not_allowed(token: u32) -> Error {
    let reason = format!("token {token} was sampled, but the action set does not allow it");
    Error::engine("native", reason)
}

/// Whether the last token completes one of the stop texts.
pub(crate) fn ends_with_stop_text(renderer: Option<&Renderer>, texts: &[String], tokens: &[u32]) -> Result<bool> {
    let (Some(renderer), Some(longest)) = (renderer, texts.iter().map(String::len).max()) else { return Ok(false) };
    // A token has at least one byte, so these tokens contain the text; the margin covers a character split across tokens.
    let tail = &tokens[tokens.len().saturating_sub(longest + 8)..];
    let text = renderer.decode_all(tail)?;
    Ok(texts.iter().any(|s| text.contains(s)))
}

/// The response of a finished sequence.
pub(crate) fn response(
    seq: Sequence,
    error: Option<Error>,
) -> (Arc<super::response::ResponseHandle>, Result<SamplerResponse>) {
    let (handle, response) = seq.into_response();
    (handle, error.map_or(Ok(response), Err))
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
