//! Who goes next?
//!
//! Requests join and leave between any two tokens. Each step takes one token of every request that is writing, and as
//! many of those still being read as the budget allows, so that long prompts do not hold up answers. Pages that are
//! computed, or about to be, are in the tree for all to use; when room runs out, idle pages go first, then the youngest
//! request steps back and is taken up again later. Whatever happens, nobody's bits change.

use super::backend::{Backend, SequenceSlice, StepInputs};
use super::kv_cache::block_pool::BlockPool;
use super::kv_cache::prefix_tree::{NONE, PrefixTree};
use super::response::SamplerResponse;
use super::sequence::{LogitResult, Sequence, SequenceTable, SequenceTask};
use crate::cpu::BLOCK_SIZE;
use mage_engine::{Error, FinishReason, Renderer, Result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Starts shorter than this are computed rather than copied.
const MIN_COPY_TOKENS: usize = 2;
/// Starts being computed this much longer than one at hand are worth waiting a step for.
const MIN_WAIT_GAIN: usize = 4;
/// How often a request waits for a start that is not a whole page.
const MAX_PREFIX_WAITS: u32 = 2;
/// How many waiting requests are skipped over in a step before the others are left for the next.
const MAX_SKIPPED: usize = 512;

/// What bounds a step and the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) num_blocks: u32,
    /// Tokens read per step, besides one for each request that is writing.
    pub(crate) max_prefill_tokens: usize,
    pub(crate) max_running: usize,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerStats {
    /// Requests answered.
    pub finished: u64,
    /// Requests given up by those who asked.
    pub cancelled: u64,
    /// Steps taken.
    pub steps: u64,
    /// Tokens computed.
    pub computed_tokens: u64,
    /// Tokens of prompts and scored sequences that requests came with.
    pub prompt_tokens: u64,
    /// Of these, how many had been computed for another request; a token counts once, however often its request steps
    /// back and is read again.
    pub prefix_hit_tokens: u64,
    /// Pages of the cache given up for others.
    pub evicted_blocks: u64,
    /// How often a request had to step back for lack of room.
    pub preemptions: u64,
    /// Pages in the cache now.
    pub cached_blocks: u64,
    /// Pages there are.
    pub total_blocks: u64,
}

/// The scheduler.
pub(crate) struct Scheduler {
    pub(crate) sequences: SequenceTable,
    limits: Limits,
    pool: BlockPool,
    tree: PrefixTree,
    /// By number of the weights: the root of their tree.
    roots: Vec<u32>,
    /// Oldest first.
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    skipped: Vec<u32>,
    /// Those that are being read, in the order in which they may go on.
    prefilling: Vec<u32>,
    step: StepInputs,
    results: Vec<LogitResult>,
    now: u64,
    pub(crate) stats: SamplerStats,
    /// For stop texts.
    renderer: Option<Arc<Renderer>>,
    /// Whether computed pages are kept for others.
    prefix_caching: bool,
    spare_block_lists: Vec<Vec<u32>>,
}

enum Scheduled {
    Planned,
    /// Another request computes what this one needs, in this very step.
    Wait,
    OutOfBlocks,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, prefix_caching: bool, renderer: Option<Arc<Renderer>>) -> Self {
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
            step: StepInputs::default(),
            results: Vec::new(),
            now: 0,
            stats: SamplerStats { total_blocks: u64::from(limits.num_blocks), ..Default::default() },
            renderer,
            prefix_caching,
            spare_block_lists: Vec::new(),
        }
    }

    /// Makes room for a set of weights and gives its number.
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

    /// Forgets a set of weights that no request uses, and all that was computed with it.
    pub(crate) fn drop_weights(&mut self, weights: u32) {
        let root = std::mem::replace(&mut self.roots[weights as usize], NONE);
        let pool = &mut self.pool;
        self.tree.remove_root(root, |page| pool.free(page));
    }

    pub(crate) fn idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes a request in and gives it a number, or says why not.
    pub(crate) fn add_sequence(&mut self, mut request: Sequence) -> Result<u32> {
        if request.max_blocks() > self.pool.capacity() {
            let problem = format!(
                "its {} tokens (prompt and answer) are more than the {} the cache has room for; lower max_tokens or \
                 raise cache_mib",
                request.max_len,
                self.pool.capacity() * BLOCK_SIZE
            );
            return Err(Error::invalid("request", problem));
        }
        request.blocks = self.spare_block_lists.pop().unwrap_or_default();
        self.stats.prompt_tokens += request.num_prompt_tokens() as u64;
        let key = self.sequences.insert(request);
        self.waiting.push_back(key);
        Ok(key)
    }

    /// Drops a request whose asker has gone.
    pub(crate) fn cancel(&mut self, key: u32) {
        self.running.retain(|k| *k != key);
        self.waiting.retain(|k| *k != key);
        self.remove_sequence(key);
        self.stats.cancelled += 1;
    }

    /// Everything taken out after a device failed. The cache starts anew.
    pub(crate) fn abort_all(&mut self) -> impl Iterator<Item = Sequence> {
        let all = self.sequences.drain();
        self.running.clear();
        self.waiting.clear();
        self.tree = PrefixTree::default();
        self.pool = BlockPool::new(self.limits.num_blocks);
        self.roots.clear();
        all
    }

    /// One step: plans, executes, and gives finished requests to `done`, tokens of streams to their tickets.
    pub(crate) fn step(
        &mut self,
        device: &mut (impl Backend + ?Sized),
        mut done: impl FnMut(Sequence, Option<Error>),
    ) -> Result<()> {
        self.schedule();
        self.results.clear();
        self.results.resize(self.step.num_logits, LogitResult::default());
        device.execute(&self.step, &self.sequences, &mut self.results)?;
        self.process_outputs(&mut done);
        self.stats.steps += 1;
        self.stats.computed_tokens += self.step.tokens.len() as u64;
        self.stats.cached_blocks = self.tree.num_blocks() as u64;
        Ok(())
    }

    fn schedule(&mut self) {
        self.now += 1;
        self.step.clear();
        let crowded = !self.waiting.is_empty();
        let budget = if crowded { self.limits.max_prefill_tokens.div_ceil(2) } else { self.limits.max_prefill_tokens };
        let mut left = budget - self.assign_prefill_quotas(budget);
        let mut i = 0;
        while i < self.running.len() {
            let key = self.running[i];
            let a = self.sequences.at_mut(key);
            let decoding = num_uncomputed(a) == 1;
            let most = if decoding { 1 } else { std::mem::take(&mut a.prefill_quota) };
            if most > 0 {
                let before = self.step.tokens.len();
                match self.schedule_sequence(key, most) {
                    Scheduled::Planned => {
                        let planned = self.step.tokens.len() - before;
                        left += if decoding { 0 } else { most - planned };
                    }
                    Scheduled::Wait => left += if decoding { 0 } else { most },
                    Scheduled::OutOfBlocks => {
                        self.sequences.at_mut(key).prefill_quota = if decoding { 0 } else { most };
                        self.preempt_last();
                        continue; // the same one again, unless it was the youngest itself
                    }
                }
            }
            i += 1;
        }
        if crowded {
            left += self.limits.max_prefill_tokens - budget;
        }
        self.admit_waiting(left);
    }

    /// Says how many tokens each request that is being read may read in this step, and gives their sum. Whoever has
    /// waited longest goes first: where there is not enough for all, they take turns, so that a short prompt is not held
    /// up by long ones before it.
    fn assign_prefill_quotas(&mut self, budget: usize) -> usize {
        let Scheduler { sequences, running, prefilling, now, .. } = self;
        prefilling.clear();
        prefilling.extend(running.iter().copied().filter(|k| num_uncomputed(sequences.at(*k)) > 1));
        let share = (budget / prefilling.len().max(1)).max(BLOCK_SIZE);
        if prefilling.len() * share > budget {
            prefilling.sort_by_key(|k| sequences.at(*k).last_prefill_step); // stable: among equals the oldest first
        }
        let mut dealt = 0;
        for key in prefilling.iter() {
            let a = sequences.at_mut(*key);
            a.prefill_quota = share.min(num_uncomputed(a)).min(budget - dealt);
            dealt += a.prefill_quota;
            if a.prefill_quota > 0 {
                a.last_prefill_step = *now;
            }
        }
        dealt
    }

    /// Takes up waiting requests while budget and room last, first come, first served.
    fn admit_waiting(&mut self, mut left: usize) {
        while left > 0 && self.running.len() < self.limits.max_running && self.skipped.len() < MAX_SKIPPED {
            // Those who write need a page now and then: leave some.
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

    /// Plans up to `most` tokens of a request.
    fn schedule_sequence(&mut self, key: u32, most: usize) -> Scheduled {
        if let Some(wait) = self.reuse_prefix(key) {
            return wait;
        }
        let (goal, computed, have) = {
            let a = self.sequences.at(key);
            (a.num_tokens(), a.num_computed, a.blocks.len())
        };
        let mut n = most.min(goal - computed);
        for pages in have..(computed + n).div_ceil(BLOCK_SIZE) {
            match self.alloc_block() {
                Some(page) => self.sequences.at_mut(key).blocks.push(page),
                None if pages * BLOCK_SIZE > computed => {
                    n = pages * BLOCK_SIZE - computed; // as far as the pages reach
                    break;
                }
                None => return Scheduled::OutOfBlocks,
            }
        }
        let a = self.sequences.at_mut(key);
        let end = computed + n;
        let num_logits = end.saturating_sub(a.first_logit_position().max(computed));
        self.step.slices.push(SequenceSlice {
            sequence: key,
            weights: a.weights,
            first: self.step.tokens.len(),
            count: n,
            position: computed,
            block_table: self.step.block_tables.len(),
            num_logits,
            first_logit: self.step.num_logits,
        });
        self.step.num_logits += num_logits;
        self.step.tokens.extend_from_slice(&a.tokens[computed..end]);
        self.step.block_tables.extend_from_slice(&a.blocks[..end.div_ceil(BLOCK_SIZE)]);
        let settled = insert_full_blocks(&mut self.tree, &mut self.pool, a, end, self.now, self.prefix_caching, false);
        if settled
            && self.prefix_caching
            && end == a.prompt_len
            && end > a.num_full_blocks * BLOCK_SIZE
            && a.tail_node == NONE
        {
            // The prompt's last, unfinished page: members of a group can copy its start.
            let tokens = &a.tokens[a.num_full_blocks * BLOCK_SIZE..end];
            if let Ok(tail) = self.tree.insert(a.prefix_node, tokens, a.blocks[a.num_full_blocks], self.now) {
                a.tail_node = tail;
            }
        }
        Scheduled::Planned
    }

    /// Takes over what is in the tree already.
    fn reuse_prefix(&mut self, key: u32) -> Option<Scheduled> {
        let a = self.sequences.at_mut(key);
        let most = a.first_logit_position();
        if a.num_computed > most
            || a.num_computed != a.num_full_blocks * BLOCK_SIZE
            || a.blocks.len() != a.num_full_blocks
        {
            return None;
        }
        while a.num_computed + BLOCK_SIZE <= most {
            match self.tree.child(a.prefix_node, &a.tokens[a.num_computed..a.num_computed + BLOCK_SIZE]) {
                Some(child) if self.tree.is_ready(child, self.now) => {
                    self.tree.acquire(child);
                    self.tree.release(a.prefix_node);
                    a.prefix_node = child;
                    a.blocks.push(self.tree.block(child));
                    a.num_full_blocks += 1;
                    a.num_computed += BLOCK_SIZE;
                }
                Some(_) => return Some(Scheduled::Wait),
                None => break,
            }
        }
        let (best, ready) = self.tree.partial_matches(a.prefix_node, &a.tokens[a.num_computed..most], self.now);
        let at_hand = ready.map_or(0, |s| s.len);
        if best.is_some_and(|s| s.len >= at_hand + MIN_WAIT_GAIN) && a.prefix_waits < MAX_PREFIX_WAITS {
            a.prefix_waits += 1;
            return Some(Scheduled::Wait);
        }
        if let Some(start) = ready.filter(|s| s.len >= MIN_COPY_TOKENS) {
            self.tree.acquire(start.node);
            if let Some(page) = self.alloc_block() {
                self.step.block_copies.push((start.block, page));
                let a = self.sequences.at_mut(key);
                a.blocks.push(page);
                a.num_computed += start.len;
            }
            self.tree.release(start.node);
        }
        None
    }

    fn alloc_block(&mut self) -> Option<u32> {
        self.pool.alloc().or_else(|| {
            let page = self.tree.evict()?;
            self.stats.evicted_blocks += 1;
            Some(page)
        })
    }

    /// The youngest running request gives its pages back and waits again, first in line.
    fn preempt_last(&mut self) {
        if let Some(key) = self.running.pop() {
            self.free_blocks(key);
            self.waiting.push_front(key);
            self.stats.preemptions += 1;
        }
    }

    /// Gives up a request's hold on pages. What was computed stays in the tree as long as there is room.
    fn free_blocks(&mut self, key: u32) {
        let a = self.sequences.at_mut(key);
        if a.prefix_node == NONE {
            return;
        }
        let computed = a.num_computed;
        insert_full_blocks(&mut self.tree, &mut self.pool, a, computed, self.now, self.prefix_caching, true);
        if a.tail_node != NONE {
            self.tree.take(a.tail_node); // gives back the page that is `pages[full]`
            a.tail_node = NONE;
        }
        let mut rest = a.num_full_blocks;
        if self.prefix_caching && computed > a.num_full_blocks * BLOCK_SIZE {
            let tokens = &a.tokens[a.num_full_blocks * BLOCK_SIZE..computed.min((a.num_full_blocks + 1) * BLOCK_SIZE)];
            if let Ok(node) = self.tree.insert(a.prefix_node, tokens, a.blocks[a.num_full_blocks], self.now) {
                self.tree.release(node);
                rest += 1;
            }
        }
        for &page in &a.blocks[rest..] {
            self.pool.free(page);
        }
        self.tree.release(a.prefix_node);
        a.blocks.clear();
        (a.prefix_node, a.num_full_blocks, a.num_computed) = (NONE, 0, 0);
    }

    fn remove_sequence(&mut self, key: u32) -> Sequence {
        self.free_blocks(key);
        let mut a = self.sequences.remove(key);
        self.spare_block_lists.push(std::mem::take(&mut a.blocks));
        a
    }

    /// Takes the answers in and lets finished requests go.
    fn process_outputs(&mut self, done: &mut impl FnMut(Sequence, Option<Error>)) {
        let slices = std::mem::take(&mut self.step.slices);
        let mut any = false;
        for slice in &slices {
            let a = self.sequences.at_mut(slice.sequence);
            self.stats.prefix_hit_tokens += a.count_prefix_hits(slice.position, slice.count) as u64;
            a.num_computed += slice.count;
            let computed = a.num_computed;
            insert_full_blocks(&mut self.tree, &mut self.pool, a, computed, self.now, self.prefix_caching, true);
            let answers = &self.results[slice.first_logit..slice.first_logit + slice.num_logits];
            let end = apply_results(a, answers, self.renderer.as_deref());
            if end.is_some() {
                let a = self.remove_sequence(slice.sequence);
                self.stats.finished += 1;
                any = true;
                done(a, end.flatten());
            }
        }
        if any {
            self.running.retain(|k| self.sequences.get(*k).is_some());
        }
        self.step.slices = slices;
    }
}

/// Tokens of a request that are still to be computed.
fn num_uncomputed(a: &Sequence) -> usize {
    a.num_tokens() - a.num_computed
}

/// Puts a request's pages that are full at `end` into the tree. Where another has the same page there, that one is used
/// instead, but only `after` both are computed; says whether all are in.
fn insert_full_blocks(
    tree: &mut PrefixTree,
    pool: &mut BlockPool,
    a: &mut Sequence,
    end: usize,
    now: u64,
    prefix_caching: bool,
    after: bool,
) -> bool {
    if !prefix_caching {
        return false;
    }
    while (a.num_full_blocks + 1) * BLOCK_SIZE <= end {
        if a.tail_node != NONE {
            tree.take(a.tail_node);
            a.tail_node = NONE;
        }
        let tokens = &a.tokens[a.num_full_blocks * BLOCK_SIZE..(a.num_full_blocks + 1) * BLOCK_SIZE];
        match tree.insert(a.prefix_node, tokens, a.blocks[a.num_full_blocks], now) {
            Ok(node) => {
                tree.release(a.prefix_node);
                a.prefix_node = node;
            }
            Err(other) if after => {
                tree.acquire(other);
                tree.release(a.prefix_node);
                a.prefix_node = other;
                pool.free(std::mem::replace(&mut a.blocks[a.num_full_blocks], tree.block(other)));
            }
            Err(_) => return false,
        }
        a.num_full_blocks += 1;
    }
    true
}

/// Adds answers to a request. `Some` when it has ended, with an error where it failed.
fn apply_results(a: &mut Sequence, answers: &[LogitResult], renderer: Option<&Renderer>) -> Option<Option<Error>> {
    match &mut a.task {
        SequenceTask::Sample { params, cursor, sample } => {
            let answer = answers.first()?;
            if !answer.is_finite() {
                return Some(Some(non_finite_logits(&sample.weights.to_string())));
            }
            let token = answer.token;
            let complete = match cursor {
                Some(c) => {
                    // Where the device has walked, nothing is looked for a second time.
                    let possible = match answer.trie_node {
                        Some(node) => c.arrive(token, node),
                        None => c.advance(token),
                    };
                    if !possible {
                        return Some(Some(outside(token)));
                    }
                    c.complete()
                }
                None => false,
            };
            a.tokens.push(token);
            sample.tokens.push(token);
            sample.logprobs.push(answer.logprob);
            sample.drawn_logprobs.push(answer.second);
            a.response.push_token(token);
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
                Ok(false) => (a.tokens.len() >= a.max_len).then_some(None),
                Err(e) => Some(Some(e)),
            }
        }
        SequenceTask::Score { scores, .. } => {
            for answer in answers {
                if !answer.is_finite() {
                    return Some(Some(non_finite_logits(&scores.weights.to_string())));
                }
                scores.logprobs.push(answer.logprob);
                scores.entropies.push(answer.second);
            }
            (a.num_computed + 1 >= a.max_len).then_some(None)
        }
    }
}

