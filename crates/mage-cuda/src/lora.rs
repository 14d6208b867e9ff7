//! What does an adapter add to a product on the card, and how does it learn?
//!
//! `y += scale·B·(A·x)`: the model's own matrices stay as they are, the thin ones beside them are read as bf16 like them.
//! First matrices of projections that read the same input lie on top of each other, so that one product does them all.

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::gemm::{CublasLt, Kind, Matrix};
use crate::model::{CudaModel, CudaWeights, same_length};
use crate::stream::Stream;
use std::ops::Range;
use std::sync::Arc;

/// Projections of a layer that read the same input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Qkv,
    Out,
    GateUp,
    Down,
}

/// How many there are.
pub const LORA_GROUPS: usize = 4;

/// One projection's second matrix: it reads the thin numbers from `first_rank` on and adds to the outputs from
/// `first_output` on.
#[derive(Clone, Debug)]
pub struct GpuLoraProjectionLayout {
    /// Where it is, `outputs` rows of as many numbers as the rank.
    pub lora_b: Range<usize>,
    /// Its rows.
    pub outputs: usize,
    /// The first output it adds to.
    pub output_offset: usize,
    /// The first thin number it reads.
    pub rank_offset: usize,
}

/// The pairs beside one group of projections.
#[derive(Clone, Debug)]
pub struct GpuLoraGroupLayout {
    /// All first matrices, on top of each other.
    pub lora_a: Range<usize>,
    /// Their rows.
    pub total_rank: usize,
    /// The second ones.
    pub projections: Vec<GpuLoraProjectionLayout>,
}

/// Where an adapter's parameters are.
#[derive(Clone, Debug)]
pub struct GpuLoraLayout {
    /// Numbers that pass between the two matrices of a pair.
    pub rank: usize,
    /// What is added is multiplied by this.
    pub scale: f32,
    /// By layer; beside queries, keys and values; the way out of attention; gates and ups; the way out.
    pub layers: Vec<[Option<GpuLoraGroupLayout>; LORA_GROUPS]>,
    /// How many parameters there are.
    pub len: usize,
}

impl GpuLoraLayout {
    /// Refuses what products cannot read.
    pub fn check(&self) -> Result<()> {
        Self::check_rank(self.rank)
    }

    /// The same, before there are any places.
    pub fn check_rank(rank: usize) -> Result<()> {
        if rank.is_multiple_of(8) {
            return Ok(());
        }
        let problem = format!("its rank, {rank}, is not a multiple of 8");
        Err(CudaError::new("using an adapter on the card", problem)
            .hint("take a multiple of 8, merge it into the model, or use --device cpu"))
    }

    /// The most thin numbers of a row at a time.
    pub fn max_total_rank(&self) -> usize {
        self.layers.iter().flatten().flatten().map(|g| g.total_rank).max().unwrap_or(0)
    }
}

/// An adapter as products read it.
pub struct CudaAdapter {
    pub(crate) layout: Arc<GpuLoraLayout>,
    pub(crate) weights: CudaWeights,
}

impl CudaAdapter {
    /// All its numbers, widened.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.weights.to_vec()
    }
}

/// The weights of a step: a model's own, with an adapter beside them or without.
#[derive(Clone, Copy)]
pub struct WeightsRef<'a> {
    /// The model's own.
    pub base: &'a CudaWeights,
    /// What is beside them.
    pub adapter: Option<&'a CudaAdapter>,
}

impl CudaModel {
    /// An adapter from a flat buffer.
    pub fn upload_adapter(&self, places: &Arc<GpuLoraLayout>, flat: &[f32]) -> Result<CudaAdapter> {
        places.check()?;
        same_length(flat.len(), places.len)?;
        Ok(CudaAdapter { layout: Arc::clone(places), weights: self.narrowed(flat)? })
    }
}

/// An adapter at work, with room for its thin rows.
#[derive(Clone, Copy)]
pub(crate) struct GpuLoraSegment<'a> {
    pub(crate) adapter: &'a CudaAdapter,
    /// What its first matrices yield.
    pub(crate) lora_a_out: u64,
}

