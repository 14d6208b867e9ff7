//! Statistics of a loss computation.

use mage_engine::model::{Prediction, TokenLogprob};
use mage_engine::{Loss, LossReport, TokenClass};
use std::collections::BTreeMap;

/// Sums of loss statistics over predictions.
#[derive(Default)]
pub(super) struct LossStats {
    loss: f64,
    weight: f64,
    entropy: f64,
    ratio: f64,
    max_ratio: f64,
    clipped: f64,
    mismatch: f64,
    kl: BTreeMap<TokenClass, (f64, f64)>,
    logprobs: Vec<(usize, f32)>,
}

impl LossStats {
    /// Records one prediction and returns the derivatives of the loss by its log-probability and entropy.
    pub(super) fn record(&mut self, p: &Prediction, predicted: TokenLogprob, loss: &Loss) -> (f32, f32) {
        let cost = loss.token_loss(predicted.logprob, predicted.entropy, &p.inputs);
        let weight = f64::from(p.inputs.weight);
        let size = weight.abs();
        self.loss += weight * cost.value;
        self.weight += size;
        self.entropy += size * f64::from(predicted.entropy);
        self.ratio += size * cost.ratio;
        self.max_ratio = self.max_ratio.max(cost.ratio);
        self.clipped += if cost.clipped { size } else { 0.0 };
        self.mismatch += size * (cost.ratio - 1.0 - cost.ratio.ln());
        if loss.needs_ref_logprobs() {
            let (sum, total) = self.kl.entry(p.inputs.class).or_default();
            *sum += size * cost.kl;
            *total += size;
        }
        self.logprobs.push((p.index, predicted.logprob));
        ((weight * cost.d_logprob) as f32, (weight * cost.d_entropy) as f32)
    }

    pub(super) fn add(&mut self, other: LossStats) {
        self.loss += other.loss;
        self.weight += other.weight;
        self.entropy += other.entropy;
        self.ratio += other.ratio;
        self.max_ratio = self.max_ratio.max(other.max_ratio);
        self.clipped += other.clipped;
        self.mismatch += other.mismatch;
        for (class, (sum, total)) in other.kl {
            let entry = self.kl.entry(class).or_default();
            entry.0 += sum;
            entry.1 += total;
        }
        self.logprobs.extend(other.logprobs);
    }

    pub(super) fn report(self, count: usize) -> LossReport {
        let mean = |x: f64| if self.weight > 0.0 { x / self.weight } else { 0.0 };
        let mut logprobs = vec![0.0; count];
        for (i, l) in &self.logprobs {
            logprobs[*i] = *l;
        }
        LossReport {
            loss: self.loss,
            tokens: count as u64,
            weight: self.weight,
            entropy: mean(self.entropy),
            ratio: mean(self.ratio),
            max_ratio: self.max_ratio,
            clip_fraction: mean(self.clipped),
            mismatch_kl: mean(self.mismatch),
            kl: self.kl.iter().map(|(c, (sum, total))| (*c, sum / total.max(f64::MIN_POSITIVE))).collect(),
            logprobs,
        }
    }
}
