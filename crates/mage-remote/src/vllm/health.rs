//! What becomes of a server that went away?
//!
//! It gets no requests, somebody hears of it once, and it is looked for again. Once it answers it is fed beside everything
//! else, so that nobody else waits for it. One that answers when it is looked at and fails when it is asked is looked at
//! less and less often.

use super::{
    pool::VllmPool,
    server::{ALIVE, Server},
    weight_sync::{Given, WeightSync},
};
use crate::{http::client::HttpError, join::race};
use mage_engine::Error;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// How long between two looks at servers none of which can be asked.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long between two looks at one that is away while others work.
const LOOK_AROUND: Duration = Duration::from_secs(5);
/// No two looks are longer apart.
const LONGEST: Duration = Duration::from_secs(60);
/// A push waits this long for servers that are just back.
const WELCOME: Duration = Duration::from_secs(3);
/// Feeding that takes longer is worth a line.
const WORTH_A_LINE: Duration = Duration::from_secs(5);
/// Failing for longer is worth a line.
const FAILING: Duration = Duration::from_secs(2);
/// One that fails so often in a row is done without where there are others.
const FAILURES: u32 = 8;
/// Nobody starts anew within this time: a model has to be read.
const UNHEARD: Duration = Duration::from_secs(10);
/// What fails again within this time has not recovered.
const CALM: Duration = Duration::from_secs(30);

/// What is known of a server that fails.
#[derive(Debug)]
pub(super) struct Record {
    /// Whether it is being looked at.
    looking: bool,
    /// When it went away or was last looked at.
    last: Instant,
    /// How often it failed since it last worked for a while.
    strikes: u32,
    /// How many of its answers in a row were failures.
    failures: u32,
    /// Since when it does nothing but fail.
    failing: Option<Instant>,
    /// Whether that was said.
    told: bool,
    /// When it was last said that it is late.
    late: Option<Instant>,
    /// Why it is there and gets no requests.
    pub(super) wrong: Option<Wrong>,
    /// What was last said of it.
    said: String,
    /// Whether it was said that feeding it takes long.
    slow: bool,
    /// When it last did what it was asked.
    heard: Instant,
    /// Whether it is looked at only because nothing was heard of it.
    unheard: bool,
    /// Since when it is not away.
    back: Instant,
}

impl Record {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let said = String::new();
        Record {
            looking: false,
            last: now,
            strikes: 0,
            failures: 0,
            failing: None,
            told: false,
            late: None,
            wrong: None,
            said,
            slow: false,
            heard: now,
            unheard: false,
            back: now,
        }
    }

    /// Whether it came back after `then`: what failed before says nothing of it now.
    pub(super) fn is_back_since(&self, then: Instant) -> bool {
        self.back > then
    }

    /// Whether it did what it was asked after `then`.
    pub(super) fn worked_since(&self, then: Instant) -> bool {
        self.heard > then
    }

    /// How long it is left alone where others are for `gap`.
    fn gap(&self, gap: Duration) -> Duration {
        match self.strikes {
            0 | 1 => gap,
            many => gap.max(LOOK_AGAIN).saturating_mul(1_u32.checked_shl(many - 1).unwrap_or(u32::MAX)).min(LONGEST),
        }
    }
}

/// What is wrong with a server that is there.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    engine: String,
    reason: String,
    /// Whether it refuses what it is given; else it has other numbers than the trainer.
    refuses: bool,
}

impl Wrong {
    fn new(e: Error, server: &Server, refuses: bool) -> Self {
        match e {
            Error::Engine { engine, reason } => Wrong { engine, reason, refuses },
            other => Wrong { engine: server.wire.address().to_owned(), reason: other.to_string(), refuses },
        }
    }
}

/// A look under way; it ends however it ends.
struct Look(Arc<WeightSync>, Arc<Server>);

impl Drop for Look {
    fn drop(&mut self) {
        let mut record = self.1.record();
        (record.looking, record.last) = (false, Instant::now());
        drop(record);
        self.0.stirred.notify_waiters();
    }
}

