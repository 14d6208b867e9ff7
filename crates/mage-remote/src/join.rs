//! How does one ask several servers at the same time?

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

/// Waits for all of them at once; what they came to, in their order. For a handful: each is looked at whenever one stirs.
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut under_way: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (future, done) in under_way.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
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

/// Waits for whichever comes to an end first; the other is given up.
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
    async fn all_are_under_way_at_once_and_keep_their_order() {
        // Nobody passes before all are there: one after the other would wait forever.
        let barrier = Barrier::new(3);
        let met = join_all((0..3).map(|i| {
            let barrier = &barrier;
            async move {
                barrier.wait().await;
                i
            }
        }))
        .await;
        assert_eq!(met, [0, 1, 2]);
        assert!(join_all(Vec::<std::future::Ready<u8>>::new()).await.is_empty());
    }

    #[tokio::test]
    async fn the_first_to_end_is_not_held_up_by_the_other() {
        assert_eq!(race(std::future::ready(1), std::future::pending()).await, 1);
        assert_eq!(race(std::future::pending(), std::future::ready(2)).await, 2);
    }
}
