//! How are the next tokens of many sequences taken in at once?
//!
//! Keys and values lie in pages. PackedSequences with one new token go through a kernel that reads each key once; longer pieces
//! through tiles on tensor cores. A step of single tokens alone is recorded once for its number of rows, rounded up, and
//! then replayed: one copy to the card, one start, and answers that kernels write where they are read.

mod decode_graph;
mod layers;
#[cfg(test)]
mod tests;

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::gemm::{CublasLt, Kind, Matrix};
use crate::lora::WeightsRef;
use crate::model::CudaModel;
use crate::pinned::PinnedBuffer;
use crate::step_inputs::{ASK, GpuLogitQuery, GpuLogitResult, GpuStepInputs};
use crate::stream::{Stream, args};
use crate::token_trie::{self, DeviceTries};
use crate::{BLOCK_SIZE, Pod, TILE};
use decode_graph::Graphs;
use std::sync::Arc;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug)]
pub struct GpuSequenceSlice {
    /// Its new tokens: where they start in [`StepBatch::tokens`], how many, and the position of the first.
    pub token_offset: usize,
    /// How many.
    pub num_tokens: usize,
    /// The position of the first.
    pub start_position: usize,
    /// Where its pages start in [`StepBatch::block_tables`].
    pub block_table_offset: usize,
    /// How many of its last tokens are asked about.
    pub num_logits: usize,
}

/// What is done at once, under one set of weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepBatch<'a> {
    /// All new tokens.
    pub tokens: &'a [u32],
    /// Numbers of pages.
    pub block_tables: &'a [u32],
    /// The sequences.
    pub sequences: &'a [GpuSequenceSlice],
    /// One for each row asked about, in the order of the parts.
    pub queries: &'a [GpuLogitQuery<'a>],
}

impl Pod for GpuLogitResult {}

/// Takes steps.
pub struct ModelRunner {
    /// Goes before the card that it is on.
    graphs: Graphs,
    model: Arc<CudaModel>,
    stream: Stream,
    products: CublasLt,
    /// Keys and values by layer and page; one page more than can be used, for rows that stand for nothing.
    pages: DeviceBuffer<u16>,
    count: usize,
    space: Space,
    packet: GpuStepInputs,
    words: DeviceBuffer<u32>,
    tries: DeviceTries,
    /// Where single tokens' attention counts.
    line: DeviceBuffer<u32>,
    /// What a recorded step sends and brings back.
    sent: PinnedBuffer<u32>,
    brought: PinnedBuffer<GpuLogitResult>,
    /// Whether a sequence's numbers are the same bits whatever else is in its step.
    invariant: bool,
}

/// Numbers on their way through the layers.
struct Space {
    rows: usize,
    state: DeviceBuffer<u16>,
    normed: DeviceBuffer<u16>,
    qkv: DeviceBuffer<u16>,
    qk: DeviceBuffer<u16>,
    attended: DeviceBuffer<u16>,
    gate_up: DeviceBuffer<u16>,
    gated: DeviceBuffer<u16>,
    asked: DeviceBuffer<u16>,
    logits: DeviceBuffer<f32>,
    answers: DeviceBuffer<GpuLogitResult>,
    parts: DeviceBuffer<f32>,
    done: DeviceBuffer<u32>,
    /// Sums of squares of rows, in parts.
    squares: DeviceBuffer<f32>,
    /// An adapter's thin rows.
    low: DeviceBuffer<u16>,
}

/// Words that a packet may have.
const WORDS: usize = 8 << 20;
/// Words that are sent without being staged.
const SENT: usize = 1 << 20;
/// Logits that exist at a time, in numbers.
const LOGITS: usize = 1 << 27;
/// The most rows that are recorded.
const MOST_ROWS: usize = 1024;

/// Words of an item of attention.
pub(super) const ITEM: usize = 5;

/// Where things are in a packet of single tokens, by its number of rows: tokens, positions, cells, lists of pages, asks,
/// items of attention.
pub(super) struct Single {
    pub(super) tokens: usize,
    pub(super) positions: usize,
    pub(super) cells: usize,
    pub(super) lists: usize,
    pub(super) asks: usize,
    pub(super) items: usize,
    pub(super) tables: usize,
}

impl Single {
    pub(super) fn of(rows: usize) -> Self {
        let rows = rows.next_multiple_of(4);
        let asks = 4 * rows;
        let items = asks + rows * ASK;
        let tables = items + rows * ITEM;
        Single { tokens: 0, positions: rows, cells: 2 * rows, lists: 3 * rows, asks, items, tables }
    }
}