pub(crate) fn non_finite_logits(weights: &str) -> Error {
    Error::invalid(
        format!("weights {weights}"),
        "their numbers are so large that logits are none (NaN or infinite); go back to an earlier checkpoint",
    )
}

fn outside(token: u32) -> Error {
    let reason = format!("token {token} was drawn where its action set does not have it");
    Error::Engine { engine: "native".to_owned(), reason }
}

/// Whether the newest token completes one of the texts.
pub(crate) fn ends_with_stop_text(renderer: Option<&Renderer>, texts: &[String], tokens: &[u32]) -> Result<bool> {
    let (Some(renderer), Some(longest)) = (renderer, texts.iter().map(String::len).max()) else { return Ok(false) };
    // A token has at least a byte: the text lies in the last few, with room for a character cut in two.
    let tail = &tokens[tokens.len().saturating_sub(longest + 8)..];
    let text = renderer.decode_all(tail)?;
    Ok(texts.iter().any(|s| text.contains(s)))
}

/// What a request that finished with an error answers.
pub(crate) fn response(
    a: Sequence,
    error: Option<Error>,
) -> (Arc<super::response::ResponseHandle>, Result<SamplerResponse>) {
    let (handle, response) = a.into_response();
    (handle, error.map_or(Ok(response), Err))
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
