//! How do weights change on the card?
//!
//! One pass over packed sequences at a time, forward and backward; gradients add up in fp32 until a step. What the host
//! has to say about the loss it says per prediction, between the two. All sums have an order of their own, so the same
//! batch gives the same bits on the same card.

mod adamw;
mod backward;
mod lm_head;

mod workspace;

pub use adamw::AdamWParams;

use crate::buffer::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::gemm::CublasLt;
use crate::lora::{CudaAdapter, GpuLoraLayout, GpuLoraSegment, Group};
use crate::model::{CudaModel, CudaWeights, same_length};
use crate::shape::ModelShape;
use crate::step_inputs::GpuStepInputs;
use crate::stream::Stream;
use std::sync::Arc;
use workspace::{Acts, Space};

/// What the last layer says about one prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuTokenLogprob {
    /// The token's log-probability.
    pub logprob: f32,
    /// The entropy.
    pub entropy: f32,
    /// The logarithm of the sum of exponentials.
    pub logsumexp: f32,
}

/// A token to be predicted.
#[derive(Clone, Copy, Debug)]
pub struct TargetToken<'a> {
    /// The row that predicts it.
    pub row: u32,
    /// Which it is.
    pub token: u32,
    /// What was possible, where that was not everything.
    pub allowed: Option<&'a [u32]>,
}

/// PackedSequences packed end to end. No row predicts twice.
#[derive(Clone, Debug, Default)]
pub struct PackedSequences<'a> {
    /// All tokens.
    pub tokens: &'a [u32],
    /// Where each sequence starts, and how long it is: one after the other, and no token between them.
    pub spans: Vec<(usize, usize)>,
    /// What is to be predicted.
    pub targets: Vec<TargetToken<'a>>,
}

impl PackedSequences<'_> {
    /// Whether every token is in one sequence, and in one only.
    fn follow_one_another(&self) -> bool {
        let end = self.spans.iter().try_fold(0, |at, (first, len)| (*first == at).then_some(at + len));
        end == Some(self.tokens.len())
    }

    /// A row that more than one prediction names, if there is one. All of them must be rows.
    fn predicts_twice(&self) -> Option<u32> {
        let mut seen = vec![false; self.tokens.len()];
        self.targets.iter().map(|p| p.row).find(|row| std::mem::replace(&mut seen[*row as usize], true))
    }
}

/// Trains one set of weights, or an adapter beside weights that stay as they are.
pub struct ModelTrainer {
    model: Arc<CudaModel>,
    stream: Stream,
    products: CublasLt,
    weights: Arc<CudaWeights>,
    /// What learns in the weights' place.
    adapter: Option<CudaAdapter>,
    // What learns, in fp32.
    master: DeviceBuffer<f32>,
    grads: DeviceBuffer<f32>,
    first: DeviceBuffer<f32>,
    second: DeviceBuffer<f32>,
    space: Space,
    packet: GpuStepInputs,
    words: DeviceBuffer<u32>,
    places: InputLayout,
    /// Which rows are which token's.
    order: DeviceBuffer<u32>,
}

/// Where things are in the packet.
#[derive(Default)]
struct InputLayout {
    tokens: usize,
    positions: usize,
    rows: usize,
    queries: (usize, usize),
    keys: (usize, usize),
    asks: usize,
}

/// Words of an item of attention.
const ITEM: usize = 5;
/// Blocks that share the rows of a sum over rows.
const PARTIALS: usize = 1056;

impl ModelTrainer {
    /// Rooms for passes are made for tokens in this number.
    pub const TOKEN_GRANULARITY: usize = 256;

    /// Starts from these numbers, which all learn.
    pub fn new(model: &Arc<CudaModel>, flat: &[f32]) -> Result<Self> {
        same_length(flat.len(), model.layout.len)?;
        let weights = Arc::new(CudaWeights { bf16: DeviceBuffer::new(&model.device, flat.len())? });
        Self::start(model, weights, None, flat)
    }

