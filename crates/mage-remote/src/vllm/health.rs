//! Health of pool servers: probing of unhealthy servers, recovery, and backoff.
//!
//! An unhealthy server gets no requests, which is logged once, and is probed in the background. When it responds it is
//! reconciled concurrently with other work. A server that passes probes but fails requests is probed less and less
//! often.

use super::{
    pool::VllmPool,
    server::{HEALTH_TIMEOUT, Server},
    version_registry::{PushError, VersionRegistry},
};
use crate::http::client::HttpError;
use mage_engine::{Error, Hint};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// Interval between probes if no server is healthy.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between probes of a server while others are healthy.
const BACKGROUND_PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval between probes.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(60);
/// How long a push waits for servers that recover.
const RECOVERY_WAIT: Duration = Duration::from_secs(3);
/// A reconciliation that takes longer is logged.
const LOG_SLOW_RECONCILE: Duration = Duration::from_secs(5);
/// Failures that last longer are logged.
const LOG_FAILING: Duration = Duration::from_secs(2);
/// A server with this many consecutive failures is marked unhealthy if there are others.
const MAX_FAILURES: u32 = 8;
/// A failure within this time of the recovery counts as the same problem.
const STABLE_TIME: Duration = Duration::from_secs(30);

/// Health state of a server.
#[derive(Debug)]
pub(super) struct ServerHealth {
    /// Whether a probe is running.
    probing: bool,
    /// Time of the last probe, or when it became unhealthy.
    last_probe: Instant,
    /// Times marked unhealthy since it last worked for a while.
    times_unhealthy: u32,
    /// Consecutive failed responses.
    failures: u32,
    /// Start of the current series of failures.
    failing_since: Option<Instant>,
    /// Whether that series was logged.
    failure_logged: bool,
    /// Time of the last log line about a late response.
    late_logged_at: Option<Instant>,
    /// Why a reachable server gets no requests.
    pub(super) fault: Option<ServerFault>,
    /// Last logged problem.
    last_problem: String,
    /// Whether a slow reconciliation was logged.
    slow_logged: bool,
    /// Time of the last successful request.
    last_success: Instant,
    /// Time of the last recovery.
    recovered_at: Instant,
}

impl ServerHealth {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        ServerHealth {
            probing: false,
            last_probe: now,
            times_unhealthy: 0,
            failures: 0,
            failing_since: None,
            failure_logged: false,
            late_logged_at: None,
            fault: None,
            last_problem: String::new(),
            slow_logged: false,
            last_success: now,
            recovered_at: now,
        }
    }

    /// Whether it recovered after `then`, so that an earlier failure is outdated.
    pub(super) fn recovered_since(&self, then: Instant) -> bool {
        self.recovered_at > then
    }

    /// Whether a request succeeded after `then`.
    pub(super) fn worked_since(&self, then: Instant) -> bool {
        self.last_success > then
    }

    /// Probe interval, given the interval `base` of servers that were not unhealthy.
    fn probe_interval(&self, base: Duration) -> Duration {
        match self.times_unhealthy {
            0 | 1 => base,
            many => base
                .max(PROBE_INTERVAL)
                .saturating_mul(1_u32.checked_shl(many - 1).unwrap_or(u32::MAX))
                .min(MAX_PROBE_INTERVAL),
        }
    }
}

/// Fault of a reachable server.
#[derive(Clone, Debug)]
pub(super) struct ServerFault {
    engine: String,
    reason: String,
    hints: &'static [Hint],
    /// Whether it rejects pushes; otherwise its fingerprint differs.
    rejects: bool,
}

impl ServerFault {
    fn new(e: Error, server: &Server, rejects: bool) -> Self {
        let hints = e.hints();
        let (engine, reason) = match e {
            Error::Engine { engine, reason, .. } => (engine, reason),
            other => (server.http.address().to_owned(), other.to_string()),
        };
        ServerFault { engine, reason, hints, rejects }
    }
}

/// A running probe; the state is updated however it ends.
struct ProbeGuard(Arc<VersionRegistry>, Arc<Server>);

impl Drop for ProbeGuard {
    fn drop(&mut self) {
        let mut health = self.1.health();
        (health.probing, health.last_probe) = (false, Instant::now());
        drop(health);
        self.0.changed.notify_waiters();
    }
}

