//! All layers over the rows of a step.

use super::{ModelRunner, Single};
use crate::error::Result;
use crate::fused_gemm::{self, Dims, ForNorm, Left, Right};
use crate::lora::{GpuLoraSegment, Group, WeightsRef};
use crate::stream::args;
use std::ops::Range;
use std::sync::Arc;

impl ModelRunner {
    /// All layers over `rows` rows, of which the first `single` are single tokens. The items of the others' attention
    /// start at `items`.
    pub(super) fn layers(
        &mut self,
        held: WeightsRef<'_>,
        rows: usize,
        (single, at): (usize, &Single),
        items: (usize, usize),
    ) -> Result<()> {
        let model = Arc::clone(&self.model);
        let (w, shape) = (held.base, &model.shape);
        let state = self.space.state.at(0);
        self.embed(held, rows, at)?;
        for (layer, places) in model.layout.layers.iter().enumerate() {
            let pages = self.layer_pages(layer);
            let norms = w.at(places.qk_norm.start);
            let ModelRunner { stream: s, products, space, .. } = self;
            let (normed, qkv, qk) = (space.normed.at(0), space.qkv.at(0), space.qk.at(0));
            model.norm(s, state, w.at(places.input_norm.start), rows, normed, 0)?;
            let worn = GpuLoraSegment::new(held.adapter, &space.low);
            model.linear(s, products, (w, worn), (layer, Group::Qkv), rows, normed, None, qkv)?;
            self.attend(single, at, norms, pages, false)?;
            // Longer pieces: all their keys must be in the pages before any query looks.
            let ModelRunner { stream: s, products, space, words, .. } = self;
            let longer = rows - single;
            let (positions, cells) = (words.at(at.positions + single), words.at(at.cells + single));
            let raw = space.qkv.at(single * shape.qkv_dim());
            let turned = space.qk.at(single * shape.qk_dim());
            model.head_norm_rope(s, raw, norms, positions, longer, turned, 0, (cells, pages))?;
            s.launch(
                model.program.functions.paged_attention,
                (shape.num_heads, items.1, 1),
                128,
                4 * shape.tile_bytes(),
                args![
                    qk,
                    pages,
                    words.at(at.tables),
                    words.at(items.0),
                    shape.num_heads,
                    shape.num_kv_heads,
                    shape.softmax_scale(),
                    space.attended.at(0)
                ],
            )?;
            let kept = (state, 0, normed, space.gate_up.at(0), space.gated.at(0));
            let worn = GpuLoraSegment::new(held.adapter, &space.low);
            model.finish(s, products, (w, worn), layer, rows, state, space.attended.at(0), kept, state)?;
        }
        Ok(())
    }

    /// Whether so many single tokens are better taken through the layers by `layers_dense`.
    pub(super) fn is_dense(&self, held: WeightsRef<'_>, rows: usize) -> bool {
        !self.invariant && held.adapter.is_none() && fused_gemm::ROWS.contains(&rows) && self.model.has_dense()
    }

    /// All layers over rows of single tokens, in four products and attention each.
    pub(super) fn layers_dense(&mut self, held: WeightsRef<'_>, rows: usize, at: &Single) -> Result<()> {
        let model = Arc::clone(&self.model);
        let (w, shape, layers) = (held.base, &model.shape, &model.layout.layers);
        let d = shape.hidden_size;
        self.embed(held, rows, at)?;
        let (s, space) = (&self.stream, &self.space);
        let (state, normed, squares) = (space.state.at(0), space.normed.at(0), space.squares.at(0));
        let (qkv, attended, gated) = (space.qkv.at(0), space.attended.at(0), space.gated.at(0));
        if let Some(first) = layers.first() {
            model.norm(s, state, w.at(first.input_norm.start), rows, normed, 0)?;
        }
        let dims = |outputs, inputs| Dims { rows, outputs, inputs };
        let unnormed = Left { rows: normed, squares };
        let right = |places: &Range<usize>, next: Option<&Range<usize>>| Right {
            weights: w.at(places.start),
            next: next.map_or((0, 0), |next| (w.at(next.start), 2 * next.len())),
        };
        let for_norm = |norm: &Range<usize>| ForNorm { weights: w.at(norm.start), rows: normed, squares };
        for (layer, places) in layers.iter().enumerate() {
            let next = layers.get(layer + 1);
            let x = if layer == 0 { Left { rows: normed, squares: 0 } } else { unnormed };
            // Attention leaves nothing in the cache.
            model.dense(s, dims(shape.qkv_dim(), d), x, right(&places.qkv_proj, None), qkv)?;
            self.attend(rows, at, w.at(places.qk_norm.start), self.layer_pages(layer), true)?;
            let (out, gate_up) = (
                right(&places.o_proj, Some(&places.gate_up_proj)),
                right(&places.gate_up_proj, Some(&places.down_proj)),
            );
            model.dense_added(
                s,
                dims(d, shape.attn_out_dim()),
                attended,
                out,
                state,
                for_norm(&places.post_attention_norm),
            )?;
            model.dense_gated(s, dims(shape.intermediate_size, d), unnormed, gate_up, gated)?;
            let down = right(&places.down_proj, next.map(|next| &next.qkv_proj));
            let after = next.map_or(ForNorm::default(), |next| for_norm(&next.input_norm));
            model.dense_added(s, dims(d, shape.intermediate_size), gated, down, state, after)?;
        }
        Ok(())
    }

    fn embed(&mut self, held: WeightsRef<'_>, rows: usize, at: &Single) -> Result<()> {
        let (model, d) = (&self.model, self.model.shape.hidden_size);
        let table = held.base.at(model.layout.embed_tokens.start);
        model.gather(&self.stream, table, self.words.at(at.tokens), rows, d, self.space.state.at(0))
    }

    /// Attention of the first `rows` rows, single tokens; `early` where the kernel before it lets others come.
    fn attend(&self, rows: usize, at: &Single, norms: u64, pages: u64, early: bool) -> Result<()> {
        let ModelRunner { model, stream: s, space, words, line, .. } = self;
        let (shape, decode, processors) = (&model.shape, model.program.decode, model.device.info().multiprocessors);
        let (warps, splits) = decode.plan(rows * shape.num_kv_heads, processors);
        let blocks = processors.min(rows * shape.num_kv_heads * splits);
        let f = model.program.functions.decode_attention;
        let args = args![
            space.qkv.at(0),
            norms,
            shape.rms_norm_eps,
            model.rope_table.at(0),
            pages,
            words.at(0),
            at.tables,
            at.lists,
            at.positions,
            shape.num_heads,
            shape.num_kv_heads,
            shape.softmax_scale(),
            space.attended.at(0),
            space.parts.at(0),
            space.done.at(0),
            rows,
            splits,
            line.at(0)
        ];
        if early {
            return s.launch_early(f, [blocks, 1, 1], 1, 32 * warps, warps * decode.warp, args);
        }
        s.launch(f, (blocks, 1, 1), 32 * warps, warps * decode.warp, args)
    }
}
