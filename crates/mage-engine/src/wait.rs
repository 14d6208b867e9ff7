//! How does a thread wait for a future?

use std::pin::pin;
use std::sync::Arc;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

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
}
