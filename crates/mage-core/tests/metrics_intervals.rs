//! Coverage of 95 % confidence intervals.

use mage_core::{MeanEstimate, RateEstimate};
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
fn mean_interval_has_nominal_coverage() {
    // Chips won at poker, from 6 to 401 tasks, and a skewed score.
    let chips = (vec![-2.0, -1.0, 1.0, 2.0], vec![0.2, 0.25, 0.3, 0.25]);
    let skewed = (vec![0.0, 1.0, 10.0], vec![0.7, 0.25, 0.05]);
    for (name, (values, weights), n) in
        [("chips", &chips, 6), ("chips", &chips, 20), ("chips", &chips, 401), ("skewed", &skewed, 300)]
    {
        let truth: f64 = values.iter().zip(weights).map(|(v, w)| v * w).sum();
        let covered = (0..1000)
            .filter(|&trial| {
                let mut rng = Seed::new(3).child(name).at(trial).rng();
                let mean = MeanEstimate::of((0..n).map(|_| values[weighted_index(weights.iter().copied(), &mut rng)]));
                mean.interval.is_some_and(|i| i.contains(truth))
            })
            .count();
        assert!((920..=975).contains(&covered), "{name}, {n} tasks: {covered} of 1000");
    }
}

/// Two opponents with different scores in fixed proportions: only the variance within each of them is sampling error.
#[test]
fn stratified_interval_has_nominal_coverage() {
    let (mut covered, mut ignoring_strata) = (0, 0);
    for trial in 0..1000 {
        let mut rng = Seed::new(4).child("strata").at(trial).rng();
        let values: Vec<(usize, usize, f64)> =
            (0..60).map(|task| (task, task % 3 / 2, [0.0, 5.0][task % 3 / 2] + rng.random::<f64>() - 0.5)).collect();
        let truth = 5.0 / 3.0;
        let contains = |m: MeanEstimate| m.interval.is_some_and(|i| i.contains(truth));
        covered += usize::from(contains(MeanEstimate::by_task(values.iter().copied())));
        ignoring_strata += usize::from(contains(MeanEstimate::of(values.iter().map(|v| v.2))));
    }
    assert!((925..=975).contains(&covered), "{covered} of 1000");
    assert_eq!(ignoring_strata, 1000, "the variance between opponents would make the interval too wide");
}

/// Seeds of one task are not independent: an interval over them as separate tasks would be too narrow.
#[test]
fn mean_interval_over_seeds_has_nominal_coverage() {
    let covered = (0..1000).filter(|&trial| {
        let mut rng = Seed::new(5).child("seeds").at(trial).rng();
        let values = (0..40).flat_map(|task| {
            let shared = rng.random::<f64>();
            [0.1, -0.1, 0.0].map(|noise| (task, (), shared + noise))
        });
        MeanEstimate::by_task(values).interval.is_some_and(|i| i.contains(0.5))
    });
    let covered = covered.count();
    assert!((925..=975).contains(&covered), "{covered} of 1000");
}

#[test]
fn means_do_not_depend_on_the_order_of_values() {
    let values: Vec<(usize, usize, f64)> = (0..51).map(|i| (i / 2, i % 3, 0.1 * (i * i % 17) as f64)).collect();
    let reversed = values.iter().rev().copied();
    assert_eq!(MeanEstimate::by_task(values.iter().copied()), MeanEstimate::by_task(reversed));
}

/// A stratum of a single task has no variance of its own: it is joined with another one.
#[test]
fn strata_of_one_task_are_joined() {
    let all_single = MeanEstimate::by_task([(0, 'a', 1.0), (1, 'b', 2.0), (2, 'c', 3.0)]);
    assert_eq!(all_single, MeanEstimate::of([1.0, 2.0, 3.0]));
    let one_single = MeanEstimate::by_task([(0, 'a', 1.0), (1, 'b', 2.0), (2, 'b', 3.0)]);
    assert_eq!(one_single, MeanEstimate::of([1.0, 2.0, 3.0]));
}

#[test]
fn degenerate_samples_have_no_interval() {
    let of = |values: &[f64]| {
        let m = MeanEstimate::of(values.iter().copied());
        (m.mean, m.se, m.interval.is_some())
    };
    assert_eq!(of(&[]), (None, None, false));
    assert_eq!(of(&[3.0]), (Some(3.0), None, false));
    assert_eq!(of(&[0.1, 0.1, 0.1]), (Some(0.1), Some(0.0), false), "no variance, no interval");
    assert_eq!(RateEstimate::new(3, 2).hits, 2);
    assert_eq!(RateEstimate::new(0, 0).rate, None);
}
