//! How does each parameter bear on the loss?

use super::workspace::Acts;
use super::{ModelTrainer, PARTIALS};
use crate::attention::Slopes;
use crate::error::Result;
use crate::gemm::{Kind, Matrix};
use crate::lora::{GpuLoraSegment, Group};
use crate::stream::args;

impl ModelTrainer {
    /// One product on its way back, from `dy` to `dx`.
    fn input_grad(&mut self, layer: usize, group: Group, n: usize, dy: u64, dx: u64) -> Result<()> {
        let (first, outputs, inputs) = self.model.matrix(layer, group);
        let ModelTrainer { stream: s, products, weights: w, adapter, space, .. } = self;
        let (dy, m, dx) = (Matrix::new(dy, outputs), Matrix::new(w.at(first), inputs), Matrix::new(dx, inputs));
        products.run(s, Kind::Input, (n, outputs, inputs), dy, m, None, dx, false)?;
        let worn = GpuLoraSegment::new(adapter.as_ref(), &space.low);
        worn.map_or(Ok(()), |worn| worn.pass_back(s, products, (layer, group), n, dy, dx, space.dlow.at(0)))
    }

    /// From `dy` and the product's input to the gradient of what learns; follows [`input_grad`](Self::input_grad) of the same
    /// product.
    fn weight_grad(&mut self, layer: usize, group: Group, n: usize, dy: u64, x: u64) -> Result<()> {
        let (first, outputs, inputs) = self.model.matrix(layer, group);
        let ModelTrainer { stream: s, products, adapter, grads, space, .. } = self;
        let (dy, x) = (Matrix::new(dy, outputs), Matrix::new(x, inputs));
        if let Some(worn) = GpuLoraSegment::new(adapter.as_ref(), &space.low) {
            return worn.learn(s, products, (layer, group), n, dy, x, space.dlow.at(0), grads);
        }
        let dw = Matrix::new(grads.at(first), inputs);
        products.run(s, Kind::Weight, (n, outputs, inputs), dy, x, Some(dw), dw, true)
    }