    /// Starts from an adapter's numbers, which learn, beside a model's, which do not.
    pub fn with_adapter(
        model: &Arc<CudaModel>,
        weights: &Arc<CudaWeights>,
        places: &Arc<GpuLoraLayout>,
        flat: &[f32],
    ) -> Result<Self> {
        let adapter = model.upload_adapter(places, flat)?;
        Self::start(model, Arc::clone(weights), Some(adapter), flat)
    }

    fn start(
        model: &Arc<CudaModel>,
        weights: Arc<CudaWeights>,
        adapter: Option<CudaAdapter>,
        flat: &[f32],
    ) -> Result<Self> {
        let card = &model.device;
        let stream = Stream::new(card)?;
        let products = CublasLt::new(&stream)?;
        let len = flat.len();
        let mut trainer = ModelTrainer {
            weights,
            adapter,
            master: DeviceBuffer::from_slice(card, flat)?,
            grads: DeviceBuffer::zeros(card, len)?,
            first: DeviceBuffer::zeros(card, len)?,
            second: DeviceBuffer::zeros(card, len)?,
            space: Space::new(card)?,
            packet: GpuStepInputs::default(),
            words: DeviceBuffer::new(card, 0)?,
            places: InputLayout::default(),
            order: DeviceBuffer::new(card, 0)?,
            model: Arc::clone(model),
            stream,
            products,
        };
        trainer.refresh()?;
        Ok(trainer)
    }

    /// Bytes on the card for so many parameters, without what a pass remembers. Those that do not learn are there once.
    pub fn state_bytes(parameters: usize, learning: usize) -> usize {
        2 * parameters + 16 * learning + if learning == parameters { 0 } else { 2 * learning }
    }

    /// Bytes of a pass that do not grow with its tokens: of the logits that exist at a time, of the gradient by them, and of sums
    /// over rows.
    pub fn fixed_bytes(shape: &ModelShape) -> usize {
        let answers = size_of::<[f32; 4]>() + size_of::<[f32; 2]>();
        workspace::logit_rows(shape) * (6 * shape.logits_stride() + answers) + 4 * workspace::partials(shape)
    }

    /// What a pass remembers of a token that predicts another, in bytes. `thin` are the most thin numbers of
    /// an adapter at a time, where one learns.
    pub fn bytes_per_token(shape: &ModelShape, thin: usize, recompute: bool) -> usize {
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
        layers * layer + 2 * (shape.num_layers + 1) * shape.hidden_size + scratch + 2 * 2 * thin
    }

    /// The bf16 form of what learns.
    fn learning(&self) -> &CudaWeights {
        self.adapter.as_ref().map_or(&self.weights, |a| &a.weights)
    }

    /// Brings the bf16 form up to date with the numbers themselves.
    fn refresh(&mut self) -> Result<()> {
        self.model.narrow(&self.stream, self.master.at(0), self.master.len(), self.learning().at(0))?;
        self.stream.wait()
    }

    /// A copy of what learns as it is now.
    pub fn snapshot(&self) -> Result<CudaWeights> {
        self.model.device.bind()?;
        let bf16 = self.learning().bf16.copied(&self.stream)?;
        self.stream.wait()?;
        Ok(CudaWeights { bf16 })
    }

    /// The same where an adapter learns.
    pub fn adapter_snapshot(&self) -> Result<Option<CudaAdapter>> {
        let Some(adapter) = &self.adapter else { return Ok(None) };
        Ok(Some(CudaAdapter { layout: Arc::clone(&adapter.layout), weights: self.snapshot()? }))
    }

    /// The model's own weights.
    pub fn weights(&self) -> &Arc<CudaWeights> {
        &self.weights
    }

    /// The numbers that learn.
    pub fn params(&self) -> &DeviceBuffer<f32> {
        &self.master
    }

    /// The gradient so far.
    pub fn grads(&self) -> &DeviceBuffer<f32> {
        &self.grads
    }

    /// The first and second moments.
    pub fn moments(&self) -> (&DeviceBuffer<f32>, &DeviceBuffer<f32>) {
        (&self.first, &self.second)
    }

