//! The layout of all parameters in one flat buffer.
//!
//! Projections with the same input are adjacent, so that Q, K and V form one matrix, and gate and up another.

use std::ops::Range;

/// A tensor of a checkpoint and its range in the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Range in the flat buffer.
    pub range: Range<usize>,
}

/// Ranges of a layer's parameters, with Hugging Face names.
#[derive(Clone, Debug)]
pub struct LayerLayout {
    /// RMSNorm before attention.
    pub input_layernorm: Range<usize>,
    /// Query, key and value projections.
    pub qkv_proj: Range<usize>,
    /// RMSNorm weights of queries, then of keys.
    pub qk_norm: Range<usize>,
    /// Attention output projection.
    pub o_proj: Range<usize>,
    /// RMSNorm before the MLP.
    pub post_attention_layernorm: Range<usize>,
    /// Gate projection, then up projection.
    pub gate_up_proj: Range<usize>,
    /// MLP output projection.
    pub down_proj: Range<usize>,
}

/// Ranges of all parameters.
#[derive(Clone, Debug, Default)]
pub struct ParamLayout {
    /// All tensors, in the order of their ranges.
    pub tensors: Vec<ParamTensor>,
    /// Token embeddings.
    pub embed_tokens: Range<usize>,
    /// Layers, in order.
    pub layers: Vec<LayerLayout>,
    /// RMSNorm after the last layer.
    pub final_norm: Range<usize>,
    /// Output projection; equals `embed_tokens` if the embeddings are tied.
    pub lm_head: Range<usize>,
    /// Number of parameters.
    pub len: usize,
}
