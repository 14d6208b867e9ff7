//! Forward pass over new tokens of many sequences with a paged KV cache.
//!
//! The rows of all sequences share each GEMM; only attention reads each sequence's own KV blocks. In the last layer, rows
//! without a logit query end once their keys and values are stored.

use super::forward::ForwardPass;
use super::workspace::LayerActivations;
use super::{LoraSegment, Qwen3Model, Weights};
use crate::cpu::{BlockSlot, Cpu, KvBlocks, PagedSpan, Strided, gather_rows};
use mage_engine::model::BLOCK_SIZE;

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
#[derive(Default)]
pub(crate) struct PagedWorkspace {
    hidden: Vec<f32>,
    next_hidden: Vec<f32>,
    activations: LayerActivations,
    queries: Vec<f32>,
    normed: Vec<f32>,
    rstd: Vec<f32>,
    logits: Vec<f32>,
}

impl Qwen3Model {
    /// Runs all layers over a batch and stores its keys and values in `kv_blocks`. Calls `on_logits(first, count, logits)` for
    /// a few logit rows at a time. The LoRA segments are given twice: over all rows, and over the logit rows.
    ///
    /// # Safety
    /// Meanwhile, no other thread may access the blocks of the batch's slots, or write those of its block tables.
    #[allow(unsafe_code, clippy::too_many_arguments)]
    pub(crate) unsafe fn paged_forward(
        &self,
        cpu: &Cpu,
        weights: &Weights,
        (lora, logit_lora): (&[LoraSegment<'_>], &[LoraSegment<'_>]),
        batch: &PagedBatch,
        block_tables: &[u32],
        kv_blocks: &KvBlocks,
        s: &mut PagedWorkspace,
        mut on_logits: impl FnMut(usize, usize, &[f32]),
    ) {
        let (c, heads) = (&self.config, self.config.heads());
        let (d, v, n, m) = (c.hidden_size, c.vocab_size, batch.tokens.len(), batch.logit_rows.len());
        let max_len = batch.positions.iter().max().map_or(0, |p| *p as usize + 1);
        let cos_sin = &self.cos_sin(max_len);
        let pass = ForwardPass { model: self, cpu, weights, lora, positions: &batch.positions, cos_sin };
        let PagedWorkspace { hidden, next_hidden, activations: a, queries, normed, rstd, logits } = s;
        a.resize(c, n);
        pass.embed_tokens(&batch.tokens, hidden);
        next_hidden.resize(n * d, 0.0);
        for layer in 0..c.num_hidden_layers {
            pass.pre_attention(layer, hidden, a);
            // SAFETY: guaranteed by the caller.
            unsafe { kv_blocks.store(layer, &batch.slots, &a.qk, &a.qkv) };
            let last = layer + 1 == c.num_hidden_layers;
            if last && m == 0 {
                return;
            }
            let (pass, spans, q) = if last && m < n {
                // Only the logit rows continue.
                queries.resize(m * heads.qk(), 0.0);
                gather_rows(&a.qk, &batch.logit_rows, heads.qk(), queries);
                next_hidden.resize(m * d, 0.0);
                gather_rows(hidden, &batch.logit_rows, d, next_hidden);
                std::mem::swap(hidden, next_hidden);
                next_hidden.resize(m * d, 0.0);
                a.resize(c, m);
                (ForwardPass { lora: logit_lora, ..pass }, &batch.logit_spans, &*queries)
            } else {
                (pass, &batch.spans, &a.qk)
            };
            let q = Strided { data: &q[..], stride: heads.qk(), first: 0 };
            // SAFETY: guaranteed by the caller.
            unsafe { cpu.paged_attention(layer, spans, block_tables, q, kv_blocks, &mut a.attn_out) };
            pass.post_attention(layer, hidden, a, next_hidden);
            std::mem::swap(hidden, next_hidden);
        }
        normed.resize(m * d, 0.0);
        rstd.resize(m, 0.0);
        cpu.rms_norm(hidden, weights.param(&self.layout.final_norm), c.rms_norm_eps, normed, rstd);
        let step = self.logit_rows().min(m);
        logits.resize(step * v, 0.0);
        for from in (0..m).step_by(step) {
            let count = step.min(m - from);
            let logits = &mut logits[..count * v];
            cpu.linear(&normed[from * d..(from + count) * d], &weights.lm_head, logits);
            on_logits(from, count, logits);
        }
    }
}
