//! Estimates with confidence intervals, and their text form.

use mage_core::{ConfidenceInterval, MeanEstimate, RateEstimate};
use serde::Serialize;

/// An estimate with its 95 % interval and sample size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct IntervalEstimate {
    /// Estimate; `None` without data.
    pub value: Option<f64>,
    /// Lower and upper limit, if known.
    pub interval: Option<(f64, f64)>,
    /// Number of tasks.
    pub n: u64,
}

impl From<&RateEstimate> for IntervalEstimate {
    fn from(r: &RateEstimate) -> Self {
        let interval = r.rate.map(|_| (r.interval.low, r.interval.high));
        IntervalEstimate { value: r.rate, interval, n: r.tasks }
    }
}

impl From<&MeanEstimate> for IntervalEstimate {
    fn from(m: &MeanEstimate) -> Self {
        IntervalEstimate { value: m.mean, interval: m.interval.map(|i| (i.low, i.high)), n: m.count }
    }
}

/// Text of a missing value.
pub(super) const NONE: &str = "—";

impl IntervalEstimate {
    /// The estimate of a mean.
    pub(super) fn to_mean(self) -> MeanEstimate {
        let interval = self.interval.map(|(low, high)| ConfidenceInterval { low, high });
        MeanEstimate { count: self.n, mean: self.value, se: None, interval }
    }

    /// In percent: `65.6 [57.1, 73.3]`.
    pub(super) fn percent(&self) -> String {
        self.format(|x| format!("{:.1}", 100.0 * x))
    }

    /// As a score: `0.250 [0.198, 0.302]`.
    pub(super) fn score(&self) -> String {
        self.format(score)
    }

    fn format(&self, format_value: impl Fn(f64) -> String) -> String {
        match (self.value, self.interval) {
            (None, _) => NONE.to_owned(),
            (Some(x), None) => format_value(x),
            (Some(x), Some((low, high))) => {
                format!("{} [{}, {}]", format_value(x), format_value(low), format_value(high))
            }
        }
    }
}

/// Fraction of the gap between memoryless and Bayes-adaptive optimum: `72 % [61, 84]`. A value that is below the
/// memoryless optimum by more than its uncertainty is only named, since a negative percentage has no meaning. Relative to
/// a lower bound of the Bayes-adaptive optimum, the fraction is an upper bound.
pub(super) fn gap_share(share: Option<MeanEstimate>, lower_bound: bool) -> String {
    let whole = |x: f64| format!("{:.0}", 100.0 * x);
    let at_most = if lower_bound { "≤ " } else { "" };
    match share.map(|s| (s.mean, s.interval)) {
        Some((Some(x), interval)) if interval.map_or(x, |i| i.high) < 0.0 => "below memoryless".to_owned(),
        Some((Some(x), Some(i))) => format!("{at_most}{} % [{}, {}]", whole(x), whole(i.low), whole(i.high)),
        Some((Some(x), None)) => format!("{at_most}{} %", whole(x)),
        _ => NONE.to_owned(),
    }
}

/// A mean with its standard error: `0.250 ± 0.027`, or `0.250` if it is exact.
pub(super) fn mean_and_error(estimate: Option<&MeanEstimate>) -> String {
    match estimate.map(|e| (e.mean, e.se)) {
        Some((Some(mean), Some(se))) if se > 0.0 => format!("{} ± {}", score(mean), score(se)),
        Some((Some(mean), _)) => score(mean),
        _ => NONE.to_owned(),
    }
}

/// A score with three decimals. Values that round to zero have no sign.
pub(super) fn score(x: f64) -> String {
    let x = if x.abs() < 0.0005 { 0.0 } else { x };
    format!("{x:.3}")
}

/// A p-value with three decimals; values that round to zero are `< 0.001`.
pub fn p_value(p: f64) -> String {
    if p < 0.0005 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}
