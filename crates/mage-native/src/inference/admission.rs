//! The admission queue: a bounded number of requests is admitted; the others wait in FIFO order.
//!
//! A waiting request stays with its caller. The queue stores only its token count and its waker, so that a waiting request
//! costs the sampler nothing else.

use std::collections::BTreeMap;
use std::task::Waker;

/// Tokens of all admitted requests together (256 MiB of token ids). One request is admitted whatever its length.
const MAX_ADMITTED_TOKENS: usize = 1 << 26;

/// Bounded FIFO admission with backpressure.
pub(crate) struct AdmissionQueue {
    max_requests: usize,
    max_tokens: usize,
    /// Admitted requests and their tokens.
    admitted: (usize, usize),
    /// Waiting requests by queue position, with their tokens. A request that was woken tries again and keeps its position if
    /// it is still not admitted.
    waiting: BTreeMap<u64, (usize, Waker)>,
    next_position: u64,
}

impl AdmissionQueue {
    pub(crate) fn new(max_requests: usize) -> Self {
        AdmissionQueue {
            max_requests,
            max_tokens: MAX_ADMITTED_TOKENS,
            admitted: (0, 0),
            waiting: BTreeMap::new(),
            next_position: 0,
        }
    }

    fn has_capacity(&self, tokens: usize) -> bool {
        let (requests, admitted) = self.admitted;
        requests == 0 || (requests < self.max_requests && admitted + tokens <= self.max_tokens)
    }

    /// Admits a request if there is capacity and no earlier request waits. Otherwise the request waits, provided that it has
    /// a waker.
    pub(crate) fn try_admit(&mut self, tokens: usize, position: &mut Option<u64>, waker: Option<&Waker>) -> bool {
        let first = self.waiting.keys().next();
        if self.has_capacity(tokens) && first.is_none_or(|first| position.is_some_and(|p| p <= *first)) {
            self.withdraw(position.unwrap_or(u64::MAX));
            self.admitted = (self.admitted.0 + 1, self.admitted.1 + tokens);
            return true;
        }
        if let Some(waker) = waker {
            let position = *position.get_or_insert_with(|| {
                self.next_position += 1;
                self.next_position
            });
            self.waiting.insert(position, (tokens, waker.clone()));
        }
        false
    }

    /// Removes a waiting request.
    pub(crate) fn withdraw(&mut self, position: u64) {
        self.waiting.remove(&position);
    }

    /// Sets the admitted load and returns the wakers of the requests that now fit. With nothing admitted, all are woken, so
    /// that a woken request that never polls again cannot block the others.
    pub(crate) fn update(&mut self, admitted: (usize, usize)) -> Vec<Waker> {
        self.admitted = admitted;
        if admitted.0 == 0 {
            return std::mem::take(&mut self.waiting).into_values().map(|(_, waker)| waker).collect();
        }
        let (mut requests, mut tokens) = admitted;
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            requests += 1;
            tokens += first.get().0;
            if requests > self.max_requests || tokens > self.max_tokens {
                break;
            }
            woken.push(first.remove().1);
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counting_waker() -> (Arc<WakeCount>, Waker) {
        let count = Arc::new(WakeCount::default());
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn waiting_requests_are_admitted_in_fifo_order() {
        let mut queue = AdmissionQueue::new(2);
        assert!(queue.try_admit(5, &mut None, None) && queue.try_admit(5, &mut None, None));
        let ((a, wake_a), (b, wake_b)) = (counting_waker(), counting_waker());
        let (mut at_a, mut at_b) = (None, None);
        assert!(!queue.try_admit(5, &mut at_a, Some(&wake_a)) && !queue.try_admit(5, &mut at_b, Some(&wake_b)));
        assert!(queue.update((2, 10)).is_empty(), "none has finished");
        queue.update((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!((a.0.load(Ordering::Relaxed), b.0.load(Ordering::Relaxed)), (1, 0));
        assert!(!queue.try_admit(5, &mut None, None), "a new request does not overtake waiting ones");
        assert!(queue.try_admit(5, &mut at_a, Some(&wake_a)));
        assert!(!queue.try_admit(5, &mut at_b, Some(&wake_b)), "full again");
        // A request that was woken in vain keeps its position before later ones.
        queue.update((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!(b.0.load(Ordering::Relaxed), 1);
        assert!(queue.try_admit(5, &mut None, None), "b was woken and has not polled yet");
        let mut later = None;
        assert!(!queue.try_admit(5, &mut later, Some(&wake_a)) && !queue.try_admit(5, &mut at_b, Some(&wake_b)));
        assert!(at_b < later);
        queue.update((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!((a.0.load(Ordering::Relaxed), b.0.load(Ordering::Relaxed)), (1, 2));
    }

    #[test]
    fn requests_that_withdraw_or_never_poll_again_do_not_block_others() {
        let mut queue = AdmissionQueue::new(1);
        assert!(queue.try_admit(5, &mut None, None));
        let (count, waker) = counting_waker();
        let mut positions = [None; 3];
        for position in &mut positions {
            assert!(!queue.try_admit(5, position, Some(&waker)));
        }
        queue.withdraw(positions[0].unwrap());
        assert_eq!(queue.update((0, 0)).into_iter().map(Waker::wake).count(), 2, "nothing is admitted: all are woken");
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert!(queue.try_admit(5, &mut positions[2], Some(&waker)), "the one before it does not poll");
    }

    #[test]
    fn tokens_bound_admission_and_the_longest_request_is_still_admitted() {
        let mut queue = AdmissionQueue { max_tokens: 100, ..AdmissionQueue::new(10) };
        assert!(queue.try_admit(60, &mut None, None));
        assert!(!queue.try_admit(60, &mut None, None) && queue.try_admit(40, &mut None, None));
        let (count, waker) = counting_waker();
        let mut position = None;
        assert!(!queue.try_admit(500, &mut position, Some(&waker)) && queue.update((1, 40)).is_empty());
        assert!(!queue.try_admit(500, &mut position, Some(&waker)));
        queue.update((0, 0)).into_iter().for_each(Waker::wake);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(queue.try_admit(500, &mut position, Some(&waker)));
        assert!(!queue.try_admit(1, &mut None, None));
    }
}
