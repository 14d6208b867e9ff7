//! How does throughput grow with the number of sampling servers? A simulation, not a measurement: `docs/scale.md` states
//! what it assumes and holds what it prints.
//!
//! `cargo run --release -p mage-remote --example scale`

use mage_env::Seed;
use rand::RngExt;
use std::{cmp::Reverse, collections::BinaryHeap};

/// What is assumed.
struct World {
    /// Meta-episodes of an update.
    meta_episodes: usize,
    /// Calls of a meta-episode, one after the other.
    calls: usize,
    /// The middle of an answer's length, in tokens, and the spread of its logarithm: the stragglers.
    tokens: f64,
    spread: f64,
    /// Calls that a server works on at once, and seconds a token takes it then.
    slots: usize,
    per_token: f64,
    /// Seconds before the first token.
    first: f64,
    /// Seconds of gradients and steps for one meta-episode.
    train: f64,
    /// Seconds a push of weights takes: to all servers at once, each of which reads the adapter and scores a sequence.
    push: f64,
}

/// Microseconds, so that they can be ordered.
type Time = u64;

/// Seconds until all meta-episodes are played by `servers`, and the share of them in which only a tenth was left.
fn rollout(w: &World, servers: usize, seed: Seed) -> (f64, f64) {
    let mut rng = seed.rng();
    let mut length = || {
        // Two uniform numbers make a normal one (Box and Muller).
        let (a, b): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        w.tokens * (w.spread * normal).exp()
    };
    // All places of all servers, by when they are free: the least busy server has the next free place.
    let mut places: BinaryHeap<Reverse<Time>> = (0..servers * w.slots).map(|_| Reverse(0)).collect();
    // Meta-episodes by when they ask next.
    let mut asking: BinaryHeap<Reverse<(Time, usize)>> = (0..w.meta_episodes).map(|m| Reverse((0, m))).collect();
    let mut left = vec![w.calls; w.meta_episodes];
    let mut ends = Vec::with_capacity(w.meta_episodes);
    while let Some(Reverse((ready, m))) = asking.pop() {
        let Reverse(free) = places.pop().expect("there are places");
        let took = w.first + w.per_token * length();
        let done = ready.max(free) + (took * 1e6) as Time;
        places.push(Reverse(done));
        left[m] -= 1;
        match left[m] {
            0 => ends.push(done),
            _ => asking.push(Reverse((done, m))),
        }
    }
    ends.sort_unstable();
    let (last, tenth) = (ends[ends.len() - 1], ends[ends.len() * 9 / 10]);
    (last as f64 / 1e6, (last - tenth) as f64 / last as f64)
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() {
    for meta_episodes in [128, 1024] {
        let w = World {
            meta_episodes,
            calls: 17,
            tokens: 350.0,
            spread: 0.7,
            slots: 64,
            per_token: 0.014,
            first: 0.15,
            train: 0.35,
            push: 0.6,
        };
        println!("{meta_episodes} meta-episodes an update");
        println!("servers  rollout s  last tenth  train s  push s  updates/h  with overlap");
        for servers in [1, 2, 4, 8, 16, 32] {
            let runs: Vec<(f64, f64)> = (0..20).map(|i| rollout(&w, servers, Seed::new(i))).collect();
            let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
            let (rolled, tail, push) = (mean(|r| r.0), mean(|r| r.1), w.push);
            let train = w.train * meta_episodes as f64;
            println!(
                "{servers:7}  {rolled:9.0}  {:9.0}%  {train:7.0}  {push:6.1}  {:9.1}  {:12.1}",
                100.0 * tail,
                3600.0 / (rolled + train + push),
                3600.0 / (rolled.max(train) + push)
            );
        }
    }
}
