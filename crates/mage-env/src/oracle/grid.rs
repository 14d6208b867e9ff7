//! Which beliefs count as the same?
//!
//! Values are remembered by belief. Opponents that stay the same and never mix lead to a few hundred beliefs over ten
//! episodes, and [`Grid::Exact`] only absorbs rounding noise. Opponents that switch or mix lead to millions; then beliefs
//! are merged on a coarser grid, and the truth is fenced in from both sides:
//!
//! - *From below.* [`Grid::Snap`] plays on from a merged belief as if it were its grid point, and is charged what that
//!   play really earns under every type. So every number is the exact score of a policy one could follow.
//! - *From above.* The optimal value is convex in the belief (a maximum of linear functions), so mixing the values of
//!   the grid points around a belief never comes out too low ([`Grid::Mix`]; Lovejoy, Operations Research 39, 1991).
//!
//! Their difference bounds the error, and is reported. Each side takes the finest grid that its share of work allows. For [`Grid::Exact`] with cells of width h = 2^-40: scores lie
//! within ±R and are linear in the belief, so moving a belief of n types by n·h changes the k later episodes' best sum,
//! and that of any policy, by at most k·R·n·h each. Over N episodes this makes R·n·h·N·(N − 1): about 1e-9 for N = 10.

use smallvec::SmallVec;

/// How beliefs are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grid {
    /// Only if they differ by rounding noise.
    Exact,
    /// By the nearest point of a grid with so many steps to a side.
    Snap(u32),
    /// By mixing the points of that grid around it.
    Mix(u32),
}

/// A belief's cell.
pub(super) type Cell = Box<[u64]>;

/// A grid point with what it stands for and its share in a belief.
pub(super) struct Point {
    pub(super) cell: Cell,
    pub(super) belief: Vec<f64>,
    pub(super) share: f64,
}

const NOISE: f64 = (1_u64 << 40) as f64;

impl Grid {
    /// How finely beliefs are merged when there are too many, finest first.
    pub(super) const STEPS: [u32; 6] = [512, 192, 80, 32, 16, 8];

    /// The grid points that stand for a belief. Shares add up to 1.
    pub(super) fn points(self, belief: &[f64]) -> SmallVec<[Point; 1]> {
        match self {
            // The belief stands for itself: rounding it would add noise of the cell's own size, and beliefs that are
            // equal but for their history would fall apart.
            Grid::Exact => {
                let cell = noise_free(belief.iter().copied());
                SmallVec::from_iter([Point { cell, belief: belief.to_vec(), share: 1.0 }])
            }
            Grid::Snap(steps) => SmallVec::from_iter([snap(belief, steps)]),
            Grid::Mix(steps) => mix(belief, steps),
        }
    }

    /// Values closer than this are equal, and the next criterion decides. On a coarse grid, what should be equal is
    /// equal only roughly; the price of a generous tie is part of the reported error.
    pub(super) fn tie(self) -> f64 {
        match self {
            Grid::Exact => 1e-9,
            Grid::Snap(_) => 1e-4,
            Grid::Mix(_) => 0.0,
        }
    }

    /// How far the best sum over `episodes` may be off on [`Grid::Exact`], for scores within ±`largest`.
    pub(super) fn noise_bound(types: usize, largest: f64, episodes: u32) -> f64 {
        largest * types as f64 / NOISE * f64::from(episodes) * f64::from(episodes.saturating_sub(1))
    }
}

/// Weights as a key that rounding noise does not change. What is possible stays apart from what is not.
pub(super) fn noise_free(weights: impl Iterator<Item = f64>) -> Cell {
    weights.map(|w| round_up_from_zero(w * NOISE)).collect()
}

/// A function of the cell alone, so that no value depends on what was asked before. Every possible type keeps some weight,
/// so that what is planned for the point also says what to do when that type shows.
fn snap(belief: &[f64], steps: u32) -> Point {
    let cell: Cell = belief.iter().map(|b| round_up_from_zero(b * f64::from(steps))).collect();
    let total = cell.iter().sum::<u64>() as f64;
    let stands_for = cell.iter().map(|c| *c as f64 / total).collect();
    Point { cell, belief: stands_for, share: 1.0 }
}

fn round_up_from_zero(w: f64) -> u64 {
    if w > 0.0 { (w.round() as u64).max(1) } else { 0 }
}

/// The corners of the little simplex of Freudenthal's triangulation that holds the belief.
fn mix(belief: &[f64], steps: u32) -> SmallVec<[Point; 1]> {
    let n = belief.len();
    let scale = f64::from(steps);
    // Tail sums times the resolution: grid points are exactly those with whole numbers, falling from `steps` to 0.
    let mut tails = vec![0.0; n + 1];
    for i in (1..n).rev() {
        tails[i] = (tails[i + 1] + belief[i] * scale).min(scale);
    }
    tails[0] = scale;
    let whole: Vec<f64> = tails.iter().map(|t| t.floor()).collect();
    let part: Vec<f64> = tails.iter().zip(&whole).map(|(t, w)| t - w).collect();
    let mut order: Vec<usize> = (1..n).collect();
    order.sort_by(|a, b| part[*b].total_cmp(&part[*a]));
    let mut corner = whole;
    let mut points = SmallVec::new();
    let mut above = 1.0;
    for next in order.iter().map(|i| Some(*i)).chain([None]) {
        let share = above - next.map_or(0.0, |i| part[i]);
        if share > 1e-12 {
            let cell: Cell = (0..n).map(|i| (corner[i] - corner[i + 1]) as u64).collect();
            let stands_for = cell.iter().map(|c| *c as f64 / scale).collect();
            points.push(Point { cell, belief: stands_for, share });
        }
        if let Some(i) = next {
            above = part[i];
            corner[i] += 1.0;
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn beliefs() -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![Just(0.0), 0.001_f64..1.0];
        proptest::collection::vec(weight, 2..9).prop_filter_map("some weight", |w| {
            let total: f64 = w.iter().sum();
            (total > 0.0).then(|| w.iter().map(|x| x / total).collect())
        })
    }

    proptest! {
        #[test]
        fn corners_mix_back_to_the_belief(belief in beliefs(), steps in 1_u32..600) {
            let points = Grid::Mix(steps).points(&belief);
            prop_assert!((points.iter().map(|p| p.share).sum::<f64>() - 1.0).abs() < 1e-9);
            for (i, b) in belief.iter().enumerate() {
                let mixed: f64 = points.iter().map(|p| p.share * p.belief[i]).sum();
                prop_assert!((mixed - b).abs() < 1e-9);
            }
            for p in &points {
                prop_assert_eq!(p.cell.iter().sum::<u64>(), u64::from(steps));
            }
        }

        #[test]
        fn snapping_is_near_and_keeps_what_is_possible(belief in beliefs(), steps in 8_u32..600) {
            let point = snap(&belief, steps);
            prop_assert!((point.belief.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            for (b, p) in belief.iter().zip(&point.belief) {
                prop_assert_eq!(*b > 0.0, *p > 0.0);
                prop_assert!((b - p).abs() <= (1.0 + belief.len() as f64) / f64::from(steps));
            }
        }
    }
}
