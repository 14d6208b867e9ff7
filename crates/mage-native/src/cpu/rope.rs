//! Query and key heads: normalised, then turned by their position.

use super::rms_norm::{inverse_rms, row_grad};
use super::shared_ptr::Mut;
use super::{Cpu, Heads};
use crate::cpu::simd::{LANES, Lanes, leveled};

#[allow(clippy::too_many_arguments)]
pub(super) fn forward(
    cpu: &Cpu,
    heads: Heads,
    qkv: &[f32],
    w: &[f32],
    epsilon: f32,
    turns: &[f32],
    positions: &[u32],
    qk: &mut [f32],
    inverse: &mut [f32],
) {
    let rows = positions.len();
    let (wide, narrow, each) = (heads.qkv(), heads.qk(), heads.q + heads.kv);
    assert!(qkv.len() == rows * wide && qk.len() == rows * narrow && inverse.len() == rows * each);
    assert!(w.len() == 2 * heads.dim);
    let (qk, inverse) = (Mut::new(qk), Mut::new(inverse));
    cpu.over_rows(rows, narrow, |range| {
        let (first, count) = (range.start, range.len());
        // SAFETY: the ranges do not overlap, and rows are within the lengths compared above.
        let (qk, inverse) = unsafe {
            (qk.offset(first * narrow).slice(count * narrow), inverse.offset(first * each).slice(count * each))
        };
        rows_at(cpu.level, heads, &qkv[first * wide..], w, epsilon, turns, &positions[range], qk, inverse);
    });
}

