//! Which beliefs count as the same?
//!
//! Values are remembered by belief. Two beliefs in one cell of a grid of width `h` share a value. The finest grid only
//! absorbs rounding noise. Opponents that switch or mix can make too many beliefs for it, and then a coarser grid keeps
//! the work bounded at a known price:
//!
//! What a policy earns is linear in the belief, and its scores lie within ±R, so a value over k episodes changes by at
//! most k·R·‖b − b′‖₁ when the belief moves from b′ to b (R alone when only the last episode counts). A belief of n
//! types moves by at most n·h into its cell, once for each later episode. Over N episodes the total is therefore within
//! R·n·h·N·(N − 1)/2 of exact, the last episode's value within R·n·h·(N − 1).

/// Beliefs rounded to multiples of 2^-bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    bits: u32,
}

/// A belief's cell.
pub(super) type Cell = Box<[u64]>;

impl Grid {
    /// Absorbs rounding noise only.
    pub(super) const FINEST: Grid = Grid { bits: 40 };

    /// From the finest to the coarsest that is still worth having (one in 16,384).
    pub(super) const LADDER: [Grid; 4] = [Grid::FINEST, Grid { bits: 22 }, Grid { bits: 18 }, Grid { bits: 14 }];

    fn width(self) -> f64 {
        1.0 / (1_u64 << self.bits) as f64
    }

    /// The cell of a belief, and the belief that stands for it.
    pub(super) fn place(self, belief: &[f64]) -> (Cell, Vec<f64>) {
        let cell = self.cell(belief.iter().copied());
        if self == Grid::FINEST {
            // Rounding here would add noise of the cell's own size, and equal beliefs would fall apart.
            return (cell, belief.to_vec());
        }
        // A function of the cell alone, so that no value depends on what was asked before.
        let total = cell.iter().sum::<u64>() as f64;
        let stands_for = cell.iter().map(|c| *c as f64 / total).collect();
        (cell, stands_for)
    }

    /// The cell of some weights.
    pub(super) fn cell(self, weights: impl Iterator<Item = f64>) -> Cell {
        let scale = (1_u64 << self.bits) as f64;
        weights.map(|w| (w * scale).round() as u64).collect()
    }

    /// How far (last value, total) over `episodes` may be from exact, for scores within ±`largest`.
    pub(super) fn error_bounds(self, types: usize, largest: f64, episodes: u32) -> (f64, f64) {
        let per_move = largest * types as f64 * self.width();
        let later = f64::from(episodes.saturating_sub(1));
        (per_move * later, per_move * later * f64::from(episodes) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_belief_moves_no_further_than_the_bound_says(
            weights in proptest::collection::vec(0.001_f64..1.0, 2..9),
            grid in proptest::sample::select(Grid::LADDER.to_vec()),
        ) {
            let total: f64 = weights.iter().sum();
            let belief: Vec<f64> = weights.iter().map(|w| w / total).collect();
            let (_, stands_for) = grid.place(&belief);
            let moved: f64 = belief.iter().zip(&stands_for).map(|(a, b)| (a - b).abs()).sum();
            prop_assert!(moved <= belief.len() as f64 * grid.width() + 1e-15);
            prop_assert!((stands_for.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
}
