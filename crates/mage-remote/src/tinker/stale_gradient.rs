//! Whose gradient is in the place that a model was given?
//!
//! SkyRL's JAX backend adds up gradients by place, not by model, and does not clear them when a model goes: one that was let go of
//! between a gradient and its step leaves that gradient to its successor (measured). Nothing but a step tells what is in a place,
//! and every step counts for Adam; a saved state can be loaded only into a model that was asked for nothing yet; and whatever is
//! made after somebody else has cleared a place may be given another. So the first step of a new model is taken on trial: it is
//! taken once more by another model, and counts only where both report the same norm. The first has taken with it what lay in
//! its place, so that the second does not meet it again.

use super::session::{FEEDINGS, Shared, State};
use mage_engine::{OptimStep, Result};

/// How far the norms of one step may be apart, as a share: rounding. What somebody left weighs as much as its rows.
const ROUNDING: f64 = 1e-5;
/// And where no two ever agree so well: less than this is an engine that does not repeat itself, since whatever lay in a place is
/// taken away by the first who steps there.
const COARSE: f64 = 5e-2;

/// How far two norms are apart; two that are no numbers are not.
fn apart(one: Option<f64>, other: Option<f64>) -> f64 {
    match (one, other) {
        (Some(x), Some(y)) if x == y || (!x.is_finite() && !y.is_finite()) => 0.0,
        (Some(x), Some(y)) => match (x - y).abs() / x.abs().max(y.abs()) {
            share if share.is_nan() => f64::INFINITY,
            share => share,
        },
        // Where a norm is not told there is nothing to compare.
        _ => 0.0,
    }
}

/// Whether two models took the same step.
pub(super) fn agree(one: Option<f64>, other: Option<f64>) -> bool {
    apart(one, other) <= ROUNDING
}

/// What is said where they did not.
pub(super) fn suspicion(address: &str, one: Option<f64>, other: Option<f64>) -> String {
    let norm = |n: Option<f64>| n.map_or_else(|| "none".to_owned(), |n| format!("{n:.6e}"));
    format!(
        "{address}: the first step of a new model had a gradient of norm {} in one place and of {} in another, as where a run \
         that was killed has left its gradient behind; taking it back and doing it again",
        norm(one),
        norm(other)
    )
}

impl Shared {
    /// Makes sure that the step just taken holds our gradient and nobody else's; the norm it had. Called before the step is
    /// written down, so that feeding takes it back.
    pub(super) fn alone(&self, state: &mut State, step: &OptimStep, norm: Option<f64>) -> Result<Option<f64>> {
        if state.alone || !self.settings.backend.adds_up_by_place() {
            return Ok(norm);
        }
        let mut last = norm;
        for left in (0..FEEDINGS).rev() {
            self.feed(state, None)?;
            let again = self.again(state, async |model| self.client.optim_step(model, model.next(), step).await)?;
            let (address, by) = (self.client.wire.address(), apart(last, again));
            let noise = !agree(last, again) && left == 0 && by <= COARSE;
            if noise {
                self.client.wire.notices.say(format!(
                    "{address}: the first step of a new model came out otherwise each time, at last by {by:.1e}: an engine that \
                     does not repeat itself; a gradient of less than that, left there by a run that was killed, would not be seen"
                ));
            }
            if noise || agree(last, again) {
                state.alone = true;
                return Ok(again);
            }
            self.client.wire.notices.say(suspicion(address, last, again));
            last = again;
        }
        Err(self.client.wire.error(format!(
            "optim_step: the first step of a new model came out otherwise {FEEDINGS} times in a row (at last with a norm of {}): \
             either others leave gradients in its places, or the engine does not compute the same twice. No step counts, and \
             checkpoints are as they were: start the server anew, which clears what others left there, and go on from the \
             last one (`mage train --resume RUN`)",
            last.map_or_else(|| "none".to_owned(), |norm| format!("{norm:.6e}"))
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_agree_but_for_rounding() {
        assert!(agree(Some(2.0), Some(2.0)) && agree(Some(0.0), Some(0.0)) && agree(Some(2.0), Some(2.000_01)));
        assert!(!agree(Some(2.0), Some(2.0001)) && !agree(Some(0.0), Some(1e-9)));
        assert!(agree(Some(f64::NAN), Some(f64::NAN)) && agree(None, None));
        assert!(!agree(Some(f64::NAN), Some(2.0)) && !agree(Some(2.0), Some(f64::INFINITY)));
    }
}
