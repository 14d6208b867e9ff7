//! Simulation of throughput by number of sampling servers. Assumptions and results are in `docs/scale.md`.
//!
//! `cargo run --release -p mage-remote --example scale`

use mage_rng::Seed;
use rand::RngExt;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Assumptions of the simulation.
struct Assumptions {
    /// Meta-episodes per update.
    meta_episodes: usize,
    /// Sequential requests per meta-episode.
    requests: usize,
    /// Median completion length in tokens, and the standard deviation of its logarithm, which causes stragglers.
    tokens: f64,
    length_sigma: f64,
    /// Concurrent requests per server, and seconds per token at that load.
    slots: usize,
    per_token: f64,
    /// Time to first token in seconds.
    first: f64,
    /// Training seconds per meta-episode.
    train: f64,
    /// Seconds of a push to all servers, which load the adapter and compute a fingerprint.
    push: f64,
}

/// Microseconds, which are totally ordered.
type Time = u64;

/// Seconds of a rollout, and the fraction spent on the last tenth of its meta-episodes.
fn rollout(assumptions: &Assumptions, servers: usize, seed: Seed) -> (f64, f64) {
    let mut rng = seed.rng();
    let mut length = || {
        // Box-Muller transform.
        let (a, b): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        assumptions.tokens * (assumptions.length_sigma * normal).exp()
    };
    // All slots by the time they become free: the next request takes the first.
    let mut slots: BinaryHeap<Reverse<Time>> = (0..servers * assumptions.slots).map(|_| Reverse(0)).collect();
    // Meta-episodes by the time of their next request.
    let mut requests: BinaryHeap<Reverse<(Time, usize)>> =
        (0..assumptions.meta_episodes).map(|m| Reverse((0, m))).collect();
    let mut left = vec![assumptions.requests; assumptions.meta_episodes];
    let mut ends = Vec::with_capacity(assumptions.meta_episodes);
    while let Some(Reverse((ready, m))) = requests.pop() {
        let Reverse(free) = slots.pop().expect("at least one server");
        let took = assumptions.first + assumptions.per_token * length();
        let done = ready.max(free) + (took * 1e6) as Time;
        slots.push(Reverse(done));
        left[m] -= 1;
        match left[m] {
            0 => ends.push(done),
            _ => requests.push(Reverse((done, m))),
        }
    }
    ends.sort_unstable();
    let (last, tenth) = (ends[ends.len() - 1], ends[ends.len() * 9 / 10]);
    (last as f64 / 1e6, (last - tenth) as f64 / last as f64)
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() {
    for meta_episodes in [128, 1024] {
        let assumptions = Assumptions {
            meta_episodes,
            requests: 17,
            tokens: 350.0,
            length_sigma: 0.7,
            slots: 64,
            per_token: 0.014,
            first: 0.15,
            train: 0.35,
            push: 0.6,
        };
        println!("{meta_episodes} meta-episodes an update");
        println!("servers  rollout s  last tenth  train s  push s  updates/h  with overlap");
        for servers in [1, 2, 4, 8, 16, 32] {
            let runs: Vec<(f64, f64)> = (0..20).map(|i| rollout(&assumptions, servers, Seed::new(i))).collect();
            let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
            let (rolled, tail, push) = (mean(|r| r.0), mean(|r| r.1), assumptions.push);
            let train = assumptions.train * meta_episodes as f64;
            println!(
                "{servers:7}  {rolled:9.0}  {:9.0}%  {train:7.0}  {push:6.1}  {:9.1}  {:12.1}",
                100.0 * tail,
                3600.0 / (rolled + train + push),
                3600.0 / (rolled.max(train) + push)
            );
        }
    }
}