impl ModelRunner {
    /// With room for so many pages. `invariant` steps give a sequence the same bits whatever else is in them, and however
    /// its tokens are cut into steps; that takes longer.
    pub fn new(model: &Arc<CudaModel>, pages: usize, invariant: bool) -> Result<Self> {
        let (card, shape) = (&model.device, &model.shape);
        let stream = Stream::new(card)?;
        let products = if invariant { CublasLt::invariant(&stream)? } else { CublasLt::new(&stream)? };
        let half = || DeviceBuffer::<u16>::new(card, 0);
        let space = Space {
            rows: 0,
            state: half()?,
            normed: half()?,
            qkv: half()?,
            qk: half()?,
            attended: half()?,
            gate_up: half()?,
            gated: half()?,
            asked: half()?,
            logits: DeviceBuffer::new(card, 0)?,
            answers: DeviceBuffer::new(card, 0)?,
            parts: DeviceBuffer::new(card, 0)?,
            done: DeviceBuffer::new(card, 0)?,
            squares: DeviceBuffer::new(card, 0)?,
            low: half()?,
        };
        Ok(ModelRunner {
            pages: DeviceBuffer::zeros(card, shape.num_layers * (pages + 1) * shape.block_elements())?,
            count: pages,
            space,
            packet: GpuStepInputs::default(),
            words: DeviceBuffer::new(card, WORDS)?,
            tries: DeviceTries::new(card, token_trie::WORDS)?,
            line: DeviceBuffer::zeros(card, 2)?,
            sent: PinnedBuffer::new(card, SENT)?,
            brought: PinnedBuffer::new(card, MOST_ROWS)?,
            graphs: Graphs::default(),
            invariant,
            model: Arc::clone(model),
            stream,
            products,
        })
    }

    /// Bytes that a page takes in all layers.
    pub fn block_bytes(shape: &crate::ModelShape) -> usize {
        2 * shape.num_layers * shape.block_elements()
    }

    /// Bytes that steps of up to so many rows take besides pages, and a little for other programs.
    pub fn workspace_bytes(shape: &crate::ModelShape, rows: usize) -> usize {
        // And once more the states of those that are asked about.
        let row = 2 * (widths(shape).iter().sum::<usize>() + shape.hidden_size);
        let logits = 4 * logit_rows(shape) * shape.logits_stride();
        // CublasLt are tried out beside all that.
        let tried = 4 * MOST_ROWS * shape.logits_stride().max(2 * shape.intermediate_size);
        rows.next_power_of_two() * row + logits + tried + 4 * token_trie::WORDS + (512 << 20)
    }

