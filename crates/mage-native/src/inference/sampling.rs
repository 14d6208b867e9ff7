//! Token sampling: mask, temperature, top-k, top-p, min-p, in that order, then inverse-transform sampling.
//!
//! The remaining tokens are ordered by id, so that filters do not move the others on the cumulative distribution. Nothing is
//! allocated once the scratch buffers have grown, and only what the filters need is sorted.

use crate::cpu::categorical::{exp_weights_at, invert_cdf_at};
use crate::cpu::simd::{LANES, SimdLevel};
use mage_engine::SamplingParams;
use mage_rng::Rng;
use rand::RngExt;

/// A token and its log-probability in the distribution it was sampled from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// Scratch buffers for one sample at a time.
#[derive(Default)]
pub(crate) struct SamplingScratch {
    /// Unnormalised probabilities, the largest 1; padded to whole SIMD vectors.
    weights: Vec<f32>,
    /// Tokens that pass the filters, with their unnormalised probabilities.
    kept: Vec<(u32, f32)>,
}

/// Samples from logits. `None` if they are not finite.
pub(crate) fn sample(
    level: SimdLevel,
    logits: &[f32],
    allowed: Option<&[u32]>,
    params: &SamplingParams,
    rng: &mut Rng,
    scratch: &mut SamplingScratch,
) -> Option<SampledToken> {
    let SamplingScratch { weights, kept } = scratch;
    weights.clear();
    match allowed {
        Some(tokens) => weights.extend(tokens.iter().map(|&t| logits[t as usize])),
        None => weights.extend_from_slice(logits),
    }
    let count = weights.len();
    let token_id = |i: usize| allowed.map_or(i as u32, |a| a[i]);
    let greedy = params.temperature == 0.0;
    // Ties go to the smallest id. Logits are compared, since close logits can have equal exponentials.
    let best = if greedy { weights.iter().enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a })?.0 } else { 0 };
    weights.resize(count.next_multiple_of(LANES), f32::NEG_INFINITY);
    let total = exp_weights_at(level, weights, if greedy { 1.0 } else { params.temperature });
    if !total.is_finite() || total <= 0.0 {
        return None;
    }
    if greedy {
        return Some(SampledToken { token: token_id(best), logprob: 0.0 });
    }
    if params.top_k == 0 && params.top_p >= 1.0 && params.min_p <= 0.0 {
        let (at, weight) = invert_cdf_at(level, weights, rng.random::<f64>() * total)?;
        return Some(SampledToken { token: token_id(at), logprob: (f64::from(weight) / total).ln() as f32 });
    }
    filter(weights, count, params, kept);
    // By id, as without filters and as on a GPU.
    kept.sort_unstable_by_key(|k| k.0);
    let total: f64 = kept.iter().map(|k| f64::from(k.1)).sum();
    let mut left = rng.random::<f64>() * total;
    let mut chosen = kept[0];
    for &k in kept.iter().filter(|k| k.1 > 0.0) {
        chosen = k;
        if left < f64::from(k.1) {
            break;
        }
        left -= f64::from(k.1);
    }
    Some(SampledToken { token: token_id(chosen.0 as usize), logprob: (f64::from(chosen.1) / total).ln() as f32 })
}

