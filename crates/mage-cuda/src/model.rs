//! A model's shape and kernels on a GPU, and its weights.
//!
//! A [`CudaModel`] holds no weights, so that several versions ([`CudaWeights`]) and adapters share its kernels. Its
//! methods launch the operations that training and inference have in common. They take device addresses and row counts;
//! callers guarantee that the buffers are large enough and stay allocated until the stream has passed.

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::{CudaError, Result};
use crate::gemm::{CublasLt, Gemm, GemmKind, Matrix};
use crate::lora::LoraWithScratch;
use crate::nvrtc::KernelModule;
use crate::shape::ModelShape;
use crate::stream::{Stream, args};
use mage_engine::model::{ParamLayout, ProjectionGroup};
use std::sync::Arc;

/// A model's shape and kernels on a GPU. Trainers, runners and weights share it.
pub struct CudaModel {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) shape: ModelShape,
    pub(crate) layout: ParamLayout,
    pub(crate) kernels: KernelModule,
    /// Per position, `head_dim / 2` cosines and as many sines.
    pub(crate) rope_table: DeviceBuffer<f32>,
}

/// Weights in bf16, in the order of the layout.
pub struct CudaWeights {
    pub(crate) bf16: DeviceBuffer<u16>,
}

impl CudaWeights {
    /// Copies all weights to the host as fp32.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let bits = self.bf16.to_vec()?;
        Ok(bits.into_iter().map(|x| f32::from_bits(u32::from(x) << 16)).collect())
    }

    /// Device address of parameter `i`.
    pub(crate) fn at(&self, i: usize) -> u64 {
        self.bf16.at(i)
    }
}

/// Rejects a flat buffer whose length differs from its layout's.
pub(crate) fn check_len(len: usize, expected: usize) -> Result<()> {
    if len == expected {
        return Ok(());
    }
    Err(CudaError::new("uploading weights", format!("{len} values for a layout of {expected} parameters")))
}

impl CudaModel {
    /// Compiles the kernels or loads them from the cache. `rope_table` holds `head_dim / 2` cosines and as many sines
    /// per position.
    pub fn new(
        device: &Arc<CudaDevice>,
        shape: ModelShape,
        layout: ParamLayout,
        rope_table: &[f32],
    ) -> Result<Arc<Self>> {
        shape.check()?;
        if rope_table.is_empty() || !rope_table.len().is_multiple_of(shape.head_dim) {
            let problem = format!("{} RoPE values for a head_dim of {}", rope_table.len(), shape.head_dim);
            return Err(CudaError::new("loading a model on the GPU", problem));
        }
        let kernels = KernelModule::new(device, &shape)?;
        Ok(Arc::new(CudaModel {
            device: Arc::clone(device),
            shape,
            layout,
            kernels,
            rope_table: DeviceBuffer::from_slice(device, rope_table)?,
        }))
    }

    /// The device of the model.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// Uploads weights from a flat buffer in the order of the layout.
    pub fn upload_weights(&self, flat: &[f32]) -> Result<CudaWeights> {
        check_len(flat.len(), self.layout.len)?;
        self.upload_bf16(flat)
    }

    /// Number of positions in the RoPE table.
    pub(crate) fn positions(&self) -> usize {
        self.rope_table.len() / self.shape.head_dim
    }

    /// Maximum number of concurrent warps of paged decode attention.
    pub(crate) fn decode_warps(&self) -> usize {
        self.device.info().multiprocessors * self.kernels.decode.max_warps
    }

