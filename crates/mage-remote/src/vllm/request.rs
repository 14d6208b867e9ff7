//! Retry policy of requests to a pool.
//!
//! Requests are idempotent, so they are retried, on other servers if possible: unreachable, overloaded or failing
//! servers are retried until the outage timeout, a server that lost an adapter is reconciled, and a late response gets
//! a longer timeout. A request fails only if it is itself at fault: if a second server rejects it too, or if it keeps
//! failing while servers serve others.

use super::{health::PROBE_INTERVAL, pool::VllmPool, server::Server};
use crate::{http::client::HttpError, http::retry::backoff};
use mage_engine::Result;
use mage_rng::Seed;
use reqwest::StatusCode;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// A request that fails this often while servers serve others is itself at fault.
const MAX_FAILED_RESPONSES: u32 = 12;
/// Maximum responses without its adapter; more servers than this do not restart meanwhile.
const MAX_LOST_ADAPTERS: u32 = 3;
/// Maximum late responses; the timeout doubles with each.
const MAX_LATE_RESPONSES: u32 = 4;

/// State of a request across its attempts.
struct RequestAttempts {
    /// Start of the request, or time of its last failed response.
    since: Instant,
    /// First failure.
    first: Option<String>,
    /// Time spent waiting for servers and in backoff.
    waited: Duration,
    /// Failures while other requests succeeded.
    failed: u32,
    /// Attempts on servers without its adapter.
    lost: u32,
    late: u32,
    /// Number of backoff pauses.
    pauses: u32,
    /// Servers that rejected it, with the errors.
    rejections: Vec<(Arc<Server>, HttpError)>,
    /// Server of the last attempt.
    last: Option<Arc<Server>>,
}

impl RequestAttempts {
    fn new() -> Self {
        let (since, rejections) = (Instant::now(), Vec::new());
        let (failed, lost, late, pauses) = (0, 0, 0, 0);
        RequestAttempts {
            since,
            first: None,
            waited: Duration::ZERO,
            failed,
            lost,
            late,
            pauses,
            rejections,
            last: None,
        }
    }

    /// Awaits `work` and counts its time against the outage timeout.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let out = work.await;
        self.waited += since.elapsed();
        out
    }

    /// Records a failure. Returns whether the request seems at fault, since servers serve others meanwhile.
    fn record_failure(&mut self, servers: &[Arc<Server>]) -> bool {
        let since = std::mem::replace(&mut self.since, Instant::now());
        self.failed += u32::from(servers.iter().any(|s| s.health().worked_since(since)));
        self.failed >= MAX_FAILED_RESPONSES
    }

    /// Records a rejection. Returns whether the request is at fault: another server rejected it with the same status,
    /// or all did.
    fn record_rejection(&mut self, server: &Arc<Server>, error: HttpError, servers: usize) -> bool {
        let status = |e: &HttpError| if let HttpError::Rejected(status, _) = e { Some(*status) } else { None };
        let same_status = self.rejections.iter().any(|(_, other)| status(other) == status(&error));
        self.rejections.push((Arc::clone(server), error));
        same_status || self.rejections.len() >= servers
    }
}

