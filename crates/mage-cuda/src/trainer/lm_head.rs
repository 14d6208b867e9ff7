//! From the last state to what the model says, and back, without ever holding all logits.

use super::workspace::logit_rows;
use super::{GpuTokenLogprob, ModelTrainer, PARTIALS, PackedSequences};
use crate::error::Result;
use crate::gemm::{Kind, Matrix};
use crate::step_inputs::{ASK, READERS};
use crate::stream::args;

impl ModelTrainer {
    /// Leaves the gradient by the last state in `dstate`, and adds to those of the last norm and matrix.
    pub(super) fn head(
        &mut self,
        sequences: &PackedSequences<'_>,
        cost: &mut impl FnMut(usize, GpuTokenLogprob) -> (f32, f32),
    ) -> Result<()> {
        let ModelTrainer { model, stream: s, products, weights: w, adapter, grads, space, words, places, .. } = self;
        let whole = adapter.is_none();
        let (shape, f) = (&model.shape, &model.program.functions);
        let (n, d, v, count) = (sequences.tokens.len(), shape.hidden_size, shape.vocab_size, sequences.targets.len());
        let (stride, last) = (shape.logits_stride(), &space.states[shape.num_layers]);
        let rows = words.at(places.rows);
        let norm = w.at(model.layout.final_norm.start);
        model.gather(s, last.at(0), rows, count, d, space.picked.at(0))?;
        model.norm(s, space.picked.at(0), norm, count, space.picked_normed.at(0), space.picked_inverse.at(0))?;
        let head = Matrix::new(w.at(model.layout.lm_head.start), d);
        let logits = Matrix::new(space.logits.at(0), stride);
        let dlogits = Matrix::new(space.dlogits.at(0), stride);
        let step = logit_rows(shape).min(count);
        let mut said = vec![[0.0_f32; 4]; step];
        for from in (0..count).step_by(step) {
            let m = step.min(count - from);
            let normed = Matrix::new(space.picked_normed.at(from * d), d);
            products.run(s, Kind::Forward, (m, v, d), normed, head, None, logits, true)?;
            let asks = places.asks + from * ASK;
            let common = (space.logits.at(0), stride as u64, v, words.at(0), asks);
            s.launch(
                f.distribution,
                (m, 1, 1),
                READERS,
                0,
                args![common.0, common.1, common.2, common.3, common.4, space.choices.at(0)],
            )?;
            space.choices.take(s, &mut said[..m])?;
            let slopes: Vec<[f32; 2]> = said[..m]
                .iter()
                .enumerate()
                .map(|(i, &[logprob, entropy, logsumexp, _])| {
                    let (by_logprob, by_entropy) = cost(from + i, GpuTokenLogprob { logprob, entropy, logsumexp });
                    [by_logprob, by_entropy]
                })
                .collect();
            space.slopes.put(s, &slopes)?;
            s.launch(
                f.distribution_grad,
                (m, 1, 1),
                1024,
                0,
                args![
                    common.0,
                    common.1,
                    common.2,
                    common.3,
                    common.4,
                    space.choices.at(0),
                    space.slopes.at(0),
                    space.dlogits.at(0)
                ],
            )?;
            let dnormed = Matrix::new(space.dpicked_normed.at(from * d), d);
            products.run(s, Kind::Input, (m, v, d), dlogits, head, None, dnormed, false)?;
            if whole {
                let dhead = Matrix::new(grads.at(model.layout.lm_head.start), d);
                products.run(s, Kind::Weight, (m, v, d), dlogits, normed, Some(dhead), dhead, true)?;
            }
        }
        space.dpicked.clear(s, 0, count * d)?;
        let blocks = PARTIALS.min(count);
        s.launch(
            f.rms_norm_grad,
            (blocks, 1, 1),
            model.row_threads(),
            0,
            args![
                space.dpicked_normed.at(0),
                space.picked.at(0),
                norm,
                space.picked_inverse.at(0),
                count,
                d / 8,
                space.dpicked.at(0),
                space.partials.at(0)
            ],
        )?;
        if whole {
            let to = grads.at(model.layout.final_norm.start);
            s.launch(f.add_partials, (d.div_ceil(32), 1, 1), 256, 0, args![space.partials.at(0), blocks, d, to])?;
        }
        space.dstate.clear(s, 0, n * d)?;
        let threads = (d / 8).clamp(32, 256);
        s.launch(f.scatter, (count, 1, 1), threads, 0, args![space.dpicked.at(0), rows, d / 8, space.dstate.at(0)])
    }
}
