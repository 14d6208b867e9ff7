//! Is one method better than another on the same tasks?
//!
//! Two methods that play the same panel meet the same luck of tasks; comparing them task by task leaves it out. A task, with
//! all its seeds, is one observation: seeds of one task are alike, and counting them apart would find differences where there
//! are none. The test of rates asks how often the differences of tasks would be as one-sided if a coin had decided, for each
//! task, which method is called the first. With one seed that is McNemar's exact test; with several it is its clustered form
//! (Durkalski and others, 2003), exact where that can be counted.

use super::{EpisodeEnding, MetaEpisodeResult, UnplayedEpisodes};
use crate::{
    Bootstrap, MeanEstimate,
    interval::{ConfidenceInterval, Z},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Two methods at one episode index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedEpisode {
    /// The episode, from 1.
    pub k: u32,
    /// Cumulative: won at least one of the first k.
    pub pass_at_k: PairedRate,
    /// Won the k-th; only tasks in which both played it.
    pub won: PairedRate,
    /// Score of the k-th, first minus second; only tasks in which both played it.
    pub score: MeanEstimate,
}

/// Who succeeded more often, task by task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedRate {
    /// Tasks that both played.
    pub tasks: u64,
    /// Those in which the first succeeded with more of its seeds.
    pub first_ahead: u64,
    /// Those in which the second did.
    pub second_ahead: u64,
    /// How likely differences at least as one-sided are if both are equally good; two-sided.
    pub p_value: f64,
    /// First minus second, by task. The interval is a bootstrap over tasks; where all tasks differ alike, which says nothing
    /// of their spread, it is Agresti and Min's (2005) for paired rates.
    pub difference: MeanEstimate,
}

/// Compares two methods episode by episode; each meta-episode comes with the number of its task.
///
/// ```
/// use mage_core::{Bootstrap, EpisodeEnding, EpisodeResult, MetaEpisodeResult, compare_paired};
///
/// let result = |ending| MetaEpisodeResult {
///     opponent: None,
///     seat: 0,
///     episodes: vec![EpisodeResult { ending, score: 0.0, actions: 1, invalid: 0 }],
///     stopped_after_win: false,
/// };
/// let (won, lost) = (result(EpisodeEnding::Won), result(EpisodeEnding::Lost));
/// let first: Vec<_> = (0..10).map(|task| (task, won.clone())).collect();
/// let second: Vec<_> = (0..10).map(|task| (task, if task < 6 { lost.clone() } else { won.clone() })).collect();
/// let at = &compare_paired(&first, &second, 1, Bootstrap::default())[0];
/// assert_eq!((at.won.first_ahead, at.won.second_ahead, at.won.tasks), (6, 0, 10));
/// assert!((at.won.p_value - 2.0 / 64.0).abs() < 1e-12); // all six one way
/// assert_eq!(at.won.difference.mean, Some(0.6));
/// ```
pub fn compare_paired(
    first: &[(usize, MetaEpisodeResult)],
    second: &[(usize, MetaEpisodeResult)],
    episodes: u32,
    bootstrap: Bootstrap,
) -> Vec<PairedEpisode> {
    let won = |e| e == EpisodeEnding::Won;
    let measure = |k: usize| {
        let bootstrap = bootstrap.child("paired").at(k as u64);
        let rate = |of: &dyn Fn(&MetaEpisodeResult) -> Option<bool>, name: &str| {
            let share = |r: &MetaEpisodeResult| of(r).map(|hit| f64::from(u8::from(hit)));
            paired_rate(&by_task(first, second, &share), bootstrap.child(name))
        };
        let scores = by_task(first, second, &|r| r.episodes.get(k - 1).map(|e| e.score));
        PairedEpisode {
            k: k as u32,
            pass_at_k: rate(&|r| r.within(k, won), "pass"),
            won: rate(&|r| r.at(k, UnplayedEpisodes::NotCounted, won), "won"),
            score: bootstrap.child("score").mean(scores.iter().map(Both::difference)),
        }
    };
    (1..=episodes as usize).map(measure).collect()
}

/// What two methods came to in one task: sums over their seeds, and how many these are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Both {
    sums: [f64; 2],
    counts: [u32; 2],
}

impl Both {
    fn difference(&self) -> f64 {
        let [a, b] = [0, 1].map(|i| self.sums[i] / f64::from(self.counts[i]));
        a - b
    }
}

/// The tasks that both played.
fn by_task(
    first: &[(usize, MetaEpisodeResult)],
    second: &[(usize, MetaEpisodeResult)],
    value: &dyn Fn(&MetaEpisodeResult) -> Option<f64>,
) -> Vec<Both> {
    let mut tasks: BTreeMap<usize, Both> = BTreeMap::new();
    for (i, results) in [first, second].into_iter().enumerate() {
        for (task, x) in results.iter().filter_map(|(task, r)| Some((task, value(r)?))) {
            let both = tasks.entry(*task).or_default();
            both.sums[i] += x;
            both.counts[i] += 1;
        }
    }
    tasks.into_values().filter(|both| both.counts.iter().all(|n| *n > 0)).collect()
}

