//! Cancellation of futures on Ctrl-C.
//!
//! Partial output is kept, and the process exits with 130. A second Ctrl-C exits immediately.

use anyhow::Context as _;
use std::{
    future::poll_fn,
    pin::pin,
    process,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
};

/// Cancellation signal of Ctrl-C.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<InterruptState>>);

#[derive(Default)]
struct InterruptState {
    pressed: bool,
    waker: Option<Waker>,
}

impl Interrupt {
    /// Installs the signal handler; possible once per process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let interrupt = Interrupt::default();
        let handler = interrupt.clone();
        ctrlc::set_handler(move || handler.press()).context("cannot listen for Ctrl-C")?;
        Ok(interrupt)
    }

    fn press(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pressed {
            process::exit(130);
        }
        state.pressed = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Awaits a future until Ctrl-C.
    pub(crate) async fn or<T>(&self, future: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut future = pin!(future);
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.pressed {
                return Poll::Ready(Err(Interrupted));
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            future.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// Error of an interrupted command: exit code 130, without a message.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_executor::block_on;
    use std::future::{pending, ready};

    #[test]
    fn ctrl_c_cancels_a_pending_future() {
        let interrupt = Interrupt::default();
        assert_eq!(block_on(interrupt.or(ready(3))).ok(), Some(3));
        let presser = interrupt.clone();
        let thread = std::thread::spawn(move || presser.press());
        assert!(block_on(interrupt.or(pending::<()>())).is_err());
        assert!(block_on(interrupt.or(ready(3))).is_err(), "the signal persists");
        thread.join().expect("pressed");
    }
}
