//! How does a thread wait for futures?

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

/// Waits for a future on this thread, which sleeps meanwhile.
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

/// Places whose futures want to be looked at, and the thread that looks.
struct Bell {
    rung: Mutex<Vec<usize>>,
    thread: Thread,
}

struct Ring {
    place: usize,
    bell: Arc<Bell>,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
        self.bell.thread.unpark();
    }
}

/// Waits for many futures on this thread, at most `limit` (at least 1) under way at once. The next one is taken from
/// `futures` when there is room for it; `each` is told of every result, with the number of its future, as it comes.
pub fn for_each_in_flight<'a, T>(
    futures: impl IntoIterator<Item = BoxFuture<'a, T>>,
    limit: usize,
    mut each: impl FnMut(usize, T),
) {
    let bell = Arc::new(Bell { rung: Mutex::default(), thread: std::thread::current() });
    let mut futures = futures.into_iter().enumerate();
    let mut places = Vec::new();
    let mut wakers: Vec<Waker> = Vec::new();
    let mut look = Vec::new();
    let mut under_way = 0;
    // A place's future is looked at, and replaced by the next for as long as one is ready at once.
    let mut visit =
        |places: &mut Vec<Option<(usize, BoxFuture<'a, T>)>>, wakers: &[Waker], place: usize, under_way: &mut usize| {
            loop {
                if places[place].is_none() {
                    match futures.next() {
                        Some(next) => places[place] = Some(next),
                        None => return,
                    }
                    *under_way += 1;
                }
                let Some((number, future)) = &mut places[place] else { return };
                match future.as_mut().poll(&mut Context::from_waker(&wakers[place])) {
                    Poll::Pending => return,
                    Poll::Ready(result) => {
                        let number = *number;
                        places[place] = None;
                        *under_way -= 1;
                        each(number, result);
                    }
                }
            }
        };
    for place in 0..limit.max(1) {
        places.push(None);
        wakers.push(Waker::from(Arc::new(Ring { place, bell: Arc::clone(&bell) })));
        visit(&mut places, &wakers, place, &mut under_way);
        if places[place].is_none() {
            break; // there are no more
        }
    }
    while under_way > 0 {
        std::mem::swap(&mut look, &mut *bell.rung.lock().unwrap_or_else(PoisonError::into_inner));
        if look.is_empty() {
            std::thread::park();
        }
        for place in look.drain(..) {
            visit(&mut places, &wakers, place, &mut under_way);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_is_woken() {
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
        let answer = block_on(std::future::poll_fn(|context| {
            let mut s = state.lock().unwrap();
            if s.0 {
                Poll::Ready(7)
            } else {
                s.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }));
        thread.join().unwrap();
        assert_eq!(answer, 7);
    }

    #[test]
    fn every_future_is_waited_for_and_no_more_than_asked_at_once() {
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
            for_each_in_flight(futures, limit, |i, square| {
                assert_eq!(square, i * i);
                seen[i] += 1;
            });
            assert!(seen.iter().all(|s| *s == 1));
        }
    }
}
