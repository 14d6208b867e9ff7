//! QK norm and rotary position embedding of query and key heads, forward and backward.

use super::rms_norm::{compute_rstd, row_grad};
use super::shared_ptr::SharedMut;
use super::{Cpu, Heads};
use crate::cpu::simd::{LANES, Lanes, simd_dispatch};

/// The QK norm and rotary embedding of a layer at the positions of a batch.
#[derive(Clone, Copy)]
pub(crate) struct QkNormRope<'a> {
    pub(crate) heads: Heads,
    /// Query weights, then key weights.
    pub(crate) weight: &'a [f32],
    pub(crate) epsilon: f32,
    /// Per position `dim / 2` cosines, then as many sines.
    pub(crate) cos_sin: &'a [f32],
    /// By row.
    pub(crate) positions: &'a [u32],
}

impl Cpu {
    /// Normalises each query and key head and applies the rotary embedding. Reads queries, keys and values; writes queries
    /// and keys.
    pub(crate) fn qk_norm_rope(&self, op: QkNormRope<'_>, qkv: &[f32], qk: &mut [f32], rstd: &mut [f32]) {
        let (heads, rows) = (op.heads, op.positions.len());
        let (qkv_dim, qk_dim, num_heads) = (heads.qkv(), heads.qk(), heads.q + heads.kv);
        assert!(qkv.len() == rows * qkv_dim && qk.len() == rows * qk_dim && rstd.len() == rows * num_heads);
        assert!(op.weight.len() == 2 * heads.dim);
        let (qk, rstd) = (SharedMut::new(qk), SharedMut::new(rstd));
        self.par_rows(rows, qk_dim, |range| {
            let (first, count) = (range.start, range.len());
            // SAFETY: the ranges do not overlap, and rows are within the lengths checked above.
            let (qk, rstd) = unsafe {
                (
                    qk.offset(first * qk_dim).slice(count * qk_dim),
                    rstd.offset(first * num_heads).slice(count * num_heads),
                )
            };
            let op = QkNormRope { positions: &op.positions[range], ..op };
            rows_at(self.level, op, &qkv[first * qkv_dim..], qk, rstd);
        });
    }

    /// Writes the query and key part of `dqkv`; adds to `dw` if given.
    pub(crate) fn qk_norm_rope_grad(
        &self,
        op: QkNormRope<'_>,
        dqk: &[f32],
        qkv: &[f32],
        rstd: &[f32],
        dqkv: &mut [f32],
        dw: Option<&mut [f32]>,
    ) {
        let (heads, rows) = (op.heads, op.positions.len());
        let (qkv_dim, qk_dim, num_heads) = (heads.qkv(), heads.qk(), heads.q + heads.kv);
        assert!(qkv.len() == rows * qkv_dim && dqkv.len() == rows * qkv_dim && dqk.len() == rows * qk_dim);
        assert!(rstd.len() == rows * num_heads && op.weight.len() == 2 * heads.dim);
        assert!(dw.as_ref().is_none_or(|dw| dw.len() == op.weight.len()));
        // All heads of all rows share the weights, so one thread accumulates their gradient in order.
        grads_at(self.level, op, dqk, qkv, rstd, dqkv, dw.unwrap_or_default());
    }
}

