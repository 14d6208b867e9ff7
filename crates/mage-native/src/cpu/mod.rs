//! CPU kernels: methods of [`Cpu`] over row-major `f32` slices, whose rows are tokens.
//!
//! The order of every sum depends only on shapes, so results depend neither on the number of threads nor on the rest of the
//! batch.

mod adamw;
mod attention;
pub(crate) mod categorical;
pub(crate) mod gemm;
mod linear;
mod logprobs;
mod paged_attention;
mod rms_norm;
mod rope;
mod shared_ptr;
pub(crate) mod simd;
mod swiglu;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use attention::{AttentionOutput, Heads, Span};
pub(crate) use linear::PackedMatrix;
pub(crate) use logprobs::Target;
pub(crate) use paged_attention::{BlockSlot, KvBlocks, PagedSpan};
pub(crate) use rope::QkNormRope;

use rayon::prelude::*;
use simd::SimdLevel;
use std::ops::Range;

/// The CPU: SIMD level and threading mode of the kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    level: SimdLevel,
    /// Whether kernels may use the threads of the current pool.
    parallel: bool,
}

impl Cpu {
    pub(crate) fn new() -> Self {
        Cpu { level: SimdLevel::best(), parallel: true }
    }

    /// The same kernels on one thread, for use inside parallel tasks.
    pub(crate) fn single_threaded(self) -> Self {
        Cpu { parallel: false, ..self }
    }

    pub(crate) fn level(&self) -> SimdLevel {
        self.level
    }

    /// Display name of the SIMD instruction set.
    pub(crate) fn instructions(&self) -> &'static str {
        self.level.name()
    }

    /// Runs `work` over row ranges, in parallel if there is enough work. Rows must be independent of each other.
    fn par_rows(&self, rows: usize, row_len: usize, work: impl Fn(Range<usize>) + Sync) {
        const MIN_PARALLEL_WORK: usize = 1 << 15;
        let threads = rayon::current_num_threads();
        if !self.parallel || threads == 1 || rows * row_len < MIN_PARALLEL_WORK {
            return work(0..rows);
        }
        let step = rows.div_ceil(4 * threads).max(1);
        (0..rows.div_ceil(step)).into_par_iter().for_each(|i| work(i * step..rows.min((i + 1) * step)));
    }
}

/// A column range of wider rows: rows are `stride` apart, and the range starts at column `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<T> {
    pub(crate) data: T,
    pub(crate) stride: usize,
    pub(crate) first: usize,
}

/// Copies rows of `width`: row `i` of `to` is row `rows[i]` of `from`.
pub(crate) fn gather_rows(from: &[f32], rows: &[u32], width: usize, to: &mut [f32]) {
    for (&row, to) in rows.iter().zip(to.chunks_exact_mut(width)) {
        to.copy_from_slice(&from[row as usize * width..][..width]);
    }
}

/// Adds rows of `width`: row `i` of `from` to row `rows[i]` of `to`, in order of `i`.
pub(crate) fn scatter_add_rows(from: &[f32], rows: &[u32], width: usize, to: &mut [f32]) {
    for (&row, from) in rows.iter().zip(from.chunks_exact(width)) {
        add(from, &mut to[row as usize * width..][..width]);
    }
}

/// `to += from`.
pub(crate) fn add(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len());
    for (t, f) in to.iter_mut().zip(from) {
        *t += f;
    }
}

/// `x *= by`.
pub(crate) fn scale(x: &mut [f32], by: f32) {
    for x in x {
        *x *= by;
    }
}
