//! CublasLt of many single tokens by kernels of our own: norms, gates and what is added to are part of them.
//!
//! A few hundred rows are too few to fill a card with products: each is bound by its start, and by the norm or gate that
//! waits for its end. These have nothing between them, and each starts while the one before it ends.

use crate::error::{CudaError, Result};
use crate::model::CudaModel;
use crate::nvrtc::Dense;
use crate::stream::{Stream, args};
use crate::tma::{DEPTH, matrix};
use cudarc::driver::sys;
use std::ops::RangeInclusive;

/// Numbers of rows for which they are the faster way: two rows of tiles.
pub(crate) const ROWS: RangeInclusive<usize> = 129..=256;
/// Bytes of shared memory that a block has: all kernels' rings are about as large.
pub(crate) const SHARED: usize = 201 << 10;
/// Parts in which a row's sum of squares is left, at most.
pub(crate) const MOST_PARTS: usize = 32;
/// Outputs of a tile that blocks share, and how many share it: each leaves its part of a row's sum of squares.
const SHARED_ACROSS: usize = 64;
const SHARING: usize = 2;

/// One of the kernels: rows and outputs of its tiles, blocks that share one, and rows of weights that are asked for at a time.
struct Kernel {
    f: sys::CUfunction,
    down: usize,
    across: usize,
    sharing: usize,
    right: usize,
}

/// As in the kernels' source.
impl Dense {
    fn plain(&self) -> Kernel {
        Kernel { f: self.product, down: 128, across: 64, sharing: 1, right: 64 }
    }

    fn shared(&self) -> Kernel {
        Kernel { f: self.shared_product, down: 64, across: SHARED_ACROSS, sharing: SHARING, right: SHARED_ACROSS }
    }

    fn gated(&self) -> Kernel {
        Kernel { f: self.gated_product, down: 128, across: 96, sharing: 1, right: 48 }
    }
}

/// A product's shape: how many rows, and from how many inputs to how many outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
}

/// Rows that a product takes. Where `squares` is not 0, they are still to be divided by their norm, of which these are the
/// parts.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) rows: u64,
    pub(crate) squares: u64,
}

/// CudaWeights that a product takes, and those that the next one will, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Right {
    pub(crate) weights: u64,
    pub(crate) next: (u64, usize),
}

/// What a product leaves for the norm after it, where one comes: its rows times the norm's weights, and the parts of their
/// sums of squares.
#[derive(Clone, Copy, Default)]
pub(crate) struct ForNorm {
    pub(crate) weights: u64,
    pub(crate) rows: u64,
    pub(crate) squares: u64,
}

/// In how many parts the sum of squares of a row of so many numbers is left.
pub(crate) fn parts(width: usize) -> usize {
    width / SHARED_ACROSS * SHARING
}

impl CudaModel {
    /// Whether such kernels are there, for whole tiles, and all blocks of a product fit onto the card at once: larger
    /// products fill it anyway.
    pub(crate) fn has_dense(&self) -> bool {
        let Some(kernels) = &self.program.dense else { return false };
        let (c, most) = (&self.shape, self.device.info().multiprocessors);
        let whole = |kernel: Kernel, outputs: usize| {
            let tiles = outputs / kernel.across * ROWS.end().div_ceil(kernel.down) * kernel.sharing;
            outputs.is_multiple_of(kernel.across) && tiles <= most
        };
        whole(kernels.plain(), c.qkv_dim())
            && whole(kernels.gated(), 2 * c.intermediate_size)
            && whole(kernels.shared(), c.hidden_size)
            && [c.hidden_size, c.attn_out_dim(), c.intermediate_size].iter().all(|n| n.is_multiple_of(DEPTH))
            && parts(c.hidden_size) <= MOST_PARTS
    }

    /// `y = x · wᵀ`.
    pub(crate) fn dense(&self, s: &Stream, dims: Dims, x: Left, w: Right, y: u64) -> Result<()> {
        self.start_dense(s, Dense::plain, dims, dims.outputs, (x, w), (0, y), ForNorm::default())
    }

    /// `y += x · wᵀ`, where there are few outputs.
    pub(crate) fn dense_added(&self, s: &Stream, dims: Dims, x: u64, w: Right, y: u64, after: ForNorm) -> Result<()> {
        let x = Left { rows: x, squares: 0 };
        self.start_dense(s, Dense::shared, dims, dims.outputs, (x, w), (y, y), after)
    }

    /// `y = silu(x · gateᵀ) · (x · upᵀ)`, where the weights are `outputs` gates and then as many rows that they gate.
    pub(crate) fn dense_gated(&self, s: &Stream, dims: Dims, x: Left, w: Right, y: u64) -> Result<()> {
        self.start_dense(s, Dense::gated, dims, 2 * dims.outputs, (x, w), (0, y), ForNorm::default())
    }

    #[allow(clippy::too_many_arguments)]
    fn start_dense(
        &self,
        s: &Stream,
        kernel: fn(&Dense) -> Kernel,
        Dims { rows, outputs, inputs }: Dims,
        rights: usize,
        (x, w): (Left, Right),
        (base, y): (u64, u64),
        after: ForNorm,
    ) -> Result<()> {
        let Some(kernels) = &self.program.dense else {
            return Err(CudaError::new("multiplying", "this card has no such kernels".to_owned()));
        };
        let Kernel { f, down, across, sharing, right } = kernel(kernels);
        s.launch_early(
            f,
            [rights / across, rows.div_ceil(down), sharing],
            sharing,
            2 * down + 32,
            SHARED,
            args![
                matrix(x.rows, rows, inputs, down)?,
                matrix(w.weights, rights, inputs, right)?,
                rows,
                outputs,
                inputs,
                x.squares,
                parts(inputs),
                self.shape.rms_norm_eps,
                base,
                y,
                after.weights,
                after.rows,
                after.squares,
                w.next.0,
                w.next.1
            ],
        )
    }
}
