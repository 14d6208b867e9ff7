//! How does each parameter bear on the loss?

use super::workspace::Workspace;
use super::{Adapter, Model, RotaryEmbedding, Weights};
use crate::cpu::{Kernels, TokenLogprob};
use crate::model::batch::Chunk;
use crate::model::param_layout::LayerLayout;
use crate::weights::lora::LoraGroup;
use std::ops::Range;

impl<K: Kernels> Model<K> {
    /// Adds the gradient of a chunk's loss to `grads`: of the model's own parameters, or, where it carries an adapter, of
    /// that alone. `cost` is told what the model says about each prediction and answers with the loss's slopes by
    /// log-probability and entropy.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward_backward(
        &self,
        k: &K,
        (w, adapter): (&Weights<K>, Option<&Adapter<K>>),
        chunk: &Chunk,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        recompute: bool,
        cost: impl FnMut(usize, TokenLogprob) -> (f32, f32),
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        let worn = adapter.map(|a| a.on(n));
        let worn = worn.as_slice();
        self.forward(k, w, worn, chunk, s, !recompute);
        k.reserve(&mut s.dstate, n * d);
        k.fill(k.get_mut(&mut s.dstate, 0..n * d), 0.0);
        self.lm_head(k, w, chunk, s, Some((adapter.is_none().then_some(&mut *grads), cost)));
        let turns = self.turns(chunk.longest());
        for layer in (0..layers).rev() {
            if recompute {
                let (before, after) = s.states.split_at_mut(layer + 1);
                self.layer(k, w, worn, layer, chunk, &turns, &before[layer], &mut s.acts[0], &mut after[0]);
            }
            self.layer_grad(k, (w, adapter), layer, chunk, &turns, s, grads, if recompute { 0 } else { layer });
        }
        if adapter.is_none() {
            let to = k.get_mut(grads, self.layout.embedding.clone());
            k.scatter_add(k.get(&s.dstate, 0..n * d), &chunk.tokens, d, to);
        }
    }

    /// Takes the gradient by a layer's output in `dstate` to that by its input, and adds to the gradients of what learns.
    #[allow(clippy::too_many_arguments)]
    fn layer_grad(
        &self,
        k: &K,
        (w, adapter): (&Weights<K>, Option<&Adapter<K>>),
        layer: usize,
        chunk: &Chunk,
        turns: &RotaryEmbedding<K>,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        acts: usize,
    ) {
        let (c, heads, n) = (&self.config, self.config.heads(), chunk.tokens.len());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let at: &LayerLayout = &self.layout.layers[layer];
        let param = |range: &Range<usize>| k.get(&w.flat, range.clone());
        let Workspace { states, acts: all, dstate, dnormed, dgate_up, dgated, dqkv, dqk, dattended, dlow, .. } = s;
        let a = &all[acts];
        for (buffer, width) in [
            (&mut *dnormed, d),
            (&mut *dgate_up, 2 * f),
            (&mut *dgated, f),
            (&mut *dqkv, heads.qkv()),
            (&mut *dqk, heads.qk()),
            (&mut *dattended, heads.out()),
        ] {
            k.reserve(buffer, n * width);
        }
        // One product on its way back: from `dy` to `dx`, and to whatever learns there.
        let mut product =
            |group: LoraGroup, x: &K::Buffer, dy: &K::Buffer, dx: &mut K::Buffer, grads: &mut K::Buffer| {
                let (inputs, outputs, frozen) = (group.inputs(c), group.outputs(c), group.frozen(at));
                let (from, shape) = (k.get(dy, 0..n * outputs), (n, outputs, inputs));
                if adapter.is_none() {
                    k.linear_weight_grad(from, k.get(x, 0..n * inputs), shape, k.get_mut(grads, frozen.clone()));
                }
                k.linear_input_grad(from, param(frozen), shape, k.get_mut(dx, 0..n * inputs), false);
                if let Some(adapter) = adapter {
                    let low = &a.lows[group as usize];
                    self.adapt_grad(k, adapter, layer, group, n, x, low, dy, dx, dlow, grads);
                }
            };

        product(LoraGroup::Down, &a.gated, dstate, dgated, grads);
        k.swiglu_grad(k.get(dgated, 0..n * f), k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(dgate_up, 0..n * 2 * f));
        product(LoraGroup::GateUp, &a.normed2, dgate_up, dnormed, grads);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&a.middle, 0..n * d),
            param(&at.norm2),
            k.get(&a.inverse2, 0..n),
            k.get_mut(dstate, 0..n * d),
            adapter.is_none().then(|| k.get_mut(grads, at.norm2.clone())),
        );

        product(LoraGroup::Out, &a.attended, dstate, dattended, grads);
        k.attention_grad(
            heads,
            &chunk.spans,
            k.get(&a.qk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&a.attended, 0..n * heads.out()),
            k.get(&a.logsumexp, 0..n * heads.q),
            k.get(dattended, 0..n * heads.out()),
            k.get_mut(dqk, 0..n * heads.qk()),
            k.get_mut(dqkv, 0..n * heads.qkv()),
        );
        k.head_norm_rope_grad(
            heads,
            k.get(dqk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            param(&at.head_norms),
            k.get(&turns.buffer, 0..turns.len),
            &chunk.positions,
            k.get(&a.head_inverse, 0..n * (heads.q + heads.kv)),
            k.get_mut(dqkv, 0..n * heads.qkv()),
            adapter.is_none().then(|| k.get_mut(grads, at.head_norms.clone())),
        );
        product(LoraGroup::Qkv, &a.normed1, dqkv, dnormed, grads);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&states[layer], 0..n * d),
            param(&at.norm1),
            k.get(&a.inverse1, 0..n),
            k.get_mut(dstate, 0..n * d),
            adapter.is_none().then(|| k.get_mut(grads, at.norm1.clone())),
        );
    }
}
