//! Rates and means with confidence intervals.
//!
//! Every rate and mean carries its number of observations and a 95 % interval: Wilson's score interval for rates,
//! Student's t interval for means. The task is the independent unit: a mean averages the seeds of a task first, and a
//! rate uses an effective sample size. Task sets contain opponents and seats in fixed proportions, so the variance of a
//! mean is that within these strata.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    f64::consts::{FRAC_2_PI, FRAC_PI_2},
};

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

/// A mean of independent tasks, with its standard error and interval. They do not depend on the order of observations.
///
/// With nₕ tasks in stratum h and n in total, the standard error is √(Σₕ nₕ sₕ²) / n, where sₕ² is the sample variance
/// within the stratum. A stratum with a single task has no sample variance. All such strata form one stratum, together
/// with the smallest other one if there is only one of them: the variance between joined strata counts as sampling
/// error, so the standard error is then too large rather than too small.
///
/// The interval is mean ± t · `se`, with the quantile of Student's t distribution for n minus the number of strata
/// degrees of freedom.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanEstimate {
    /// Number of tasks, the independent units.
    pub count: u64,
    /// The mean; absent without observations.
    pub mean: Option<f64>,
    /// Standard error; absent with fewer than two tasks, 0 if the tasks of each stratum are equal.
    pub se: Option<f64>,
    /// The interval; absent if the standard error is absent or 0.
    pub interval: Option<ConfidenceInterval>,
}

impl MeanEstimate {
    /// The mean of finite, independent `values` of one stratum.
    ///
    /// ```
    /// use mage_core::MeanEstimate;
    ///
    /// let m = MeanEstimate::of([1.0, 2.0, 3.0]);
    /// assert_eq!((m.count, m.mean), (3, Some(2.0)));
    /// assert!((m.se.unwrap() - 1.0 / 3.0_f64.sqrt()).abs() < 1e-12);
    /// let interval = m.interval.unwrap(); // ± 4.303 standard errors
    /// assert!((interval.low + 0.484).abs() < 1e-3 && (interval.high - 4.484).abs() < 1e-3);
    /// ```
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        MeanEstimate::stratified(vec![values.into_iter().collect()])
    }

    /// The mean of finite values of tasks, each with the index and the stratum of its task. The values of a task are
    /// averaged to one observation.
    ///
    /// ```
    /// use mage_core::MeanEstimate;
    ///
    /// // Two opponents, two tasks against each, two seeds per task.
    /// let values = [("weak", 1.0), ("weak", 1.5), ("strong", -1.0), ("strong", -0.5)];
    /// let seeds = values.iter().enumerate().flat_map(|(task, (opponent, x))| [(task, opponent, *x); 2]);
    /// let m = MeanEstimate::by_task(seeds);
    /// assert_eq!((m.count, m.mean), (4, Some(0.25)));
    /// assert_eq!(m.se, Some(0.5_f64.sqrt() / 4.0)); // the variance within each stratum is 1/8
    /// ```
    pub fn by_task<S: Ord>(values: impl IntoIterator<Item = (usize, S, f64)>) -> Self {
        let mut strata: BTreeMap<S, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
        for (task, stratum, value) in values {
            strata.entry(stratum).or_default().entry(task).or_default().push(value);
        }
        let mean_of_task = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            mean(&values)
        };
        MeanEstimate::stratified(strata.into_values().map(|tasks| tasks.into_values().map(mean_of_task).collect()))
    }

    fn stratified(strata: impl IntoIterator<Item = Vec<f64>>) -> Self {
        let mut strata: Vec<Vec<f64>> = strata.into_iter().collect();
        strata.sort_by_key(Vec::len);
        let (mut joined, mut all, mut degrees, mut sum) = (Vec::new(), Vec::new(), 0, 0.0);
        let mut add = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let center = mean(&values);
            let squares: f64 = values.iter().map(|x| (x - center).powi(2)).sum();
            let of_stratum = values.len().saturating_sub(1);
            degrees += of_stratum;
            sum += values.len() as f64 * squares / of_stratum.max(1) as f64;
            all.append(&mut values);
        };
        for values in strata {
            // From the smallest: strata with one task, and one more to a single such stratum.
            match values.len() == 1 || joined.len() == 1 {
                true => joined.extend(values),
                false => add(values),
            }
        }
        add(joined);
        all.sort_by(f64::total_cmp);
        let n = all.len();
        let mean = (n > 0).then(|| mean(&all));
        let se = (n > 1).then(|| sum.sqrt() / n as f64);
        let interval = mean.zip(se.filter(|se| *se > 0.0)).map(|(mean, se)| {
            let half_width = t_quantile(degrees) * se;
            ConfidenceInterval { low: mean - half_width, high: mean + half_width }
        });
        MeanEstimate { count: n as u64, mean, se, interval }
    }

    /// The mean under a linear function.
    #[must_use]
    pub(crate) fn map(&self, linear: impl Fn(f64) -> f64 + Copy) -> Self {
        MeanEstimate {
            count: self.count,
            mean: self.mean.map(linear),
            se: self.se.map(|se| (linear(se) - linear(0.0)).abs()),
            interval: self.interval.map(|i| i.map(linear)),
        }
    }
}

/// The mean of sorted values; that of equal values is exact. 0 without values.
fn mean(sorted: &[f64]) -> f64 {
    let first = sorted.first().copied().unwrap_or_default();
    first + sorted.iter().map(|x| x - first).sum::<f64>() / sorted.len().max(1) as f64
}

/// 97.5 % quantile of Student's t distribution, accurate to 1e-5.
fn t_quantile(degrees: usize) -> f64 {
    let nu = degrees as f64;
    if degrees >= 30 {
        // Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5).
        let [z3, z5, z7] = [3, 5, 7].map(|n| Z.powi(n));
        return Z
            + (z3 + Z) / (4.0 * nu)
            + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * nu.powi(2))
            + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * nu.powi(3));
    }
    // The probability of |t| < √ν tan θ is a finite sum (26.7.3, 26.7.4).
    let odd = degrees % 2;
    let within = |theta: f64| {
        let (sin, cos) = theta.sin_cos();
        let (mut sum, mut term) = if odd == 1 { (theta, sin * cos) } else { (0.0, sin) };
        for i in 0..degrees / 2 {
            sum += term;
            let k = (2 * i + 1 + odd) as f64;
            term *= cos * cos * k / (k + 1.0);
        }
        if odd == 1 { sum * FRAC_2_PI } else { sum }
    };
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if within(middle) < 0.95 { low = middle } else { high = middle }
    }
    nu.sqrt() * low.tan()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_quantiles_match_known_values() {
        let known = [
            (1, 12.706_205),
            (2, 4.302_653),
            (3, 3.182_446),
            (4, 2.776_445),
            (5, 2.570_582),
            (10, 2.228_139),
            (29, 2.045_230),
            (30, 2.042_272),
            (31, 2.039_513),
            (100, 1.983_972),
            (1_000_000, 1.959_966),
        ];
        for (degrees, value) in known {
            assert!((t_quantile(degrees) - value).abs() < 1e-5, "{degrees}: {}", t_quantile(degrees));
        }
        assert!((1..100).all(|degrees| t_quantile(degrees) > t_quantile(degrees + 1)));
    }
}
