//! Incremental decoding of one sequence with a contiguous KV cache.

use super::workspace::{LayerActivations, PackedWorkspace};
use super::{Qwen3Model, WeightSet};
use crate::cpu::{Kernels, Span, Strided};

/// Keys and values of one sequence by layer.
pub(crate) struct KvCache<K: Kernels> {
    keys: Vec<K::Buffer>,
    values: Vec<K::Buffer>,
    pub(crate) len: usize,
    capacity: usize,
}

impl<K: Kernels> Qwen3Model<K> {
    /// An empty KV cache for one sequence of at most `capacity` tokens.
    pub(crate) fn kv_cache(&self, capacity: usize) -> KvCache<K> {
        let (heads, layers) = (self.config.heads(), self.config.num_hidden_layers);
        let buffers = || (0..layers).map(|_| self.kernels.zeros(capacity * heads.kv * heads.dim)).collect();
        KvCache { keys: buffers(), values: buffers(), len: 0, capacity }
    }

    /// Appends tokens to a sequence and computes the logits after the last.
    pub(crate) fn extend(
        &self,
        set: &WeightSet<K>,
        tokens: &[u32],
        cache: &mut KvCache<K>,
        s: &mut PackedWorkspace<K>,
        logits: &mut Vec<f32>,
    ) {
        let (k, c, heads, n) = (&self.kernels, &self.config, self.config.heads(), tokens.len());
        let (d, v, w) = (c.hidden_size, c.vocab_size, &set.base);
        let lora = set.adapter.as_ref().map(|a| a.on(n));
        let lora = lora.as_slice();
        let width = heads.kv * heads.dim;
        let end = cache.len + n;
        assert!(n > 0 && end <= cache.capacity, "a cache of {} tokens cannot hold {end}", cache.capacity);
        let rope = self.rope(end);
        let positions: Vec<u32> = (cache.len as u32..end as u32).collect();
        let spans = [Span { query: 0, query_len: n, key: 0, key_len: end }];
        s.hidden.resize_with(c.num_hidden_layers + 1, || k.zeros(0));
        s.activations.resize_with(1, || LayerActivations::new(k));
        s.activations[0].reserve(k, c, n);
        k.reserve(&mut s.hidden[0], n * d);
        k.gather(k.get(&w.flat, self.layout.embed_tokens.clone()), tokens, d, k.get_mut(&mut s.hidden[0], 0..n * d));
        for layer in 0..c.num_hidden_layers {
            let (before, after) = s.hidden.split_at_mut(layer + 1);
            let (x, y) = (&before[layer], &mut after[0]);
            k.reserve(y, n * d);
            let a = &mut s.activations[0];
            self.pre_attention(k, w, lora, layer, &positions, &rope, x, a);
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
                k.get_mut(&mut a.attn_out, 0..n * heads.out()),
                k.get_mut(&mut a.logsumexp, 0..n * heads.q),
            );
            self.post_attention(k, w, lora, layer, n, x, a, y);
        }
        cache.len = end;
        for (buffer, len) in [(&mut s.selected_normed, d), (&mut s.selected_rstd, 1), (&mut s.logits, v)] {
            k.reserve(buffer, len);
        }
        k.rms_norm(
            k.get(&s.hidden[c.num_hidden_layers], (n - 1) * d..n * d),
            k.get(&w.flat, self.layout.final_norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut s.selected_normed, 0..d),
            k.get_mut(&mut s.selected_rstd, 0..1),
        );
        k.linear(k.get(&s.selected_normed, 0..d), 1, &w.lm_head, k.get_mut(&mut s.logits, 0..v), false);
        logits.resize(v, 0.0);
        k.download(k.get(&s.logits, 0..v), logits);
    }
}
