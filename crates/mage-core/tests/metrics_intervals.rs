//! Coverage of 95 % confidence intervals.

use mage_core::{Bootstrap, RateEstimate};
use mage_rng::{Seed, weighted_index};
use rand::RngExt;

#[test]
fn wilson_matches_known_values() {
    for (hits, of, low, high) in [
        (0, 10, 0.0, 0.277_533),
        (1, 10, 0.017_876, 0.404_150),
        (5, 10, 0.236_593, 0.763_407),
        (10, 10, 0.722_467, 1.0),
        (117, 128, 0.852_659, 0.951_337),
    ] {
        let interval = RateEstimate::new(hits, of).interval;
        assert!((interval.low - low).abs() < 1e-5 && (interval.high - high).abs() < 1e-5, "{hits}/{of}: {interval:?}");
    }
    assert_eq!(RateEstimate::from_bools([true, false, true]), RateEstimate::new(2, 3));
}

#[test]
fn wilson_interval_has_nominal_coverage() {
    let mut rng = Seed::new(11).child("wilson").rng();
    let mut all = (0, 0);
    for p in [0.05, 0.3, 0.5, 0.9] {
        for n in [30, 128, 500] {
            let covered = (0..2000)
                .filter(|_| RateEstimate::from_bools((0..n).map(|_| rng.random::<f64>() < p)).interval.contains(p))
                .count();
            // Hits are integers, so no interval is exact at a given p and n: Wilson's coverage is 93 % to 98 %.
            assert!((1840..=1970).contains(&covered), "p = {p}, n = {n}: {covered} of 2000");
            all = (all.0 + covered, all.1 + 2000);
        }
    }
    let coverage = all.0 as f64 / all.1 as f64;
    assert!((coverage - 0.95).abs() < 0.01, "{coverage}");
}

/// Tasks with three seeds, from independent to identical seeds, and rates near 0 and 1.
#[test]
fn rate_interval_over_seeds_has_nominal_coverage() {
    let (mut all, mut worst) = ((0, 0), 1.0_f64);
    for p in [0.02, 0.3, 0.5, 0.95] {
        for correlation in [0.0, 0.5, 1.0] {
            for tasks in [24, 128] {
                let covered = (0..1000)
                    .filter(|&trial| {
                        let mut rng = Seed::new(13).child("seeds").at(trial).rng();
                        let of_task = |task: usize| {
                            let shared = (rng.random::<f64>() < correlation).then(|| rng.random::<f64>() < p);
                            [(); 3].map(|()| (task, shared.unwrap_or_else(|| rng.random::<f64>() < p)))
                        };
                        RateEstimate::by_task((0..tasks).flat_map(of_task)).interval.contains(p)
                    })
                    .count();
                worst = worst.min(covered as f64 / 1000.0);
                assert!(covered >= 905, "p = {p}, correlation {correlation}, {tasks} tasks: {covered} of 1000");
                all = (all.0 + covered, all.1 + 1000);
            }
        }
    }
    let coverage = all.0 as f64 / all.1 as f64;
    assert!((0.94..=0.98).contains(&coverage), "{coverage}, worst {worst}");
}

/// At rates 0 and 1 the width of the interval depends on the number of tasks.
#[test]
fn rate_interval_is_never_a_point() {
    for seeds in [1, 2, 5] {
        let of = |hit: bool| RateEstimate::by_task((0..30).flat_map(|task| vec![(task, hit); seeds]));
        assert_eq!(of(true).interval, RateEstimate::new(30, 30).interval);
        assert_eq!(of(false).interval, RateEstimate::new(0, 30).interval);
        assert!(of(true).interval.low < 0.9 && of(false).interval.high > 0.1);
    }
}

#[test]
fn bootstrap_interval_has_nominal_coverage() {
    // Chips won at poker, and a skewed score.
    for (name, values, weights, n) in [
        ("chips", vec![-2.0, -1.0, 1.0, 2.0], vec![0.2, 0.25, 0.3, 0.25], 100),
        ("chips", vec![-2.0, -1.0, 1.0, 2.0], vec![0.2, 0.25, 0.3, 0.25], 401),
        ("skewed", vec![0.0, 1.0, 10.0], vec![0.7, 0.25, 0.05], 300),
    ] {
        let truth: f64 = values.iter().zip(&weights).map(|(v, w)| v * w).sum();
        let seed = Seed::new(3).child(name);
        let covered = (0..600)
            .filter(|&trial| {
                let mut rng = seed.child("data").at(trial).rng();
                let sample: Vec<f64> =
                    (0..n).map(|_| values[weighted_index(weights.iter().copied(), &mut rng)]).collect();
                let mean = Bootstrap { seed: seed.child("resample").at(trial), resamples: 400 }.mean(sample);
                mean.interval.unwrap().contains(truth)
            })
            .count();
        let coverage = covered as f64 / 600.0;
        assert!((0.915..=0.975).contains(&coverage), "{name}, {n} observations: {coverage}");
    }
}

#[test]
fn bootstrap_depends_on_seed_and_values_not_on_order() {
    let values: Vec<f64> = (0..51).map(|i| f64::from(i * i % 17)).collect();
    let of = |seed: u64, values: Vec<f64>| Bootstrap { seed: Seed::new(seed), resamples: 200 }.mean(values);
    assert_eq!(of(1, values.clone()), of(1, values.iter().rev().copied().collect()));
    assert_ne!(of(1, values.clone()).interval, of(2, values.clone()).interval);
    let b = Bootstrap { seed: Seed::new(1), resamples: 200 };
    assert_ne!(b.child("a").mean(values.clone()).interval, b.child("b").mean(values.clone()).interval);
    assert_ne!(b.at(0).mean(values.clone()).interval, b.at(1).mean(values).interval);
}

#[test]
fn bootstrap_width_matches_the_standard_error() {
    // ±1 coins: standard error 1/√n, interval ± 1.96 of it.
    for n in [400_u32, 401] {
        let m = Bootstrap { resamples: 2000, ..Bootstrap::default() }
            .mean((0..n).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }));
        let interval = m.interval.unwrap();
        let want = 2.0 * 1.96 / f64::from(n).sqrt();
        assert!(((interval.high - interval.low) / want - 1.0).abs() < 0.08, "{interval:?}");
        assert!(interval.contains(m.mean.unwrap()));
    }
}

#[test]
fn degenerate_samples_have_no_interval() {
    let b = Bootstrap::default();
    assert_eq!((b.mean([]).mean, b.mean([]).interval), (None, None));
    assert_eq!((b.mean([3.0]).mean, b.mean([3.0]).interval), (Some(3.0), None));
    assert_eq!((b.mean([3.0, 3.0]).mean, b.mean([3.0, 3.0]).interval), (Some(3.0), None), "no variance, no interval");
    assert_eq!(Bootstrap { resamples: 0, ..b }.mean([1.0, 2.0]).interval, None);
    assert_eq!(RateEstimate::new(3, 2).hits, 2);
    assert_eq!(RateEstimate::new(0, 0).rate, None);
}
