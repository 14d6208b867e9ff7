//! Paired comparison of two methods on the same tasks.
//!
//! Methods on the same task set share the difficulty of its tasks; a comparison task by task removes it. The task with
//! all its seeds is one observation: its seeds are correlated, and counting them separately would find differences
//! where there are none. The test of rates is a sign-flip test: it asks how often the sum of differences would be at
//! least as extreme if the sign of each task's difference were random. With one seed this is McNemar's exact test; with
//! several it is its clustered form (Durkalski et al., 2003), exact as long as the count is feasible.

use super::{EpisodeEnding, EpisodeResult, MetaEpisodeResult, UnplayedEpisodes};
use crate::{
    MeanEstimate,
    interval::{ConfidenceInterval, Z},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Comparison of two methods at one episode index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedEpisode {
    /// The episode, from 1.
    pub k: u32,
    /// Cumulative: won at least one of the first k.
    pub pass_at_k: PairedRate,
    /// Won the k-th; only tasks in which both played it.
    pub won: PairedRate,
    /// Score of the k-th (expected, otherwise played), first minus second; only tasks in which both played it.
    pub score: MeanEstimate,
}

/// Comparison of success rates, task by task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedRate {
    /// Tasks that both methods played.
    pub tasks: u64,
    /// Tasks in which the first succeeded with a larger fraction of its seeds.
    pub first_ahead: u64,
    /// Tasks in which the second did.
    pub second_ahead: u64,
    /// Two-sided p-value under the hypothesis that both methods are equal.
    pub p_value: f64,
    /// First minus second, by task. If the differences of each opponent and seat are equal, the standard error is 0, and
    /// the interval is Agresti and Min's (2005) for paired rates.
    pub difference: MeanEstimate,
}

/// Compares two methods by episode; each meta-episode comes with the index of its task. Means of differences are
/// stratified by opponent and seat.
///
/// ```
/// use mage_core::{EpisodeEnding, EpisodeResult, MetaEpisodeResult, compare_paired};
///
/// let result = |ending| MetaEpisodeResult {
///     opponent: None,
///     seat: 0,
///     episodes: vec![EpisodeResult { ending, score: 0.0, actions: 1, invalid: 0, expected: None }],
///     stopped_after_win: false,
/// };
/// let (won, lost) = (result(EpisodeEnding::Won), result(EpisodeEnding::Lost));
/// let first: Vec<_> = (0..10).map(|task| (task, won.clone())).collect();
/// let second: Vec<_> = (0..10).map(|task| (task, if task < 6 { lost.clone() } else { won.clone() })).collect();
/// let at = &compare_paired(&first, &second, 1)[0];
/// assert_eq!((at.won.first_ahead, at.won.second_ahead, at.won.tasks), (6, 0, 10));
/// assert!((at.won.p_value - 2.0 / 64.0).abs() < 1e-12); // six differences of equal sign
/// assert_eq!(at.won.difference.mean, Some(0.6));
/// ```
pub fn compare_paired(
    first: &[(usize, MetaEpisodeResult)],
    second: &[(usize, MetaEpisodeResult)],
    episodes: u32,
) -> Vec<PairedEpisode> {
    let won = |e| e == EpisodeEnding::Won;
    let measure = |k: usize| {
        let rate = |of: &dyn Fn(&MetaEpisodeResult) -> Option<bool>| {
            paired_rate(&by_task(first, second, &|r| of(r).map(|hit| f64::from(u8::from(hit)))))
        };
        let scores = by_task(first, second, &|r| r.episodes.get(k - 1).map(EpisodeResult::estimated_score));
        PairedEpisode {
            k: k as u32,
            pass_at_k: rate(&|r| r.within(k, won)),
            won: rate(&|r| r.at(k, UnplayedEpisodes::NotCounted, won)),
            score: mean_difference(&scores),
        }
    };
    (1..=episodes as usize).map(measure).collect()
}

/// The results of both methods in one task: its stratum, sums over seeds, and numbers of seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct PairedTask<'a> {
    stratum: (Option<&'a str>, u8),
    sums: [f64; 2],
    counts: [u32; 2],
}

