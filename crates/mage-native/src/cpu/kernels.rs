//! The interface between the CPU model and its kernels.
//!
//! `model` is generic over [`Kernels`]. GPUs do not implement it; `mage-cuda` has its own passes. Everything is `f32` and
//! row-major; rows are tokens.

use mage_engine::Allowed;
use std::ops::Range;

/// The head configuration of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) q: usize,
    /// Key and value heads; divides the query heads.
    pub(crate) kv: usize,
    /// Head dimension.
    pub(crate) dim: usize,
}

impl Heads {
    /// Width of queries and keys per token.
    pub(crate) fn qk(self) -> usize {
        (self.q + self.kv) * self.dim
    }

    /// Width of queries, keys and values per token.
    pub(crate) fn qkv(self) -> usize {
        (self.q + 2 * self.kv) * self.dim
    }

    /// Width of the attention output per token.
    pub(crate) fn out(self) -> usize {
        self.q * self.dim
    }
}

/// The rows of one sequence's queries and keys in a packed batch. Query `i` attends to the first
/// `key_len − query_len + i + 1` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) query: usize,
    pub(crate) query_len: usize,
    pub(crate) key: usize,
    pub(crate) key_len: usize,
}

/// Tokens per KV-cache block.
pub(crate) const BLOCK_SIZE: usize = 16;

/// A token's slot in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSlot {
    pub(crate) block: u32,
    pub(crate) slot: u32,
}

/// New queries of one sequence in the KV cache: `query_len` rows from `query` on, the first at `position`; the block table
/// starts at `block_table`. Each query attends to the keys up to its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PagedSpan {
    pub(crate) query: usize,
    pub(crate) query_len: usize,
    pub(crate) position: usize,
    pub(crate) block_table: usize,
}

/// The distribution at one row, evaluated at its target: see [`Kernels::token_logprobs`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TokenLogprob {
    /// Log-probability of the target.
    pub(crate) logprob: f32,
    /// Entropy of the distribution, in nats.
    pub(crate) entropy: f32,
    /// Log-sum-exp of the logits.
    pub(crate) logsumexp: f32,
}

/// The target of one row of logits and the tokens allowed there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) token: u32,
    pub(crate) allowed: Option<&'a Allowed>,
}

/// Parameters of one AdamW step over a range of parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW {
    pub(crate) learning_rate: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    pub(crate) weight_decay: f32,
    /// Factor of the gradient (gradient clipping).
    pub(crate) grad_scale: f32,
    /// `1 − beta1ᵗ`.
    pub(crate) correction1: f32,
    /// `1 − beta2ᵗ`.
    pub(crate) correction2: f32,
}

/// The kernels of a device.
pub(crate) trait Kernels: Clone + Send + Sync {
    /// Memory on the device.
    type Buffer: Send + Sync;
    /// Part of a buffer, for reading.
    type Ref<'a>: Copy;
    /// Part of a buffer, for writing.
    type Mut<'a>;
    /// A weight matrix packed for GEMM.
    type Packed: Send + Sync;
    /// The paged KV cache: blocks of [`BLOCK_SIZE`] tokens.
    type KvBlocks: Send + Sync;

    /// This device with single-threaded kernels, for use inside parallel tasks.
    fn single_threaded(&self) -> Self;

