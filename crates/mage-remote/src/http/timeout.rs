//! How long is a server in trouble waited for, and what is said meanwhile?
//!
//! Whether it does not answer, has too much to do or fails: as long as patience lasts, since the trouble began, with one line
//! between all who wait when that is worth one, and one when it is over. The error says what went wrong first.

use crate::{
    http::client::{HttpClient, HttpError},
    http::outage::Waiter,
};
use std::time::Duration;
use tokio::time::Instant;

/// Somebody is told of trouble that lasts so long.
const WORTH_A_LINE: Duration = Duration::from_secs(2);

/// One request's patience with a server.
pub(crate) struct RetryDeadline<'w> {
    wire: &'w HttpClient,
    started: Instant,
    since: Option<Instant>,
    first: Option<String>,
    waiter: Option<Waiter<'w>>,
}

impl<'w> RetryDeadline<'w> {
    pub(crate) fn new(wire: &'w HttpClient) -> Self {
        RetryDeadline { wire, started: Instant::now(), since: None, first: None, waiter: None }
    }

    /// Bears with trouble that came of what was `asked` then; it comes back when patience is at an end.
    pub(crate) fn bear(&mut self, asked: Instant, trouble: &HttpError) -> Result<(), HttpError> {
        let (text, wire) = (trouble.text(), self.wire);
        let since = *self.since.get_or_insert_with(Instant::now);
        let first = self.first.get_or_insert_with(|| text.clone());
        let limit = wire.waiting.away;
        if since.elapsed() >= limit {
            let said = if *first == text { text } else { format!("{first}; at last: {text}") };
            let said = format!("{said} (waited {:.0} s)", limit.as_secs_f64());
            return Err(match trouble {
                HttpError::Failing(_) => HttpError::Failing(said),
                HttpError::Busy(_) => HttpError::Busy(said),
                _ => HttpError::Away(said),
            });
        }
        let waiter = self.waiter.get_or_insert_with(|| wire.outage.wait());
        // One that asks to be left alone is not asked before that is over: it is worth a line now.
        let wish = wire.wish().unwrap_or_default().min(limit.saturating_sub(since.elapsed()));
        if waiter.is_news(self.started, since, asked, WORTH_A_LINE.min(limit / 4).saturating_sub(wish)) {
            let (address, limit) = (wire.address(), limit.as_secs_f64());
            let is = match (wish.as_secs_f64(), trouble) {
                (..1.0, _) => trouble.is().to_owned(),
                (wish, HttpError::Away(_)) => format!("cannot answer now and asks to be left alone for {wish:.0} s"),
                (wish, _) => format!("{} and asks to be left alone for {wish:.0} s", trouble.is()),
            };
            wire.notices.say(format!("{address} {is} ({text}); waiting for it, up to {limit:.0} s"));
        }
        Ok(())
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        let limit = self.wire.waiting.away;
        self.since.map_or(limit, |since| limit.saturating_sub(since.elapsed()))
    }

    /// It answers; whoever was told that it is in trouble hears of it.
    pub(crate) fn over(&mut self) {
        self.since = None;
        if let Some(away) = self.waiter.take().and_then(|w| w.is_over()) {
            let seconds = away.as_secs_f64();
            self.wire.notices.say(format!("{} is back after {seconds:.0} s", self.wire.address()));
        }
    }
}