impl WeightSync {
    /// Gives a server no requests until it has been looked at. `line` is what is said of it the first time.
    pub(super) fn put_away(&self, server: &Server, problem: &str, line: impl FnOnce(&str) -> String) {
        if !server.up.swap(false, Ordering::SeqCst) {
            return;
        }
        let address = server.wire.address();
        let strikes = {
            let mut record = server.record();
            record.last = Instant::now();
            record.strikes += 1;
            record.said = problem.to_owned();
            record.told = false;
            record.strikes
        };
        match strikes {
            1 => self.settings.notices.say(line(address)),
            2 => self.settings.notices.say(format!(
                "{address} fails again ({problem}), though it answers when it is looked at; it is tried less and less often"
            )),
            _ => {}
        }
        self.stirred.notify_waiters();
    }

    /// A server answered with a failure; whether it does little else.
    pub(super) fn failed(&self, server: &Server) -> bool {
        let mut record = server.record();
        record.failures += 1;
        record.failing.get_or_insert_with(Instant::now);
        let often = record.failures >= FAILURES;
        if often {
            record.failures = 0;
        }
        often
    }

    /// Says, once, that a server which does nothing but fail is waited for.
    pub(super) fn tell(&self, server: &Server, trouble: &HttpError) {
        let (waiting, wish) = (&self.settings.waiting, server.wire.wish().unwrap_or_default());
        let mut record = server.record();
        let lasts = record.failing.map_or(Duration::ZERO, |since| since.elapsed()) + wish;
        if record.told || lasts < FAILING.min(waiting.away / 4) {
            return;
        }
        record.told = true;
        drop(record);
        let (address, is, problem) = (server.wire.address(), trouble.is(), trouble.text());
        let limit = waiting.away.as_secs_f64();
        self.settings.notices.say(format!("{address} {is} ({problem}); waiting for it, up to {limit:.0} s"));
    }

    /// A server has not answered a question for so long that it is asked again. Many may be late at once: that is said now and
    /// then.
    pub(super) fn late(&self, server: &Server, within: Duration) {
        let mut record = server.record();
        if record.late.is_some_and(|said| said.elapsed() < LONGEST) {
            return;
        }
        record.late = Some(Instant::now());
        drop(record);
        let (address, within) = (server.wire.address(), within.as_secs_f64());
        self.settings.notices.say(format!(
            "{address} has not answered a request for {within:.0} s, though it is there; it is asked for again, with twice the \
             time (answers that take so long need a larger vllm.request_timeout)"
        ));
    }

    /// A server did what it was asked to.
    pub(super) fn worked(&self, server: &Server) {
        let mut record = server.record();
        (record.heard, record.failures) = (Instant::now(), 0);
        let failing = record.failing.take();
        if let (true, Some(since)) = (std::mem::take(&mut record.told), failing) {
            let line = format!("{} works again after {:.0} s", server.wire.address(), since.elapsed().as_secs_f64());
            self.settings.notices.say(line);
        }
        if record.strikes > 0 && record.last.elapsed() >= CALM.min(self.settings.waiting.attempt) {
            let recovered = std::mem::take(&mut record.strikes) > 1;
            drop(record);
            if recovered {
                self.settings.notices.say(format!("{} works again", server.wire.address()));
            }
        }
    }

    /// Looks at a server that is away, and feeds it if it is back.
    async fn look(&self, server: &Server) {
        if server.alive(ALIVE).await.is_err() {
            server.record().wrong = None;
            return;
        }
        let address = server.wire.address();
        let told = !std::mem::take(&mut server.record().unheard);
        let slow = async {
            tokio::time::sleep(WORTH_A_LINE.min(self.settings.waiting.attempt)).await;
            if !std::mem::replace(&mut server.record().slow, true) {
                self.settings.notices.say(format!("{address} is back, and is still being given what it missed"));
            }
            std::future::pending().await
        };
        let (problem, wrong) = match race(self.feed(server), slow).await {
            Ok(fed) => {
                let again = if fed > 0 { format!(", {fed} adapters were given to it again") } else { String::new() };
                let mut record = server.record();
                (record.wrong, record.slow, record.back) = (None, false, Instant::now());
                // Nobody was told that one is away which is only looked at before it is asked again.
                let worth_a_line = record.strikes < 2 && (told || fed > 0);
                record.said.clear();
                drop(record);
                if worth_a_line {
                    self.settings.notices.say(format!("{address} is back{again}"));
                }
                return;
            }
            Err(Given::Away(problem)) => (problem, None),
            Err(Given::Refused(e)) => (e.to_string(), Some(Wrong::new(e, server, true))),
            Err(Given::Wrong(e)) => (e.to_string(), Some(Wrong::new(e, server, false))),
        };
        let mut record = server.record();
        record.wrong = wrong;
        // It is looked at again and again, and told about once.
        let news = std::mem::replace(&mut record.said, problem.clone()) != problem;
        drop(record);
        if news {
            self.settings.notices.say(format!("{address} is back, but gets no requests: {problem}"));
        }
    }
}

