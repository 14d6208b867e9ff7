//! Detection of a stale gradient in the slot of a new model.
//!
//! SkyRL's JAX backend accumulates gradients by slot, not by model, and does not clear them when a model is unloaded: a
//! model unloaded between a gradient and its step leaves the gradient to its successor (measured). Only a step reveals
//! what a slot holds, and every step updates Adam's moments; a saved state can be loaded only into a model without
//! prior requests; and a model created after a slot was cleared may get another slot. Therefore the first step of a new
//! model is provisional: it is repeated on a second model, and counts only if both report the same norm. The first step
//! consumes any stale gradient in its slot, so that the second does not include it.

use super::session::{MAX_RESTORES, SessionState, TrainingSession};
use mage_engine::{Hint, OptimStep, Result};

/// Relative difference of norms that rounding explains. A stale gradient has the weight of its sequences.
const ROUNDING_TOLERANCE: f64 = 1e-5;
/// After all attempts, a smaller relative difference than this means an engine that is not reproducible, since the
/// first step in a slot consumes a stale gradient.
const NOISE_TOLERANCE: f64 = 5e-2;

/// Relative difference of two norms; 0 if both are non-finite.
fn relative_difference(one: Option<f64>, other: Option<f64>) -> f64 {
    match (one, other) {
        (Some(x), Some(y)) if x == y || (!x.is_finite() && !y.is_finite()) => 0.0,
        (Some(x), Some(y)) => match (x - y).abs() / x.abs().max(y.abs()) {
            ratio if ratio.is_nan() => f64::INFINITY,
            ratio => ratio,
        },
        // A missing norm cannot be compared.
        _ => 0.0,
    }
}

/// Whether two norms belong to the same step.
pub(super) fn norms_agree(one: Option<f64>, other: Option<f64>) -> bool {
    relative_difference(one, other) <= ROUNDING_TOLERANCE
}

/// Log line for a mismatch of norms.
pub(super) fn mismatch_message(address: &str, one: Option<f64>, other: Option<f64>) -> String {
    let norm = |n: Option<f64>| n.map_or_else(|| "none".to_owned(), |n| format!("{n:.6e}"));
    format!(
        "{address}: the first step of a new model had gradient norm {} in one slot and {} in another, as after a killed run \
         that left its gradient behind; undoing and repeating the step",
        norm(one),
        norm(other)
    )
}

impl TrainingSession {
    /// Verifies that the step just taken contains only our gradient, and returns its norm. Must be called before the
    /// step enters the replay log, so that a restore undoes it.
    pub(super) fn verify_first_step(
        &self,
        state: &mut SessionState,
        step: &OptimStep,
        norm: Option<f64>,
    ) -> Result<Option<f64>> {
        if state.first_step_verified || !self.settings.backend.shares_gradient_slots() {
            return Ok(norm);
        }
        let mut last = norm;
        for retries_left in (0..MAX_RESTORES).rev() {
            self.restore_model(state, None)?;
            let repeated =
                self.with_restore(state, async |model| self.client.optim_step(model, model.next_seq(), step).await)?;
            let (address, by) = (self.client.http.address(), relative_difference(last, repeated));
            let is_noise = !norms_agree(last, repeated) && retries_left == 0 && by <= NOISE_TOLERANCE;
            if is_noise {
                self.client.http.status_log.log(format!(
                    "{address}: the first step of a new model differed each time, last by {by:.1e}: the engine is not reproducible, \
                     and a stale gradient below that would not be detected"
                ));
            }
            if is_noise || norms_agree(last, repeated) {
                state.first_step_verified = true;
                return Ok(repeated);
            }
            self.client.http.status_log.log(mismatch_message(address, last, repeated));
            last = repeated;
        }
        let problem = format!(
            "optim_step: the first step of a new model differed {MAX_RESTORES} times in a row (last norm {}): \
             other runs leave gradients in its slots, or the engine is not reproducible. No step was recorded and \
             checkpoints are unchanged: restart the server, which clears stale gradients",
            last.map_or_else(|| "none".to_owned(), |norm| format!("{norm:.6e}"))
        );
        Err(self.client.http.error(problem).with_hints(&[Hint::ResumeRun]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_agree_up_to_rounding() {
        assert!(
            norms_agree(Some(2.0), Some(2.0))
                && norms_agree(Some(0.0), Some(0.0))
                && norms_agree(Some(2.0), Some(2.000_01))
        );
        assert!(!norms_agree(Some(2.0), Some(2.0001)) && !norms_agree(Some(0.0), Some(1e-9)));
        assert!(norms_agree(Some(f64::NAN), Some(f64::NAN)) && norms_agree(None, None));
        assert!(!norms_agree(Some(f64::NAN), Some(2.0)) && !norms_agree(Some(2.0), Some(f64::INFINITY)));
    }
}
