//! Lower and upper bounds of the value function over beliefs (HSVI).
//!
//! Opponents that switch or mix lead to too many reachable beliefs to solve each one. The optimal value is convex in
//! the belief (a maximum of linear functions, one per policy), so solved beliefs bound all others:
//!
//! - *Lower bound.* A policy found for one belief has a known score from any other belief: its alpha vector.
//! - *Upper bound.* A belief is a convex combination of solved beliefs and of corners (certainty of a type), and is
//!   worth at most the same combination of their values. The minimum over combinations is a small linear program.
//!
//! Solving beliefs where the gap is wide and often reached closes it step by step (Smith and Simmons, "Heuristic search
//! value iteration for POMDPs", UAI 2004). Where the work limit stops this, the remaining gap is reported.

use super::{
    belief_key::{BeliefKey, belief_key},
    belief_search::{LexValue, ScoreObjective, ScoreTable, lex_better, lex_values},
    full_info_bound::FullInfoBound,
};
use std::collections::HashMap;

/// Lexicographic values within this difference count as equal. The resulting error is part of the gap.
pub(super) const BOUND_TIE: f64 = 1e-5;

/// Bounds of the values of all beliefs with a given number of episodes left.
pub(super) struct ValueBounds {
    objective: ScoreObjective,
    /// Upper bound at each corner: certainty of a type.
    corner_values: Vec<f64>,
    alphas: Vec<AlphaVector>,
    points: Vec<UpperPoint>,
    index: HashMap<BeliefKey, usize>,
}

/// Scores of a policy, conditional on the type.
struct AlphaVector {
    scores: ScoreTable,
    lex_values: Vec<LexValue>,
}

/// A solved belief with its upper bound.
struct UpperPoint {
    belief: Vec<f64>,
    upper: f64,
    /// Tolerance it was solved with.
    tolerance: f64,
}

impl ValueBounds {
    /// Bounds with `left` episodes left. `scores` is the conditional score table of an initial policy.
    pub(super) fn new(objective: ScoreObjective, full_info: &FullInfoBound, left: u32, scores: ScoreTable) -> Self {
        let types = scores.len() / left as usize;
        let corner = |t| {
            let values = full_info.at_start(t, left);
            match objective {
                ScoreObjective::Last => values.last,
                ScoreObjective::Sum => values.sum,
            }
        };
        let mut bounds = ValueBounds {
            objective,
            corner_values: (0..types).map(corner).collect(),
            alphas: Vec::new(),
            points: Vec::new(),
            index: HashMap::new(),
        };
        bounds.add_alpha(scores, left);
        bounds
    }

    /// Number of solved beliefs.
    pub(super) fn num_points(&self) -> usize {
        self.points.len()
    }

    /// Floats read by one evaluation of the bounds.
    pub(super) fn scan_cost(&self) -> usize {
        (self.alphas.len() + self.points.len()) * self.corner_values.len()
    }

    /// Lower bound: the index of the best alpha vector for a belief, and its value.
    pub(super) fn lower(&self, belief: &[f64]) -> (usize, LexValue) {
        let value_of = |alpha: &AlphaVector| {
            let mut lex_value = (0.0, 0.0);
            for (b, r) in belief.iter().zip(&alpha.lex_values) {
                lex_value.0 += b * r.0;
                lex_value.1 += b * r.1;
            }
            lex_value
        };
        let mut best = (0, value_of(&self.alphas[0]));
        for (i, alpha) in self.alphas.iter().enumerate().skip(1) {
            let lex_value = value_of(alpha);
            if lex_better(lex_value, best.1, BOUND_TIE) {
                best = (i, lex_value);
            }
        }
        best
    }

    /// The conditional score table of an alpha vector.
    pub(super) fn scores(&self, alpha: usize) -> &ScoreTable {
        &self.alphas[alpha].scores
    }

    /// Upper bound of the primary criterion.
    pub(super) fn upper(&self, belief: &[f64]) -> f64 {
        convex_hull_value(belief, &self.corner_values, &self.points)
    }

