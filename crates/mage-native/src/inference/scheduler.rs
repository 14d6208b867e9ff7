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
/// How many waiting requests are passed over in a step before the others are left for the next.
const MAX_SKIPPED: usize = 512;

/// What bounds a step and the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) pages: u32,
    /// Tokens read per step, besides one for each request that is writing.
    pub(crate) reading: usize,
    pub(crate) running: usize,
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
    pub(crate) requests: SequenceTable,
    limits: Limits,
    pool: BlockPool,
    tree: PrefixTree,
    /// By number of the weights: the root of their tree.
    roots: Vec<u32>,
    /// Oldest first.
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    passed: Vec<u32>,
    /// Those that are being read, in the order in which they may go on.
    readers: Vec<u32>,
    step: StepInputs,
    answers: Vec<LogitResult>,
    now: u64,
    pub(crate) stats: SamplerStats,
    /// For stop texts.
    renderer: Option<Arc<Renderer>>,
    /// Whether computed pages are kept for others.
    sharing: bool,
    spare_lists: Vec<Vec<u32>>,
}

enum Plan {
    Planned,
    /// Another request computes what this one needs, in this very step.
    Wait,
    NoRoom,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, sharing: bool, renderer: Option<Arc<Renderer>>) -> Self {
        Scheduler {
            requests: SequenceTable::default(),
            pool: BlockPool::new(limits.pages),
            limits,
            tree: PrefixTree::default(),
            roots: Vec::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            passed: Vec::new(),
            readers: Vec::new(),
            step: StepInputs::default(),
            answers: Vec::new(),
            now: 0,
            stats: SamplerStats { total_blocks: u64::from(limits.pages), ..Default::default() },
            renderer,
            sharing,
            spare_lists: Vec::new(),
        }
    }

    /// Makes room for a set of weights and gives its number.
    pub(crate) fn add_weights(&mut self) -> u32 {
        let root = self.tree.root();
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
        self.tree.remove_root(root, |page| pool.give(page));
    }

    pub(crate) fn idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes a request in and gives it a number, or says why not.
    pub(crate) fn submit(&mut self, mut request: Sequence) -> Result<u32> {
        if request.max_blocks() > self.pool.capacity() {
            let problem = format!(
                "its {} tokens (prompt and answer) are more than the {} the cache has room for; lower max_tokens or \
                 raise cache_mib",
                request.most,
                self.pool.capacity() * BLOCK_SIZE
            );
            return Err(Error::invalid("request", problem));
        }
        request.pages = self.spare_lists.pop().unwrap_or_default();
        self.stats.prompt_tokens += request.num_prompt_tokens() as u64;
        let key = self.requests.insert(request);
        self.waiting.push_back(key);
        Ok(key)
    }

    /// Drops a request whose asker has gone.
    pub(crate) fn cancel(&mut self, key: u32) {
        self.running.retain(|k| *k != key);
        self.waiting.retain(|k| *k != key);
        self.retire(key);
        self.stats.cancelled += 1;
    }

    /// Everything taken out after a device failed. The cache starts anew.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Sequence> {
        let all = self.requests.drain();
        self.running.clear();
        self.waiting.clear();
        self.tree = PrefixTree::default();
        self.pool = BlockPool::new(self.limits.pages);
        self.roots.clear();
        all
    }

    /// One step: plans, executes, and gives finished requests to `done`, tokens of streams to their tickets.
    pub(crate) fn step(
        &mut self,
        device: &mut (impl Backend + ?Sized),
        mut done: impl FnMut(Sequence, Option<Error>),
    ) -> Result<()> {
        self.plan();
        self.answers.clear();
        self.answers.resize(self.step.answers, LogitResult::default());
        device.execute(&self.step, &self.requests, &mut self.answers)?;
        self.commit(&mut done);
        self.stats.steps += 1;
        self.stats.computed_tokens += self.step.tokens.len() as u64;
        self.stats.cached_blocks = self.tree.pages() as u64;
        Ok(())
    }

    fn plan(&mut self) {
        self.now += 1;
        self.step.clear();
        let crowded = !self.waiting.is_empty();
        let budget = if crowded { self.limits.reading.div_ceil(2) } else { self.limits.reading };
        let mut left = budget - self.assign_prefill_quotas(budget);
        let mut i = 0;
        while i < self.running.len() {
            let key = self.running[i];
            let a = self.requests.at_mut(key);
            let writing = unread(a) == 1;
            let most = if writing { 1 } else { std::mem::take(&mut a.quota) };
            if most > 0 {
                let before = self.step.tokens.len();
                match self.schedule_sequence(key, most) {
                    Plan::Planned => {
                        let planned = self.step.tokens.len() - before;
                        left += if writing { 0 } else { most - planned };
                    }
                    Plan::Wait => left += if writing { 0 } else { most },
                    Plan::NoRoom => {
                        self.requests.at_mut(key).quota = if writing { 0 } else { most };
                        self.preempt_last();
                        continue; // the same one again, unless it was the youngest itself
                    }
                }
            }
            i += 1;
        }
        if crowded {
            left += self.limits.reading - budget;
        }
        self.admit(left);
    }

    /// Says how many tokens each request that is being read may read in this step, and gives their sum. Whoever has
    /// waited longest goes first: where there is not enough for all, they take turns, so that a short prompt is not held
    /// up by long ones before it.
    fn assign_prefill_quotas(&mut self, budget: usize) -> usize {
        let Scheduler { requests, running, readers, now, .. } = self;
        readers.clear();
        readers.extend(running.iter().copied().filter(|k| unread(requests.at(*k)) > 1));
        let share = (budget / readers.len().max(1)).max(BLOCK_SIZE);
        if readers.len() * share > budget {
            readers.sort_by_key(|k| requests.at(*k).read_at); // stable: among equals the oldest first
        }
        let mut dealt = 0;
        for key in readers.iter() {
            let a = requests.at_mut(*key);
            a.quota = share.min(unread(a)).min(budget - dealt);
            dealt += a.quota;
            if a.quota > 0 {
                a.read_at = *now;
            }
        }
        dealt
    }

    /// Takes up waiting requests while budget and room last, first come, first served.
    fn admit(&mut self, mut left: usize) {
        while left > 0 && self.running.len() < self.limits.running && self.passed.len() < MAX_SKIPPED {
            // Those who write need a page now and then: leave some.
            let reserve = self.running.len() / 8;
            if !self.running.is_empty() && self.pool.free() + self.tree.spare() <= reserve {
                break;
            }
            let Some(key) = self.waiting.pop_front() else { break };
            let root = self.roots[self.requests.at(key).weights as usize];
            self.tree.hold(root);
            self.requests.at_mut(key).node = root;
            let before = self.step.tokens.len();
            match self.schedule_sequence(key, left) {
                Plan::Planned => {
                    self.requests.at_mut(key).read_at = self.now;
                    left -= (self.step.tokens.len() - before).min(left);
                    self.running.push(key);
                }
                Plan::Wait => {
                    self.let_go(key);
                    self.passed.push(key);
                }
                Plan::NoRoom => {
                    self.let_go(key);
                    self.waiting.push_front(key);
                    break;
                }
            }
        }
        while let Some(key) = self.passed.pop() {
            self.waiting.push_front(key);
        }
    }

    /// Plans up to `most` tokens of a request.
    fn schedule_sequence(&mut self, key: u32, most: usize) -> Plan {
        if let Some(wait) = self.share(key) {
            return wait;
        }
        let (goal, computed, have) = {
            let a = self.requests.at(key);
            (a.goal(), a.computed, a.pages.len())
        };
        let mut n = most.min(goal - computed);
        for pages in have..(computed + n).div_ceil(BLOCK_SIZE) {
            match self.new_page() {
                Some(page) => self.requests.at_mut(key).pages.push(page),
                None if pages * BLOCK_SIZE > computed => {
                    n = pages * BLOCK_SIZE - computed; // as far as the pages reach
                    break;
                }
                None => return Plan::NoRoom,
            }
        }
        let a = self.requests.at_mut(key);
        let end = computed + n;
        let asked = end.saturating_sub(a.first_logit_position().max(computed));
        self.step.parts.push(SequenceSlice {
            request: key,
            weights: a.weights,
            first: self.step.tokens.len(),
            count: n,
            position: computed,
            table: self.step.tables.len(),
            asked,
            answer: self.step.answers,
        });
        self.step.answers += asked;
        self.step.tokens.extend_from_slice(&a.tokens[computed..end]);
        self.step.tables.extend_from_slice(&a.pages[..end.div_ceil(BLOCK_SIZE)]);
        let settled = register(&mut self.tree, &mut self.pool, a, end, self.now, self.sharing, false);
        if settled && self.sharing && end == a.prompt && end > a.full * BLOCK_SIZE && a.tail == NONE {
            // The prompt's last, unfinished page: members of a group can copy its start.
            let tokens = &a.tokens[a.full * BLOCK_SIZE..end];
            if let Ok(tail) = self.tree.insert(a.node, tokens, a.pages[a.full], self.now) {
                a.tail = tail;
            }
        }
        Plan::Planned
    }

    /// Takes over what is in the tree already.
    fn share(&mut self, key: u32) -> Option<Plan> {
        let a = self.requests.at_mut(key);
        let most = a.first_logit_position();
        if a.computed > most || a.computed != a.full * BLOCK_SIZE || a.pages.len() != a.full {
            return None;
        }
        while a.computed + BLOCK_SIZE <= most {
            match self.tree.child(a.node, &a.tokens[a.computed..a.computed + BLOCK_SIZE]) {
                Some(child) if self.tree.ready(child, self.now) => {
                    self.tree.hold(child);
                    self.tree.release(a.node);
                    a.node = child;
                    a.pages.push(self.tree.page(child));
                    a.full += 1;
                    a.computed += BLOCK_SIZE;
                }
                Some(_) => return Some(Plan::Wait),
                None => break,
            }
        }
        let (best, ready) = self.tree.starts(a.node, &a.tokens[a.computed..most], self.now);
        let at_hand = ready.map_or(0, |s| s.len);
        if best.is_some_and(|s| s.len >= at_hand + MIN_WAIT_GAIN) && a.waited < MAX_PREFIX_WAITS {
            a.waited += 1;
            return Some(Plan::Wait);
        }
        if let Some(start) = ready.filter(|s| s.len >= MIN_COPY_TOKENS) {
            self.tree.hold(start.node);
            if let Some(page) = self.new_page() {
                self.step.copies.push((start.page, page));
                let a = self.requests.at_mut(key);
                a.pages.push(page);
                a.computed += start.len;
            }
            self.tree.release(start.node);
        }
        None
    }

    fn new_page(&mut self) -> Option<u32> {
        self.pool.take().or_else(|| {
            let page = self.tree.evict()?;
            self.stats.evicted_blocks += 1;
            Some(page)
        })
    }

    /// The youngest running request gives its pages back and waits again, first in line.
    fn preempt_last(&mut self) {
        if let Some(key) = self.running.pop() {
            self.let_go(key);
            self.waiting.push_front(key);
            self.stats.preemptions += 1;
        }
    }

    /// Gives up a request's hold on pages. What was computed stays in the tree as long as there is room.
    fn let_go(&mut self, key: u32) {
        let a = self.requests.at_mut(key);
        if a.node == NONE {
            return;
        }
        let computed = a.computed;
        register(&mut self.tree, &mut self.pool, a, computed, self.now, self.sharing, true);
        if a.tail != NONE {
            self.tree.take(a.tail); // gives back the page that is `pages[full]`
            a.tail = NONE;
        }
        let mut rest = a.full;
        if self.sharing && computed > a.full * BLOCK_SIZE {
            let tokens = &a.tokens[a.full * BLOCK_SIZE..computed.min((a.full + 1) * BLOCK_SIZE)];
            if let Ok(node) = self.tree.insert(a.node, tokens, a.pages[a.full], self.now) {
                self.tree.release(node);
                rest += 1;
            }
        }
        for &page in &a.pages[rest..] {
            self.pool.give(page);
        }
        self.tree.release(a.node);
        a.pages.clear();
        (a.node, a.full, a.computed) = (NONE, 0, 0);
    }

    fn retire(&mut self, key: u32) -> Sequence {
        self.let_go(key);
        let mut a = self.requests.remove(key);
        self.spare_lists.push(std::mem::take(&mut a.pages));
        a
    }

    /// Takes the answers in and lets finished requests go.
    fn commit(&mut self, done: &mut impl FnMut(Sequence, Option<Error>)) {
        let parts = std::mem::take(&mut self.step.parts);
        let mut any = false;
        for part in &parts {
            let a = self.requests.at_mut(part.request);
            self.stats.prefix_hit_tokens += a.count_prefix_hits(part.position, part.count) as u64;
            a.computed += part.count;
            let computed = a.computed;
            register(&mut self.tree, &mut self.pool, a, computed, self.now, self.sharing, true);
            let answers = &self.answers[part.answer..part.answer + part.asked];
            let end = apply_results(a, answers, self.renderer.as_deref());
            if end.is_some() {
                let a = self.retire(part.request);
                self.stats.finished += 1;
                any = true;
                done(a, end.flatten());
            }
        }
        if any {
            self.running.retain(|k| self.requests.get(*k).is_some());
        }
        self.step.parts = parts;
    }
}