    /// Copies whole pages, one after the other: (from, to).
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) -> Result<()> {
        if copies.is_empty() {
            return Ok(());
        }
        let ModelRunner { model, stream: s, pages, count, packet, words, .. } = self;
        if let Some(page) = copies.iter().flat_map(|&(from, to)| [from, to]).find(|p| *p as usize >= *count) {
            return Err(CudaError::new("copying pages", format!("page {page} of {count}")));
        }
        model.device.bind()?;
        packet.clear();
        packet.put(copies.iter().flat_map(|&(from, to)| [from, to]));
        words.put(s, &packet.words)?;
        let page16 = model.shape.block_elements() / 8;
        let layer16 = ((*count + 1) * page16) as u64;
        s.launch(
            model.program.functions.copy_pages,
            (page16.div_ceil(256), model.shape.num_layers, 1),
            256,
            0,
            args![pages.at(0), words.at(0), copies.len(), page16, layer16],
        )?;
        s.wait()
    }

    /// Does all of a step; answers come in the order of the asks.
    pub fn step(&mut self, w: WeightsRef<'_>, step: &StepBatch<'_>, answers: &mut [GpuLogitResult]) -> Result<()> {
        self.check(step, answers.len())?;
        self.model.device.bind()?;
        let moved = self.tries.find(&self.stream, step.queries, self.model.shape.vocab_size);
        if !matches!(moved, Ok(false)) {
            // What is recorded knows where they were.
            self.graphs.clear();
        }
        moved?;
        let single = step.sequences.iter().all(|p| p.num_tokens == 1 && p.num_logits == 1);
        // What is recorded has its logits all at once.
        let most = MOST_ROWS.min(logit_rows(&self.model.shape));
        if single && decode_graph::bucket(step.sequences.len()) <= most && self.fits(step) {
            return self.recorded(w, step, answers);
        }
        self.mixed(w, step, answers)
    }

    /// Refuses what would reach beyond the card's memory.
    fn check(&self, step: &StepBatch<'_>, answers: usize) -> Result<()> {
        let wrong = |problem: String| Err(CudaError::new("taking a step", problem));
        if !follow_one_another(step) {
            return wrong(format!("parts that do not follow one another over all of {} tokens", step.tokens.len()));
        }
        self.model.check_tokens(step.tokens.iter().chain(step.queries.iter().flat_map(|a| a.candidates.listed())))?;
        self.model.check_tokens(step.queries.iter().filter_map(|a| a.token.as_ref()))?;
        for part in step.sequences {
            let (end, positions) = (part.start_position + part.num_tokens, self.model.positions());
            if part.token_offset + part.num_tokens > step.tokens.len()
                || part.num_logits > part.num_tokens
                || part.num_tokens == 0
            {
                return wrong(format!("{part:?} is not among {} tokens", step.tokens.len()));
            }
            if end > positions {
                return wrong(format!("position {end} of {positions}"));
            }
            let pages = step
                .block_tables
                .get(part.block_table_offset..part.block_table_offset + end.div_ceil(BLOCK_SIZE))
                .unwrap_or_default();
            if pages.is_empty() || pages.iter().any(|p| *p as usize >= self.count) {
                return wrong(format!("{part:?} has no pages, or one of more than {}", self.count));
            }
        }
        let asked: usize = step.sequences.iter().map(|p| p.num_logits).sum();
        if asked != step.queries.len() || asked > answers {
            return wrong(format!(
                "{asked} rows are asked about, with {} questions, {answers} answers",
                step.queries.len()
            ));
        }
        Ok(())
    }

    /// Whether a packet of single tokens has room for the step's tables and lists.
    fn fits(&self, step: &StepBatch<'_>) -> bool {
        let lists: usize = step.queries.iter().map(|a| a.candidates.listed().len()).sum();
        Single::of(MOST_ROWS).tables + step.block_tables.len() + lists + 64 <= WORDS
    }

    /// One layer's part of the pages.
    fn layer_pages(&self, layer: usize) -> u64 {
        self.pages.at(layer * (self.count + 1) * self.model.shape.block_elements())
    }

    fn reserve(&mut self, held: WeightsRef<'_>, rows: usize, asked: usize) -> Result<()> {
        let (c, space) = (&self.model.shape, &mut self.space);
        let thin = held.adapter.map_or(0, |a| rows * a.layout.max_total_rank());
        if thin > space.low.len() {
            self.graphs.clear();
            space.low.reserve(thin.next_power_of_two())?;
        }
        if rows > space.rows {
            // What is recorded knows where things were. Where one cannot grow there is room for none: it is smaller than it was.
            self.graphs.clear();
            space.rows = 0;
            let rows = rows.max(256).next_power_of_two();
            let buffers = [
                &mut space.state,
                &mut space.normed,
                &mut space.qkv,
                &mut space.qk,
                &mut space.attended,
                &mut space.gate_up,
                &mut space.gated,
            ];
            for (buffer, width) in buffers.into_iter().zip(widths(c)) {
                buffer.reserve(rows * width)?;
            }
            space.squares.reserve(rows * crate::fused_gemm::parts(c.hidden_size))?;
            space.rows = rows;
        }
        let asked = asked.max(1).next_power_of_two();
        if asked > space.answers.len() || asked * c.hidden_size > space.asked.len() {
            self.graphs.clear();
            space.asked.reserve(asked * c.hidden_size)?;
            space.answers.reserve(asked)?;
        }
        let logits = asked.min(logit_rows(c)) * c.logits_stride();
        if logits > space.logits.len() {
            self.graphs.clear();
            space.logits.reserve(logits)?;
        }
        // Keys are cut into parts only while these are no more than the warps.
        let parts = self.model.decode_warps() * c.group_size() * (c.head_dim + 2);
        if parts > space.parts.len() || rows * c.num_kv_heads > space.done.len() {
            self.graphs.clear();
            space.parts.reserve(parts)?;
            space.done = DeviceBuffer::zeros(&self.model.device, (rows * c.num_kv_heads).next_power_of_two())?;
        }
        Ok(())
    }

    /// What `count` rows of states from `from` on answer, to `answers`.
    fn tell(&mut self, held: WeightsRef<'_>, from: u64, count: usize, asks: usize, answers: u64) -> Result<()> {
        let ModelRunner { model, stream: s, products, space, words, tries, .. } = self;
        let (w, shape, d) = (held.base, &model.shape, model.shape.hidden_size);
        let normed = space.normed.at(0);
        model.norm(s, from, w.at(model.layout.final_norm.start), count, normed, 0)?;
        let head = Matrix::new(w.at(model.layout.lm_head.start), d);
        let logits = Matrix::new(space.logits.at(0), shape.logits_stride());
        let shape_of = (count, shape.vocab_size, d);
        products.run(s, Kind::Forward, shape_of, Matrix::new(normed, d), head, None, logits, true)?;
        let (logits, stride) = (space.logits.at(0), shape.logits_stride() as u64);
        s.launch(
            model.program.functions.answer,
            (count, 1, 1),
            crate::step_inputs::READERS,
            0,
            args![logits, stride, shape.vocab_size, words.at(0), tries.on_card(), asks, answers],
        )
    }

    /// A step in which some sequences have several new tokens.
    fn mixed(&mut self, w: WeightsRef<'_>, step: &StepBatch<'_>, answers: &mut [GpuLogitResult]) -> Result<()> {
        // Single tokens first, unless all are to be treated alike.
        let together = self.invariant;
        let alone = |part: &GpuSequenceSlice| part.num_tokens == 1 && !together;
        let mut order: Vec<usize> = (0..step.sequences.len()).collect();
        order.sort_by_key(|i| !alone(&step.sequences[*i]));
        let single = step.sequences.iter().filter(|p| alone(p)).count();
        let rows = step.tokens.len();
        let p = &mut self.packet;
        p.clear();
        let asks_of: Vec<usize> = step
            .sequences
            .iter()
            .scan(0, |at, part| {
                let first = *at;
                *at += part.num_logits;
                Some(first)
            })
            .collect();
        let mut asked_rows = vec![0_u32; step.queries.len()];
        let tokens = p.leave(rows);
        let positions = p.leave(rows);
        let cells = p.leave(rows);
        let lists = p.leave(rows);
        let (mut row, mut items): (usize, Vec<[u32; ITEM]>) = (0, Vec::new());
        for &i in &order {
            let part = &step.sequences[i];
            for j in 0..part.num_tokens {
                let position = part.start_position + j;
                p.words[tokens + row + j] = step.tokens[part.token_offset + j];
                p.words[positions + row + j] = position as u32;
                let page = step.block_tables[part.block_table_offset + position / BLOCK_SIZE];
                p.words[cells + row + j] = page * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32;
            }
            p.words[lists + row] = part.block_table_offset as u32;
            if !alone(part) {
                let keys = part.start_position + part.num_tokens;
                let item = |tile: usize| [row, part.num_tokens, part.block_table_offset, keys, tile].map(|x| x as u32);
                items.extend((0..part.num_tokens.div_ceil(TILE)).map(item));
            }
            for j in 0..part.num_logits {
                asked_rows[asks_of[i] + j] = (row + part.num_tokens - part.num_logits + j) as u32;
            }
            row += part.num_tokens;
        }
        items.sort_by_key(|i| std::cmp::Reverse(i[3]));
        let items = (p.put(items.iter().flatten().copied()), items.len());
        let tables = p.put(step.block_tables.iter().copied());
        let asked = p.put(asked_rows);
        let asks = p.leave(step.queries.len() * ASK);
        for (i, ask) in step.queries.iter().enumerate() {
            p.ask(asks, i, ask, self.tries.node(i));
        }
        let at = Single { tokens, positions, cells, lists, asks, items: items.0, tables };
        if self.words.len() < self.packet.words.len() {
            self.graphs.clear();
            // What was there stays until this is: recorded steps count on it.
            self.words = DeviceBuffer::new(&self.model.device, self.packet.words.len().next_power_of_two())?;
        }
        self.words.put(&self.stream, &self.packet.words)?;
        let count = step.queries.len();
        self.reserve(w, rows, count)?;
        self.layers(w, rows, (single, &at), items)?;
        if count == 0 {
            return self.stream.wait();
        }
        let (d, state) = (self.model.shape.hidden_size, self.space.state.at(0));
        let picked = self.space.asked.at(0);
        self.model.gather(&self.stream, state, self.words.at(asked), count, d, picked)?;
        let at_once = logit_rows(&self.model.shape);
        for from in (0..count).step_by(at_once) {
            let n = at_once.min(count - from);
            self.tell(w, self.space.asked.at(from * d), n, asks + from * ASK, self.space.answers.at(from))?;
        }
        self.space.answers.take(&self.stream, &mut answers[..count])
    }
}

/// Whether every token is in one part, and in one only.
fn follow_one_another(step: &StepBatch<'_>) -> bool {
    let end = step.sequences.iter().try_fold(0, |at, part| (part.token_offset == at).then_some(at + part.num_tokens));
    end == Some(step.tokens.len())
}

/// Numbers of a row: its state, the same normed, queries, keys and values, the first two turned, what attention yields, gates and ups,
/// gated ones.
fn widths(c: &crate::ModelShape) -> [usize; 7] {
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
    (LOGITS / shape.logits_stride()).clamp(64, 4096)
}
