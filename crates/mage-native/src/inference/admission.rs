//! How many requests are taken in?
//!
//! As many as there is room for; the others wait outside, each with whoever asked, in the order in which they came. The
//! door knows only numbers and wakers: what waits costs the sampler nothing else.

use std::collections::BTreeMap;
use std::task::Waker;

/// Tokens of all requests inside together, in 256 MiB. One request is let in whatever its length.
const MAX_ADMITTED_TOKENS: usize = 1 << 26;

/// The door.
pub(crate) struct AdmissionQueue {
    most: usize,
    most_tokens: usize,
    /// Requests inside, and their tokens.
    inside: (usize, usize),
    /// Those outside by their place, with the tokens they bring. Whoever is called comes again, to the same place if it
    /// was in vain.
    outside: BTreeMap<u64, (usize, Waker)>,
    next_place: u64,
}

impl AdmissionQueue {
    pub(crate) fn new(most: usize) -> Self {
        AdmissionQueue {
            most,
            most_tokens: MAX_ADMITTED_TOKENS,
            inside: (0, 0),
            outside: BTreeMap::new(),
            next_place: 0,
        }
    }

    fn has_room(&self, tokens: usize) -> bool {
        let (requests, inside) = self.inside;
        requests == 0 || (requests < self.most && inside + tokens <= self.most_tokens)
    }

    /// Whether a request with so many tokens is let in: there is room, and nobody before it waits. If not, whoever has a
    /// waker is called later.
    pub(crate) fn enter(&mut self, tokens: usize, place: &mut Option<u64>, waker: Option<&Waker>) -> bool {
        let first = self.outside.keys().next();
        if self.has_room(tokens) && first.is_none_or(|first| place.is_some_and(|p| p <= *first)) {
            self.leave(place.unwrap_or(u64::MAX));
            self.inside = (self.inside.0 + 1, self.inside.1 + tokens);
            return true;
        }
        if let Some(waker) = waker {
            let place = *place.get_or_insert_with(|| {
                self.next_place += 1;
                self.next_place
            });
            self.outside.insert(place, (tokens, waker.clone()));
        }
        false
    }

    /// Gives up a place.
    pub(crate) fn leave(&mut self, place: u64) {
        self.outside.remove(&place);
    }

    /// Takes note of what is inside now and gives the wakers of those for whom there is room. Once nothing is inside, all
    /// are called: nobody waits for one who was called and does not come.
    pub(crate) fn make_room(&mut self, inside: (usize, usize)) -> Vec<Waker> {
        self.inside = inside;
        if inside.0 == 0 {
            return std::mem::take(&mut self.outside).into_values().map(|(_, waker)| waker).collect();
        }
        let (mut requests, mut tokens) = inside;
        let mut called = Vec::new();
        while let Some(first) = self.outside.first_entry() {
            requests += 1;
            tokens += first.get().0;
            if requests > self.most || tokens > self.most_tokens {
                break;
            }
            called.push(first.remove().1);
        }
        called
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn bell() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        (Arc::clone(&bell), Waker::from(bell))
    }

    #[test]
    fn those_outside_come_in_as_they_came() {
        let mut door = AdmissionQueue::new(2);
        assert!(door.enter(5, &mut None, None) && door.enter(5, &mut None, None));
        let ((a, wake_a), (b, wake_b)) = (bell(), bell());
        let (mut at_a, mut at_b) = (None, None);
        assert!(!door.enter(5, &mut at_a, Some(&wake_a)) && !door.enter(5, &mut at_b, Some(&wake_b)));
        assert!(door.make_room((2, 10)).is_empty(), "nobody has left");
        door.make_room((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!((a.0.load(Ordering::Relaxed), b.0.load(Ordering::Relaxed)), (1, 0));
        assert!(!door.enter(5, &mut None, None), "a newcomer does not pass those outside");
        assert!(door.enter(5, &mut at_a, Some(&wake_a)));
        assert!(!door.enter(5, &mut at_b, Some(&wake_b)), "and it is full again");
        // One that was called in vain keeps its place before those who came later.
        door.make_room((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!(b.0.load(Ordering::Relaxed), 1);
        assert!(door.enter(5, &mut None, None), "it has been called and is slow to come");
        let mut later = None;
        assert!(!door.enter(5, &mut later, Some(&wake_a)) && !door.enter(5, &mut at_b, Some(&wake_b)));
        assert!(at_b < later);
        door.make_room((1, 5)).into_iter().for_each(Waker::wake);
        assert_eq!((a.0.load(Ordering::Relaxed), b.0.load(Ordering::Relaxed)), (1, 2));
    }

    #[test]
    fn whoever_leaves_or_does_not_come_holds_nobody_up() {
        let mut door = AdmissionQueue::new(1);
        assert!(door.enter(5, &mut None, None));
        let (bell, waker) = bell();
        let mut places = [None; 3];
        for place in &mut places {
            assert!(!door.enter(5, place, Some(&waker)));
        }
        door.leave(places[0].unwrap());
        assert_eq!(door.make_room((0, 0)).into_iter().map(Waker::wake).count(), 2, "nothing is inside: all are called");
        assert_eq!(bell.0.load(Ordering::Relaxed), 2);
        assert!(door.enter(5, &mut places[2], Some(&waker)), "the one before it does not come");
    }

    #[test]
    fn long_requests_take_more_room_and_the_longest_still_gets_in() {
        let mut door = AdmissionQueue { most_tokens: 100, ..AdmissionQueue::new(10) };
        assert!(door.enter(60, &mut None, None) && !door.enter(60, &mut None, None) && door.enter(40, &mut None, None));
        let (bell, waker) = bell();
        let mut place = None;
        assert!(!door.enter(500, &mut place, Some(&waker)) && door.make_room((1, 40)).is_empty());
        assert!(!door.enter(500, &mut place, Some(&waker)));
        door.make_room((0, 0)).into_iter().for_each(Waker::wake);
        assert_eq!(bell.0.load(Ordering::Relaxed), 1);
        assert!(door.enter(500, &mut place, Some(&waker)));
        assert!(!door.enter(1, &mut None, None));
    }
}
