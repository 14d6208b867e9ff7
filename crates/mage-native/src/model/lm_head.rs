//! The LM head: logits, log-probabilities and their gradient, a few rows at a time.

use super::workspace::PackedWorkspace;
use super::{Qwen3Model, Weights};
use crate::cpu::{Kernels, Target, TokenLogprob};
use crate::model::batch::PackedChunk;

/// Maximum number of logits in memory.
const MAX_LOGITS: usize = 1 << 24;

impl<K: Kernels> Qwen3Model<K> {
    /// Number of rows of logits computed at a time.
    pub(super) fn logit_rows(&self) -> usize {
        (MAX_LOGITS / self.config.vocab_size).clamp(16, 256)
    }

    /// Computes log-probabilities from the last hidden state and, with `train`, the gradient of the loss. The LM-head and
    /// final-norm gradients are computed only if a gradient buffer is given.
    pub(super) fn lm_head(
        &self,
        k: &K,
        w: &Weights<K>,
        chunk: &PackedChunk,
        s: &mut PackedWorkspace<K>,
        mut train: Option<(Option<&mut K::Buffer>, impl FnMut(usize, TokenLogprob) -> (f32, f32))>,
    ) {
        let (c, n) = (&self.config, chunk.tokens.len());
        let (d, v, count) = (c.hidden_size, c.vocab_size, chunk.predictions.len());
        s.logprobs.clear();
        s.logprobs.resize(count, TokenLogprob::default());
        if count == 0 {
            return;
        }
        s.rows.clear();
        s.rows.extend(chunk.predictions.iter().map(|p| p.row));
        for buffer in [&mut s.selected, &mut s.selected_normed] {
            k.reserve(buffer, count * d);
        }
        k.reserve(&mut s.selected_rstd, count);
        let last = &s.hidden[c.num_hidden_layers];
        k.gather(k.get(last, 0..n * d), &s.rows, d, k.get_mut(&mut s.selected, 0..count * d));
        let norm = k.get(&w.flat, self.layout.final_norm.clone());
        k.rms_norm(
            k.get(&s.selected, 0..count * d),
            norm,
            c.rms_norm_eps,
            k.get_mut(&mut s.selected_normed, 0..count * d),
            k.get_mut(&mut s.selected_rstd, 0..count),
        );
        let step = self.logit_rows().min(count);
        k.reserve(&mut s.logits, step * v);
        if train.is_some() {
            for buffer in [&mut s.dselected, &mut s.dselected_normed] {
                k.reserve(buffer, count * d);
            }
        }
        for from in (0..count).step_by(step) {
            let rows = step.min(count - from);
            let part = from * d..(from + rows) * d;
            k.linear(
                k.get(&s.selected_normed, part.clone()),
                rows,
                &w.lm_head,
                k.get_mut(&mut s.logits, 0..rows * v),
                false,
            );
            let predictions = &chunk.predictions[from..from + rows];
            let targets: Vec<Target<'_>> =
                predictions.iter().map(|p| Target { token: p.token, allowed: p.allowed.as_ref() }).collect();
            let logprobs = &mut s.logprobs[from..from + rows];
            k.token_logprobs(k.get(&s.logits, 0..rows * v), v, &targets, logprobs);
            if let Some((grads, cost)) = &mut train {
                s.dlogprobs.clear();
                s.dlogprobs.extend(logprobs.iter().enumerate().map(|(i, predicted)| cost(from + i, *predicted)));
                k.token_logprobs_grad(k.get_mut(&mut s.logits, 0..rows * v), v, &targets, logprobs, &s.dlogprobs);
                let head = k.get(&w.flat, self.layout.lm_head.clone());
                let dlogits = k.get(&s.logits, 0..rows * v);
                k.linear_input_grad(
                    dlogits,
                    head,
                    (rows, v, d),
                    k.get_mut(&mut s.dselected_normed, part.clone()),
                    false,
                );
                if let Some(grads) = grads {
                    k.linear_weight_grad(
                        dlogits,
                        k.get(&s.selected_normed, part),
                        (rows, v, d),
                        k.get_mut(grads, self.layout.lm_head.clone()),
                    );
                }
            }
        }
        if let Some((grads, _)) = train {
            k.fill(k.get_mut(&mut s.dselected, 0..count * d), 0.0);
            k.rms_norm_grad(
                k.get(&s.dselected_normed, 0..count * d),
                k.get(&s.selected, 0..count * d),
                norm,
                k.get(&s.selected_rstd, 0..count),
                k.get_mut(&mut s.dselected, 0..count * d),
                grads.map(|grads| k.get_mut(grads, self.layout.final_norm.clone())),
            );
            k.scatter_add(k.get(&s.dselected, 0..count * d), &s.rows, d, k.get_mut(&mut s.dhidden, 0..n * d));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use crate::model::WeightSet;
    use crate::model::batch::Prediction;
    use crate::weights::hf_config::tests::tiny;
    use crate::weights::init::new_weights;
    use mage_rng::Seed;
    use std::sync::Arc;

    #[test]
    fn logits_are_computed_in_bounded_pieces() {
        let model = Qwen3Model::new(tiny(), Cpu::new());
        let weights = model.weights(new_weights(&tiny(), 0.2, Seed::new(1)));
        let mut chunk = PackedChunk::default();
        for _ in 0..10 {
            let first = chunk.push((0..100).map(|i| i % 29));
            chunk.predictions.extend((0..99).map(|i| Prediction {
                row: (first + i) as u32,
                token: (i as u32 + 1) % 29,
                allowed: None,
                inputs: Default::default(),
                index: 0,
            }));
        }
        let mut s = PackedWorkspace::new(&model.kernels);
        let mut logprobs = Vec::new();
        let weights = WeightSet { base: Arc::new(weights), adapter: None };
        model.score(&model.kernels, &weights, &chunk, &mut s, &mut logprobs);
        assert_eq!((logprobs.len(), s.logits.len()), (990, model.logit_rows() * 29));
        let first = &logprobs[..99];
        assert!(logprobs.chunks(99).all(|c| c == first), "the split into pieces does not change results");
    }
}
