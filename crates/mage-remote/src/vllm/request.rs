//! What becomes of a request that meets trouble?
//!
//! Asking twice does no harm, so it is asked again, elsewhere where there are others: whoever is away, busy or failing is
//! waited for as long as patience lasts, whoever lost an adapter is given it, whoever is late gets more time. It is given up
//! only where the request itself is at fault: where a second server refuses it too, or where it fails again and again though
//! servers answer others.

use super::{health::LOOK_AGAIN, pool::VllmPool, server::Server};
use crate::{http::client::HttpError, http::retry::pause};
use mage_engine::Result;
use mage_rng::Seed;
use reqwest::StatusCode;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// One that fails so often while servers answer others is at fault itself.
const FAILED_ANSWERS: u32 = 12;
/// So often it may meet a server without its adapter; that many were not started anew meanwhile.
const LOST: u32 = 3;
/// So often it may be late, with twice the time each time.
const LATE: u32 = 4;

/// What one request has been through.
struct Course {
    /// When it began, or was last answered with a failure.
    since: Instant,
    /// What went wrong first.
    first: Option<String>,
    /// How long it waited for a server or paused.
    waited: Duration,
    /// How often it failed while others were answered.
    failed: u32,
    /// How often a server did not have its adapter.
    lost: u32,
    late: u32,
    /// How often it paused.
    pauses: u32,
    /// Who refused it, and how.
    refused: Vec<(Arc<Server>, HttpError)>,
    /// Who was asked last.
    last: Option<Arc<Server>>,
}

impl Course {
    fn new() -> Self {
        let (since, refused) = (Instant::now(), Vec::new());
        let (failed, lost, late, pauses) = (0, 0, 0, 0);
        Course { since, first: None, waited: Duration::ZERO, failed, lost, late, pauses, refused, last: None }
    }

    /// Lets time pass that counts against patience.
    async fn wait<T>(&mut self, work: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let out = work.await;
        self.waited += since.elapsed();
        out
    }

    /// Notes a failure; whether the request seems to be at fault, and not the servers: they answer others all the while.
    fn is_hopeless(&mut self, servers: &[Arc<Server>]) -> bool {
        let since = std::mem::replace(&mut self.since, Instant::now());
        self.failed += u32::from(servers.iter().any(|s| s.record().worked_since(since)));
        self.failed >= FAILED_ANSWERS
    }

    /// Whether the request is at fault, and not whoever refused it: another refused it likewise, or all did.
    fn is_refused(&mut self, server: &Arc<Server>, trouble: HttpError, servers: usize) -> bool {
        let how = |t: &HttpError| if let HttpError::Refused(status, _) = t { Some(*status) } else { None };
        let likewise = self.refused.iter().any(|(_, other)| how(other) == how(&trouble));
        self.refused.push((Arc::clone(server), trouble));
        likewise || self.refused.len() >= servers
    }
}

