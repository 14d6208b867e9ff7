//! How does each parameter bear on the loss?

use super::space::Acts;
use super::{PARTIALS, TILE, Trainer};
use crate::card::args;
use crate::error::Result;
use crate::product::{Kind, Matrix};

impl Trainer {
    /// Takes the gradient by a layer's output in `dstate` to that by its input, and adds to the parameters' gradients.
    pub(super) fn layer_grad(&mut self, layer: usize, n: usize, acts: usize) -> Result<()> {
        let Trainer { model, stream: s, products, weights: w, grads, space, words, places, .. } = self;
        let (shape, f, at) = (&model.shape, &model.program.functions, &model.places.layers[layer]);
        let (d, inner, out) = (shape.hidden, shape.inner, shape.out());
        let a: &Acts = &space.acts[acts];
        let (x, dstate, normed, dnormed) =
            (space.states[layer].at(0), space.dstate.at(0), space.normed.at(0), space.dnormed.at(0));
        let blocks = PARTIALS.min(n);
        // One product on its way back: from `dy` to `dx`, and to the matrix's gradient. `x` is made in between.
        let mut to_input = |dy: u64, outputs: usize, inputs: usize, first: usize, dx: u64| {
            let (dy, m) = (Matrix::new(dy, outputs), Matrix::new(w.at(first), inputs));
            products.run(s, Kind::Input, (n, outputs, inputs), dy, m, None, Matrix::new(dx, inputs), false)
        };
        to_input(dstate, d, inner, at.down.start, space.dgated.at(0))?;
        let f8 = inner / 8;
        s.launch(
            f.swiglu_grad,
            (n, f8.div_ceil(128), 1),
            128,
            0,
            args![space.dgated.at(0), a.gate_up.at(0), f8, space.dgate_up.at(0), space.gated.at(0)],
        )?;
        to_input(space.dgate_up.at(0), 2 * inner, d, at.gate_up.start, dnormed)?;
        let mut to_weight = |dy: u64, x: u64, outputs: usize, inputs: usize, first: usize| {
            let (dy, x, dw) = (Matrix::new(dy, outputs), Matrix::new(x, inputs), Matrix::new(grads.at(first), inputs));
            products.run(s, Kind::Weight, (n, outputs, inputs), dy, x, Some(dw), dw, true)
        };
        to_weight(dstate, space.gated.at(0), d, inner, at.down.start)?;
        let norm_again = |x: u64, first: usize, inverse: u64| {
            let threads = (d / 8).clamp(32, 256);
            s.launch(f.rms_norm_again, (n, 1, 1), threads, 0, args![x, w.at(first), inverse, d / 8, normed])
        };
        let norm_grad = |x: u64, first: usize, inverse: u64| {
            let partials = space.partials.at(0);
            s.launch(
                f.rms_norm_grad,
                (blocks, 1, 1),
                model.row_threads(),
                0,
                args![dnormed, x, w.at(first), inverse, n, d / 8, dstate, partials],
            )?;
            s.launch(f.add_partials, (d.div_ceil(32), 1, 1), 256, 0, args![partials, blocks, d, grads.at(first)])
        };
        norm_again(a.middle.at(0), at.norm2.start, a.inverse2.at(0))?;
        to_weight(space.dgate_up.at(0), normed, 2 * inner, d, at.gate_up.start)?;
        norm_grad(a.middle.at(0), at.norm2.start, a.inverse2.at(0))?;

        to_weight(dstate, a.attended.at(0), d, out, at.out.start)?;
        let (dy, m) = (Matrix::new(dstate, d), Matrix::new(w.at(at.out.start), out));
        products.run(s, Kind::Input, (n, d, out), dy, m, None, Matrix::new(space.dattended.at(0), out), false)?;
        let units = n * shape.heads;
        s.launch(
            f.attention_delta,
            (units.div_ceil(8), 1, 1),
            256,
            0,
            args![a.attended.at(0), space.dattended.at(0), units, space.delta.at(0)],
        )?;
        let tile = TILE * shape.head_dim * 2;
        let common = [a.qk.at(0), a.qkv.at(0), space.dattended.at(0), a.log_sums.at(0), space.delta.at(0)];
        let [qk, qkv, dout, log_sums, delta] = common;
        let (heads, kv, scale) = (shape.heads, shape.kv, shape.scale());
        let (items, count) = places.keys;
        s.launch(
            f.attention_grad_keys,
            (count, kv, 1),
            128,
            6 * tile + 1024,
            args![qk, qkv, dout, log_sums, delta, words.at(items), heads, kv, scale, space.dqk.at(0), space.dqkv.at(0)],
        )?;
        let (items, count) = places.queries;
        s.launch(
            f.attention_grad_queries,
            (count, heads, 1),
            128,
            4 * tile,
            args![qk, qkv, dout, log_sums, delta, words.at(items), heads, kv, scale, space.dqk.at(0)],
        )?;
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
                w.at(at.head_norms.start),
                model.turns.at(0),
                positions,
                a.head_inverse.at(0),
                n,
                heads,
                kv,
                space.dqkv.at(0),
                partials
            ],
        )?;
        let width = 2 * shape.head_dim;
        let to = grads.at(at.head_norms.start);
        s.launch(f.add_partials, (width.div_ceil(32), 1, 1), 256, 0, args![partials, head_blocks, width, to])?;

        let (dy, m) = (Matrix::new(space.dqkv.at(0), shape.qkv()), Matrix::new(w.at(at.qkv.start), d));
        products.run(s, Kind::Input, (n, shape.qkv(), d), dy, m, None, Matrix::new(dnormed, d), false)?;
        norm_again(x, at.norm1.start, a.inverse1.at(0))?;
        let (from, dw) = (Matrix::new(normed, d), Matrix::new(grads.at(at.qkv.start), d));
        products.run(s, Kind::Weight, (n, shape.qkv(), d), dy, from, Some(dw), dw, true)?;
        norm_grad(x, at.norm1.start, a.inverse1.at(0))
    }

    /// Adds each row's gradient to its token's, in the order of the rows.
    pub(super) fn embedding_grad(&mut self) -> Result<()> {
        let Trainer { model, stream: s, grads, space, words, places, .. } = self;
        let d8 = model.shape.hidden / 8;
        let (tokens, count) = places.distinct;
        let to = grads.at(model.places.embedding.start);
        s.launch(
            model.program.functions.embedding_grad,
            (count, 1, 1),
            d8.clamp(32, 256),
            0,
            args![space.dstate.at(0), words.at(places.order), words.at(places.starts), words.at(tokens), d8, to],
        )
    }
}
