//! LoRA forward and backward pass: `y += (alpha / rank)·B·(A·x)`.
//!
//! Rows of one batch may use different adapters, or none. The GEMM with the frozen matrix covers all rows; the low-rank
//! GEMMs run per adapter, over its rows.

use super::Qwen3Model;
use super::forward::ForwardPass;
use crate::cpu::{PackedMatrix, Strided, scale};
use mage_engine::model::{LoraGroupLayout, LoraLayout, ProjectionGroup};
use std::ops::Range;
use std::sync::Arc;

/// LoRA weights: the flat parameter buffer and packed GEMM operands.
pub(crate) struct Adapter {
    pub(crate) flat: Vec<f32>,
    pub(crate) layout: Arc<LoraLayout>,
    layers: Vec<[Option<PackedGroup>; ProjectionGroup::ALL.len()]>,
}

struct PackedGroup {
    lora_a: PackedMatrix,
    lora_b: Vec<PackedMatrix>,
}

/// A range of rows that uses an adapter.
pub(crate) struct LoraSegment<'a> {
    pub(crate) rows: Range<usize>,
    pub(crate) adapter: &'a Adapter,
}

impl Adapter {
    /// A segment of the first `rows` rows.
    pub(crate) fn on(&self, rows: usize) -> LoraSegment<'_> {
        LoraSegment { rows: 0..rows, adapter: self }
    }
}

impl Qwen3Model {
    /// Packs an adapter from a flat parameter buffer.
    pub(crate) fn adapter(&self, layout: Arc<LoraLayout>, flat: Vec<f32>) -> Adapter {
        let (c, rank) = (&self.config, layout.lora.rank);
        let pack =
            |range: &Range<usize>, outputs: usize, inputs: usize| self.cpu.pack(&flat[range.clone()], outputs, inputs);
        let packed = |groups: &[Option<LoraGroupLayout>; ProjectionGroup::ALL.len()]| {
            std::array::from_fn(|g| {
                let at = groups[g].as_ref()?;
                let lora_a = pack(&at.lora_a, at.total_rank, c.group_inputs(ProjectionGroup::ALL[g]));
                let lora_b = at.projections.iter().map(|p| pack(&p.lora_b, p.outputs, rank)).collect();
                Some(PackedGroup { lora_a, lora_b })
            })
        };
        Adapter { layers: layout.layers.iter().map(packed).collect(), flat, layout }
    }

    /// Repacks the GEMM operands after a change of the flat buffer.
    pub(crate) fn repack_adapter(&self, adapter: &mut Adapter) {
        let Adapter { flat, layout, layers } = adapter;
        for (packed, at) in layers.iter_mut().flatten().zip(layout.layers.iter().flatten()) {
            if let (Some(packed), Some(at)) = (packed, at) {
                self.cpu.repack(&flat[at.lora_a.clone()], &mut packed.lora_a);
                for (b, part) in packed.lora_b.iter_mut().zip(&at.projections) {
                    self.cpu.repack(&flat[part.lora_b.clone()], b);
                }
            }
        }
    }
}

impl ForwardPass<'_> {
    /// Adds the LoRA terms of each segment to a group's outputs. The group's `lora_a_out` holds the scaled A output of the last
    /// segment.
    pub(super) fn add_lora(
        &self,
        layer: usize,
        group: ProjectionGroup,
        x: &[f32],
        y: &mut [f32],
        lora_a_out: &mut [Vec<f32>; ProjectionGroup::ALL.len()],
    ) {
        let (inputs, width) = (self.model.config.group_inputs(group), self.model.config.group_outputs(group));
        let lora_a_out = &mut lora_a_out[group as usize];
        for LoraSegment { rows, adapter } in self.lora {
            let Adapter { layout, layers, .. } = adapter;
            let (Some(at), Some(packed)) = (&layout.layers[layer][group as usize], &layers[layer][group as usize])
            else {
                continue;
            };
            let (n, ranks) = (rows.len(), at.total_rank);
            lora_a_out.resize(n * ranks, 0.0);
            self.cpu.linear(&x[rows.start * inputs..rows.end * inputs], &packed.lora_a, lora_a_out);
            scale(lora_a_out, layout.lora.scale());
            for (part, b) in at.projections.iter().zip(&packed.lora_b) {
                let a_out = Strided { data: &lora_a_out[..], stride: ranks, first: part.rank_offset };
                let data = &mut y[rows.start * width..rows.end * width];
                self.cpu.linear_part_add(a_out, n, b, Strided { data, stride: width, first: part.output_offset });
            }
        }
    }

    /// Backward pass of a group's LoRA matrices: adds their weight gradients to `grads` and the input gradient to `dx`.
    /// `lora_a_out` is the buffer that [`add_lora`](Self::add_lora) filled for these rows.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn add_lora_grad(
        &self,
        adapter: &Adapter,
        layer: usize,
        group: ProjectionGroup,
        x: &[f32],
        lora_a_out: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        dlora_a_out: &mut Vec<f32>,
        grads: &mut [f32],
    ) {
        let Some(at) = &adapter.layout.layers[layer][group as usize] else { return };
        let (cpu, n) = (self.cpu, self.positions.len());
        let (inputs, width) = (self.model.config.group_inputs(group), self.model.config.group_outputs(group));
        let (ranks, rank) = (at.total_rank, adapter.layout.lora.rank);
        dlora_a_out.resize(n * ranks, 0.0);
        for part in &at.projections {
            let dy = Strided { data: dy, stride: width, first: part.output_offset };
            let a_out = Strided { data: lora_a_out, stride: ranks, first: part.rank_offset };
            let da_out = Strided { data: &mut dlora_a_out[..], stride: ranks, first: part.rank_offset };
            let shape = (n, part.outputs, rank);
            cpu.linear_part_weight_grad(dy, a_out, shape, &mut grads[part.lora_b.clone()]);
            cpu.linear_part_input_grad(dy, &adapter.flat[part.lora_b.clone()], shape, da_out);
        }
        // The stored A output is already scaled; its gradient is not.
        scale(dlora_a_out, adapter.layout.lora.scale());
        let shape = (n, ranks, inputs);
        cpu.linear_weight_grad(dlora_a_out, x, shape, &mut grads[at.lora_a.clone()]);
        cpu.linear_input_grad_add(dlora_a_out, &adapter.flat[at.lora_a.clone()], shape, dx);
    }
}
