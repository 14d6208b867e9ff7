//! Between what does the value of a belief lie?
//!
//! Opponents that switch or mix lead to more beliefs than can be solved one by one. The optimum is convex in the belief (a
//! maximum of linear functions, one for each policy), so the beliefs that were solved fence in all others:
//!
//! - *From below.* A policy found for one belief can be followed from any other, and its score there is known exactly.
//! - *From above.* A belief is a mixture of solved ones and of certainties about a type, and is worth at most the same
//!   mixture of their values. The least such mixture is a small linear program.
//!
//! Solving where the gap is wide and often reached closes it step by step (as in Smith and Simmons, "Heuristic search value
//! iteration for POMDPs", UAI 2004); where work runs out first, what gap remains is known and reported.

use super::{
    belief_key::{Cell, noise_free},
    belief_search::{Rank, ScoreObjective, Table, better, ranks},
    full_info_bound::Told,
};
use std::collections::HashMap;

/// Ranks closer than this count as equal, and the next criterion decides. What that may cost is part of the gap.
pub(super) const TIE: f64 = 1e-5;

/// What is known of the values of beliefs with a number of episodes left.
pub(super) struct Fences {
    objective: ScoreObjective,
    /// The value at most of being certain of each type.
    corners: Vec<f64>,
    plans: Vec<Plan>,
    points: Vec<Point>,
    index: HashMap<Cell, usize>,
}

/// What some policy earns given each type.
struct Plan {
    given: Table,
    ranks: Vec<Rank>,
}

/// What a belief is worth at most.
struct Point {
    belief: Vec<f64>,
    most: f64,
    /// With what allowance it was solved.
    allowance: f64,
}

impl Fences {
    /// With `left` episodes left. `given` is what some policy earns, to begin with.
    pub(super) fn new(objective: ScoreObjective, told: &Told, left: u32, given: Table) -> Self {
        let types = given.len() / left as usize;
        let corner = |t| {
            let hope = told.at_start(t, left);
            match objective {
                ScoreObjective::Last => hope.last,
                ScoreObjective::Sum => hope.sum,
            }
        };
        let mut fences = Fences {
            objective,
            corners: (0..types).map(corner).collect(),
            plans: Vec::new(),
            points: Vec::new(),
            index: HashMap::new(),
        };
        fences.add_plan(given, left);
        fences
    }

    /// How many beliefs were solved.
    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// How much there is to look through for each answer.
    pub(super) fn size(&self) -> usize {
        (self.plans.len() + self.points.len()) * self.corners.len()
    }

    /// The best policy known for a belief, as a number for [`given`](Fences::given), and what it earns.
    pub(super) fn below(&self, belief: &[f64]) -> (usize, Rank) {
        let rank_of = |plan: &Plan| {
            let mut rank = (0.0, 0.0);
            for (b, r) in belief.iter().zip(&plan.ranks) {
                rank.0 += b * r.0;
                rank.1 += b * r.1;
            }
            rank
        };
        let mut best = (0, rank_of(&self.plans[0]));
        for (i, plan) in self.plans.iter().enumerate().skip(1) {
            let rank = rank_of(plan);
            if better(rank, best.1, TIE) {
                best = (i, rank);
            }
        }
        best
    }

    /// What a policy earns given each type, by episode.
    pub(super) fn given(&self, plan: usize) -> &Table {
        &self.plans[plan].given
    }

    /// What a belief is worth at most, in what counts first.
    pub(super) fn above(&self, belief: &[f64]) -> f64 {
        least_mixture(belief, &self.corners, &self.points)
    }

    /// With what allowance for uncertainty later on a belief was solved, if it was: doing so again would tell nothing new.
    pub(super) fn solved_for(&self, belief: &[f64]) -> Option<f64> {
        self.index.get(&noise_free(belief.iter().copied())).map(|at| self.points[*at].allowance)
    }

    /// Adds what was found out about a belief: a policy, and what none exceeds.
    pub(super) fn add(&mut self, belief: &[f64], given: Table, most: f64, left: u32, allowance: f64) {
        let fresh = self.points.len();
        let at = *self.index.entry(noise_free(belief.iter().copied())).or_insert(fresh);
        match self.points.get_mut(at) {
            Some(point) => (point.most, point.allowance) = (point.most.min(most), allowance),
            None => self.points.push(Point { belief: belief.to_vec(), most, allowance }),
        }
        self.add_plan(given, left);
    }

    /// Adds what some policy earns given each type, unless one is known that is never worse.
    pub(super) fn add_plan(&mut self, given: Table, left: u32) {
        let ranks = ranks(self.objective, &given, left);
        let no_better = |known: &Plan| known.ranks.iter().zip(&ranks).all(|(k, r)| k.0 >= r.0 && k.1 >= r.1);
        if !self.plans.iter().any(no_better) {
            self.plans.push(Plan { given, ranks });
        }
    }
}

