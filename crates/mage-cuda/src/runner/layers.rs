//! The transformer layers of a step.

use super::{DecodeInputLayout, ModelRunner};
use crate::error::Result;
use crate::fused_gemm::{self, GemmDims, GemmInput, GemmWeights, NormEpilogue};
use crate::lora::{LoraWithScratch, WeightsRef};
use crate::stream::args;
use mage_engine::model::ProjectionGroup;
use std::ops::Range;
use std::sync::Arc;

impl ModelRunner {
    /// Runs all layers over `rows` tokens, of which the first `num_decode` are decoded. `tiles` are the attention tiles
    /// of the others.
    pub(super) fn layers(
        &mut self,
        weights: WeightsRef<'_>,
        rows: usize,
        (num_decode, offsets): (usize, &DecodeInputLayout),
        tiles: (usize, usize),
    ) -> Result<()> {
        let model = Arc::clone(&self.model);
        let (w, shape) = (weights.base, &model.shape);
        let hidden = self.workspace.hidden.at(0);
        self.embed(weights, rows, offsets)?;
        for (layer, layout) in model.layout.layers.iter().enumerate() {
            let kv_cache = self.layer_kv_cache(layer);
            let norms = w.at(layout.qk_norm.start);
            let ModelRunner { stream: s, cublas, workspace, .. } = self;
            let (normed, qkv, qk) = (workspace.normed.at(0), workspace.qkv.at(0), workspace.qk.at(0));
            model.rms_norm(s, hidden, w.at(layout.input_layernorm.start), rows, normed, 0)?;
            let lora = LoraWithScratch::new(weights.adapter, &workspace.lora_a_out);
            model.linear(s, cublas, (w, lora), (layer, ProjectionGroup::Qkv), rows, normed, None, qkv)?;
            self.attend_decode(num_decode, offsets, norms, kv_cache, false)?;
            // Prefill: all keys must be in the KV cache before any query reads them.
            let ModelRunner { stream: s, cublas, workspace, device_inputs, .. } = self;
            let num_prefill = rows - num_decode;
            let (positions, slots) =
                (device_inputs.at(offsets.positions + num_decode), device_inputs.at(offsets.slots + num_decode));
            let prefill_qkv = workspace.qkv.at(num_decode * shape.qkv_dim());
            let prefill_qk = workspace.qk.at(num_decode * shape.qk_dim());
            model.head_norm_rope(s, prefill_qkv, norms, positions, num_prefill, prefill_qk, 0, (slots, kv_cache))?;
            s.launch(
                model.kernels.common.paged_flash_attention,
                (shape.num_heads, tiles.1, 1),
                128,
                4 * shape.tile_bytes(),
                args![
                    qk,
                    kv_cache,
                    device_inputs.at(offsets.tables),
                    device_inputs.at(tiles.0),
                    shape.num_heads,
                    shape.num_kv_heads,
                    shape.softmax_scale(),
                    workspace.attn_out.at(0)
                ],
            )?;
            let buffers = (hidden, 0, normed, workspace.gate_up.at(0), workspace.mlp_act.at(0));
            let lora = LoraWithScratch::new(weights.adapter, &workspace.lora_a_out);
            model.post_attention(
                s,
                cublas,
                (w, lora),
                layer,
                rows,
                hidden,
                workspace.attn_out.at(0),
                buffers,
                hidden,
            )?;
        }
        Ok(())
    }

    /// Whether [`layers_fused`](Self::layers_fused) is faster for this number of decoded tokens.
    pub(super) fn use_fused_gemm(&self, weights: WeightsRef<'_>, rows: usize) -> bool {
        !self.batch_invariant
            && weights.adapter.is_none()
            && fused_gemm::FUSED_ROWS.contains(&rows)
            && self.model.has_fused_gemm()
    }

