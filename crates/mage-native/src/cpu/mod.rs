//! CPU kernels.
//!
//! The order of every sum depends only on shapes, so results depend neither on the number of threads nor on the rest of the
//! batch.

mod adamw;
mod attention;
pub(crate) mod categorical;
pub(crate) mod gemm;
mod kernels;
mod logprobs;
mod paged_attention;
mod rms_norm;
mod rope;
mod shared_ptr;
pub(crate) mod simd;
mod swiglu;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use kernels::*;

use gemm::{Lhs, Rhs};
use rayon::prelude::*;
use simd::SimdLevel;
use std::ops::Range;

/// The CPU device: SIMD level and threading mode.
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

/// A weight matrix packed into column panels.
#[derive(Debug)]
pub(crate) struct Packed {
    data: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

impl Kernels for Cpu {
    type Buffer = Vec<f32>;
    type Ref<'a> = &'a [f32];
    type Mut<'a> = &'a mut [f32];
    type Packed = Packed;
    type KvBlocks = paged_attention::KvBlocks;

    fn single_threaded(&self) -> Self {
        Cpu { parallel: false, ..*self }
    }

    fn zeros(&self, len: usize) -> Vec<f32> {
        vec![0.0; len]
    }

    fn reserve(&self, buffer: &mut Vec<f32>, len: usize) {
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
    }