/// The least that a mixture of points and corners which comes to `belief` is worth. The simplex method from the mixture of
/// corners; every step is a mixture, so that stopping early is safe.
fn least_mixture(belief: &[f64], corners: &[f64], points: &[Point]) -> f64 {
    const EPSILON: f64 = 1e-10;
    let rows: Vec<usize> = (0..belief.len()).filter(|t| belief[*t] > 0.0).collect();
    let n = rows.len();
    let usable = |p: &&Point| p.belief.iter().zip(belief).all(|(p, b)| *p <= 0.0 || *b > 0.0);
    // A corner that has left may be wanted again, so corners are looked at like points.
    let corner =
        |j: usize| (rows.iter().map(|t| f64::from(u8::from(*t == rows[j]))).collect::<Vec<f64>>(), corners[rows[j]]);
    let of = |p: &Point| (rows.iter().map(|t| p.belief[*t]).collect::<Vec<f64>>(), p.most);
    let usable: Vec<(Vec<f64>, f64)> = points.iter().filter(usable).map(of).chain((0..n).map(corner)).collect();
    let mut shares: Vec<f64> = rows.iter().map(|t| belief[*t]).collect();
    let mut costs: Vec<f64> = rows.iter().map(|t| corners[*t]).collect();
    let mut inverse = vec![0.0; n * n];
    (0..n).for_each(|i| inverse[i * n + i] = 1.0);
    for _ in 0..4 * n {
        // What each type is worth by the present mixture; a point worth less than its types is cheaper.
        let worth: Vec<f64> = (0..n).map(|j| (0..n).map(|i| costs[i] * inverse[i * n + j]).sum()).collect();
        let saving = |at: &[f64], most: f64| at.iter().zip(&worth).map(|(b, w)| w * b).sum::<f64>() - most;
        let best = usable.iter().map(|p| (saving(&p.0, p.1), p)).max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, (enters, most))) = best.filter(|(saving, _)| *saving > EPSILON) else { break };
        let change: Vec<f64> =
            (0..n).map(|i| enters.iter().enumerate().map(|(j, b)| inverse[i * n + j] * b).sum()).collect();
        let shrinking = (0..n).filter(|i| change[*i] > EPSILON);
        let Some(leaves) = shrinking.min_by(|a, b| (shares[*a] / change[*a]).total_cmp(&(shares[*b] / change[*b])))
        else {
            break;
        };
        let share = shares[leaves] / change[leaves];
        let pivot: Vec<f64> = inverse[leaves * n..(leaves + 1) * n].iter().map(|x| x / change[leaves]).collect();
        for i in (0..n).filter(|i| *i != leaves) {
            shares[i] = (shares[i] - share * change[i]).max(0.0);
            inverse[i * n..(i + 1) * n].iter_mut().zip(&pivot).for_each(|(x, p)| *x -= change[i] * p);
        }
        inverse[leaves * n..(leaves + 1) * n].copy_from_slice(&pivot);
        (shares[leaves], costs[leaves]) = (share, *most);
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
    fn between_two_points_the_chord_holds() {
        let point = |b: f64, most| Point { belief: vec![b, 1.0 - b], most, allowance: 0.0 };
        let points = [point(0.25, 0.5), point(0.75, 0.25), point(0.5, 0.9)];
        let above = least_mixture(&[0.5, 0.5], &[1.0, 1.0], &points);
        assert!((above - 0.375).abs() < 1e-9, "{above}");
        assert!((least_mixture(&[0.125, 0.875], &[1.0, 1.0], &points) - 0.75).abs() < 1e-9);
        assert_eq!(least_mixture(&[0.0, 1.0], &[1.0, 0.8], &points), 0.8);
    }

    #[test]
    fn a_corner_that_left_comes_back_where_it_is_cheaper() {
        let point = |belief: [f64; 4], most| Point { belief: belief.to_vec(), most, allowance: 0.0 };
        let points = [point([0.46, 0.54, 0.0, 0.0], -0.53), point([0.32, 0.0, 0.36, 0.32], 0.22)];
        let (corners, belief) = ([0.0, -0.93, 0.0, 0.76], [0.23, 0.27, 0.3, 0.2]);
        // As much as possible of the second point, and corners for the rest.
        let (part, rest) = (0.2 / 0.32, [0.03, 0.27, 0.3 - 0.36 * 0.2 / 0.32, 0.0]);
        assert!(least_mixture(&belief, &corners, &points) <= part * 0.22 + dot(&corners, &rest) + 1e-9);
    }

    proptest! {
        /// Any maximum of linear functions lies below, touches at solved points, and no two of them mix to less.
        #[test]
        fn mixtures_are_never_too_low(
            slopes in proptest::collection::vec(proptest::collection::vec(-1.0_f64..1.0, 4), 1..6),
            solved in proptest::collection::vec(beliefs(4), 0..12),
            belief in beliefs(4),
        ) {
            let value = |b: &[f64]| slopes.iter().map(|s| dot(s, b)).fold(f64::NEG_INFINITY, f64::max);
            let corners: Vec<f64> = (0..4).map(|t| slopes.iter().map(|s| s[t]).fold(f64::NEG_INFINITY, f64::max)).collect();
            let points: Vec<Point> = solved.iter().map(|b| Point { belief: b.clone(), most: value(b), allowance: 0.0 }).collect();
            let above = least_mixture(&belief, &corners, &points);
            prop_assert!(above >= value(&belief) - 1e-9, "{above} < {}", value(&belief));
            prop_assert!(above <= dot(&corners, &belief) + 1e-9);
            for p in &points {
                prop_assert!((least_mixture(&p.belief, &corners, &points) - p.most).abs() < 1e-7);
                let part = p.belief.iter().zip(&belief).filter(|(p, _)| **p > 0.0).map(|(p, b)| b / p).fold(1.0, f64::min);
                let rest: Vec<f64> = belief.iter().zip(&p.belief).map(|(b, p)| (b - part * p).max(0.0)).collect();
                prop_assert!(above <= part * p.most + dot(&corners, &rest) + 1e-7, "one point and corners do better");
            }
        }
    }
}
