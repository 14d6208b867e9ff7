//! AdamW over flat parameters.

use super::Cpu;
use crate::cpu::simd::{LANES, Lanes, simd_dispatch};
use mage_engine::model::AdamWParams;
use rayon::prelude::*;

/// Fixed chunk size, so that the order of sums does not depend on threads.
const PIECE: usize = 1 << 14;

impl Cpu {
    /// The sum of squares, in an order that depends only on the length.
    pub(crate) fn sum_of_squares(&self, x: &[f32]) -> f64 {
        let piece = |piece: &[f32]| {
            let mut sums = [0.0_f64; 8];
            for (i, c) in piece.iter().enumerate() {
                sums[i % 8] += f64::from(*c) * f64::from(*c);
            }
            sums.iter().sum::<f64>()
        };
        if self.parallel && x.len() > PIECE {
            let parts: Vec<f64> = x.par_chunks(PIECE).map(piece).collect();
            parts.iter().sum()
        } else {
            x.chunks(PIECE).map(piece).sum()
        }
    }
}

impl Cpu {
    pub(crate) fn adamw(&self, params: AdamWParams, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        assert!(p.len() == g.len() && p.len() == m.len() && p.len() == v.len());
        if self.parallel && p.len() > PIECE {
            p.par_chunks_mut(PIECE)
                .zip(g.par_chunks(PIECE))
                .zip(m.par_chunks_mut(PIECE).zip(v.par_chunks_mut(PIECE)))
                .for_each(|((p, g), (m, v))| update_at(self.level, params, p, g, m, v));
        } else {
            update_at(self.level, params, p, g, m, v);
        }
    }
}

simd_dispatch!(fn update_at = update(params: AdamWParams, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]));

#[inline(always)]
fn update<L: Lanes>(l: L, params: AdamWParams, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let decay = l.splat(1.0 - params.learning_rate * params.weight_decay);
    let scale = l.splat(params.grad_scale);
    let (keep1, new1) = (l.splat(params.beta1), l.splat(1.0 - params.beta1));
    let (keep2, new2) = (l.splat(params.beta2), l.splat(1.0 - params.beta2));
    let rate = l.splat(-params.learning_rate / params.correction1);
    let root = l.splat(params.correction2.sqrt());
    let epsilon = l.splat(params.epsilon);
    for ((p, g), (m, v)) in p.chunks_mut(LANES).zip(g.chunks(LANES)).zip(m.chunks_mut(LANES).zip(v.chunks_mut(LANES))) {
        let grad = l.mul(l.load_partial(g), scale);
        let first = l.fma(l.load_partial(m), keep1, l.mul(grad, new1));
        let second = l.fma(l.load_partial(v), keep2, l.mul(l.mul(grad, grad), new2));
        l.store_partial(m, first);
        l.store_partial(v, second);
        let size = l.add(l.div(l.sqrt(second), root), epsilon);
        let moved = l.fma(rate, l.div(first, size), l.mul(l.load_partial(p), decay));
        l.store_partial(p, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::random_values;

    #[test]
    fn step_follows_the_definition_of_adamw() {
        let (mut p, g) = (random_values(20, 1), random_values(20, 2));
        let (mut m, mut v) = (vec![0.0; 20], vec![0.0; 20]);
        let start = p.clone();
        let params = AdamWParams {
            learning_rate: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.5,
            grad_scale: 0.5,
            correction1: 1.0 - 0.9,
            correction2: 1.0 - 0.99,
        };
        Cpu::new().adamw(params, &mut p, &g, &mut m, &mut v);
        for i in 0..20 {
            // After one step the corrected moments are the gradient and its square, so the step size is the learning rate.
            let want = start[i] * (1.0 - 0.05) - 0.1 * g[i].signum();
            assert!((p[i] - want).abs() < 1e-5, "{} {want}", p[i]);
            assert!((m[i] - 0.05 * g[i]).abs() < 1e-7 && (v[i] - 0.0025 * g[i] * g[i]).abs() < 1e-8);
        }
    }

    #[test]
    fn sums_of_squares_do_not_overflow_or_depend_on_threads() {
        let mut x = random_values(100_000, 3);
        x[77] = 1e30;
        let sums: Vec<f64> = [1, 3]
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| Cpu::new().sum_of_squares(&x))
            })
            .to_vec();
        assert!(sums[0] == sums[1] && sums[0] == Cpu::new().single_threaded().sum_of_squares(&x));
        assert!((sums[0] / 1e60 - 1.0).abs() < 1e-6);
    }
}