    /// Goes on from other numbers and moments; the gradient is 0.
    pub fn restore(&mut self, flat: &[f32], first: &[f32], second: &[f32]) -> Result<()> {
        for numbers in [flat, first, second] {
            same_length(numbers.len(), self.master.len())?;
        }
        self.master.write(flat)?;
        self.first.write(first)?;
        self.second.write(second)?;
        self.zero_grads()?;
        self.refresh()
    }

    /// Forgets the gradient.
    pub fn zero_grads(&mut self) -> Result<()> {
        self.model.device.bind()?;
        self.grads.clear(&self.stream, 0, self.grads.len())?;
        self.stream.wait()
    }

    /// Adds the gradient of a loss over sequences. `cost` is told what the model says about each prediction and answers
    /// with the loss's slopes by log-probability and entropy. With `recompute`, layers are computed again on the way back
    /// instead of being remembered.
    pub fn forward_backward(
        &mut self,
        sequences: &PackedSequences<'_>,
        recompute: bool,
        mut cost: impl FnMut(usize, GpuTokenLogprob) -> (f32, f32),
    ) -> Result<()> {
        self.model.device.bind()?;
        let n = sequences.tokens.len();
        if n == 0 || sequences.targets.is_empty() {
            return Ok(());
        }
        self.check(sequences)?;
        self.send(sequences)?;
        let thin = self.adapter.as_ref().map_or(0, |a| a.layout.max_total_rank());
        self.space.reserve(&self.model.shape, n, sequences.targets.len(), thin, recompute)?;
        self.forward(n, !recompute)?;
        self.head(sequences, &mut cost)?;
        for layer in (0..self.model.shape.num_layers).rev() {
            if recompute {
                self.layer(layer, n, 0)?;
            }
            self.layer_grad(layer, n, if recompute { 0 } else { layer })?;
        }
        if self.adapter.is_none() {
            self.embedding_grad(sequences.tokens)?;
        }
        self.stream.wait()
    }

    /// Refuses what would reach beyond the card's memory.
    fn check(&self, s: &PackedSequences<'_>) -> Result<()> {
        let wrong = |problem: String| Err(CudaError::new("a pass over sequences", problem));
        let (n, positions) = (s.tokens.len(), self.model.positions());
        self.model.check_tokens(s.tokens.iter().chain(s.targets.iter().filter_map(|p| p.allowed).flatten()))?;
        self.model.check_tokens(s.targets.iter().map(|p| &p.token))?;
        if let Some((first, len)) = s.spans.iter().find(|(first, len)| first + len > n || *len > positions) {
            return wrong(format!("{len} tokens from {first} on of {n}, and {positions} positions"));
        }
        if !s.follow_one_another() {
            return wrong(format!("sequences that do not follow one another over all of {n} tokens"));
        }
        if let Some(p) = s.targets.iter().find(|p| p.row as usize >= n) {
            return wrong(format!("a prediction by row {} of {n}", p.row));
        }
        if let Some(row) = s.predicts_twice() {
            return wrong(format!("two predictions by row {row}"));
        }
        Ok(())
    }

    /// Waits until all is done that was started: then numbers can be read.
    pub fn synchronize(&self) -> Result<()> {
        self.model.device.bind()?;
        self.stream.wait()
    }

