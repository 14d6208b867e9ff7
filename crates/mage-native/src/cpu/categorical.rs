//! From logits to a line of weights, and to the one that covers a point of it.

use crate::cpu::simd::{LANES, Lanes, simd_dispatch};

simd_dispatch!(fn weigh_at = weigh(logits: &mut [f32], temperature: f32) -> f64);

/// RotaryEmbedding logits into unnormalised probabilities, the largest 1; gives their sum. Not a number where a logit is none.
#[inline(always)]
fn weigh<L: Lanes>(l: L, logits: &mut [f32], temperature: f32) -> f64 {
    let mut largest = l.splat(f32::NEG_INFINITY);
    for c in logits.chunks_exact(LANES) {
        largest = l.max(largest, l.load(c));
    }
    let (top, heat) = (l.splat(l.reduce_max(largest)), l.splat(temperature));
    let mut total = 0.0;
    for c in logits.chunks_exact_mut(LANES) {
        let e = l.exp(l.div(l.sub(l.load(c), top), heat));
        l.store(c, e);
        total += f64::from(l.sum(e));
    }
    total
}

simd_dispatch!(fn point_at = point(weights: &[f32], left: f64) -> Option<(usize, f32)>);

/// Which weight covers the point `left` of the line they make end to end?
#[inline(always)]
fn point<L: Lanes>(l: L, weights: &[f32], mut left: f64) -> Option<(usize, f32)> {
    let mut last = None;
    for (i, c) in weights.chunks_exact(LANES).enumerate() {
        let sum = f64::from(l.sum(l.load(c)));
        if left >= sum && (i + 1) * LANES < weights.len() {
            left -= sum;
            continue;
        }
        for (j, &w) in c.iter().enumerate().filter(|(_, w)| **w > 0.0) {
            last = Some((i * LANES + j, w));
            if left < f64::from(w) {
                return last;
            }
            left -= f64::from(w);
        }
    }
    // Rounding took the point past the end.
    last.or_else(|| weights.iter().rposition(|w| *w > 0.0).map(|i| (i, weights[i])))
}