    fn get<'a>(&self, buffer: &'a Vec<f32>, range: Range<usize>) -> &'a [f32] {
        &buffer[range]
    }

    fn get_mut<'a>(&self, buffer: &'a mut Vec<f32>, range: Range<usize>) -> &'a mut [f32] {
        &mut buffer[range]
    }

    fn upload(&self, data: &[f32], to: &mut [f32]) {
        to.copy_from_slice(data);
    }

    fn download(&self, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn copy(&self, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn fill(&self, to: &mut [f32], value: f32) {
        to.fill(value);
    }

    fn add(&self, from: &[f32], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        for (t, f) in to.iter_mut().zip(from) {
            *t += f;
        }
    }

    fn gather(&self, from: &[f32], rows: &[u32], width: usize, to: &mut [f32]) {
        for (&row, to) in rows.iter().zip(to.chunks_exact_mut(width)) {
            to.copy_from_slice(&from[row as usize * width..][..width]);
        }
    }

    fn scatter_add(&self, from: &[f32], rows: &[u32], width: usize, to: &mut [f32]) {
        for (&row, from) in rows.iter().zip(from.chunks_exact(width)) {
            for (t, f) in to[row as usize * width..][..width].iter_mut().zip(from) {
                *t += f;
            }
        }
    }

    fn pack(&self, weight: &[f32], outputs: usize, inputs: usize) -> Packed {
        let mut packed = Packed { data: vec![0.0; gemm::packed_len(outputs, inputs)], outputs, inputs };
        self.repack(weight, &mut packed);
        packed
    }

    fn repack(&self, weight: &[f32], packed: &mut Packed) {
        let Packed { data, outputs, inputs } = packed;
        if self.parallel && data.len() > 1 << 16 {
            gemm::pack_transposed_parallel(weight, *outputs, *inputs, *inputs, data);
        } else {
            gemm::pack_transposed(weight, *outputs, *inputs, *inputs, data);
        }
    }

    fn linear(&self, x: &[f32], rows: usize, w: &Packed, y: &mut [f32], add: bool) {
        let right = Rhs::Packed { data: &w.data, k: w.inputs };
        let shape = (rows, w.outputs, w.inputs);
        gemm::gemm(self.level, self.parallel, shape, Lhs::rows(x, w.inputs), right, y, w.outputs, add);
    }

    fn linear_input_grad(&self, dy: &[f32], w: &[f32], shape: (usize, usize, usize), dx: &mut [f32], add: bool) {
        let (rows, outputs, inputs) = shape;
        let right = Rhs::Rows { data: w, stride: inputs };
        let shape = (rows, inputs, outputs);
        gemm::gemm(self.level, self.parallel, shape, Lhs::rows(dy, outputs), right, dx, inputs, add);
    }

    fn linear_weight_grad(&self, dy: &[f32], x: &[f32], shape: (usize, usize, usize), dw: &mut [f32]) {
        let (rows, outputs, inputs) = shape;
        let right = Rhs::Rows { data: x, stride: inputs };
        let shape = (outputs, inputs, rows);
        gemm::gemm(self.level, self.parallel, shape, Lhs::columns(dy, outputs), right, dw, inputs, true);
    }

    fn scale(&self, x: &mut [f32], by: f32) {
        for x in x {
            *x *= by;
        }
    }

    fn linear_part(&self, x: Strided<&[f32]>, rows: usize, w: &Packed, y: Strided<&mut [f32]>) {
        let left = Lhs::rows(&x.data[x.first..], x.stride);
        let right = Rhs::Packed { data: &w.data, k: w.inputs };
        let shape = (rows, w.outputs, w.inputs);
        gemm::gemm(self.level, self.parallel, shape, left, right, &mut y.data[y.first..], y.stride, true);
    }

    fn linear_part_input_grad(
        &self,
        dy: Strided<&[f32]>,
        w: &[f32],
        (rows, outputs, inputs): (usize, usize, usize),
        dx: Strided<&mut [f32]>,
    ) {
        let left = Lhs::rows(&dy.data[dy.first..], dy.stride);
        let right = Rhs::Rows { data: w, stride: inputs };
        let shape = (rows, inputs, outputs);
        gemm::gemm(self.level, self.parallel, shape, left, right, &mut dx.data[dx.first..], dx.stride, false);
    }

    fn linear_part_weight_grad(
        &self,
        dy: Strided<&[f32]>,
        x: Strided<&[f32]>,
        (rows, outputs, inputs): (usize, usize, usize),
        dw: &mut [f32],
    ) {
        let left = Lhs::columns(&dy.data[dy.first..], dy.stride);
        let right = Rhs::Rows { data: &x.data[x.first..], stride: x.stride };
        gemm::gemm(self.level, self.parallel, (outputs, inputs, rows), left, right, dw, inputs, true);
    }

    fn rms_norm(&self, x: &[f32], w: &[f32], epsilon: f32, y: &mut [f32], rstd: &mut [f32]) {
        rms_norm::forward(self, x, w, epsilon, y, rstd);
    }

    fn rms_norm_grad(&self, dy: &[f32], x: &[f32], w: &[f32], rstd: &[f32], dx: &mut [f32], dw: Option<&mut [f32]>) {
        rms_norm::backward(self, dy, x, w, rstd, dx, dw);
    }

    fn qk_norm_rope(
        &self,
        heads: Heads,
        qkv: &[f32],
        w: &[f32],
        epsilon: f32,
        cos_sin: &[f32],
        positions: &[u32],
        qk: &mut [f32],
        rstd: &mut [f32],
    ) {
        rope::forward(self, heads, qkv, w, epsilon, cos_sin, positions, qk, rstd);
    }

    fn qk_norm_rope_grad(
        &self,
        heads: Heads,
        dqk: &[f32],
        qkv: &[f32],
        w: &[f32],
        cos_sin: &[f32],
        positions: &[u32],
        rstd: &[f32],
        dqkv: &mut [f32],
        dw: Option<&mut [f32]>,
    ) {
        rope::backward(self, heads, dqk, qkv, w, cos_sin, positions, rstd, dqkv, dw);
    }

    fn attention(
        &self,
        heads: Heads,
        spans: &[Span],
        q: Strided<&[f32]>,
        k: Strided<&[f32]>,
        v: Strided<&[f32]>,
        out: &mut [f32],
        logsumexp: &mut [f32],
    ) {
        attention::forward(self, heads, spans, q, k, v, out, logsumexp);
    }

    fn attention_grad(
        &self,
        heads: Heads,
        spans: &[Span],
        qk: &[f32],
        qkv: &[f32],
        out: &[f32],
        logsumexp: &[f32],
        dout: &[f32],
        dqk: &mut [f32],
        dqkv: &mut [f32],
    ) {
        attention::backward(self, heads, spans, qk, qkv, out, logsumexp, dout, dqk, dqkv);
    }

    fn alloc_kv_blocks(&self, heads: Heads, layers: usize, count: usize) -> paged_attention::KvBlocks {
        paged_attention::KvBlocks::new(heads, layers, count)
    }

    fn copy_blocks(&self, kv_blocks: &mut paged_attention::KvBlocks, copies: &[(u32, u32)]) {
        paged_attention::copy(kv_blocks, copies);
    }

    fn store_kv(
        &self,
        heads: Heads,
        layer: usize,
        slots: &[BlockSlot],
        qk: &[f32],
        qkv: &[f32],
        kv_blocks: &paged_attention::KvBlocks,
    ) {
        paged_attention::store(heads, layer, slots, qk, qkv, kv_blocks);
    }

    fn paged_attention(
        &self,
        heads: Heads,
        layer: usize,
        spans: &[PagedSpan],
        block_tables: &[u32],
        q: Strided<&[f32]>,
        kv_blocks: &paged_attention::KvBlocks,
        out: &mut [f32],
    ) {
        paged_attention::attention(self, heads, layer, spans, block_tables, q, kv_blocks, out);
    }

    fn swiglu(&self, x: &[f32], width: usize, y: &mut [f32]) {
        swiglu::forward(self, x, width, y);
    }

    fn swiglu_grad(&self, dy: &[f32], x: &[f32], width: usize, dx: &mut [f32]) {
        swiglu::backward(self, dy, x, width, dx);
    }

    fn token_logprobs(&self, logits: &[f32], vocab_size: usize, targets: &[Target<'_>], out: &mut [TokenLogprob]) {
        logprobs::forward(self, logits, vocab_size, targets, out);
    }

    fn token_logprobs_grad(
        &self,
        logits: &mut [f32],
        vocab_size: usize,
        targets: &[Target<'_>],
        logprobs: &[TokenLogprob],
        dlogprobs: &[(f32, f32)],
    ) {
        logprobs::backward(self, logits, vocab_size, targets, logprobs, dlogprobs);
    }

    fn sum_of_squares(&self, x: &[f32]) -> f64 {
        adamw::sum_of_squares(self, x)
    }

    fn adamw(&self, set: AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        adamw::step(self, set, p, g, m, v);
    }
}