impl VllmPool {
    /// Begins to look at all servers that are away and were left alone for `gap`; at which.
    pub(super) fn look_after(&self, gap: Duration) -> Vec<&Arc<Server>> {
        let due = |server: &&Arc<Server>| {
            if server.up.load(Ordering::SeqCst) || server.draining.load(Ordering::SeqCst) {
                return false;
            }
            let mut record = server.record();
            let left_alone = record.last.elapsed() >= record.gap(gap) && server.wire.wish().is_none();
            let due = !record.looking && left_alone;
            record.looking |= due;
            due
        };
        let begun: Vec<&Arc<Server>> = self.servers.iter().filter(due).collect();
        for server in &begun {
            let look = Look(Arc::clone(&self.shelf), Arc::clone(server));
            tokio::spawn(async move { look.0.look(&look.1).await });
        }
        begun
    }

    /// The same now and then, where others work meanwhile.
    pub(super) fn look_around(&self) {
        if self.shelf.replaced.load(Ordering::SeqCst) {
            self.doubt_the_unheard();
        }
        self.look_after(LOOK_AROUND);
    }

    /// Has servers looked at before they are asked that nobody has asked for a while. One that was started anew meanwhile
    /// does not know our adapters, and says so; but that it has the weights it started with shows nowhere else.
    fn doubt_the_unheard(&self) {
        let limit = UNHEARD.min(self.shelf.settings.waiting.attempt);
        for server in self.servers.iter().filter(|s| s.ready() && s.load.load(Ordering::SeqCst) == 0) {
            let mut record = server.record();
            if record.heard.max(record.back).elapsed() > limit {
                record.unheard = true;
                server.up.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Looks at all servers that are away, until one can be asked or there is nobody left to look at. What is wrong with
    /// them, where that is so of all.
    pub(super) async fn revive(&self) -> Option<Error> {
        self.look_after(LOOK_AGAIN);
        loop {
            let stirred = self.shelf.stirred.notified();
            if self.servers.iter().any(|s| s.ready()) {
                return None;
            }
            if !self.servers.iter().any(|s| s.record().looking) {
                return self.wrong();
            }
            stirred.await;
        }
    }

    /// Looks at all servers that are away, and waits a little for those that are back.
    pub(super) async fn welcome(&self) {
        let begun = self.look_after(Duration::ZERO);
        let looked = async {
            loop {
                let stirred = self.shelf.stirred.notified();
                if begun.iter().all(|s| !s.record().looking) {
                    return;
                }
                stirred.await;
            }
        };
        let _ = tokio::time::timeout(WELCOME, looked).await;
    }

    /// What is wrong with servers that are there, where none can be asked: other numbers than the trainer's, or a refusal by all
    /// of them. Where one refuses and another is only away, that one may come back.
    pub(super) fn wrong(&self) -> Option<Error> {
        if self.servers.iter().any(|s| s.up.load(Ordering::SeqCst)) {
            return None;
        }
        let found: Vec<Wrong> = self.servers.iter().filter_map(|s| s.record().wrong.clone()).collect();
        let all_refuse = found.len() == self.servers.len();
        let Wrong { engine, reason, .. } = found.into_iter().find(|wrong| all_refuse || !wrong.refuses)?;
        Some(Error::Engine { engine, reason })
    }

    /// What was last said of the servers.
    pub(super) fn troubles(&self) -> String {
        let of = |server: &Arc<Server>| {
            let said = server.record().said.clone();
            (!said.is_empty()).then(|| format!(" ({}: {said})", server.wire.address()))
        };
        self.servers.iter().filter_map(of).collect()
    }
}
