//! Is one method better than another on the same tasks?
//!
//! Two methods that play the same panel meet the same luck of tasks; comparing them task by task leaves it out. Rates are
//! compared by McNemar's exact test on the tasks where the two differ, and every difference has a bootstrap interval in which a
//! task, with all its seeds, is one observation.

use super::{Ending, MetaResult, Unplayed};
use crate::{Bootstrap, Mean};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The same task played by two methods with the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The task's number on the panel.
    pub task: usize,
    /// One method.
    pub first: &'a MetaResult,
    /// The other.
    pub second: &'a MetaResult,
}

/// Two methods at one episode index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedAt {
    /// The episode, from 1.
    pub k: u32,
    /// Cumulative: won at least one of the first k.
    pub pass_at_k: PairedRate,
    /// Won the k-th; only pairs in which both played it.
    pub won: PairedRate,
    /// Score of the k-th, first minus second; only pairs in which both played it.
    pub score: Mean,
}

/// How often each of two succeeded where.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedRate {
    /// Both did.
    pub both: u64,
    /// Only the first did.
    pub only_first: u64,
    /// Only the second did.
    pub only_second: u64,
    /// Neither did.
    pub neither: u64,
    /// McNemar's exact test, two-sided: how likely differences at least as one-sided are if both are equally good. It takes
    /// pairs to be independent; with several seeds a task they are not quite, and the interval is what to trust.
    pub p_value: f64,
    /// First minus second, by task.
    pub difference: Mean,
}

/// Compares two methods episode by episode.
///
/// ```
/// use mage_core::{Bootstrap, Ending, EpisodeResult, MetaResult, Pair, compare};
///
/// let result = |ending| MetaResult {
///     opponent: None,
///     seat: 0,
///     episodes: vec![EpisodeResult { ending, score: 0.0, answers: 1, invalid: 0 }],
///     stopped_after_win: false,
/// };
/// let (won, lost) = (result(Ending::Won), result(Ending::Lost));
/// let pairs: Vec<Pair> = (0..10).map(|task| Pair { task, first: &won, second: if task < 6 { &lost } else { &won } }).collect();
/// let at = &compare(&pairs, 1, Bootstrap::default())[0];
/// assert_eq!((at.won.only_first, at.won.only_second), (6, 0));
/// assert!((at.won.p_value - 2.0 / 64.0).abs() < 1e-12); // all six one way
/// assert_eq!(at.won.difference.mean, Some(0.6));
/// ```
pub fn compare(pairs: &[Pair<'_>], episodes: u32, bootstrap: Bootstrap) -> Vec<PairedAt> {
    let won = |e| e == Ending::Won;
    let measure = |k: usize| {
        let bootstrap = bootstrap.child("paired").at(k as u64);
        let both = |of: &dyn Fn(&MetaResult) -> Option<bool>| -> Vec<(usize, bool, bool)> {
            pairs.iter().filter_map(|p| Some((p.task, of(p.first)?, of(p.second)?))).collect()
        };
        let score = |r: &MetaResult| r.episodes.get(k - 1).map(|e| e.score);
        let scores = pairs.iter().filter_map(|p| Some((p.task, score(p.first)? - score(p.second)?)));
        PairedAt {
            k: k as u32,
            pass_at_k: paired_rate(&both(&|r| r.within(k, won)), bootstrap.child("pass")),
            won: paired_rate(&both(&|r| r.at(k, Unplayed::NotCounted, won)), bootstrap.child("won")),
            score: bootstrap.child("score").mean(by_task(scores)),
        }
    };
    (1..=episodes as usize).map(measure).collect()
}

fn paired_rate(outcomes: &[(usize, bool, bool)], bootstrap: Bootstrap) -> PairedRate {
    let count = |a, b| outcomes.iter().filter(|o| (o.1, o.2) == (a, b)).count() as u64;
    let (only_first, only_second) = (count(true, false), count(false, true));
    let differences = outcomes.iter().map(|(t, a, b)| (*t, f64::from(u8::from(*a)) - f64::from(u8::from(*b))));
    PairedRate {
        both: count(true, true),
        only_first,
        only_second,
        neither: count(false, false),
        p_value: mcnemar(only_first, only_second),
        difference: bootstrap.mean(by_task(differences)),
    }
}

/// One value a task: the mean over its seeds.
pub(super) fn by_task(values: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
    let mut tasks: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (task, value) in values {
        let (sum, count) = tasks.entry(task).or_default();
        *sum += value;
        *count += 1.0;
    }
    tasks.into_values().map(|(sum, count)| sum / count).collect()
}

/// The two-sided exact test of `a` against `b` where a coin would decide.
fn mcnemar(a: u64, b: u64) -> f64 {
    let n = a + b;
    // ln C(n, i), built up term by term.
    let mut ln_choose = 0.0;
    let mut tail = 0.0;
    for i in 0..=a.min(b) {
        if i > 0 {
            ln_choose += ((n - i + 1) as f64).ln() - (i as f64).ln();
        }
        tail += (ln_choose - n as f64 * std::f64::consts::LN_2).exp();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcnemar_agrees_with_binomial_tables() {
        // Twice the lower tail of a fair coin.
        for ((a, b), p) in
            [((0, 0), 1.0), ((5, 5), 1.0), ((0, 5), 0.0625), ((1, 9), 0.021_484_375), ((12, 4), 0.076_812_744)]
        {
            assert!((mcnemar(a, b) - p).abs() < 1e-8, "{a} {b}: {}", mcnemar(a, b));
            assert_eq!(mcnemar(a, b), mcnemar(b, a));
        }
        let many = mcnemar(4_000, 6_000);
        assert!((0.0..1e-80).contains(&many), "{many}");
    }

    #[test]
    fn seeds_of_a_task_count_as_one() {
        assert_eq!(by_task([(3, 1.0), (1, 0.0), (3, 0.0), (1, 0.0)].into_iter()), [0.0, 0.5]);
    }
}