    fn zeros(&self, len: usize) -> Self::Buffer;
    /// Grows a buffer to at least `len`; its content is unspecified.
    fn reserve(&self, buffer: &mut Self::Buffer, len: usize);
    fn get<'a>(&self, buffer: &'a Self::Buffer, range: Range<usize>) -> Self::Ref<'a>;
    fn get_mut<'a>(&self, buffer: &'a mut Self::Buffer, range: Range<usize>) -> Self::Mut<'a>;
    fn upload(&self, data: &[f32], to: Self::Mut<'_>);
    fn download(&self, from: Self::Ref<'_>, to: &mut [f32]);
    fn copy(&self, from: Self::Ref<'_>, to: Self::Mut<'_>);
    fn fill(&self, to: Self::Mut<'_>, value: f32);
    /// `to += from`.
    fn add(&self, from: Self::Ref<'_>, to: Self::Mut<'_>);
    /// Copies rows of `width`: row `i` of `to` is row `rows[i]` of `from`.
    fn gather(&self, from: Self::Ref<'_>, rows: &[u32], width: usize, to: Self::Mut<'_>);
    /// Adds rows of `width`: row `i` of `from` to row `rows[i]` of `to`, in order of `i`.
    fn scatter_add(&self, from: Self::Ref<'_>, rows: &[u32], width: usize, to: Self::Mut<'_>);

    /// A weight matrix of `outputs` rows and `inputs` columns, ready for [`linear`](Kernels::linear).
    fn pack(&self, weight: Self::Ref<'_>, outputs: usize, inputs: usize) -> Self::Packed;
    /// Packs new weights of the same shape.
    fn repack(&self, weight: Self::Ref<'_>, packed: &mut Self::Packed);
    /// `y = x · Wᵀ`, or added to `y`.
    fn linear(&self, x: Self::Ref<'_>, rows: usize, w: &Self::Packed, y: Self::Mut<'_>, add: bool);
    /// `dx = dy · W`, or added to `dx`. `shape` is (rows, outputs, inputs).
    fn linear_input_grad(
        &self,
        dy: Self::Ref<'_>,
        w: Self::Ref<'_>,
        shape: (usize, usize, usize),
        dx: Self::Mut<'_>,
        add: bool,
    );
    /// `dW += dyᵀ · x`. `shape` is (rows, outputs, inputs).
    fn linear_weight_grad(&self, dy: Self::Ref<'_>, x: Self::Ref<'_>, shape: (usize, usize, usize), dw: Self::Mut<'_>);

    /// `x *= by`.
    fn scale(&self, x: Self::Mut<'_>, by: f32);
    /// `y += x · Wᵀ` on column ranges of wider rows.
    fn linear_part(&self, x: Strided<Self::Ref<'_>>, rows: usize, w: &Self::Packed, y: Strided<Self::Mut<'_>>);
    /// `dx = dy · W` on column ranges of wider rows. `shape` is (rows, outputs, inputs).
    fn linear_part_input_grad(
        &self,
        dy: Strided<Self::Ref<'_>>,
        w: Self::Ref<'_>,
        shape: (usize, usize, usize),
        dx: Strided<Self::Mut<'_>>,
    );
    /// `dW += dyᵀ · x` on column ranges of wider rows. `shape` is (rows, outputs, inputs).
    fn linear_part_weight_grad(
        &self,
        dy: Strided<Self::Ref<'_>>,
        x: Strided<Self::Ref<'_>>,
        shape: (usize, usize, usize),
        dw: Self::Mut<'_>,
    );

    /// `y = x · rstd · w` per row with `rstd = 1 / rms(x)`, which is stored.
    fn rms_norm(&self, x: Self::Ref<'_>, w: Self::Ref<'_>, epsilon: f32, y: Self::Mut<'_>, rstd: Self::Mut<'_>);
    /// Adds to `dx` and, if given, to `dw`.
    fn rms_norm_grad(
        &self,
        dy: Self::Ref<'_>,
        x: Self::Ref<'_>,
        w: Self::Ref<'_>,
        rstd: Self::Ref<'_>,
        dx: Self::Mut<'_>,
        dw: Option<Self::Mut<'_>>,
    );

    /// Normalises each query and key head (`w`: query weights, then key weights) and applies the rotary embedding. `cos_sin`
    /// holds per position `dim / 2` cosines, then as many sines. Reads queries, keys and values; writes queries and keys.
    #[allow(clippy::too_many_arguments)]
    fn qk_norm_rope(
        &self,
        heads: Heads,
        qkv: Self::Ref<'_>,
        w: Self::Ref<'_>,
        epsilon: f32,
        cos_sin: Self::Ref<'_>,
        positions: &[u32],
        qk: Self::Mut<'_>,
        rstd: Self::Mut<'_>,
    );
    /// Writes the query and key part of `dqkv`; adds to `dw` if given.
    #[allow(clippy::too_many_arguments)]
    fn qk_norm_rope_grad(
        &self,
        heads: Heads,
        dqk: Self::Ref<'_>,
        qkv: Self::Ref<'_>,
        w: Self::Ref<'_>,
        cos_sin: Self::Ref<'_>,
        positions: &[u32],
        rstd: Self::Ref<'_>,
        dqkv: Self::Mut<'_>,
        dw: Option<Self::Mut<'_>>,
    );

    /// Causal attention over each span. Writes `out` and the log-sum-exp per token and head.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        heads: Heads,
        spans: &[Span],
        q: Strided<Self::Ref<'_>>,
        k: Strided<Self::Ref<'_>>,
        v: Strided<Self::Ref<'_>>,
        out: Self::Mut<'_>,
        logsumexp: Self::Mut<'_>,
    );
    /// Writes `dqk`, and the value part of `dqkv`. Spans must have as many keys as queries.
    #[allow(clippy::too_many_arguments)]
    fn attention_grad(
        &self,
        heads: Heads,
        spans: &[Span],
        qk: Self::Ref<'_>,
        qkv: Self::Ref<'_>,
        out: Self::Ref<'_>,
        logsumexp: Self::Ref<'_>,
        dout: Self::Ref<'_>,
        dqk: Self::Mut<'_>,
        dqkv: Self::Mut<'_>,
    );

    /// Allocates `count` KV-cache blocks.
    fn alloc_kv_blocks(&self, heads: Heads, layers: usize, count: usize) -> Self::KvBlocks;
    /// Copies whole blocks in order: (from, to).
    fn copy_blocks(&self, kv_blocks: &mut Self::KvBlocks, copies: &[(u32, u32)]);
    /// Stores each row's key and value in its slot. Parallel tasks must write different blocks.
    fn store_kv(
        &self,
        heads: Heads,
        layer: usize,
        slots: &[BlockSlot],
        qk: Self::Ref<'_>,
        qkv: Self::Ref<'_>,
        kv_blocks: &Self::KvBlocks,
    );
    /// Causal attention of new queries over the blocks of each span, which no other task may write meanwhile. Results equal those
    /// of [`attention`](Kernels::attention).
    #[allow(clippy::too_many_arguments)]
    fn paged_attention(
        &self,
        heads: Heads,
        layer: usize,
        spans: &[PagedSpan],
        block_tables: &[u32],
        q: Strided<Self::Ref<'_>>,
        kv_blocks: &Self::KvBlocks,
        out: Self::Mut<'_>,
    );

    /// `y = silu(gate) · up`; a row of `x` holds `width` gate values, then as many up values.
    fn swiglu(&self, x: Self::Ref<'_>, width: usize, y: Self::Mut<'_>);
    fn swiglu_grad(&self, dy: Self::Ref<'_>, x: Self::Ref<'_>, width: usize, dx: Self::Mut<'_>);

    /// Log-probability of each row's target and entropy, over the allowed tokens.
    fn token_logprobs(
        &self,
        logits: Self::Ref<'_>,
        vocab_size: usize,
        targets: &[Target<'_>],
        out: &mut [TokenLogprob],
    );
    /// Replaces logits by their gradient, given per row the derivatives with respect to log-probability and entropy.
    fn token_logprobs_grad(
        &self,
        logits: Self::Mut<'_>,
        vocab_size: usize,
        targets: &[Target<'_>],
        logprobs: &[TokenLogprob],
        dlogprobs: &[(f32, f32)],
    );

    /// The sum of squares, in an order that depends only on the length.
    fn sum_of_squares(&self, x: Self::Ref<'_>) -> f64;
    fn adamw(&self, params: AdamW, p: Self::Mut<'_>, g: Self::Ref<'_>, m: Self::Mut<'_>, v: Self::Mut<'_>);
}

/// A column range of wider rows: rows are `stride` apart, and the range starts at column `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<T> {
    pub(crate) data: T,
    pub(crate) stride: usize,
    pub(crate) first: usize,
}
