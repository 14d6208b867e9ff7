//! LoRA adapters: forward pass and gradients.
//!
//! `y += scale·B·(A·x)`. The base weights are frozen; A and B are bf16. All products are cuBLASLt GEMMs ([`CublasLt`]);
//! no kernel of this crate knows LoRA. The A matrices of projections with the same input are stacked, so that one GEMM
//! computes them all; each B then adds to its own columns of the output.

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Remedy, Result};
use crate::gemm::{CublasLt, Gemm, GemmKind, Matrix};
use crate::model::{CudaModel, CudaWeights, check_len};
use crate::stream::Stream;
use mage_engine::model::{LoraGroupLayout, LoraLayout, ProjectionGroup};
use std::ops::Range;
use std::sync::Arc;

/// Rejects a rank that the GEMMs do not support.
pub fn check_lora_rank(rank: usize) -> Result<()> {
    if rank.is_multiple_of(8) {
        return Ok(());
    }
    let problem = format!("rank {rank} is not a multiple of 8");
    Err(CudaError::new("loading an adapter on the GPU", problem)
        .hint("use a rank that is a multiple of 8, or merge the adapter into the model")
        .remedy(Remedy::Cpu))
}

/// An adapter on the GPU, in bf16.
pub struct CudaAdapter {
    pub(crate) layout: Arc<LoraLayout>,
    pub(crate) weights: CudaWeights,
}

impl CudaAdapter {
    /// Copies all parameters to the host as fp32.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.weights.to_vec()
    }
}

/// Weights of a step: base weights, and optionally an adapter.
#[derive(Clone, Copy)]
pub struct WeightsRef<'a> {
    /// Base weights.
    pub base: &'a CudaWeights,
    /// LoRA adapter.
    pub adapter: Option<&'a CudaAdapter>,
}

impl CudaModel {
    /// Uploads an adapter from a flat buffer in the order of the layout.
    pub fn upload_adapter(&self, layout: &Arc<LoraLayout>, flat: &[f32]) -> Result<CudaAdapter> {
        check_lora_rank(layout.lora.rank)?;
        check_len(flat.len(), layout.len)?;
        Ok(CudaAdapter { layout: Arc::clone(layout), weights: self.upload_bf16(flat)? })
    }
}

/// An adapter with scratch memory for its A output.
#[derive(Clone, Copy)]
pub(crate) struct LoraWithScratch<'a> {
    pub(crate) adapter: &'a CudaAdapter,
    /// Buffer for the output of the A matrices.
    pub(crate) lora_a_out: u64,
}

impl<'a> LoraWithScratch<'a> {
    /// Uses `lora_a_out` as the buffer for the A output.
    pub(crate) fn new(adapter: Option<&'a CudaAdapter>, lora_a_out: &DeviceBuffer<u16>) -> Option<Self> {
        adapter.map(|adapter| LoraWithScratch { adapter, lora_a_out: lora_a_out.at(0) })
    }

    fn group(&self, layer: usize, group: ProjectionGroup) -> Option<&'a LoraGroupLayout> {
        self.adapter.layout.layers[layer][group as usize].as_ref()
    }

    fn weight_matrix(&self, range: &Range<usize>, stride: usize) -> Matrix {
        Matrix::new(self.adapter.weights.at(range.start), stride)
    }

    /// `lora_a_out = scale·x·Aᵀ`.
    fn apply_lora_a(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        group_layout: &LoraGroupLayout,
        n: usize,
        x: Matrix,
    ) -> Result<Matrix> {
        let lora_a_out = Matrix::new(self.lora_a_out, group_layout.total_rank);
        let (shape, a) = ((n, group_layout.total_rank, x.stride), self.weight_matrix(&group_layout.lora_a, x.stride));
        let gemm = Gemm::new(GemmKind::Forward, shape, x, a, lora_a_out);
        cublas.matmul(s, gemm.scaled(self.adapter.layout.lora.scale()))?;
        Ok(lora_a_out)
    }

    /// Adds the adapter's output for the contiguous rows `x` to the group's outputs `y`.
    pub(crate) fn forward(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (layer, group): (usize, ProjectionGroup),
        n: usize,
        x: Matrix,
        y: Matrix,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, lora_a_out) = (self.adapter.layout.lora.rank, self.apply_lora_a(s, cublas, group_layout, n, x)?);
        for projection in &group_layout.projections {
            let (a_out, to) =
                (lora_a_out.skip_columns(projection.rank_offset), y.skip_columns(projection.output_offset));
            let b = self.weight_matrix(&projection.lora_b, rank);
            let gemm = Gemm::new(GemmKind::Forward, (n, projection.outputs, rank), a_out, b, to);
            cublas.matmul(s, gemm.accumulate())?;
        }
        Ok(())
    }

    /// Adds the gradient through the adapter to `dx`. Leaves the gradient of the A output in `dlora_a_out` for
    /// [`backward_weights`](Self::backward_weights).
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn backward_input(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (layer, group): (usize, ProjectionGroup),
        n: usize,
        dy: Matrix,
        dx: Matrix,
        dlora_a_out: u64,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, dlora_a_out) = (self.adapter.layout.lora.rank, Matrix::new(dlora_a_out, group_layout.total_rank));
        for projection in &group_layout.projections {
            let (from, to) =
                (dy.skip_columns(projection.output_offset), dlora_a_out.skip_columns(projection.rank_offset));
            let (b, scale) = (self.weight_matrix(&projection.lora_b, rank), self.adapter.layout.lora.scale());
            let gemm = Gemm::new(GemmKind::InputGrad, (n, projection.outputs, rank), from, b, to);
            cublas.matmul(s, gemm.scaled(scale))?;
        }
        let a = self.weight_matrix(&group_layout.lora_a, dx.stride);
        let shape = (n, group_layout.total_rank, dx.stride);
        cublas.matmul(s, Gemm::new(GemmKind::InputGrad, shape, dlora_a_out, a, dx).accumulate())
    }

    /// Adds to the gradients of A and B.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn backward_weights(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (layer, group): (usize, ProjectionGroup),
        n: usize,
        dy: Matrix,
        x: Matrix,
        dlora_a_out: u64,
        grads: &DeviceBuffer<f32>,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, lora_a_out) = (self.adapter.layout.lora.rank, self.apply_lora_a(s, cublas, group_layout, n, x)?);
        for projection in &group_layout.projections {
            let (dy, a_out) =
                (dy.skip_columns(projection.output_offset), lora_a_out.skip_columns(projection.rank_offset));
            let db = Matrix::new(grads.at(projection.lora_b.start), rank);
            let gemm = Gemm::new(GemmKind::WeightGrad, (n, projection.outputs, rank), dy, a_out, db);
            cublas.matmul(s, gemm.accumulate())?;
        }
        let (dlora_a_out, da) = (
            Matrix::new(dlora_a_out, group_layout.total_rank),
            Matrix::new(grads.at(group_layout.lora_a.start), x.stride),
        );
        let shape = (n, group_layout.total_rank, x.stride);
        cublas.matmul(s, Gemm::new(GemmKind::WeightGrad, shape, dlora_a_out, x, da).accumulate())
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ranks_that_are_not_multiples_of_8_are_rejected() {
        assert!(check_lora_rank(16).is_ok());
        let error = check_lora_rank(12).unwrap_err().to_string();
        assert!(error.contains("12") && error.contains("multiple of 8"), "{error}");
    }
}
