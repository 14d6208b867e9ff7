//! Categorical sampling: unnormalised probabilities of logits, and inversion of their cumulative sum.

use crate::cpu::simd::{LANES, Lanes, simd_dispatch};

simd_dispatch!(fn exp_weights_at = exp_weights(logits: &mut [f32], temperature: f32) -> f64);

/// Replaces logits by unnormalised probabilities, the largest 1, and returns their sum, which is NaN if a logit is NaN.
#[inline(always)]
fn exp_weights<L: Lanes>(l: L, logits: &mut [f32], temperature: f32) -> f64 {
    let mut largest = l.splat(f32::NEG_INFINITY);
    for c in logits.as_chunks().0 {
        largest = l.max(largest, l.load(c));
    }
    let (top, temperature) = (l.splat(l.reduce_max(largest)), l.splat(temperature));
    let mut total = 0.0;
    for c in logits.as_chunks_mut().0 {
        let e = l.exp(l.div(l.sub(l.load(c), top), temperature));
        l.store(c, e);
        total += f64::from(l.sum(e));
    }
    total
}

simd_dispatch!(fn invert_cdf_at = invert_cdf(weights: &[f32], left: f64) -> Option<(usize, f32)>);

/// The index and value of the weight at which the cumulative sum exceeds `left`.
#[inline(always)]
fn invert_cdf<L: Lanes>(l: L, weights: &[f32], mut left: f64) -> Option<(usize, f32)> {
    let mut last = None;
    for (i, c) in weights.as_chunks::<LANES>().0.iter().enumerate() {
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
    // Rounding moved the point past the total.
    last.or_else(|| weights.iter().rposition(|w| *w > 0.0).map(|i| (i, weights[i])))
}