impl VllmPool {
    /// Sends a request until a response or a final failure. `work` sends it to a server once, with a timeout.
    pub(super) async fn request<T, F>(&self, what: &str, work: impl Fn(Arc<Server>, Duration) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, HttpError>>,
    {
        self.probe_in_background();
        let settings = &self.registry.settings;
        let (outage_timeout, limit) = (settings.timeouts.outage, settings.timeouts.outage.as_secs_f64());
        let seed = Seed::new(self.next_server.load(Ordering::Relaxed) as u64).child(what);
        let mut attempts = RequestAttempts::new();
        loop {
            let excluded = |s: &Arc<Server>| attempts.rejections.iter().any(|(rejecter, _)| Arc::ptr_eq(s, rejecter));
            let Some(slot) = self.acquire_slot(attempts.last.as_ref(), excluded).await else {
                if attempts.waited > outage_timeout {
                    let problem = attempts.first.unwrap_or_else(|| "no server responds".to_owned());
                    let problems = self.last_problems();
                    return Err(self
                        .registry
                        .error(format!("{what}: no server available for {limit:.0} s: {problem}{problems}")));
                }
                let recovery = async {
                    tokio::time::sleep(PROBE_INTERVAL).await;
                    self.wait_for_healthy().await
                };
                match attempts.wait(recovery).await {
                    Some(fault) => return Err(fault),
                    None => continue,
                }
            };
            let (server, sent_at) = (Arc::clone(&slot.1), Instant::now());
            let timeout = settings.request_timeout.saturating_mul(1 << attempts.late).min(settings.timeouts.operation);
            let error = match work(Arc::clone(&server), timeout).await {
                Ok(response) => {
                    self.registry.record_success(&server);
                    self.mark_rejecters_unhealthy(&attempts.rejections, &server);
                    return Ok(response);
                }
                Err(error) => error,
            };
            drop(slot);
            let text = format!("{}: {}", server.http.address(), error.text());
            let first = attempts.first.get_or_insert(text).clone();
            let is_current = !server.health().recovered_since(sent_at);
            match error {
                // The server restarted and does not have the adapter.
                HttpError::Rejected(StatusCode::NOT_FOUND, problem) if attempts.lost < MAX_LOST_ADAPTERS => {
                    attempts.lost += 1;
                    if is_current {
                        self.registry.mark_unhealthy(&server, &problem, &[], |address| {
                            format!("{address} lost an adapter ({problem}); pushing it again")
                        });
                    }
                    self.probe_due(Duration::ZERO);
                }
                HttpError::Rejected(..) | HttpError::Permanent(..) => {
                    let hints = error.hints();
                    if attempts.record_rejection(&server, error, self.servers.len()) {
                        return Err(self.registry.error(format!("{what}: {first}")).with_hints(hints));
                    }
                }
                HttpError::NotReady(_) if sent_at.elapsed() >= timeout => {
                    attempts.late += 1;
                    if attempts.late >= MAX_LATE_RESPONSES {
                        let times = attempts.late;
                        return Err(self.registry.error(format!("{what}: {first} (timed out {times} times)")));
                    }
                    self.registry.log_late(&server, timeout);
                }
                HttpError::NotReady(_) | HttpError::Overloaded(_) | HttpError::ServerError(_) => {
                    self.handle_failure(&server, &error, is_current);
                    if !matches!(error, HttpError::Overloaded(_)) && attempts.record_failure(&self.servers) {
                        let times = attempts.failed;
                        let error = format!("{what}: {first} (failed {times} times while other requests succeed)");
                        return Err(self.registry.error(error));
                    }
                    if attempts.waited > outage_timeout {
                        return Err(self.registry.error(format!("{what}: {first} (no success for {limit:.0} s)")));
                    }
                    // `Retry-After` applies to this server only; others are tried at once.
                    let pauses = if server.http.retry_after().is_some() { 0 } else { attempts.pauses };
                    attempts.pauses += 1;
                    attempts.wait(tokio::time::sleep(backoff(pauses, None, seed))).await;
                }
                HttpError::Unreachable(problem) if is_current => {
                    self.registry.mark_unhealthy(&server, &problem, &[], |address| {
                        format!("{address} is unreachable ({problem}); retrying for up to {limit:.0} s")
                    });
                }
                HttpError::Unreachable(_) => {}
            }
            attempts.last = Some(server);
        }
    }

    /// Handles a failed response: a server that does little else is marked unhealthy, or waited for if it is the only
    /// one.
    fn handle_failure(&self, server: &Arc<Server>, error: &HttpError, is_current: bool) {
        let others = self.servers.iter().any(|s| s.ready() && !Arc::ptr_eq(s, server));
        let mostly_fails = self.registry.record_failure(server);
        if !others {
            return self.registry.log_failing(server, error);
        }
        if mostly_fails && is_current {
            let (state, problem) = (error.description(), error.text());
            self.registry.mark_unhealthy(server, &problem, &[], |address| {
                format!("{address} {state} ({problem}); using other servers until it recovers")
            });
        }
    }

    /// Marks servers unhealthy that rejected what another accepted.
    fn mark_rejecters_unhealthy(&self, rejections: &[(Arc<Server>, HttpError)], accepted_by: &Server) {
        for (server, error) in rejections {
            let (problem, other) = (error.text(), accepted_by.http.address());
            self.registry.mark_unhealthy(server, &problem, error.hints(), |address| {
                format!("{address} rejects what {other} accepts ({problem}); using other servers until it recovers")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StatusLog, VllmPoolSettings, http::client::Timeouts};

    fn pool() -> VllmPool {
        VllmPool::new(VllmPoolSettings {
            servers: vec!["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()],
            model: "tiny".to_owned(),
            api_key: None,
            max_in_flight: 1,
            vocab_size: 16,
            max_seq_len: 16,
            tolerance: 1e-4,
            keep_versions: 1,
            timeouts: Timeouts::default(),
            request_timeout: Duration::from_secs(1),
            status_log: StatusLog::default(),
        })
        .unwrap()
    }

    #[test]
    fn request_is_at_fault_only_if_others_succeed_meanwhile() {
        let pool = pool();
        let mut attempts = RequestAttempts::new();
        assert!((0..1000).all(|_| !attempts.record_failure(&pool.servers)), "no request succeeds: the servers fail");
        let mut attempts = RequestAttempts::new();
        for n in 1..=MAX_FAILED_RESPONSES {
            pool.registry.record_success(&pool.servers[1]);
            assert_eq!(attempts.record_failure(&pool.servers), n == MAX_FAILED_RESPONSES);
        }
    }

    #[test]
    fn request_is_at_fault_if_two_servers_reject_it_alike_or_all_do() {
        let pool = pool();
        let rejected = |status| HttpError::Rejected(status, String::new());
        let [one, two] = [&pool.servers[0], &pool.servers[1]];
        assert!(RequestAttempts::new().record_rejection(one, rejected(StatusCode::BAD_REQUEST), 1));
        let mut attempts = RequestAttempts::new();
        assert!(!attempts.record_rejection(one, rejected(StatusCode::BAD_REQUEST), 3));
        assert!(attempts.record_rejection(two, rejected(StatusCode::BAD_REQUEST), 3));
        let mut attempts = RequestAttempts::new();
        assert!(!attempts.record_rejection(one, rejected(StatusCode::BAD_REQUEST), 3));
        assert!(!attempts.record_rejection(two, rejected(StatusCode::UNAUTHORIZED), 3), "different statuses");
    }
}
