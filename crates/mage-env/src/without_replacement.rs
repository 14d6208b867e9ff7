//! Sampling without replacement from a finite stock of start states: games, levels or goals.

use mage_rng::Seed;
use rand::seq::SliceRandom;

/// Indices below `len`, sampled without replacement: an endless sequence of shuffles, starting at position `first`.
pub(crate) fn without_replacement(len: usize, first: u64, seed: Seed) -> impl Iterator<Item = usize> {
    let mut order: (u64, Vec<usize>) = (u64::MAX, Vec::new());
    (first..).map(move |i| {
        let pass = i / len as u64;
        if order.0 != pass {
            order = (pass, (0..len).collect());
            order.1.shuffle(&mut seed.child("pass").at(pass).rng());
        }
        order.1[(i % len as u64) as usize]
    })
}