    /// Runs all layers over decoded tokens with four fused GEMMs and one attention kernel per layer.
    pub(super) fn layers_fused(
        &mut self,
        weights: WeightsRef<'_>,
        rows: usize,
        offsets: &DecodeInputLayout,
    ) -> Result<()> {
        let model = Arc::clone(&self.model);
        let (w, shape, layers) = (weights.base, &model.shape, &model.layout.layers);
        let d = shape.hidden_size;
        self.embed(weights, rows, offsets)?;
        let (s, workspace) = (&self.stream, &self.workspace);
        let (hidden, normed, squares) = (workspace.hidden.at(0), workspace.normed.at(0), workspace.squares.at(0));
        let (qkv, attn_out, mlp_act) = (workspace.qkv.at(0), workspace.attn_out.at(0), workspace.mlp_act.at(0));
        if let Some(first) = layers.first() {
            model.rms_norm(s, hidden, w.at(first.input_layernorm.start), rows, normed, 0)?;
        }
        let dims = |outputs, inputs| GemmDims { rows, outputs, inputs };
        let unnormed = GemmInput { rows: normed, squares };
        let gemm_weights = |range: &Range<usize>, next: Option<&Range<usize>>| GemmWeights {
            weights: w.at(range.start),
            prefetch: next.map_or((0, 0), |next| (w.at(next.start), 2 * next.len())),
        };
        let for_norm = |norm: &Range<usize>| NormEpilogue { weights: w.at(norm.start), rows: normed, squares };
        for (layer, layout) in layers.iter().enumerate() {
            let next = layers.get(layer + 1);
            let x = if layer == 0 { GemmInput { rows: normed, squares: 0 } } else { unnormed };
            // No prefetch: attention would evict the weights from the L2 cache.
            model.fused_gemm(s, dims(shape.qkv_dim(), d), x, gemm_weights(&layout.qkv_proj, None), qkv)?;
            self.attend_decode(rows, offsets, w.at(layout.qk_norm.start), self.layer_kv_cache(layer), true)?;
            let (out, gate_up) = (
                gemm_weights(&layout.o_proj, Some(&layout.gate_up_proj)),
                gemm_weights(&layout.gate_up_proj, Some(&layout.down_proj)),
            );
            model.fused_gemm_add(
                s,
                dims(d, shape.attn_out_dim()),
                attn_out,
                out,
                hidden,
                for_norm(&layout.post_attention_layernorm),
            )?;
            model.fused_gemm_swiglu(s, dims(shape.intermediate_size, d), unnormed, gate_up, mlp_act)?;
            let down = gemm_weights(&layout.down_proj, next.map(|next| &next.qkv_proj));
            let after = next.map_or(NormEpilogue::default(), |next| for_norm(&next.input_layernorm));
            model.fused_gemm_add(s, dims(d, shape.intermediate_size), mlp_act, down, hidden, after)?;
        }
        Ok(())
    }

    fn embed(&mut self, weights: WeightsRef<'_>, rows: usize, offsets: &DecodeInputLayout) -> Result<()> {
        let (model, d) = (&self.model, self.model.shape.hidden_size);
        let table = weights.base.at(model.layout.embed_tokens.start);
        model.gather_rows(
            &self.stream,
            table,
            self.device_inputs.at(offsets.tokens),
            rows,
            d,
            self.workspace.hidden.at(0),
        )
    }

    /// Attention of the first `rows` tokens, which are decoded. With `overlap`, it may start before the previous kernel
    /// ends.
    fn attend_decode(
        &self,
        rows: usize,
        offsets: &DecodeInputLayout,
        norms: u64,
        kv_cache: u64,
        overlap: bool,
    ) -> Result<()> {
        let ModelRunner { model, stream: s, workspace, device_inputs, work_counter, .. } = self;
        let (shape, decode, num_sms) = (&model.shape, model.kernels.decode, model.device.info().multiprocessors);
        let (warps, splits) = decode.plan(rows * shape.num_kv_heads, num_sms);
        let blocks = num_sms.min(rows * shape.num_kv_heads * splits);
        let f = model.kernels.common.paged_decode_attention;
        let args = args![
            workspace.qkv.at(0),
            norms,
            shape.rms_norm_eps,
            model.rope_table.at(0),
            kv_cache,
            device_inputs.at(0),
            offsets.tables,
            offsets.table_offsets,
            offsets.positions,
            shape.num_heads,
            shape.num_kv_heads,
            shape.softmax_scale(),
            workspace.attn_out.at(0),
            workspace.partials.at(0),
            workspace.split_counters.at(0),
            rows,
            splits,
            work_counter.at(0)
        ];
        if overlap {
            return s.launch_dependent(f, [blocks, 1, 1], 1, 32 * warps, warps * decode.warp_bytes, args);
        }
        s.launch(f, (blocks, 1, 1), 32 * warps, warps * decode.warp_bytes, args)
    }
}