fn paired_rate(tasks: &[Both], bootstrap: Bootstrap) -> PairedRate {
    let ahead = |sign: f64| tasks.iter().filter(|t| t.difference() * sign > 0.0).count() as u64;
    let mut difference = bootstrap.mean(tasks.iter().map(Both::difference));
    if difference.interval.is_none() && bootstrap.resamples > 0 && tasks.len() > 1 {
        difference.interval = difference.mean.map(|mean| all_alike(mean, tasks.len() as f64));
    }
    PairedRate {
        tasks: tasks.len() as u64,
        first_ahead: ahead(1.0),
        second_ahead: ahead(-1.0),
        p_value: flipped(tasks),
        difference,
    }
}

/// Agresti and Min's interval of a difference of paired rates, all `n` of whose tasks differ by `d`: two more tasks are put in
/// that speak for nobody, one without a difference and one torn between both.
fn all_alike(d: f64, n: f64) -> ConfidenceInterval {
    let mean = n * d / (n + 2.0);
    let variance = (n * d * d + 1.0) / (n + 2.0) - mean * mean;
    let reach = Z * (variance / (n + 2.0)).sqrt();
    ConfidenceInterval { low: (mean - reach).max(-1.0), high: (mean + reach).min(1.0) }
}

/// Beyond this many units of difference in all, the exact count gives way to the normal distribution it has become.
const COUNTED: u64 = 4000;

