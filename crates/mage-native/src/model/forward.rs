//! The forward pass of the decoder layers.

use super::workspace::{LayerActivations, PackedWorkspace};
use super::{LoraSegment, Qwen3Model, WeightSet, Weights};
use crate::cpu::{Cpu, QkNormRope, Span, Strided, gather_rows};
use mage_engine::model::{PackedChunk, ProjectionGroup, TokenLogprob};
use std::ops::Range;

/// What all layers of one forward pass share.
#[derive(Clone, Copy)]
pub(super) struct ForwardPass<'a> {
    pub(super) model: &'a Qwen3Model,
    pub(super) cpu: &'a Cpu,
    pub(super) weights: &'a Weights,
    pub(super) lora: &'a [LoraSegment<'a>],
    /// The position of each row in its sequence.
    pub(super) positions: &'a [u32],
    /// The table of the rotary embedding.
    pub(super) cos_sin: &'a [f32],
}

impl ForwardPass<'_> {
    pub(super) fn embed_tokens(&self, tokens: &[u32], x: &mut Vec<f32>) {
        let d = self.model.config.hidden_size;
        x.resize(tokens.len() * d, 0.0);
        gather_rows(self.weights.param(&self.model.layout.embed_tokens), tokens, d, x);
    }

    /// The QK norm and rotary embedding of a layer.
    pub(super) fn qk_norm_rope(&self, layer: usize) -> QkNormRope<'_> {
        QkNormRope {
            heads: self.model.config.heads(),
            weight: self.weights.param(&self.model.layout.layers[layer].qk_norm),
            epsilon: self.model.config.rms_norm_eps,
            cos_sin: self.cos_sin,
            positions: self.positions,
        }
    }

    /// Input norm, QKV projection, and QK norm with rotary embedding.
    pub(super) fn pre_attention(&self, layer: usize, x: &[f32], a: &mut LayerActivations) {
        let ForwardPass { model, cpu, weights, .. } = *self;
        let (at, packed) = (&model.layout.layers[layer], &weights.layers[layer]);
        let norm = weights.param(&at.input_layernorm);
        cpu.rms_norm(x, norm, model.config.rms_norm_eps, &mut a.input_normed, &mut a.input_rstd);
        cpu.linear(&a.input_normed, &packed.qkv_proj, &mut a.qkv);
        self.add_lora(layer, ProjectionGroup::Qkv, &a.input_normed, &mut a.qkv, &mut a.lora_a_out);
        cpu.qk_norm_rope(self.qk_norm_rope(layer), &a.qkv, &mut a.qk, &mut a.qk_rstd);
    }

    /// Output projection, post-attention norm and MLP, with both residual connections.
    pub(super) fn post_attention(&self, layer: usize, x: &[f32], a: &mut LayerActivations, y: &mut [f32]) {
        let ForwardPass { model, cpu, weights, .. } = *self;
        let (at, packed) = (&model.layout.layers[layer], &weights.layers[layer]);
        a.residual.copy_from_slice(x);
        cpu.linear_add(&a.attn_out, &packed.o_proj, &mut a.residual);
        self.add_lora(layer, ProjectionGroup::Out, &a.attn_out, &mut a.residual, &mut a.lora_a_out);

        let norm = weights.param(&at.post_attention_layernorm);
        cpu.rms_norm(&a.residual, norm, model.config.rms_norm_eps, &mut a.post_attn_normed, &mut a.post_attn_rstd);
        cpu.linear(&a.post_attn_normed, &packed.gate_up_proj, &mut a.gate_up);
        self.add_lora(layer, ProjectionGroup::GateUp, &a.post_attn_normed, &mut a.gate_up, &mut a.lora_a_out);
        cpu.swiglu(&a.gate_up, model.config.intermediate_size, &mut a.mlp_act);
        y.copy_from_slice(&a.residual);
        cpu.linear_add(&a.mlp_act, &packed.down_proj, y);
        self.add_lora(layer, ProjectionGroup::Down, &a.mlp_act, y, &mut a.lora_a_out);
    }

    /// A decoder layer over packed sequences: from `x` to `y`.
    pub(super) fn layer(&self, layer: usize, spans: &[Span], x: &[f32], a: &mut LayerActivations, y: &mut Vec<f32>) {
        let (c, heads) = (&self.model.config, self.model.config.heads());
        a.resize(c, self.positions.len());
        y.resize(x.len(), 0.0);
        self.pre_attention(layer, x, a);
        let q = Strided { data: &a.qk[..], stride: heads.qk(), first: 0 };
        let k = Strided { data: &a.qk[..], stride: heads.qk(), first: heads.out() };
        let v = Strided { data: &a.qkv[..], stride: heads.qkv(), first: heads.qk() };
        self.cpu.attention(heads, spans, [q, k, v], &mut a.attn_out, &mut a.logsumexp);
        self.post_attention(layer, x, a, y);
    }

    /// Runs all layers over a chunk. With `keep`, every layer's activations are stored for the backward pass.
    pub(super) fn layers(&self, chunk: &PackedChunk, spans: &[Span], s: &mut PackedWorkspace, keep: bool) {
        let layers = self.model.config.num_hidden_layers;
        s.hidden.resize_with(layers + 1, Vec::new);
        s.activations.resize_with(if keep { layers } else { 1 }, LayerActivations::default);
        self.embed_tokens(&chunk.tokens, &mut s.hidden[0]);
        for layer in 0..layers {
            let (before, after) = s.hidden.split_at_mut(layer + 1);
            let activations = &mut s.activations[if keep { layer } else { 0 }];
            self.layer(layer, spans, &before[layer], activations, &mut after[0]);
        }
    }
}

/// The attention spans of packed sequences: each row sees its own sequence.
pub(super) fn packed_spans(chunk: &PackedChunk) -> Vec<Span> {
    let span = |r: &Range<usize>| Span { query: r.start, query_len: r.len(), key: r.start, key_len: r.len() };
    chunk.sequences.iter().map(span).collect()
}

impl Qwen3Model {
    /// Computes the log-probability and entropy of every prediction of a chunk.
    pub(crate) fn score(
        &self,
        cpu: &Cpu,
        set: &WeightSet,
        chunk: &PackedChunk,
        s: &mut PackedWorkspace,
        out: &mut Vec<TokenLogprob>,
    ) {
        let lora = set.adapter.as_ref().map(|a| a.on(chunk.tokens.len()));
        let pass = ForwardPass {
            model: self,
            cpu,
            weights: &set.base,
            lora: lora.as_slice(),
            positions: &chunk.positions,
            cos_sin: &self.cos_sin(chunk.max_len()),
        };
        pass.layers(chunk, &packed_spans(chunk), s, false);
        pass.lm_head(chunk, s, None, None);
        out.extend_from_slice(&s.logprobs);
    }
}
