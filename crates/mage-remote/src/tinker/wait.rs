//! Waiting for a result that a server does not have yet: backoff, log lines, a time limit, and an error that states the
//! first failure.
//!
//! A wait is logged if it takes longer than previously logged ones, so that a server that is always slow is not logged
//! at every request.

use crate::{http::client::HttpClient, http::retry::backoff};
use mage_engine::{Error, Result};
use mage_rng::Seed;
use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Waits longer than this are logged
const LOG_AFTER: Duration = Duration::from_secs(10);
/// and waits longer than this always, however slow the server was before.
const MAX_LOG_THRESHOLD: Duration = Duration::from_secs(600);
/// A long poll that the server held at least this long needs no further pause.
const LONG_POLL: Duration = Duration::from_secs(1);
/// Maximum pause between polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Wait time after which to log; shared by all requests to a server.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowThreshold(Arc<Mutex<Option<Duration>>>);

/// A wait for one result.
pub(super) struct PollWait<'w> {
    http: &'w HttpClient,
    slow: &'w SlowThreshold,
    what: &'w str,
    started: Instant,
    limit: Duration,
    first: Option<String>,
    failures: u32,
    /// Wait time at the last log line.
    logged_at: Duration,
}

impl<'w> PollWait<'w> {
    /// Starts to wait for `what`, for at most `limit`.
    pub(super) fn new(http: &'w HttpClient, slow: &'w SlowThreshold, what: &'w str, limit: Duration) -> Self {
        PollWait {
            http,
            slow,
            what,
            started: Instant::now(),
            limit,
            first: None,
            failures: 0,
            logged_at: Duration::ZERO,
        }
    }

    /// Runs one attempt and logs while it lasts.
    pub(super) async fn run<T>(&mut self, attempt: impl Future<Output = T>) -> T {
        let mut attempt = pin!(attempt);
        // No line if the limit ends at the threshold.
        while self.threshold() < self.limit {
            match timeout_at(self.started + self.threshold(), attempt.as_mut()).await {
                Ok(done) => return done,
                Err(_) => self.log_wait(),
            }
        }
        attempt.await
    }

    /// Records a failed attempt and backs off; fails when the limit is over.
    pub(super) async fn retry(&mut self, problem: &str) -> Result<()> {
        self.record_failure(problem)?;
        self.backoff(self.limit).await;
        Ok(())
    }

    /// Like [`retry`](Self::retry) for a poll of duration `held`. A long poll needs no further pause.
    pub(super) async fn poll_retry(&mut self, problem: &str, held: Duration) -> Result<()> {
        self.record_failure(problem)?;
        if held < LONG_POLL {
            self.backoff(MAX_POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn backoff(&mut self, max: Duration) {
        let remaining = self.limit.saturating_sub(self.started.elapsed());
        let delay = backoff(self.failures - 1, None, Seed::new(0).child(self.what)).min(max);
        // `Retry-After` is respected.
        let delay = delay.max(self.http.retry_after().unwrap_or_default()).min(remaining);
        self.run(tokio::time::sleep(delay)).await;
    }

    fn record_failure(&mut self, problem: &str) -> Result<()> {
        self.failures += 1;
        self.first.get_or_insert_with(|| problem.to_owned());
        if self.started.elapsed() >= self.limit {
            let limit = self.limit.as_secs_f64();
            return Err(self.error(problem, &format!("waited {limit:.0} s")));
        }
        if self.started.elapsed() >= self.threshold() {
            self.log_wait();
        }
        Ok(())
    }

    /// The final error, with the first and the last failure.
    pub(super) fn error(&self, last: &str, after: &str) -> Error {
        let first = self.first.as_deref().unwrap_or(last);
        let message = if first == last { first.to_owned() } else { format!("{first}; last: {last}") };
        self.http.error(format!("{}: {message} ({after})", self.what))
    }

    fn threshold(&self) -> Duration {
        let threshold = *self.slow.0.lock().unwrap_or_else(PoisonError::into_inner);
        threshold.unwrap_or(LOG_AFTER.min(self.limit / 4)).max(self.logged_at * 2)
    }

    /// Logs the wait, and doubles the threshold.
    fn log_wait(&mut self) {
        let (waited, address) = (self.started.elapsed(), self.http.address());
        self.logged_at = waited;
        *self.slow.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((waited * 2).min(MAX_LOG_THRESHOLD));
        let why = self.first.as_ref().map_or_else(String::new, |first| format!(" ({first})"));
        let (waited, limit) = (waited.as_secs_f64(), self.limit.as_secs_f64());
        let line = format!(
            "{address} has not finished {} after {waited:.0} s{why}; waiting for up to {limit:.0} s",
            self.what
        );
        self.http.status_log.log(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StatusLog, http::client::Timeouts};

    #[tokio::test]
    async fn finished_wait_is_not_logged() {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let sink = Arc::clone(&log);
        let status_log = StatusLog::new(move |line, _| sink.lock().unwrap().push(line.to_owned()));
        let http = HttpClient::new("http://127.0.0.1:1", None, Timeouts::default(), status_log).unwrap();
        let (slow, limit) = (SlowThreshold::default(), Duration::from_millis(400));
        // Logged after a quarter and a half of the limit, and not at its end, which the attempt outlasts.
        PollWait::new(&http, &slow, "a thing", limit).run(tokio::time::sleep(limit * 3 / 2)).await;
        let log = log.lock().unwrap();
        assert!(log.len() <= 2 && log.iter().all(|line| line.contains("has not finished a thing")), "{log:?}");
    }
}
