//! Training passes and optimizer steps.
//!
//! One pass over packed sequences at a time, forward and backward; gradients accumulate in fp32 until a step. Between
//! forward and backward, the host computes the gradient of the loss from log-probability and entropy of each target.
//! All sums have a fixed order, so the same batch gives the same bits on the same GPU.

mod adamw;
mod backward;
mod lm_head;
pub(crate) mod workspace;

use crate::TILE_WORDS;
use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::gemm::CublasLt;
use crate::lora::{CudaAdapter, LoraWithScratch};
use crate::model::{CudaModel, CudaWeights, check_len};
use crate::shape::ModelShape;
use crate::step_inputs::{KernelLogitQuery, QUERY_WORDS, StepInputs};
use crate::stream::Stream;
use mage_engine::model::{LoraLayout, PackedChunk, ProjectionGroup, TokenLogprob};
use std::sync::Arc;
use workspace::{GpuLayerActivations, TrainerWorkspace};

/// Trains the weights of a model, or an adapter on frozen weights.
pub struct ModelTrainer {
    model: Arc<CudaModel>,
    stream: Stream,
    cublas: CublasLt,
    weights: Arc<CudaWeights>,
    /// The adapter that is trained; `None` trains the base weights.
    adapter: Option<CudaAdapter>,
    // The trainable parameters, in fp32.
    params: DeviceBuffer<f32>,
    grads: DeviceBuffer<f32>,
    exp_avg: DeviceBuffer<f32>,
    exp_avg_sq: DeviceBuffer<f32>,
    workspace: TrainerWorkspace,
    step_inputs: StepInputs,
    device_inputs: DeviceBuffer<u32>,
    input_layout: InputLayout,
    /// Row order of the embedding gradient.
    embedding_order: DeviceBuffer<u32>,
}

/// Offsets in the inputs of a pass.
#[derive(Default)]
struct InputLayout {
    tokens: usize,
    positions: usize,
    target_indices: usize,
    query_tiles: (usize, usize),
    key_tiles: (usize, usize),
    queries: usize,
}

/// Thread blocks, and so partial sums, of a reduction over rows.
const PARTIALS: usize = 1056;

impl ModelTrainer {
    /// Workspace is allocated for multiples of this number of tokens.
    pub const TOKEN_GRANULARITY: usize = 256;

    /// Starts from these parameters, all of which are trained.
    pub fn new(model: &Arc<CudaModel>, flat: &[f32]) -> Result<Self> {
        check_len(flat.len(), model.layout.len)?;
        let weights = Arc::new(CudaWeights { bf16: DeviceBuffer::new(&model.device, flat.len())? });
        Self::build(model, weights, None, flat)
    }

    /// Starts from an adapter's parameters, which are trained, and a model's, which are frozen.
    pub fn with_adapter(
        model: &Arc<CudaModel>,
        weights: &Arc<CudaWeights>,
        layout: &Arc<LoraLayout>,
        flat: &[f32],
    ) -> Result<Self> {
        let adapter = model.upload_adapter(layout, flat)?;
        Self::build(model, Arc::clone(weights), Some(adapter), flat)
    }

    fn build(
        model: &Arc<CudaModel>,
        weights: Arc<CudaWeights>,
        adapter: Option<CudaAdapter>,
        flat: &[f32],
    ) -> Result<Self> {
        let device = &model.device;
        let stream = Stream::new(device)?;
        let cublas = CublasLt::new(&stream)?;
        let len = flat.len();
        let mut trainer = ModelTrainer {
            weights,
            adapter,
            params: DeviceBuffer::from_slice(device, flat)?,
            grads: DeviceBuffer::zeros(device, len)?,
            exp_avg: DeviceBuffer::zeros(device, len)?,
            exp_avg_sq: DeviceBuffer::zeros(device, len)?,
            workspace: TrainerWorkspace::new(device)?,
            step_inputs: StepInputs::default(),
            device_inputs: DeviceBuffer::new(device, 0)?,
            input_layout: InputLayout::default(),
            embedding_order: DeviceBuffer::new(device, 0)?,
            model: Arc::clone(model),
            stream,
            cublas,
        };
        trainer.update_bf16()?;
        Ok(trainer)
    }