impl VersionRegistry {
    /// Marks a server unhealthy until a probe succeeds. `line` is logged the first time, with `hints`.
    pub(super) fn mark_unhealthy(
        &self,
        server: &Server,
        problem: &str,
        hints: &[Hint],
        line: impl FnOnce(&str) -> String,
    ) {
        if !server.healthy.swap(false, Ordering::SeqCst) {
            return;
        }
        let address = server.http.address();
        let times_unhealthy = {
            let mut health = server.health();
            health.last_probe = Instant::now();
            health.times_unhealthy += 1;
            health.last_problem = problem.to_owned();
            health.failure_logged = false;
            health.times_unhealthy
        };
        match times_unhealthy {
            1 => self.settings.status_log.log_with_hints(line(address), hints),
            2 => self
                .settings
                .status_log
                .log(format!("{address} fails again ({problem}), although its probes succeed; probing it less often")),
            _ => {}
        }
        self.changed.notify_waiters();
    }

    /// Records a failed response. Returns whether the server does little else.
    pub(super) fn record_failure(&self, server: &Server) -> bool {
        let mut health = server.health();
        health.failures += 1;
        health.failing_since.get_or_insert_with(Instant::now);
        let often = health.failures >= MAX_FAILURES;
        if often {
            health.failures = 0;
        }
        often
    }

    /// Logs, once, that a failing server is waited for.
    pub(super) fn log_failing(&self, server: &Server, error: &HttpError) {
        let (timeouts, retry_after) = (&self.settings.timeouts, server.http.retry_after().unwrap_or_default());
        let mut health = server.health();
        let duration = health.failing_since.map_or(Duration::ZERO, |since| since.elapsed()) + retry_after;
        if health.failure_logged || duration < LOG_FAILING.min(timeouts.outage / 4) {
            return;
        }
        health.failure_logged = true;
        drop(health);
        let (address, state, problem) = (server.http.address(), error.description(), error.text());
        let limit = timeouts.outage.as_secs_f64();
        self.settings.status_log.log(format!("{address} {state} ({problem}); retrying for up to {limit:.0} s"));
    }

    /// Logs a late response, at most once per `MAX_PROBE_INTERVAL`, since many requests may be late at once.
    pub(super) fn log_late(&self, server: &Server, timeout: Duration) {
        let mut health = server.health();
        if health.late_logged_at.is_some_and(|at| at.elapsed() < MAX_PROBE_INTERVAL) {
            return;
        }
        health.late_logged_at = Some(Instant::now());
        drop(health);
        let (address, seconds) = (server.http.address(), timeout.as_secs_f64());
        let line = format!(
            "{address} is healthy but did not respond to a request within {seconds:.0} s; retrying with twice the timeout"
        );
        self.settings.status_log.log_with_hints(line, &[Hint::IncreaseRequestTimeout]);
    }

    /// Records a successful request.
    pub(super) fn record_success(&self, server: &Server) {
        let mut health = server.health();
        (health.last_success, health.failures) = (Instant::now(), 0);
        let failing_since = health.failing_since.take();
        if let (true, Some(since)) = (std::mem::take(&mut health.failure_logged), failing_since) {
            let line = format!("{} works again after {:.0} s", server.http.address(), since.elapsed().as_secs_f64());
            self.settings.status_log.log(line);
        }
        if health.times_unhealthy > 0 && health.last_probe.elapsed() >= STABLE_TIME.min(self.settings.timeouts.attempt)
        {
            let recovered = std::mem::take(&mut health.times_unhealthy) > 1;
            drop(health);
            if recovered {
                self.settings.status_log.log(format!("{} works again", server.http.address()));
            }
        }
    }