/// Tokens of a request that are still to be computed.
fn unread(a: &Sequence) -> usize {
    a.goal() - a.computed
}

/// Puts a request's pages that are full at `end` into the tree. Where another has the same page there, that one is used
/// instead, but only `after` both are computed; says whether all are in.
fn register(
    tree: &mut PrefixTree,
    pool: &mut BlockPool,
    a: &mut Sequence,
    end: usize,
    now: u64,
    sharing: bool,
    after: bool,
) -> bool {
    if !sharing {
        return false;
    }
    while (a.full + 1) * BLOCK_SIZE <= end {
        if a.tail != NONE {
            tree.take(a.tail);
            a.tail = NONE;
        }
        let tokens = &a.tokens[a.full * BLOCK_SIZE..(a.full + 1) * BLOCK_SIZE];
        match tree.insert(a.node, tokens, a.pages[a.full], now) {
            Ok(node) => {
                tree.release(a.node);
                a.node = node;
            }
            Err(other) if after => {
                tree.hold(other);
                tree.release(a.node);
                a.node = other;
                pool.give(std::mem::replace(&mut a.pages[a.full], tree.page(other)));
            }
            Err(_) => return false,
        }
        a.full += 1;
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
                    let possible = match answer.place {
                        Some(place) => c.arrive(token, place),
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
            a.ticket.tell(token);
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
                Ok(false) => (a.tokens.len() >= a.most).then_some(None),
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
            (a.computed + 1 >= a.most).then_some(None)
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
pub(crate) fn outcome(
    a: Sequence,
    error: Option<Error>,
) -> (Arc<super::response::ResponseHandle>, Result<SamplerResponse>) {
    let (ticket, outcome) = a.outcome();
    (ticket, error.map_or(Ok(outcome), Err))
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