/// Larger weights first, then smaller ids: a total order, so that unstable sorts are deterministic.
fn by_weight(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Applies top-k, top-p and min-p. The order of `kept` is unspecified.
fn filter(weights: &[f32], count: usize, params: &SamplingParams, kept: &mut Vec<(u32, f32)>) {
    kept.clear();
    let all = || weights[..count].iter().enumerate().map(|(i, w)| (i as u32, *w));
    let k = if params.top_k == 0 { count } else { count.min(params.top_k as usize) };
    if k < count {
        kept.extend(all());
        kept.select_nth_unstable_by(k - 1, by_weight);
        kept.truncate(k);
        if params.top_p < 1.0 {
            kept.sort_unstable_by(by_weight);
            top_p(kept, params.top_p, None);
        }
    } else if params.top_p < 1.0 {
        // Few tokens usually suffice: lower the threshold only if the larger ones do not reach top-p.
        let total: f64 = all().map(|c| f64::from(c.1)).sum();
        let mut floor = 1.0 / 256.0;
        loop {
            kept.clear();
            kept.extend(all().filter(|c| c.1 >= floor));
            kept.sort_unstable_by(by_weight);
            if top_p(kept, params.top_p, Some(total)) || kept.len() == count {
                break;
            }
            floor = if floor > 1e-30 { floor / 1024.0 } else { 0.0 };
        }
    } else {
        kept.extend(all().filter(|c| c.1 >= params.min_p));
        return;
    }
    kept.retain(|c| c.1 >= params.min_p); // the largest is 1
}

/// Truncates `kept` after the weights that reach the fraction `p` of the total. Returns whether they reach it.
fn top_p(kept: &mut Vec<(u32, f32)>, p: f32, total: Option<f64>) -> bool {
    let total = total.unwrap_or_else(|| kept.iter().map(|c| f64::from(c.1)).sum());
    let threshold = f64::from(p) * total;
    let mut before = 0.0;
    // A token stays if those before it do not reach the threshold; the first always stays.
    let stay = kept.iter().take_while(|c| {
        let stays = before < threshold;
        before += f64::from(c.1);
        stays
    });
    let stay = stay.count();
    kept.truncate(stay);
    before >= threshold
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_rng::Seed;

    fn sample_one(
        logits: &[f32],
        allowed: Option<&[u32]>,
        params: &SamplingParams,
        rng: &mut Rng,
    ) -> Option<SampledToken> {
        sample(SimdLevel::best(), logits, allowed, params, rng, &mut SamplingScratch::default())
    }

    /// Samples often and compares the counts with `want` by a chi-square test at the 0.1 % level.
    fn check_frequencies(params: SamplingParams, allowed: Option<&[u32]>, want: &[f64]) {
        let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
        let mut counts = [0.0; 5];
        let n = 40_000;
        for i in 0..n {
            let d = sample_one(&logits, allowed, &params, &mut Seed::new(5).at(i).rng()).unwrap();
            counts[d.token as usize] += 1.0;
            assert!((f64::from(d.logprob) - want[d.token as usize].ln()).abs() < 1e-5, "{d:?}");
        }
        let chi: f64 = (0..5)
            .map(|t| {
                let expected = want[t] * n as f64;
                if expected == 0.0 {
                    assert_eq!(counts[t], 0.0, "token {t}");
                }
                if expected > 0.0 { (counts[t] - expected).powi(2) / expected } else { 0.0 }
            })
            .sum();
        assert!(chi < 18.5, "chi-square {chi} for {counts:?} against {want:?}");
    }

    fn softmax(keep: &[usize], temperature: f64) -> Vec<f64> {
        let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
        let e: Vec<f64> =
            (0..5).map(|t| if keep.contains(&t) { (logits[t] / temperature).exp() } else { 0.0 }).collect();
        let total: f64 = e.iter().sum();
        e.iter().map(|x| x / total).collect()
    }

    #[test]
    fn samples_follow_the_filtered_distribution() {
        let p = SamplingParams::default;
        check_frequencies(p(), None, &softmax(&[0, 1, 2, 3, 4], 1.0));
        check_frequencies(SamplingParams { temperature: 0.5, ..p() }, None, &softmax(&[0, 1, 2, 3, 4], 0.5));
        check_frequencies(SamplingParams { top_k: 2, ..p() }, None, &softmax(&[0, 2], 1.0));
        // Probabilities 0.53, 0.20, 0.12, 0.07, 0.03 (of 2, 0, 4, 1, 3): the first two are 0.76.
        check_frequencies(SamplingParams { top_p: 0.8, ..p() }, None, &softmax(&[0, 2, 4], 1.0));
        check_frequencies(SamplingParams { min_p: 0.2, ..p() }, None, &softmax(&[0, 2, 4], 1.0));
        check_frequencies(p(), Some(&[1, 3]), &softmax(&[1, 3], 1.0));
        // All filters: at temperature 0.5 the weights are 1, 0.135, 0.050, 0.018, 0.002. Top-k keeps four, top-p (0.98) three
        // of them, and min-p those of at least a tenth of the largest.
        let all = SamplingParams { temperature: 0.5, top_k: 4, top_p: 0.98, ..p() };
        check_frequencies(all.clone(), None, &softmax(&[0, 2, 4], 0.5));
        check_frequencies(SamplingParams { min_p: 0.1, ..all.clone() }, None, &softmax(&[0, 2], 0.5));
        check_frequencies(SamplingParams { top_k: 2, ..all }, Some(&[0, 1, 3]), &softmax(&[0, 1], 0.5));
        check_frequencies(SamplingParams { temperature: 2.0, top_k: 3, ..p() }, None, &softmax(&[0, 2, 4], 2.0));
        check_frequencies(SamplingParams { temperature: 0.0, ..p() }, None, &[0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn filters_do_not_change_the_order_of_the_remaining_tokens() {
        let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
        let p = SamplingParams::default;
        for filtered in [SamplingParams { top_k: 3, ..p() }, SamplingParams { top_p: 0.8, ..p() }] {
            for i in 0..200 {
                let sampled = |allowed, params| {
                    sample_one(&logits, allowed, params, &mut Seed::new(6).at(i).rng()).unwrap().token
                };
                assert_eq!(sampled(None, &filtered), sampled(Some(&[0, 2, 4]), &p()), "{filtered:?}, sample {i}");
            }
        }
    }

    #[test]
    fn non_finite_logits_are_not_sampled() {
        let mut rng = Seed::new(1).rng();
        assert_eq!(sample_one(&[0.0, f32::NAN], None, &SamplingParams::default(), &mut rng), None);
        assert_eq!(sample_one(&[0.0, f32::INFINITY], None, &SamplingParams::default(), &mut rng), None);
        assert!(sample_one(&[0.0, f32::NAN], Some(&[0]), &SamplingParams::default(), &mut rng).is_some());
    }
}
