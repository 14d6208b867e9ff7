//! Forward pass over new tokens of many sequences with a paged KV cache.
//!
//! The rows of all sequences share each GEMM; only attention reads each sequence's own KV blocks. In the last layer, rows
//! without a logit query end once their keys and values are stored.

use super::workspace::LayerActivations;
use super::{LoraSegment, Qwen3Model, Weights};
use crate::cpu::{BLOCK_SIZE, BlockSlot, Kernels, PagedSpan, Strided};

/// New tokens of many sequences with the same base weights.
#[derive(Default)]
pub(crate) struct PagedBatch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<BlockSlot>,
    pub(crate) spans: Vec<PagedSpan>,
    /// Rows whose logits are needed, ascending.
    pub(crate) logit_rows: Vec<u32>,
    /// Spans of `logit_rows`; query indices count within `logit_rows`.
    pub(crate) logit_spans: Vec<PagedSpan>,
}

impl PagedBatch {
    pub(crate) fn clear(&mut self) {
        let PagedBatch { tokens, positions, slots, spans, logit_rows, logit_spans } = self;
        tokens.clear();
        positions.clear();
        slots.clear();
        spans.clear();
        logit_rows.clear();
        logit_spans.clear();
    }

    /// Adds a sequence's new tokens. The last `num_logits` of them need logits. Its block table is `block_table`, which starts
    /// at `table_offset` in the table of all sequences.
    pub(crate) fn push(
        &mut self,
        tokens: &[u32],
        position: usize,
        block_table: &[u32],
        table_offset: usize,
        num_logits: usize,
    ) {
        let (first, n) = (self.tokens.len(), tokens.len());
        self.tokens.extend_from_slice(tokens);
        for p in position..position + n {
            self.positions.push(p as u32);
            let (block, slot) = (block_table[p / BLOCK_SIZE], (p % BLOCK_SIZE) as u32);
            self.slots.push(BlockSlot { block, slot });
        }
        self.spans.push(PagedSpan { query: first, query_len: n, position, block_table: table_offset });
        if num_logits > 0 {
            self.logit_spans.push(PagedSpan {
                query: self.logit_rows.len(),
                query_len: num_logits,
                position: position + n - num_logits,
                block_table: table_offset,
            });
            self.logit_rows.extend((first + n - num_logits) as u32..(first + n) as u32);
        }
    }
}

/// Buffers of a step, reused by later steps.
pub(crate) struct PagedWorkspace<K: Kernels> {
    state: K::Buffer,
    next: K::Buffer,
    activations: LayerActivations<K>,
    queries: K::Buffer,
    normed: K::Buffer,
    inverse: K::Buffer,
    logits: K::Buffer,
}

impl<K: Kernels> PagedWorkspace<K> {
    pub(crate) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        PagedWorkspace {
            state: b(),
            next: b(),
            activations: LayerActivations::new(k),
            queries: b(),
            normed: b(),
            inverse: b(),
            logits: b(),
        }
    }
}

impl<K: Kernels> Qwen3Model<K> {
    /// Runs all layers over a batch and stores its keys and values in `kv_blocks`. Calls `on_logits(first, count, logits)` for
    /// a few logit rows at a time. The LoRA segments are given twice: over all rows, and over the logit rows.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn paged_forward(
        &self,
        k: &K,
        w: &Weights<K>,
        (lora, logit_lora): (&[LoraSegment<'_, K>], &[LoraSegment<'_, K>]),
        batch: &PagedBatch,
        block_tables: &[u32],
        kv_blocks: &K::KvBlocks,
        s: &mut PagedWorkspace<K>,
        mut on_logits: impl FnMut(usize, usize, K::Ref<'_>),
    ) {
        let (c, heads) = (&self.config, self.config.heads());
        let (d, v, n, m) = (c.hidden_size, c.vocab_size, batch.tokens.len(), batch.logit_rows.len());
        let max_len = batch.positions.iter().max().map_or(0, |p| *p as usize + 1);
        let rope = self.rope(max_len);
        s.activations.reserve(k, c, n);
        for buffer in [&mut s.state, &mut s.next] {
            k.reserve(buffer, n * d);
        }
        k.gather(k.get(&w.flat, self.layout.embed_tokens.clone()), &batch.tokens, d, k.get_mut(&mut s.state, 0..n * d));
        for layer in 0..c.num_hidden_layers {
            self.pre_attention(k, w, lora, layer, &batch.positions, &rope, &s.state, &mut s.activations);
            let (qk, qkv) =
                (k.get(&s.activations.qk, 0..n * heads.qk()), k.get(&s.activations.qkv, 0..n * heads.qkv()));
            k.store_kv(heads, layer, &batch.slots, qk, qkv, kv_blocks);
            let last = layer + 1 == c.num_hidden_layers;
            if last && m == 0 {
                return;
            }
            if last && m < n {
                // Only the logit rows continue.
                k.reserve(&mut s.queries, m * heads.qk());
                k.gather(qk, &batch.logit_rows, heads.qk(), k.get_mut(&mut s.queries, 0..m * heads.qk()));
                k.gather(k.get(&s.state, 0..n * d), &batch.logit_rows, d, k.get_mut(&mut s.next, 0..m * d));
                std::mem::swap(&mut s.state, &mut s.next);
                k.paged_attention(
                    heads,
                    layer,
                    &batch.logit_spans,
                    block_tables,
                    Strided { data: k.get(&s.queries, 0..m * heads.qk()), stride: heads.qk(), first: 0 },
                    kv_blocks,
                    k.get_mut(&mut s.activations.attn_out, 0..m * heads.out()),
                );
                self.post_attention(k, w, logit_lora, layer, m, &s.state, &mut s.activations, &mut s.next);
            } else {
                k.paged_attention(
                    heads,
                    layer,
                    &batch.spans,
                    block_tables,
                    Strided { data: qk, stride: heads.qk(), first: 0 },
                    kv_blocks,
                    k.get_mut(&mut s.activations.attn_out, 0..n * heads.out()),
                );
                self.post_attention(k, w, lora, layer, n, &s.state, &mut s.activations, &mut s.next);
            }
            std::mem::swap(&mut s.state, &mut s.next);
        }
        k.reserve(&mut s.normed, m * d);
        k.reserve(&mut s.inverse, m);
        k.rms_norm(
            k.get(&s.state, 0..m * d),
            k.get(&w.flat, self.layout.final_norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut s.normed, 0..m * d),
            k.get_mut(&mut s.inverse, 0..m),
        );
        let step = self.logit_rows().min(m);
        k.reserve(&mut s.logits, step * v);
        for from in (0..m).step_by(step) {
            let count = step.min(m - from);
            let part = k.get(&s.normed, from * d..(from + count) * d);
            k.linear(part, count, &w.lm_head, k.get_mut(&mut s.logits, 0..count * v), false);
            on_logits(from, count, k.get(&s.logits, 0..count * v));
        }
    }
}
