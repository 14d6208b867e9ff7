//! Cancellation of futures on Ctrl-C.
//!
//! Partial output is kept, and the process exits with 130. A second Ctrl-C exits immediately.

use anyhow::Context as _;
use futures_util::future::{Either, select};
use std::{pin::pin, process};
use tokio::sync::watch;

/// Cancellation signal of Ctrl-C.
#[derive(Clone)]
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Installs the signal handler; possible once per process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let (sender, receiver) = watch::channel(false);
        let handler = move || {
            if sender.send_replace(true) {
                process::exit(130);
            }
        };
        ctrlc::set_handler(handler).context("cannot listen for Ctrl-C")?;
        Ok(Interrupt(receiver))
    }

    /// Awaits a future until Ctrl-C.
    pub(crate) async fn or<T>(&self, future: impl Future<Output = T>) -> Result<T, Interrupted> {
        let mut signal = self.0.clone();
        match select(pin!(signal.wait_for(|pressed| *pressed)), pin!(future)).await {
            Either::Left(_) => Err(Interrupted),
            Either::Right((value, _)) => Ok(value),
        }
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
        let (sender, receiver) = watch::channel(false);
        let interrupt = Interrupt(receiver);
        assert_eq!(block_on(interrupt.or(ready(3))).ok(), Some(3));
        let thread = std::thread::spawn(move || {
            sender.send_replace(true);
            sender
        });
        assert!(block_on(interrupt.or(pending::<()>())).is_err());
        let _sender = thread.join().expect("pressed");
        assert!(block_on(interrupt.or(ready(3))).is_err(), "the signal persists");
    }
}
