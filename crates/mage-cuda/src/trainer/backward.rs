//! Backward pass of a layer.

use super::workspace::GpuLayerActivations;
use super::{ModelTrainer, PARTIALS};
use crate::attention::AttentionGrads;
use crate::error::Result;
use crate::gemm::{Gemm, GemmKind, Matrix};
use crate::lora::LoraWithScratch;
use crate::stream::args;
use mage_engine::model::ProjectionGroup;

impl ModelTrainer {
    /// Gradient of a linear layer's input, from `dy` to `dx`.
    fn input_grad(&mut self, layer: usize, group: ProjectionGroup, n: usize, dy: u64, dx: u64) -> Result<()> {
        let (offset, outputs, inputs) = self.model.projection(layer, group);
        let ModelTrainer { stream: s, cublas, weights: w, adapter, workspace, .. } = self;
        let (dy, m, dx) = (Matrix::new(dy, outputs), Matrix::new(w.at(offset), inputs), Matrix::new(dx, inputs));
        cublas.matmul(s, Gemm::new(GemmKind::InputGrad, (n, outputs, inputs), dy, m, dx))?;
        let lora = LoraWithScratch::new(adapter.as_ref(), &workspace.lora_a_out);
        lora.map_or(Ok(()), |lora| {
            lora.backward_input(s, cublas, (layer, group), n, dy, dx, workspace.dlora_a_out.at(0))
        })
    }

    /// Adds to the gradient of a linear layer's trainable weights from `dy` and its input. Must follow
    /// [`input_grad`](Self::input_grad) of the same layer.
    fn weight_grad(&mut self, layer: usize, group: ProjectionGroup, n: usize, dy: u64, x: u64) -> Result<()> {
        let (offset, outputs, inputs) = self.model.projection(layer, group);
        let ModelTrainer { stream: s, cublas, adapter, grads, workspace, .. } = self;
        let (dy, x) = (Matrix::new(dy, outputs), Matrix::new(x, inputs));
        if let Some(lora) = LoraWithScratch::new(adapter.as_ref(), &workspace.lora_a_out) {
            return lora.backward_weights(s, cublas, (layer, group), n, dy, x, workspace.dlora_a_out.at(0), grads);
        }
        let dw = Matrix::new(grads.at(offset), inputs);
        cublas.matmul(s, Gemm::new(GemmKind::WeightGrad, (n, outputs, inputs), dy, x, dw).accumulate())
    }

