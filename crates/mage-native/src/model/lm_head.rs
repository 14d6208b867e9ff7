//! The LM head: logits, log-probabilities and their gradient, a few rows at a time.

use super::Qwen3Model;
use super::forward::ForwardPass;
use super::workspace::PackedWorkspace;
use crate::cpu::{Target, gather_rows, scatter_add_rows};
use mage_engine::model::{PackedChunk, TokenLogprob};

/// Maximum number of logits in memory.
const MAX_LOGITS: usize = 1 << 24;

/// The derivatives of the loss by a prediction's log-probability and entropy.
pub(super) type LossGrad<'a> = dyn FnMut(usize, TokenLogprob) -> (f32, f32) + 'a;

impl Qwen3Model {
    /// Number of rows of logits computed at a time.
    pub(super) fn logit_rows(&self) -> usize {
        (MAX_LOGITS / self.config.vocab_size).clamp(16, 256)
    }
}

impl ForwardPass<'_> {
    /// Computes log-probabilities from the last hidden state and, with `cost`, the gradient of the loss. The LM-head and
    /// final-norm gradients are computed only if a gradient buffer is given.
    pub(super) fn lm_head(
        &self,
        chunk: &PackedChunk,
        s: &mut PackedWorkspace,
        mut cost: Option<&mut LossGrad<'_>>,
        mut grads: Option<&mut [f32]>,
    ) {
        let ForwardPass { model, cpu, weights, .. } = *self;
        let (c, layout) = (&model.config, &model.layout);
        let (d, v, count) = (c.hidden_size, c.vocab_size, chunk.predictions.len());
        s.logprobs.clear();
        s.logprobs.resize(count, TokenLogprob::default());
        if count == 0 {
            return;
        }
        s.rows.clear();
        s.rows.extend(chunk.predictions.iter().map(|p| p.row));
        s.selected.resize(count * d, 0.0);
        s.selected_normed.resize(count * d, 0.0);
        s.selected_rstd.resize(count, 0.0);
        gather_rows(&s.hidden[c.num_hidden_layers], &s.rows, d, &mut s.selected);
        let norm = weights.param(&layout.final_norm);
        cpu.rms_norm(&s.selected, norm, c.rms_norm_eps, &mut s.selected_normed, &mut s.selected_rstd);
        let step = model.logit_rows().min(count);
        s.logits.resize(step * v, 0.0);
        if cost.is_some() {
            s.dselected_normed.resize(count * d, 0.0);
        }
        for from in (0..count).step_by(step) {
            let rows = step.min(count - from);
            let (part, shape) = (from * d..(from + rows) * d, (rows, v, d));
            let logits = &mut s.logits[..rows * v];
            cpu.linear(&s.selected_normed[part.clone()], &weights.lm_head, logits);
            let predictions = &chunk.predictions[from..from + rows];
            let targets: Vec<Target<'_>> =
                predictions.iter().map(|p| Target { token: p.token, allowed: p.allowed.as_ref() }).collect();
            let logprobs = &mut s.logprobs[from..from + rows];
            cpu.token_logprobs(logits, v, &targets, logprobs);
            if let Some(cost) = &mut cost {
                s.dlogprobs.clear();
                s.dlogprobs.extend(logprobs.iter().enumerate().map(|(i, predicted)| cost(from + i, *predicted)));
                cpu.token_logprobs_grad(logits, v, &targets, logprobs, &s.dlogprobs);
                let dnormed = &mut s.dselected_normed[part.clone()];
                cpu.linear_input_grad(logits, weights.param(&layout.lm_head), shape, dnormed);
                if let Some(grads) = &mut grads {
                    let dw = &mut grads[layout.lm_head.clone()];
                    cpu.linear_weight_grad(logits, &s.selected_normed[part], shape, dw);
                }
            }
        }
        if cost.is_some() {
            s.dselected.clear();
            s.dselected.resize(count * d, 0.0);
            let dnorm = grads.map(|grads| &mut grads[layout.final_norm.clone()]);
            cpu.rms_norm_grad(&s.dselected_normed, &s.selected, norm, &s.selected_rstd, &mut s.dselected, dnorm);
            scatter_add_rows(&s.dselected, &s.rows, d, &mut s.dhidden);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WeightSet;
    use crate::weights::hf_config::tests::tiny;
    use crate::weights::init::new_weights;
    use mage_engine::model::Prediction;
    use mage_rng::Seed;
    use std::sync::Arc;

    #[test]
    fn logits_are_computed_in_bounded_pieces() {
        let model = Qwen3Model::new(tiny());
        let weights = model.weights(new_weights(&tiny(), 0.2, Seed::new(1)));
        let mut chunk = PackedChunk::default();
        for _ in 0..10 {
            let first = chunk.push((0..100).map(|i| i % 29));
            chunk.predictions.extend((0..99).map(|i| Prediction {
                row: (first + i) as u32,
                token: (i as u32 + 1) % 29,
                ..Default::default()
            }));
        }
        let mut s = PackedWorkspace::default();
        let mut logprobs = Vec::new();
        let weights = WeightSet { base: Arc::new(weights), adapter: None };
        model.score(&model.cpu, &weights, &chunk, &mut s, &mut logprobs);
        assert_eq!((logprobs.len(), s.logits.len()), (990, model.logit_rows() * 29));
        let first = &logprobs[..99];
        assert!(logprobs.chunks(99).all(|c| c == first), "the split into pieces does not change results");
    }
}
