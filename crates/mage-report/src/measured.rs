//! How is a number shown?

use mage_core::{MeanEstimate, RateEstimate};
use serde::Serialize;

/// A number with its 95 % interval and how many tasks it rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// The number; absent when nothing was observed.
    pub value: Option<f64>,
    /// The interval, where there is one.
    pub interval: Option<(f64, f64)>,
    /// Tasks.
    pub n: u64,
}

impl From<&RateEstimate> for Measured {
    fn from(r: &RateEstimate) -> Self {
        let interval = r.rate.map(|_| (r.interval.low, r.interval.high));
        Measured { value: r.rate, interval, n: r.tasks }
    }
}

impl From<&MeanEstimate> for Measured {
    fn from(m: &MeanEstimate) -> Self {
        Measured { value: m.mean, interval: m.interval.map(|i| (i.low, i.high)), n: m.count }
    }
}

/// What stands where there is no number.
pub(super) const NONE: &str = "—";

impl Measured {
    /// In percent: `65.6 [57.1, 73.3]`.
    pub(super) fn percent(&self) -> String {
        self.shown(|x| format!("{:.1}", 100.0 * x))
    }

    /// As a score: `0.250 [0.198, 0.302]`.
    pub(super) fn score(&self) -> String {
        self.shown(score)
    }

    fn shown(&self, form: impl Fn(f64) -> String) -> String {
        match (self.value, self.interval) {
            (None, _) => NONE.to_owned(),
            (Some(x), None) => form(x),
            (Some(x), Some((low, high))) => format!("{} [{}, {}]", form(x), form(low), form(high)),
        }
    }
}

/// A score with three decimals; no "-0.000", which would be a lie about the sign.
pub(super) fn score(x: f64) -> String {
    let x = if x.abs() < 0.0005 { 0.0 } else { x };
    format!("{x:.3}")
}

/// How likely, with three decimals; nothing is certain.
pub fn p_value(p: f64) -> String {
    if p < 0.0005 { "< 0.001".to_owned() } else { format!("{p:.3}") }
}
