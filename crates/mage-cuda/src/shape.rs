//! Model shape.

use crate::error::{CudaError, Remedy, Result};
use crate::nvrtc::{MAX_GROUP_SIZE, MAX_HEAD_DIM};
use mage_engine::model::BLOCK_SIZE;

/// The shape of a Qwen3 model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShape {
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Hidden size.
    pub hidden_size: usize,
    /// MLP intermediate size.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key/value heads.
    pub num_kv_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Epsilon of RMSNorm.
    pub rms_norm_eps: f32,
}

impl ModelShape {
    /// Rejects shapes that the kernels do not support.
    pub fn check(&self) -> Result<()> {
        let unsupported =
            |problem: String| Err(CudaError::new("loading a model on the GPU", problem).remedy(Remedy::Cpu));
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(8) || self.head_dim > MAX_HEAD_DIM {
            let supported = format!("multiples of 8 to {MAX_HEAD_DIM}");
            return unsupported(format!("head_dim is {}; the kernels support {supported}", self.head_dim));
        }
        for (what, n) in [("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size)] {
            if n % 8 != 0 {
                return unsupported(format!("{what} {n} is not a multiple of 8"));
            }
        }
        if self.hidden_size > 8192 {
            return unsupported(format!("hidden_size {} is more than 8192", self.hidden_size));
        }
        if self.group_size() > MAX_GROUP_SIZE {
            return unsupported(format!(
                "{} query heads share a key/value head; the kernels support at most {MAX_GROUP_SIZE}",
                self.group_size()
            ));
        }
        Ok(())
    }

    /// Query heads per key/value head.
    pub(crate) fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Elements of a token's queries, keys and values.
    pub(crate) fn qkv_dim(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Elements of a token's queries and keys.
    pub(crate) fn qk_dim(&self) -> usize {
        (self.num_heads + self.num_kv_heads) * self.head_dim
    }

    /// Elements of a token's attention output.
    pub(crate) fn attn_out_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Row stride of logits, in elements. Aligns rows to 16 bytes in either format.
    pub(crate) fn logits_stride(&self) -> usize {
        self.vocab_size.next_multiple_of(8)
    }

    /// Rows computed at a time, so that at most `max_logits` logits are in memory.
    pub(crate) fn logit_rows(&self, max_logits: usize) -> usize {
        (max_logits / self.logits_stride()).clamp(64, 4096)
    }

    /// Row stride of per-head fp32 statistics, in elements. Aligns rows to 16 bytes.
    pub(crate) fn head_stats_stride(&self) -> usize {
        self.num_heads.next_multiple_of(4)
    }

    /// Bytes of an attention tile in shared memory. Rows are zero-padded to a power of two.
    pub(crate) fn tile_bytes(&self) -> usize {
        crate::TILE * self.head_dim.next_power_of_two().max(16) * 2
    }

    /// Scale of attention scores.
    pub(crate) fn softmax_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Elements of one layer's part of a KV-cache block.
    pub(crate) fn block_elements(&self) -> usize {
        2 * self.num_kv_heads * BLOCK_SIZE * self.head_dim
    }
}
