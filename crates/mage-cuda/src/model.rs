//! A model's shape and kernels on a card, and sets of weights for it.

use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::{CudaError, Result};
use crate::gemm::{CublasLt, Kind, Matrix};
use crate::lora::{GpuLoraSegment, Group};
use crate::nvrtc::Program;
use crate::shape::{GpuParamLayout, ModelShape};
use crate::stream::{Stream, args};
use std::sync::Arc;

/// A model's shape on a card: what all that work with it share.
pub struct CudaModel {
    pub(crate) device: Arc<CudaDevice>,
    pub(crate) shape: ModelShape,
    pub(crate) layout: GpuParamLayout,
    pub(crate) program: Program,
    /// Per position, half a head of cosines and as many sines.
    pub(crate) rope_table: DeviceBuffer<f32>,
}

/// One set of weights as products read them: bf16, in the order of the places.
pub struct CudaWeights {
    pub(crate) bf16: DeviceBuffer<u16>,
}

impl CudaWeights {
    /// All of them, widened.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let bits = self.bf16.to_vec()?;
        Ok(bits.into_iter().map(|x| f32::from_bits(u32::from(x) << 16)).collect())
    }

    /// Where parameter `i` is.
    pub(crate) fn at(&self, i: usize) -> u64 {
        self.bf16.at(i)
    }
}

/// Refuses numbers that are more or fewer than their places.
pub(crate) fn same_length(numbers: usize, places: usize) -> Result<()> {
    if numbers == places {
        return Ok(());
    }
    Err(CudaError::new("putting weights on the card", format!("{numbers} numbers for {places} places")))
}

impl CudaModel {
    /// Compiles the kernels, or finds them compiled. `turns` holds, per position, `head_dim / 2` cosines and as many sines.
    pub fn new(card: &Arc<CudaDevice>, shape: ModelShape, layout: GpuParamLayout, turns: &[f32]) -> Result<Arc<Self>> {
        shape.check()?;
        if turns.is_empty() || !turns.len().is_multiple_of(shape.head_dim) {
            let problem = format!("{} turns for heads of {}", turns.len(), shape.head_dim);
            return Err(CudaError::new("using a model on the card", problem));
        }
        let program = Program::new(card, &shape)?;
        Ok(Arc::new(CudaModel {
            device: Arc::clone(card),
            shape,
            layout,
            program,
            rope_table: DeviceBuffer::from_slice(card, turns)?,
        }))
    }

    /// The card it is on.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// CudaWeights from a flat buffer, as long as the places say.
    pub fn upload_weights(&self, flat: &[f32]) -> Result<CudaWeights> {
        same_length(flat.len(), self.layout.len)?;
        self.narrowed(flat)
    }

    /// Positions that tokens can have.
    pub(crate) fn positions(&self) -> usize {
        self.rope_table.len() / self.shape.head_dim
    }

    /// Warps of the card that single tokens' attention can have.
    pub(crate) fn decode_warps(&self) -> usize {
        self.device.info().multiprocessors * self.program.decode.most
    }