impl<'a> GpuLoraSegment<'a> {
    /// With room in `low` for the thin rows.
    pub(crate) fn new(adapter: Option<&'a CudaAdapter>, low: &DeviceBuffer<u16>) -> Option<Self> {
        adapter.map(|adapter| GpuLoraSegment { adapter, lora_a_out: low.at(0) })
    }

    fn group(&self, layer: usize, group: Group) -> Option<&'a GpuLoraGroupLayout> {
        self.adapter.layout.layers[layer][group as usize].as_ref()
    }

    fn matrix(&self, at: &Range<usize>, stride: usize) -> Matrix {
        Matrix::new(self.adapter.weights.at(at.start), stride)
    }

    /// `low = scale·x·Aᵀ`.
    fn lower(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        at: &GpuLoraGroupLayout,
        n: usize,
        x: Matrix,
    ) -> Result<Matrix> {
        let low = Matrix::new(self.lora_a_out, at.total_rank);
        let (shape, a) = ((n, at.total_rank, x.stride), self.matrix(&at.lora_a, x.stride));
        products.scaled(s, Kind::Forward, shape, x, a, None, low, false, self.adapter.layout.scale)?;
        Ok(low)
    }

    /// Adds to a group's outputs `y` of the input `x`, whose rows lie end to end.
    pub(crate) fn add(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        (layer, group): (usize, Group),
        n: usize,
        x: Matrix,
        y: Matrix,
    ) -> Result<()> {
        let Some(at) = self.group(layer, group) else { return Ok(()) };
        let (rank, low) = (self.adapter.layout.rank, self.lower(s, products, at, n, x)?);
        for part in &at.projections {
            let (thin, to) = (low.after(part.rank_offset), y.after(part.output_offset));
            let b = self.matrix(&part.lora_b, rank);
            products.run(s, Kind::Forward, (n, part.outputs, rank), thin, b, Some(to), to, false)?;
        }
        Ok(())
    }

    /// Adds to `dx` what passes through the adapter. `dlow` is kept for [`learn`](Self::learn).
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn pass_back(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        (layer, group): (usize, Group),
        n: usize,
        dy: Matrix,
        dx: Matrix,
        dlow: u64,
    ) -> Result<()> {
        let Some(at) = self.group(layer, group) else { return Ok(()) };
        let (rank, dlow) = (self.adapter.layout.rank, Matrix::new(dlow, at.total_rank));
        for part in &at.projections {
            let (from, to) = (dy.after(part.output_offset), dlow.after(part.rank_offset));
            let (b, scale) = (self.matrix(&part.lora_b, rank), self.adapter.layout.scale);
            products.scaled(s, Kind::Input, (n, part.outputs, rank), from, b, None, to, false, scale)?;
        }
        let a = self.matrix(&at.lora_a, dx.stride);
        products.run(s, Kind::Input, (n, at.total_rank, dx.stride), dlow, a, Some(dx), dx, false)
    }

    /// Adds to the gradient of the adapter's own matrices.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn learn(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        (layer, group): (usize, Group),
        n: usize,
        dy: Matrix,
        x: Matrix,
        dlow: u64,
        grads: &DeviceBuffer<f32>,
    ) -> Result<()> {
        let Some(at) = self.group(layer, group) else { return Ok(()) };
        let (rank, low) = (self.adapter.layout.rank, self.lower(s, products, at, n, x)?);
        for part in &at.projections {
            let (dy, thin) = (dy.after(part.output_offset), low.after(part.rank_offset));
            let db = Matrix::new(grads.at(part.lora_b.start), rank);
            products.run(s, Kind::Weight, (n, part.outputs, rank), dy, thin, Some(db), db, true)?;
        }
        let (dlow, da) = (Matrix::new(dlow, at.total_rank), Matrix::new(grads.at(at.lora_a.start), x.stride));
        products.run(s, Kind::Weight, (n, at.total_rank, x.stride), dlow, x, Some(da), da, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_products_cannot_read_are_refused() {
        let places = |rank| GpuLoraLayout { rank, scale: 2.0, layers: Vec::new(), len: 0 };
        assert!(places(16).check().is_ok());
        let error = places(12).check().unwrap_err().to_string();
        assert!(error.contains("12") && error.contains("multiple of 8"), "{error}");
    }
}
