//! Incremental decoding of one sequence with a contiguous KV cache.

use super::forward::ForwardPass;
use super::workspace::{LayerActivations, PackedWorkspace};
use super::{Qwen3Model, WeightSet};
use crate::cpu::{Span, Strided};

/// Keys and values of one sequence by layer.
pub(crate) struct KvCache {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    pub(crate) len: usize,
    capacity: usize,
}

impl Qwen3Model {
    /// An empty KV cache for one sequence of at most `capacity` tokens.
    pub(crate) fn kv_cache(&self, capacity: usize) -> KvCache {
        let (heads, layers) = (self.config.heads(), self.config.num_hidden_layers);
        let buffers = || (0..layers).map(|_| Vec::with_capacity(capacity * heads.kv * heads.dim)).collect();
        KvCache { keys: buffers(), values: buffers(), len: 0, capacity }
    }

    /// Appends tokens to a sequence and computes the logits after the last.
    pub(crate) fn extend(
        &self,
        set: &WeightSet,
        tokens: &[u32],
        cache: &mut KvCache,
        s: &mut PackedWorkspace,
        logits: &mut Vec<f32>,
    ) {
        let (c, heads, n) = (&self.config, self.config.heads(), tokens.len());
        let (d, layers, kv_width) = (c.hidden_size, c.num_hidden_layers, heads.kv * heads.dim);
        let end = cache.len + n;
        assert!(n > 0 && end <= cache.capacity, "a cache of {} tokens cannot hold {end}", cache.capacity);
        let positions: Vec<u32> = (cache.len as u32..end as u32).collect();
        let lora = set.adapter.as_ref().map(|a| a.on(n));
        let pass = ForwardPass {
            model: self,
            cpu: &self.cpu,
            weights: &set.base,
            lora: lora.as_slice(),
            positions: &positions,
            cos_sin: &self.cos_sin(end),
        };
        let spans = [Span { query: 0, query_len: n, key: 0, key_len: end }];
        s.hidden.resize_with(layers + 1, Vec::new);
        s.activations.resize_with(1, LayerActivations::default);
        let a = &mut s.activations[0];
        a.resize(c, n);
        pass.embed_tokens(tokens, &mut s.hidden[0]);
        for layer in 0..layers {
            let (before, after) = s.hidden.split_at_mut(layer + 1);
            let (x, y) = (&before[layer], &mut after[0]);
            y.resize(n * d, 0.0);
            pass.pre_attention(layer, x, a);
            let (keys, values) = (&mut cache.keys[layer], &mut cache.values[layer]);
            for (qk, qkv) in a.qk.chunks_exact(heads.qk()).zip(a.qkv.chunks_exact(heads.qkv())) {
                keys.extend_from_slice(&qk[heads.out()..]);
                values.extend_from_slice(&qkv[heads.qk()..]);
            }
            let q = Strided { data: &a.qk[..], stride: heads.qk(), first: 0 };
            let k = Strided { data: &keys[..], stride: kv_width, first: 0 };
            let v = Strided { data: &values[..], stride: kv_width, first: 0 };
            self.cpu.attention(heads, &spans, [q, k, v], &mut a.attn_out, &mut a.logsumexp);
            pass.post_attention(layer, x, a, y);
        }
        cache.len = end;
        let last = &s.hidden[layers][(n - 1) * d..];
        let norm = set.base.param(&self.layout.final_norm);
        s.selected_normed.resize(d, 0.0);
        s.selected_rstd.resize(1, 0.0);
        self.cpu.rms_norm(last, norm, c.rms_norm_eps, &mut s.selected_normed, &mut s.selected_rstd);
        logits.resize(c.vocab_size, 0.0);
        self.cpu.linear(&s.selected_normed, &set.base.lm_head, logits);
    }
}
