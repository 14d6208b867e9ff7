//! Log-probability and entropy of logits, and their gradient.

use super::Cpu;
use crate::cpu::simd::{LANES, Lanes, simd_dispatch};
use mage_engine::Allowed;
use mage_engine::model::TokenLogprob;
use rayon::prelude::*;

const MIN_PARALLEL_WORK: usize = 1 << 14;

/// The target of one row of logits and the tokens allowed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) token: u32,
    pub(crate) allowed: Option<&'a Allowed>,
}

impl Cpu {
    /// Log-probability of each row's target and entropy, over the allowed tokens.
    pub(crate) fn token_logprobs(
        &self,
        logits: &[f32],
        vocab_size: usize,
        targets: &[Target<'_>],
        out: &mut [TokenLogprob],
    ) {
        assert!(logits.len() == targets.len() * vocab_size && out.len() == targets.len());
        let row = |((logits, target), out): ((&[f32], &Target<'_>), &mut TokenLogprob)| {
            *out = match target.allowed {
                Some(allowed) => masked(logits, target.token, allowed),
                None => unmasked_at(self.level, logits, target.token as usize),
            };
        };
        if self.parallel && logits.len() >= MIN_PARALLEL_WORK {
            logits.par_chunks_exact(vocab_size).zip(targets).zip(out).for_each(row);
        } else {
            logits.chunks_exact(vocab_size).zip(targets).zip(out).for_each(row);
        }
    }
}

simd_dispatch!(fn unmasked_at = unmasked(logits: &[f32], target: usize) -> TokenLogprob);

#[inline(always)]
fn unmasked<L: Lanes>(l: L, logits: &[f32], target: usize) -> TokenLogprob {
    let (body, tail) = logits.as_chunks();
    let mut largest = l.splat(f32::NEG_INFINITY);
    for c in body {
        largest = l.max(largest, l.load(c));
    }
    let top = tail.iter().copied().fold(l.reduce_max(largest), f32::max);
    let mut padded = [top - 100.0; LANES]; // far enough below for an exponential of exactly 0
    padded[..tail.len()].copy_from_slice(tail);
    let (shift, mut sum, mut first_moment) = (l.splat(top), l.splat(0.0), l.splat(0.0));
    let last = (!tail.is_empty()).then_some(&padded);
    for c in body.iter().chain(last) {
        let z = l.sub(l.load(c), shift);
        let e = l.exp(z);
        sum = l.add(sum, e);
        first_moment = l.fma(e, z, first_moment);
    }
    let (sum, first_moment) = (l.sum(sum), l.sum(first_moment));
    let log = sum.ln();
    TokenLogprob { logprob: logits[target] - top - log, entropy: log - first_moment / sum, logsumexp: top + log }
}

/// Scalar version for the few tokens of an action mask.
fn masked(logits: &[f32], target: u32, allowed: &[u32]) -> TokenLogprob {
    let of = |t: &u32| logits[*t as usize];
    let top = allowed.iter().map(of).fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut first_moment) = (0.0_f32, 0.0_f32);
    for z in allowed.iter().map(|t| of(t) - top) {
        let e = z.exp();
        sum += e;
        first_moment += e * z;
    }
    let log = sum.ln();
    TokenLogprob { logprob: of(&target) - top - log, entropy: log - first_moment / sum, logsumexp: top + log }
}

impl Cpu {
    /// Replaces logits by their gradient, given per row the derivatives with respect to log-probability and entropy.
    pub(crate) fn token_logprobs_grad(
        &self,
        logits: &mut [f32],
        vocab_size: usize,
        targets: &[Target<'_>],
        logprobs: &[TokenLogprob],
        dlogprobs: &[(f32, f32)],
    ) {
        assert!(logits.len() == targets.len() * vocab_size);
        assert!(logprobs.len() == targets.len() && dlogprobs.len() == targets.len());
        let row = |(i, logits): (usize, &mut [f32])| match targets[i].allowed {
            Some(allowed) => masked_grad(logits, targets[i].token, allowed, logprobs[i], dlogprobs[i]),
            None => unmasked_grad_at(self.level, logits, targets[i].token as usize, logprobs[i], dlogprobs[i]),
        };
        if self.parallel && logits.len() >= MIN_PARALLEL_WORK {
            logits.par_chunks_exact_mut(vocab_size).enumerate().for_each(row);
        } else {
            logits.chunks_exact_mut(vocab_size).enumerate().for_each(row);
        }
    }
}

simd_dispatch!(fn unmasked_grad_at = unmasked_grad(logits: &mut [f32], target: usize, predicted: TokenLogprob, dlogprobs: (f32, f32)));

/// With `a` and `b` the derivatives by log-probability and entropy: `a · (1[target] − p) − b · p · (log p + entropy)`.
#[inline(always)]
fn unmasked_grad<L: Lanes>(l: L, logits: &mut [f32], target: usize, predicted: TokenLogprob, (a, b): (f32, f32)) {
    let shift = l.splat(predicted.logsumexp);
    let minus_b = l.splat(-b);
    let base = l.splat(-a - b * predicted.entropy);
    for c in logits.chunks_mut(LANES) {
        let log_p = l.sub(l.load_partial(c), shift);
        let slope = l.fma(log_p, minus_b, base);
        l.store_partial(c, l.mul(l.exp(log_p), slope));
    }
    logits[target] += a;
}

fn masked_grad(logits: &mut [f32], target: u32, allowed: &[u32], predicted: TokenLogprob, (a, b): (f32, f32)) {
    // Allowed tokens are in ascending order: zero the gaps between them.
    let mut next = 0;
    for &token in allowed {
        let at = token as usize;
        logits[next..at].fill(0.0);
        let log_p = logits[at] - predicted.logsumexp;
        logits[at] = log_p.exp() * (-a - b * predicted.entropy - b * log_p);
        next = at + 1;
    }
    logits[next..].fill(0.0);
    logits[target as usize] += a;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{check_gradient, random_values};

    #[test]
    fn probabilities_sum_to_one_and_gradients_match_finite_differences() {
        let cpu = Cpu::new();
        for vocab_size in [3, 16, 37] {
            let logits: Vec<f32> = random_values(vocab_size, 1).iter().map(|x| 3.0 * x).collect();
            let all: Allowed = [0, 2].into();
            for allowed in [None, Some(&all)] {
                let of = |token: u32, logits: &[f32]| {
                    let mut out = [TokenLogprob::default()];
                    cpu.token_logprobs(logits, vocab_size, &[Target { token, allowed }], &mut out);
                    out[0]
                };
                let tokens: Vec<u32> = allowed.map_or((0..vocab_size as u32).collect(), |a| a.to_vec());
                let p: Vec<f64> = tokens.iter().map(|&t| f64::from(of(t, &logits).logprob).exp()).collect();
                assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-6);
                let entropy: f64 = p.iter().map(|p| -p * p.ln()).sum();
                assert!((f64::from(of(2, &logits).entropy) - entropy).abs() < 1e-5);
                let (a, b) = (0.7, -1.3);
                let mut d = logits.clone();
                cpu.token_logprobs_grad(
                    &mut d,
                    vocab_size,
                    &[Target { token: 2, allowed }],
                    &[of(2, &logits)],
                    &[(a, b)],
                );
                check_gradient("logits", &logits, &d, |z| {
                    let c = of(2, z);
                    f64::from(a) * f64::from(c.logprob) + f64::from(b) * f64::from(c.entropy)
                });
            }
        }
    }

    #[test]
    fn nan_logits_give_nan_logprobs() {
        for vocab_size in [5, 40] {
            let mut logits = random_values(vocab_size, 1);
            logits[3] = f32::NAN;
            let mut out = [TokenLogprob::default()];
            Cpu::new().token_logprobs(&logits, vocab_size, &[Target { token: 1, allowed: None }], &mut out);
            assert!(out[0].logprob.is_nan());
        }
    }
}
