//! Minimal executors that run futures on the calling thread.

use crate::BoxFuture;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks this thread until a future completes.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Indices of slots whose futures are to be polled, and the thread that polls them.
struct ReadyQueue {
    ready: Mutex<Vec<usize>>,
    thread: Thread,
}

struct SlotWaker {
    slot: usize,
    queue: Arc<ReadyQueue>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue.ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
        self.queue.thread.unpark();
    }
}

/// Runs many futures on this thread, at most `limit` (at least 1) concurrently. The next future is taken from `futures`
/// when a slot is free. `on_result` receives each result with the index of its future, in order of completion.
pub fn for_each_concurrent<'a, T>(
    futures: impl IntoIterator<Item = BoxFuture<'a, T>>,
    limit: usize,
    mut on_result: impl FnMut(usize, T),
) {
    let queue = Arc::new(ReadyQueue { ready: Mutex::default(), thread: std::thread::current() });
    let mut futures = futures.into_iter().enumerate();
    let mut slots = Vec::new();
    let mut wakers: Vec<Waker> = Vec::new();
    let mut to_poll = Vec::new();
    let mut in_flight = 0;
    // Polls the future of a slot, and refills the slot for as long as futures are ready at once.
    let mut poll_slot =
        |slots: &mut Vec<Option<(usize, BoxFuture<'a, T>)>>, wakers: &[Waker], slot: usize, in_flight: &mut usize| {
            loop {
                if slots[slot].is_none() {
                    match futures.next() {
                        Some(next) => slots[slot] = Some(next),
                        None => return,
                    }
                    *in_flight += 1;
                }
                let Some((index, future)) = &mut slots[slot] else { return };
                match future.as_mut().poll(&mut Context::from_waker(&wakers[slot])) {
                    Poll::Pending => return,
                    Poll::Ready(result) => {
                        let index = *index;
                        slots[slot] = None;
                        *in_flight -= 1;
                        on_result(index, result);
                    }
                }
            }
        };
    for slot in 0..limit.max(1) {
        slots.push(None);
        wakers.push(Waker::from(Arc::new(SlotWaker { slot, queue: Arc::clone(&queue) })));
        poll_slot(&mut slots, &wakers, slot, &mut in_flight);
        if slots[slot].is_none() {
            break; // no futures are left
        }
    }
    while in_flight > 0 {
        std::mem::swap(&mut to_poll, &mut *queue.ready.lock().unwrap_or_else(PoisonError::into_inner));
        if to_poll.is_empty() {
            std::thread::park();
        }
        for slot in to_poll.drain(..) {
            poll_slot(&mut slots, &wakers, slot, &mut in_flight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waker_unparks_the_blocked_thread() {
        let state: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
        let other = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            loop {
                let mut s = other.lock().unwrap();
                if let Some(waker) = s.1.take() {
                    s.0 = true;
                    drop(s);
                    return waker.wake();
                }
                drop(s);
                std::thread::yield_now();
            }
        });
        let result = block_on(std::future::poll_fn(|context| {
            let mut s = state.lock().unwrap();
            if s.0 {
                Poll::Ready(7)
            } else {
                s.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }));
        thread.join().unwrap();
        assert_eq!(result, 7);
    }

    #[test]
    fn all_futures_complete_within_the_concurrency_limit() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NOW: AtomicUsize = AtomicUsize::new(0);
        for (count, limit) in [(100, 7), (3, 10), (0, 2), (20, 0)] {
            let futures = (0..count).map(|i: usize| -> BoxFuture<'static, usize> {
                let mut left = i % 4;
                Box::pin(async move {
                    assert!(NOW.fetch_add(1, Ordering::SeqCst) < limit.max(1));
                    std::future::poll_fn(|context| {
                        if left == 0 {
                            return Poll::Ready(());
                        }
                        left -= 1;
                        let waker = context.waker().clone();
                        std::thread::spawn(move || waker.wake());
                        Poll::Pending
                    })
                    .await;
                    NOW.fetch_sub(1, Ordering::SeqCst);
                    i * i
                })
            });
            let mut seen = vec![0; count];
            for_each_concurrent(futures, limit, |i, square| {
                assert_eq!(square, i * i);
                seen[i] += 1;
            });
            assert!(seen.iter().all(|s| *s == 1));
        }
    }
}
