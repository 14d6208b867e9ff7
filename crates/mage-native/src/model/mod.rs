//! Qwen3, forward and backward, over [`Kernels`]. Equivalent to the implementation in `transformers`.

mod backward;
pub(crate) mod batch;
mod kv_cache;
mod lm_head;
mod lora;
mod paged_forward;
pub(crate) mod param_layout;
mod workspace;

pub(crate) use lora::{Adapter, LoraSegment};
pub(crate) use paged_forward::{PagedBatch, PagedWorkspace};
pub(crate) use workspace::PackedWorkspace;

use crate::cpu::{Kernels, Strided, TokenLogprob};
use crate::model::batch::PackedChunk;
use crate::model::param_layout::ParamLayout;
use crate::weights::hf_config::Config;
use crate::weights::lora::ProjectionGroup;
use std::sync::{Arc, Mutex, PoisonError};
use workspace::LayerActivations;

/// The model architecture on a device, without weights.
pub(crate) struct Qwen3Model<K: Kernels> {
    pub(crate) config: Config,
    pub(crate) layout: ParamLayout,
    pub(crate) kernels: K,
    rope: Mutex<Arc<RotaryEmbedding<K>>>,
}

/// The cos/sin table of the rotary position embedding.
pub(crate) struct RotaryEmbedding<K: Kernels> {
    cos_sin: K::Buffer,
    positions: usize,
    len: usize,
}

/// Model weights: the flat parameter buffer and packed GEMM operands.
pub(crate) struct Weights<K: Kernels> {
    pub(crate) flat: K::Buffer,
    layers: Vec<PackedLayer<K>>,
    lm_head: K::Packed,
}

/// Base weights with an optional LoRA adapter.
pub(crate) struct WeightSet<K: Kernels> {
    pub(crate) base: Arc<Weights<K>>,
    pub(crate) adapter: Option<Arc<Adapter<K>>>,
}

struct PackedLayer<K: Kernels> {
    qkv_proj: K::Packed,
    o_proj: K::Packed,
    gate_up_proj: K::Packed,
    down_proj: K::Packed,
}

impl<K: Kernels> Qwen3Model<K> {
    pub(crate) fn new(config: Config, kernels: K) -> Self {
        let layout = ParamLayout::new(&config);
        let empty = RotaryEmbedding { cos_sin: kernels.zeros(0), positions: 0, len: 0 };
        Qwen3Model { config, layout, kernels, rope: Mutex::new(Arc::new(empty)) }
    }

    /// Packs weights from a flat parameter buffer.
    pub(crate) fn weights(&self, flat: K::Buffer) -> Weights<K> {
        let (k, c, heads) = (&self.kernels, &self.config, self.config.heads());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let pack = |range: &std::ops::Range<usize>, outputs: usize, inputs: usize| {
            k.pack(k.get(&flat, range.clone()), outputs, inputs)
        };
        let layers = self
            .layout
            .layers
            .iter()
            .map(|l| PackedLayer {
                qkv_proj: pack(&l.qkv_proj, heads.qkv(), d),
                o_proj: pack(&l.o_proj, d, heads.out()),
                gate_up_proj: pack(&l.gate_up_proj, 2 * f, d),
                down_proj: pack(&l.down_proj, d, f),
            })
            .collect();
        let lm_head = pack(&self.layout.lm_head, c.vocab_size, d);
        Weights { flat, layers, lm_head }
    }

    /// Repacks the GEMM operands after a change of the flat buffer.
    pub(crate) fn repack(&self, w: &mut Weights<K>) {
        let k = &self.kernels;
        for (packed, at) in w.layers.iter_mut().zip(&self.layout.layers) {
            k.repack(k.get(&w.flat, at.qkv_proj.clone()), &mut packed.qkv_proj);
            k.repack(k.get(&w.flat, at.o_proj.clone()), &mut packed.o_proj);
            k.repack(k.get(&w.flat, at.gate_up_proj.clone()), &mut packed.gate_up_proj);
            k.repack(k.get(&w.flat, at.down_proj.clone()), &mut packed.down_proj);
        }
        k.repack(k.get(&w.flat, self.layout.lm_head.clone()), &mut w.lm_head);
    }

