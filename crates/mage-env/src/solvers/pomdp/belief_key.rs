//! When are two beliefs the same?
//!
//! Values are remembered by belief. Two ways to the same belief differ by rounding noise, which a [`Cell`] absorbs: its sides
//! are h = 2^-40 wide. Scores lie within ±R and are linear in the belief, so moving a belief of n types by n·h changes the k
//! later episodes' best sum, and that of any policy, by at most k·R·n·h each. Over N episodes this makes R·n·h·N·(N − 1):
//! about 1e-9 for N = 10.

/// A belief's cell.
pub(super) type Cell = Box<[u64]>;

const NOISE: f64 = (1_u64 << 40) as f64;

/// Weights as a key that rounding noise does not change. What is possible stays apart from what is not.
pub(super) fn noise_free(weights: impl Iterator<Item = f64>) -> Cell {
    let rounded_up_from_zero = |w: f64| if w > 0.0 { ((w * NOISE).round() as u64).max(1) } else { 0 };
    weights.map(rounded_up_from_zero).collect()
}

/// How far the best sum over `episodes` may be off because beliefs within a cell count as one, for scores within ±`largest`.
pub(super) fn noise_bound(types: usize, largest: f64, episodes: u32) -> f64 {
    largest * types as f64 / NOISE * f64::from(episodes) * f64::from(episodes.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_absorbed_and_possibility_is_not() {
        let cell = |weights: [f64; 2]| noise_free(weights.into_iter());
        assert_eq!(cell([0.1 + 0.2, 0.7]), cell([0.3, 0.7]));
        assert_ne!(cell([0.3, 0.7]), cell([0.3 + 1e-10, 0.7]));
        assert_ne!(cell([1e-300, 1.0]), cell([0.0, 1.0]));
    }
}
