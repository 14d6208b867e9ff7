//! What must be done again if the server forgets?
//!
//! Everything since its state was last kept. A server that comes back without the model is given the kept state and then the
//! same requests in the same order; each must come to what it came to before, or near it where the engine is not reproducible.

use super::codec::{Datum, ForwardBackwardRequest};
use mage_engine::OptimStep;
use std::collections::BTreeMap;

/// How far results may be from what they were where the same work on the same numbers gives the same: rounding alone.
const SAME: f64 = 1e-3;
/// And where it does not: what half precision and sums in another order make of log-probabilities, on average over tokens, and
/// of a gradient's norm, as a share of it. A state from elsewhere is further off, or does no harm.
const NEAR_LOGPROBS: f64 = 0.05;
const NEAR_NORM: f64 = 0.25;

/// A request without the names it goes under.
#[derive(Clone, Debug)]
pub(super) struct Gradient {
    pub(super) data: Vec<Datum>,
    pub(super) loss_fn: &'static str,
    pub(super) config: BTreeMap<String, f64>,
}

impl Gradient {
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

/// One thing that was done, and what it came to.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// A gradient, and each row's log-probabilities.
    Gradient(Gradient, Vec<Vec<f32>>),
    /// A step, and the norm it reported.
    Step(OptimStep, Option<f64>),
}

/// How something that was done again compares with what it came to before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Again {
    /// It came out as it did.
    Same,
    /// It came out a little otherwise, as it may on an engine that is not reproducible: by how much.
    Near(f64),
    /// It came out otherwise: by how much.
    Other(f64),
}

impl Again {
    fn judge(most: f64, measured: f64, allowed: f64, reproducible: bool) -> Self {
        match (most <= SAME, !reproducible && measured <= allowed) {
            (true, _) => Again::Same,
            (_, true) => Again::Near(measured),
            _ => Again::Other(if reproducible { most } else { measured }),
        }
    }

    /// Log-probabilities of a gradient's rows.
    pub(super) fn from_sequences(now: &[Vec<f32>], before: &[Vec<f32>], reproducible: bool) -> Self {
        if now.len() != before.len() || now.iter().zip(before).any(|(x, y)| x.len() != y.len()) {
            return Again::Other(f64::INFINITY);
        }
        // Where a token does not count a server may say what it likes: no number, too, as it did before.
        let same = |x: f32, y: f32| x == y || (x.is_nan() && y.is_nan());
        let far = |(x, y): (&f32, &f32)| if same(*x, *y) { 0.0 } else { f64::from((x - y).abs()) };
        let apart = || now.iter().flatten().zip(before.iter().flatten()).map(far);
        let most = apart().fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
        let average = apart().sum::<f64>() / apart().count().max(1) as f64;
        Again::judge(most, average, NEAR_LOGPROBS, reproducible)
    }

    /// The norm a step reported.
    pub(super) fn of_norms(now: f64, before: f64, reproducible: bool) -> Self {
        let apart = (now - before).abs() / before.abs().max(1e-12);
        Again::judge(apart, apart, NEAR_NORM, reproducible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_are_not_reproducible_are_not_held_to_the_last_digit() {
        let before = vec![vec![-1.0, -2.0], vec![-3.0]];
        let moved = |by: f32| -> Vec<Vec<f32>> { before.iter().map(|r| r.iter().map(|x| x + by).collect()).collect() };
        let rows = |by: f32, reproducible| Again::from_sequences(&moved(by), &before, reproducible);
        assert_eq!((rows(1e-4, true), rows(1e-4, false)), (Again::Same, Again::Same));
        assert!(matches!((rows(0.02, true), rows(0.02, false)), (Again::Other(_), Again::Near(_))));
        assert!(matches!(rows(0.2, false), Again::Other(by) if by > 0.19));
        // One unlikely token may be further off than all together.
        let mut one = before.clone();
        one[1][0] += 0.1;
        assert!(matches!(Again::from_sequences(&one, &before, false), Again::Near(by) if by < 0.04));
        let odd = vec![vec![f32::NAN, f32::NEG_INFINITY, -2.0]];
        for reproducible in [true, false] {
            assert_eq!(Again::from_sequences(&odd, &odd, reproducible), Again::Same);
            assert!(matches!(rows(f32::NAN, reproducible), Again::Other(_)));
            assert_eq!(Again::from_sequences(&before[..1], &before, reproducible), Again::Other(f64::INFINITY));
            assert!(matches!(Again::of_norms(f64::NAN, 1.0, reproducible), Again::Other(_)));
            assert_eq!(Again::of_norms(1.0005, 1.0, reproducible), Again::Same);
        }
        let norms = |now| (Again::of_norms(now, 2.0, true), Again::of_norms(now, 2.0, false));
        assert!(matches!(norms(2.1), (Again::Other(_), Again::Near(_))));
        assert!(matches!(norms(3.0), (Again::Other(_), Again::Other(_))));
    }
}