    /// The rotary embedding for at least this many positions.
    fn rope(&self, positions: usize) -> Arc<RotaryEmbedding<K>> {
        let mut rope = self.rope.lock().unwrap_or_else(PoisonError::into_inner);
        if rope.positions < positions {
            let positions = positions.next_power_of_two().max(64);
            let table = rope_table(self.config.rope_theta, self.config.head_dim, positions);
            let mut buffer = self.kernels.zeros(table.len());
            self.kernels.upload(&table, self.kernels.get_mut(&mut buffer, 0..table.len()));
            *rope = Arc::new(RotaryEmbedding { cos_sin: buffer, positions, len: table.len() });
        }
        Arc::clone(&rope)
    }

    /// Bytes of activations per token.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let (c, heads) = (&self.config, self.config.heads());
        let values = 4 * c.hidden_size + heads.qkv() + heads.qk() + heads.out() + 3 * c.intermediate_size;
        4 * c.num_hidden_layers * values
    }

    /// Input norm, QKV projection, and QK norm with rotary embedding.
    #[allow(clippy::too_many_arguments)]
    fn pre_attention(
        &self,
        k: &K,
        w: &Weights<K>,
        lora: &[LoraSegment<'_, K>],
        layer: usize,
        positions: &[u32],
        rope: &RotaryEmbedding<K>,
        x: &K::Buffer,
        a: &mut LayerActivations<K>,
    ) {
        let (c, heads, at, n) = (&self.config, self.config.heads(), &self.layout.layers[layer], positions.len());
        let d = c.hidden_size;
        k.rms_norm(
            k.get(x, 0..n * d),
            k.get(&w.flat, at.input_norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut a.input_normed, 0..n * d),
            k.get_mut(&mut a.input_rstd, 0..n),
        );
        let packed = &w.layers[layer];
        k.linear(
            k.get(&a.input_normed, 0..n * d),
            n,
            &packed.qkv_proj,
            k.get_mut(&mut a.qkv, 0..n * heads.qkv()),
            false,
        );
        self.add_lora(
            k,
            lora,
            layer,
            ProjectionGroup::Qkv,
            &a.input_normed,
            &mut a.qkv,
            &mut a.lora_a_out[ProjectionGroup::Qkv as usize],
        );
        k.qk_norm_rope(
            heads,
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&w.flat, at.qk_norm.clone()),
            c.rms_norm_eps,
            k.get(&rope.cos_sin, 0..rope.len),
            positions,
            k.get_mut(&mut a.qk, 0..n * heads.qk()),
            k.get_mut(&mut a.qk_rstd, 0..n * (heads.q + heads.kv)),
        );
    }

    /// Output projection, post-attention norm and MLP, with both residual connections.
    #[allow(clippy::too_many_arguments)]
    fn post_attention(
        &self,
        k: &K,
        w: &Weights<K>,
        lora: &[LoraSegment<'_, K>],
        layer: usize,
        n: usize,
        x: &K::Buffer,
        a: &mut LayerActivations<K>,
        y: &mut K::Buffer,
    ) {
        let (c, heads, at) = (&self.config, self.config.heads(), &self.layout.layers[layer]);
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let packed = &w.layers[layer];
        k.copy(k.get(x, 0..n * d), k.get_mut(&mut a.residual, 0..n * d));
        k.linear(k.get(&a.attn_out, 0..n * heads.out()), n, &packed.o_proj, k.get_mut(&mut a.residual, 0..n * d), true);
        self.add_lora(
            k,
            lora,
            layer,
            ProjectionGroup::Out,
            &a.attn_out,
            &mut a.residual,
            &mut a.lora_a_out[ProjectionGroup::Out as usize],
        );
        k.rms_norm(
            k.get(&a.residual, 0..n * d),
            k.get(&w.flat, at.post_attention_norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut a.post_attn_normed, 0..n * d),
            k.get_mut(&mut a.post_attn_rstd, 0..n),
        );
        k.linear(
            k.get(&a.post_attn_normed, 0..n * d),
            n,
            &packed.gate_up_proj,
            k.get_mut(&mut a.gate_up, 0..n * 2 * f),
            false,
        );
        self.add_lora(
            k,
            lora,
            layer,
            ProjectionGroup::GateUp,
            &a.post_attn_normed,
            &mut a.gate_up,
            &mut a.lora_a_out[ProjectionGroup::GateUp as usize],
        );
        k.swiglu(k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(&mut a.mlp_act, 0..n * f));
        k.copy(k.get(&a.residual, 0..n * d), k.get_mut(y, 0..n * d));
        k.linear(k.get(&a.mlp_act, 0..n * f), n, &packed.down_proj, k.get_mut(y, 0..n * d), true);
        self.add_lora(
            k,
            lora,
            layer,
            ProjectionGroup::Down,
            &a.mlp_act,
            y,
            &mut a.lora_a_out[ProjectionGroup::Down as usize],
        );
    }

    #[allow(clippy::too_many_arguments)]
    fn layer_forward(
        &self,
        k: &K,
        w: &Weights<K>,
        lora: &[LoraSegment<'_, K>],
        layer: usize,
        chunk: &PackedChunk,
        rope: &RotaryEmbedding<K>,
        x: &K::Buffer,
        a: &mut LayerActivations<K>,
        y: &mut K::Buffer,
    ) {
        let (heads, n) = (self.config.heads(), chunk.tokens.len());
        a.reserve(k, &self.config, n);
        k.reserve(y, n * self.config.hidden_size);
        self.pre_attention(k, w, lora, layer, &chunk.positions, rope, x, a);
        let (qk, qkv) = (k.get(&a.qk, 0..n * heads.qk()), k.get(&a.qkv, 0..n * heads.qkv()));
        k.attention(
            heads,
            &chunk.spans,
            Strided { data: qk, stride: heads.qk(), first: 0 },
            Strided { data: qk, stride: heads.qk(), first: heads.out() },
            Strided { data: qkv, stride: heads.qkv(), first: heads.qk() },
            k.get_mut(&mut a.attn_out, 0..n * heads.out()),
            k.get_mut(&mut a.logsumexp, 0..n * heads.q),
        );
        self.post_attention(k, w, lora, layer, n, x, a, y);
    }

    /// Runs all layers over a chunk. With `keep`, every layer's activations are stored for the backward pass.
    fn forward(
        &self,
        k: &K,
        w: &Weights<K>,
        lora: &[LoraSegment<'_, K>],
        chunk: &PackedChunk,
        s: &mut PackedWorkspace<K>,
        keep: bool,
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        let rope = self.rope(chunk.max_len());
        s.hidden.resize_with(layers + 1, || k.zeros(0));
        s.activations.resize_with(if keep { layers } else { 1 }, || LayerActivations::new(k));
        k.reserve(&mut s.hidden[0], n * d);
        k.gather(
            k.get(&w.flat, self.layout.embed_tokens.clone()),
            &chunk.tokens,
            d,
            k.get_mut(&mut s.hidden[0], 0..n * d),
        );
        for layer in 0..layers {
            let (before, after) = s.hidden.split_at_mut(layer + 1);
            let activations = &mut s.activations[if keep { layer } else { 0 }];
            self.layer_forward(k, w, lora, layer, chunk, &rope, &before[layer], activations, &mut after[0]);
        }
    }

    /// Computes the log-probability and entropy of every prediction of a chunk.
    pub(crate) fn score(
        &self,
        k: &K,
        w: &WeightSet<K>,
        chunk: &PackedChunk,
        s: &mut PackedWorkspace<K>,
        out: &mut Vec<TokenLogprob>,
    ) {
        let lora = w.adapter.as_ref().map(|a| a.on(chunk.tokens.len()));
        self.forward(k, &w.base, lora.as_slice(), chunk, s, false);
        self.lm_head(k, &w.base, chunk, s, None::<(Option<&mut K::Buffer>, fn(usize, TokenLogprob) -> (f32, f32))>);
        out.extend_from_slice(&s.logprobs);
    }
}

/// Cosines and sines per position, rounded as in `transformers`: at large positions a different rounding of the frequency gives
/// a different angle.
pub(crate) fn rope_table(theta: f64, dim: usize, positions: usize) -> Vec<f32> {
    let half = dim / 2;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| {
            let exponent = (2 * i) as f32 / dim as f32;
            1.0 / (f64::from(theta as f32).powf(f64::from(exponent)) as f32)
        })
        .collect();
    let mut table = Vec::with_capacity(positions * dim);
    for p in 0..positions {
        let angles = frequencies.iter().map(|f| f64::from(p as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| a.sin() as f32));
    }
    table
}
