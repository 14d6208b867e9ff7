//! What happens on Ctrl-C while something is being written?
//!
//! What was written stays, nothing more comes, and the process ends with 130, as shells expect. A second Ctrl-C ends it
//! at once.

use anyhow::Context as _;
use std::{
    future::poll_fn,
    pin::pin,
    process,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, Waker},
};

/// Whether the user has had enough, for futures to notice.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    pressed: bool,
    waiting: Option<Waker>,
}

impl Interrupt {
    /// Listens from now on. A process can do so once.
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
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Waits for a future, but not beyond Ctrl-C.
    pub(crate) async fn or<T>(&self, future: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut future = pin!(future);
        poll_fn(|context| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.pressed {
                return Poll::Ready(Err(Interrupted));
            }
            state.waiting = Some(context.waker().clone());
            drop(state);
            future.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

/// The user has had enough: no failure, but no success either.
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
    use mage_engine::block_on;
    use std::future::{pending, ready};

    #[test]
    fn waiting_ends_when_it_is_pressed() {
        let interrupt = Interrupt::default();
        assert_eq!(block_on(interrupt.or(ready(3))).ok(), Some(3));
        let presser = interrupt.clone();
        let thread = std::thread::spawn(move || presser.press());
        assert!(block_on(interrupt.or(pending::<()>())).is_err());
        assert!(block_on(interrupt.or(ready(3))).is_err(), "and stays ended");
        thread.join().expect("pressed");
    }
}
