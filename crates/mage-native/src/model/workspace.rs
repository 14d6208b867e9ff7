//! Activation and gradient buffers of a pass.

use crate::cpu::{Kernels, TokenLogprob};
use crate::weights::hf_config::Config;
use crate::weights::lora::PROJECTION_GROUPS;

/// The activations of a layer that its backward pass needs.
pub(super) struct LayerActivations<K: Kernels> {
    pub(super) input_rstd: K::Buffer,
    pub(super) input_normed: K::Buffer,
    pub(super) qkv: K::Buffer,
    pub(super) qk_rstd: K::Buffer,
    pub(super) qk: K::Buffer,
    pub(super) attn_out: K::Buffer,
    pub(super) logsumexp: K::Buffer,
    pub(super) residual: K::Buffer,
    pub(super) post_attn_rstd: K::Buffer,
    pub(super) post_attn_normed: K::Buffer,
    pub(super) gate_up: K::Buffer,
    pub(super) mlp_act: K::Buffer,
    /// Scaled output of LoRA A, by projection group.
    pub(super) lora_a_out: [K::Buffer; PROJECTION_GROUPS.len()],
}

impl<K: Kernels> LayerActivations<K> {
    pub(super) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        LayerActivations {
            input_rstd: b(),
            input_normed: b(),
            qkv: b(),
            qk_rstd: b(),
            qk: b(),
            attn_out: b(),
            logsumexp: b(),
            residual: b(),
            post_attn_rstd: b(),
            post_attn_normed: b(),
            gate_up: b(),
            mlp_act: b(),
            lora_a_out: std::array::from_fn(|_| b()),
        }
    }

    pub(super) fn reserve(&mut self, k: &K, c: &Config, rows: usize) {
        let heads = c.heads();
        let sizes = [
            (&mut self.input_rstd, 1),
            (&mut self.input_normed, c.hidden_size),
            (&mut self.qkv, heads.qkv()),
            (&mut self.qk_rstd, heads.q + heads.kv),
            (&mut self.qk, heads.qk()),
            (&mut self.attn_out, heads.out()),
            (&mut self.logsumexp, heads.q),
            (&mut self.residual, c.hidden_size),
            (&mut self.post_attn_rstd, 1),
            (&mut self.post_attn_normed, c.hidden_size),
            (&mut self.gate_up, 2 * c.intermediate_size),
            (&mut self.mlp_act, c.intermediate_size),
        ];
        for (buffer, width) in sizes {
            k.reserve(buffer, rows * width);
        }
    }
}

/// Buffers of a pass over a chunk, reused for later chunks.
pub(crate) struct PackedWorkspace<K: Kernels> {
    /// Hidden states: the input of each layer and the output of the last.
    pub(super) hidden: Vec<K::Buffer>,
    /// One per layer, or a single one if layers are recomputed or there is no backward pass.
    pub(super) activations: Vec<LayerActivations<K>>,
    pub(super) dhidden: K::Buffer,
    pub(super) dnormed: K::Buffer,
    pub(super) dgate_up: K::Buffer,
    pub(super) dmlp_act: K::Buffer,
    pub(super) dqkv: K::Buffer,
    pub(super) dqk: K::Buffer,
    pub(super) dattn_out: K::Buffer,
    pub(super) dlora_a_out: K::Buffer,
    pub(super) selected: K::Buffer,
    pub(super) selected_normed: K::Buffer,
    pub(super) selected_rstd: K::Buffer,
    pub(super) dselected: K::Buffer,
    pub(super) dselected_normed: K::Buffer,
    pub(super) logits: K::Buffer,
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) dlogprobs: Vec<(f32, f32)>,
    pub(super) rows: Vec<u32>,
}

impl<K: Kernels> PackedWorkspace<K> {
    pub(crate) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        PackedWorkspace {
            hidden: Vec::new(),
            activations: Vec::new(),
            dhidden: b(),
            dnormed: b(),
            dgate_up: b(),
            dmlp_act: b(),
            dqkv: b(),
            dqk: b(),
            dattn_out: b(),
            dlora_a_out: b(),
            selected: b(),
            selected_normed: b(),
            selected_rstd: b(),
            dselected: b(),
            dselected_normed: b(),
            logits: b(),
            logprobs: Vec::new(),
            dlogprobs: Vec::new(),
            rows: Vec::new(),
        }
    }
}
