//! Attention over a paged KV cache.
//!
//! A block holds sixteen tokens: keys as columns, so that sixteen scores are one chain of vector operations, and values as
//! rows. Scores and sums are the chains of [`super::attention`], so the bits equal those of a full forward pass.

use super::attention::{scale_all, softmax};
use super::shared_ptr::SharedMut;
use super::{Cpu, Heads, Strided};
use crate::cpu::simd::{LANES, Lanes, simd_dispatch};
use mage_engine::model::BLOCK_SIZE;
use rayon::prelude::*;
use std::cell::RefCell;

const _: () = assert!(BLOCK_SIZE == LANES, "a block's keys are one vector wide");

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

/// The KV blocks of all layers. They are written through shared references: each block by the sequence that owns it, while
/// other sequences read only blocks that are not being written.
pub(crate) struct KvBlocks {
    heads: Heads,
    data: *mut [f32],
    /// Start of the first block, aligned to a cache line.
    first: usize,
    count: usize,
    /// Floats per block, and per layer of a block.
    block: usize,
    layer: usize,
}

// SAFETY: the struct owns the memory; every access states why it does not race.
unsafe impl Send for KvBlocks {}
// SAFETY: as above.
unsafe impl Sync for KvBlocks {}

impl Drop for KvBlocks {
    fn drop(&mut self) {
        // SAFETY: created by `Box::into_raw` below and freed once.
        drop(unsafe { Box::from_raw(self.data) });
    }
}

impl KvBlocks {
    /// Allocates `count` blocks. Panics if their size exceeds the address space.
    pub(crate) fn new(heads: Heads, layers: usize, count: usize) -> Self {
        let product = |factors: &[usize]| factors.iter().try_fold(1_usize, |product, f| product.checked_mul(*f));
        let layer = product(&[2, heads.kv, heads.dim, BLOCK_SIZE]);
        let block = layer.and_then(|layer| product(&[layers, layer]));
        let len = block.and_then(|block| product(&[count, block])?.checked_add(LANES));
        let (Some(layer), Some(block), Some(len)) = (layer, block, len) else {
            panic!("a KV cache of {count} blocks, {layers} layers and {heads:?} exceeds the address space");
        };
        // The system commits zeroed memory on first access.
        let data = vec![0.0_f32; len].into_boxed_slice();
        let first = data.as_ptr().align_offset(4 * LANES).min(LANES);
        KvBlocks { heads, data: Box::into_raw(data), first, count, block, layer }
    }

    fn start(&self, block: u32, layer: usize) -> *mut f32 {
        assert!((block as usize) < self.count && (layer + 1) * self.layer <= self.block, "no such block");
        self.data.cast::<f32>().wrapping_add(self.first + block as usize * self.block + layer * self.layer)
    }

    /// Copies whole blocks in order: (from, to).
    pub(crate) fn copy(&mut self, copies: &[(u32, u32)]) {
        for &(from, to) in copies {
            let (from, to) = (self.start(from, 0), self.start(to, 0));
            // SAFETY: both are whole blocks within the allocation, and the exclusive reference rules out other access.
            unsafe { std::ptr::copy(from, to, self.block) };
        }
    }

    /// Stores each row's key and value in its slot.
    ///
    /// # Safety
    /// Meanwhile, no other thread may access the blocks of these slots.
    pub(crate) unsafe fn store(&self, layer: usize, slots: &[BlockSlot], qk: &[f32], qkv: &[f32]) {
        let heads = self.heads;
        let (dim, kv_width) = (heads.dim, heads.kv * heads.dim);
        assert!(qk.len() >= slots.len() * heads.qk() && qkv.len() >= slots.len() * heads.qkv());
        assert!(slots.iter().all(|s| (s.slot as usize) < BLOCK_SIZE));
        for (row, at) in slots.iter().enumerate() {
            let keys = self.start(at.block, layer);
            let key = &qk[row * heads.qk() + heads.out()..][..kv_width];
            let value = &qkv[row * heads.qkv() + heads.qk()..][..kv_width];
            let slot = at.slot as usize;
            // SAFETY: within the block's part for this layer, as the slot is checked above; the caller guarantees that no
            // other thread accesses the block.
            unsafe {
                for (i, k) in key.iter().enumerate() {
                    *keys.add(i * BLOCK_SIZE + slot) = *k;
                }
                let values = keys.add(kv_width * BLOCK_SIZE);
                for (h, v) in value.chunks_exact(dim).enumerate() {
                    std::ptr::copy_nonoverlapping(v.as_ptr(), values.add((h * BLOCK_SIZE + slot) * dim), dim);
                }
            }
        }
    }
}

