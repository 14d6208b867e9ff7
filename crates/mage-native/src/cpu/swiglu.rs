//! SwiGLU activation, `silu(gate) · up`, forward and backward.

use super::Cpu;
use super::shared_ptr::SharedMut;
use crate::cpu::simd::{LANES, Lanes, simd_dispatch};

impl Cpu {
    /// `y = silu(gate) · up`; a row of `x` holds `width` gate values, then as many up values.
    pub(crate) fn swiglu(&self, x: &[f32], width: usize, y: &mut [f32]) {
        let rows = y.len() / width;
        assert!(y.len() == rows * width && x.len() == 2 * y.len());
        let y = SharedMut::new(y);
        self.par_rows(rows, width, |range| {
            // SAFETY: the ranges do not overlap, and rows are within the lengths checked above.
            let y = unsafe { y.offset(range.start * width).slice(range.len() * width) };
            rows_at(self.level, &x[range.start * 2 * width..], width, y);
        });
    }
}

simd_dispatch!(fn rows_at = gate(x: &[f32], width: usize, y: &mut [f32]));

#[inline(always)]
fn gate<L: Lanes>(l: L, x: &[f32], width: usize, y: &mut [f32]) {
    for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
        let (g, u) = x.split_at(width);
        for ((g, u), y) in g.chunks(LANES).zip(u.chunks(LANES)).zip(y.chunks_mut(LANES)) {
            let g = l.load_partial(g);
            l.store_partial(y, l.mul(l.mul(g, sigmoid(l, g)), l.load_partial(u)));
        }
    }
}

#[inline(always)]
fn sigmoid<L: Lanes>(l: L, x: L::V) -> L::V {
    let one = l.splat(1.0);
    l.div(one, l.add(one, l.exp(l.sub(l.splat(0.0), x))))
}

impl Cpu {
    pub(crate) fn swiglu_grad(&self, dy: &[f32], x: &[f32], width: usize, dx: &mut [f32]) {
        let rows = dy.len() / width;
        assert!(dy.len() == rows * width && x.len() == 2 * dy.len() && dx.len() == x.len());
        let dx = SharedMut::new(dx);
        self.par_rows(rows, 2 * width, |range| {
            let (first, count) = (range.start, range.len());
            // SAFETY: the ranges do not overlap, and rows are within the lengths checked above.
            let dx = unsafe { dx.offset(first * 2 * width).slice(count * 2 * width) };
            grads_at(self.level, &dy[first * width..], &x[first * 2 * width..], width, dx);
        });
    }
}

simd_dispatch!(fn grads_at = grads(dy: &[f32], x: &[f32], width: usize, dx: &mut [f32]));

#[inline(always)]
fn grads<L: Lanes>(l: L, dy: &[f32], x: &[f32], width: usize, dx: &mut [f32]) {
    let rows = dx.chunks_exact_mut(2 * width).zip(x.chunks_exact(2 * width)).zip(dy.chunks_exact(width));
    for ((dx, x), dy) in rows {
        let (g, u) = x.split_at(width);
        let (dg, du) = dx.split_at_mut(width);
        let inputs = g.chunks(LANES).zip(u.chunks(LANES)).zip(dy.chunks(LANES));
        for (((g, u), dy), (dg, du)) in inputs.zip(dg.chunks_mut(LANES).zip(du.chunks_mut(LANES))) {
            let (g, u, dy) = (l.load_partial(g), l.load_partial(u), l.load_partial(dy));
            let s = sigmoid(l, g);
            let silu = l.mul(g, s);
            // d silu / d g = s · (1 + g · (1 − s)) = s + silu · (1 − s)
            let slope = l.fma(silu, l.sub(l.splat(1.0), s), s);
            l.store_partial(dg, l.mul(l.mul(dy, u), slope));
            l.store_partial(du, l.mul(dy, silu));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_gradient, random_values, weighted};

    #[test]
    fn gradients_match_finite_differences() {
        for width in [5, 32] {
            let (x, k) = (random_values(2 * 2 * width, 1), random_values(2 * width, 2));
            let cpu = Cpu::new();
            let mut dx = vec![0.0; x.len()];
            cpu.swiglu_grad(&k, &x, width, &mut dx);
            check_gradient("x", &x, &dx, |x| {
                let mut y = vec![0.0; k.len()];
                cpu.swiglu(x, width, &mut y);
                weighted(&y, &k)
            });
        }
    }
}