simd_dispatch!(fn rows_at = rotate_rows(op: QkNormRope<'_>, qkv: &[f32], qk: &mut [f32], rstd: &mut [f32]));

#[inline(always)]
fn rotate_rows<L: Lanes>(l: L, op: QkNormRope<'_>, qkv: &[f32], qk: &mut [f32], rstd: &mut [f32]) {
    let QkNormRope { heads, weight: w, epsilon, cos_sin, positions } = op;
    let (dim, half, num_heads) = (heads.dim, heads.dim / 2, heads.q + heads.kv);
    for (row, &position) in positions.iter().enumerate() {
        let (cos, sin) = cos_sin[position as usize * dim..][..dim].split_at(half);
        for h in 0..num_heads {
            let x = &qkv[row * heads.qkv() + h * dim..][..dim];
            let y = &mut qk[row * heads.qk() + h * dim..][..dim];
            let w = if h < heads.q { &w[..dim] } else { &w[dim..] };
            let r = compute_rstd(l, x, epsilon);
            rstd[row * num_heads + h] = r;
            let r = l.splat(r);
            let (x1, x2) = x.split_at(half);
            let (w1, w2) = w.split_at(half);
            let (y1, y2) = y.split_at_mut(half);
            for at in (0..half).step_by(LANES) {
                let end = half.min(at + LANES);
                let (c, s) = (l.load_partial(&cos[at..end]), l.load_partial(&sin[at..end]));
                let a = l.mul(l.mul(l.load_partial(&x1[at..end]), r), l.load_partial(&w1[at..end]));
                let b = l.mul(l.mul(l.load_partial(&x2[at..end]), r), l.load_partial(&w2[at..end]));
                l.store_partial(&mut y1[at..end], l.sub(l.mul(a, c), l.mul(b, s)));
                l.store_partial(&mut y2[at..end], l.add(l.mul(b, c), l.mul(a, s)));
            }
        }
    }
}

simd_dispatch!(fn grads_at = grads(
    op: QkNormRope<'_>, dqk: &[f32], qkv: &[f32], rstd: &[f32], dqkv: &mut [f32], dw: &mut [f32]
));

#[inline(always)]
fn grads<L: Lanes>(l: L, op: QkNormRope<'_>, dqk: &[f32], qkv: &[f32], rstd: &[f32], dqkv: &mut [f32], dw: &mut [f32]) {
    let QkNormRope { heads, weight: w, cos_sin, positions, .. } = op;
    let (dim, half, num_heads) = (heads.dim, heads.dim / 2, heads.q + heads.kv);
    let mut unrotated = [0.0_f32; 512];
    assert!(dim <= unrotated.len(), "head dimension {dim} exceeds {}", unrotated.len());
    let dn = &mut unrotated[..dim];
    for (row, &position) in positions.iter().enumerate() {
        let (cos, sin) = cos_sin[position as usize * dim..][..dim].split_at(half);
        for h in 0..num_heads {
            let (d1, d2) = dqk[row * heads.qk() + h * dim..][..dim].split_at(half);
            let (n1, n2) = dn.split_at_mut(half);
            for at in (0..half).step_by(LANES) {
                let end = half.min(at + LANES);
                let (c, s) = (l.load_partial(&cos[at..end]), l.load_partial(&sin[at..end]));
                let (a, b) = (l.load_partial(&d1[at..end]), l.load_partial(&d2[at..end]));
                l.store_partial(&mut n1[at..end], l.add(l.mul(a, c), l.mul(b, s)));
                l.store_partial(&mut n2[at..end], l.sub(l.mul(b, c), l.mul(a, s)));
            }
            let x = &qkv[row * heads.qkv() + h * dim..][..dim];
            let part = if h < heads.q { 0..dim } else { dim..2 * dim };
            let r = rstd[row * num_heads + h];
            row_grad(l, dn, x, &w[part.clone()], r, &mut dqkv[row * heads.qkv() + h * dim..][..dim], false);
            if dw.is_empty() {
                continue;
            }
            let r = l.splat(r);
            for ((dw, dn), x) in dw[part].chunks_mut(LANES).zip(dn.chunks(LANES)).zip(x.chunks(LANES)) {
                let v = l.fma(l.mul(l.load_partial(dn), r), l.load_partial(x), l.load_partial(dw));
                l.store_partial(dw, v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_gradient, random_values, weighted};

    #[test]
    fn gradients_match_finite_differences() {
        for dim in [6, 16, 64] {
            let heads = Heads { q: 2, kv: 1, dim };
            let positions = [0, 3, 1];
            let rows = positions.len();
            let cos_sin: Vec<f32> = (0..4 * dim)
                .map(|i| {
                    let angle = (i / dim) as f32 * 0.7 / (1.0 + (i % (dim / 2)) as f32);
                    if i % dim < dim / 2 { angle.cos() } else { angle.sin() }
                })
                .collect();
            let (qkv, w, k) =
                (random_values(rows * heads.qkv(), 1), random_values(2 * dim, 2), random_values(rows * heads.qk(), 3));
            let cpu = Cpu::new();
            let op = QkNormRope { heads, weight: &w, epsilon: 1e-6, cos_sin: &cos_sin, positions: &positions };
            let value = |qkv: &[f32], w: &[f32]| {
                let (mut qk, mut rstd) = (vec![0.0; rows * heads.qk()], vec![0.0; rows * 3]);
                cpu.qk_norm_rope(QkNormRope { weight: w, ..op }, qkv, &mut qk, &mut rstd);
                (weighted(&qk, &k), rstd)
            };
            let (_, rstd) = value(&qkv, &w);
            let (mut dqkv, mut dw) = (vec![0.0; qkv.len()], vec![0.0; w.len()]);
            cpu.qk_norm_rope_grad(op, &k, &qkv, &rstd, &mut dqkv, Some(&mut dw));
            let mut frozen = vec![0.0; qkv.len()];
            cpu.qk_norm_rope_grad(op, &k, &qkv, &rstd, &mut frozen, None);
            assert!(frozen == dqkv);
            check_gradient("qkv", &qkv, &dqkv, |qkv| value(qkv, &w).0);
            check_gradient("w", &w, &dw, |w| value(&qkv, w).0);
        }
    }
}