    /// Tolerance a belief was last solved with. Solving it again with the same tolerance gains nothing.
    pub(super) fn solved_tolerance(&self, belief: &[f64]) -> Option<f64> {
        self.index.get(&belief_key(belief.iter().copied())).map(|at| self.points[*at].tolerance)
    }

    /// Adds the result of solving a belief: a policy's scores and an upper bound.
    pub(super) fn add_solved(&mut self, belief: &[f64], scores: ScoreTable, upper: f64, left: u32, tolerance: f64) {
        let fresh = self.points.len();
        let at = *self.index.entry(belief_key(belief.iter().copied())).or_insert(fresh);
        match self.points.get_mut(at) {
            Some(point) => (point.upper, point.tolerance) = (point.upper.min(upper), tolerance),
            None => self.points.push(UpperPoint { belief: belief.to_vec(), upper, tolerance }),
        }
        self.add_alpha(scores, left);
    }

    /// Adds an alpha vector unless an existing one dominates it.
    pub(super) fn add_alpha(&mut self, scores: ScoreTable, left: u32) {
        let lex_values = lex_values(self.objective, &scores, left);
        let no_better =
            |known: &AlphaVector| known.lex_values.iter().zip(&lex_values).all(|(k, r)| k.0 >= r.0 && k.1 >= r.1);
        if !self.alphas.iter().any(no_better) {
            self.alphas.push(AlphaVector { scores, lex_values });
        }
    }
}

