//! Flash attention over whole sequences, forward and backward.
//!
//! Every GPU has kernels with one thread block per tile. GPUs with wgmma also have persistent warp-specialised kernels.

use crate::TILE;
use crate::error::{CudaError, Result};
use crate::model::CudaModel;
use crate::nvrtc::WarpSpecializedKernels;
use crate::stream::{Stream, args};
use crate::tma;

/// Bytes of shared memory per thread block of the warp-specialised kernels.
pub(crate) const WS_SHARED_BYTES: usize = 197 << 10;
/// Two consumer warp groups and one producer.
const WS_THREADS: usize = 3 * 128;

/// Which attention kernels are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionKernel {
    /// One thread block per tile.
    Tiled,
    /// Persistent thread blocks with two consumer warp groups each; at most one per work item.
    WarpSpecialized { blocks: usize },
}

impl AttentionKernel {
    /// Queries, or keys, per tile.
    pub(crate) fn rows(self) -> usize {
        match self {
            AttentionKernel::Tiled => TILE,
            AttentionKernel::WarpSpecialized { .. } => 2 * TILE,
        }
    }
}

/// Device address and length of a list of tiles, the longest first.
pub(crate) type TileList = (u64, usize);

/// Device addresses: rotated queries and keys, rows that end with values, the output, and its logsumexp.
#[derive(Clone, Copy)]
pub(crate) struct AttentionBuffers {
    pub(crate) num_tokens: usize,
    pub(crate) qk: u64,
    pub(crate) qkv: u64,
    pub(crate) out: u64,
    pub(crate) logsumexp: u64,
}

/// Device addresses of gradients: of the output, delta (dot product of the output and its gradient per head), of
/// rotated queries and keys, and of rows that end with values.
#[derive(Clone, Copy)]
pub(crate) struct AttentionGrads {
    pub(crate) out: u64,
    pub(crate) delta: u64,
    pub(crate) qk: u64,
    pub(crate) qkv: u64,
}

impl CudaModel {
    /// The fastest available kernels.
    pub(crate) fn attention_kernel(&self) -> AttentionKernel {
        // One per SM: shared memory does not hold more.
        let blocks = self.device.info().multiprocessors;
        if self.kernels.warp_specialized.is_some() {
            AttentionKernel::WarpSpecialized { blocks }
        } else {
            AttentionKernel::Tiled
        }
    }

    /// Computes the causal attention output and the logsumexp of each query.
    pub(crate) fn attention_forward(
        &self,
        s: &Stream,
        kernel: AttentionKernel,
        buffers: AttentionBuffers,
        (items, count): TileList,
    ) -> Result<()> {
        let AttentionBuffers { num_tokens, qk, qkv, out, logsumexp } = buffers;
        let (heads, kv, scale) = (self.shape.num_heads, self.shape.num_kv_heads, self.shape.softmax_scale());
        match kernel {
            AttentionKernel::Tiled => s.launch(
                self.kernels.common.flash_attention,
                (count, heads, 1),
                128,
                4 * self.shape.tile_bytes(),
                args![qk, qkv, items, heads, kv, scale, out, logsumexp],
            ),
            AttentionKernel::WarpSpecialized { blocks } => {
                let (num_items, [qk, qkv]) =
                    (count * heads, self.head_tensor_maps(num_tokens, [(qk, heads + kv), (qkv, heads + 2 * kv)])?);
                s.launch(
                    self.ws_kernels()?.flash_attention_ws,
                    (blocks.min(num_items), 1, 1),
                    WS_THREADS,
                    WS_SHARED_BYTES,
                    args![qk, qkv, items, num_items, heads, kv, scale, out, logsumexp],
                )
            }
        }
    }

    /// Computes the gradients of rotated queries and keys, and of values, from the gradient of the output.
    pub(crate) fn attention_backward(
        &self,
        s: &Stream,
        kernel: AttentionKernel,
        buffers: AttentionBuffers,
        grads: AttentionGrads,
        (queries, query_count): TileList,
        (keys, key_count): TileList,
    ) -> Result<()> {
        let AttentionBuffers { num_tokens, qk, qkv, out, logsumexp } = buffers;
        let AttentionGrads { out: dout, delta, qk: dqk, qkv: dqkv } = grads;
        let (heads, kv, scale) = (self.shape.num_heads, self.shape.num_kv_heads, self.shape.softmax_scale());
        let (f, num_heads_total) = (&self.kernels.common, num_tokens * heads);
        s.launch(
            f.flash_attention_delta,
            (num_heads_total.div_ceil(8), 1, 1),
            256,
            0,
            args![out, dout, num_heads_total, heads, delta],
        )?;
        match kernel {
            AttentionKernel::Tiled => {
                let tile = self.shape.tile_bytes();
                s.launch(
                    f.flash_attention_grad_kv,
                    (key_count, kv, 1),
                    128,
                    6 * tile + 1024,
                    args![qk, qkv, dout, logsumexp, delta, keys, heads, kv, scale, dqk, dqkv],
                )?;
                s.launch(
                    f.flash_attention_grad_q,
                    (query_count, heads, 1),
                    128,
                    4 * tile,
                    args![qk, qkv, dout, logsumexp, delta, queries, heads, kv, scale, dqk],
                )
            }
            AttentionKernel::WarpSpecialized { blocks } => {
                let maps =
                    self.head_tensor_maps(num_tokens, [(qk, heads + kv), (qkv, heads + 2 * kv), (dout, heads)])?;
                let ([qk, qkv, dout], warp_specialized, num_items) = (maps, self.ws_kernels()?, key_count * kv);
                let [logsumexp_map, delta_map] =
                    [logsumexp, delta].map(|at| tma::f32_map(at, num_tokens, self.shape.head_stats_stride(), TILE));
                s.launch(
                    warp_specialized.flash_attention_ws_grad_kv,
                    (blocks.min(num_items), 1, 1),
                    WS_THREADS,
                    WS_SHARED_BYTES,
                    args![qk, qkv, dout, logsumexp_map?, delta_map?, keys, num_items, heads, kv, scale, dqk, dqkv],
                )?;
                let num_items = query_count * heads;
                s.launch(
                    warp_specialized.flash_attention_ws_grad_q,
                    (blocks.min(num_items), 1, 1),
                    WS_THREADS,
                    WS_SHARED_BYTES,
                    args![qk, qkv, dout, logsumexp, delta, queries, num_items, heads, kv, scale, dqk],
                )
            }
        }
    }

    fn ws_kernels(&self) -> Result<&WarpSpecializedKernels> {
        let unsupported =
            || CudaError::new("launching attention", "this GPU has no warp-specialised attention kernels".to_owned());
        self.kernels.warp_specialized.as_ref().ok_or_else(unsupported)
    }

    /// Tensor maps of matrices with this many heads per row.
    fn head_tensor_maps<const N: usize>(
        &self,
        num_tokens: usize,
        matrices: [(u64, usize); N],
    ) -> Result<[tma::TensorMap; N]> {
        let mut maps = [tma::TensorMap { opaque: [0; 16] }; N];
        for (map, (at, heads)) in maps.iter_mut().zip(matrices) {
            *map = tma::head_map(at, num_tokens, heads, self.shape.head_dim, TILE)?;
        }
        Ok(maps)
    }
}
