//! What shape is the model, and where is each parameter?

use crate::compile::{MAX_GROUP_SIZE, MAX_HEAD_DIM};
use crate::error::{CudaError, Result};
use std::ops::Range;

/// The shape of a Qwen3 model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelShape {
    /// Tokens.
    pub vocabulary: usize,
    /// Numbers per token between layers.
    pub hidden: usize,
    /// Numbers per token inside a feed-forward layer.
    pub inner: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Keeps norms from dividing by 0.
    pub epsilon: f32,
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
        for (what, n) in [("hidden_size", self.hidden), ("intermediate_size", self.inner)] {
            if n % 8 != 0 {
                return wrong(format!("{what} {n} is not a multiple of 8"));
            }
        }
        if self.hidden > 8192 {
            return wrong(format!("hidden_size {} is more than 8192", self.hidden));
        }
        if self.sharing() > MAX_GROUP_SIZE {
            return wrong(format!("{} query heads share keys, more than {MAX_GROUP_SIZE}", self.sharing()));
        }
        Ok(())
    }

    /// Query heads that share keys.
    pub(crate) fn sharing(&self) -> usize {
        self.heads / self.kv
    }

    /// Numbers per token of queries, keys and values.
    pub(crate) fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv) * self.head_dim
    }

    /// Of queries and keys.
    pub(crate) fn qk(&self) -> usize {
        (self.heads + self.kv) * self.head_dim
    }

    /// Of what attention yields.
    pub(crate) fn out(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Numbers that a row of logits takes: rows start at multiples of 16 bytes in either format.
    pub(crate) fn logits(&self) -> usize {
        self.vocabulary.next_multiple_of(8)
    }

    /// Numbers that a row has where each head has one: rows start at multiples of 16 bytes.
    pub(crate) fn sums(&self) -> usize {
        self.heads.next_multiple_of(4)
    }

    /// Bytes of a tile of attention in shared memory: its rows are filled up with zeros.
    pub(crate) fn tile_bytes(&self) -> usize {
        crate::TILE * self.head_dim.next_power_of_two().max(16) * 2
    }

    /// What scores are multiplied by.
    pub(crate) fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Numbers of keys and values in one layer's part of a page.
    pub(crate) fn page(&self) -> usize {
        2 * self.kv * crate::BLOCK_SIZE * self.head_dim
    }
}

/// Where a layer's parameters are in the flat buffer.
#[derive(Clone, Debug)]
pub struct LayerLayout {
    /// The norm before attention.
    pub norm1: Range<usize>,
    /// Queries, keys, values.
    pub qkv: Range<usize>,
    /// Queries' and keys' norms.
    pub head_norms: Range<usize>,
    /// The way out of attention.
    pub out: Range<usize>,
    /// The norm before the feed-forward layer.
    pub norm2: Range<usize>,
    /// Gates, then ups.
    pub gate_up: Range<usize>,
    /// The way out.
    pub down: Range<usize>,
}

/// Where all parameters are.
#[derive(Clone, Debug)]
pub struct ParamLayout {
    /// The embedding.
    pub embedding: Range<usize>,
    /// By layer.
    pub layers: Vec<LayerLayout>,
    /// The last norm.
    pub norm: Range<usize>,
    /// The last matrix; the embedding's place where the two are tied.
    pub head: Range<usize>,
    /// How many there are.
    pub len: usize,
}
