//! How are strategies written down and put together?

use crate::{ActionId, ActionProbs, Game, Opponent, Strategy};
use std::collections::BTreeMap;

/// Action probabilities by seat and information set: a strategy for any game and for all seats it lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TabularPolicy {
    rows: BTreeMap<(u8, String), ActionProbs>,
}

impl TabularPolicy {
    /// Sets what is done in one information set.
    pub fn insert(&mut self, seat: u8, text: impl Into<String>, probs: ActionProbs) {
        self.rows.insert((seat, text.into()), probs);
    }

    /// What is done in one information set.
    pub fn get(&self, seat: u8, text: &str) -> Option<&ActionProbs> {
        self.rows.get(&(seat, text.to_owned()))
    }

    /// All rows: seat, information set, probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &str, &ActionProbs)> {
        self.rows.iter().map(|((seat, text), probs)| (*seat, text.as_str(), probs))
    }

    /// The policy that always takes the likeliest action (ties: the first).
    #[must_use]
    pub fn argmax(&self) -> Self {
        let rows = self.rows.iter().map(|(key, probs)| {
            let best = probs.iter().fold(None, |best: Option<(ActionId, f64)>, x| match best {
                Some(b) if b.1 >= x.1 => best,
                _ => Some(*x),
            });
            let sure = probs.iter().map(|(a, _)| (*a, f64::from(u8::from(best.is_some_and(|b| b.0 == *a))))).collect();
            (key.clone(), sure)
        });
        TabularPolicy { rows: rows.collect() }
    }
}

impl<G: Game> Opponent<G> for TabularPolicy {
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs> {
        self.get(seat, &game.observe(s, seat)).cloned()
    }
}

/// A strategy for every seat, as one player of all of them.
pub struct Profile<G: Game>(pub Vec<Strategy<G>>);

impl<G: Game> Opponent<G> for Profile<G> {
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs> {
        self.0.get(usize::from(seat))?.policy(game, s, seat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn argmax_takes_the_first_of_equals() {
        let mut p = TabularPolicy::default();
        p.insert(0, "a", smallvec![(ActionId(0), 0.4), (ActionId(1), 0.6)]);
        p.insert(1, "b", smallvec![(ActionId(3), 0.5), (ActionId(4), 0.5)]);
        let best = p.argmax();
        assert_eq!(best.get(0, "a").unwrap().as_slice(), [(ActionId(0), 0.0), (ActionId(1), 1.0)]);
        assert_eq!(best.get(1, "b").unwrap().as_slice(), [(ActionId(3), 1.0), (ActionId(4), 0.0)]);
    }
}
