//! The LM head: log-probabilities and gradients, a part of the logits at a time.

use super::workspace::logit_rows;
use super::{ModelTrainer, PARTIALS};
use crate::error::Result;
use crate::gemm::{Gemm, GemmKind, Matrix};
use crate::step_inputs::{LOGIT_THREADS, QUERY_WORDS};
use crate::stream::args;
use mage_engine::model::{PackedChunk, TokenLogprob};

impl ModelTrainer {
    /// Leaves the gradient of the last hidden states in `dhidden`, and adds to those of the final norm and the LM head.
    pub(super) fn lm_head(
        &mut self,
        chunk: &PackedChunk,
        loss_grad: &mut impl FnMut(usize, TokenLogprob) -> (f32, f32),
    ) -> Result<()> {
        let ModelTrainer {
            model,
            stream: s,
            cublas,
            weights: w,
            adapter,
            grads,
            workspace,
            device_inputs,
            input_layout,
            ..
        } = self;
        let train_base = adapter.is_none();
        let (shape, f) = (&model.shape, &model.kernels.common);
        let (n, d, v, count) = (chunk.tokens.len(), shape.hidden_size, shape.vocab_size, chunk.predictions.len());
        let (stride, last) = (shape.logits_stride(), &workspace.hidden[shape.num_layers]);
        let rows = device_inputs.at(input_layout.target_indices);
        let norm = w.at(model.layout.final_norm.start);
        model.gather_rows(s, last.at(0), rows, count, d, workspace.selected.at(0))?;
        model.rms_norm(
            s,
            workspace.selected.at(0),
            norm,
            count,
            workspace.selected_normed.at(0),
            workspace.selected_rstd.at(0),
        )?;
        let lm_head = Matrix::new(w.at(model.layout.lm_head.start), d);
        let logits = Matrix::new(workspace.logits.at(0), stride);
        let dlogits = Matrix::new(workspace.dlogits.at(0), stride);
        let rows_at_once = logit_rows(shape).min(count);
        let mut stats_host = vec![[0.0_f32; 4]; rows_at_once];
        for from in (0..count).step_by(rows_at_once) {
            let m = rows_at_once.min(count - from);
            let normed = Matrix::new(workspace.selected_normed.at(from * d), d);
            cublas.matmul(s, Gemm::new(GemmKind::Forward, (m, v, d), normed, lm_head, logits).f32_out())?;
            let queries_offset = input_layout.queries + from * QUERY_WORDS;
            let row_args = (workspace.logits.at(0), stride as u64, v, device_inputs.at(0), queries_offset);
            s.launch(
                f.token_logprobs,
                (m, 1, 1),
                LOGIT_THREADS,
                0,
                args![row_args.0, row_args.1, row_args.2, row_args.3, row_args.4, workspace.token_stats.at(0)],
            )?;
            workspace.token_stats.download(s, &mut stats_host[..m])?;
            let logprob_grads: Vec<[f32; 2]> = stats_host[..m]
                .iter()
                .enumerate()
                .map(|(i, &[logprob, entropy, logsumexp, _])| {
                    let (by_logprob, by_entropy) = loss_grad(from + i, TokenLogprob { logprob, entropy, logsumexp });
                    [by_logprob, by_entropy]
                })
                .collect();
            workspace.logprob_grads.upload(s, &logprob_grads)?;
            s.launch(
                f.token_logprobs_grad,
                (m, 1, 1),
                1024,
                0,
                args![
                    row_args.0,
                    row_args.1,
                    row_args.2,
                    row_args.3,
                    row_args.4,
                    workspace.token_stats.at(0),
                    workspace.logprob_grads.at(0),
                    workspace.dlogits.at(0)
                ],
            )?;
            let dnormed = Matrix::new(workspace.dselected_normed.at(from * d), d);
            cublas.matmul(s, Gemm::new(GemmKind::InputGrad, (m, v, d), dlogits, lm_head, dnormed))?;
            if train_base {
                let dhead = Matrix::new(grads.at(model.layout.lm_head.start), d);
                cublas.matmul(s, Gemm::new(GemmKind::WeightGrad, (m, v, d), dlogits, normed, dhead).accumulate())?;
            }
        }
        workspace.dselected.clear(s, 0, count * d)?;
        let blocks = PARTIALS.min(count);
        s.launch(
            f.rms_norm_grad,
            (blocks, 1, 1),
            model.row_threads(),
            0,
            args![
                workspace.dselected_normed.at(0),
                workspace.selected.at(0),
                norm,
                workspace.selected_rstd.at(0),
                count,
                d / 8,
                workspace.dselected.at(0),
                workspace.partials.at(0)
            ],
        )?;
        if train_base {
            let to = grads.at(model.layout.final_norm.start);
            s.launch(
                f.reduce_partials,
                (d.div_ceil(32), 1, 1),
                256,
                0,
                args![workspace.partials.at(0), blocks, d, to],
            )?;
        }
        workspace.dhidden.clear(s, 0, n * d)?;
        let threads = (d / 8).clamp(32, 256);
        s.launch(
            f.scatter_add_rows,
            (count, 1, 1),
            threads,
            0,
            args![workspace.dselected.at(0), rows, d / 8, workspace.dhidden.at(0)],
        )
    }
}
