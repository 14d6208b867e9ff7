//! RMSNorm, forward and backward.

use super::Cpu;
use super::shared_ptr::SharedMut;
use crate::cpu::simd::{LANES, Lanes, SimdLevel, simd_dispatch};
use rayon::prelude::*;

impl Cpu {
    /// `y = x · rstd · w` per row with `rstd = 1 / rms(x)`, which is stored.
    pub(crate) fn rms_norm(&self, x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
        let (width, rows) = (w.len(), rstd.len());
        assert!(x.len() == rows * width && y.len() == x.len());
        let (y, rstd) = (SharedMut::new(y), SharedMut::new(rstd));
        self.par_rows(rows, width, |range| {
            let (first, count) = (range.start, range.len());
            // SAFETY: the ranges do not overlap, and rows are within the lengths checked above.
            let (y, rstd) = unsafe { (y.offset(first * width).slice(count * width), rstd.offset(first).slice(count)) };
            rows_at(self.level, &x[first * width..][..count * width], w, epsilon, y, rstd);
        });
    }
}

simd_dispatch!(fn rows_at = normalise(x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]));

#[inline(always)]
fn normalise<L: Lanes>(l: L, x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
    let width = w.len();
    for ((x, y), rstd) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(rstd) {
        *rstd = compute_rstd(l, x, epsilon);
        let r = l.splat(*rstd);
        for ((y, x), w) in y.chunks_mut(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)) {
            let v = l.mul(l.mul(l.load_partial(x), r), l.load_partial(w));
            l.store_partial(y, v);
        }
    }
}

/// `1 / √(mean of squares + epsilon)`.
#[inline(always)]
pub(super) fn compute_rstd<L: Lanes>(l: L, x: &[f32], epsilon: f32) -> f32 {
    let mut sum = l.splat(0.0);
    for c in x.chunks(LANES) {
        let v = l.load_partial(c);
        sum = l.fma(v, v, sum);
    }
    1.0 / (l.sum(sum) / x.len() as f32 + epsilon).sqrt()
}

impl Cpu {
    /// Adds to `dx` and, if given, to `dw`.
    pub(crate) fn rms_norm_grad(
        &self,
        dy: &[f32],
        x: &[f32],
        w: &[f32],
        rstd: &[f32],
        dx: &mut [f32],
        dw: Option<&mut [f32]>,
    ) {
        let (width, rows) = (w.len(), rstd.len());
        assert!(x.len() == rows * width && dy.len() == x.len() && dx.len() == x.len());
        assert!(dw.as_ref().is_none_or(|dw| dw.len() == width));
        let target = SharedMut::new(dx);
        self.par_rows(rows, width, |range| {
            let (first, count) = (range.start, range.len());
            let part = first * width..(first + count) * width;
            // SAFETY: the ranges do not overlap, and rows are within the lengths checked above.
            let dx = unsafe { target.offset(part.start).slice(part.len()) };
            input_at(self.level, &dy[part.clone()], &x[part], w, &rstd[first..][..count], dx);
        });
        if let Some(dw) = dw {
            weight_grad(self.level, self.parallel, dy, x, rstd, dw);
        }
    }
}

simd_dispatch!(fn input_at = input_grad(dy: &[f32], x: &[f32], w: &[f32], rstd: &[f32], dx: &mut [f32]));

#[inline(always)]
fn input_grad<L: Lanes>(l: L, dy: &[f32], x: &[f32], w: &[f32], rstd: &[f32], dx: &mut [f32]) {
    let width = w.len();
    let rows = dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(rstd);
    for (((dy, x), dx), &r) in rows {
        row_grad(l, dy, x, w, r, dx, true);
    }
}

/// Input gradient of one normalised row, written or added to `dx`.
#[inline(always)]
pub(super) fn row_grad<L: Lanes>(l: L, dy: &[f32], x: &[f32], w: &[f32], r: f32, dx: &mut [f32], add: bool) {
    let mut dot = l.splat(0.0);
    for ((dy, x), w) in dy.chunks(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)) {
        dot = l.fma(l.mul(l.load_partial(dy), l.load_partial(w)), l.load_partial(x), dot);
    }
    let correction = l.splat(-l.sum(dot) * r * r / w.len() as f32);
    let r = l.splat(r);
    for (((dy, x), w), dx) in dy.chunks(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)).zip(dx.chunks_mut(LANES)) {
        let g = l.mul(l.load_partial(dy), l.load_partial(w));
        let v = l.mul(l.fma(l.load_partial(x), correction, g), r);
        let v = if add { l.add(l.load_partial(dx), v) } else { v };
        l.store_partial(dx, v);
    }
}

/// Adds to the weight gradient row by row. Threads split the columns, so the order of summation is always that of the rows.
fn weight_grad(level: SimdLevel, parallel: bool, dy: &[f32], x: &[f32], rstd: &[f32], dw: &mut [f32]) {
    let width = dw.len();
    if parallel && width >= 512 {
        let step = 256;
        dw.par_chunks_mut(step).enumerate().for_each(|(i, dw)| columns_at(level, dy, x, rstd, width, i * step, dw));
    } else {
        columns_at(level, dy, x, rstd, width, 0, dw);
    }
}

simd_dispatch!(fn columns_at = columns(dy: &[f32], x: &[f32], rstd: &[f32], width: usize, first: usize, dw: &mut [f32]));

#[inline(always)]
fn columns<L: Lanes>(l: L, dy: &[f32], x: &[f32], rstd: &[f32], width: usize, first: usize, dw: &mut [f32]) {
    let count = dw.len();
    for (row, &r) in rstd.iter().enumerate() {
        let from = row * width + first;
        let (dy, x) = (&dy[from..][..count], &x[from..][..count]);
        let r = l.splat(r);
        for ((dw, dy), x) in dw.chunks_mut(LANES).zip(dy.chunks(LANES)).zip(x.chunks(LANES)) {
            let v = l.fma(l.mul(l.load_partial(dy), r), l.load_partial(x), l.load_partial(dw));
            l.store_partial(dw, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_gradient, random_values, weighted};

    #[test]
    fn gradients_match_finite_differences() {
        for width in [3, 16, 40] {
            let rows = 3;
            let (x, w, k) = (random_values(rows * width, 1), random_values(width, 2), random_values(rows * width, 3));
            let cpu = Cpu::new();
            let value = |x: &[f32], w: &[f32]| {
                let (mut y, mut rstd) = (vec![0.0; x.len()], vec![0.0; rows]);
                cpu.rms_norm(x, w, 1e-6, &mut y, &mut rstd);
                (weighted(&y, &k), rstd)
            };
            let (_, rstd) = value(&x, &w);
            let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; width]);
            cpu.rms_norm_grad(&k, &x, &w, &rstd, &mut dx, Some(&mut dw));
            let mut frozen = vec![0.0; x.len()];
            cpu.rms_norm_grad(&k, &x, &w, &rstd, &mut frozen, None);
            assert!(frozen == dx);
            check_gradient("x", &x, &dx, |x| value(x, &w).0);
            check_gradient("w", &w, &dw, |w| value(&x, w).0);
        }
    }
}