leveled!(fn rows_at = turn_rows(
    heads: Heads, qkv: &[f32], w: &[f32], epsilon: f32, turns: &[f32], positions: &[u32], qk: &mut [f32], inverse: &mut [f32]
));

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn turn_rows<L: Lanes>(
    l: L,
    heads: Heads,
    qkv: &[f32],
    w: &[f32],
    epsilon: f32,
    turns: &[f32],
    positions: &[u32],
    qk: &mut [f32],
    inverse: &mut [f32],
) {
    let (dim, half, each) = (heads.dim, heads.dim / 2, heads.q + heads.kv);
    for (row, &position) in positions.iter().enumerate() {
        let (cos, sin) = turns[position as usize * dim..][..dim].split_at(half);
        for h in 0..each {
            let x = &qkv[row * heads.qkv() + h * dim..][..dim];
            let y = &mut qk[row * heads.qk() + h * dim..][..dim];
            let w = if h < heads.q { &w[..dim] } else { &w[dim..] };
            let r = inverse_rms(l, x, epsilon);
            inverse[row * each + h] = r;
            let r = l.splat(r);
            let (x1, x2) = x.split_at(half);
            let (w1, w2) = w.split_at(half);
            let (y1, y2) = y.split_at_mut(half);
            for at in (0..half).step_by(LANES) {
                let end = half.min(at + LANES);
                let (c, s) = (l.load_some(&cos[at..end]), l.load_some(&sin[at..end]));
                let a = l.mul(l.mul(l.load_some(&x1[at..end]), r), l.load_some(&w1[at..end]));
                let b = l.mul(l.mul(l.load_some(&x2[at..end]), r), l.load_some(&w2[at..end]));
                l.store_some(&mut y1[at..end], l.sub(l.mul(a, c), l.mul(b, s)));
                l.store_some(&mut y2[at..end], l.add(l.mul(b, c), l.mul(a, s)));
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn backward(
    cpu: &Cpu,
    heads: Heads,
    dqk: &[f32],
    qkv: &[f32],
    w: &[f32],
    turns: &[f32],
    positions: &[u32],
    inverse: &[f32],
    dqkv: &mut [f32],
    dw: Option<&mut [f32]>,
) {
    let rows = positions.len();
    let (wide, narrow, each) = (heads.qkv(), heads.qk(), heads.q + heads.kv);
    assert!(qkv.len() == rows * wide && dqkv.len() == rows * wide && dqk.len() == rows * narrow);
    assert!(inverse.len() == rows * each && w.len() == 2 * heads.dim);
    assert!(dw.as_ref().is_none_or(|dw| dw.len() == w.len()));
    // The weights are shared by all heads of all rows: their gradient is added on one thread, in order.
    let dw = dw.unwrap_or_default();
    grads_at(cpu.level, heads, dqk, qkv, w, turns, positions, inverse, dqkv, dw);
}

leveled!(fn grads_at = grads(
    heads: Heads, dqk: &[f32], qkv: &[f32], w: &[f32], turns: &[f32], positions: &[u32], inverse: &[f32],
    dqkv: &mut [f32], dw: &mut [f32]
));

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn grads<L: Lanes>(
    l: L,
    heads: Heads,
    dqk: &[f32],
    qkv: &[f32],
    w: &[f32],
    turns: &[f32],
    positions: &[u32],
    inverse: &[f32],
    dqkv: &mut [f32],
    dw: &mut [f32],
) {
    let (dim, half, each) = (heads.dim, heads.dim / 2, heads.q + heads.kv);
    let mut turned_back = [0.0_f32; 512];
    assert!(dim <= turned_back.len(), "heads of at most 512 numbers");
    let dn = &mut turned_back[..dim];
    for (row, &position) in positions.iter().enumerate() {
        let (cos, sin) = turns[position as usize * dim..][..dim].split_at(half);
        for h in 0..each {
            let (d1, d2) = dqk[row * heads.qk() + h * dim..][..dim].split_at(half);
            let (n1, n2) = dn.split_at_mut(half);
            for at in (0..half).step_by(LANES) {
                let end = half.min(at + LANES);
                let (c, s) = (l.load_some(&cos[at..end]), l.load_some(&sin[at..end]));
                let (a, b) = (l.load_some(&d1[at..end]), l.load_some(&d2[at..end]));
                l.store_some(&mut n1[at..end], l.add(l.mul(a, c), l.mul(b, s)));
                l.store_some(&mut n2[at..end], l.sub(l.mul(b, c), l.mul(a, s)));
            }
            let x = &qkv[row * heads.qkv() + h * dim..][..dim];
            let part = if h < heads.q { 0..dim } else { dim..2 * dim };
            let r = inverse[row * each + h];
            row_grad(l, dn, x, &w[part.clone()], r, &mut dqkv[row * heads.qkv() + h * dim..][..dim], false);
            if dw.is_empty() {
                continue;
            }
            let r = l.splat(r);
            for ((dw, dn), x) in dw[part].chunks_mut(LANES).zip(dn.chunks(LANES)).zip(x.chunks(LANES)) {
                let v = l.fma(l.mul(l.load_some(dn), r), l.load_some(x), l.load_some(dw));
                l.store_some(dw, v);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_slopes, numbers, weighted};

    #[test]
    fn gradients_are_slopes() {
        for dim in [6, 16, 64] {
            let heads = Heads { q: 2, kv: 1, dim };
            let positions = [0, 3, 1];
            let rows = positions.len();
            let turns: Vec<f32> = (0..4 * dim)
                .map(|i| {
                    let angle = (i / dim) as f32 * 0.7 / (1.0 + (i % (dim / 2)) as f32);
                    if i % dim < dim / 2 { angle.cos() } else { angle.sin() }
                })
                .collect();
            let (qkv, w, k) = (numbers(rows * heads.qkv(), 1), numbers(2 * dim, 2), numbers(rows * heads.qk(), 3));
            let cpu = Cpu::new();
            let value = |qkv: &[f32], w: &[f32]| {
                let (mut qk, mut inverse) = (vec![0.0; rows * heads.qk()], vec![0.0; rows * 3]);
                forward(&cpu, heads, qkv, w, 1e-6, &turns, &positions, &mut qk, &mut inverse);
                (weighted(&qk, &k), inverse)
            };
            let (_, inverse) = value(&qkv, &w);
            let (mut dqkv, mut dw) = (vec![0.0; qkv.len()], vec![0.0; w.len()]);
            backward(&cpu, heads, &k, &qkv, &w, &turns, &positions, &inverse, &mut dqkv, Some(&mut dw));
            let mut frozen = vec![0.0; qkv.len()];
            backward(&cpu, heads, &k, &qkv, &w, &turns, &positions, &inverse, &mut frozen, None);
            assert!(frozen == dqkv);
            check_slopes("qkv", &qkv, &dqkv, |qkv| value(qkv, &w).0);
            check_slopes("w", &w, &dw, |w| value(&qkv, w).0);
        }
    }
}