impl PairedTask<'_> {
    fn difference(&self) -> f64 {
        let [a, b] = [0, 1].map(|i| self.sums[i] / f64::from(self.counts[i]));
        a - b
    }
}

/// The tasks that both methods played.
fn by_task<'a>(
    first: &'a [(usize, MetaEpisodeResult)],
    second: &'a [(usize, MetaEpisodeResult)],
    value: &dyn Fn(&MetaEpisodeResult) -> Option<f64>,
) -> Vec<PairedTask<'a>> {
    let mut tasks: BTreeMap<usize, PairedTask<'a>> = BTreeMap::new();
    for (i, results) in [first, second].into_iter().enumerate() {
        for (task, r, x) in results.iter().filter_map(|(task, r)| Some((task, r, value(r)?))) {
            let new = PairedTask { stratum: r.stratum(), ..PairedTask::default() };
            let pair = tasks.entry(*task).or_insert(new);
            pair.sums[i] += x;
            pair.counts[i] += 1;
        }
    }
    tasks.into_values().filter(|pair| pair.counts.iter().all(|n| *n > 0)).collect()
}

fn mean_difference(tasks: &[PairedTask<'_>]) -> MeanEstimate {
    MeanEstimate::by_task(tasks.iter().enumerate().map(|(i, t)| (i, t.stratum, t.difference())))
}

fn paired_rate(tasks: &[PairedTask<'_>]) -> PairedRate {
    let ahead = |sign: f64| tasks.iter().filter(|t| t.difference() * sign > 0.0).count() as u64;
    let mut difference = mean_difference(tasks);
    if difference.se == Some(0.0) {
        difference.interval = Some(agresti_min(tasks));
    }
    PairedRate {
        tasks: tasks.len() as u64,
        first_ahead: ahead(1.0),
        second_ahead: ahead(-1.0),
        p_value: sign_flip_p_value(tasks),
        difference,
    }
}

/// Agresti and Min's interval of a difference of paired rates. It adds 1/2 to each cell of the 2×2 table of successes,
/// that is two tasks in total.
fn agresti_min(tasks: &[PairedTask<'_>]) -> ConfidenceInterval {
    let n = tasks.len() as f64 + 2.0;
    let sum = |power: i32| tasks.iter().map(|t| t.difference().powi(power)).sum::<f64>();
    let mean = sum(1) / n;
    let half_width = Z * (((sum(2) + 1.0) / n - mean * mean) / n).sqrt();
    ConfidenceInterval { low: (mean - half_width).max(-1.0), high: (mean + half_width).min(1.0) }
}

/// Above this total of absolute differences (in units), the normal approximation replaces the exact count.
const MAX_EXACT: u64 = 4000;

/// Two-sided p-value of the sum of differences under random signs.
fn sign_flip_p_value(tasks: &[PairedTask<'_>]) -> f64 {
    // Differences are fractions of the numbers of seeds: multiples of 1 / lcm, so that they can be counted as integers.
    let unit = tasks.iter().flat_map(|t| t.counts).fold(1, |unit, n| lcm(unit, u64::from(n)).min(MAX_EXACT));
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut sum = 0_i64;
    for task in tasks {
        let difference = (task.difference() * unit as f64).round() as i64;
        sum += difference;
        if difference != 0 {
            *sizes.entry(difference.unsigned_abs()).or_default() += 1;
        }
    }
    let max_sum: u64 = sizes.iter().map(|(size, n)| size * n).sum();
    if sizes.len() > 1 && max_sum > MAX_EXACT {
        let squares: f64 = sizes.iter().map(|(size, n)| (size * size * n) as f64).sum();
        return normal_p_value(sum as f64 / squares.sqrt());
    }
    // A single absolute value: a binomial test of the signs, at any number of tasks.
    if let (1, Some((size, n))) = (sizes.len(), sizes.first_key_value()) {
        let larger = (n + sum.unsigned_abs() / size) / 2;
        return binomial_p_value(*n, n - larger);
    }
    // The distribution of the sum, shifted by `max_sum`: a convolution over absolute values.
    let mut distribution = vec![1.0];
    for (size, n) in &sizes {
        let heads = binomial(*n);
        let mut next = vec![0.0; distribution.len() + (2 * size * n) as usize];
        for (at, p) in distribution.iter().enumerate() {
            for (k, q) in heads.iter().enumerate() {
                next[at + 2 * k * *size as usize] += p * q;
            }
        }
        distribution = next;
    }
    let extreme = |at: usize| (at as i64 - max_sum as i64).unsigned_abs() >= sum.unsigned_abs();
    distribution.iter().enumerate().filter(|(at, _)| extreme(*at)).map(|(_, p)| p).sum::<f64>().min(1.0)
}

fn lcm(a: u64, b: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    a / gcd(a, b) * b
}

/// The distribution of heads among `n` fair coins, computed in logarithms.
fn binomial(n: u64) -> Vec<f64> {
    let mut ln_choose = 0.0;
    (0..=n)
        .map(|i| {
            if i > 0 {
                ln_choose += ((n - i + 1) as f64).ln() - (i as f64).ln();
            }
            (ln_choose - n as f64 * std::f64::consts::LN_2).exp()
        })
        .collect()
}

/// Two-sided p-value of at most `few` of `n` fair coins on one side.
fn binomial_p_value(n: u64, few: u64) -> f64 {
    (2.0 * binomial(n).iter().take(few as usize + 1).sum::<f64>()).min(1.0)
}

/// Two-sided p-value of a standard normal variable (Abramowitz and Stegun 7.1.26, accurate to seven decimals).
fn normal_p_value(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let poly =
        t * (0.254_829_592 + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    (poly * (-x * x).exp()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_env::Seed;
    use rand::RngExt;

    /// Tasks with `seeds` seeds each and the given successes per method.
    fn tasks(seeds: u32, hits: &[(u32, u32)]) -> Vec<PairedTask<'static>> {
        let pair = |(a, b): &(u32, u32)| PairedTask {
            sums: [f64::from(*a), f64::from(*b)],
            counts: [seeds; 2],
            ..PairedTask::default()
        };
        hits.iter().map(pair).collect()
    }

    #[test]
    fn one_seed_gives_mcnemars_exact_test() {
        // Twice the lower tail of a fair coin.
        for ((a, b), p) in
            [((0, 0), 1.0), ((5, 5), 1.0), ((0, 5), 0.0625), ((1, 9), 0.021_484_375), ((12, 4), 0.076_812_744)]
        {
            let of = |a: usize, b: usize| {
                sign_flip_p_value(&tasks(1, &[vec![(1, 0); a], vec![(0, 1); b], vec![(1, 1); 7]].concat()))
            };
            assert!((of(a, b) - p).abs() < 1e-8, "{a} {b}: {}", of(a, b));
            assert_eq!(of(a, b), of(b, a));
        }
        let many = sign_flip_p_value(&tasks(1, &[vec![(1, 0); 4_000], vec![(0, 1); 6_000]].concat()));
        assert!((0.0..1e-80).contains(&many), "{many}");
    }

    #[test]
    fn p_value_equals_enumeration_of_all_signs() {
        let differ = [(3, 0), (2, 0), (0, 1), (1, 0), (3, 2), (0, 2), (1, 1), (2, 1)];
        let differences: Vec<i64> = differ.iter().map(|(a, b)| i64::from(*a) - i64::from(*b)).collect();
        let sum: i64 = differences.iter().sum();
        let far = (0..1_u32 << differences.len()).filter(|signs| {
            let signed = differences.iter().enumerate().map(|(i, d)| if signs >> i & 1 == 1 { -d } else { *d });
            signed.sum::<i64>().abs() >= sum.abs()
        });
        let expected = far.count() as f64 / f64::from(1 << differences.len());
        assert!((sign_flip_p_value(&tasks(3, &differ)) - expected).abs() < 1e-12);
    }

    #[test]
    fn repeated_identical_seeds_do_not_change_the_p_value() {
        let hits = [vec![(1, 0); 9], vec![(0, 1); 2], vec![(1, 1); 20]].concat();
        let thrice: Vec<(u32, u32)> = hits.iter().map(|(a, b)| (3 * a, 3 * b)).collect();
        assert!((sign_flip_p_value(&tasks(1, &hits)) - sign_flip_p_value(&tasks(3, &thrice))).abs() < 1e-12);
    }

    #[test]
    fn unequal_seed_counts_and_the_normal_approximation_are_supported() {
        let uneven = |n: usize| -> Vec<PairedTask<'static>> {
            let one = |i: usize| PairedTask {
                sums: [f64::from(u8::from(!i.is_multiple_of(3))), 1.0],
                counts: [1, 2 + (i % 2) as u32],
                ..PairedTask::default()
            };
            (0..n).map(one).collect()
        };
        let few = sign_flip_p_value(&uneven(60));
        assert!((0.0..=1.0).contains(&few));
        // Above `MAX_EXACT`: the normal approximation is close to the z-test.
        let spread: Vec<(u32, u32)> = (0..1300).map(|i| (i % 4, (i + i / 7) % 4)).collect();
        let some = tasks(3, &spread);
        let z = some.iter().map(PairedTask::difference).sum::<f64>()
            / some.iter().map(|t| t.difference().powi(2)).sum::<f64>().sqrt();
        assert!(
            (sign_flip_p_value(&some) - normal_p_value(z)).abs() < 0.02,
            "{} {}",
            sign_flip_p_value(&some),
            normal_p_value(z)
        );
        assert!((normal_p_value(1.959_964) - 0.05).abs() < 1e-6);
    }

    /// Each method always wins some tasks and never wins others, equally often: no method is better, so a test at the 5
    /// % level must not reject in more than 5 % of task sets. McNemar's test over separate seeds rejects in far more.
    #[test]
    fn equal_methods_are_rejected_at_the_nominal_rate() {
        let (runs, tasks_per_run, seeds) = (2000, 60, 3);
        let (mut rejected, mut rejected_by_seed) = (0, 0);
        for run in 0..runs {
            let mut rng = Seed::new(21).child("size").at(run).rng();
            let mut wins = |p: f64| (0..seeds).filter(|_| rng.random::<f64>() < p).count() as u32;
            let hits: Vec<(u32, u32)> = (0..tasks_per_run)
                .map(|_| {
                    // Each method is good at a random half of the tasks.
                    let (a, b) = (f64::from(wins(0.5) % 2), f64::from(wins(0.5) % 2));
                    (wins(0.1 + 0.8 * a), wins(0.1 + 0.8 * b))
                })
                .collect();
            rejected += u32::from(sign_flip_p_value(&tasks(seeds as u32, &hits)) < 0.05);
            let (ahead, behind) = hits.iter().fold((0_u64, 0_u64), |(x, y), (a, b)| {
                (x + u64::from(a.saturating_sub(*b)), y + u64::from(b.saturating_sub(*a)))
            });
            rejected_by_seed += u32::from(binomial_p_value(ahead + behind, ahead.min(behind)) < 0.05);
        }
        // 5 % of 2000 are 100; four standard errors are 39.
        assert!(rejected <= 139, "{rejected} of {runs}");
        assert!(rejected >= 50, "the test must not be much more conservative: {rejected}");
        assert!(rejected_by_seed > 300, "seeds counted separately: {rejected_by_seed} of {runs}");
    }

    #[test]
    fn equal_differences_have_an_interval() {
        let always = paired_rate(&tasks(3, &[(3, 3); 40]));
        let interval = always.difference.interval.unwrap();
        assert!(interval.low < -0.02 && interval.high > 0.02 && interval.contains(0.0), "{interval:?}");
        let one_sided = paired_rate(&tasks(3, &[(3, 0); 40])).difference.interval.unwrap();
        assert!(one_sided.high == 1.0 && one_sided.low < 0.95 && one_sided.low > 0.7, "{one_sided:?}");
    }
    /// If differences are equal for each opponent but not between opponents, the standard error within them is 0.
    #[test]
    fn equal_differences_within_strata_have_an_interval() {
        let mut tasks = tasks(1, &[vec![(1, 0); 20], vec![(1, 1); 20]].concat());
        tasks.iter_mut().take(20).for_each(|t| t.stratum.1 = 1);
        let difference = paired_rate(&tasks).difference;
        assert_eq!((difference.mean, difference.se), (Some(0.5), Some(0.0)));
        let interval = difference.interval.unwrap();
        assert!(interval.contains(0.5) && interval.low > 0.3 && interval.high < 0.7, "{interval:?}");
    }
}
