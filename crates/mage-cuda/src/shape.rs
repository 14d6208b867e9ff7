//! What shape is the model, and where is each parameter?

use crate::error::{CudaError, Result};
use crate::nvrtc::{MAX_GROUP_SIZE, MAX_HEAD_DIM};
use std::ops::Range;

/// The shape of a Qwen3 model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShape {
    /// Tokens.
    pub vocab_size: usize,
    /// Numbers per token between layers.
    pub hidden_size: usize,
    /// Numbers per token inside a feed-forward layer.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Keeps norms from dividing by 0.
    pub rms_norm_eps: f32,
}

impl ModelShape {
    /// Refuses what the kernels are not written for.
    pub fn check(&self) -> Result<()> {
        let wrong =
            |problem: String| Err(CudaError::new("using a model on the card", problem).hint("use --device cpu"));
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > MAX_HEAD_DIM {
            let known = format!("multiples of 8 to {MAX_HEAD_DIM}");
            return wrong(format!("heads of {} numbers; the kernels are written for {known}", self.head_dim));
        }
        for (what, n) in [("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size)] {
            if n % 8 != 0 {
                return wrong(format!("{what} {n} is not a multiple of 8"));
            }
        }
        if self.hidden_size > 8192 {
            return wrong(format!("hidden_size {} is more than 8192", self.hidden_size));
        }
        if self.group_size() > MAX_GROUP_SIZE {
            return wrong(format!("{} query heads share keys, more than {MAX_GROUP_SIZE}", self.group_size()));
        }
        Ok(())
    }

    /// Query heads that share keys.
    pub(crate) fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Numbers per token of queries, keys and values.
    pub(crate) fn qkv_dim(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Of queries and keys.
    pub(crate) fn qk_dim(&self) -> usize {
        (self.num_heads + self.num_kv_heads) * self.head_dim
    }

    /// Of what attention yields.
    pub(crate) fn attn_out_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Numbers that a row of logits takes: rows start at multiples of 16 bytes in either format.
    pub(crate) fn logits_stride(&self) -> usize {
        self.vocab_size.next_multiple_of(8)
    }

    /// Numbers that a row has where each head has one: rows start at multiples of 16 bytes.
    pub(crate) fn head_stats_stride(&self) -> usize {
        self.num_heads.next_multiple_of(4)
    }

    /// Bytes of a tile of attention in shared memory: its rows are filled up with zeros.
    pub(crate) fn tile_bytes(&self) -> usize {
        crate::TILE * self.head_dim.next_power_of_two().max(16) * 2
    }

    /// What scores are multiplied by.
    pub(crate) fn softmax_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Numbers of keys and values in one layer's part of a page.
    pub(crate) fn block_elements(&self) -> usize {
        2 * self.num_kv_heads * crate::BLOCK_SIZE * self.head_dim
    }
}

/// Where a layer's parameters are in the flat buffer.
#[derive(Clone, Debug)]
pub struct GpuLayerLayout {
    /// The norm before attention.
    pub input_norm: Range<usize>,
    /// Queries, keys, values.
    pub qkv_proj: Range<usize>,
    /// Queries' and keys' norms.
    pub qk_norm: Range<usize>,
    /// The way out of attention.
    pub o_proj: Range<usize>,
    /// The norm before the feed-forward layer.
    pub post_attention_norm: Range<usize>,
    /// Gates, then ups.
    pub gate_up_proj: Range<usize>,
    /// The way out.
    pub down_proj: Range<usize>,
}

/// Where all parameters are.
#[derive(Clone, Debug)]
pub struct GpuParamLayout {
    /// The embedding.
    pub embed_tokens: Range<usize>,
    /// By layer.
    pub layers: Vec<GpuLayerLayout>,
    /// The last norm.
    pub final_norm: Range<usize>,
    /// The last matrix; the embedding's place where the two are tied.
    pub lm_head: Range<usize>,
    /// How many there are.
    pub len: usize,
}
