//! Inference steps over a paged KV cache.
//!
//! Decoded tokens use a kernel that reads each key once; prefill uses flash attention over tiles. A step in which every
//! sequence has one new token is captured as a CUDA graph for its batch size, rounded up, and replayed: one copy to the
//! device, one launch, and results that kernels write to pinned host memory.

mod decode_graph;
mod layers;
#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests;

use crate::buffer::{DeviceBuffer, Pod};
use crate::error::{CudaError, Result};
use crate::gemm::{CublasLt, Gemm, GemmKind, Matrix};
use crate::lora::WeightsRef;
use crate::model::CudaModel;
use crate::pinned::PinnedBuffer;
use crate::step_inputs::{KernelLogitQuery, QUERY_WORDS, StepInputs};
use crate::stream::{Stream, args};
use crate::token_trie::{self, DeviceTries};
use crate::{TILE, TILE_WORDS};
use decode_graph::GraphCache;
use mage_engine::model::{BLOCK_SIZE, LogitResult, SequenceSlice};
use std::sync::Arc;

/// Inputs of one step, under one set of weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepBatch<'a> {
    /// All new tokens.
    pub tokens: &'a [u32],
    /// Block ids.
    pub block_tables: &'a [u32],
    /// The sequences.
    pub sequences: &'a [SequenceSlice],
    /// Logit queries, in the order of the sequences.
    pub queries: &'a [KernelLogitQuery<'a>],
}

impl Pod for LogitResult {}

/// Runs inference steps of a model.
pub struct ModelRunner {
    /// Dropped before the device.
    graphs: GraphCache,
    model: Arc<CudaModel>,
    stream: Stream,
    cublas: CublasLt,
    /// Keys and values by layer and block, with one spare block for padding rows.
    kv_cache: DeviceBuffer<u16>,
    num_blocks: usize,
    workspace: RunnerWorkspace,
    step_inputs: StepInputs,
    device_inputs: DeviceBuffer<u32>,
    tries: DeviceTries,
    /// Work counter of paged decode attention.
    work_counter: DeviceBuffer<u32>,
    /// Pinned buffers for the inputs and results of graph steps.
    pinned_inputs: PinnedBuffer<u32>,
    pinned_results: PinnedBuffer<LogitResult>,
    /// Whether a sequence's bits are independent of the rest of the batch.
    batch_invariant: bool,
}

/// Activation buffers.
struct RunnerWorkspace {
    rows: usize,
    hidden: DeviceBuffer<u16>,
    normed: DeviceBuffer<u16>,
    qkv: DeviceBuffer<u16>,
    qk: DeviceBuffer<u16>,
    attn_out: DeviceBuffer<u16>,
    gate_up: DeviceBuffer<u16>,
    mlp_act: DeviceBuffer<u16>,
    selected: DeviceBuffer<u16>,
    logits: DeviceBuffer<f32>,
    results: DeviceBuffer<LogitResult>,
    partials: DeviceBuffer<f32>,
    split_counters: DeviceBuffer<u32>,
    /// Partial sums of squares of rows.
    squares: DeviceBuffer<f32>,
    /// A output of a LoRA adapter.
    lora_a_out: DeviceBuffer<u16>,
}

/// Maximum number of words of step inputs in a graph step.
const MAX_INPUT_WORDS: usize = 8 << 20;
/// Capacity of the pinned input buffer in words.
const PINNED_WORDS: usize = 1 << 20;
/// Maximum number of logits in memory at a time; training passes have their own limit.
const MAX_STEP_LOGITS: usize = 1 << 27;
/// Maximum batch size of graph steps.
const MAX_GRAPH_ROWS: usize = 1024;

/// Offsets in the inputs of a decode step, by batch size: tokens, positions, KV slots, block-table offsets, logit
/// queries, attention tiles, block tables.
pub(super) struct DecodeInputLayout {
    pub(super) tokens: usize,
    pub(super) positions: usize,
    pub(super) slots: usize,
    pub(super) table_offsets: usize,
    pub(super) queries: usize,
    pub(super) tiles: usize,
    pub(super) tables: usize,
}

