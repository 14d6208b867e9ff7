//! What does a pass keep in memory?

use crate::cpu::{Kernels, TokenLogprob};
use crate::weights::hf_config::Config;
use crate::weights::lora::LORA_GROUPS;

/// What a layer remembers for its backward pass.
pub(super) struct LayerActivations<K: Kernels> {
    pub(super) inverse1: K::Buffer,
    pub(super) normed1: K::Buffer,
    pub(super) qkv: K::Buffer,
    pub(super) head_inverse: K::Buffer,
    pub(super) qk: K::Buffer,
    pub(super) attended: K::Buffer,
    pub(super) logsumexp: K::Buffer,
    pub(super) middle: K::Buffer,
    pub(super) inverse2: K::Buffer,
    pub(super) normed2: K::Buffer,
    pub(super) gate_up: K::Buffer,
    pub(super) gated: K::Buffer,
    /// By group: an adapter's thin rows.
    pub(super) lows: [K::Buffer; LORA_GROUPS.len()],
}

impl<K: Kernels> LayerActivations<K> {
    pub(super) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        LayerActivations {
            inverse1: b(),
            normed1: b(),
            qkv: b(),
            head_inverse: b(),
            qk: b(),
            attended: b(),
            logsumexp: b(),
            middle: b(),
            inverse2: b(),
            normed2: b(),
            gate_up: b(),
            gated: b(),
            lows: std::array::from_fn(|_| b()),
        }
    }

    pub(super) fn reserve(&mut self, k: &K, c: &Config, rows: usize) {
        let heads = c.heads();
        let sizes = [
            (&mut self.inverse1, 1),
            (&mut self.normed1, c.hidden_size),
            (&mut self.qkv, heads.qkv()),
            (&mut self.head_inverse, heads.q + heads.kv),
            (&mut self.qk, heads.qk()),
            (&mut self.attended, heads.out()),
            (&mut self.logsumexp, heads.q),
            (&mut self.middle, c.hidden_size),
            (&mut self.inverse2, 1),
            (&mut self.normed2, c.hidden_size),
            (&mut self.gate_up, 2 * c.intermediate_size),
            (&mut self.gated, c.intermediate_size),
        ];
        for (buffer, width) in sizes {
            k.reserve(buffer, rows * width);
        }
    }
}

/// Everything a pass over a chunk needs besides weights, kept from one chunk to the next.
pub(crate) struct Workspace<K: Kernels> {
    /// The input of each layer, and the output of the last.
    pub(super) states: Vec<K::Buffer>,
    /// One per layer, or a single one where layers are computed again in the backward pass (or there is none).
    pub(super) acts: Vec<LayerActivations<K>>,
    pub(super) dstate: K::Buffer,
    pub(super) dnormed: K::Buffer,
    pub(super) dgate_up: K::Buffer,
    pub(super) dgated: K::Buffer,
    pub(super) dqkv: K::Buffer,
    pub(super) dqk: K::Buffer,
    pub(super) dattended: K::Buffer,
    pub(super) dlow: K::Buffer,
    pub(super) picked: K::Buffer,
    pub(super) picked_normed: K::Buffer,
    pub(super) picked_inverse: K::Buffer,
    pub(super) dpicked: K::Buffer,
    pub(super) dpicked_normed: K::Buffer,
    pub(super) logits: K::Buffer,
    pub(super) choices: Vec<TokenLogprob>,
    pub(super) slopes: Vec<(f32, f32)>,
    pub(super) rows: Vec<u32>,
}

impl<K: Kernels> Workspace<K> {
    pub(crate) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        Workspace {
            states: Vec::new(),
            acts: Vec::new(),
            dstate: b(),
            dnormed: b(),
            dgate_up: b(),
            dgated: b(),
            dqkv: b(),
            dqk: b(),
            dattended: b(),
            dlow: b(),
            picked: b(),
            picked_normed: b(),
            picked_inverse: b(),
            dpicked: b(),
            dpicked_normed: b(),
            logits: b(),
            choices: Vec::new(),
            slopes: Vec::new(),
            rows: Vec::new(),
        }
    }
}
