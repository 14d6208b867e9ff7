//! The backward pass.

use super::workspace::PackedWorkspace;
use super::{Adapter, Qwen3Model, RotaryEmbedding, Weights};
use crate::cpu::{Kernels, TokenLogprob};
use crate::model::batch::PackedChunk;
use crate::model::param_layout::LayerLayout;
use crate::weights::lora::ProjectionGroup;
use std::ops::Range;

impl<K: Kernels> Qwen3Model<K> {
    /// Adds the gradient of a chunk's loss to `grads`: of the base parameters, or, with an adapter, of the adapter alone.
    /// `cost` receives each prediction's log-probability and entropy and returns the derivatives of the loss by both.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward_backward(
        &self,
        k: &K,
        (w, adapter): (&Weights<K>, Option<&Adapter<K>>),
        chunk: &PackedChunk,
        s: &mut PackedWorkspace<K>,
        grads: &mut K::Buffer,
        recompute: bool,
        cost: impl FnMut(usize, TokenLogprob) -> (f32, f32),
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        let lora = adapter.map(|a| a.on(n));
        let lora = lora.as_slice();
        self.forward(k, w, lora, chunk, s, !recompute);
        k.reserve(&mut s.dhidden, n * d);
        k.fill(k.get_mut(&mut s.dhidden, 0..n * d), 0.0);
        self.lm_head(k, w, chunk, s, Some((adapter.is_none().then_some(&mut *grads), cost)));
        let rope = self.rope(chunk.max_len());
        for layer in (0..layers).rev() {
            if recompute {
                let (before, after) = s.hidden.split_at_mut(layer + 1);
                self.layer_forward(
                    k,
                    w,
                    lora,
                    layer,
                    chunk,
                    &rope,
                    &before[layer],
                    &mut s.activations[0],
                    &mut after[0],
                );
            }
            self.layer_backward(k, (w, adapter), layer, chunk, &rope, s, grads, if recompute { 0 } else { layer });
        }
        if adapter.is_none() {
            let to = k.get_mut(grads, self.layout.embed_tokens.clone());
            k.scatter_add(k.get(&s.dhidden, 0..n * d), &chunk.tokens, d, to);
        }
    }

    /// Backward pass of a layer: replaces the output gradient in `dhidden` by the input gradient and adds to `grads`.
    #[allow(clippy::too_many_arguments)]
    fn layer_backward(
        &self,
        k: &K,
        (w, adapter): (&Weights<K>, Option<&Adapter<K>>),
        layer: usize,
        chunk: &PackedChunk,
        rope: &RotaryEmbedding<K>,
        s: &mut PackedWorkspace<K>,
        grads: &mut K::Buffer,
        activations: usize,
    ) {
        let (c, heads, n) = (&self.config, self.config.heads(), chunk.tokens.len());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let at: &LayerLayout = &self.layout.layers[layer];
        let param = |range: &Range<usize>| k.get(&w.flat, range.clone());
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
            k.reserve(buffer, n * width);
        }
        // Backward pass of a projection group: from `dy` to `dx` and the weight gradients.
        let mut projection_backward =
            |group: ProjectionGroup, x: &K::Buffer, dy: &K::Buffer, dx: &mut K::Buffer, grads: &mut K::Buffer| {
                let (inputs, outputs, frozen) = (group.inputs(c), group.outputs(c), group.frozen(at));
                let (from, shape) = (k.get(dy, 0..n * outputs), (n, outputs, inputs));
                if adapter.is_none() {
                    k.linear_weight_grad(from, k.get(x, 0..n * inputs), shape, k.get_mut(grads, frozen.clone()));
                }
                k.linear_input_grad(from, param(frozen), shape, k.get_mut(dx, 0..n * inputs), false);
                if let Some(adapter) = adapter {
                    let lora_a_out = &a.lora_a_out[group as usize];
                    self.add_lora_grad(k, adapter, layer, group, n, x, lora_a_out, dy, dx, dlora_a_out, grads);
                }
            };

        projection_backward(ProjectionGroup::Down, &a.mlp_act, dhidden, dmlp_act, grads);
        k.swiglu_grad(k.get(dmlp_act, 0..n * f), k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(dgate_up, 0..n * 2 * f));
        projection_backward(ProjectionGroup::GateUp, &a.post_attn_normed, dgate_up, dnormed, grads);
        k.rms_norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&a.residual, 0..n * d),
            param(&at.post_attention_norm),
            k.get(&a.post_attn_rstd, 0..n),
            k.get_mut(dhidden, 0..n * d),
            adapter.is_none().then(|| k.get_mut(grads, at.post_attention_norm.clone())),
        );

        projection_backward(ProjectionGroup::Out, &a.attn_out, dhidden, dattn_out, grads);
        k.attention_grad(
            heads,
            &chunk.spans,
            k.get(&a.qk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&a.attn_out, 0..n * heads.out()),
            k.get(&a.logsumexp, 0..n * heads.q),
            k.get(dattn_out, 0..n * heads.out()),
            k.get_mut(dqk, 0..n * heads.qk()),
            k.get_mut(dqkv, 0..n * heads.qkv()),
        );
        k.qk_norm_rope_grad(
            heads,
            k.get(dqk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            param(&at.qk_norm),
            k.get(&rope.cos_sin, 0..rope.len),
            &chunk.positions,
            k.get(&a.qk_rstd, 0..n * (heads.q + heads.kv)),
            k.get_mut(dqkv, 0..n * heads.qkv()),
            adapter.is_none().then(|| k.get_mut(grads, at.qk_norm.clone())),
        );
        projection_backward(ProjectionGroup::Qkv, &a.input_normed, dqkv, dnormed, grads);
        k.rms_norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&hidden[layer], 0..n * d),
            param(&at.input_norm),
            k.get(&a.input_rstd, 0..n),
            k.get_mut(dhidden, 0..n * d),
            adapter.is_none().then(|| k.get_mut(grads, at.input_norm.clone())),
        );
    }
}