impl DecodeInputLayout {
    pub(super) fn of(rows: usize) -> Self {
        let rows = rows.next_multiple_of(4);
        let queries = 4 * rows;
        let tiles = queries + rows * QUERY_WORDS;
        let tables = tiles + rows * TILE_WORDS;
        DecodeInputLayout {
            tokens: 0,
            positions: rows,
            slots: 2 * rows,
            table_offsets: 3 * rows,
            queries,
            tiles,
            tables,
        }
    }
}

impl ModelRunner {
    /// Allocates a KV cache of this many blocks. With `batch_invariant`, a sequence's bits depend neither on the rest
    /// of the batch nor on how its tokens are divided into steps; this is slower.
    pub fn new(model: &Arc<CudaModel>, num_blocks: usize, batch_invariant: bool) -> Result<Self> {
        let (device, shape) = (&model.device, &model.shape);
        let stream = Stream::new(device)?;
        let cublas = if batch_invariant { CublasLt::batch_invariant(&stream)? } else { CublasLt::new(&stream)? };
        let bf16 = || DeviceBuffer::<u16>::new(device, 0);
        let workspace = RunnerWorkspace {
            rows: 0,
            hidden: bf16()?,
            normed: bf16()?,
            qkv: bf16()?,
            qk: bf16()?,
            attn_out: bf16()?,
            gate_up: bf16()?,
            mlp_act: bf16()?,
            selected: bf16()?,
            logits: DeviceBuffer::new(device, 0)?,
            results: DeviceBuffer::new(device, 0)?,
            partials: DeviceBuffer::new(device, 0)?,
            split_counters: DeviceBuffer::new(device, 0)?,
            squares: DeviceBuffer::new(device, 0)?,
            lora_a_out: bf16()?,
        };
        Ok(ModelRunner {
            kv_cache: DeviceBuffer::zeros(device, shape.num_layers * (num_blocks + 1) * shape.block_elements())?,
            num_blocks,
            workspace,
            step_inputs: StepInputs::default(),
            device_inputs: DeviceBuffer::new(device, MAX_INPUT_WORDS)?,
            tries: DeviceTries::new(device, token_trie::INITIAL_WORDS)?,
            work_counter: DeviceBuffer::zeros(device, 2)?,
            pinned_inputs: PinnedBuffer::new(device, PINNED_WORDS)?,
            pinned_results: PinnedBuffer::new(device, MAX_GRAPH_ROWS)?,
            graphs: GraphCache::default(),
            batch_invariant,
            model: Arc::clone(model),
            stream,
            cublas,
        })
    }

    /// Bytes of a KV block in all layers.
    pub fn block_bytes(shape: &crate::ModelShape) -> usize {
        2 * shape.num_layers * shape.block_elements()
    }

    /// Bytes needed by steps of up to this many tokens, without the KV cache, plus a reserve for other processes.
    pub fn workspace_bytes(shape: &crate::ModelShape, rows: usize) -> usize {
        // Hidden states selected for logits are stored a second time.
        let row_bytes = 2 * (row_widths(shape).iter().sum::<usize>() + shape.hidden_size);
        let logits = 4 * logit_rows(shape) * shape.logits_stride();
        // GEMM tuning needs an output buffer in addition.
        let tuning_bytes = 4 * MAX_GRAPH_ROWS * shape.logits_stride().max(2 * shape.intermediate_size);
        rows.next_power_of_two() * row_bytes + logits + tuning_bytes + 4 * token_trie::INITIAL_WORDS + (512 << 20)
    }