    /// Rejects tokens outside the vocabulary.
    pub(crate) fn check_tokens<'a>(&self, mut tokens: impl Iterator<Item = &'a u32>) -> Result<()> {
        match tokens.find(|t| **t as usize >= self.shape.vocab_size) {
            None => Ok(()),
            Some(t) => Err(CudaError::new(
                "checking tokens",
                format!("token {t} is outside the vocabulary of {}", self.shape.vocab_size),
            )),
        }
    }

    /// Uploads values as bf16.
    pub(crate) fn upload_bf16(&self, flat: &[f32]) -> Result<CudaWeights> {
        // In chunks, because the fp32 form may not fit into GPU memory.
        const CHUNK: usize = 1 << 26;
        let stream = Stream::new(&self.device)?;
        let bf16 = DeviceBuffer::new(&self.device, flat.len())?;
        let fp32 = DeviceBuffer::<f32>::new(&self.device, flat.len().min(CHUNK))?;
        for (i, chunk) in flat.chunks(CHUNK).enumerate() {
            fp32.upload(&stream, chunk)?;
            self.f32_to_bf16(&stream, fp32.at(0), chunk.len(), bf16.at(i * CHUNK))?;
            stream.wait()?;
        }
        Ok(CudaWeights { bf16 })
    }

    /// Converts fp32 to bf16 on the device.
    pub(crate) fn f32_to_bf16(&self, stream: &Stream, from: u64, count: usize, to: u64) -> Result<()> {
        let blocks = count.div_ceil(256).min(65_536);
        stream.launch(self.kernels.common.f32_to_bf16, (blocks, 1, 1), 256, 0, args![from, count as u64, to])
    }

    /// Offset of a projection group's weights, its number of outputs and its number of inputs.
    pub(crate) fn projection(&self, layer: usize, group: ProjectionGroup) -> (usize, usize, usize) {
        let c = &self.shape;
        let (outputs, inputs) = match group {
            ProjectionGroup::Qkv => (c.qkv_dim(), c.hidden_size),
            ProjectionGroup::Out => (c.hidden_size, c.attn_out_dim()),
            ProjectionGroup::GateUp => (2 * c.intermediate_size, c.hidden_size),
            ProjectionGroup::Down => (c.hidden_size, c.intermediate_size),
        };
        (group.base_weights(&self.layout.layers[layer]).start, outputs, inputs)
    }

    /// Threads per row of the hidden size, at eight elements each.
    pub(crate) fn row_threads(&self) -> usize {
        (self.shape.hidden_size / 8).next_multiple_of(32)
    }

    pub(crate) fn gather_rows(&self, s: &Stream, from: u64, rows: u64, n: usize, width: usize, to: u64) -> Result<()> {
        let threads = (width / 8).clamp(32, 256);
        s.launch(self.kernels.common.gather_rows, (n, 1, 1), threads, 0, args![from, rows, width / 8, to])
    }

    pub(crate) fn rms_norm(&self, s: &Stream, x: u64, w: u64, n: usize, y: u64, rstd: u64) -> Result<()> {
        let (d8, epsilon) = (self.shape.hidden_size / 8, self.shape.rms_norm_eps);
        s.launch(self.kernels.common.rms_norm, (n, 1, 1), self.row_threads(), 0, args![x, w, epsilon, d8, y, rstd])
    }

    pub(crate) fn swiglu(&self, s: &Stream, x: u64, n: usize, y: u64) -> Result<()> {
        let f8 = self.shape.intermediate_size / 8;
        s.launch(self.kernels.common.swiglu, (n, f8.div_ceil(128), 1), 128, 0, args![x, f8, y])
    }

    /// Normalises and rotates queries and keys. With a KV cache (address not 0), keys and values are written to their
    /// slots.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn head_norm_rope(
        &self,
        s: &Stream,
        qkv: u64,
        w: u64,
        positions: u64,
        n: usize,
        qk: u64,
        rstd: u64,
        (slots, kv_cache): (u64, u64),
    ) -> Result<()> {
        let ModelShape { num_heads, num_kv_heads, rms_norm_eps, .. } = self.shape;
        let heads_written = if kv_cache == 0 { num_heads + num_kv_heads } else { num_heads + 2 * num_kv_heads };
        s.launch(
            self.kernels.common.head_norm_rope,
            (n, heads_written.div_ceil(8), 1),
            256,
            0,
            args![
                qkv,
                w,
                rms_norm_eps,
                self.rope_table.at(0),
                positions,
                num_heads,
                num_kv_heads,
                qk,
                rstd,
                slots,
                kv_cache
            ],
        )
    }

    /// A group's linear layer over contiguous rows, with its LoRA adapter. `base`, if given, is added.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn linear(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        (w, lora): (&CudaWeights, Option<LoraWithScratch<'_>>),
        (layer, group): (usize, ProjectionGroup),
        n: usize,
        x: u64,
        base: Option<u64>,
        y: u64,
    ) -> Result<()> {
        let (first, outputs, inputs) = self.projection(layer, group);
        let (x, y, weight) = (Matrix::new(x, inputs), Matrix::new(y, outputs), Matrix::new(w.at(first), inputs));
        let base = base.map(|at| Matrix::new(at, outputs));
        cublas.matmul(s, Gemm::new(GemmKind::Forward, (n, outputs, inputs), x, weight, y).plus(base))?;
        lora.map_or(Ok(()), |lora| lora.forward(s, cublas, (layer, group), n, x, y))
    }

    /// The layer after attention, from the residual `x` and the attention output to `y`, which may be `x`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn post_attention(
        &self,
        s: &Stream,
        cublas: &mut CublasLt,
        weights: (&CudaWeights, Option<LoraWithScratch<'_>>),
        layer: usize,
        n: usize,
        x: u64,
        attn_out: u64,
        (residual, rstd, normed, gate_up, mlp_act): (u64, u64, u64, u64, u64),
        y: u64,
    ) -> Result<()> {
        let norm_weight = weights.0.at(self.layout.layers[layer].post_attention_layernorm.start);
        self.linear(s, cublas, weights, (layer, ProjectionGroup::Out), n, attn_out, Some(x), residual)?;
        self.rms_norm(s, residual, norm_weight, n, normed, rstd)?;
        self.linear(s, cublas, weights, (layer, ProjectionGroup::GateUp), n, normed, None, gate_up)?;
        self.swiglu(s, gate_up, n, mlp_act)?;
        self.linear(s, cublas, weights, (layer, ProjectionGroup::Down), n, mlp_act, Some(residual), y)
    }
}
