//! Concurrent execution of jobs on a runtime.

use crate::{Error, Result};
use std::{ops::ControlFlow, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// Runs all jobs, at most `max_in_flight` at once. `on_finished` receives the results in the order in which jobs
/// finish, several at a time if they do, and an empty vector after each `interval` in which none finished. If it breaks,
/// running jobs are dropped. New jobs start before `on_finished` runs, unless `hold` is true for a result. Jobs must
/// not panic; if one does, the results of others are still passed on.
pub(crate) async fn run_concurrently<F>(
    jobs: impl IntoIterator<Item = F>,
    max_in_flight: usize,
    interval: Duration,
    hold: impl Fn(&F::Output) -> bool,
    mut on_finished: impl FnMut(Vec<F::Output>) -> Result<ControlFlow<()>>,
) -> Result<()>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut queue = jobs.into_iter();
    let mut running = JoinSet::new();
    let mut fill = |running: &mut JoinSet<F::Output>| {
        while running.len() < max_in_flight
            && let Some(job) = queue.next()
        {
            running.spawn(job);
        }
    };
    loop {
        fill(&mut running);
        let (mut finished, mut panicked) = (Vec::new(), None);
        match timeout(interval, running.join_next()).await {
            Ok(None) => return Ok(()),
            Err(_) => {}
            Ok(Some(first)) => {
                for joined in std::iter::once(first).chain(std::iter::from_fn(|| running.try_join_next())) {
                    match joined {
                        Ok(result) => finished.push(result),
                        Err(e) => panicked = Some(e),
                    }
                }
                if !finished.iter().any(&hold) {
                    fill(&mut running);
                }
            }
        }
        if on_finished(finished)?.is_break() {
            return Ok(());
        }
        if let Some(e) = panicked {
            return Err(Error::Stopped(format!("a meta-episode was aborted: {e}")));
        }
    }
}