/// How often the sum of all differences would be at least as far from zero if every task's difference had a random sign.
fn flipped(tasks: &[Both]) -> f64 {
    // Differences are multiples of one over the number of seeds: whole numbers, once multiplied by what all numbers divide.
    let unit = tasks.iter().flat_map(|t| t.counts).fold(1, |unit, n| lcm(unit, u64::from(n)).min(COUNTED));
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut sum = 0_i64;
    for task in tasks {
        let whole = (task.difference() * unit as f64).round() as i64;
        sum += whole;
        if whole != 0 {
            *sizes.entry(whole.unsigned_abs()).or_default() += 1;
        }
    }
    let reach: u64 = sizes.iter().map(|(size, n)| size * n).sum();
    if sizes.len() > 1 && reach > COUNTED {
        let squares: f64 = sizes.iter().map(|(size, n)| (size * size * n) as f64).sum();
        return two_sided(sum as f64 / squares.sqrt());
    }
    // Of one size alone: a count of coins, however many there are.
    if let (1, Some((size, n))) = (sizes.len(), sizes.first_key_value()) {
        let one_way = (n + sum.unsigned_abs() / size) / 2;
        return coin_tail(*n, n - one_way);
    }
    // The chance of every sum, shifted by the largest; sizes are added one after the other.
    let mut chances = vec![1.0];
    for (size, n) in &sizes {
        let coins = coins(*n);
        let mut next = vec![0.0; chances.len() + (2 * size * n) as usize];
        for (at, chance) in chances.iter().enumerate() {
            for (heads, p) in coins.iter().enumerate() {
                next[at + 2 * heads * *size as usize] += chance * p;
            }
        }
        chances = next;
    }
    let far = |at: usize| (at as i64 - reach as i64).unsigned_abs() >= sum.unsigned_abs();
    chances.iter().enumerate().filter(|(at, _)| far(*at)).map(|(_, p)| p).sum::<f64>().min(1.0)
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

/// The chance of each number of heads among `n` fair coins, built up in logarithms.
fn coins(n: u64) -> Vec<f64> {
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

/// How likely at most `few` of `n` fair coins fall one way, whichever way.
fn coin_tail(n: u64, few: u64) -> f64 {
    (2.0 * coins(n).iter().take(few as usize + 1).sum::<f64>()).min(1.0)
}

/// How likely a standard normal number is at least as far from zero (Abramowitz and Stegun 7.1.26, good to seven decimals).
fn two_sided(z: f64) -> f64 {
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

    /// Tasks with so many seeds each, in which the methods succeeded so often.
    fn tasks(seeds: u32, hits: &[(u32, u32)]) -> Vec<Both> {
        let both = |(a, b): &(u32, u32)| Both { sums: [f64::from(*a), f64::from(*b)], counts: [seeds; 2] };
        hits.iter().map(both).collect()
    }

    #[test]
    fn with_one_seed_it_is_mcnemars_test() {
        // Twice the lower tail of a fair coin.
        for ((a, b), p) in
            [((0, 0), 1.0), ((5, 5), 1.0), ((0, 5), 0.0625), ((1, 9), 0.021_484_375), ((12, 4), 0.076_812_744)]
        {
            let of =
                |a: usize, b: usize| flipped(&tasks(1, &[vec![(1, 0); a], vec![(0, 1); b], vec![(1, 1); 7]].concat()));
            assert!((of(a, b) - p).abs() < 1e-8, "{a} {b}: {}", of(a, b));
            assert_eq!(of(a, b), of(b, a));
        }
        let many = flipped(&tasks(1, &[vec![(1, 0); 4_000], vec![(0, 1); 6_000]].concat()));
        assert!((0.0..1e-80).contains(&many), "{many}");
    }

    #[test]
    fn it_counts_all_signs_of_the_differences() {
        let differ = [(3, 0), (2, 0), (0, 1), (1, 0), (3, 2), (0, 2), (1, 1), (2, 1)];
        let differences: Vec<i64> = differ.iter().map(|(a, b)| i64::from(*a) - i64::from(*b)).collect();
        let sum: i64 = differences.iter().sum();
        let far = (0..1_u32 << differences.len()).filter(|signs| {
            let signed = differences.iter().enumerate().map(|(i, d)| if signs >> i & 1 == 1 { -d } else { *d });
            signed.sum::<i64>().abs() >= sum.abs()
        });
        let expected = far.count() as f64 / f64::from(1 << differences.len());
        assert!((flipped(&tasks(3, &differ)) - expected).abs() < 1e-12);
    }

    #[test]
    fn seeds_that_say_the_same_again_prove_nothing_more() {
        let hits = [vec![(1, 0); 9], vec![(0, 1); 2], vec![(1, 1); 20]].concat();
        let thrice: Vec<(u32, u32)> = hits.iter().map(|(a, b)| (3 * a, 3 * b)).collect();
        assert!((flipped(&tasks(1, &hits)) - flipped(&tasks(3, &thrice))).abs() < 1e-12);
    }

    #[test]
    fn unequal_numbers_of_seeds_and_many_tasks_are_compared_too() {
        let uneven = |n: usize| -> Vec<Both> {
            let one = |i: usize| Both {
                sums: [f64::from(u8::from(!i.is_multiple_of(3))), 1.0],
                counts: [1, 2 + (i % 2) as u32],
            };
            (0..n).map(one).collect()
        };
        let few = flipped(&uneven(60));
        assert!((0.0..=1.0).contains(&few));
        // As many that one counts no more: the normal distribution says nearly the same as the count.
        let spread: Vec<(u32, u32)> = (0..1300).map(|i| (i % 4, (i + i / 7) % 4)).collect();
        let some = tasks(3, &spread);
        let z = some.iter().map(Both::difference).sum::<f64>()
            / some.iter().map(|t| t.difference().powi(2)).sum::<f64>().sqrt();
        assert!((flipped(&some) - two_sided(z)).abs() < 0.02, "{} {}", flipped(&some), two_sided(z));
        assert!((two_sided(1.959_964) - 0.05).abs() < 1e-6);
    }

    /// Tasks that one method always wins and the other never, as often this way as that: no method is better, and a test at
    /// 5 % says so in 95 % of panels. Counting seeds apart, as McNemar's test would, cries out in far more.
    #[test]
    fn equal_methods_are_told_apart_as_rarely_as_promised() {
        let (runs, panel, seeds) = (2000, 60, 3);
        let (mut rejected, mut apart) = (0, 0);
        for run in 0..runs {
            let mut rng = Seed::new(21).child("size").at(run).rng();
            let mut luck = |p: f64| (0..seeds).filter(|_| rng.random::<f64>() < p).count() as u32;
            let hits: Vec<(u32, u32)> = (0..panel)
                .map(|_| {
                    // Each method is good at tasks of its own choosing.
                    let (a, b) = (f64::from(luck(0.5) % 2), f64::from(luck(0.5) % 2));
                    (luck(0.1 + 0.8 * a), luck(0.1 + 0.8 * b))
                })
                .collect();
            rejected += u32::from(flipped(&tasks(seeds as u32, &hits)) < 0.05);
            let (ahead, behind) = hits.iter().fold((0_u64, 0_u64), |(x, y), (a, b)| {
                (x + u64::from(a.saturating_sub(*b)), y + u64::from(b.saturating_sub(*a)))
            });
            apart += u32::from(coin_tail(ahead + behind, ahead.min(behind)) < 0.05);
        }
        // 5 % of 2000 are 100; four standard errors are 39.
        assert!(rejected <= 139, "{rejected} of {runs}");
        assert!(rejected >= 50, "and not much rarer, which would be a test that finds nothing: {rejected}");
        assert!(apart > 300, "seeds counted apart: {apart} of {runs}");
    }

    #[test]
    fn where_all_tasks_agree_the_difference_still_has_an_interval() {
        let always = paired_rate(&tasks(3, &[(3, 3); 40]), Bootstrap::default());
        let interval = always.difference.interval.unwrap();
        assert!(interval.low < -0.02 && interval.high > 0.02 && interval.contains(0.0), "{interval:?}");
        let one_sided = paired_rate(&tasks(3, &[(3, 0); 40]), Bootstrap::default()).difference.interval.unwrap();
        assert!(one_sided.high == 1.0 && one_sided.low < 0.95 && one_sided.low > 0.7, "{one_sided:?}");
    }
}