    /// Probes an unhealthy server and reconciles it if it responds.
    async fn probe(&self, server: &Server) {
        if server.check_health(HEALTH_TIMEOUT).await.is_err() {
            server.health().fault = None;
            return;
        }
        let address = server.http.address();
        let slow = async {
            tokio::time::sleep(LOG_SLOW_RECONCILE.min(self.settings.timeouts.attempt)).await;
            if !std::mem::replace(&mut server.health().slow_logged, true) {
                self.settings.status_log.log(format!("{address} is available again; still pushing missing adapters"));
            }
            std::future::pending().await
        };
        let reconciled = tokio::select! {
            biased;
            result = self.reconcile(server) => result,
            never = slow => never,
        };
        let (problem, fault) = match reconciled {
            Ok(pushed) => {
                let details = if pushed > 0 { format!(", pushed {pushed} adapters again") } else { String::new() };
                let mut health = server.health();
                (health.fault, health.slow_logged, health.recovered_at) = (None, false, Instant::now());
                let log = health.times_unhealthy < 2;
                health.last_problem.clear();
                drop(health);
                if log {
                    self.settings.status_log.log(format!("{address} is available again{details}"));
                }
                return;
            }
            Err(PushError::Unavailable(problem)) => (problem, None),
            Err(PushError::Rejected(e)) => (e.to_string(), Some(ServerFault::new(e, server, true))),
            Err(PushError::Mismatch(e)) => (e.to_string(), Some(ServerFault::new(e, server, false))),
        };
        let hints = fault.as_ref().map_or(&[][..], |fault| fault.hints);
        let mut health = server.health();
        health.fault = fault;
        // Each problem is logged once.
        let is_new = std::mem::replace(&mut health.last_problem, problem.clone()) != problem;
        drop(health);
        if is_new {
            let line = format!("{address} responds but gets no requests: {problem}");
            self.settings.status_log.log_with_hints(line, hints);
        }
    }
}

impl VllmPool {
    /// Starts probes of all unhealthy servers that are due after `interval`, and returns these servers.
    pub(super) fn probe_due(&self, interval: Duration) -> Vec<&Arc<Server>> {
        let due = |server: &&Arc<Server>| {
            if server.healthy.load(Ordering::SeqCst) {
                return false;
            }
            let mut health = server.health();
            let interval_over =
                health.last_probe.elapsed() >= health.probe_interval(interval) && server.http.retry_after().is_none();
            let due = !health.probing && interval_over;
            health.probing |= due;
            due
        };
        let started: Vec<&Arc<Server>> = self.servers.iter().filter(due).collect();
        for server in &started {
            let probe = ProbeGuard(Arc::clone(&self.registry), Arc::clone(server));
            tokio::spawn(async move { probe.0.probe(&probe.1).await });
        }
        started
    }

    /// Starts due probes while other servers work.
    pub(super) fn probe_in_background(&self) {
        self.probe_due(BACKGROUND_PROBE_INTERVAL);
    }

    /// Probes unhealthy servers until one is healthy or no probe is left. Returns the fault if all servers have one.
    pub(super) async fn wait_for_healthy(&self) -> Option<Error> {
        self.probe_due(PROBE_INTERVAL);
        loop {
            let changed = self.registry.changed.notified();
            if self.servers.iter().any(|s| s.ready()) {
                return None;
            }
            if !self.servers.iter().any(|s| s.health().probing) {
                return self.fault();
            }
            changed.await;
        }
    }

    /// Probes unhealthy servers and waits briefly for their recovery.
    pub(super) async fn probe_all(&self) {
        let started = self.probe_due(Duration::ZERO);
        let probed = async {
            loop {
                let changed = self.registry.changed.notified();
                if started.iter().all(|s| !s.health().probing) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(RECOVERY_WAIT, probed).await;
    }

    /// The fault of reachable servers if none is healthy: a fingerprint mismatch, or a rejection by all of them. If one
    /// rejects and another is only unreachable, the latter may recover.
    pub(super) fn fault(&self) -> Option<Error> {
        if self.servers.iter().any(|s| s.healthy.load(Ordering::SeqCst)) {
            return None;
        }
        let found: Vec<ServerFault> = self.servers.iter().filter_map(|s| s.health().fault.clone()).collect();
        let all_reject = found.len() == self.servers.len();
        let fault = found.into_iter().find(|fault| all_reject || !fault.rejects)?;
        Some(Error::engine(fault.engine, fault.reason).with_hints(fault.hints))
    }

    /// Last problems of all servers.
    pub(super) fn last_problems(&self) -> String {
        let format_problem = |server: &Arc<Server>| {
            let problem = server.health().last_problem.clone();
            (!problem.is_empty()).then(|| format!(" ({}: {problem})", server.http.address()))
        };
        self.servers.iter().filter_map(format_problem).collect()
    }
}
