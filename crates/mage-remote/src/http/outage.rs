//! Who says that a server is away, or back?
//!
//! One of all who wait for it, once. Somebody may still hang on what was asked before it came back: that it fails later is an
//! echo of an absence that is over, and no news.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What is known of a server's absence by all who share it.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Since when it is away, where that was said.
    told: Option<Instant>,
    /// When it was last said to be back.
    back: Option<Instant>,
    waiting: usize,
}

/// One who waits for it. What was said is forgotten with the last of them.
#[derive(Debug)]
pub(crate) struct Waiter<'o>(&'o Outage);

impl Outage {
    /// Begins to wait.
    pub(crate) fn wait(&self) -> Waiter<'_> {
        self.known().waiting += 1;
        Waiter(self)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter<'_> {
    /// Whether it is for this one to say that it is away: nobody has, what was `asked` in vain is no echo, and it takes `worth` by
    /// now. It has been wanted since `started`, and away `since`.
    pub(crate) fn is_news(&self, started: Instant, since: Instant, asked: Instant, worth: Duration) -> bool {
        let mut known = self.0.known();
        let after_it_was_back = |at: Instant| known.back.map_or(at, |back| at.max(back));
        let news =
            known.told.is_none() && after_it_was_back(asked) == asked && after_it_was_back(started).elapsed() >= worth;
        if news {
            known.told = Some(after_it_was_back(since));
        }
        news
    }

    /// It has answered: how long it was away, where that was said and this one is the first to see it back.
    pub(crate) fn is_over(&self) -> Option<Duration> {
        let mut known = self.0.known();
        let since = known.told.take()?;
        known.back = Some(Instant::now());
        Some(since.elapsed())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut known = self.0.known();
        known.waiting -= 1;
        if known.waiting == 0 {
            known.told = None;
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
    fn one_says_it_and_echoes_are_no_news() {
        let (outage, then) = (Outage::default(), long_ago());
        let (first, hanging) = (outage.wait(), outage.wait());
        assert!(!first.is_news(then, then, then, LONG * 100), "too early");
        assert!(first.is_news(then, then, then, LONG));
        assert!(!hanging.is_news(then, then, then, LONG), "it was said");
        assert!(first.is_over().is_some_and(|away| away > LONG));
        assert!(!hanging.is_news(then, then, then, Duration::ZERO), "asked before it was back");
        assert_eq!(hanging.is_over(), None, "that was said too");
        // It goes away again: that is news once it lasts.
        let asked = Instant::now();
        assert!(!hanging.is_news(then, then, asked, LONG), "it was back just now");
        assert!(hanging.is_news(then, then, asked, Duration::ZERO));
        assert!(hanging.is_over().is_some_and(|away| away < LONG), "since it was last back");
    }

    #[test]
    fn who_gives_up_says_nothing_anew_while_others_wait() {
        let (outage, then) = (Outage::default(), long_ago());
        let (first, second) = (outage.wait(), outage.wait());
        assert!(first.is_news(then, then, then, LONG));
        drop(first);
        assert!(!second.is_news(then, then, then, LONG), "it was said, and is still so");
        drop(second);
        // Nobody is left who could say that it is back: the next to wait says that it is away.
        assert!(outage.wait().is_news(then, then, then, LONG));
    }

    /// Answers as a server of the engines does.
    async fn answer(mut stream: tokio::net::TcpStream) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
    }

    #[tokio::test]
    async fn that_a_server_is_back_is_said_once_though_some_still_hang_on_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let hear = Arc::clone(&said);
        // Whoever comes before it was said to be away hangs for good; whoever comes later is answered.
        let server = tokio::spawn(async move {
            let mut hanging = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                if hear.lock().unwrap().is_empty() {
                    hanging.push(stream);
                } else {
                    tokio::spawn(answer(stream));
                }
            }
        });
        let hear = Arc::clone(&said);
        let notices = StatusLog::to(move |line| hear.lock().unwrap().push(line.to_owned()));
        let waiting =
            Timeouts { attempt: Duration::from_millis(300), away: Duration::from_secs(1), ..Timeouts::default() };
        let wire = HttpClient::new(&format!("http://{address}"), None, waiting, notices).unwrap();
        let ask = HttpRequest::get("health");
        // One after the other, so that most hang on what they asked before the first sees it back.
        let all = crate::join::join_all((0..12).map(async |i| {
            tokio::time::sleep(Duration::from_millis(25) * i).await;
            wire.ask(&ask).await
        }));
        assert!(all.await.iter().all(Result::is_ok));
        server.abort();
        let said = said.lock().unwrap();
        assert!(said.len() == 2 && said[0].contains("waiting for it") && said[1].contains("is back after"), "{said:?}");
    }
}