    /// Bytes of weights, gradients and optimizer state, without the workspace of passes. Frozen parameters are stored
    /// once.
    pub fn state_bytes(parameters: usize, trainable: usize) -> usize {
        2 * parameters + 16 * trainable + if trainable == parameters { 0 } else { 2 * trainable }
    }

    /// Bytes of a pass that do not depend on its number of tokens: logits in memory at a time, their gradient, and
    /// partial sums.
    pub fn fixed_bytes(shape: &ModelShape) -> usize {
        let row_stats_bytes = size_of::<[f32; 4]>() + size_of::<[f32; 2]>();
        workspace::logit_rows(shape) * (6 * shape.logits_stride() + row_stats_bytes) + 4 * workspace::partials(shape)
    }

    /// Bytes of a pass per token, if each token predicts a target. `lora_rank` is the maximum size of an adapter's A
    /// output per token; 0 without an adapter.
    pub fn bytes_per_token(shape: &ModelShape, lora_rank: usize, recompute: bool) -> usize {
        let layer = 2
            * (shape.qkv_dim()
                + shape.qk_dim()
                + shape.attn_out_dim()
                + shape.hidden_size
                + 2 * shape.intermediate_size)
            + 4 * (2 + shape.num_heads + shape.num_kv_heads + shape.head_stats_stride());
        let layers = if recompute { 1 } else { shape.num_layers };
        let scratch = 2
            * (7 * shape.hidden_size
                + 4 * shape.intermediate_size
                + shape.qkv_dim()
                + shape.qk_dim()
                + shape.attn_out_dim())
            + 4 * (shape.head_stats_stride() + 1);
        layers * layer + 2 * (shape.num_layers + 1) * shape.hidden_size + scratch + 2 * 2 * lora_rank
    }

    /// The trainable parameters in bf16.
    fn trainable(&self) -> &CudaWeights {
        self.adapter.as_ref().map_or(&self.weights, |a| &a.weights)
    }

    /// Updates the bf16 copy from the fp32 parameters.
    fn update_bf16(&mut self) -> Result<()> {
        self.model.f32_to_bf16(&self.stream, self.params.at(0), self.params.len(), self.trainable().at(0))?;
        self.stream.wait()
    }

    /// A copy of the current trainable parameters.
    pub fn snapshot(&self) -> Result<CudaWeights> {
        self.model.device.bind()?;
        let bf16 = self.trainable().bf16.duplicate(&self.stream)?;
        self.stream.wait()?;
        Ok(CudaWeights { bf16 })
    }

    /// A snapshot of the adapter, if one is trained.
    pub fn adapter_snapshot(&self) -> Result<Option<CudaAdapter>> {
        let Some(adapter) = &self.adapter else { return Ok(None) };
        Ok(Some(CudaAdapter { layout: Arc::clone(&adapter.layout), weights: self.snapshot()? }))
    }

    /// The base weights.
    pub fn weights(&self) -> &Arc<CudaWeights> {
        &self.weights
    }

    /// The trainable parameters.
    pub fn params(&self) -> &DeviceBuffer<f32> {
        &self.params
    }

    /// The accumulated gradient.
    pub fn grads(&self) -> &DeviceBuffer<f32> {
        &self.grads
    }

    /// First and second moments.
    pub fn moments(&self) -> (&DeviceBuffer<f32>, &DeviceBuffer<f32>) {
        (&self.exp_avg, &self.exp_avg_sq)
    }

    /// Sets parameters and moments, and zeroes the gradient.
    pub fn restore(&mut self, flat: &[f32], exp_avg: &[f32], exp_avg_sq: &[f32]) -> Result<()> {
        for values in [flat, exp_avg, exp_avg_sq] {
            check_len(values.len(), self.params.len())?;
        }
        self.params.write(flat)?;
        self.exp_avg.write(exp_avg)?;
        self.exp_avg_sq.write(exp_avg_sq)?;
        self.zero_grads()?;
        self.update_bf16()
    }

    /// Zeroes the gradient.
    pub fn zero_grads(&mut self) -> Result<()> {
        self.model.device.bind()?;
        self.grads.clear(&self.stream, 0, self.grads.len())?;
        self.stream.wait()
    }

