//! How sure is a measured number?
//!
//! Every rate and every mean carries how many observations it rests on and a 95 % interval: Wilson's for rates, a
//! percentile bootstrap for means. Both rest on what is independent: a task that was played with several seeds is one
//! observation of a mean, and a rate's observations shrink to what they are worth.

use mage_env::Seed;
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The normal distribution's 97.5 % point: intervals here are two-sided at 95 %.
pub(crate) const Z: f64 = 1.959_963_984_540_054;

/// Where the true value lies, with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl ConfidenceInterval {
    /// Whether `x` lies in it, ends included.
    pub fn contains(&self, x: f64) -> bool {
        self.low <= x && x <= self.high
    }

    /// The same interval under a falling or rising straight line, ends kept in order.
    #[must_use]
    pub(crate) fn map(&self, line: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (line(self.low), line(self.high));
        ConfidenceInterval { low: a.min(b), high: a.max(b) }
    }
}

/// How often something happened.
///
/// ```
/// use mage_core::RateEstimate;
///
/// let r = RateEstimate::new(84, 128);
/// assert_eq!(r.rate, Some(0.65625));
/// assert!((r.interval.low - 0.5705).abs() < 1e-4 && (r.interval.high - 0.7329).abs() < 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateEstimate {
    /// How often it happened.
    pub hits: u64,
    /// How often it could have.
    pub of: u64,
    /// How many tasks that was in: only these are independent.
    pub tasks: u64,
    /// The mean over tasks of each task's own rate, which is `hits / of` where all tasks were played equally often; absent when
    /// nothing was observed.
    pub rate: Option<f64>,
    /// Wilson's score interval; everything from 0 to 1 when nothing was observed.
    pub interval: ConfidenceInterval,
}

impl RateEstimate {
    /// The rate of `hits` among `of`, all independent. Hits beyond `of` are not counted.
    pub fn new(hits: u64, of: u64) -> Self {
        let hits = hits.min(of);
        let rate = (of > 0).then(|| hits as f64 / of as f64);
        RateEstimate { hits, of, tasks: of, rate, interval: wilson(rate, of as f64) }
    }

    /// Counts the `true`s among independent observations.
    pub fn of(observations: impl IntoIterator<Item = bool>) -> Self {
        let (mut hits, mut of) = (0, 0);
        for happened in observations {
            hits += u64::from(happened);
            of += 1;
        }
        RateEstimate::new(hits, of)
    }

    /// The rate among observations of tasks, each with its task's number.
    ///
    /// Seeds of one task are alike, so the interval is Wilson's for as many independent observations as these are worth: as
    /// many as make the spread between tasks what it is (Kish's effective sample size; Franco and others, 2019, find Wilson's
    /// interval with it sound), at least one a task and at most all of them. The spread is taken with one task more that always
    /// and one that never succeeds: near 0 and 1 a handful of hits says little about how alike seeds are.
    ///
    /// ```
    /// use mage_core::RateEstimate;
    ///
    /// let always = RateEstimate::by_task((0..20).flat_map(|task| [(task, true); 3]));
    /// assert_eq!((always.of, always.tasks), (60, 20));
    /// assert_eq!(always.interval, RateEstimate::new(20, 20).interval);
    /// ```
    pub fn by_task(observations: impl IntoIterator<Item = (usize, bool)>) -> Self {
        let mut tasks: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (task, happened) in observations {
            let (hits, of) = tasks.entry(task).or_default();
            *hits += u64::from(happened);
            *of += 1;
        }
        let (hits, of) = tasks.values().fold((0, 0), |(h, n), (hits, of)| (h + hits, n + of));
        if tasks.len() as u64 == of {
            return RateEstimate::new(hits, of);
        }
        let (m, shares) = (tasks.len() as f64, tasks.values().map(|(hits, of)| *hits as f64 / *of as f64));
        let rate = shares.clone().sum::<f64>() / m;
        let centre = (m * rate + 1.0) / (m + 2.0);
        let squares: f64 = shares.chain([0.0, 1.0]).map(|share| (share - centre).powi(2)).sum();
        let worth = (centre * (1.0 - centre) * m * (m + 1.0) / squares).clamp(m, of as f64);
        RateEstimate { hits, of, tasks: tasks.len() as u64, rate: Some(rate), interval: wilson(Some(rate), worth) }
    }
}

