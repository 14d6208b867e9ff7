//! Activation and gradient buffers of a pass.

use crate::weights::hf_config::Config;
use mage_engine::model::{ProjectionGroup, TokenLogprob};

/// The activations of a layer that its backward pass needs.
#[derive(Default)]
pub(super) struct LayerActivations {
    pub(super) input_rstd: Vec<f32>,
    pub(super) input_normed: Vec<f32>,
    pub(super) qkv: Vec<f32>,
    pub(super) qk_rstd: Vec<f32>,
    pub(super) qk: Vec<f32>,
    pub(super) attn_out: Vec<f32>,
    pub(super) logsumexp: Vec<f32>,
    pub(super) residual: Vec<f32>,
    pub(super) post_attn_rstd: Vec<f32>,
    pub(super) post_attn_normed: Vec<f32>,
    pub(super) gate_up: Vec<f32>,
    pub(super) mlp_act: Vec<f32>,
    /// Scaled output of LoRA A, by projection group.
    pub(super) lora_a_out: [Vec<f32>; ProjectionGroup::ALL.len()],
}

impl LayerActivations {
    pub(super) fn resize(&mut self, c: &Config, rows: usize) {
        let heads = c.heads();
        for (buffer, width) in [
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
        ] {
            buffer.resize(rows * width, 0.0);
        }
    }
}

/// Buffers of a pass over a chunk, reused for later chunks.
#[derive(Default)]
pub(crate) struct PackedWorkspace {
    /// Hidden states: the input of each layer and the output of the last.
    pub(super) hidden: Vec<Vec<f32>>,
    /// One per layer, or a single one if layers are recomputed or there is no backward pass.
    pub(super) activations: Vec<LayerActivations>,
    pub(super) dhidden: Vec<f32>,
    pub(super) dnormed: Vec<f32>,
    pub(super) dgate_up: Vec<f32>,
    pub(super) dmlp_act: Vec<f32>,
    pub(super) dqkv: Vec<f32>,
    pub(super) dqk: Vec<f32>,
    pub(super) dattn_out: Vec<f32>,
    pub(super) dlora_a_out: Vec<f32>,
    pub(super) selected: Vec<f32>,
    pub(super) selected_normed: Vec<f32>,
    pub(super) selected_rstd: Vec<f32>,
    pub(super) dselected: Vec<f32>,
    pub(super) dselected_normed: Vec<f32>,
    pub(super) logits: Vec<f32>,
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) dlogprobs: Vec<(f32, f32)>,
    pub(super) rows: Vec<u32>,
}
