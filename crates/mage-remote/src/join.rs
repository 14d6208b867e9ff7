//! Minimal `join_all` and `race` for futures.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

/// Runs all futures concurrently and returns their outputs in order. Every future is polled whenever one wakes, so use
/// it for a few only.
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (future, done) in pending.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(output) => *done = Some(output),
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Returns the output of the future that completes first and drops the other.
pub(crate) async fn race<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(output),
        Poll::Pending => other.as_mut().poll(context),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Barrier;

    #[tokio::test]
    async fn join_all_runs_concurrently_and_keeps_order() {
        // Sequential execution would block at the barrier forever.
        let barrier = Barrier::new(3);
        let outputs = join_all((0..3).map(|i| {
            let barrier = &barrier;
            async move {
                barrier.wait().await;
                i
            }
        }))
        .await;
        assert_eq!(outputs, [0, 1, 2]);
        assert!(join_all(Vec::<std::future::Ready<u8>>::new()).await.is_empty());
    }

    #[tokio::test]
    async fn race_returns_the_first_output() {
        assert_eq!(race(std::future::ready(1), std::future::pending()).await, 1);
        assert_eq!(race(std::future::pending(), std::future::ready(2)).await, 2);
    }
}
