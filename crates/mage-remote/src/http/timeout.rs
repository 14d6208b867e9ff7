//! Retry deadline of a request to an unavailable server.
//!
//! A server that is unreachable, overloaded or failing is retried until the outage timeout, counted from the first
//! failure. All waiting requests together log one line when the outage lasts and one when it is over. The error states
//! the first failure, since later ones are often consequences.

use crate::{
    http::client::{HttpClient, HttpError},
    http::outage::OutageWaiter,
};
use std::time::Duration;
use tokio::time::Instant;

/// Outages shorter than this are not logged.
const LOG_AFTER: Duration = Duration::from_secs(2);

/// Retry deadline of one request.
pub(crate) struct RetryDeadline<'w> {
    http: &'w HttpClient,
    started: Instant,
    since: Option<Instant>,
    first: Option<String>,
    waiter: Option<OutageWaiter<'w>>,
}

impl<'w> RetryDeadline<'w> {
    pub(crate) fn new(http: &'w HttpClient) -> Self {
        RetryDeadline { http, started: Instant::now(), since: None, first: None, waiter: None }
    }

    /// Records a failed attempt sent at `sent_at`. Returns the final error once the deadline has passed.
    pub(crate) fn record_failure(&mut self, sent_at: Instant, error: &HttpError) -> Result<(), HttpError> {
        let (text, http) = (error.text(), self.http);
        let since = *self.since.get_or_insert_with(Instant::now);
        let first = self.first.get_or_insert_with(|| text.clone());
        let limit = http.timeouts.outage;
        if since.elapsed() >= limit {
            let message = if *first == text { text } else { format!("{first}; last: {text}") };
            let message = format!("{message} (waited {:.0} s)", limit.as_secs_f64());
            return Err(match error {
                HttpError::ServerError(_) => HttpError::ServerError(message),
                HttpError::Overloaded(_) => HttpError::Overloaded(message),
                _ => HttpError::Unreachable(message),
            });
        }
        let waiter = self.waiter.get_or_insert_with(|| http.outage.register());
        // With `Retry-After` there is no attempt before it has passed, so the line is logged that much earlier.
        let retry_after = http.retry_after().unwrap_or_default().min(limit.saturating_sub(since.elapsed()));
        if waiter.should_report(self.started, since, sent_at, LOG_AFTER.min(limit / 4).saturating_sub(retry_after)) {
            let (address, limit) = (http.address(), limit.as_secs_f64());
            let state = match (retry_after.as_secs_f64(), error) {
                (..1.0, _) => error.description().to_owned(),
                (seconds, HttpError::Unreachable(_)) => {
                    format!("is unavailable and requests a retry after {seconds:.0} s")
                }
                (seconds, _) => format!("{} and requests a retry after {seconds:.0} s", error.description()),
            };
            http.status_log.log(format!("{address} {state} ({text}); retrying for up to {limit:.0} s"));
        }
        Ok(())
    }

    /// Time until the deadline.
    pub(crate) fn remaining(&self) -> Duration {
        let limit = self.http.timeouts.outage;
        self.since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
    }

    /// The server responded: logs the recovery if the outage was logged.
    pub(crate) fn recovered(&mut self) {
        self.since = None;
        if let Some(outage) = self.waiter.take().and_then(|w| w.report_recovery()) {
            let seconds = outage.as_secs_f64();
            self.http.status_log.log(format!("{} is available again after {seconds:.0} s", self.http.address()));
        }
    }
}