/// Wilson's score interval of a rate seen in `n` independent observations.
fn wilson(rate: Option<f64>, n: f64) -> ConfidenceInterval {
    let Some(p) = rate else { return ConfidenceInterval { low: 0.0, high: 1.0 } };
    let z2n = Z * Z / n;
    let centre = (p + z2n / 2.0) / (1.0 + z2n);
    let reach = Z / (1.0 + z2n) * (p * (1.0 - p) / n + z2n / (4.0 * n)).sqrt();
    // At the ends the formula gives 0 and 1 but for rounding: say so exactly.
    let low = if p <= 0.0 { 0.0 } else { centre - reach };
    let high = if p >= 1.0 { 1.0 } else { centre + reach };
    ConfidenceInterval { low, high }
}

/// An average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanEstimate {
    /// How many observations it rests on.
    pub count: u64,
    /// The average; absent when nothing was observed.
    pub mean: Option<f64>,
    /// Percentile bootstrap; absent where observations say nothing of their spread: one alone, or all the same.
    pub interval: Option<ConfidenceInterval>,
}

impl MeanEstimate {
    /// The same mean in other units: `line` must be a straight line.
    #[must_use]
    pub(crate) fn map(&self, line: impl Fn(f64) -> f64 + Copy) -> Self {
        MeanEstimate { count: self.count, mean: self.mean.map(line), interval: self.interval.map(|i| i.map(line)) }
    }
}

/// Resampling for intervals of means: the same seed gives the same interval, in whatever order values come.
///
/// Below about 30 observations a percentile interval is too narrow. Time grows with observations × resamples (about a
/// nanosecond each).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bootstrap {
    /// Where its random numbers come from.
    pub seed: Seed,
    /// How many resamples to take; 0 for means without intervals.
    pub resamples: u32,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Bootstrap { seed: Seed::new(0), resamples: 1000 }
    }
}

impl Bootstrap {
    /// The same effort on a stream of its own.
    #[must_use]
    pub fn child(self, kind: &str) -> Self {
        Bootstrap { seed: self.seed.child(kind), ..self }
    }

    /// The same effort on a stream of its own.
    #[must_use]
    pub fn at(self, index: u64) -> Self {
        Bootstrap { seed: self.seed.at(index), ..self }
    }

    /// The mean of finite `values`, with its interval.
    ///
    /// ```
    /// use mage_core::Bootstrap;
    ///
    /// let m = Bootstrap::default().mean((0..100).map(|i| f64::from(i % 2)));
    /// assert_eq!((m.count, m.mean), (100, Some(0.5)));
    /// let interval = m.interval.unwrap();
    /// assert!(interval.contains(0.5) && interval.low > 0.35 && interval.high < 0.65);
    /// ```
    pub fn mean(&self, values: impl IntoIterator<Item = f64>) -> MeanEstimate {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        if n == 0 {
            return MeanEstimate { count: 0, mean: None, interval: None };
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        // Sorted: all are the same where the ends are.
        let interval = (values[0] < values[n - 1] && self.resamples > 0).then(|| self.interval(&values));
        MeanEstimate { count: n as u64, mean: Some(mean), interval }
    }

    /// The mean of values of tasks, each with its task's number: a task, with all its seeds, is one observation.
    pub fn mean_by_task(&self, values: impl IntoIterator<Item = (usize, f64)>) -> MeanEstimate {
        let mut tasks: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for (task, value) in values {
            let (sum, count) = tasks.entry(task).or_default();
            *sum += value;
            *count += 1.0;
        }
        self.mean(tasks.into_values().map(|(sum, count)| sum / count))
    }

    fn interval(&self, values: &[f64]) -> ConfidenceInterval {
        let n = u32::try_from(values.len()).expect("fewer than 2^32 observations");
        let mut rng = self.seed.rng();
        // A 32-bit half of each draw times n, shifted down, is an index; its bias is below n / 2^32.
        let index = |half: u64| ((half * u64::from(n)) >> 32) as usize;
        let mut means: Vec<f64> = (0..self.resamples)
            .map(|_| {
                let mut total = 0.0;
                for _ in 0..n / 2 {
                    let draw = rng.next_u64();
                    total += values[index(draw >> 32)] + values[index(draw & 0xffff_ffff)];
                }
                if n % 2 == 1 {
                    total += values[index(rng.next_u64() >> 32)];
                }
                total / f64::from(n)
            })
            .collect();
        means.sort_by(f64::total_cmp);
        ConfidenceInterval { low: quantile(&means, 0.025), high: quantile(&means, 0.975) }
    }
}

/// The q-quantile of one or more sorted numbers, interpolated between neighbours.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (place - below as f64) * (sorted[above] - sorted[below])
}
