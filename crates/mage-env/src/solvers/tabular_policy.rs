//! Tabular strategies and strategy profiles.

use crate::{ActionId, ActionProbs, Game, Opponent, Strategy};
use std::collections::BTreeMap;

/// Action probabilities by seat and information set: a behaviour strategy for all seats it lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TabularPolicy {
    entries: BTreeMap<(u8, String), ActionProbs>,
}

impl TabularPolicy {
    /// Sets the action probabilities of an information set.
    pub fn insert(&mut self, seat: u8, info_set: impl Into<String>, probs: ActionProbs) {
        self.entries.insert((seat, info_set.into()), probs);
    }

    /// The action probabilities of an information set.
    pub fn get(&self, seat: u8, info_set: &str) -> Option<&ActionProbs> {
        self.entries.get(&(seat, info_set.to_owned()))
    }

    /// All entries: seat, information set, probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &str, &ActionProbs)> {
        self.entries.iter().map(|((seat, info_set), probs)| (*seat, info_set.as_str(), probs))
    }

    /// The deterministic policy of the likeliest action (ties: the first).
    #[must_use]
    pub fn argmax(&self) -> Self {
        let entries = self.entries.iter().map(|(key, probs)| {
            let best = probs.iter().fold(None, |best: Option<(ActionId, f64)>, x| match best {
                Some(b) if b.1 >= x.1 => best,
                _ => Some(*x),
            });
            let deterministic =
                probs.iter().map(|(a, _)| (*a, f64::from(u8::from(best.is_some_and(|b| b.0 == *a))))).collect();
            (key.clone(), deterministic)
        });
        TabularPolicy { entries: entries.collect() }
    }
}

impl<G: Game> Opponent<G> for TabularPolicy {
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs> {
        self.get(seat, &game.observe(s, seat)).cloned()
    }
}

/// One strategy per seat, as a single player of all seats.
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
    fn argmax_breaks_ties_by_action_order() {
        let mut p = TabularPolicy::default();
        p.insert(0, "a", smallvec![(ActionId(0), 0.4), (ActionId(1), 0.6)]);
        p.insert(1, "b", smallvec![(ActionId(3), 0.5), (ActionId(4), 0.5)]);
        let best = p.argmax();
        assert_eq!(best.get(0, "a").unwrap().as_slice(), [(ActionId(0), 0.0), (ActionId(1), 1.0)]);
        assert_eq!(best.get(1, "b").unwrap().as_slice(), [(ActionId(3), 1.0), (ActionId(4), 0.0)]);
    }
}
