//! How is something waited for that a server has not got yet?
//!
//! With pauses that grow, a line for whoever watches, an end, and an error that says what went wrong first. Slow is what takes
//! longer than what was told before: a server that is always slow is not told of at every request.

use crate::{http::client::HttpClient, http::retry::pause};
use mage_engine::{Error, Result};
use mage_rng::Seed;
use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Somebody is told of what takes so long.
const WORTH_A_LINE: Duration = Duration::from_secs(10);
/// And of everything that takes so long, however slow the server was before.
const ALWAYS_WORTH_A_LINE: Duration = Duration::from_secs(600);
/// A poll that the server has held for so long is its own pause.
const HELD: Duration = Duration::from_secs(1);
/// A result that is not there yet is looked for at least so often.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How long something must take to be told of; shared by all who ask the same server.
#[derive(Clone, Debug, Default)]
pub(super) struct Slow(Arc<Mutex<Option<Duration>>>);

/// One wait.
pub(super) struct Wait<'w> {
    wire: &'w HttpClient,
    slow: &'w Slow,
    what: &'w str,
    started: Instant,
    limit: Duration,
    first: Option<String>,
    times: u32,
    /// After how long somebody was last told of this one.
    told: Duration,
}

impl<'w> Wait<'w> {
    /// Begins to wait for `what`, up to `limit`.
    pub(super) fn new(wire: &'w HttpClient, slow: &'w Slow, what: &'w str, limit: Duration) -> Self {
        Wait { wire, slow, what, started: Instant::now(), limit, first: None, times: 0, told: Duration::ZERO }
    }

    /// Does one attempt; whoever watches hears of it while it lasts.
    pub(super) async fn watch<T>(&mut self, attempt: impl Future<Output = T>) -> T {
        let mut attempt = pin!(attempt);
        // What is over as soon as it is told is not worth a line.
        while self.threshold() < self.limit {
            match timeout_at(self.started + self.threshold(), attempt.as_mut()).await {
                Ok(done) => return done,
                Err(_) => self.tell(),
            }
        }
        attempt.await
    }

    /// Notes that it is not there yet, and pauses; the error when the time is over.
    pub(super) async fn again(&mut self, trouble: &str) -> Result<()> {
        self.note(trouble)?;
        self.pause(self.limit).await;
        Ok(())
    }

    /// The same for a poll that took `held`: a server that makes us wait needs no more pause.
    pub(super) async fn poll_again(&mut self, trouble: &str, held: Duration) -> Result<()> {
        self.note(trouble)?;
        if held < HELD {
            self.pause(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn pause(&mut self, longest: Duration) {
        let left = self.limit.saturating_sub(self.started.elapsed());
        let next = pause(self.times - 1, None, Seed::new(0).child(self.what)).min(longest);
        // One that says when to come back is left alone until then.
        let pause = next.max(self.wire.wish().unwrap_or_default()).min(left);
        self.watch(tokio::time::sleep(pause)).await;
    }

    fn note(&mut self, trouble: &str) -> Result<()> {
        self.times += 1;
        self.first.get_or_insert_with(|| trouble.to_owned());
        if self.started.elapsed() >= self.limit {
            let limit = self.limit.as_secs_f64();
            return Err(self.error(trouble, &format!("waited {limit:.0} s")));
        }
        if self.started.elapsed() >= self.threshold() {
            self.tell();
        }
        Ok(())
    }

    /// The end of the wait: what went wrong first, and at last.
    pub(super) fn error(&self, last: &str, after: &str) -> Error {
        let first = self.first.as_deref().unwrap_or(last);
        let said = if first == last { first.to_owned() } else { format!("{first}; at last: {last}") };
        self.wire.error(format!("{}: {said} ({after})", self.what))
    }

    fn threshold(&self) -> Duration {
        let slow = *self.slow.0.lock().unwrap_or_else(PoisonError::into_inner);
        slow.unwrap_or(WORTH_A_LINE.min(self.limit / 4)).max(self.told * 2)
    }

    /// Says it, and that only what takes twice as long is worth saying next.
    fn tell(&mut self) {
        let (waited, address) = (self.started.elapsed(), self.wire.address());
        self.told = waited;
        *self.slow.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((waited * 2).min(ALWAYS_WORTH_A_LINE));
        let why = self.first.as_ref().map_or_else(String::new, |first| format!(" ({first})"));
        let (waited, limit) = (waited.as_secs_f64(), self.limit.as_secs_f64());
        let line =
            format!("{address} has not finished {} after {waited:.0} s{why}; waiting, up to {limit:.0} s", self.what);
        self.wire.notices.say(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StatusLog, http::client::Timeouts};

    #[tokio::test]
    async fn nobody_is_told_of_waiting_when_it_is_over() {
        let said = Arc::<Mutex<Vec<String>>>::default();
        let hear = Arc::clone(&said);
        let notices = StatusLog::to(move |line| hear.lock().unwrap().push(line.to_owned()));
        let wire = HttpClient::new("http://127.0.0.1:1", None, Timeouts::default(), notices).unwrap();
        let (slow, limit) = (Slow::default(), Duration::from_millis(400));
        // Told after a quarter and a half of it, and not at its end, which an attempt may outlast.
        Wait::new(&wire, &slow, "a thing", limit).watch(tokio::time::sleep(limit * 3 / 2)).await;
        let said = said.lock().unwrap();
        assert!(said.len() <= 2 && said.iter().all(|line| line.contains("has not finished a thing")), "{said:?}");
    }
}
