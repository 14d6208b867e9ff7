//! Delivery of results: the handle shared by caller and scheduler, the future of a response, and the token stream.
//!
//! Delivery takes one lock when a response is complete, and none per token unless the caller streams. Dropping the caller's
//! end cancels the request. A request that is not admitted yet stays in the caller's future, which submits it when woken.

use super::engine_loop::{EngineCore, Submission};
use mage_engine::{Error, Result, Sample, Scores};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

/// A completed response.
pub(crate) enum SamplerResponse {
    Sample(Sample),
    Scores(Scores),
}

#[derive(Default)]
struct ResponseState {
    response: Option<Result<SamplerResponse>>,
    waker: Option<Waker>,
    new_tokens: VecDeque<u32>,
}

/// The state shared by caller and scheduler.
pub(crate) struct ResponseHandle {
    state: Mutex<ResponseState>,
    /// The sequence's key in the scheduler, once it has one.
    key: AtomicU32,
    streams: bool,
}

const NO_KEY: u32 = u32::MAX;

impl ResponseHandle {
    pub(crate) fn new(streams: bool) -> Arc<Self> {
        Arc::new(ResponseHandle { state: Mutex::default(), key: AtomicU32::new(NO_KEY), streams })
    }

    fn state(&self) -> MutexGuard<'_, ResponseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(crate) fn key(&self) -> Option<u32> {
        Some(self.key.load(Ordering::Relaxed)).filter(|k| *k != NO_KEY)
    }

    /// Delivers a new token to a streaming caller.
    pub(crate) fn push_token(&self, token: u32) {
        if self.streams {
            let mut state = self.state();
            state.new_tokens.push_back(token);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    pub(crate) fn finish(&self, response: Result<SamplerResponse>) {
        let mut state = self.state();
        state.response = Some(response);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The future of a response.
pub(crate) struct PendingResponse {
    core: Arc<EngineCore>,
    handle: Arc<ResponseHandle>,
    /// The request, until it is admitted.
    unadmitted: Option<Submission>,
    /// Its position in the admission queue.
    position: Option<u64>,
    done: bool,
}

impl PendingResponse {
    pub(crate) fn new(core: Arc<EngineCore>, handle: Arc<ResponseHandle>, unadmitted: Option<Submission>) -> Self {
        PendingResponse { core, handle, unadmitted, position: None, done: false }
    }

    /// Submits the request if it is not admitted yet.
    fn poll_admit(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(request) = self.unadmitted.take() {
            self.unadmitted = self.core.try_admit(request, &mut self.position, Some(context.waker()));
        }
        if self.unadmitted.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// The next token, or `None` when the response is complete.
    fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<u32>> {
        ready!(self.poll_admit(context));
        let mut state = self.handle.state();
        match state.new_tokens.pop_front() {
            Some(token) => Poll::Ready(Some(token)),
            None if state.response.is_some() => Poll::Ready(None),
            None => {
                store_waker(&mut state.waker, context);
                Poll::Pending
            }
        }
    }
}

fn store_waker(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(context.waker()),
        None => *slot = Some(context.waker().clone()),
    }
}

impl Future for PendingResponse {
    type Output = Result<SamplerResponse>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_admit(context));
        let mut state = self.handle.state();
        match state.response.take() {
            Some(response) => {
                drop(state);
                self.done = true;
                Poll::Ready(response)
            }
            None => {
                store_waker(&mut state.waker, context);
                Poll::Pending
            }
        }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        if let (Some(_), Some(position)) = (&self.unadmitted, self.position) {
            self.core.withdraw(position);
        }
        if !self.done && self.unadmitted.is_none() {
            self.core.cancel(&self.handle);
        }
    }
}

/// A response that can be read token by token. Dropping it cancels the request.
pub struct TokenStream(PendingResponse);

impl TokenStream {
    pub(crate) fn new(pending: PendingResponse) -> Self {
        TokenStream(pending)
    }

    /// The next token; `None` at the end or if the request failed.
    pub async fn next(&mut self) -> Option<u32> {
        std::future::poll_fn(|context| self.0.poll_token(context)).await
    }

    /// The whole sample, once it is complete.
    pub async fn finish(self) -> Result<Sample> {
        self.0.await.and_then(sample)
    }
}

pub(crate) fn sample(response: SamplerResponse) -> Result<Sample> {
    match response {
        SamplerResponse::Sample(s) => Ok(s),
        SamplerResponse::Scores(_) => Err(kind_mismatch()),
    }
}

pub(crate) fn scores(response: SamplerResponse) -> Result<Scores> {
    match response {
        SamplerResponse::Scores(s) => Ok(s),
        SamplerResponse::Sample(_) => Err(kind_mismatch()),
    }
}

fn kind_mismatch() -> Error {
    Error::engine("native", "the response kind does not match the request kind")
}
