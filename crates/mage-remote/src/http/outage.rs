//! Shared outage state, so that concurrent requests log an outage and its recovery once.
//!
//! A request sent before the recovery may fail after it. Such a failure does not start a new outage.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Outage state of a server, shared by all requests to it.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<OutageState>);

#[derive(Debug, Default)]
struct OutageState {
    /// Start of the outage, once logged.
    reported_since: Option<Instant>,
    /// Time of the last logged recovery.
    recovered_at: Option<Instant>,
    waiting: usize,
}

/// A request that waits for the server. When the last one is dropped, a logged outage is forgotten.
#[derive(Debug)]
pub(crate) struct OutageWaiter<'o>(&'o Outage);

impl Outage {
    /// Registers a waiting request.
    pub(crate) fn register(&self) -> OutageWaiter<'_> {
        self.state().waiting += 1;
        OutageWaiter(self)
    }

    fn state(&self) -> MutexGuard<'_, OutageState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutageWaiter<'_> {
    /// Whether this request is to log the outage: no other has, the failed attempt was sent at `sent_at` after the last
    /// recovery, and the request has waited for at least `threshold`. `started` is the start of the request, `since`
    /// its first failure.
    pub(crate) fn should_report(
        &self,
        started: Instant,
        since: Instant,
        sent_at: Instant,
        threshold: Duration,
    ) -> bool {
        let mut state = self.0.state();
        let not_before_recovery = |at: Instant| state.recovered_at.map_or(at, |recovered| at.max(recovered));
        let report = state.reported_since.is_none()
            && not_before_recovery(sent_at) == sent_at
            && not_before_recovery(started).elapsed() >= threshold;
        if report {
            state.reported_since = Some(not_before_recovery(since));
        }
        report
    }

    /// Called when the server responds. Returns the duration of a logged outage to the first request that sees the
    /// recovery.
    pub(crate) fn report_recovery(&self) -> Option<Duration> {
        let mut state = self.0.state();
        let since = state.reported_since.take()?;
        state.recovered_at = Some(Instant::now());
        Some(since.elapsed())
    }
}

impl Drop for OutageWaiter<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting -= 1;
        if state.waiting == 0 {
            state.reported_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        StatusLog, Timeouts,
        http::client::{HttpClient, HttpRequest},
    };
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(5);

    fn long_ago() -> Instant {
        Instant::now() - LONG * 2
    }

    #[test]
    fn outage_is_reported_once_and_late_failures_do_not_restart_it() {
        let (outage, then) = (Outage::default(), long_ago());
        let (first, hanging) = (outage.register(), outage.register());
        assert!(!first.should_report(then, then, then, LONG * 100), "too early");
        assert!(first.should_report(then, then, then, LONG));
        assert!(!hanging.should_report(then, then, then, LONG), "already reported");
        assert!(first.report_recovery().is_some_and(|duration| duration > LONG));
        assert!(!hanging.should_report(then, then, then, Duration::ZERO), "sent before the recovery");
        assert_eq!(hanging.report_recovery(), None, "recovery already reported");
        // A new outage is logged once it lasts.
        let sent_at = Instant::now();
        assert!(!hanging.should_report(then, then, sent_at, LONG), "it recovered just now");
        assert!(hanging.should_report(then, then, sent_at, Duration::ZERO));
        assert!(hanging.report_recovery().is_some_and(|duration| duration < LONG), "counted from the last recovery");
    }

    #[test]
    fn abandoned_request_does_not_reset_a_reported_outage() {
        let (outage, then) = (Outage::default(), long_ago());
        let (first, second) = (outage.register(), outage.register());
        assert!(first.should_report(then, then, then, LONG));
        drop(first);
        assert!(!second.should_report(then, then, then, LONG), "still the reported outage");
        drop(second);
        // No request is left to log the recovery, so the next one logs the outage again.
        assert!(outage.register().should_report(then, then, then, LONG));
    }

    /// Sends an empty JSON object.
    async fn respond(mut stream: tokio::net::TcpStream) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
    }

    #[tokio::test]
    async fn recovery_is_logged_once_while_old_requests_still_hang() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let sink = Arc::clone(&log);
        // Connections before the outage is logged hang; later ones get a response.
        let server = tokio::spawn(async move {
            let mut hanging = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                if sink.lock().unwrap().is_empty() {
                    hanging.push(stream);
                } else {
                    tokio::spawn(respond(stream));
                }
            }
        });
        let sink = Arc::clone(&log);
        let status_log = StatusLog::new(move |line, _| sink.lock().unwrap().push(line.to_owned()));
        let timeouts =
            Timeouts { attempt: Duration::from_millis(300), outage: Duration::from_secs(1), ..Timeouts::default() };
        let http = HttpClient::new(&format!("http://{address}"), None, timeouts, status_log).unwrap();
        let request = HttpRequest::get("health");
        // Staggered, so that most requests hang when the first sees the recovery.
        let all = futures_util::future::join_all((0..12).map(async |i| {
            tokio::time::sleep(Duration::from_millis(25) * i).await;
            http.send(&request).await
        }));
        assert!(all.await.iter().all(Result::is_ok));
        server.abort();
        let log = log.lock().unwrap();
        assert!(
            log.len() == 2 && log[0].contains("retrying for up to") && log[1].contains("is available again"),
            "{log:?}"
        );
    }
}
