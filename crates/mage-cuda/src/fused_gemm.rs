//! GEMMs for decode batches with fused norm, SwiGLU and residual addition.
//!
//! A few hundred rows do not fill a GPU: each GEMM is bound by its launch and by the norm or activation that waits for
//! it. These kernels run back to back, and each one starts while its predecessor ends (programmatic dependent launch).

use crate::error::{CudaError, Result};
use crate::model::CudaModel;
use crate::nvrtc::FusedGemmKernels;
use crate::stream::{Stream, args};
use crate::tma::{TILE_K, matrix_map};
use cudarc::driver::sys;
use std::ops::RangeInclusive;

/// Numbers of rows for which the fused GEMMs are faster: two rows of tiles.
pub(crate) const FUSED_ROWS: RangeInclusive<usize> = 129..=256;
/// Bytes of shared memory per thread block. The pipelines of all kernels are about this large.
pub(crate) const SHARED_BYTES: usize = 201 << 10;
/// Maximum number of partial sums of squares per row.
pub(crate) const MAX_NORM_PARTIALS: usize = 32;
/// Outputs per tile of the split-K kernel, and the number of splits. Each split stores its own partial sum of squares
/// per row.
const SPLIT_K_TILE_N: usize = 64;
const SPLIT_K: usize = 2;

/// One of the kernels: tile shape, splits of the inputs, and weight rows per TMA load.
struct FusedGemmConfig {
    kernel: sys::CUfunction,
    tile_m: usize,
    tile_n: usize,
    split_k: usize,
    box_rows: usize,
}

/// Must match the kernel source.
impl FusedGemmKernels {
    fn plain(&self) -> FusedGemmConfig {
        FusedGemmConfig { kernel: self.fused_gemm, tile_m: 128, tile_n: 64, split_k: 1, box_rows: 64 }
    }

    fn split_k(&self) -> FusedGemmConfig {
        FusedGemmConfig {
            kernel: self.fused_gemm_split_k,
            tile_m: 64,
            tile_n: SPLIT_K_TILE_N,
            split_k: SPLIT_K,
            box_rows: SPLIT_K_TILE_N,
        }
    }

    fn swiglu(&self) -> FusedGemmConfig {
        FusedGemmConfig { kernel: self.fused_gemm_swiglu, tile_m: 128, tile_n: 96, split_k: 1, box_rows: 48 }
    }
}

/// Shape of a linear layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmDims {
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// Input rows. If `squares` is not 0, the rows are not yet divided by their RMS, which follows from these partial sums
/// of squares.
#[derive(Clone, Copy)]
pub(crate) struct GemmInput {
    pub(crate) rows: u64,
    pub(crate) squares: u64,
}

/// Weights of a GEMM, and address and bytes of those to prefetch for the next one.
#[derive(Clone, Copy)]
pub(crate) struct GemmWeights {
    pub(crate) weights: u64,
    pub(crate) prefetch: (u64, usize),
}

/// Output for the RMSNorm that follows, if any: the rows times the norm's weights, and partial sums of squares.
#[derive(Clone, Copy, Default)]
pub(crate) struct NormEpilogue {
    pub(crate) weights: u64,
    pub(crate) rows: u64,
    pub(crate) squares: u64,
}

/// Number of partial sums of squares for a row of this width.
pub(crate) fn num_partials(width: usize) -> usize {
    width / SPLIT_K_TILE_N * SPLIT_K
}

impl CudaModel {
    /// Whether the kernels exist for this model: its dimensions are multiples of the tiles, and all thread blocks of a
    /// GEMM fit on the GPU at once. Larger GEMMs fill the GPU anyway.
    pub(crate) fn has_fused_gemm(&self) -> bool {
        let Some(kernels) = &self.kernels.fused_gemm else { return false };
        let (c, num_sms) = (&self.shape, self.device.info().multiprocessors);
        let fits = |config: FusedGemmConfig, outputs: usize| {
            let tiles = outputs / config.tile_n * FUSED_ROWS.end().div_ceil(config.tile_m) * config.split_k;
            outputs.is_multiple_of(config.tile_n) && tiles <= num_sms
        };
        fits(kernels.plain(), c.qkv_dim())
            && fits(kernels.swiglu(), 2 * c.intermediate_size)
            && fits(kernels.split_k(), c.hidden_size)
            && [c.hidden_size, c.attn_out_dim(), c.intermediate_size].iter().all(|n| n.is_multiple_of(TILE_K))
            && num_partials(c.hidden_size) <= MAX_NORM_PARTIALS
    }

    /// `y = x · wᵀ`.
    pub(crate) fn fused_gemm(&self, s: &Stream, dims: GemmDims, x: GemmInput, w: GemmWeights, y: u64) -> Result<()> {
        self.launch_fused_gemm(s, FusedGemmKernels::plain, dims, dims.outputs, (x, w), (0, y), NormEpilogue::default())
    }

    /// `y += x · wᵀ`, for few outputs.
    pub(crate) fn fused_gemm_add(
        &self,
        s: &Stream,
        dims: GemmDims,
        x: u64,
        w: GemmWeights,
        y: u64,
        after: NormEpilogue,
    ) -> Result<()> {
        let x = GemmInput { rows: x, squares: 0 };
        self.launch_fused_gemm(s, FusedGemmKernels::split_k, dims, dims.outputs, (x, w), (y, y), after)
    }

    /// `y = silu(x · gateᵀ) · (x · upᵀ)`. The weights are `outputs` gate rows and then as many up rows.
    pub(crate) fn fused_gemm_swiglu(
        &self,
        s: &Stream,
        dims: GemmDims,
        x: GemmInput,
        w: GemmWeights,
        y: u64,
    ) -> Result<()> {
        self.launch_fused_gemm(
            s,
            FusedGemmKernels::swiglu,
            dims,
            2 * dims.outputs,
            (x, w),
            (0, y),
            NormEpilogue::default(),
        )
    }

    #[allow(clippy::too_many_arguments)]
    fn launch_fused_gemm(
        &self,
        s: &Stream,
        config: fn(&FusedGemmKernels) -> FusedGemmConfig,
        GemmDims { rows, outputs, inputs }: GemmDims,
        num_weight_rows: usize,
        (x, w): (GemmInput, GemmWeights),
        (base, y): (u64, u64),
        after: NormEpilogue,
    ) -> Result<()> {
        let Some(kernels) = &self.kernels.fused_gemm else {
            return Err(CudaError::new("launching a fused GEMM", "this GPU has no fused GEMM kernels".to_owned()));
        };
        let FusedGemmConfig { kernel, tile_m, tile_n, split_k, box_rows } = config(kernels);
        s.launch_dependent(
            kernel,
            [num_weight_rows / tile_n, rows.div_ceil(tile_m), split_k],
            split_k,
            2 * tile_m + 32,
            SHARED_BYTES,
            args![
                matrix_map(x.rows, rows, inputs, tile_m)?,
                matrix_map(w.weights, num_weight_rows, inputs, box_rows)?,
                rows,
                outputs,
                inputs,
                x.squares,
                num_partials(inputs),
                self.shape.rms_norm_eps,
                base,
                y,
                after.weights,
                after.rows,
                after.squares,
                w.prefetch.0,
                w.prefetch.1
            ],
        )
    }
}
