//! The backward pass.

use super::forward::{ForwardPass, packed_spans};
use super::workspace::PackedWorkspace;
use super::{Adapter, Qwen3Model, Weights};
use crate::cpu::{AttentionOutput, Cpu, Span, scatter_add_rows};
use mage_engine::model::{PackedChunk, ProjectionGroup, TokenLogprob};

impl Qwen3Model {
    /// Adds the gradient of a chunk's loss to `grads`: of the base parameters, or, with an adapter, of the adapter alone.
    /// `cost` receives each prediction's log-probability and entropy and returns the derivatives of the loss by both.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward_backward(
        &self,
        cpu: &Cpu,
        (weights, adapter): (&Weights, Option<&Adapter>),
        chunk: &PackedChunk,
        s: &mut PackedWorkspace,
        grads: &mut [f32],
        recompute: bool,
        mut cost: impl FnMut(usize, TokenLogprob) -> (f32, f32),
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        let (lora, spans) = (adapter.map(|a| a.on(n)), packed_spans(chunk));
        let pass = ForwardPass {
            model: self,
            cpu,
            weights,
            lora: lora.as_slice(),
            positions: &chunk.positions,
            cos_sin: &self.cos_sin(chunk.max_len()),
        };
        pass.layers(chunk, &spans, s, !recompute);
        s.dhidden.clear();
        s.dhidden.resize(n * d, 0.0);
        pass.lm_head(chunk, s, Some(&mut cost), adapter.is_none().then_some(&mut *grads));
        for layer in (0..layers).rev() {
            if recompute {
                let (before, after) = s.hidden.split_at_mut(layer + 1);
                pass.layer(layer, &spans, &before[layer], &mut s.activations[0], &mut after[0]);
            }
            pass.layer_backward(adapter, layer, &spans, s, grads, if recompute { 0 } else { layer });
        }
        if adapter.is_none() {
            scatter_add_rows(&s.dhidden, &chunk.tokens, d, &mut grads[self.layout.embed_tokens.clone()]);
        }
    }
}

impl ForwardPass<'_> {
    /// Backward pass of a layer: replaces the output gradient in `dhidden` by the input gradient and adds to `grads`.
    fn layer_backward(
        &self,
        adapter: Option<&Adapter>,
        layer: usize,
        spans: &[Span],
        s: &mut PackedWorkspace,
        grads: &mut [f32],
        activations: usize,
    ) {
        let ForwardPass { model, cpu, weights, .. } = *self;
        let (c, heads, n) = (&model.config, model.config.heads(), self.positions.len());
        let (d, f, at, full) = (c.hidden_size, c.intermediate_size, &model.layout.layers[layer], adapter.is_none());
        let PackedWorkspace {
            hidden,
            activations: all,
            dhidden,
            dnormed,
            dgate_up,
            dmlp_act,
            dqkv,
            dqk,
            dattn_out,
            dlora_a_out,
            ..
        } = s;
        let a = &all[activations];
        for (buffer, width) in [
            (&mut *dnormed, d),
            (&mut *dgate_up, 2 * f),
            (&mut *dmlp_act, f),
            (&mut *dqkv, heads.qkv()),
            (&mut *dqk, heads.qk()),
            (&mut *dattn_out, heads.out()),
        ] {
            buffer.resize(n * width, 0.0);
        }
        // Backward pass of a projection group: from `dy` to `dx` and the weight gradients.
        let mut projection_backward =
            |group: ProjectionGroup, x: &[f32], dy: &[f32], dx: &mut [f32], grads: &mut [f32]| {
                let (frozen, shape) = (group.base_weights(at), (n, c.group_outputs(group), c.group_inputs(group)));
                if full {
                    cpu.linear_weight_grad(dy, x, shape, &mut grads[frozen.clone()]);
                }
                cpu.linear_input_grad(dy, weights.param(frozen), shape, dx);
                if let Some(adapter) = adapter {
                    let lora_a_out = &a.lora_a_out[group as usize];
                    self.add_lora_grad(adapter, layer, group, x, lora_a_out, dy, dx, dlora_a_out, grads);
                }
            };

        projection_backward(ProjectionGroup::Down, &a.mlp_act, dhidden, dmlp_act, grads);
        cpu.swiglu_grad(dmlp_act, &a.gate_up, f, dgate_up);
        projection_backward(ProjectionGroup::GateUp, &a.post_attn_normed, dgate_up, dnormed, grads);
        let norm = weights.param(&at.post_attention_layernorm);
        let dnorm = full.then(|| &mut grads[at.post_attention_layernorm.clone()]);
        cpu.rms_norm_grad(dnormed, &a.residual, norm, &a.post_attn_rstd, dhidden, dnorm);

        projection_backward(ProjectionGroup::Out, &a.attn_out, dhidden, dattn_out, grads);
        let attention = AttentionOutput { qk: &a.qk, qkv: &a.qkv, out: &a.attn_out, logsumexp: &a.logsumexp };
        cpu.attention_grad(heads, spans, attention, dattn_out, dqk, dqkv);
        let dnorm = full.then(|| &mut grads[at.qk_norm.clone()]);
        cpu.qk_norm_rope_grad(self.qk_norm_rope(layer), dqk, &a.qkv, &a.qk_rstd, dqkv, dnorm);
        projection_backward(ProjectionGroup::Qkv, &a.input_normed, dqkv, dnormed, grads);
        let norm = weights.param(&at.input_layernorm);
        let dnorm = full.then(|| &mut grads[at.input_layernorm.clone()]);
        cpu.rms_norm_grad(dnormed, &hidden[layer], norm, &a.input_rstd, dhidden, dnorm);
    }
}
