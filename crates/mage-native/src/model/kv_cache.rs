//! How is a sequence continued without going over it again?

use super::workspace::{LayerActivations, Workspace};
use super::{Model, WeightSet};
use crate::cpu::{Kernels, Span, Strided};

/// Keys and values of one sequence, per layer.
pub(crate) struct Cache<K: Kernels> {
    keys: Vec<K::Buffer>,
    values: Vec<K::Buffer>,
    pub(crate) len: usize,
    capacity: usize,
}

impl<K: Kernels> Model<K> {
    /// An empty cache for one sequence of at most `capacity` tokens.
    pub(crate) fn cache(&self, capacity: usize) -> Cache<K> {
        let (heads, layers) = (self.config.heads(), self.config.num_hidden_layers);
        let buffers = || (0..layers).map(|_| self.kernels.zeros(capacity * heads.kv * heads.dim)).collect();
        Cache { keys: buffers(), values: buffers(), len: 0, capacity }
    }

    /// Takes more tokens of a sequence into its cache and gives the logits after the last.
    pub(crate) fn extend(
        &self,
        set: &WeightSet<K>,
        tokens: &[u32],
        cache: &mut Cache<K>,
        s: &mut Workspace<K>,
        logits: &mut Vec<f32>,
    ) {
        let (k, c, heads, n) = (&self.kernels, &self.config, self.config.heads(), tokens.len());
        let (d, v, w) = (c.hidden_size, c.vocab_size, &set.base);
        let worn = set.adapter.as_ref().map(|a| a.on(n));
        let worn = worn.as_slice();
        let width = heads.kv * heads.dim;
        let end = cache.len + n;
        assert!(n > 0 && end <= cache.capacity, "cache of {} tokens asked to hold {end}", cache.capacity);
        let turns = self.turns(end);
        let positions: Vec<u32> = (cache.len as u32..end as u32).collect();
        let spans = [Span { query: 0, query_len: n, key: 0, key_len: end }];
        s.states.resize_with(c.num_hidden_layers + 1, || k.zeros(0));
        s.acts.resize_with(1, || LayerActivations::new(k));
        s.acts[0].reserve(k, c, n);
        k.reserve(&mut s.states[0], n * d);
        k.gather(k.get(&w.flat, self.layout.embedding.clone()), tokens, d, k.get_mut(&mut s.states[0], 0..n * d));
        for layer in 0..c.num_hidden_layers {
            let (before, after) = s.states.split_at_mut(layer + 1);
            let (x, y) = (&before[layer], &mut after[0]);
            k.reserve(y, n * d);
            let a = &mut s.acts[0];
            self.project(k, w, worn, layer, &positions, &turns, x, a);
            for i in 0..n {
                let slot = (cache.len + i) * width..(cache.len + i + 1) * width;
                let key = i * heads.qk() + heads.out()..(i + 1) * heads.qk();
                let value = i * heads.qkv() + heads.qk()..(i + 1) * heads.qkv();
                k.copy(k.get(&a.qk, key), k.get_mut(&mut cache.keys[layer], slot.clone()));
                k.copy(k.get(&a.qkv, value), k.get_mut(&mut cache.values[layer], slot));
            }
            k.attention(
                heads,
                &spans,
                Strided { data: k.get(&a.qk, 0..n * heads.qk()), stride: heads.qk(), first: 0 },
                Strided { data: k.get(&cache.keys[layer], 0..end * width), stride: width, first: 0 },
                Strided { data: k.get(&cache.values[layer], 0..end * width), stride: width, first: 0 },
                k.get_mut(&mut a.attended, 0..n * heads.out()),
                k.get_mut(&mut a.logsumexp, 0..n * heads.q),
            );
            self.finish(k, w, worn, layer, n, x, a, y);
        }
        cache.len = end;
        for (buffer, len) in [(&mut s.picked_normed, d), (&mut s.picked_inverse, 1), (&mut s.logits, v)] {
            k.reserve(buffer, len);
        }
        k.norm(
            k.get(&s.states[c.num_hidden_layers], (n - 1) * d..n * d),
            k.get(&w.flat, self.layout.norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut s.picked_normed, 0..d),
            k.get_mut(&mut s.picked_inverse, 0..1),
        );
        k.linear(k.get(&s.picked_normed, 0..d), 1, &w.head, k.get_mut(&mut s.logits, 0..v), false);
        logits.resize(v, 0.0);
        k.download(k.get(&s.logits, 0..v), logits);
    }
}
