//! How does an answer get back to whoever asked?
//!
//! Asker and scheduler share a ticket: one lock when the answer is ready, none per token unless the asker wants to see
//! them as they come. Dropping the asker's end gives the request up. Where the sampler has no room, the asker's end keeps
//! the request and hands it in when it is called.

use super::engine_loop::{EngineCore, Submission};
use mage_engine::{Error, Result, Sample, Scores};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// A finished answer.
pub(crate) enum SamplerResponse {
    Sample(Sample),
    Scores(Scores),
}

#[derive(Default)]
struct State {
    outcome: Option<Result<SamplerResponse>>,
    waker: Option<Waker>,
    fresh: VecDeque<u32>,
}

/// What asker and scheduler share.
pub(crate) struct ResponseHandle {
    state: Mutex<State>,
    /// The request's number with the scheduler, once it has one.
    key: AtomicU32,
    streams: bool,
}

const NO_KEY: u32 = u32::MAX;

impl ResponseHandle {
    pub(crate) fn new(streams: bool) -> Arc<Self> {
        Arc::new(ResponseHandle { state: Mutex::default(), key: AtomicU32::new(NO_KEY), streams })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> Option<u32> {
        Some(self.key.load(Ordering::Relaxed)).filter(|k| *k != NO_KEY)
    }

    /// A new token, for those who want to see it.
    pub(crate) fn tell(&self, token: u32) {
        if self.streams {
            let mut state = self.state();
            state.fresh.push_back(token);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    pub(crate) fn finish(&self, outcome: Result<SamplerResponse>) {
        let mut state = self.state();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// An answer to come.
pub(crate) struct PendingResponse {
    core: Arc<EngineCore>,
    ticket: Arc<ResponseHandle>,
    /// The request, until there is room for it.
    outside: Option<Submission>,
    /// Where it stands at the door.
    place: Option<u64>,
    done: bool,
}

impl PendingResponse {
    pub(crate) fn new(core: Arc<EngineCore>, ticket: Arc<ResponseHandle>, outside: Option<Submission>) -> Self {
        PendingResponse { core, ticket, outside, place: None, done: false }
    }

    /// Hands the request in, if that has not been done.
    fn poll_enter(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(request) = self.outside.take() {
            self.outside = self.core.enter(request, &mut self.place, Some(context.waker()));
        }
        if self.outside.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// The next token, or `None` when the answer is complete.
    fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<u32>> {
        ready!(self.poll_enter(context));
        let mut state = self.ticket.state();
        match state.fresh.pop_front() {
            Some(token) => Poll::Ready(Some(token)),
            None if state.outcome.is_some() => Poll::Ready(None),
            None => {
                keep(&mut state.waker, context);
                Poll::Pending
            }
        }
    }
}

fn keep(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

impl Future for PendingResponse {
    type Output = Result<SamplerResponse>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_enter(context));
        let mut state = self.ticket.state();
        match state.outcome.take() {
            Some(outcome) => {
                drop(state);
                self.done = true;
                Poll::Ready(outcome)
            }
            None => {
                keep(&mut state.waker, context);
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if let (Some(_), Some(place)) = (&self.outside, self.place) {
            self.core.leave(place);
        }
        if !self.done && self.outside.is_none() {
            self.core.cancel(&self.ticket);
        }
    }
}

/// An answer that can be read while it is written. Dropping it gives the request up.
pub struct TokenStream(PendingResponse);

impl TokenStream {
    pub(crate) fn new(pending: PendingResponse) -> Self {
        TokenStream(pending)
    }

    /// The next token; `None` at the end, or where the request failed.
    pub async fn next(&mut self) -> Option<u32> {
        std::future::poll_fn(|context| self.0.poll_token(context)).await
    }

    /// The whole answer, once it is complete.
    pub async fn finish(self) -> Result<Sample> {
        self.0.await.and_then(sample)
    }
}

pub(crate) fn sample(outcome: SamplerResponse) -> Result<Sample> {
    match outcome {
        SamplerResponse::Sample(s) => Ok(s),
        SamplerResponse::Scores(_) => Err(mixed_up()),
    }
}

pub(crate) fn scores(outcome: SamplerResponse) -> Result<Scores> {
    match outcome {
        SamplerResponse::Scores(s) => Ok(s),
        SamplerResponse::Sample(_) => Err(mixed_up()),
    }
}

fn mixed_up() -> Error {
    Error::Engine { engine: "native".to_owned(), reason: "an answer of another kind than was asked for".to_owned() }
}