    /// Makes a norm's output again, for the product that read it.
    fn norm_again(&mut self, x: u64, first: usize, inverse: u64, n: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, weights: w, space, .. } = self;
        let d8 = model.shape.hidden_size / 8;
        let to = space.normed.at(0);
        s.launch(
            model.program.functions.rms_norm_again,
            (n, 1, 1),
            d8.clamp(32, 256),
            0,
            args![x, w.at(first), inverse, d8, to],
        )
    }

    /// Adds to `dstate` what comes through a norm from `dnormed`, and to the gradient of its weights.
    fn norm_grad(&mut self, x: u64, first: usize, inverse: u64, n: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, weights: w, adapter, grads, space, .. } = self;
        let (f, d, blocks) = (&model.program.functions, model.shape.hidden_size, PARTIALS.min(n));
        let (dnormed, dstate, partials) = (space.dnormed.at(0), space.dstate.at(0), space.partials.at(0));
        s.launch(
            f.rms_norm_grad,
            (blocks, 1, 1),
            model.row_threads(),
            0,
            args![dnormed, x, w.at(first), inverse, n, d / 8, dstate, partials],
        )?;
        if adapter.is_some() {
            return Ok(());
        }
        s.launch(f.add_partials, (d.div_ceil(32), 1, 1), 256, 0, args![partials, blocks, d, grads.at(first)])
    }

    /// Takes the gradient by a layer's output in `dstate` to that by its input, and adds to the gradient of what learns.
    pub(super) fn layer_grad(&mut self, layer: usize, n: usize, acts: usize) -> Result<()> {
        let (norm1, norm2) = {
            let at = &self.model.layout.layers[layer];
            (at.input_norm.start, at.post_attention_norm.start)
        };
        let space = &self.space;
        let a: &Acts = &space.acts[acts];
        let (x, dstate, normed, dnormed) =
            (space.states[layer].at(0), space.dstate.at(0), space.normed.at(0), space.dnormed.at(0));
        let (middle, inverse1, inverse2, attended) =
            (a.middle.at(0), a.inverse1.at(0), a.inverse2.at(0), a.attended.at(0));
        let (gated, dgated, dgate_up) = (space.gated.at(0), space.dgated.at(0), space.dgate_up.at(0));
        let (dattended, dqkv) = (space.dattended.at(0), space.dqkv.at(0));

        self.input_grad(layer, Group::Down, n, dstate, dgated)?;
        self.swiglu_grad(n, acts)?;
        self.weight_grad(layer, Group::Down, n, dstate, gated)?;
        self.input_grad(layer, Group::GateUp, n, dgate_up, dnormed)?;
        self.norm_again(middle, norm2, inverse2, n)?;
        self.weight_grad(layer, Group::GateUp, n, dgate_up, normed)?;
        self.norm_grad(middle, norm2, inverse2, n)?;

        self.input_grad(layer, Group::Out, n, dstate, dattended)?;
        self.weight_grad(layer, Group::Out, n, dstate, attended)?;
        self.attention_grad(layer, n, acts)?;

        self.input_grad(layer, Group::Qkv, n, dqkv, dnormed)?;
        self.norm_again(x, norm1, inverse1, n)?;
        self.weight_grad(layer, Group::Qkv, n, dqkv, normed)?;
        self.norm_grad(x, norm1, inverse1, n)
    }

    /// From the gradient by gated numbers to that by gates and ups, making the gated numbers again.
    fn swiglu_grad(&mut self, n: usize, acts: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, space, .. } = self;
        let f8 = model.shape.intermediate_size / 8;
        let gate_up = space.acts[acts].gate_up.at(0);
        s.launch(
            model.program.functions.swiglu_grad,
            (n, f8.div_ceil(128), 1),
            128,
            0,
            args![space.dgated.at(0), gate_up, f8, space.dgate_up.at(0), space.gated.at(0)],
        )
    }

    /// From the gradient by what attention yields to that by raw queries, keys and values, and by the heads' norms.
    fn attention_grad(&mut self, layer: usize, n: usize, acts: usize) -> Result<()> {
        let ModelTrainer { model, stream: s, weights: w, adapter, grads, space, words, places, .. } = self;
        let (shape, f, at) = (&model.shape, &model.program.functions, &model.layout.layers[layer]);
        let a: &Acts = &space.acts[acts];
        let (heads, kv, qkv) = (shape.num_heads, shape.num_kv_heads, a.qkv.at(0));
        let slopes =
            Slopes { out: space.dattended.at(0), delta: space.delta.at(0), qk: space.dqk.at(0), qkv: space.dqkv.at(0) };
        let [queries, keys] = [places.queries, places.keys].map(|(items, count)| (words.at(items), count));
        model.attend_back(s, model.attention_way(), a.attending(n), slopes, queries, keys)?;
        let head_blocks = PARTIALS.min((n * (heads + kv)).div_ceil(8));
        let positions = words.at(places.positions);
        let partials = space.partials.at(0);
        s.launch(
            f.head_norm_rope_grad,
            (head_blocks, 1, 1),
            256,
            0,
            args![
                space.dqk.at(0),
                qkv,
                w.at(at.qk_norm.start),
                model.rope_table.at(0),
                positions,
                a.head_inverse.at(0),
                n,
                heads,
                kv,
                space.dqkv.at(0),
                partials
            ],
        )?;
        if adapter.is_some() {
            return Ok(());
        }
        let width = 2 * shape.head_dim;
        let to = grads.at(at.qk_norm.start);
        s.launch(f.add_partials, (width.div_ceil(32), 1, 1), 256, 0, args![partials, head_blocks, width, to])
    }

    /// Adds each row's gradient to its token's, in the order of the rows. All else has been started when it is looked up which
    /// rows these are, so that the card need not wait for that.
    pub(super) fn embedding_grad(&mut self, tokens: &[u32]) -> Result<()> {
        let mut rows: Vec<u32> = (0..tokens.len() as u32).collect();
        rows.sort_by_key(|row| tokens[*row as usize]);
        let p = &mut self.packet;
        p.clear();
        p.put(rows.iter().copied());
        let same = || rows.chunk_by(|a, b| tokens[*a as usize] == tokens[*b as usize]);
        let distinct = p.put(same().map(|rows| tokens[rows[0] as usize]));
        let starts = p.put([0]);
        p.put(same().scan(0, |end, rows| {
            *end += rows.len() as u32;
            Some(*end)
        }));
        let ModelTrainer { model, stream: s, grads, space, packet, order, .. } = self;
        order.reserve(packet.words.len())?;
        order.put(s, &packet.words)?;
        let d8 = model.shape.hidden_size / 8;
        let to = grads.at(model.layout.embed_tokens.start);
        s.launch(
            model.program.functions.embedding_grad,
            (starts - distinct, 1, 1),
            d8.clamp(32, 256),
            0,
            args![space.dstate.at(0), order.at(0), order.at(starts), order.at(distinct), d8, to],
        )
    }
}