    /// Refuses tokens that have no row in the embedding.
    pub(crate) fn check_tokens<'a>(&self, mut tokens: impl Iterator<Item = &'a u32>) -> Result<()> {
        match tokens.find(|t| **t as usize >= self.shape.vocab_size) {
            None => Ok(()),
            Some(t) => Err(CudaError::new("reading tokens", format!("token {t} of {}", self.shape.vocab_size))),
        }
    }

    /// Numbers as products read them.
    pub(crate) fn narrowed(&self, flat: &[f32]) -> Result<CudaWeights> {
        // A piece at a time: the fp32 form need not fit on the card.
        const PIECE: usize = 1 << 26;
        let stream = Stream::new(&self.device)?;
        let bf16 = DeviceBuffer::new(&self.device, flat.len())?;
        let wide = DeviceBuffer::<f32>::new(&self.device, flat.len().min(PIECE))?;
        for (i, piece) in flat.chunks(PIECE).enumerate() {
            wide.put(&stream, piece)?;
            self.narrow(&stream, wide.at(0), piece.len(), bf16.at(i * PIECE))?;
            stream.wait()?;
        }
        Ok(CudaWeights { bf16 })
    }

    /// bf16 numbers from fp32 ones.
    pub(crate) fn narrow(&self, stream: &Stream, from: u64, count: usize, to: u64) -> Result<()> {
        let blocks = count.div_ceil(256).min(65_536);
        stream.launch(self.program.functions.narrow_all, (blocks, 1, 1), 256, 0, args![from, count as u64, to])
    }

    /// Where a group's matrix is, its outputs and its inputs.
    pub(crate) fn matrix(&self, layer: usize, group: Group) -> (usize, usize, usize) {
        let (c, at) = (&self.shape, &self.layout.layers[layer]);
        match group {
            Group::Qkv => (at.qkv_proj.start, c.qkv_dim(), c.hidden_size),
            Group::Out => (at.o_proj.start, c.hidden_size, c.attn_out_dim()),
            Group::GateUp => (at.gate_up_proj.start, 2 * c.intermediate_size, c.hidden_size),
            Group::Down => (at.down_proj.start, c.hidden_size, c.intermediate_size),
        }
    }

    /// Threads that a row of the hidden size takes, eight numbers each.
    pub(crate) fn row_threads(&self) -> usize {
        (self.shape.hidden_size / 8).next_multiple_of(32)
    }

    pub(crate) fn gather(&self, s: &Stream, from: u64, rows: u64, n: usize, width: usize, to: u64) -> Result<()> {
        let threads = (width / 8).clamp(32, 256);
        s.launch(self.program.functions.gather, (n, 1, 1), threads, 0, args![from, rows, width / 8, to])
    }

    pub(crate) fn norm(&self, s: &Stream, x: u64, w: u64, n: usize, y: u64, inverse: u64) -> Result<()> {
        let (d8, epsilon) = (self.shape.hidden_size / 8, self.shape.rms_norm_eps);
        s.launch(
            self.program.functions.rms_norm,
            (n, 1, 1),
            self.row_threads(),
            0,
            args![x, w, epsilon, d8, y, inverse],
        )
    }

    pub(crate) fn swiglu(&self, s: &Stream, x: u64, n: usize, y: u64) -> Result<()> {
        let f8 = self.shape.intermediate_size / 8;
        s.launch(self.program.functions.swiglu, (n, f8.div_ceil(128), 1), 128, 0, args![x, f8, y])
    }

    /// Norms and turns queries and keys. Where pages are given (else 0), keys and values go to their cells.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn head_norm_rope(
        &self,
        s: &Stream,
        qkv: u64,
        w: u64,
        positions: u64,
        n: usize,
        qk: u64,
        inverse: u64,
        (cells, pages): (u64, u64),
    ) -> Result<()> {
        let ModelShape { num_heads, num_kv_heads, rms_norm_eps, .. } = self.shape;
        let units = if pages == 0 { num_heads + num_kv_heads } else { num_heads + 2 * num_kv_heads };
        s.launch(
            self.program.functions.head_norm_rope,
            (n, units.div_ceil(8), 1),
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
                inverse,
                cells,
                pages
            ],
        )
    }

    /// One group's product of rows that lie end to end, with what an adapter adds to it. `base`, where there is one, is
    /// added too.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn linear(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        (w, worn): (&CudaWeights, Option<GpuLoraSegment<'_>>),
        (layer, group): (usize, Group),
        n: usize,
        x: u64,
        base: Option<u64>,
        y: u64,
    ) -> Result<()> {
        let (first, outputs, inputs) = self.matrix(layer, group);
        let (x, y, matrix) = (Matrix::new(x, inputs), Matrix::new(y, outputs), Matrix::new(w.at(first), inputs));
        let base = base.map(|at| Matrix::new(at, outputs));
        products.run(s, Kind::Forward, (n, outputs, inputs), x, matrix, base, y, false)?;
        worn.map_or(Ok(()), |worn| worn.add(s, products, (layer, group), n, x, y))
    }

    /// Everything of a layer after attention, from `x` and what attention yields to `y`, which may be `x`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn finish(
        &self,
        s: &Stream,
        products: &mut CublasLt,
        held: (&CudaWeights, Option<GpuLoraSegment<'_>>),
        layer: usize,
        n: usize,
        x: u64,
        attended: u64,
        (middle, inverse, normed, gate_up, gated): (u64, u64, u64, u64, u64),
        y: u64,
    ) -> Result<()> {
        let norm = held.0.at(self.layout.layers[layer].post_attention_norm.start);
        self.linear(s, products, held, (layer, Group::Out), n, attended, Some(x), middle)?;
        self.norm(s, middle, norm, n, normed, inverse)?;
        self.linear(s, products, held, (layer, Group::GateUp), n, normed, None, gate_up)?;
        self.swiglu(s, gate_up, n, gated)?;
        self.linear(s, products, held, (layer, Group::Down), n, gated, Some(middle), y)
    }
}