impl VllmPool {
    /// Asks until there is an answer. `work` asks a server once, and waits for so long.
    pub(super) async fn ask<T, F>(&self, what: &str, work: impl Fn(Arc<Server>, Duration) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, HttpError>>,
    {
        self.look_around();
        let settings = &self.shelf.settings;
        let (patience, limit) = (settings.waiting.away, settings.waiting.away.as_secs_f64());
        let luck = Seed::new(self.turn.load(Ordering::Relaxed) as u64).child(what);
        let mut course = Course::new();
        loop {
            let will_not = |s: &Arc<Server>| course.refused.iter().any(|(refuser, _)| Arc::ptr_eq(s, refuser));
            let Some(seat) = self.seat(course.last.as_ref(), will_not).await else {
                if course.waited > patience {
                    let problem = course.first.unwrap_or_else(|| "none of them answers".to_owned());
                    let troubles = self.troubles();
                    return Err(self.shelf.error(format!("{what}: no server for {limit:.0} s: {problem}{troubles}")));
                }
                let revived = async {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    self.revive().await
                };
                match course.wait(revived).await {
                    Some(wrong) => return Err(wrong),
                    None => continue,
                }
            };
            let (server, asked) = (Arc::clone(&seat.1), Instant::now());
            let within = settings.answer_within.saturating_mul(1 << course.late).min(settings.waiting.operation);
            let trouble = match work(Arc::clone(&server), within).await {
                Ok(answer) => {
                    self.shelf.worked(&server);
                    self.set_aside(&course.refused, &server);
                    return Ok(answer);
                }
                Err(trouble) => trouble,
            };
            drop(seat);
            let text = format!("{}: {}", server.wire.address(), trouble.text());
            let first = course.first.get_or_insert(text).clone();
            let is_news = !server.record().is_back_since(asked);
            match trouble {
                // It was started anew and does not have the adapter.
                HttpError::Refused(StatusCode::NOT_FOUND, problem) if course.lost < LOST => {
                    course.lost += 1;
                    if is_news {
                        self.shelf.put_away(&server, &problem, |address| {
                            format!("{address} no longer has what it was given ({problem}); it is given it again")
                        });
                    }
                    self.look_after(Duration::ZERO);
                }
                HttpError::Refused(..) | HttpError::Never(_) => {
                    if course.is_refused(&server, trouble, self.servers.len()) {
                        return Err(self.shelf.error(format!("{what}: {first}")));
                    }
                }
                HttpError::NotYet(_) if asked.elapsed() >= within => {
                    course.late += 1;
                    if course.late >= LATE {
                        let times = course.late;
                        return Err(self.shelf.error(format!("{what}: {first}, and was late {times} times in all")));
                    }
                    self.shelf.late(&server, within);
                }
                HttpError::NotYet(_) | HttpError::Busy(_) | HttpError::Failing(_) => {
                    self.bear(&server, &trouble, is_news);
                    if !matches!(trouble, HttpError::Busy(_)) && course.is_hopeless(&self.servers) {
                        let times = course.failed;
                        let error = format!("{what}: {first} (it failed {times} times, though others are answered)");
                        return Err(self.shelf.error(error));
                    }
                    if course.waited > patience {
                        return Err(self.shelf.error(format!("{what}: {first} (no better for {limit:.0} s)")));
                    }
                    // One that says when to come back is left alone until then, and others are asked.
                    let pauses = if server.wire.wish().is_some() { 0 } else { course.pauses };
                    course.pauses += 1;
                    course.wait(tokio::time::sleep(pause(pauses, None, luck))).await;
                }
                HttpError::Away(problem) if is_news => self.shelf.put_away(&server, &problem, |address| {
                    format!("{address} does not answer ({problem}); waiting for it, up to {limit:.0} s")
                }),
                HttpError::Away(_) => {}
            }
            course.last = Some(server);
        }
    }

    /// Bears with a server that failed: where it does little else it is left alone for a while, or, where there is no other,
    /// waited for.
    fn bear(&self, server: &Arc<Server>, trouble: &HttpError, is_news: bool) {
        let others = self.servers.iter().any(|s| s.ready() && !Arc::ptr_eq(s, server));
        let often = self.shelf.failed(server);
        if !others {
            return self.shelf.tell(server, trouble);
        }
        if often && is_news {
            let (is, problem) = (trouble.is(), trouble.text());
            self.shelf.put_away(server, &problem, |address| {
                format!("{address} {is} ({problem}); others are asked until it is better")
            });
        }
    }

    /// Leaves those alone for a while that refused what another answered.
    fn set_aside(&self, refused: &[(Arc<Server>, HttpError)], answered: &Server) {
        for (server, trouble) in refused {
            let (problem, other) = (trouble.text(), answered.wire.address());
            self.shelf.put_away(server, &problem, |address| {
                format!("{address} refuses what {other} answers ({problem}); others are asked until it is better")
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
            key: None,
            in_flight: 1,
            vocabulary: 16,
            max_seq_len: 16,
            tolerance: 1e-4,
            keep: 1,
            waiting: Timeouts::default(),
            answer_within: Duration::from_secs(1),
            notices: StatusLog::default(),
        })
        .unwrap()
    }

    #[test]
    fn a_request_is_at_fault_only_where_others_are_answered_all_the_while() {
        let pool = pool();
        let mut course = Course::new();
        assert!((0..1000).all(|_| !course.is_hopeless(&pool.servers)), "nobody is answered: the servers fail");
        let mut course = Course::new();
        for n in 1..=FAILED_ANSWERS {
            pool.shelf.worked(&pool.servers[1]);
            assert_eq!(course.is_hopeless(&pool.servers), n == FAILED_ANSWERS);
        }
    }

    #[test]
    fn a_request_is_wrong_where_two_refuse_it_likewise_or_all_do() {
        let pool = pool();
        let no = |status| HttpError::Refused(status, String::new());
        let [one, two] = [&pool.servers[0], &pool.servers[1]];
        assert!(Course::new().is_refused(one, no(StatusCode::BAD_REQUEST), 1));
        let mut course = Course::new();
        assert!(!course.is_refused(one, no(StatusCode::BAD_REQUEST), 3));
        assert!(course.is_refused(two, no(StatusCode::BAD_REQUEST), 3));
        let mut course = Course::new();
        assert!(!course.is_refused(one, no(StatusCode::BAD_REQUEST), 3));
        assert!(!course.is_refused(two, no(StatusCode::UNAUTHORIZED), 3), "a key of its own");
    }
}
