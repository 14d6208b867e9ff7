//! Which token is drawn?

use mage_engine::SamplingParams;
use mage_env::Rng;
use rand::RngExt;

/// A token and its log-probability in the distribution it was drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
}

/// Draws from logits: mask, temperature, top-k, top-p, min-p, in that order. `None` where the logits are not finite.
pub(crate) fn draw(logits: &[f32], allowed: Option<&[u32]>, params: &SamplingParams, rng: &mut Rng) -> Option<Drawn> {
    let greedy = params.temperature == 0.0;
    let heat = if greedy { 1.0 } else { f64::from(params.temperature) };
    let mut candidates: Vec<(u32, f64)> = match allowed {
        Some(tokens) => tokens.iter().map(|&t| (t, f64::from(logits[t as usize]) / heat)).collect(),
        None => logits.iter().enumerate().map(|(t, z)| (t as u32, f64::from(*z) / heat)).collect(),
    };
    if candidates.iter().any(|c| !c.1.is_finite()) {
        return None;
    }
    // The first of equals, so that greedy choices do not depend on anything else.
    let best = candidates.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    if greedy {
        return Some(Drawn { token: best.0, logprob: 0.0 });
    }
    for c in &mut candidates {
        c.1 = (c.1 - best.1).exp();
    }
    if params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0 {
        // Stable: equals stay in the order of their ids.
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        if params.top_k > 0 {
            candidates.truncate(params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let total: f64 = candidates.iter().map(|c| c.1).sum();
            let mut before = 0.0;
            let enough = f64::from(params.top_p) * total;
            // A token stays while those before it do not suffice; the first always does.
            candidates.retain(|c| {
                let stays = before < enough;
                before += c.1;
                stays
            });
        }
        candidates.retain(|c| c.1 >= f64::from(params.min_p)); // the largest is 1
    }
    let total: f64 = candidates.iter().map(|c| c.1).sum();
    let mut left = rng.random::<f64>() * total;
    let mut chosen = candidates[0];
    for c in candidates {
        if c.1 > 0.0 {
            chosen = c;
            if left < c.1 {
                break;
            }
            left -= c.1;
        }
    }
    Some(Drawn { token: chosen.0, logprob: (chosen.1 / total).ln() as f32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_env::Seed;

    /// Draws often and compares the counts with `want` by chi-square at the 0.1 % level or beyond.
    fn frequencies(params: SamplingParams, allowed: Option<&[u32]>, want: &[f64]) {
        let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
        let mut counts = [0.0; 5];
        let n = 40_000;
        for i in 0..n {
            let d = draw(&logits, allowed, &params, &mut Seed::new(5).at(i).rng()).unwrap();
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

    fn softmax(keep: &[usize], heat: f64) -> Vec<f64> {
        let logits = [1.0, 0.0, 2.0, -1.0, 0.5];
        let e: Vec<f64> = (0..5).map(|t| if keep.contains(&t) { (logits[t] / heat).exp() } else { 0.0 }).collect();
        let total: f64 = e.iter().sum();
        e.iter().map(|x| x / total).collect()
    }

    #[test]
    fn draws_follow_the_stated_distribution() {
        let p = SamplingParams::default;
        frequencies(p(), None, &softmax(&[0, 1, 2, 3, 4], 1.0));
        frequencies(SamplingParams { temperature: 0.5, ..p() }, None, &softmax(&[0, 1, 2, 3, 4], 0.5));
        frequencies(SamplingParams { top_k: 2, ..p() }, None, &softmax(&[0, 2], 1.0));
        // Probabilities 0.53, 0.20, 0.12, 0.07, 0.03 (of 2, 0, 4, 1, 3): the first two are 0.76.
        frequencies(SamplingParams { top_p: 0.8, ..p() }, None, &softmax(&[0, 2, 4], 1.0));
        frequencies(SamplingParams { min_p: 0.2, ..p() }, None, &softmax(&[0, 2, 4], 1.0));
        frequencies(p(), Some(&[1, 3]), &softmax(&[1, 3], 1.0));
        frequencies(SamplingParams { temperature: 0.0, ..p() }, None, &[0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_not_finite_is_not_drawn() {
        let mut rng = Seed::new(1).rng();
        assert_eq!(draw(&[0.0, f32::NAN], None, &SamplingParams::default(), &mut rng), None);
        assert_eq!(draw(&[0.0, f32::INFINITY], None, &SamplingParams::default(), &mut rng), None);
        assert!(draw(&[0.0, f32::NAN], Some(&[0]), &SamplingParams::default(), &mut rng).is_some());
    }
}