thread_local! {
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Cpu {
    /// Causal attention of new queries over the blocks of each span. Results equal those of [`Cpu::attention`]. The queries
    /// of the spans must be ascending and disjoint, so that parallel tasks write different rows.
    ///
    /// # Safety
    /// Meanwhile, no other thread may write the blocks in the tables of the spans.
    pub(crate) unsafe fn paged_attention(
        &self,
        layer: usize,
        spans: &[PagedSpan],
        block_tables: &[u32],
        q: Strided<&[f32]>,
        kv_blocks: &KvBlocks,
        out: &mut [f32],
    ) {
        let heads = kv_blocks.heads;
        let ascending = spans.windows(2).all(|s| s[0].query + s[0].query_len <= s[1].query);
        assert!(ascending, "attention: spans overlap");
        for s in spans {
            let (rows, seen) = (s.query + s.query_len, s.position + s.query_len);
            assert!(rows * heads.out() <= out.len() && s.query_len > 0, "attention: output too short");
            assert!((rows - 1) * q.stride + q.first + heads.out() <= q.data.len(), "attention: queries too short");
            assert!(
                s.block_table + seen.div_ceil(BLOCK_SIZE) <= block_tables.len(),
                "attention: block table too short"
            );
        }
        let out = SharedMut::new(out);
        let run = |span: &PagedSpan, kv: usize| {
            let table = &block_tables[span.block_table..];
            let task = AttentionTask { layer, span: *span, kv, table, q, kv_blocks, out };
            SCORES.with_borrow_mut(|scores| task_at(self.level, task, scores));
        };
        let size: usize = spans.iter().map(|s| s.query_len * (s.position + s.query_len)).sum::<usize>() * heads.out();
        if self.parallel && rayon::current_num_threads() > 1 && size > 1 << 16 {
            (0..spans.len() * heads.kv).into_par_iter().for_each(|i| run(&spans[i / heads.kv], i % heads.kv));
        } else {
            for span in spans {
                (0..heads.kv).for_each(|kv| run(span, kv));
            }
        }
    }
}

simd_dispatch!(fn task_at = attend(task: AttentionTask<'_>, scores: &mut Vec<f32>));

/// Attention of one sequence's new queries for one KV head, a few rows (query, query head) at a time.
#[inline(always)]
fn attend<L: Lanes>(l: L, task: AttentionTask<'_>, scores: &mut Vec<f32>) {
    let heads = task.kv_blocks.heads;
    let rows = task.span.query_len * (heads.q / heads.kv);
    let mut row = 0;
    while row < rows {
        row += match rows - row {
            1 => tile::<L, 1, 4>(l, &task, row, scores),
            2 | 3 => tile::<L, 2, 2>(l, &task, row, scores),
            4..8 => tile::<L, 4, 2>(l, &task, row, scores),
            _ => tile::<L, 8, 1>(l, &task, row, scores),
        };
    }
}

/// One sequence and one KV head of a paged attention.
pub(crate) struct AttentionTask<'a> {
    layer: usize,
    span: PagedSpan,
    kv: usize,
    table: &'a [u32],
    q: Strided<&'a [f32]>,
    kv_blocks: &'a KvBlocks,
    out: SharedMut,
}

/// Processes `R` rows with `P` vectors of keys or values at once, which hides the latency of few rows.
#[inline(always)]
fn tile<L: Lanes, const R: usize, const P: usize>(
    l: L,
    task: &AttentionTask<'_>,
    row: usize,
    scores: &mut Vec<f32>,
) -> usize {
    let AttentionTask { layer, span, kv, table, q, kv_blocks, out } = *task;
    let heads = kv_blocks.heads;
    let (dim, group, kv_width) = (heads.dim, heads.q / heads.kv, heads.kv * heads.dim);
    let query_and_head = |r: usize| ((row + r) / group, kv * group + (row + r) % group);
    let num_keys = |r: usize| span.position + query_and_head(r).0 + 1;
    let max_keys = num_keys(R - 1);
    let count = max_keys.div_ceil(BLOCK_SIZE);
    let width = count * BLOCK_SIZE;
    if scores.len() < R * width {
        scores.resize(R * width, 0.0);
    }
    let scores = &mut scores[..R * width];
    let mut queries = [std::ptr::null::<f32>(); R];
    for (r, query) in queries.iter_mut().enumerate() {
        let (i, h) = query_and_head(r);
        *query = q.data[(span.query + i) * q.stride + q.first + h * dim..][..dim].as_ptr();
    }
    let keys = |p: usize| kv_blocks.start(table[p], layer).wrapping_add(kv * dim * BLOCK_SIZE).cast_const();
    let mut block = 0;
    while block < count {
        // SAFETY: queries have length `dim` (sliced above); a block's keys are `dim` vectors within it.
        block += unsafe {
            if count - block >= P {
                let starts = std::array::from_fn(|p| keys(block + p));
                score::<L, R, P>(l, &queries, starts, dim, &mut scores[block * BLOCK_SIZE..], width)
            } else {
                score::<L, R, 1>(l, &queries, [keys(block)], dim, &mut scores[block * BLOCK_SIZE..], width)
            }
        };
    }
    let scale = 1.0 / (dim as f32).sqrt();
    for r in 0..R {
        let line = &mut scores[r * width..][..width];
        let (_, inverse_sum) = softmax(l, line, num_keys(r), scale);
        scale_all(l, &mut line[..num_keys(r)], inverse_sum);
    }
    let mut column = 0;
    while column < dim {
        let values = |p: usize| {
            kv_blocks
                .start(table[p], layer)
                .wrapping_add(kv_width * BLOCK_SIZE + kv * BLOCK_SIZE * dim + column)
                .cast_const()
        };
        let mut targets = [std::ptr::null_mut::<f32>(); R];
        for (r, target) in targets.iter_mut().enumerate() {
            let (i, h) = query_and_head(r);
            *target = out.offset((span.query + i) * heads.out() + h * dim + column).ptr();
        }
        // SAFETY: a block's values are rows of `dim` floats within it; the caller checked the output's length against all
        // spans, and only this task writes this head's columns of these rows.
        column += unsafe {
            if dim - column >= P * LANES {
                weigh::<L, R, P, true>(l, scores, width, max_keys, values, dim, P * LANES, &targets)
            } else {
                let lanes = LANES.min(dim - column);
                if lanes == LANES {
                    weigh::<L, R, 1, true>(l, scores, width, max_keys, values, dim, lanes, &targets)
                } else {
                    weigh::<L, R, 1, false>(l, scores, width, max_keys, values, dim, lanes, &targets)
                }
            }
        };
    }
    R
}

/// Scores of `R` queries with the keys of `P` blocks.
#[inline(always)]
unsafe fn score<L: Lanes, const R: usize, const P: usize>(
    l: L,
    queries: &[*const f32; R],
    keys: [*const f32; P],
    dim: usize,
    scores: &mut [f32],
    width: usize,
) -> usize {
    let mut sums = [[l.splat(0.0); P]; R];
    for d in 0..dim {
        // SAFETY: guaranteed by the caller.
        let columns: [L::V; P] = std::array::from_fn(|p| unsafe { l.load_ptr(keys[p].add(d * BLOCK_SIZE)) });
        for (sums, query) in sums.iter_mut().zip(queries) {
            // SAFETY: guaranteed by the caller.
            let x = l.splat(unsafe { *query.add(d) });
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = l.fma(x, column, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let (line, _) = scores[r * width..][..P * LANES].as_chunks_mut();
        for (to, sum) in line.iter_mut().zip(sums) {
            l.store(to, *sum);
        }
    }
    P
}

/// Weighted sums of the first `max_keys` values, over `columns` columns.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
unsafe fn weigh<L: Lanes, const R: usize, const N: usize, const FULL: bool>(
    l: L,
    weights: &[f32],
    width: usize,
    max_keys: usize,
    values: impl Fn(usize) -> *const f32,
    dim: usize,
    columns: usize,
    targets: &[*mut f32; R],
) -> usize {
    let mut sums = [[l.splat(0.0); N]; R];
    for block in 0..max_keys.div_ceil(BLOCK_SIZE) {
        let rows = values(block);
        for j in 0..BLOCK_SIZE.min(max_keys - block * BLOCK_SIZE) {
            // SAFETY: guaranteed by the caller.
            let row: [L::V; N] = std::array::from_fn(|v| unsafe {
                let at = rows.add(j * dim + v * LANES);
                if FULL { l.load_ptr(at) } else { l.load_partial_ptr(at, columns) }
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = l.splat(weights[r * width + block * BLOCK_SIZE + j]);
                for (sum, v) in sums.iter_mut().zip(row) {
                    *sum = l.fma(x, v, *sum);
                }
            }
        }
    }
    for (target, sums) in targets.iter().zip(&sums) {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe {
                if FULL {
                    l.store_ptr(target.add(v * LANES), *sum);
                } else {
                    l.store_partial_ptr(target.add(v * LANES), columns, *sum);
                }
            }
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Span;
    use crate::cpu::testing::random_values;

    #[test]
    #[should_panic(expected = "exceeds the address space")]
    fn a_kv_cache_beyond_the_address_space_is_refused() {
        // The product is 0 modulo 2^64.
        KvBlocks::new(Heads { q: 1, kv: 1, dim: 2 }, 1, 1 << 58);
    }

    #[test]
    #[should_panic(expected = "spans overlap")]
    fn overlapping_spans_are_refused() {
        let heads = Heads { q: 1, kv: 1, dim: 4 };
        let kv_blocks = KvBlocks::new(heads, 1, 1);
        let (data, mut out) = (vec![0.0; 2 * heads.qk()], vec![0.0; 2 * heads.out()]);
        let queries = Strided { data: &data[..], stride: heads.qk(), first: 0 };
        let span = |query, query_len| PagedSpan { query, query_len, position: 0, block_table: 0 };
        // SAFETY: there is one thread.
        unsafe { Cpu::new().paged_attention(0, &[span(0, 2), span(1, 1)], &[0], queries, &kv_blocks, &mut out) };
    }

    #[test]
    fn paged_attention_equals_contiguous_attention_bit_for_bit() {
        let shapes = [(4, 2, 16), (2, 2, 16), (6, 1, 12), (4, 2, 32), (8, 1, 40), (1, 1, 4)];
        for (q, kv, dim) in shapes {
            let heads = Heads { q, kv, dim };
            for len in [1, 5, 16, 17, 61, 150] {
                let (qk, qkv) = (random_values(len * heads.qk(), 1), random_values(len * heads.qkv(), 2));
                let cpu = Cpu::new();
                let (mut whole, mut logsumexp) = (vec![0.0; len * heads.out()], vec![0.0; len * q]);
                let part = |data, stride, first| Strided { data, stride, first };
                let queries = part(&qk[..], heads.qk(), 0);
                cpu.attention(
                    heads,
                    &[Span { query: 0, query_len: len, key: 0, key_len: len }],
                    [queries, part(&qk[..], heads.qk(), heads.out()), part(&qkv[..], heads.qkv(), heads.qk())],
                    &mut whole,
                    &mut logsumexp,
                );
                // Scattered blocks that contain NaN from a diverged model.
                let table: Vec<u32> = (0..len.div_ceil(BLOCK_SIZE) as u32).map(|p| 1 + (p * 7) % 11).collect();
                let kv_blocks = KvBlocks::new(heads, 2, 12);
                // SAFETY: only this test accesses the memory.
                unsafe { (*kv_blocks.data).fill(f32::NAN) };
                let slots: Vec<BlockSlot> = (0..len)
                    .map(|i| BlockSlot { block: table[i / BLOCK_SIZE], slot: (i % BLOCK_SIZE) as u32 })
                    .collect();
                for step in [1, 3, 20, len] {
                    let mut from = 0;
                    while from < len {
                        let n = step.min(len - from);
                        let new = from * heads.qk()..(from + n) * heads.qk();
                        let new_values = from * heads.qkv()..(from + n) * heads.qkv();
                        // SAFETY: there is one thread.
                        unsafe { kv_blocks.store(1, &slots[from..from + n], &qk[new.clone()], &qkv[new_values]) };
                        let span = PagedSpan { query: 0, query_len: n, position: from, block_table: 0 };
                        let mut out = vec![0.0; n * heads.out()];
                        let queries = part(&qk[new], heads.qk(), 0);
                        // SAFETY: as above.
                        unsafe { cpu.paged_attention(1, &[span], &table, queries, &kv_blocks, &mut out) };
                        assert!(out == whole[from * heads.out()..(from + n) * heads.out()], "{heads:?} {len} {step}");
                        from += n;
                    }
                }
            }
        }
    }
}