    /// Puts everything small about the sequences on the card that their way forward needs, and most of their way back.
    fn send(&mut self, s: &PackedSequences<'_>) -> Result<()> {
        let (p, n) = (&mut self.packet, s.tokens.len());
        p.clear();
        let tokens = p.put(s.tokens.iter().copied());
        let positions = p.leave(n);
        let mut queries: Vec<[u32; ITEM]> = Vec::new();
        let tile = self.model.attention_way().rows();
        for &(first, len) in &s.spans {
            for i in 0..len {
                p.words[positions + first + i] = i as u32;
            }
            let item = |tile: usize| [first, len, first, len, tile].map(|x| x as u32);
            queries.extend((0..len.div_ceil(tile)).map(item));
        }
        // Later queries see more keys, earlier keys are seen by more queries: the longest work first.
        let mut keys = queries.clone();
        queries.sort_by_key(|i| std::cmp::Reverse(i[4]));
        keys.sort_by_key(|i| i[4] as i64 * tile as i64 - i64::from(i[1]));
        let queries = (p.put(queries.iter().flatten().copied()), queries.len());
        let keys = (p.put(keys.iter().flatten().copied()), keys.len());
        let rows = p.put(s.targets.iter().map(|p| p.row));
        let asks = p.leave(s.targets.len() * crate::step_inputs::ASK);
        for (i, prediction) in s.targets.iter().enumerate() {
            p.ask(asks, i, &crate::step_inputs::GpuLogitQuery::score(prediction.token, prediction.allowed), 0);
        }
        self.places = InputLayout { tokens, positions, rows, queries, keys, asks };
        self.words.reserve(self.packet.words.len())?;
        self.words.put(&self.stream, &self.packet.words)
    }

    fn forward(&mut self, n: usize, keep: bool) -> Result<()> {
        let (model, d) = (Arc::clone(&self.model), self.model.shape.hidden_size);
        let table = self.weights.at(model.layout.embed_tokens.start);
        let tokens = self.words.at(self.places.tokens);
        model.gather(&self.stream, table, tokens, n, d, self.space.states[0].at(0))?;
        for layer in 0..model.shape.num_layers {
            self.layer(layer, n, if keep { layer } else { 0 })?;
        }
        Ok(())
    }

    /// One layer, from its input to the next one's, remembering in `acts` what the way back needs.
    fn layer(&mut self, layer: usize, n: usize, acts: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, products, weights: w, adapter, space, words, places, .. } = self;
        let at = &model.layout.layers[layer];
        let worn = GpuLoraSegment::new(adapter.as_ref(), &space.low);
        let (x, y, a): (u64, u64, &Acts) =
            (space.states[layer].at(0), space.states[layer + 1].at(0), &space.acts[acts]);
        let normed = space.normed.at(0);
        model.norm(s, x, w.at(at.input_norm.start), n, normed, a.inverse1.at(0))?;
        model.linear(s, products, (w, worn), (layer, Group::Qkv), n, normed, None, a.qkv.at(0))?;
        let positions = words.at(places.positions);
        let inverse = a.head_inverse.at(0);
        model.head_norm_rope(s, a.qkv.at(0), w.at(at.qk_norm.start), positions, n, a.qk.at(0), inverse, (0, 0))?;
        let queries = (words.at(places.queries.0), places.queries.1);
        model.attend(s, model.attention_way(), a.attending(n), queries)?;
        let kept = (a.middle.at(0), a.inverse2.at(0), normed, a.gate_up.at(0), space.gated.at(0));
        model.finish(s, products, (w, worn), layer, n, x, a.attended.at(0), kept, y)
    }
}

#[cfg(test)]
mod tests {
    use super::{PackedSequences, TargetToken};

    #[test]
    fn a_token_is_in_one_sequence_and_in_one_only() {
        let follow = |spans: &[(usize, usize)]| {
            PackedSequences { tokens: &[7; 5], spans: spans.to_vec(), targets: Vec::new() }.follow_one_another()
        };
        assert!(follow(&[(0, 2), (2, 3)]));
        for wrong in [&[(0, 2), (3, 2)][..], &[(0, 3), (2, 3)], &[(0, 4)], &[(1, 4)], &[(0, 6)], &[]] {
            assert!(!follow(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_row_predicts_once() {
        let twice = |rows: &[u32]| {
            let targets = rows.iter().map(|&row| TargetToken { row, token: 1, allowed: None }).collect();
            PackedSequences { tokens: &[7; 5], spans: vec![(0, 5)], targets }.predicts_twice()
        };
        assert_eq!((twice(&[]), twice(&[3, 0, 4]), twice(&[3, 0, 4, 0])), (None, None, Some(0)));
    }
}
