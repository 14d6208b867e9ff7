//! Memo keys of beliefs that absorb rounding errors.
//!
//! Values are memoised by belief. Two computations of the same belief differ by rounding errors; a [`BeliefKey`] rounds
//! to a grid of width h = 2^-40. Scores lie within ±R and are linear in the belief, so moving a belief of n types by
//! n·h changes the best sum of the k later episodes, and that of any policy, by at most k·R·n·h. Over N episodes this
//! adds up to R·n·h·N·(N − 1): about 1e-9 for N = 10.

/// A belief rounded to the grid.
pub(super) type BeliefKey = Box<[u64]>;

const CELLS_PER_UNIT: f64 = (1_u64 << 40) as f64;

/// Rounds weights to the grid. Positive weights stay distinct from zero.
pub(super) fn belief_key(weights: impl Iterator<Item = f64>) -> BeliefKey {
    let rounded_up_from_zero = |w: f64| if w > 0.0 { ((w * CELLS_PER_UNIT).round() as u64).max(1) } else { 0 };
    weights.map(rounded_up_from_zero).collect()
}

/// Error of the best sum over `episodes` due to rounding, for scores within ±`max_abs_score`.
pub(super) fn rounding_error_bound(types: usize, max_abs_score: f64, episodes: u32) -> f64 {
    max_abs_score * types as f64 / CELLS_PER_UNIT * f64::from(episodes) * f64::from(episodes.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_key_absorbs_rounding_and_keeps_support() {
        let key = |weights: [f64; 2]| belief_key(weights.into_iter());
        assert_eq!(key([0.1 + 0.2, 0.7]), key([0.3, 0.7]));
        assert_ne!(key([0.3, 0.7]), key([0.3 + 1e-10, 0.7]));
        assert_ne!(key([1e-300, 1.0]), key([0.0, 1.0]));
    }
}