    /// Adds the gradient of a loss over a chunk. `loss_grad` receives the statistics of each prediction and returns the
    /// gradients of the loss with respect to log-probability and entropy. With `recompute`, layers are recomputed in
    /// the backward pass instead of stored.
    pub fn forward_backward(
        &mut self,
        chunk: &PackedChunk,
        recompute: bool,
        mut loss_grad: impl FnMut(usize, TokenLogprob) -> (f32, f32),
    ) -> Result<()> {
        self.model.device.bind()?;
        let n = chunk.tokens.len();
        if n == 0 || chunk.predictions.is_empty() {
            return Ok(());
        }
        self.check(chunk)?;
        self.upload_inputs(chunk)?;
        let lora_rank = self.adapter.as_ref().map_or(0, |a| a.layout.max_group_rank());
        self.workspace.reserve(&self.model.shape, n, chunk.predictions.len(), lora_rank, recompute)?;
        self.forward(n, !recompute)?;
        self.lm_head(chunk, &mut loss_grad)?;
        for layer in (0..self.model.shape.num_layers).rev() {
            if recompute {
                self.layer(layer, n, 0)?;
            }
            self.layer_grad(layer, n, if recompute { 0 } else { layer })?;
        }
        if self.adapter.is_none() {
            self.embedding_grad(&chunk.tokens)?;
        }
        self.stream.wait()
    }

    /// Rejects inputs that would access memory out of bounds.
    fn check(&self, s: &PackedChunk) -> Result<()> {
        let invalid = |problem: String| Err(CudaError::new("a training pass", problem));
        let (n, positions) = (s.tokens.len(), self.model.positions());
        let candidates = s.predictions.iter().filter_map(|p| p.allowed.as_deref()).flatten();
        self.model.check_tokens(s.tokens.iter().chain(candidates))?;
        self.model.check_tokens(s.predictions.iter().map(|p| &p.token))?;
        if let Some(rows) = s.sequences.iter().find(|rows| rows.end > n || rows.len() > positions) {
            return invalid(format!(
                "a sequence of {} tokens from {} exceeds {n} tokens or {positions} positions",
                rows.len(),
                rows.start
            ));
        }
        if !is_contiguous(s) {
            return invalid(format!("the sequences do not cover all of {n} tokens in order"));
        }
        if let Some(p) = s.predictions.iter().find(|p| p.row as usize >= n) {
            return invalid(format!("a prediction at row {} of {n} tokens", p.row));
        }
        if let Some(row) = duplicate_row(s) {
            return invalid(format!("two predictions at row {row}"));
        }
        Ok(())
    }

    /// Waits for all launched work.
    pub fn synchronize(&self) -> Result<()> {
        self.model.device.bind()?;
        self.stream.wait()
    }

    /// Uploads the small inputs of the forward pass and most of those of the backward pass.
    fn upload_inputs(&mut self, s: &PackedChunk) -> Result<()> {
        let (p, n) = (&mut self.step_inputs, s.tokens.len());
        p.clear();
        let tokens = p.push(s.tokens.iter().copied());
        let positions = p.push_zeros(n);
        let mut query_tiles: Vec<[u32; TILE_WORDS]> = Vec::new();
        let tile_rows = self.model.attention_kernel().rows();
        for rows in &s.sequences {
            let (start, len) = (rows.start, rows.len());
            for i in 0..len {
                p.data[positions + start + i] = i as u32;
            }
            let tile = |index: usize| [start, len, start, len, index].map(|x| x as u32);
            query_tiles.extend((0..len.div_ceil(tile_rows)).map(tile));
        }
        // Later queries see more keys, and earlier keys are seen by more queries: the longest work comes first.
        let mut key_tiles = query_tiles.clone();
        query_tiles.sort_by_key(|i| std::cmp::Reverse(i[4]));
        key_tiles.sort_by_key(|i| i[4] as i64 * tile_rows as i64 - i64::from(i[1]));
        let query_tiles = (p.push(query_tiles.iter().flatten().copied()), query_tiles.len());
        let key_tiles = (p.push(key_tiles.iter().flatten().copied()), key_tiles.len());
        let target_indices = p.push(s.predictions.iter().map(|p| p.row));
        let queries = p.push_zeros(s.predictions.len() * QUERY_WORDS);
        for (i, prediction) in s.predictions.iter().enumerate() {
            p.set_query(queries, i, &KernelLogitQuery::score(prediction.token, prediction.allowed.as_deref()), 0);
        }
        self.input_layout = InputLayout { tokens, positions, target_indices, query_tiles, key_tiles, queries };
        self.device_inputs.reserve(self.step_inputs.data.len())?;
        self.device_inputs.upload(&self.stream, &self.step_inputs.data)
    }