    /// Recomputes a norm's output.
    fn rms_norm_recompute(&mut self, x: u64, offset: usize, rstd: u64, n: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, weights: w, workspace, .. } = self;
        let d8 = model.shape.hidden_size / 8;
        let to = workspace.normed.at(0);
        s.launch(
            model.kernels.common.rms_norm_recompute,
            (n, 1, 1),
            d8.clamp(32, 256),
            0,
            args![x, w.at(offset), rstd, d8, to],
        )
    }

    /// Adds the gradient through a norm from `dnormed` to `dhidden`, and adds to the gradient of its weights.
    fn norm_grad(&mut self, x: u64, offset: usize, rstd: u64, n: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, weights: w, adapter, grads, workspace, .. } = self;
        let (f, d, blocks) = (&model.kernels.common, model.shape.hidden_size, PARTIALS.min(n));
        let (dnormed, dhidden, partials) = (workspace.dnormed.at(0), workspace.dhidden.at(0), workspace.partials.at(0));
        s.launch(
            f.rms_norm_grad,
            (blocks, 1, 1),
            model.row_threads(),
            0,
            args![dnormed, x, w.at(offset), rstd, n, d / 8, dhidden, partials],
        )?;
        if adapter.is_some() {
            return Ok(());
        }
        s.launch(f.reduce_partials, (d.div_ceil(32), 1, 1), 256, 0, args![partials, blocks, d, grads.at(offset)])
    }

    /// Propagates the gradient in `dhidden` from a layer's output to its input, and adds to the gradients of trainable
    /// weights.
    pub(super) fn layer_grad(&mut self, layer: usize, n: usize, activations: usize) -> Result<()> {
        let (norm1, norm2) = {
            let at = &self.model.layout.layers[layer];
            (at.input_layernorm.start, at.post_attention_layernorm.start)
        };
        let workspace = &self.workspace;
        let a: &GpuLayerActivations = &workspace.activations[activations];
        let (x, dhidden, normed, dnormed) =
            (workspace.hidden[layer].at(0), workspace.dhidden.at(0), workspace.normed.at(0), workspace.dnormed.at(0));
        let (residual, input_rstd, post_attention_rstd, attn_out) =
            (a.residual.at(0), a.input_rstd.at(0), a.post_attention_rstd.at(0), a.attn_out.at(0));
        let (mlp_act, dmlp_act, dgate_up) =
            (workspace.mlp_act.at(0), workspace.dmlp_act.at(0), workspace.dgate_up.at(0));
        let (dattn_out, dqkv) = (workspace.dattn_out.at(0), workspace.dqkv.at(0));

        self.input_grad(layer, ProjectionGroup::Down, n, dhidden, dmlp_act)?;
        self.swiglu_grad(n, activations)?;
        self.weight_grad(layer, ProjectionGroup::Down, n, dhidden, mlp_act)?;
        self.input_grad(layer, ProjectionGroup::GateUp, n, dgate_up, dnormed)?;
        self.rms_norm_recompute(residual, norm2, post_attention_rstd, n)?;
        self.weight_grad(layer, ProjectionGroup::GateUp, n, dgate_up, normed)?;
        self.norm_grad(residual, norm2, post_attention_rstd, n)?;

        self.input_grad(layer, ProjectionGroup::Out, n, dhidden, dattn_out)?;
        self.weight_grad(layer, ProjectionGroup::Out, n, dhidden, attn_out)?;
        self.attention_grad(layer, n, activations)?;

        self.input_grad(layer, ProjectionGroup::Qkv, n, dqkv, dnormed)?;
        self.rms_norm_recompute(x, norm1, input_rstd, n)?;
        self.weight_grad(layer, ProjectionGroup::Qkv, n, dqkv, normed)?;
        self.norm_grad(x, norm1, input_rstd, n)
    }

    /// Gradient of gate and up from that of the MLP activation, which is recomputed.
    fn swiglu_grad(&mut self, n: usize, activations: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, workspace, .. } = self;
        let f8 = model.shape.intermediate_size / 8;
        let gate_up = workspace.activations[activations].gate_up.at(0);
        s.launch(
            model.kernels.common.swiglu_grad,
            (n, f8.div_ceil(128), 1),
            128,
            0,
            args![workspace.dmlp_act.at(0), gate_up, f8, workspace.dgate_up.at(0), workspace.mlp_act.at(0)],
        )
    }

    /// Gradient of raw queries, keys and values, and of the head norms, from that of the attention output.
    fn attention_grad(&mut self, layer: usize, n: usize, activations: usize) -> Result<()> {
        let ModelTrainer {
            model, stream: s, weights: w, adapter, grads, workspace, device_inputs, input_layout, ..
        } = self;
        let (shape, f, at) = (&model.shape, &model.kernels.common, &model.layout.layers[layer]);
        let a: &GpuLayerActivations = &workspace.activations[activations];
        let (heads, kv, qkv) = (shape.num_heads, shape.num_kv_heads, a.qkv.at(0));
        let attn_grads = AttentionGrads {
            out: workspace.dattn_out.at(0),
            delta: workspace.delta.at(0),
            qk: workspace.dqk.at(0),
            qkv: workspace.dqkv.at(0),
        };
        let [query_tiles, key_tiles] =
            [input_layout.query_tiles, input_layout.key_tiles].map(|(items, count)| (device_inputs.at(items), count));
        model.attention_backward(
            s,
            model.attention_kernel(),
            a.attention_buffers(n),
            attn_grads,
            query_tiles,
            key_tiles,
        )?;
        let head_blocks = PARTIALS.min((n * (heads + kv)).div_ceil(8));
        let positions = device_inputs.at(input_layout.positions);
        let partials = workspace.partials.at(0);
        s.launch(
            f.head_norm_rope_grad,
            (head_blocks, 1, 1),
            256,
            0,
            args![
                workspace.dqk.at(0),
                qkv,
                w.at(at.qk_norm.start),
                model.rope_table.at(0),
                positions,
                a.head_rstd.at(0),
                n,
                heads,
                kv,
                workspace.dqkv.at(0),
                partials
            ],
        )?;
        if adapter.is_some() {
            return Ok(());
        }
        let width = 2 * shape.head_dim;
        let to = grads.at(at.qk_norm.start);
        s.launch(f.reduce_partials, (width.div_ceil(32), 1, 1), 256, 0, args![partials, head_blocks, width, to])
    }

    /// Adds each row's gradient to its token's embedding, in row order. The order is computed on the host after all
    /// other kernels have been launched, so that the device does not wait for it.
    pub(super) fn embedding_grad(&mut self, tokens: &[u32]) -> Result<()> {
        let mut rows: Vec<u32> = (0..tokens.len() as u32).collect();
        rows.sort_by_key(|row| tokens[*row as usize]);
        let p = &mut self.step_inputs;
        p.clear();
        p.push(rows.iter().copied());
        let groups = || rows.chunk_by(|a, b| tokens[*a as usize] == tokens[*b as usize]);
        let distinct = p.push(groups().map(|rows| tokens[rows[0] as usize]));
        let starts = p.push([0]);
        p.push(groups().scan(0, |end, rows| {
            *end += rows.len() as u32;
            Some(*end)
        }));
        let ModelTrainer { model, stream: s, grads, workspace, step_inputs, embedding_order, .. } = self;
        embedding_order.reserve(step_inputs.data.len())?;
        embedding_order.upload(s, &step_inputs.data)?;
        let d8 = model.shape.hidden_size / 8;
        let to = grads.at(model.layout.embed_tokens.start);
        s.launch(
            model.kernels.common.embedding_grad,
            (starts - distinct, 1, 1),
            d8.clamp(32, 256),
            0,
            args![
                workspace.dhidden.at(0),
                embedding_order.at(0),
                embedding_order.at(starts),
                embedding_order.at(distinct),
                d8,
                to
            ],
        )
    }
}
