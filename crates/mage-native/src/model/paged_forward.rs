//! How are the next tokens of many sequences taken in at once?
//!
//! Rows of all sequences go through each product together; attention alone looks at each sequence's own pages. In the
//! last layer only the rows that are asked about go on after their keys and values are stored.

use super::workspace::LayerActivations;
use super::{LoraSegment, Model, Weights};
use crate::cpu::{BLOCK_SIZE, BlockSlot, Kernels, PagedSpan, Strided};

/// New tokens of many sequences under one set of weights.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<BlockSlot>,
    pub(crate) spans: Vec<PagedSpan>,
    /// Rows that are asked about, ascending.
    pub(crate) asked: Vec<u32>,
    /// The same as spans, their queries numbered among those asked about.
    pub(crate) asked_spans: Vec<PagedSpan>,
}

impl Rows {
    pub(crate) fn clear(&mut self) {
        let Rows { tokens, positions, slots, spans, asked, asked_spans } = self;
        tokens.clear();
        positions.clear();
        slots.clear();
        spans.clear();
        asked.clear();
        asked_spans.clear();
    }

    /// Adds a sequence's new tokens, of which the last `asked` are asked about. `table` is where its pages are listed.
    pub(crate) fn push(&mut self, tokens: &[u32], position: usize, pages: &[u32], table: usize, asked: usize) {
        let (first, n) = (self.tokens.len(), tokens.len());
        self.tokens.extend_from_slice(tokens);
        for p in position..position + n {
            self.positions.push(p as u32);
            let (page, slot) = (pages[p / BLOCK_SIZE], (p % BLOCK_SIZE) as u32);
            self.slots.push(BlockSlot { page, slot });
        }
        self.spans.push(PagedSpan { query: first, query_len: n, position, table });
        if asked > 0 {
            let position = position + n - asked;
            self.asked_spans.push(PagedSpan { query: self.asked.len(), query_len: asked, position, table });
            self.asked.extend((first + n - asked) as u32..(first + n) as u32);
        }
    }
}

/// Everything a step needs besides weights and pages, kept from one step to the next.
pub(crate) struct PagedWorkspace<K: Kernels> {
    state: K::Buffer,
    next: K::Buffer,
    acts: LayerActivations<K>,
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
            acts: LayerActivations::new(k),
            queries: b(),
            normed: b(),
            inverse: b(),
            logits: b(),
        }
    }
}

impl<K: Kernels> Model<K> {
    /// Takes rows in: their keys and values into `pages`, and for those asked about, a few at a time, the logits to
    /// `tell`, with the number of the first. Adapters are told twice: by row, and by row among those asked about.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn step(
        &self,
        k: &K,
        w: &Weights<K>,
        (worn, asked_worn): (&[LoraSegment<'_, K>], &[LoraSegment<'_, K>]),
        rows: &Rows,
        tables: &[u32],
        pages: &K::Pages,
        s: &mut PagedWorkspace<K>,
        mut tell: impl FnMut(usize, usize, K::Ref<'_>),
    ) {
        let (c, heads) = (&self.config, self.config.heads());
        let (d, v, n, m) = (c.hidden_size, c.vocab_size, rows.tokens.len(), rows.asked.len());
        let longest = rows.positions.iter().max().map_or(0, |p| *p as usize + 1);
        let turns = self.turns(longest);
        s.acts.reserve(k, c, n);
        for buffer in [&mut s.state, &mut s.next] {
            k.reserve(buffer, n * d);
        }
        k.gather(k.get(&w.flat, self.layout.embedding.clone()), &rows.tokens, d, k.get_mut(&mut s.state, 0..n * d));
        for layer in 0..c.num_hidden_layers {
            self.project(k, w, worn, layer, &rows.positions, &turns, &s.state, &mut s.acts);
            let (qk, qkv) = (k.get(&s.acts.qk, 0..n * heads.qk()), k.get(&s.acts.qkv, 0..n * heads.qkv()));
            k.store_pages(heads, layer, &rows.slots, qk, qkv, pages);
            let last = layer + 1 == c.num_hidden_layers;
            if last && m == 0 {
                return;
            }
            if last && m < n {
                // Only the rows asked about go on.
                k.reserve(&mut s.queries, m * heads.qk());
                k.gather(qk, &rows.asked, heads.qk(), k.get_mut(&mut s.queries, 0..m * heads.qk()));
                k.gather(k.get(&s.state, 0..n * d), &rows.asked, d, k.get_mut(&mut s.next, 0..m * d));
                std::mem::swap(&mut s.state, &mut s.next);
                k.paged_attention(
                    heads,
                    layer,
                    &rows.asked_spans,
                    tables,
                    Strided { data: k.get(&s.queries, 0..m * heads.qk()), stride: heads.qk(), first: 0 },
                    pages,
                    k.get_mut(&mut s.acts.attended, 0..m * heads.out()),
                );
                self.finish(k, w, asked_worn, layer, m, &s.state, &mut s.acts, &mut s.next);
            } else {
                k.paged_attention(
                    heads,
                    layer,
                    &rows.spans,
                    tables,
                    Strided { data: qk, stride: heads.qk(), first: 0 },
                    pages,
                    k.get_mut(&mut s.acts.attended, 0..n * heads.out()),
                );
                self.finish(k, w, worn, layer, n, &s.state, &mut s.acts, &mut s.next);
            }
            std::mem::swap(&mut s.state, &mut s.next);
        }
        k.reserve(&mut s.normed, m * d);
        k.reserve(&mut s.inverse, m);
        k.norm(
            k.get(&s.state, 0..m * d),
            k.get(&w.flat, self.layout.norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut s.normed, 0..m * d),
            k.get_mut(&mut s.inverse, 0..m),
        );
        let step = self.logit_rows().min(m);
        k.reserve(&mut s.logits, step * v);
        for from in (0..m).step_by(step) {
            let count = step.min(m - from);
            let part = k.get(&s.normed, from * d..(from + count) * d);
            k.linear(part, count, &w.head, k.get_mut(&mut s.logits, 0..count * v), false);
            tell(from, count, k.get(&s.logits, 0..count * v));
        }
    }
}
