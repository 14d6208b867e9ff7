//! LoRA forward and backward pass: `y += (alpha / rank)·B·(A·x)`.
//!
//! Rows of one batch may use different adapters, or none. The GEMM with the frozen matrix covers all rows; the low-rank
//! GEMMs run per adapter, over its rows.

use super::Qwen3Model;
use crate::cpu::{Kernels, Strided};
use crate::weights::lora::{LoraGroupLayout, LoraLayout, PROJECTION_GROUPS, ProjectionGroup};
use std::ops::Range;
use std::sync::Arc;

/// LoRA weights: the flat parameter buffer and packed GEMM operands.
pub(crate) struct Adapter<K: Kernels> {
    pub(crate) flat: K::Buffer,
    pub(crate) layout: Arc<LoraLayout>,
    layers: Vec<[Option<PackedGroup<K>>; PROJECTION_GROUPS.len()]>,
}

struct PackedGroup<K: Kernels> {
    lora_a: K::Packed,
    lora_b: Vec<K::Packed>,
}

/// A range of rows that uses an adapter.
pub(crate) struct LoraSegment<'a, K: Kernels> {
    pub(crate) rows: Range<usize>,
    pub(crate) adapter: &'a Adapter<K>,
}

impl<K: Kernels> Adapter<K> {
    /// A segment of the first `rows` rows.
    pub(crate) fn on(&self, rows: usize) -> LoraSegment<'_, K> {
        LoraSegment { rows: 0..rows, adapter: self }
    }
}

impl<K: Kernels> Qwen3Model<K> {
    /// Packs an adapter from a flat parameter buffer.
    pub(crate) fn adapter(&self, layout: Arc<LoraLayout>, flat: K::Buffer) -> Adapter<K> {
        let (k, c, rank) = (&self.kernels, &self.config, layout.lora.rank);
        let packed = |groups: &[Option<LoraGroupLayout>; PROJECTION_GROUPS.len()]| {
            std::array::from_fn(|g| {
                let at = groups[g].as_ref()?;
                let lora_a = k.pack(k.get(&flat, at.lora_a.clone()), at.total_rank, PROJECTION_GROUPS[g].inputs(c));
                let lora_b =
                    at.projections.iter().map(|p| k.pack(k.get(&flat, p.lora_b.clone()), p.outputs, rank)).collect();
                Some(PackedGroup { lora_a, lora_b })
            })
        };
        Adapter { layers: layout.layers.iter().map(packed).collect(), flat, layout }
    }

    /// Repacks the GEMM operands after a change of the flat buffer.
    pub(crate) fn repack_adapter(&self, adapter: &mut Adapter<K>) {
        let (k, Adapter { flat, layout, layers }) = (&self.kernels, adapter);
        for (packed, at) in layers.iter_mut().flatten().zip(layout.layers.iter().flatten()) {
            if let (Some(packed), Some(at)) = (packed, at) {
                k.repack(k.get(flat, at.lora_a.clone()), &mut packed.lora_a);
                for (b, part) in packed.lora_b.iter_mut().zip(&at.projections) {
                    k.repack(k.get(flat, part.lora_b.clone()), b);
                }
            }
        }
    }

    /// Adds the LoRA terms of each segment to a group's outputs. `lora_a_out` holds the scaled A output of the last segment.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add_lora(
        &self,
        k: &K,
        lora: &[LoraSegment<'_, K>],
        layer: usize,
        group: ProjectionGroup,
        x: &K::Buffer,
        y: &mut K::Buffer,
        lora_a_out: &mut K::Buffer,
    ) {
        let (inputs, width) = (group.inputs(&self.config), group.outputs(&self.config));
        for LoraSegment { rows, adapter } in lora {
            let Adapter { layout, layers, .. } = adapter;
            let (Some(at), Some(packed)) = (&layout.layers[layer][group as usize], &layers[layer][group as usize])
            else {
                continue;
            };
            let (n, ranks) = (rows.len(), at.total_rank);
            k.reserve(lora_a_out, n * ranks);
            let input = k.get(x, rows.start * inputs..rows.end * inputs);
            k.linear(input, n, &packed.lora_a, k.get_mut(lora_a_out, 0..n * ranks), false);
            k.scale(k.get_mut(lora_a_out, 0..n * ranks), layout.lora.scale());
            for (part, b) in at.projections.iter().zip(&packed.lora_b) {
                let a_out = Strided { data: k.get(lora_a_out, 0..n * ranks), stride: ranks, first: part.rank_offset };
                let data = k.get_mut(y, rows.start * width..rows.end * width);
                k.linear_part(a_out, n, b, Strided { data, stride: width, first: part.output_offset });
            }
        }
    }

    /// Backward pass of a group's LoRA matrices: adds their weight gradients to `grads` and the input gradient to `dx`.
    /// `lora_a_out` is the buffer that [`add_lora`](Self::add_lora) filled for these rows.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add_lora_grad(
        &self,
        k: &K,
        adapter: &Adapter<K>,
        layer: usize,
        group: ProjectionGroup,
        n: usize,
        x: &K::Buffer,
        lora_a_out: &K::Buffer,
        dy: &K::Buffer,
        dx: &mut K::Buffer,
        dlora_a_out: &mut K::Buffer,
        grads: &mut K::Buffer,
    ) {
        let Some(at) = &adapter.layout.layers[layer][group as usize] else { return };
        let (inputs, width) = (group.inputs(&self.config), group.outputs(&self.config));
        let (ranks, rank) = (at.total_rank, adapter.layout.lora.rank);
        k.reserve(dlora_a_out, n * ranks);
        for part in &at.projections {
            let dy = Strided { data: k.get(dy, 0..n * width), stride: width, first: part.output_offset };
            let a_out = Strided { data: k.get(lora_a_out, 0..n * ranks), stride: ranks, first: part.rank_offset };
            let shape = (n, part.outputs, rank);
            k.linear_part_weight_grad(dy, a_out, shape, k.get_mut(grads, part.lora_b.clone()));
            let data = k.get_mut(dlora_a_out, 0..n * ranks);
            let to = Strided { data, stride: ranks, first: part.rank_offset };
            k.linear_part_input_grad(dy, k.get(&adapter.flat, part.lora_b.clone()), shape, to);
        }
        // The stored A output is already scaled; its gradient is not.
        k.scale(k.get_mut(dlora_a_out, 0..n * ranks), adapter.layout.lora.scale());
        let (d, shape) = (k.get(dlora_a_out, 0..n * ranks), (n, ranks, inputs));
        k.linear_weight_grad(d, k.get(x, 0..n * inputs), shape, k.get_mut(grads, at.lora_a.clone()));
        k.linear_input_grad(d, k.get(&adapter.flat, at.lora_a.clone()), shape, k.get_mut(dx, 0..n * inputs), true);
    }
}