    fn forward(&mut self, n: usize, keep: bool) -> Result<()> {
        let (model, d) = (Arc::clone(&self.model), self.model.shape.hidden_size);
        let table = self.weights.at(model.layout.embed_tokens.start);
        let tokens = self.device_inputs.at(self.input_layout.tokens);
        model.gather_rows(&self.stream, table, tokens, n, d, self.workspace.hidden[0].at(0))?;
        for layer in 0..model.shape.num_layers {
            self.layer(layer, n, if keep { layer } else { 0 })?;
        }
        Ok(())
    }

    /// Runs one layer and stores the activations that its backward pass needs.
    fn layer(&mut self, layer: usize, n: usize, activations: usize) -> Result<()> {
        let ModelTrainer {
            model, stream: s, cublas, weights: w, adapter, workspace, device_inputs, input_layout, ..
        } = self;
        let layout = &model.layout.layers[layer];
        let lora = LoraWithScratch::new(adapter.as_ref(), &workspace.lora_a_out);
        let (x, y, a): (u64, u64, &GpuLayerActivations) =
            (workspace.hidden[layer].at(0), workspace.hidden[layer + 1].at(0), &workspace.activations[activations]);
        let normed = workspace.normed.at(0);
        model.rms_norm(s, x, w.at(layout.input_layernorm.start), n, normed, a.input_rstd.at(0))?;
        model.linear(s, cublas, (w, lora), (layer, ProjectionGroup::Qkv), n, normed, None, a.qkv.at(0))?;
        let positions = device_inputs.at(input_layout.positions);
        let rstd = a.head_rstd.at(0);
        model.head_norm_rope(s, a.qkv.at(0), w.at(layout.qk_norm.start), positions, n, a.qk.at(0), rstd, (0, 0))?;
        let query_tiles = (device_inputs.at(input_layout.query_tiles.0), input_layout.query_tiles.1);
        model.attention_forward(s, model.attention_kernel(), a.attention_buffers(n), query_tiles)?;
        let buffers = (a.residual.at(0), a.post_attention_rstd.at(0), normed, a.gate_up.at(0), workspace.mlp_act.at(0));
        model.post_attention(s, cublas, (w, lora), layer, n, x, a.attn_out.at(0), buffers, y)
    }
}

/// Whether every token is in exactly one sequence, in order.
fn is_contiguous(chunk: &PackedChunk) -> bool {
    let mut ends = chunk.sequences.iter();
    let end = ends.try_fold(0, |end, rows| (rows.start == end && end <= rows.end).then_some(rows.end));
    end == Some(chunk.tokens.len())
}

/// A row with more than one prediction, if any. All rows must be valid.
fn duplicate_row(chunk: &PackedChunk) -> Option<u32> {
    let mut seen = vec![false; chunk.tokens.len()];
    chunk.predictions.iter().map(|p| p.row).find(|row| std::mem::replace(&mut seen[*row as usize], true))
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;
    use mage_engine::model::Prediction;

    pub(crate) fn every_token_is_in_exactly_one_sequence() {
        let contiguous = |bounds: &[(usize, usize)]| {
            let sequences = bounds.iter().map(|&(start, end)| start..end).collect();
            is_contiguous(&PackedChunk { tokens: vec![7; 5], sequences, ..Default::default() })
        };
        assert!(contiguous(&[(0, 2), (2, 5)]));
        let backwards = &[(0, 3), (3, 2), (2, 5)];
        for invalid in [&[(0, 2), (3, 5)][..], &[(0, 3), (2, 5)], &[(0, 4)], &[(1, 5)], &[(0, 6)], &[], backwards] {
            assert!(!contiguous(invalid), "{invalid:?}");
        }
    }

    pub(crate) fn two_predictions_in_one_row_are_found() {
        let duplicate = |rows: &[u32]| {
            let predictions = rows.iter().map(|&row| Prediction { row, ..Default::default() }).collect();
            duplicate_row(&PackedChunk { tokens: vec![7; 5], predictions, ..Default::default() })
        };
        assert_eq!((duplicate(&[]), duplicate(&[3, 0, 4]), duplicate(&[3, 0, 4, 0])), (None, None, Some(0)));
    }
}
