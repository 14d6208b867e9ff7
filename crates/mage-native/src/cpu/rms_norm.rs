//! RMS normalisation of rows.

use super::Cpu;
use super::shared_ptr::Mut;
use crate::cpu::simd::{LANES, Lanes, Level, leveled};
use rayon::prelude::*;

pub(super) fn forward(cpu: &Cpu, x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], inverse: &mut [f32]) {
    let (width, rows) = (w.len(), inverse.len());
    assert!(x.len() == rows * width && y.len() == x.len());
    let (y, inverse) = (Mut::new(y), Mut::new(inverse));
    cpu.over_rows(rows, width, |range| {
        let (first, count) = (range.start, range.len());
        // SAFETY: the ranges do not overlap, and rows are within the lengths compared above.
        let (y, inverse) =
            unsafe { (y.offset(first * width).slice(count * width), inverse.offset(first).slice(count)) };
        rows_at(cpu.level, &x[first * width..][..count * width], w, epsilon, y, inverse);
    });
}

leveled!(fn rows_at = normalise(x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], inverse: &mut [f32]));

#[inline(always)]
fn normalise<L: Lanes>(l: L, x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], inverse: &mut [f32]) {
    let width = w.len();
    for ((x, y), inverse) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(inverse) {
        *inverse = inverse_rms(l, x, epsilon);
        let r = l.splat(*inverse);
        for ((y, x), w) in y.chunks_mut(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)) {
            let v = l.mul(l.mul(l.load_some(x), r), l.load_some(w));
            l.store_some(y, v);
        }
    }
}

/// `1 / √(mean of squares + epsilon)`.
#[inline(always)]
pub(super) fn inverse_rms<L: Lanes>(l: L, x: &[f32], epsilon: f32) -> f32 {
    let mut sum = l.splat(0.0);
    for c in x.chunks(LANES) {
        let v = l.load_some(c);
        sum = l.fma(v, v, sum);
    }
    1.0 / (l.sum(sum) / x.len() as f32 + epsilon).sqrt()
}

pub(super) fn backward(
    cpu: &Cpu,
    dy: &[f32],
    x: &[f32],
    w: &[f32],
    inverse: &[f32],
    dx: &mut [f32],
    dw: Option<&mut [f32]>,
) {
    let (width, rows) = (w.len(), inverse.len());
    assert!(x.len() == rows * width && dy.len() == x.len() && dx.len() == x.len());
    assert!(dw.as_ref().is_none_or(|dw| dw.len() == width));
    let target = Mut::new(dx);
    cpu.over_rows(rows, width, |range| {
        let (first, count) = (range.start, range.len());
        let part = first * width..(first + count) * width;
        // SAFETY: the ranges do not overlap, and rows are within the lengths compared above.
        let dx = unsafe { target.offset(part.start).slice(part.len()) };
        input_at(cpu.level, &dy[part.clone()], &x[part], w, &inverse[first..][..count], dx);
    });
    if let Some(dw) = dw {
        weight_grad(cpu.level, cpu.share, dy, x, inverse, dw);
    }
}

leveled!(fn input_at = input_grad(dy: &[f32], x: &[f32], w: &[f32], inverse: &[f32], dx: &mut [f32]));

#[inline(always)]
fn input_grad<L: Lanes>(l: L, dy: &[f32], x: &[f32], w: &[f32], inverse: &[f32], dx: &mut [f32]) {
    let width = w.len();
    let rows = dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(inverse);
    for (((dy, x), dx), &r) in rows {
        row_grad(l, dy, x, w, r, dx, true);
    }
}

/// The gradient of one normalised row by its input; added to or put into `dx`.
#[inline(always)]
pub(super) fn row_grad<L: Lanes>(l: L, dy: &[f32], x: &[f32], w: &[f32], r: f32, dx: &mut [f32], add: bool) {
    let mut dot = l.splat(0.0);
    for ((dy, x), w) in dy.chunks(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)) {
        dot = l.fma(l.mul(l.load_some(dy), l.load_some(w)), l.load_some(x), dot);
    }
    let pull = l.splat(-l.sum(dot) * r * r / w.len() as f32);
    let r = l.splat(r);
    for (((dy, x), w), dx) in dy.chunks(LANES).zip(x.chunks(LANES)).zip(w.chunks(LANES)).zip(dx.chunks_mut(LANES)) {
        let g = l.mul(l.load_some(dy), l.load_some(w));
        let v = l.mul(l.fma(l.load_some(x), pull, g), r);
        let v = if add { l.add(l.load_some(dx), v) } else { v };
        l.store_some(dx, v);
    }
}

/// Adds, row after row, to the gradient by the weights; threads take columns, so the order is always that of the rows.
fn weight_grad(level: Level, share: bool, dy: &[f32], x: &[f32], inverse: &[f32], dw: &mut [f32]) {
    let width = dw.len();
    if share && width >= 512 {
        let step = 256;
        dw.par_chunks_mut(step).enumerate().for_each(|(i, dw)| columns_at(level, dy, x, inverse, width, i * step, dw));
    } else {
        columns_at(level, dy, x, inverse, width, 0, dw);
    }
}

leveled!(fn columns_at = columns(dy: &[f32], x: &[f32], inverse: &[f32], width: usize, first: usize, dw: &mut [f32]));

#[inline(always)]
fn columns<L: Lanes>(l: L, dy: &[f32], x: &[f32], inverse: &[f32], width: usize, first: usize, dw: &mut [f32]) {
    let count = dw.len();
    for (row, &r) in inverse.iter().enumerate() {
        let from = row * width + first;
        let (dy, x) = (&dy[from..][..count], &x[from..][..count]);
        let r = l.splat(r);
        for ((dw, dy), x) in dw.chunks_mut(LANES).zip(dy.chunks(LANES)).zip(x.chunks(LANES)) {
            let v = l.fma(l.mul(l.load_some(dy), r), l.load_some(x), l.load_some(dw));
            l.store_some(dw, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_slopes, numbers, weighted};

    #[test]
    fn gradients_are_slopes() {
        for width in [3, 16, 40] {
            let rows = 3;
            let (x, w, k) = (numbers(rows * width, 1), numbers(width, 2), numbers(rows * width, 3));
            let cpu = Cpu::new();
            let value = |x: &[f32], w: &[f32]| {
                let (mut y, mut inverse) = (vec![0.0; x.len()], vec![0.0; rows]);
                forward(&cpu, x, w, 1e-6, &mut y, &mut inverse);
                (weighted(&y, &k), inverse)
            };
            let (_, inverse) = value(&x, &w);
            let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; width]);
            backward(&cpu, &k, &x, &w, &inverse, &mut dx, Some(&mut dw));
            let mut frozen = vec![0.0; x.len()];
            backward(&cpu, &k, &x, &w, &inverse, &mut frozen, None);
            assert!(frozen == dx);
            check_slopes("x", &x, &dx, |x| value(x, &w).0);
            check_slopes("w", &w, &dw, |w| value(&x, w).0);
        }
    }
}
