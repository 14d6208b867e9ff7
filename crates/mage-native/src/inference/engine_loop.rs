//! The engine loop: a job on the sampler's own threads that steps the scheduler.
//!
//! The job runs while there is work and ends when there is none; the next request starts it again. Requests and cancellations
//! arrive in an inbox that is emptied once per step. Running sequences make progress without their callers, so capacity for
//! waiting requests always becomes free.

use super::admission::AdmissionQueue;
use super::backend::ModelBackend;
use super::backend::cpu::CpuBackend;
use super::backend::cuda::CudaBackend;
use super::response::{PendingResponse, ResponseHandle, SamplerResponse};
use super::scheduler::{self, SamplerStats, Scheduler, SchedulerLimits};
use super::sequence::Sequence;
use crate::engine::EngineContext;
use crate::machine::Machine;
use crate::weights::registry::DeviceWeights;
use mage_engine::model::BLOCK_SIZE;
use mage_engine::{Error, Result, SampleRequest, ScoreRequest, WeightsId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

/// Multiply-adds of prefill per step: a few milliseconds, so that decoding is not delayed for longer.
const PREFILL_WORK: usize = 1 << 28;

/// Default size of the KV cache in bytes, unless four whole contexts need more or the machine has less.
const DEFAULT_KV_CACHE_BYTES: usize = 256 << 20;
const MAX_BLOCKS: usize = 1 << 28;

/// Prefill tokens per step on a GPU, which needs many rows at once.
pub(crate) const GPU_PREFILL_TOKENS: usize = 8192;
/// A KV cache on a GPU holds at most this many whole contexts, however much memory there is.
const MAX_CACHED_CONTEXTS: usize = 2048;

/// Default number of admitted requests: as many as can run at once.
const DEFAULT_QUEUE: usize = MAX_RUNNING;
pub(crate) const MAX_RUNNING: usize = 1 << 14;

/// A request on its way to the scheduler.
pub(crate) struct Submission {
    kind: EngineRequest,
    id: WeightsId,
    weights: Arc<DeviceWeights>,
    handle: Arc<ResponseHandle>,
}

pub(crate) enum EngineRequest {
    Sample(SampleRequest),
    Score(ScoreRequest),
}

impl Submission {
    /// Number of tokens in the request.
    fn tokens(&self) -> usize {
        match &self.kind {
            EngineRequest::Sample(r) => r.prompt.len(),
            EngineRequest::Score(r) => r.tokens.len(),
        }
    }
}

struct Inbox {
    admission: AdmissionQueue,
    new: Vec<Submission>,
    cancelled: Vec<Arc<ResponseHandle>>,
    /// Whether the engine loop runs or is about to.
    running: bool,
}

/// The core of the sampler: inbox, scheduler, backend, threads.
pub(crate) struct EngineCore {
    inbox: Mutex<Inbox>,
    engine: Mutex<EngineState>,
    stats: Mutex<SamplerStats>,
    pool: rayon::ThreadPool,
    context: usize,
}

struct EngineState {
    scheduler: Scheduler,
    backend: Box<dyn ModelBackend>,
    /// Weights by slot.
    weight_slots: Vec<WeightSlot>,
    new: Vec<Submission>,
    cancelled: Vec<Arc<ResponseHandle>>,
    /// Responses that are not delivered yet.
    finished: Vec<(Arc<ResponseHandle>, Result<SamplerResponse>)>,
    /// Weight slots of sequences that have finished.
    released: Vec<u32>,
}

/// Weights that sequences use or used. Their cached blocks stay valid as long as the weights exist.
struct WeightSlot {
    weights: Weak<DeviceWeights>,
    requests: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EngineCore {
    pub(crate) fn new(shared: &Arc<EngineContext>) -> Result<Arc<Self>> {
        let (options, model) = (&shared.options, &shared.model);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("sampler-{i}"))
            .build()
            .map_err(|e| failed(format!("starting threads: {e}")))?;
        let heads = model.config.heads();
        let value_bytes = if shared.gpu.is_some() { 2 } else { 4 };
        let block_bytes = value_bytes * model.config.num_hidden_layers * 2 * heads.kv * heads.dim * BLOCK_SIZE;
        let context = model.config.max_position_embeddings;
        let max_prefill_tokens = match options.chunk_tokens {
            0 if shared.gpu.is_some() => GPU_PREFILL_TOKENS,
            0 => (PREFILL_WORK / model.layout.len).clamp(64, 8192),
            n => n,
        };
        let num_blocks = match (options.cache_mib, &shared.gpu) {
            // On a GPU the KV cache uses the remaining memory, up to a useful size.
            (0, Some(gpu)) => {
                let useful = MAX_CACHED_CONTEXTS * context.div_ceil(BLOCK_SIZE);
                (gpu.kv_cache_budget(max_prefill_tokens)? / block_bytes).min(useful)
            }
            (0, None) => {
                let free = Machine::free_memory().map_or(usize::MAX, |bytes| bytes as usize / 4);
                (DEFAULT_KV_CACHE_BYTES / block_bytes).max(4 * context.div_ceil(BLOCK_SIZE)).min(free / block_bytes)
            }
            (mib, _) => mib.saturating_mul(1 << 20) / block_bytes,
        };
        let num_blocks = num_blocks.clamp(1, MAX_BLOCKS) as u32;
        let limits = SchedulerLimits { num_blocks, max_prefill_tokens, max_running: MAX_RUNNING };
        let queue = if options.queue == 0 { DEFAULT_QUEUE } else { options.queue };
        Ok(Arc::new(EngineCore {
            inbox: Mutex::new(Inbox {
                admission: AdmissionQueue::new(queue),
                new: Vec::new(),
                cancelled: Vec::new(),
                running: false,
            }),
            engine: Mutex::new(EngineState {
                scheduler: Scheduler::new(limits, !options.no_prefix_cache, shared.renderer.clone()),
                backend: match &shared.gpu {
                    Some(gpu) => Box::new(CudaBackend::new(gpu, num_blocks, shared.options.batch_invariant)?),
                    None => Box::new(CpuBackend::new(Arc::clone(shared), num_blocks)),
                },
                weight_slots: Vec::new(),
                new: Vec::new(),
                cancelled: Vec::new(),
                finished: Vec::new(),
                released: Vec::new(),
            }),
            stats: Mutex::new(SamplerStats { total_blocks: u64::from(num_blocks), ..Default::default() }),
            pool,
            context,
        }))
    }

    /// Submits a checked request to the scheduler, or returns it in the future until it is admitted.
    pub(crate) fn submit(
        self: &Arc<Self>,
        kind: EngineRequest,
        id: WeightsId,
        weights: Arc<DeviceWeights>,
        streams: bool,
    ) -> PendingResponse {
        let handle = ResponseHandle::new(streams);
        let submission = Submission { kind, id, weights, handle: Arc::clone(&handle) };
        let unadmitted = self.try_admit(submission, &mut None, None);
        PendingResponse::new(Arc::clone(self), handle, unadmitted)
    }

    /// Admits a request if there is capacity. Otherwise returns it and wakes the waker when there may be. `position` is its
    /// position in the admission queue, set when it first waits with a waker.
    pub(crate) fn try_admit(
        self: &Arc<Self>,
        submission: Submission,
        position: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Option<Submission> {
        let mut inbox = locked(&self.inbox);
        if inbox.admission.try_admit(submission.tokens(), position, waker) {
            inbox.new.push(submission);
            self.wake(inbox);
            None
        } else {
            Some(submission)
        }
    }

    /// Removes a waiting request from the admission queue.
    pub(crate) fn withdraw(&self, position: u64) {
        locked(&self.inbox).admission.withdraw(position);
    }

    pub(crate) fn cancel(self: &Arc<Self>, handle: &Arc<ResponseHandle>) {
        let mut inbox = locked(&self.inbox);
        inbox.cancelled.push(Arc::clone(handle));
        self.wake(inbox);
    }

    fn wake(self: &Arc<Self>, mut inbox: MutexGuard<'_, Inbox>) {
        if !std::mem::replace(&mut inbox.running, true) {
            drop(inbox);
            let core = Arc::clone(self);
            self.pool.spawn(move || core.run());
        }
    }

    pub(crate) fn stats(&self) -> SamplerStats {
        *locked(&self.stats)
    }

    fn run(&self) {
        let mut engine = locked(&self.engine);
        let engine = &mut *engine;
        loop {
            let mut inbox = locked(&self.inbox);
            std::mem::swap(&mut inbox.new, &mut engine.new);
            std::mem::swap(&mut inbox.cancelled, &mut engine.cancelled);
            let idle = engine.new.is_empty() && engine.cancelled.is_empty() && engine.scheduler.idle();
            let new = engine.new.iter().map(Submission::tokens);
            let load = new.fold(engine.scheduler.sequences.load(), |(n, tokens), t| (n + 1, tokens + t));
            let woken = inbox.admission.update(load);
            inbox.running = !idle;
            drop(inbox);
            woken.into_iter().for_each(Waker::wake);
            if idle {
                return;
            }
            let step = catch_unwind(AssertUnwindSafe(|| engine.step(self.context)));
            let failure = match step {
                Ok(Ok(())) => None,
                Ok(Err(e)) => Some(e.to_string()),
                Err(panic) => Some(panic_message(panic.as_ref())),
            };
            // Statistics include a response before its caller receives it.
            *locked(&self.stats) = engine.scheduler.stats;
            for (handle, response) in engine.finished.drain(..) {
                handle.finish(response);
            }
            if let Some(reason) = failure {
                engine.fail(&reason);
            }
        }
    }
}

impl EngineState {
    /// Empties the inbox and executes one scheduler step.
    fn step(&mut self, context: usize) -> Result<()> {
        self.drop_stale_weights();
        let mut new = std::mem::take(&mut self.new);
        for s in new.drain(..) {
            self.add_request(s, context);
        }
        self.new = new;
        for handle in std::mem::take(&mut self.cancelled) {
            // The key may belong to another sequence by now.
            let key = handle
                .key()
                .filter(|k| self.scheduler.sequences.get(*k).is_some_and(|a| Arc::ptr_eq(&a.response, &handle)));
            if let Some(key) = key {
                let weights = self.scheduler.sequences.at(key).weights;
                self.scheduler.cancel(key);
                release(&mut self.weight_slots, &mut *self.backend, weights);
            }
        }
        if self.scheduler.idle() {
            return Ok(());
        }
        let EngineState { scheduler, backend, weight_slots, finished, released, .. } = self;
        let result = scheduler.step(&mut **backend, |sequence, error| {
            released.push(sequence.weights);
            finished.push(scheduler::response(sequence, error));
        });
        for weights in released.drain(..) {
            release(weight_slots, &mut **backend, weights);
        }
        result
    }

    fn add_request(&mut self, s: Submission, context: usize) {
        let Submission { kind, id, weights, handle } = s;
        let slot = self.weight_slot(&weights);
        let sequence = match kind {
            EngineRequest::Sample(r) => Sequence::sample(r, id, slot, context, Arc::clone(&handle)),
            EngineRequest::Score(r) => Sequence::score(r, id, slot, Arc::clone(&handle)),
        };
        match self.scheduler.add_sequence(sequence) {
            Ok(key) => {
                handle.set_key(key);
                self.weight_slots[slot as usize].requests += 1;
                self.backend.set_weights(slot, Some(weights));
            }
            Err(error) => handle.finish(Err(error)),
        }
    }

    /// The slot of a set of weights.
    fn weight_slot(&mut self, weights: &Arc<DeviceWeights>) -> u32 {
        let same = |h: &WeightSlot| std::ptr::eq(h.weights.as_ptr(), Arc::as_ptr(weights));
        if let Some(i) = self.weight_slots.iter().position(same) {
            return i as u32;
        }
        let slot = self.scheduler.add_weights();
        let entry = WeightSlot { weights: Arc::downgrade(weights), requests: 0 };
        match self.weight_slots.get_mut(slot as usize) {
            Some(free) => *free = entry,
            None => self.weight_slots.push(entry),
        }
        slot
    }

    /// Prefix cache invalidation: drops the cached KV blocks of weights that were replaced or removed.
    fn drop_stale_weights(&mut self) {
        for (i, h) in self.weight_slots.iter_mut().enumerate() {
            if h.requests == 0
                && !std::ptr::eq(h.weights.as_ptr(), Weak::new().as_ptr())
                && h.weights.strong_count() == 0
            {
                self.scheduler.drop_weights(i as u32);
                h.weights = Weak::new();
            }
        }
    }

    /// Fails every request with the reason and resets the engine.
    fn fail(&mut self, reason: &str) {
        let all: Vec<Sequence> = self.scheduler.abort_all().collect();
        self.weight_slots.clear();
        self.released.clear();
        self.backend.clear_weights();
        for sequence in all {
            sequence.response.finish(Err(failed(reason.to_owned())));
        }
    }
}

fn release(slots: &mut [WeightSlot], backend: &mut dyn ModelBackend, weights: u32) {
    let h = &mut slots[weights as usize];
    h.requests -= 1;
    if h.requests == 0 {
        backend.set_weights(weights, None);
    }
}

fn failed(reason: String) -> Error {
    Error::engine("native sampler", reason)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_else(|| "a panic".to_owned())
}

/// The scores of a request with no token to score.
pub(crate) fn no_scores(id: WeightsId) -> SamplerResponse {
    SamplerResponse::Scores(mage_engine::Scores { logprobs: Vec::new(), entropies: Vec::new(), weights: id })
}
