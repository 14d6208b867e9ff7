//! LoRA adapters: forward pass and gradients.
//!
//! `y += scale·B·(A·x)`. The base weights are frozen; A and B are bf16. The A matrices of projections with the same
//! input are stacked, so that one GEMM computes them all.

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Remedy, Result};
use crate::gemm::{CublasLt, GemmKind, Matrix};
use crate::model::{CudaModel, CudaWeights, check_len};
use crate::stream::Stream;
use std::ops::Range;
use std::sync::Arc;

/// Projections of a layer with the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuProjectionGroup {
    Qkv,
    Out,
    GateUp,
    Down,
}

/// Number of projection groups per layer.
pub const NUM_PROJECTION_GROUPS: usize = 4;

/// B matrix of one projection. It reads the A output from `rank_offset` on and adds to the group's outputs from
/// `output_offset` on.
#[derive(Clone, Debug)]
pub struct GpuLoraProjectionLayout {
    /// Range of B, `outputs` rows of `rank` elements.
    pub lora_b: Range<usize>,
    /// Rows of B.
    pub outputs: usize,
    /// First output that B adds to.
    pub output_offset: usize,
    /// First element of the A output that B reads.
    pub rank_offset: usize,
}

/// LoRA matrices of one projection group.
#[derive(Clone, Debug)]
pub struct GpuLoraGroupLayout {
    /// All A matrices, stacked.
    pub lora_a: Range<usize>,
    /// Rows of the stacked A matrices.
    pub total_rank: usize,
    /// The B matrices.
    pub projections: Vec<GpuLoraProjectionLayout>,
}

/// Ranges of an adapter's parameters in the flat buffer.
#[derive(Clone, Debug)]
pub struct GpuLoraLayout {
    /// LoRA rank.
    pub rank: usize,
    /// Scale of the adapter's output.
    pub scale: f32,
    /// By layer and projection group: QKV; attention output; gate and up; down.
    pub layers: Vec<[Option<GpuLoraGroupLayout>; NUM_PROJECTION_GROUPS]>,
    /// Number of parameters.
    pub len: usize,
}

impl GpuLoraLayout {
    /// Rejects adapters whose rank the GEMMs do not support.
    pub fn check(&self) -> Result<()> {
        Self::check_rank(self.rank)
    }

    /// Rejects a rank that the GEMMs do not support.
    pub fn check_rank(rank: usize) -> Result<()> {
        if rank.is_multiple_of(8) {
            return Ok(());
        }
        let problem = format!("rank {rank} is not a multiple of 8");
        Err(CudaError::new("loading an adapter on the GPU", problem)
            .hint("use a rank that is a multiple of 8, or merge the adapter into the model")
            .remedy(Remedy::Cpu))
    }

    /// Maximum size of a group's A output per token.
    pub fn max_total_rank(&self) -> usize {
        self.layers.iter().flatten().flatten().map(|g| g.total_rank).max().unwrap_or(0)
    }
}

/// An adapter on the GPU, in bf16.
pub struct CudaAdapter {
    pub(crate) layout: Arc<GpuLoraLayout>,
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
    pub fn upload_adapter(&self, layout: &Arc<GpuLoraLayout>, flat: &[f32]) -> Result<CudaAdapter> {
        layout.check()?;
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

    fn group(&self, layer: usize, group: GpuProjectionGroup) -> Option<&'a GpuLoraGroupLayout> {
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
        group_layout: &GpuLoraGroupLayout,
        n: usize,
        x: Matrix,
    ) -> Result<Matrix> {
        let lora_a_out = Matrix::new(self.lora_a_out, group_layout.total_rank);
        let (shape, a) = ((n, group_layout.total_rank, x.stride), self.weight_matrix(&group_layout.lora_a, x.stride));
        cublas.matmul_scaled(s, GemmKind::Forward, shape, x, a, None, lora_a_out, false, self.adapter.layout.scale)?;
        Ok(lora_a_out)
    }

    /// Adds the adapter's output for the contiguous rows `x` to the group's outputs `y`.
    pub(crate) fn forward(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (layer, group): (usize, GpuProjectionGroup),
        n: usize,
        x: Matrix,
        y: Matrix,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, lora_a_out) = (self.adapter.layout.rank, self.apply_lora_a(s, cublas, group_layout, n, x)?);
        for projection in &group_layout.projections {
            let (a_out, to) =
                (lora_a_out.skip_columns(projection.rank_offset), y.skip_columns(projection.output_offset));
            let b = self.weight_matrix(&projection.lora_b, rank);
            cublas.matmul(s, GemmKind::Forward, (n, projection.outputs, rank), a_out, b, Some(to), to, false)?;
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
        (layer, group): (usize, GpuProjectionGroup),
        n: usize,
        dy: Matrix,
        dx: Matrix,
        dlora_a_out: u64,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, dlora_a_out) = (self.adapter.layout.rank, Matrix::new(dlora_a_out, group_layout.total_rank));
        for projection in &group_layout.projections {
            let (from, to) =
                (dy.skip_columns(projection.output_offset), dlora_a_out.skip_columns(projection.rank_offset));
            let (b, scale) = (self.weight_matrix(&projection.lora_b, rank), self.adapter.layout.scale);
            cublas.matmul_scaled(
                s,
                GemmKind::InputGrad,
                (n, projection.outputs, rank),
                from,
                b,
                None,
                to,
                false,
                scale,
            )?;
        }
        let a = self.weight_matrix(&group_layout.lora_a, dx.stride);
        cublas.matmul(
            s,
            GemmKind::InputGrad,
            (n, group_layout.total_rank, dx.stride),
            dlora_a_out,
            a,
            Some(dx),
            dx,
            false,
        )
    }

    /// Adds to the gradients of A and B.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn backward_weights(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (layer, group): (usize, GpuProjectionGroup),
        n: usize,
        dy: Matrix,
        x: Matrix,
        dlora_a_out: u64,
        grads: &DeviceBuffer<f32>,
    ) -> Result<()> {
        let Some(group_layout) = self.group(layer, group) else { return Ok(()) };
        let (rank, lora_a_out) = (self.adapter.layout.rank, self.apply_lora_a(s, cublas, group_layout, n, x)?);
        for projection in &group_layout.projections {
            let (dy, a_out) =
                (dy.skip_columns(projection.output_offset), lora_a_out.skip_columns(projection.rank_offset));
            let db = Matrix::new(grads.at(projection.lora_b.start), rank);
            cublas.matmul(s, GemmKind::WeightGrad, (n, projection.outputs, rank), dy, a_out, Some(db), db, true)?;
        }
        let (dlora_a_out, da) = (
            Matrix::new(dlora_a_out, group_layout.total_rank),
            Matrix::new(grads.at(group_layout.lora_a.start), x.stride),
        );
        cublas.matmul(
            s,
            GemmKind::WeightGrad,
            (n, group_layout.total_rank, x.stride),
            dlora_a_out,
            x,
            Some(da),
            da,
            true,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_not_multiples_of_8_are_rejected() {
        let layout = |rank| GpuLoraLayout { rank, scale: 2.0, layers: Vec::new(), len: 0 };
        assert!(layout(16).check().is_ok());
        let error = layout(12).check().unwrap_err().to_string();
        assert!(error.contains("12") && error.contains("multiple of 8"), "{error}");
    }
}
