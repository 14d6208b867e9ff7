//! How does each parameter bear on the loss?

use super::workspace::Workspace;
use super::{Model, Turns, Weights};
use crate::batch::Chunk;
use crate::kernels::{Choice, Kernels};
use crate::layout::LayerAt;

impl<K: Kernels> Model<K> {
    /// Adds the gradient of a chunk's loss to `grads`. `cost` is told what the model says about each prediction and answers
    /// with the loss's slopes by log-probability and entropy.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn forward_backward(
        &self,
        k: &K,
        w: &Weights<K>,
        chunk: &Chunk,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        recompute: bool,
        cost: impl FnMut(usize, Choice) -> (f32, f32),
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        self.forward(k, w, chunk, s, !recompute);
        k.reserve(&mut s.dstate, n * d);
        k.fill(k.get_mut(&mut s.dstate, 0..n * d), 0.0);
        self.last_layer(k, w, chunk, s, Some((grads, cost)));
        let turns = self.turns(chunk.longest());
        for layer in (0..layers).rev() {
            if recompute {
                let (before, after) = s.states.split_at_mut(layer + 1);
                self.layer(k, w, layer, chunk, &turns, &before[layer], &mut s.acts[0], &mut after[0]);
            }
            self.layer_grad(k, w, layer, chunk, &turns, s, grads, if recompute { 0 } else { layer });
        }
        k.scatter_add(k.get(&s.dstate, 0..n * d), &chunk.tokens, d, k.get_mut(grads, self.layout.embedding.clone()));
    }

    /// Takes the gradient by a layer's output in `dstate` to that by its input, and adds to its parameters' gradients.
    #[allow(clippy::too_many_arguments)]
    fn layer_grad(
        &self,
        k: &K,
        w: &Weights<K>,
        layer: usize,
        chunk: &Chunk,
        turns: &Turns<K>,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        acts: usize,
    ) {
        let (c, heads, n) = (&self.config, self.config.heads(), chunk.tokens.len());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let at: &LayerAt = &self.layout.layers[layer];
        let param = |range: &std::ops::Range<usize>| k.get(&w.flat, range.clone());
        let Workspace { states, acts: all, dstate, dnormed, dgate_up, dgated, dqkv, dqk, dattended, .. } = s;
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

        let dy = k.get(dstate, 0..n * d);
        k.linear_weight_grad(dy, k.get(&a.gated, 0..n * f), (n, d, f), k.get_mut(grads, at.down.clone()));
        k.linear_input_grad(dy, param(&at.down), (n, d, f), k.get_mut(dgated, 0..n * f), false);
        k.swiglu_grad(k.get(dgated, 0..n * f), k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(dgate_up, 0..n * 2 * f));
        let dgu = k.get(dgate_up, 0..n * 2 * f);
        k.linear_weight_grad(dgu, k.get(&a.normed2, 0..n * d), (n, 2 * f, d), k.get_mut(grads, at.gate_up.clone()));
        k.linear_input_grad(dgu, param(&at.gate_up), (n, 2 * f, d), k.get_mut(dnormed, 0..n * d), false);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&a.middle, 0..n * d),
            param(&at.norm2),
            k.get(&a.inverse2, 0..n),
            k.get_mut(dstate, 0..n * d),
            k.get_mut(grads, at.norm2.clone()),
        );

        let dmiddle = k.get(dstate, 0..n * d);
        let wide = heads.out();
        k.linear_weight_grad(dmiddle, k.get(&a.attended, 0..n * wide), (n, d, wide), k.get_mut(grads, at.out.clone()));
        k.linear_input_grad(dmiddle, param(&at.out), (n, d, wide), k.get_mut(dattended, 0..n * wide), false);
        k.attention_grad(
            heads,
            &chunk.spans,
            k.get(&a.qk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&a.attended, 0..n * wide),
            k.get(&a.log_sums, 0..n * heads.q),
            k.get(dattended, 0..n * wide),
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
            k.get_mut(grads, at.head_norms.clone()),
        );
        let wide = heads.qkv();
        let d_in = k.get(dqkv, 0..n * wide);
        k.linear_weight_grad(d_in, k.get(&a.normed1, 0..n * d), (n, wide, d), k.get_mut(grads, at.qkv.clone()));
        k.linear_input_grad(d_in, param(&at.qkv), (n, wide, d), k.get_mut(dnormed, 0..n * d), false);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&states[layer], 0..n * d),
            param(&at.norm1),
            k.get(&a.inverse1, 0..n),
            k.get_mut(dstate, 0..n * d),
            k.get_mut(grads, at.norm1.clone()),
        );
    }
}