/// Minimum value of a convex combination of points and corners that equals `belief`, by the simplex method. It starts
/// at the corners; every step is a valid combination, so stopping early is safe.
fn convex_hull_value(belief: &[f64], corner_values: &[f64], points: &[UpperPoint]) -> f64 {
    const EPSILON: f64 = 1e-10;
    let rows: Vec<usize> = (0..belief.len()).filter(|t| belief[*t] > 0.0).collect();
    let n = rows.len();
    let usable = |p: &&UpperPoint| p.belief.iter().zip(belief).all(|(p, b)| *p <= 0.0 || *b > 0.0);
    // A corner that left the basis may re-enter, so corners are candidates like points.
    let corner = |j: usize| {
        (rows.iter().map(|t| f64::from(u8::from(*t == rows[j]))).collect::<Vec<f64>>(), corner_values[rows[j]])
    };
    let of = |p: &UpperPoint| (rows.iter().map(|t| p.belief[*t]).collect::<Vec<f64>>(), p.upper);
    let usable: Vec<(Vec<f64>, f64)> = points.iter().filter(usable).map(of).chain((0..n).map(corner)).collect();
    let mut shares: Vec<f64> = rows.iter().map(|t| belief[*t]).collect();
    let mut costs: Vec<f64> = rows.iter().map(|t| corner_values[*t]).collect();
    let mut inverse = vec![0.0; n * n];
    (0..n).for_each(|i| inverse[i * n + i] = 1.0);
    for _ in 0..4 * n {
        // Dual prices by type; a point that costs less than its types' prices improves the combination.
        let prices: Vec<f64> = (0..n).map(|j| (0..n).map(|i| costs[i] * inverse[i * n + j]).sum()).collect();
        let reduced_cost = |at: &[f64], upper: f64| at.iter().zip(&prices).map(|(b, w)| w * b).sum::<f64>() - upper;
        let best = usable.iter().map(|p| (reduced_cost(&p.0, p.1), p)).max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, (entering, upper))) = best.filter(|(gain, _)| *gain > EPSILON) else { break };
        let change: Vec<f64> =
            (0..n).map(|i| entering.iter().enumerate().map(|(j, b)| inverse[i * n + j] * b).sum()).collect();
        let decreasing = (0..n).filter(|i| change[*i] > EPSILON);
        let Some(leaving) = decreasing.min_by(|a, b| (shares[*a] / change[*a]).total_cmp(&(shares[*b] / change[*b])))
        else {
            break;
        };
        let share = shares[leaving] / change[leaving];
        let pivot: Vec<f64> = inverse[leaving * n..(leaving + 1) * n].iter().map(|x| x / change[leaving]).collect();
        for i in (0..n).filter(|i| *i != leaving) {
            shares[i] = (shares[i] - share * change[i]).max(0.0);
            inverse[i * n..(i + 1) * n].iter_mut().zip(&pivot).for_each(|(x, p)| *x -= change[i] * p);
        }
        inverse[leaving * n..(leaving + 1) * n].copy_from_slice(&pivot);
        (shares[leaving], costs[leaving]) = (share, *upper);
    }
    shares.iter().zip(&costs).map(|(s, c)| s * c).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn beliefs(n: usize) -> impl Strategy<Value = Vec<f64>> {
        let weight = prop_oneof![1 => Just(0.0), 3 => 0.001_f64..1.0];
        proptest::collection::vec(weight, n).prop_filter_map("some weight", |w| {
            let total: f64 = w.iter().sum();
            (total > 0.0).then(|| w.iter().map(|x| x / total).collect())
        })
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn upper_bound_between_two_points_is_their_chord() {
        let point = |b: f64, upper| UpperPoint { belief: vec![b, 1.0 - b], upper, tolerance: 0.0 };
        let points = [point(0.25, 0.5), point(0.75, 0.25), point(0.5, 0.9)];
        let upper = convex_hull_value(&[0.5, 0.5], &[1.0, 1.0], &points);
        assert!((upper - 0.375).abs() < 1e-9, "{upper}");
        assert!((convex_hull_value(&[0.125, 0.875], &[1.0, 1.0], &points) - 0.75).abs() < 1e-9);
        assert_eq!(convex_hull_value(&[0.0, 1.0], &[1.0, 0.8], &points), 0.8);
    }

    #[test]
    fn corner_re_enters_the_basis_where_it_is_cheaper() {
        let point = |belief: [f64; 4], upper| UpperPoint { belief: belief.to_vec(), upper, tolerance: 0.0 };
        let points = [point([0.46, 0.54, 0.0, 0.0], -0.53), point([0.32, 0.0, 0.36, 0.32], 0.22)];
        let (corner_values, belief) = ([0.0, -0.93, 0.0, 0.76], [0.23, 0.27, 0.3, 0.2]);
        // The second point as far as possible, corners for the rest.
        let (part, rest) = (0.2 / 0.32, [0.03, 0.27, 0.3 - 0.36 * 0.2 / 0.32, 0.0]);
        assert!(convex_hull_value(&belief, &corner_values, &points) <= part * 0.22 + dot(&corner_values, &rest) + 1e-9);
    }

    proptest! {
        /// The bound is never below the convex function, is tight at solved points, and no combination of one point and
        /// corners is lower.
        #[test]
        fn convex_hull_value_is_a_tight_upper_bound(
            slopes in proptest::collection::vec(proptest::collection::vec(-1.0_f64..1.0, 4), 1..6),
            solved in proptest::collection::vec(beliefs(4), 0..12),
            belief in beliefs(4),
        ) {
            let value = |b: &[f64]| slopes.iter().map(|s| dot(s, b)).fold(f64::NEG_INFINITY, f64::max);
            let corner_values: Vec<f64> = (0..4).map(|t| slopes.iter().map(|s| s[t]).fold(f64::NEG_INFINITY, f64::max)).collect();
            let points: Vec<UpperPoint> = solved.iter().map(|b| UpperPoint { belief: b.clone(), upper: value(b), tolerance: 0.0 }).collect();
            let upper = convex_hull_value(&belief, &corner_values, &points);
            prop_assert!(upper >= value(&belief) - 1e-9, "{upper} < {}", value(&belief));
            prop_assert!(upper <= dot(&corner_values, &belief) + 1e-9);
            for p in &points {
                prop_assert!((convex_hull_value(&p.belief, &corner_values, &points) - p.upper).abs() < 1e-7);
                let part = p.belief.iter().zip(&belief).filter(|(p, _)| **p > 0.0).map(|(p, b)| b / p).fold(1.0, f64::min);
                let rest: Vec<f64> = belief.iter().zip(&p.belief).map(|(b, p)| (b - part * p).max(0.0)).collect();
                prop_assert!(upper <= part * p.upper + dot(&corner_values, &rest) + 1e-7, "one point and corners are lower");
            }
        }
    }
}
