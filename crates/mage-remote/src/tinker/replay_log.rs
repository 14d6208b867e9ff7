//! Replay log: requests since the server state was last saved.
//!
//! A server that lost the model restores the saved state and replays the log in order. Each result must equal the
//! original, or be close to it if the engine is not reproducible.

use super::codec::{Datum, ForwardBackwardRequest};
use mage_engine::OptimStep;
use std::collections::BTreeMap;

/// Maximum difference of a replayed result on a reproducible engine: rounding.
const ROUNDING_TOLERANCE: f64 = 1e-3;
/// Maximum difference on an engine that is not reproducible, as caused by bf16 and another summation order: the mean
/// over tokens for log-probs, and relative for gradient norms. A foreign state differs more, or is harmless.
const MAX_LOGPROB_DIFFERENCE: f64 = 0.05;
const MAX_NORM_DIFFERENCE: f64 = 0.25;

/// A gradient request without model and sequence number.
#[derive(Clone, Debug)]
pub(super) struct GradientRequest {
    pub(super) data: Vec<Datum>,
    pub(super) loss_fn: &'static str,
    pub(super) config: BTreeMap<String, f64>,
}

impl GradientRequest {
    pub(super) fn request(&self, model: &str, seq: u64) -> ForwardBackwardRequest {
        ForwardBackwardRequest {
            model_id: model.to_owned(),
            seq_id: seq as i32,
            data: self.data.clone(),
            loss_fn: self.loss_fn.to_owned(),
            loss_fn_config: self.config.clone(),
            forward_only: false,
        }
    }
}

/// A request with its result.
#[derive(Clone, Debug)]
pub(super) enum ReplayEntry {
    /// A gradient, and the log-probs of each sequence.
    Gradient(GradientRequest, Vec<Vec<f32>>),
    /// A step, and the gradient norm it reported.
    Step(OptimStep, Option<f64>),
}

/// Comparison of a replayed result with the original.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReplayMatch {
    /// Equal up to rounding.
    Same,
    /// Close, as expected of an engine that is not reproducible, with the difference.
    Close(f64),
    /// Different, with the difference.
    Different(f64),
}

impl ReplayMatch {
    fn classify(max: f64, measured: f64, allowed: f64, reproducible: bool) -> Self {
        match (max <= ROUNDING_TOLERANCE, !reproducible && measured <= allowed) {
            (true, _) => ReplayMatch::Same,
            (_, true) => ReplayMatch::Close(measured),
            _ => ReplayMatch::Different(if reproducible { max } else { measured }),
        }
    }

    /// Compares log-probs of sequences.
    pub(super) fn of_logprobs(now: &[Vec<f32>], before: &[Vec<f32>], reproducible: bool) -> Self {
        if now.len() != before.len() || now.iter().zip(before).any(|(x, y)| x.len() != y.len()) {
            return ReplayMatch::Different(f64::INFINITY);
        }
        // For tokens without weight a server may return anything, including NaN, as it did originally.
        let same = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
        let difference = |(x, y): (&f32, &f32)| if same(*x, *y) { 0.0 } else { f64::from((x - y).abs()) };
        let differences = || now.iter().flatten().zip(before.iter().flatten()).map(difference);
        let max = differences().fold(0.0, |max: f64, d| if d.is_nan() { f64::INFINITY } else { max.max(d) });
        let mean = differences().sum::<f64>() / differences().count().max(1) as f64;
        ReplayMatch::classify(max, mean, MAX_LOGPROB_DIFFERENCE, reproducible)
    }

    /// Compares gradient norms.
    pub(super) fn of_norms(now: f64, before: f64, reproducible: bool) -> Self {
        let difference = (now - before).abs() / before.abs().max(1e-12);
        ReplayMatch::classify(difference, difference, MAX_NORM_DIFFERENCE, reproducible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_tolerance_depends_on_reproducibility() {
        let before = vec![vec![-1.0, -2.0], vec![-3.0]];
        let moved = |by: f32| -> Vec<Vec<f32>> { before.iter().map(|r| r.iter().map(|x| x + by).collect()).collect() };
        let compare = |by: f32, reproducible| ReplayMatch::of_logprobs(&moved(by), &before, reproducible);
        assert_eq!((compare(1e-4, true), compare(1e-4, false)), (ReplayMatch::Same, ReplayMatch::Same));
        assert!(matches!(
            (compare(0.02, true), compare(0.02, false)),
            (ReplayMatch::Different(_), ReplayMatch::Close(_))
        ));
        assert!(matches!(compare(0.2, false), ReplayMatch::Different(by) if by > 0.19));
        // One unlikely token may differ more than the mean.
        let mut one = before.clone();
        one[1][0] += 0.1;
        assert!(matches!(ReplayMatch::of_logprobs(&one, &before, false), ReplayMatch::Close(by) if by < 0.04));
        let odd = vec![vec![f32::NAN, f32::NEG_INFINITY, -2.0]];
        for reproducible in [true, false] {
            assert_eq!(ReplayMatch::of_logprobs(&odd, &odd, reproducible), ReplayMatch::Same);
            assert!(matches!(compare(f32::NAN, reproducible), ReplayMatch::Different(_)));
            assert_eq!(
                ReplayMatch::of_logprobs(&before[..1], &before, reproducible),
                ReplayMatch::Different(f64::INFINITY)
            );
            assert!(matches!(ReplayMatch::of_norms(f64::NAN, 1.0, reproducible), ReplayMatch::Different(_)));
            assert_eq!(ReplayMatch::of_norms(1.0005, 1.0, reproducible), ReplayMatch::Same);
        }
        let norms = |now| (ReplayMatch::of_norms(now, 2.0, true), ReplayMatch::of_norms(now, 2.0, false));
        assert!(matches!(norms(2.1), (ReplayMatch::Different(_), ReplayMatch::Close(_))));
        assert!(matches!(norms(3.0), (ReplayMatch::Different(_), ReplayMatch::Different(_))));
    }
}
