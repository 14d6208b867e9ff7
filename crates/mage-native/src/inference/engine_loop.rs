//! Who turns the wheel?
//!
//! A job on the sampler's own threads takes steps while there is work and ends when there is none; the next request starts
//! it again. Requests and cancellations reach it through an inbox that it empties once a step. What is under way needs
//! nobody to get on, so room for those who wait at the door always comes.

use super::admission::AdmissionQueue;
use super::backend::ModelBackend;
use super::backend::cpu::CpuBackend;
use super::backend::cuda::CudaBackend;
use super::response::{PendingResponse, ResponseHandle, SamplerResponse};
use super::scheduler::{self, Limits, SamplerStats, Scheduler};
use super::sequence::Sequence;
use crate::cpu::BLOCK_SIZE;
use crate::engine::Shared;
use crate::machine::Machine;
use crate::weights::registry::DeviceWeights;
use mage_engine::{Error, Result, SampleRequest, ScoreRequest, WeightsId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

/// Multiply-adds of reading per step: some milliseconds, so that writing is not held up for longer.
const PREFILL_WORK: usize = 1 << 28;

/// Memory for keys and values in bytes, where four whole contexts do not need more and the machine has it.
const DEFAULT_KV_CACHE_BYTES: usize = 256 << 20;
const MAX_BLOCKS: usize = 1 << 28;

/// Tokens read per step on a card, which wants many rows at once.
pub(crate) const GPU_PREFILL_TOKENS: usize = 8192;
/// A cache on a card holds no more than this many whole contexts, however much memory there is.
const MAX_CACHED_CONTEXTS: usize = 2048;

/// Requests taken in at once, where nobody says otherwise: as many as ever run at once.
const DEFAULT_QUEUE: usize = MAX_RUNNING;
pub(crate) const MAX_RUNNING: usize = 1 << 14;

/// A request on its way to the scheduler.
pub(crate) struct Submission {
    what: Request,
    id: WeightsId,
    weights: Arc<DeviceWeights>,
    ticket: Arc<ResponseHandle>,
}

pub(crate) enum Request {
    Sample(SampleRequest),
    Score(ScoreRequest),
}

impl Submission {
    /// The tokens it comes with.
    fn tokens(&self) -> usize {
        match &self.what {
            Request::Sample(r) => r.prompt.len(),
            Request::Score(r) => r.tokens.len(),
        }
    }
}

struct Inbox {
    door: AdmissionQueue,
    new: Vec<Submission>,
    cancelled: Vec<Arc<ResponseHandle>>,
    /// Whether a job is at work, or about to be.
    driving: bool,
}

/// The sampler's inside: inbox, scheduler, device, threads.
pub(crate) struct EngineCore {
    inbox: Mutex<Inbox>,
    engine: Mutex<Engine>,
    stats: Mutex<SamplerStats>,
    pool: rayon::ThreadPool,
    context: usize,
}

struct Engine {
    scheduler: Scheduler,
    device: Box<dyn ModelBackend>,
    /// By the scheduler's number.
    held: Vec<Held>,
    new: Vec<Submission>,
    cancelled: Vec<Arc<ResponseHandle>>,
    /// Answers on their way out.
    ended: Vec<(Arc<ResponseHandle>, Result<SamplerResponse>)>,
    /// The weights of requests that have ended.
    freed: Vec<u32>,
}

/// Weights that requests use, or used: what was computed with them is good as long as they are published.
struct Held {
    weights: Weak<DeviceWeights>,
    requests: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EngineCore {
    pub(crate) fn new(shared: &Arc<Shared>) -> Result<Arc<Self>> {
        let (options, model) = (&shared.options, &shared.model);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("sampler-{i}"))
            .build()
            .map_err(|e| failed(format!("starting threads: {e}")))?;
        let heads = model.config.heads();
        let number_bytes = if shared.card.is_some() { 2 } else { 4 };
        let page_bytes = number_bytes * model.config.num_hidden_layers * 2 * heads.kv * heads.dim * BLOCK_SIZE;
        let context = model.config.max_position_embeddings;
        let reading = match options.chunk_tokens {
            0 if shared.card.is_some() => GPU_PREFILL_TOKENS,
            0 => (PREFILL_WORK / model.layout.len).clamp(64, 8192),
            n => n,
        };
        let pages = match (options.cache_mib, &shared.card) {
            // On a card the cache takes what is left, as far as it can be of use.
            (0, Some(card)) => {
                let of_use = MAX_CACHED_CONTEXTS * context.div_ceil(BLOCK_SIZE);
                (card.kv_cache_budget(reading)? / page_bytes).min(of_use)
            }
            (0, None) => {
                let free = Machine::free_memory().map_or(usize::MAX, |bytes| bytes as usize / 4);
                (DEFAULT_KV_CACHE_BYTES / page_bytes).max(4 * context.div_ceil(BLOCK_SIZE)).min(free / page_bytes)
            }
            (mib, _) => mib.saturating_mul(1 << 20) / page_bytes,
        };
        let pages = pages.clamp(1, MAX_BLOCKS) as u32;
        let limits = Limits { pages, reading, running: MAX_RUNNING };
        let queue = if options.queue == 0 { DEFAULT_QUEUE } else { options.queue };
        Ok(Arc::new(EngineCore {
            inbox: Mutex::new(Inbox {
                door: AdmissionQueue::new(queue),
                new: Vec::new(),
                cancelled: Vec::new(),
                driving: false,
            }),
            engine: Mutex::new(Engine {
                scheduler: Scheduler::new(limits, !options.no_prefix_cache, shared.renderer.clone()),
                device: match &shared.card {
                    Some(card) => Box::new(CudaBackend::new(card, pages, shared.options.batch_invariant)?),
                    None => Box::new(CpuBackend::new(Arc::clone(shared), pages)),
                },
                held: Vec::new(),
                new: Vec::new(),
                cancelled: Vec::new(),
                ended: Vec::new(),
                freed: Vec::new(),
            }),
            stats: Mutex::new(SamplerStats { total_blocks: u64::from(pages), ..Default::default() }),
            pool,
            context,
        }))
    }

    /// Hands a checked request to the scheduler, or keeps it at the door until there is room.
    pub(crate) fn submit(
        self: &Arc<Self>,
        what: Request,
        id: WeightsId,
        weights: Arc<DeviceWeights>,
        streams: bool,
    ) -> PendingResponse {
        let ticket = ResponseHandle::new(streams);
        let submission = Submission { what, id, weights, ticket: Arc::clone(&ticket) };
        let outside = self.enter(submission, &mut None, None);
        PendingResponse::new(Arc::clone(self), ticket, outside)
    }

    /// Takes a request in if there is room, else gives it back, and calls the waker when there may be. `place` is where it
    /// stands at the door, from the first time that it is left there with a waker.
    pub(crate) fn enter(
        self: &Arc<Self>,
        submission: Submission,
        place: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Option<Submission> {
        let mut inbox = locked(&self.inbox);
        if inbox.door.enter(submission.tokens(), place, waker) {
            inbox.new.push(submission);
            self.wake(inbox);
            None
        } else {
            Some(submission)
        }
    }

    /// Gives up a place at the door.
    pub(crate) fn leave(&self, place: u64) {
        locked(&self.inbox).door.leave(place);
    }

    pub(crate) fn cancel(self: &Arc<Self>, ticket: &Arc<ResponseHandle>) {
        let mut inbox = locked(&self.inbox);
        inbox.cancelled.push(Arc::clone(ticket));
        self.wake(inbox);
    }

    fn wake(self: &Arc<Self>, mut inbox: MutexGuard<'_, Inbox>) {
        if !std::mem::replace(&mut inbox.driving, true) {
            drop(inbox);
            let core = Arc::clone(self);
            self.pool.spawn(move || core.drive());
        }
    }

    pub(crate) fn stats(&self) -> SamplerStats {
        *locked(&self.stats)
    }

    fn drive(&self) {
        let mut engine = locked(&self.engine);
        let engine = &mut *engine;
        loop {
            let mut inbox = locked(&self.inbox);
            std::mem::swap(&mut inbox.new, &mut engine.new);
            std::mem::swap(&mut inbox.cancelled, &mut engine.cancelled);
            let idle = engine.new.is_empty() && engine.cancelled.is_empty() && engine.scheduler.idle();
            let new = engine.new.iter().map(Submission::tokens);
            let inside = new.fold(engine.scheduler.requests.inside(), |(n, tokens), t| (n + 1, tokens + t));
            let called = inbox.door.make_room(inside);
            inbox.driving = !idle;
            drop(inbox);
            called.into_iter().for_each(Waker::wake);
            if idle {
                return;
            }
            let step = catch_unwind(AssertUnwindSafe(|| engine.turn(self.context)));
            let failure = match step {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(e.to_string()),
                Err(panic) => Some(message(panic.as_ref())),
            };
            // Whoever gets an answer finds it counted.
            *locked(&self.stats) = engine.scheduler.stats;
            for (ticket, outcome) in engine.ended.drain(..) {
                ticket.finish(outcome);
            }
            if let Some(reason) = failure {
                engine.fail(&reason);
            }
        }
    }
}

impl Engine {
    /// Empties the inbox and takes a step.
    fn turn(&mut self, context: usize) -> Result<()> {
        self.drop_stale_weights();
        let mut new = std::mem::take(&mut self.new);
        for s in new.drain(..) {
            self.accept(s, context);
        }
        self.new = new;
        for ticket in std::mem::take(&mut self.cancelled) {
            // Its number may be another's by now.
            let key = ticket
                .key()
                .filter(|k| self.scheduler.requests.get(*k).is_some_and(|a| Arc::ptr_eq(&a.ticket, &ticket)));
            if let Some(key) = key {
                let weights = self.scheduler.requests.at(key).weights;
                self.scheduler.cancel(key);
                release(&mut self.held, &mut *self.device, weights);
            }
        }
        if self.scheduler.idle() {
            return Ok(());
        }
        let Engine { scheduler, device, held, ended, freed, .. } = self;
        let result = scheduler.step(&mut **device, |active, error| {
            freed.push(active.weights);
            ended.push(scheduler::outcome(active, error));
        });
        for weights in freed.drain(..) {
            release(held, &mut **device, weights);
        }
        result
    }

    fn accept(&mut self, s: Submission, context: usize) {
        let Submission { what, id, weights, ticket } = s;
        let number = self.number(&weights);
        let active = match what {
            Request::Sample(r) => Sequence::sample(r, id, number, context, Arc::clone(&ticket)),
            Request::Score(r) => Sequence::score(r, id, number, Arc::clone(&ticket)),
        };
        match self.scheduler.submit(active) {
            Ok(key) => {
                ticket.set_key(key);
                self.held[number as usize].requests += 1;
                self.device.hold(number, Some(weights));
            }
            Err(error) => ticket.finish(Err(error)),
        }
    }

    /// The scheduler's number for a set of weights.
    fn number(&mut self, weights: &Arc<DeviceWeights>) -> u32 {
        let same = |h: &Held| std::ptr::eq(h.weights.as_ptr(), Arc::as_ptr(weights));
        if let Some(i) = self.held.iter().position(same) {
            return i as u32;
        }
        let number = self.scheduler.add_weights();
        let held = Held { weights: Arc::downgrade(weights), requests: 0 };
        match self.held.get_mut(number as usize) {
            Some(place) => *place = held,
            None => self.held.push(held),
        }
        number
    }

    /// What was computed with weights that are no longer there is of no use.
    fn drop_stale_weights(&mut self) {
        for (i, h) in self.held.iter_mut().enumerate() {
            if h.requests == 0
                && !std::ptr::eq(h.weights.as_ptr(), Weak::new().as_ptr())
                && h.weights.strong_count() == 0
            {
                self.scheduler.drop_weights(i as u32);
                h.weights = Weak::new();
            }
        }
    }

    /// Answers every request with the reason and starts anew.
    fn fail(&mut self, reason: &str) {
        let all: Vec<Sequence> = self.scheduler.abandon().collect();
        self.held.clear();
        self.freed.clear();
        self.device.hold_nothing();
        for active in all {
            active.ticket.finish(Err(failed(reason.to_owned())));
        }
    }
}

fn release(held: &mut [Held], device: &mut dyn ModelBackend, weights: u32) {
    let h = &mut held[weights as usize];
    h.requests -= 1;
    if h.requests == 0 {
        device.hold(weights, None);
    }
}

fn failed(reason: String) -> Error {
    Error::Engine { engine: "native sampler".to_owned(), reason }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

/// Scores of a request that asks for none.
pub(crate) fn no_scores(id: WeightsId) -> SamplerResponse {
    SamplerResponse::Scores(mage_engine::Scores { logprobs: Vec::new(), entropies: Vec::new(), weights: id })
}
