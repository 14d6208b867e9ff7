//! What must be done again if the server forgets?
//!
//! Everything since its state was last kept. A server that comes back without the model is given the kept state and then the
//! same requests in the same order; each must come to what it came to before.

use super::codec::{Datum, ForwardBackwardRequest};
use mage_engine::OptimStep;
use std::collections::BTreeMap;

/// How far results may be from what they were: the same work on the same numbers.
pub(super) const SAME: f64 = 1e-3;

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

/// The largest difference between two sets of rows.
pub(super) fn apart(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    if a.len() != b.len() || a.iter().zip(b).any(|(x, y)| x.len() != y.len()) {
        return f64::INFINITY;
    }
    let differences = a.iter().flatten().zip(b.iter().flatten()).map(|(x, y)| f64::from((x - y).abs()));
    differences.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}