    /// Copies whole KV blocks in order: (from, to).
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let ModelRunner { model, stream: s, kv_cache, num_blocks, step_inputs, device_inputs, .. } = self;
        if let Some(block) = copies.iter().flat_map(|&(from, to)| [from, to]).find(|p| *p as usize >= *num_blocks) {
            return Err(CudaError::new("copying KV blocks", format!("block {block} of {num_blocks}")));
        }
        model.device.bind()?;
        step_inputs.clear();
        step_inputs.push(copies.iter().flat_map(|&(from, to)| [from, to]));
        device_inputs.upload(s, &step_inputs.data)?;
        let chunks_per_block = model.shape.block_elements() / 8;
        let chunks_per_layer = ((*num_blocks + 1) * chunks_per_block) as u64;
        s.launch(
            model.kernels.common.copy_blocks,
            (chunks_per_block.div_ceil(256), model.shape.num_layers, 1),
            256,
            0,
            args![kv_cache.at(0), device_inputs.at(0), copies.len(), chunks_per_block, chunks_per_layer],
        )?;
        s.wait()
    }

    /// Runs a step. Results are in the order of the queries.
    pub fn step(&mut self, w: WeightsRef<'_>, step: &StepBatch<'_>, results: &mut [LogitResult]) -> Result<()> {
        self.check(step, results.len())?;
        self.model.device.bind()?;
        let relocated = self.tries.resolve(&self.stream, step.queries, self.model.shape.vocab_size);
        if !matches!(relocated, Ok(false)) {
            // Captured graphs hold the old address.
            self.graphs.clear();
        }
        relocated?;
        let all_decode = step.sequences.iter().all(|p| p.num_tokens == 1 && p.num_logits == 1);
        // Graph steps compute all logits at once.
        let max_rows = MAX_GRAPH_ROWS.min(logit_rows(&self.model.shape));
        if all_decode && decode_graph::bucket(step.sequences.len()) <= max_rows && self.fits_input_buffer(step) {
            return self.step_graph(w, step, results);
        }
        self.step_mixed(w, step, results)
    }

    /// Rejects inputs that would access memory out of bounds.
    fn check(&self, step: &StepBatch<'_>, results: usize) -> Result<()> {
        let invalid = |problem: String| Err(CudaError::new("running a step", problem));
        if !is_contiguous(step) {
            return invalid(format!("the slices do not cover all of {} tokens in order", step.tokens.len()));
        }
        self.model.check_tokens(step.tokens.iter().chain(step.queries.iter().flat_map(|a| a.candidates.list())))?;
        self.model.check_tokens(step.queries.iter().filter_map(|a| a.token.as_ref()))?;
        for slice in step.sequences {
            let (end, positions) = (slice.start_position + slice.num_tokens, self.model.positions());
            if slice.token_offset + slice.num_tokens > step.tokens.len()
                || slice.num_logits > slice.num_tokens
                || slice.num_tokens == 0
            {
                return invalid(format!("{slice:?} exceeds {} tokens", step.tokens.len()));
            }
            if end > positions {
                return invalid(format!("position {end} exceeds the maximum of {positions}"));
            }
            let block_ids = step
                .block_tables
                .get(slice.block_table_offset..slice.block_table_offset + end.div_ceil(BLOCK_SIZE))
                .unwrap_or_default();
            if block_ids.is_empty() || block_ids.iter().any(|p| *p as usize >= self.num_blocks) {
                return invalid(format!(
                    "the block table of {slice:?} is too short or has a block id of {} or more",
                    self.num_blocks
                ));
            }
        }
        let num_logits: usize = step.sequences.iter().map(|p| p.num_logits).sum();
        if num_logits != step.queries.len() || num_logits > results {
            return invalid(format!(
                "{num_logits} logits, but {} queries and room for {results} results",
                step.queries.len()
            ));
        }
        Ok(())
    }

    /// Whether the step's block tables and token lists fit into the input buffer of a graph step.
    fn fits_input_buffer(&self, step: &StepBatch<'_>) -> bool {
        let list_words: usize = step.queries.iter().map(|a| a.candidates.list().len()).sum();
        DecodeInputLayout::of(MAX_GRAPH_ROWS).tables + step.block_tables.len() + list_words + 64 <= MAX_INPUT_WORDS
    }

    /// Address of one layer's part of the KV cache.
    fn layer_kv_cache(&self, layer: usize) -> u64 {
        self.kv_cache.at(layer * (self.num_blocks + 1) * self.model.shape.block_elements())
    }

    fn reserve(&mut self, weights: WeightsRef<'_>, rows: usize, num_logits: usize) -> Result<()> {
        let (c, workspace) = (&self.model.shape, &mut self.workspace);
        let lora_len = weights.adapter.map_or(0, |a| rows * a.layout.max_group_rank());
        if lora_len > workspace.lora_a_out.len() {
            self.graphs.clear();
            workspace.lora_a_out.reserve(lora_len.next_power_of_two())?;
        }
        if rows > workspace.rows {
            // Captured graphs hold the old addresses. If an allocation fails, no capacity is assumed: the buffer has
            // shrunk.
            self.graphs.clear();
            workspace.rows = 0;
            let rows = rows.max(256).next_power_of_two();
            let buffers = [
                &mut workspace.hidden,
                &mut workspace.normed,
                &mut workspace.qkv,
                &mut workspace.qk,
                &mut workspace.attn_out,
                &mut workspace.gate_up,
                &mut workspace.mlp_act,
            ];
            for (buffer, width) in buffers.into_iter().zip(row_widths(c)) {
                buffer.reserve(rows * width)?;
            }
            workspace.squares.reserve(rows * crate::fused_gemm::num_partials(c.hidden_size))?;
            workspace.rows = rows;
        }
        let num_logits = num_logits.max(1).next_power_of_two();
        if num_logits > workspace.results.len() || num_logits * c.hidden_size > workspace.selected.len() {
            self.graphs.clear();
            workspace.selected.reserve(num_logits * c.hidden_size)?;
            workspace.results.reserve(num_logits)?;
        }
        let logits = num_logits.min(logit_rows(c)) * c.logits_stride();
        if logits > workspace.logits.len() {
            self.graphs.clear();
            workspace.logits.reserve(logits)?;
        }
        // Keys are split only while there are fewer splits than warps.
        let partials = self.model.decode_warps() * c.group_size() * (c.head_dim + 2);
        if partials > workspace.partials.len() || rows * c.num_kv_heads > workspace.split_counters.len() {
            self.graphs.clear();
            workspace.partials.reserve(partials)?;
            workspace.split_counters =
                DeviceBuffer::zeros(&self.model.device, (rows * c.num_kv_heads).next_power_of_two())?;
        }
        Ok(())
    }

    /// Computes the logits of `count` hidden states at `from` and writes the results of their queries to `results`.
    fn lm_head(
        &mut self,
        weights: WeightsRef<'_>,
        from: u64,
        count: usize,
        queries: usize,
        results: u64,
    ) -> Result<()> {
        let ModelRunner { model, stream: s, cublas, workspace, device_inputs, tries, .. } = self;
        let (w, shape, d) = (weights.base, &model.shape, model.shape.hidden_size);
        let normed = workspace.normed.at(0);
        model.rms_norm(s, from, w.at(model.layout.final_norm.start), count, normed, 0)?;
        let head = Matrix::new(w.at(model.layout.lm_head.start), d);
        let logits = Matrix::new(workspace.logits.at(0), shape.logits_stride());
        let shape_of = (count, shape.vocab_size, d);
        let gemm = Gemm::new(GemmKind::Forward, shape_of, Matrix::new(normed, d), head, logits);
        cublas.matmul(s, gemm.f32_out())?;
        let (logits, stride) = (workspace.logits.at(0), shape.logits_stride() as u64);
        s.launch(
            model.kernels.common.sample_or_score,
            (count, 1, 1),
            crate::step_inputs::LOGIT_THREADS,
            0,
            args![logits, stride, shape.vocab_size, device_inputs.at(0), tries.device_ptr(), queries, results],
        )
    }

    /// A step in which some sequences have several new tokens.
    fn step_mixed(&mut self, w: WeightsRef<'_>, step: &StepBatch<'_>, results: &mut [LogitResult]) -> Result<()> {
        // Decoded tokens come first. With batch invariance, all tokens are treated as prefill.
        let batch_invariant = self.batch_invariant;
        let is_decode = |slice: &SequenceSlice| slice.num_tokens == 1 && !batch_invariant;
        let mut order: Vec<usize> = (0..step.sequences.len()).collect();
        order.sort_by_key(|i| !is_decode(&step.sequences[*i]));
        let num_decode = step.sequences.iter().filter(|p| is_decode(p)).count();
        let rows = step.tokens.len();
        let p = &mut self.step_inputs;
        p.clear();
        let query_offsets: Vec<usize> = step
            .sequences
            .iter()
            .scan(0, |at, slice| {
                let first = *at;
                *at += slice.num_logits;
                Some(first)
            })
            .collect();
        let mut selected_tokens = vec![0_u32; step.queries.len()];
        let tokens = p.push_zeros(rows);
        let positions = p.push_zeros(rows);
        let slots = p.push_zeros(rows);
        let table_offsets = p.push_zeros(rows);
        let (mut token_index, mut tiles): (usize, Vec<[u32; TILE_WORDS]>) = (0, Vec::new());
        for &i in &order {
            let slice = &step.sequences[i];
            for j in 0..slice.num_tokens {
                let position = slice.start_position + j;
                p.data[tokens + token_index + j] = step.tokens[slice.token_offset + j];
                p.data[positions + token_index + j] = position as u32;
                let block = step.block_tables[slice.block_table_offset + position / BLOCK_SIZE];
                p.data[slots + token_index + j] = block * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32;
            }
            p.data[table_offsets + token_index] = slice.block_table_offset as u32;
            if !is_decode(slice) {
                let keys = slice.start_position + slice.num_tokens;
                let tile = |index: usize| {
                    [token_index, slice.num_tokens, slice.block_table_offset, keys, index].map(|x| x as u32)
                };
                tiles.extend((0..slice.num_tokens.div_ceil(TILE)).map(tile));
            }
            for j in 0..slice.num_logits {
                selected_tokens[query_offsets[i] + j] = (token_index + slice.num_tokens - slice.num_logits + j) as u32;
            }
            token_index += slice.num_tokens;
        }
        tiles.sort_by_key(|i| std::cmp::Reverse(i[3]));
        let tiles = (p.push(tiles.iter().flatten().copied()), tiles.len());
        let tables = p.push(step.block_tables.iter().copied());
        let selected_at = p.push(selected_tokens);
        let queries = p.push_zeros(step.queries.len() * QUERY_WORDS);
        for (i, query) in step.queries.iter().enumerate() {
            p.set_query(queries, i, query, self.tries.node_offset(i));
        }
        let offsets = DecodeInputLayout { tokens, positions, slots, table_offsets, queries, tiles: tiles.0, tables };
        if self.device_inputs.len() < self.step_inputs.data.len() {
            self.graphs.clear();
            // The old buffer stays allocated until the new one is: captured graphs refer to it.
            self.device_inputs =
                DeviceBuffer::new(&self.model.device, self.step_inputs.data.len().next_power_of_two())?;
        }
        self.device_inputs.upload(&self.stream, &self.step_inputs.data)?;
        let count = step.queries.len();
        self.reserve(w, rows, count)?;
        self.layers(w, rows, (num_decode, &offsets), tiles)?;
        if count == 0 {
            return self.stream.wait();
        }
        let (d, hidden) = (self.model.shape.hidden_size, self.workspace.hidden.at(0));
        let selected = self.workspace.selected.at(0);
        self.model.gather_rows(&self.stream, hidden, self.device_inputs.at(selected_at), count, d, selected)?;
        let at_once = logit_rows(&self.model.shape);
        for from in (0..count).step_by(at_once) {
            let n = at_once.min(count - from);
            self.lm_head(
                w,
                self.workspace.selected.at(from * d),
                n,
                queries + from * QUERY_WORDS,
                self.workspace.results.at(from),
            )?;
        }
        self.workspace.results.download(&self.stream, &mut results[..count])
    }
}

/// Whether every token is in exactly one slice, in order.
fn is_contiguous(step: &StepBatch<'_>) -> bool {
    let end =
        step.sequences.iter().try_fold(0, |at, slice| (slice.token_offset == at).then_some(at + slice.num_tokens));
    end == Some(step.tokens.len())
}

/// Elements per token: hidden state, normalised hidden state, QKV, rotated queries and keys, attention output, gate and
/// up, MLP activation.
fn row_widths(c: &crate::ModelShape) -> [usize; 7] {
    [
        c.hidden_size,
        c.hidden_size,
        c.qkv_dim(),
        c.qk_dim(),
        c.attn_out_dim(),
        2 * c.intermediate_size,
        c.intermediate_size,
    ]
}

fn logit_rows(shape: &crate::ModelShape) -> usize {
    shape.logit_rows(MAX_STEP_LOGITS)
}
