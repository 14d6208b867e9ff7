//! Rates and means with confidence intervals.
//!
//! Every rate and mean carries its number of observations and a 95 % interval: Wilson's score interval for rates, a
//! percentile bootstrap for means. The task is the unit of resampling: a mean averages the seeds of a task first, and a
//! rate uses an effective sample size.

use mage_env::Seed;
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// 97.5 % quantile of the standard normal distribution, for two-sided 95 % intervals.
pub(crate) const Z: f64 = 1.959_963_984_540_054;

/// A 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl ConfidenceInterval {
    /// Whether it contains `x`, bounds included.
    pub fn contains(&self, x: f64) -> bool {
        self.low <= x && x <= self.high
    }

    /// The image of the interval under a linear function, bounds in order.
    #[must_use]
    pub(crate) fn map(&self, linear: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (linear(self.low), linear(self.high));
        ConfidenceInterval { low: a.min(b), high: a.max(b) }
    }
}

/// A success rate.
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
    /// Number of successes.
    pub hits: u64,
    /// Number of observations.
    pub trials: u64,
    /// Number of tasks, the independent units.
    pub tasks: u64,
    /// The mean over tasks of each task's rate; equal to `hits / trials` if all tasks have equally many observations.
    /// Absent without observations.
    pub rate: Option<f64>,
    /// Wilson's score interval; 0 to 1 without observations.
    pub interval: ConfidenceInterval,
}

impl RateEstimate {
    /// The rate of `hits` among `trials` independent observations. `hits` is clamped to `trials`.
    pub fn new(hits: u64, trials: u64) -> Self {
        let hits = hits.min(trials);
        let rate = (trials > 0).then(|| hits as f64 / trials as f64);
        RateEstimate { hits, trials, tasks: trials, rate, interval: wilson(rate, trials as f64) }
    }

    /// The rate of `true` among independent observations.
    pub fn from_bools(observations: impl IntoIterator<Item = bool>) -> Self {
        let (mut hits, mut trials) = (0, 0);
        for success in observations {
            hits += u64::from(success);
            trials += 1;
        }
        RateEstimate::new(hits, trials)
    }

    /// The rate among observations of tasks, each with the index of its task.
    ///
    /// Seeds of a task are correlated, so the interval is Wilson's for the effective sample size that explains the
    /// variance between tasks (Kish; Franco et al., 2019, confirm its coverage with Wilson's interval), at least the
    /// number of tasks and at most the number of observations. The variance estimate includes one additional task that
    /// always succeeds and one that never does: near 0 and 1 a few hits say little about the correlation of seeds.
    ///
    /// ```
    /// use mage_core::RateEstimate;
    ///
    /// let always = RateEstimate::by_task((0..20).flat_map(|task| [(task, true); 3]));
    /// assert_eq!((always.trials, always.tasks), (60, 20));
    /// assert_eq!(always.interval, RateEstimate::new(20, 20).interval);
    /// ```
    pub fn by_task(observations: impl IntoIterator<Item = (usize, bool)>) -> Self {
        let mut tasks: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (task, success) in observations {
            let (hits, trials) = tasks.entry(task).or_default();
            *hits += u64::from(success);
            *trials += 1;
        }
        let (hits, trials) = tasks.values().fold((0, 0), |(h, n), (hits, trials)| (h + hits, n + trials));
        if tasks.len() as u64 == trials {
            return RateEstimate::new(hits, trials);
        }
        let (m, rates) = (tasks.len() as f64, tasks.values().map(|(hits, trials)| *hits as f64 / *trials as f64));
        let rate = rates.clone().sum::<f64>() / m;
        let center = (m * rate + 1.0) / (m + 2.0);
        let squares: f64 = rates.chain([0.0, 1.0]).map(|x| (x - center).powi(2)).sum();
        let effective = (center * (1.0 - center) * m * (m + 1.0) / squares).clamp(m, trials as f64);
        let interval = wilson(Some(rate), effective);
        RateEstimate { hits, trials, tasks: tasks.len() as u64, rate: Some(rate), interval }
    }
}

/// Wilson's score interval of a rate in `n` independent observations.
fn wilson(rate: Option<f64>, n: f64) -> ConfidenceInterval {
    let Some(p) = rate else { return ConfidenceInterval { low: 0.0, high: 1.0 } };
    let z2n = Z * Z / n;
    let center = (p + z2n / 2.0) / (1.0 + z2n);
    let half_width = Z / (1.0 + z2n) * (p * (1.0 - p) / n + z2n / (4.0 * n)).sqrt();
    // At the ends the formula gives 0 and 1 up to rounding; make it exact.
    let low = if p <= 0.0 { 0.0 } else { center - half_width };
    let high = if p >= 1.0 { 1.0 } else { center + half_width };
    ConfidenceInterval { low, high }
}

/// A mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanEstimate {
    /// Number of observations.
    pub count: u64,
    /// The mean; absent without observations.
    pub mean: Option<f64>,
    /// Percentile bootstrap interval; absent for a single observation or if all are equal.
    pub interval: Option<ConfidenceInterval>,
}

impl MeanEstimate {
    /// The mean under a linear function.
    #[must_use]
    pub(crate) fn map(&self, linear: impl Fn(f64) -> f64 + Copy) -> Self {
        MeanEstimate { count: self.count, mean: self.mean.map(linear), interval: self.interval.map(|i| i.map(linear)) }
    }
}

/// Bootstrap parameters for intervals of means. The interval depends on the seed and the values, not on their order.
///
/// Below about 30 observations a percentile interval is too narrow. The time is proportional to observations ×
/// resamples (about a nanosecond each).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bootstrap {
    /// Random seed.
    pub seed: Seed,
    /// Number of resamples; 0 for means without intervals.
    pub resamples: u32,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Bootstrap { seed: Seed::new(0), resamples: 1000 }
    }
}

impl Bootstrap {
    /// A bootstrap with the child seed of a name.
    #[must_use]
    pub fn child(self, name: &str) -> Self {
        Bootstrap { seed: self.seed.child(name), ..self }
    }

    /// A bootstrap with the child seed of an index.
    #[must_use]
    pub fn at(self, index: u64) -> Self {
        Bootstrap { seed: self.seed.at(index), ..self }
    }

    /// The mean of finite `values` with its interval.
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
        // Sorted: all values are equal if the first and the last are.
        let interval = (values[0] < values[n - 1] && self.resamples > 0).then(|| self.interval(&values));
        MeanEstimate { count: n as u64, mean: Some(mean), interval }
    }

    /// The mean of values of tasks, each with the index of its task. The values of a task are averaged to one
    /// observation.
    pub(crate) fn mean_by_task(&self, values: impl IntoIterator<Item = (usize, f64)>) -> MeanEstimate {
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
        // An index is a 32-bit half of a random number, times n, shifted right by 32; its bias is below n / 2^32.
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

/// The q-quantile of at least one sorted value, with linear interpolation.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (position - below as f64) * (sorted[above] - sorted[below])
}
