//! What does the model compute, and how does each parameter bear on it?
//!
//! Qwen3 as Hugging Face has it, forward and backward, written once over [`Kernels`].

use crate::batch::Chunk;
use crate::config::Config;
use crate::kernels::{Choice, Kernels, Span, Strided, Target};
use crate::layout::{LayerAt, Layout};
use std::sync::{Arc, Mutex, PoisonError};

/// The largest piece of logits that ever exists, in numbers.
const LOGITS: usize = 1 << 24;

/// A model's shape on a device.
pub(crate) struct Model<K: Kernels> {
    pub(crate) config: Config,
    pub(crate) layout: Layout,
    pub(crate) kernels: K,
    turns: Mutex<Arc<Turns<K>>>,
}

/// Cosines and sines of each position.
pub(crate) struct Turns<K: Kernels> {
    buffer: K::Buffer,
    positions: usize,
    len: usize,
}

/// One set of weights.
pub(crate) struct Weights<K: Kernels> {
    pub(crate) flat: K::Buffer,
    layers: Vec<PackedLayer<K>>,
    pub(crate) head: K::Packed,
}

struct PackedLayer<K: Kernels> {
    qkv: K::Packed,
    out: K::Packed,
    gate_up: K::Packed,
    down: K::Packed,
}

/// What a layer remembers for its backward pass.
pub(crate) struct LayerActs<K: Kernels> {
    inverse1: K::Buffer,
    normed1: K::Buffer,
    pub(crate) qkv: K::Buffer,
    head_inverse: K::Buffer,
    pub(crate) qk: K::Buffer,
    pub(crate) attended: K::Buffer,
    log_sums: K::Buffer,
    middle: K::Buffer,
    inverse2: K::Buffer,
    normed2: K::Buffer,
    gate_up: K::Buffer,
    gated: K::Buffer,
}

impl<K: Kernels> LayerActs<K> {
    pub(crate) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        LayerActs {
            inverse1: b(),
            normed1: b(),
            qkv: b(),
            head_inverse: b(),
            qk: b(),
            attended: b(),
            log_sums: b(),
            middle: b(),
            inverse2: b(),
            normed2: b(),
            gate_up: b(),
            gated: b(),
        }
    }

    pub(crate) fn reserve(&mut self, k: &K, c: &Config, rows: usize) {
        let heads = c.heads();
        let sizes = [
            (&mut self.inverse1, 1),
            (&mut self.normed1, c.hidden_size),
            (&mut self.qkv, heads.qkv()),
            (&mut self.head_inverse, heads.q + heads.kv),
            (&mut self.qk, heads.qk()),
            (&mut self.attended, heads.out()),
            (&mut self.log_sums, heads.q),
            (&mut self.middle, c.hidden_size),
            (&mut self.inverse2, 1),
            (&mut self.normed2, c.hidden_size),
            (&mut self.gate_up, 2 * c.intermediate_size),
            (&mut self.gated, c.intermediate_size),
        ];
        for (buffer, width) in sizes {
            k.reserve(buffer, rows * width);
        }
    }
}

/// Everything a pass over a chunk needs besides weights, kept from one chunk to the next.
pub(crate) struct Workspace<K: Kernels> {
    /// The input of each layer, and the output of the last.
    states: Vec<K::Buffer>,
    /// One per layer, or a single one where layers are computed again in the backward pass (or there is none).
    acts: Vec<LayerActs<K>>,
    dstate: K::Buffer,
    dnormed: K::Buffer,
    dgate_up: K::Buffer,
    dgated: K::Buffer,
    dqkv: K::Buffer,
    dqk: K::Buffer,
    dattended: K::Buffer,
    picked: K::Buffer,
    picked_normed: K::Buffer,
    picked_inverse: K::Buffer,
    dpicked: K::Buffer,
    dpicked_normed: K::Buffer,
    logits: K::Buffer,
    choices: Vec<Choice>,
    slopes: Vec<(f32, f32)>,
    rows: Vec<u32>,
}

impl<K: Kernels> Workspace<K> {
    pub(crate) fn new(k: &K) -> Self {
        let b = || k.zeros(0);
        Workspace {
            states: Vec::new(),
            acts: Vec::new(),
            dstate: b(),
            dnormed: b(),
            dgate_up: b(),
            dgated: b(),
            dqkv: b(),
            dqk: b(),
            dattended: b(),
            picked: b(),
            picked_normed: b(),
            picked_inverse: b(),
            dpicked: b(),
            dpicked_normed: b(),
            logits: b(),
            choices: Vec::new(),
            slopes: Vec::new(),
            rows: Vec::new(),
        }
    }
}

/// Keys and values of one sequence, per layer.
pub(crate) struct Cache<K: Kernels> {
    keys: Vec<K::Buffer>,
    values: Vec<K::Buffer>,
    pub(crate) len: usize,
    capacity: usize,
}

impl<K: Kernels> Model<K> {
    pub(crate) fn new(config: Config, kernels: K) -> Self {
        let layout = Layout::new(&config);
        let empty = Turns { buffer: kernels.zeros(0), positions: 0, len: 0 };
        Model { config, layout, kernels, turns: Mutex::new(Arc::new(empty)) }
    }

    /// Weights from a flat buffer.
    pub(crate) fn weights(&self, flat: K::Buffer) -> Weights<K> {
        let (k, c, heads) = (&self.kernels, &self.config, self.config.heads());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let pack = |range: &std::ops::Range<usize>, outputs: usize, inputs: usize| {
            k.pack(k.get(&flat, range.clone()), outputs, inputs)
        };
        let layers = self
            .layout
            .layers
            .iter()
            .map(|l| PackedLayer {
                qkv: pack(&l.qkv, heads.qkv(), d),
                out: pack(&l.out, d, heads.out()),
                gate_up: pack(&l.gate_up, 2 * f, d),
                down: pack(&l.down, d, f),
            })
            .collect();
        let head = pack(&self.layout.head, c.vocab_size, d);
        Weights { flat, layers, head }
    }

    /// Brings the packed forms up to date with the flat buffer.
    pub(crate) fn repack(&self, w: &mut Weights<K>) {
        let k = &self.kernels;
        for (packed, at) in w.layers.iter_mut().zip(&self.layout.layers) {
            k.repack(k.get(&w.flat, at.qkv.clone()), &mut packed.qkv);
            k.repack(k.get(&w.flat, at.out.clone()), &mut packed.out);
            k.repack(k.get(&w.flat, at.gate_up.clone()), &mut packed.gate_up);
            k.repack(k.get(&w.flat, at.down.clone()), &mut packed.down);
        }
        k.repack(k.get(&w.flat, self.layout.head.clone()), &mut w.head);
    }

    /// Cosines and sines for at least this many positions.
    pub(crate) fn turns(&self, positions: usize) -> Arc<Turns<K>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.positions < positions {
            let positions = positions.next_power_of_two().max(64);
            let table = turn_table(self.config.rope_theta, self.config.head_dim, positions);
            let mut buffer = self.kernels.zeros(table.len());
            self.kernels.upload(&table, self.kernels.get_mut(&mut buffer, 0..table.len()));
            *turns = Arc::new(Turns { buffer, positions, len: table.len() });
        }
        Arc::clone(&turns)
    }

    /// What a forward pass remembers of a token, in bytes.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let (c, heads) = (&self.config, self.config.heads());
        let numbers = 4 * c.hidden_size + heads.qkv() + heads.qk() + heads.out() + 3 * c.intermediate_size;
        4 * c.num_hidden_layers * numbers
    }

    /// How many rows of logits exist at a time.
    pub(crate) fn logit_rows(&self) -> usize {
        (LOGITS / self.config.vocab_size).clamp(16, 256)
    }

    /// Everything of a layer up to and including queries and keys.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn project(
        &self,
        k: &K,
        w: &Weights<K>,
        layer: usize,
        positions: &[u32],
        turns: &Turns<K>,
        x: &K::Buffer,
        a: &mut LayerActs<K>,
    ) {
        let (c, heads, at, n) = (&self.config, self.config.heads(), &self.layout.layers[layer], positions.len());
        let d = c.hidden_size;
        k.norm(
            k.get(x, 0..n * d),
            k.get(&w.flat, at.norm1.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut a.normed1, 0..n * d),
            k.get_mut(&mut a.inverse1, 0..n),
        );
        let packed = &w.layers[layer];
        k.linear(k.get(&a.normed1, 0..n * d), n, &packed.qkv, k.get_mut(&mut a.qkv, 0..n * heads.qkv()), false);
        k.head_norm_rope(
            heads,
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&w.flat, at.head_norms.clone()),
            c.rms_norm_eps,
            k.get(&turns.buffer, 0..turns.len),
            positions,
            k.get_mut(&mut a.qk, 0..n * heads.qk()),
            k.get_mut(&mut a.head_inverse, 0..n * (heads.q + heads.kv)),
        );
    }

    /// Everything of a layer after attention.
    pub(crate) fn finish(
        &self,
        k: &K,
        w: &Weights<K>,
        layer: usize,
        n: usize,
        x: &K::Buffer,
        a: &mut LayerActs<K>,
        y: &mut K::Buffer,
    ) {
        let (c, heads, at) = (&self.config, self.config.heads(), &self.layout.layers[layer]);
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let packed = &w.layers[layer];
        k.copy(k.get(x, 0..n * d), k.get_mut(&mut a.middle, 0..n * d));
        k.linear(k.get(&a.attended, 0..n * heads.out()), n, &packed.out, k.get_mut(&mut a.middle, 0..n * d), true);
        k.norm(
            k.get(&a.middle, 0..n * d),
            k.get(&w.flat, at.norm2.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut a.normed2, 0..n * d),
            k.get_mut(&mut a.inverse2, 0..n),
        );
        k.linear(k.get(&a.normed2, 0..n * d), n, &packed.gate_up, k.get_mut(&mut a.gate_up, 0..n * 2 * f), false);
        k.swiglu(k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(&mut a.gated, 0..n * f));
        k.copy(k.get(&a.middle, 0..n * d), k.get_mut(y, 0..n * d));
        k.linear(k.get(&a.gated, 0..n * f), n, &packed.down, k.get_mut(y, 0..n * d), true);
    }

    fn layer(
        &self,
        k: &K,
        w: &Weights<K>,
        layer: usize,
        chunk: &Chunk,
        turns: &Turns<K>,
        x: &K::Buffer,
        a: &mut LayerActs<K>,
        y: &mut K::Buffer,
    ) {
        let (heads, n) = (self.config.heads(), chunk.tokens.len());
        a.reserve(k, &self.config, n);
        k.reserve(y, n * self.config.hidden_size);
        self.project(k, w, layer, &chunk.positions, turns, x, a);
        let (qk, qkv) = (k.get(&a.qk, 0..n * heads.qk()), k.get(&a.qkv, 0..n * heads.qkv()));
        k.attention(
            heads,
            &chunk.spans,
            Strided { data: qk, stride: heads.qk(), first: 0 },
            Strided { data: qk, stride: heads.qk(), first: heads.out() },
            Strided { data: qkv, stride: heads.qkv(), first: heads.qk() },
            k.get_mut(&mut a.attended, 0..n * heads.out()),
            k.get_mut(&mut a.log_sums, 0..n * heads.q),
        );
        self.finish(k, w, layer, n, x, a, y);
    }

    /// Runs all layers over a chunk. With `keep`, every layer's intermediate results stay for the backward pass.
    fn forward(&self, k: &K, w: &Weights<K>, chunk: &Chunk, s: &mut Workspace<K>, keep: bool) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        let turns = self.turns(chunk.longest());
        s.states.resize_with(layers + 1, || k.zeros(0));
        s.acts.resize_with(if keep { layers } else { 1 }, || LayerActs::new(k));
        k.reserve(&mut s.states[0], n * d);
        k.gather(
            k.get(&w.flat, self.layout.embedding.clone()),
            &chunk.tokens,
            d,
            k.get_mut(&mut s.states[0], 0..n * d),
        );
        for layer in 0..layers {
            let (before, after) = s.states.split_at_mut(layer + 1);
            let acts = &mut s.acts[if keep { layer } else { 0 }];
            self.layer(k, w, layer, chunk, &turns, &before[layer], acts, &mut after[0]);
        }
    }

    /// What the model says about each prediction of a chunk.
    pub(crate) fn score(&self, k: &K, w: &Weights<K>, chunk: &Chunk, s: &mut Workspace<K>, out: &mut Vec<Choice>) {
        self.forward(k, w, chunk, s, false);
        self.last_layer(k, w, chunk, s, None::<(&mut K::Buffer, fn(usize, Choice) -> (f32, f32))>);
        out.extend_from_slice(&s.choices);
    }

    /// Adds the gradient of a chunk's loss to `grads`. `cost` is told what the model says about each prediction and answers
    /// with the loss's slopes by log-probability and entropy.
    pub(crate) fn forward_backward(
        &self,
        k: &K,
        w: &Weights<K>,
        chunk: &Chunk,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        recompute: bool,
        cost: impl FnMut(usize, Choice) -> (f32, f32),
    ) {
        let (layers, n, d) = (self.config.num_hidden_layers, chunk.tokens.len(), self.config.hidden_size);
        self.forward(k, w, chunk, s, !recompute);
        k.reserve(&mut s.dstate, n * d);
        k.fill(k.get_mut(&mut s.dstate, 0..n * d), 0.0);
        self.last_layer(k, w, chunk, s, Some((grads, cost)));
        let turns = self.turns(chunk.longest());
        for layer in (0..layers).rev() {
            if recompute {
                let (before, after) = s.states.split_at_mut(layer + 1);
                self.layer(k, w, layer, chunk, &turns, &before[layer], &mut s.acts[0], &mut after[0]);
            }
            self.layer_grad(k, w, layer, chunk, &turns, s, grads, if recompute { 0 } else { layer });
        }
        k.scatter_add(k.get(&s.dstate, 0..n * d), &chunk.tokens, d, k.get_mut(grads, self.layout.embedding.clone()));
    }

    /// From the last state to the predictions and, where a gradient is wanted, back: a few rows of logits at a time.
    fn last_layer(
        &self,
        k: &K,
        w: &Weights<K>,
        chunk: &Chunk,
        s: &mut Workspace<K>,
        mut train: Option<(&mut K::Buffer, impl FnMut(usize, Choice) -> (f32, f32))>,
    ) {
        let (c, n) = (&self.config, chunk.tokens.len());
        let (d, v, count) = (c.hidden_size, c.vocab_size, chunk.predictions.len());
        s.choices.clear();
        s.choices.resize(count, Choice::default());
        if count == 0 {
            return;
        }
        s.rows.clear();
        s.rows.extend(chunk.predictions.iter().map(|p| p.row));
        for buffer in [&mut s.picked, &mut s.picked_normed] {
            k.reserve(buffer, count * d);
        }
        k.reserve(&mut s.picked_inverse, count);
        let last = &s.states[c.num_hidden_layers];
        k.gather(k.get(last, 0..n * d), &s.rows, d, k.get_mut(&mut s.picked, 0..count * d));
        let norm = k.get(&w.flat, self.layout.norm.clone());
        k.norm(
            k.get(&s.picked, 0..count * d),
            norm,
            c.rms_norm_eps,
            k.get_mut(&mut s.picked_normed, 0..count * d),
            k.get_mut(&mut s.picked_inverse, 0..count),
        );
        let step = self.logit_rows().min(count);
        k.reserve(&mut s.logits, step * v);
        if train.is_some() {
            for buffer in [&mut s.dpicked, &mut s.dpicked_normed] {
                k.reserve(buffer, count * d);
            }
        }
        for from in (0..count).step_by(step) {
            let rows = step.min(count - from);
            let part = from * d..(from + rows) * d;
            k.linear(
                k.get(&s.picked_normed, part.clone()),
                rows,
                &w.head,
                k.get_mut(&mut s.logits, 0..rows * v),
                false,
            );
            let predictions = &chunk.predictions[from..from + rows];
            let targets: Vec<Target<'_>> =
                predictions.iter().map(|p| Target { token: p.token, allowed: p.allowed.as_ref() }).collect();
            let choices = &mut s.choices[from..from + rows];
            k.distribution(k.get(&s.logits, 0..rows * v), v, &targets, choices);
            if let Some((grads, cost)) = &mut train {
                s.slopes.clear();
                s.slopes.extend(choices.iter().enumerate().map(|(i, choice)| cost(from + i, *choice)));
                k.distribution_grad(k.get_mut(&mut s.logits, 0..rows * v), v, &targets, choices, &s.slopes);
                let head = k.get(&w.flat, self.layout.head.clone());
                let dlogits = k.get(&s.logits, 0..rows * v);
                k.linear_input_grad(dlogits, head, (rows, v, d), k.get_mut(&mut s.dpicked_normed, part.clone()), false);
                k.linear_weight_grad(
                    dlogits,
                    k.get(&s.picked_normed, part),
                    (rows, v, d),
                    k.get_mut(grads, self.layout.head.clone()),
                );
            }
        }
        if let Some((grads, _)) = train {
            k.fill(k.get_mut(&mut s.dpicked, 0..count * d), 0.0);
            k.norm_grad(
                k.get(&s.dpicked_normed, 0..count * d),
                k.get(&s.picked, 0..count * d),
                norm,
                k.get(&s.picked_inverse, 0..count),
                k.get_mut(&mut s.dpicked, 0..count * d),
                k.get_mut(grads, self.layout.norm.clone()),
            );
            k.scatter_add(k.get(&s.dpicked, 0..count * d), &s.rows, d, k.get_mut(&mut s.dstate, 0..n * d));
        }
    }

    /// Takes the gradient by a layer's output in `dstate` to that by its input, and adds to its parameters' gradients.
    #[allow(clippy::too_many_arguments)]
    fn layer_grad(
        &self,
        k: &K,
        w: &Weights<K>,
        layer: usize,
        chunk: &Chunk,
        turns: &Turns<K>,
        s: &mut Workspace<K>,
        grads: &mut K::Buffer,
        acts: usize,
    ) {
        let (c, heads, n) = (&self.config, self.config.heads(), chunk.tokens.len());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let at: &LayerAt = &self.layout.layers[layer];
        let param = |range: &std::ops::Range<usize>| k.get(&w.flat, range.clone());
        let Workspace { states, acts: all, dstate, dnormed, dgate_up, dgated, dqkv, dqk, dattended, .. } = s;
        let a = &all[acts];
        for (buffer, width) in [
            (&mut *dnormed, d),
            (&mut *dgate_up, 2 * f),
            (&mut *dgated, f),
            (&mut *dqkv, heads.qkv()),
            (&mut *dqk, heads.qk()),
            (&mut *dattended, heads.out()),
        ] {
            k.reserve(buffer, n * width);
        }

        let dy = k.get(dstate, 0..n * d);
        k.linear_weight_grad(dy, k.get(&a.gated, 0..n * f), (n, d, f), k.get_mut(grads, at.down.clone()));
        k.linear_input_grad(dy, param(&at.down), (n, d, f), k.get_mut(dgated, 0..n * f), false);
        k.swiglu_grad(k.get(dgated, 0..n * f), k.get(&a.gate_up, 0..n * 2 * f), f, k.get_mut(dgate_up, 0..n * 2 * f));
        let dgu = k.get(dgate_up, 0..n * 2 * f);
        k.linear_weight_grad(dgu, k.get(&a.normed2, 0..n * d), (n, 2 * f, d), k.get_mut(grads, at.gate_up.clone()));
        k.linear_input_grad(dgu, param(&at.gate_up), (n, 2 * f, d), k.get_mut(dnormed, 0..n * d), false);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&a.middle, 0..n * d),
            param(&at.norm2),
            k.get(&a.inverse2, 0..n),
            k.get_mut(dstate, 0..n * d),
            k.get_mut(grads, at.norm2.clone()),
        );

        let dmiddle = k.get(dstate, 0..n * d);
        let wide = heads.out();
        k.linear_weight_grad(dmiddle, k.get(&a.attended, 0..n * wide), (n, d, wide), k.get_mut(grads, at.out.clone()));
        k.linear_input_grad(dmiddle, param(&at.out), (n, d, wide), k.get_mut(dattended, 0..n * wide), false);
        k.attention_grad(
            heads,
            &chunk.spans,
            k.get(&a.qk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            k.get(&a.attended, 0..n * wide),
            k.get(&a.log_sums, 0..n * heads.q),
            k.get(dattended, 0..n * wide),
            k.get_mut(dqk, 0..n * heads.qk()),
            k.get_mut(dqkv, 0..n * heads.qkv()),
        );
        k.head_norm_rope_grad(
            heads,
            k.get(dqk, 0..n * heads.qk()),
            k.get(&a.qkv, 0..n * heads.qkv()),
            param(&at.head_norms),
            k.get(&turns.buffer, 0..turns.len),
            &chunk.positions,
            k.get(&a.head_inverse, 0..n * (heads.q + heads.kv)),
            k.get_mut(dqkv, 0..n * heads.qkv()),
            k.get_mut(grads, at.head_norms.clone()),
        );
        let wide = heads.qkv();
        let d_in = k.get(dqkv, 0..n * wide);
        k.linear_weight_grad(d_in, k.get(&a.normed1, 0..n * d), (n, wide, d), k.get_mut(grads, at.qkv.clone()));
        k.linear_input_grad(d_in, param(&at.qkv), (n, wide, d), k.get_mut(dnormed, 0..n * d), false);
        k.norm_grad(
            k.get(dnormed, 0..n * d),
            k.get(&states[layer], 0..n * d),
            param(&at.norm1),
            k.get(&a.inverse1, 0..n),
            k.get_mut(dstate, 0..n * d),
            k.get_mut(grads, at.norm1.clone()),
        );
    }

    /// An empty cache for one sequence of at most `capacity` tokens.
    pub(crate) fn cache(&self, capacity: usize) -> Cache<K> {
        let (heads, layers) = (self.config.heads(), self.config.num_hidden_layers);
        let buffers = || (0..layers).map(|_| self.kernels.zeros(capacity * heads.kv * heads.dim)).collect();
        Cache { keys: buffers(), values: buffers(), len: 0, capacity }
    }

    /// Takes more tokens of a sequence into its cache and gives the logits after the last.
    pub(crate) fn extend(
        &self,
        w: &Weights<K>,
        tokens: &[u32],
        cache: &mut Cache<K>,
        s: &mut Workspace<K>,
        logits: &mut Vec<f32>,
    ) {
        let (k, c, heads, n) = (&self.kernels, &self.config, self.config.heads(), tokens.len());
        let (d, v) = (c.hidden_size, c.vocab_size);
        let width = heads.kv * heads.dim;
        let end = cache.len + n;
        assert!(n > 0 && end <= cache.capacity, "cache of {} tokens asked to hold {end}", cache.capacity);
        let turns = self.turns(end);
        let positions: Vec<u32> = (cache.len as u32..end as u32).collect();
        let spans = [Span { query: 0, query_len: n, key: 0, key_len: end }];
        s.states.resize_with(c.num_hidden_layers + 1, || k.zeros(0));
        s.acts.resize_with(1, || LayerActs::new(k));
        s.acts[0].reserve(k, c, n);
        k.reserve(&mut s.states[0], n * d);
        k.gather(k.get(&w.flat, self.layout.embedding.clone()), tokens, d, k.get_mut(&mut s.states[0], 0..n * d));
        for layer in 0..c.num_hidden_layers {
            let (before, after) = s.states.split_at_mut(layer + 1);
            let (x, y) = (&before[layer], &mut after[0]);
            k.reserve(y, n * d);
            let a = &mut s.acts[0];
            self.project(k, w, layer, &positions, &turns, x, a);
            for i in 0..n {
                let slot = (cache.len + i) * width..(cache.len + i + 1) * width;
                let key = i * heads.qk() + heads.out()..(i + 1) * heads.qk();
                let value = i * heads.qkv() + heads.qk()..(i + 1) * heads.qkv();
                k.copy(k.get(&a.qk, key), k.get_mut(&mut cache.keys[layer], slot.clone()));
                k.copy(k.get(&a.qkv, value), k.get_mut(&mut cache.values[layer], slot));
            }
            k.attention(
                heads,
                &spans,
                Strided { data: k.get(&a.qk, 0..n * heads.qk()), stride: heads.qk(), first: 0 },
                Strided { data: k.get(&cache.keys[layer], 0..end * width), stride: width, first: 0 },
                Strided { data: k.get(&cache.values[layer], 0..end * width), stride: width, first: 0 },
                k.get_mut(&mut a.attended, 0..n * heads.out()),
                k.get_mut(&mut a.log_sums, 0..n * heads.q),
            );
            self.finish(k, w, layer, n, x, a, y);
        }
        cache.len = end;
        for (buffer, len) in [(&mut s.picked_normed, d), (&mut s.picked_inverse, 1), (&mut s.logits, v)] {
            k.reserve(buffer, len);
        }
        k.norm(
            k.get(&s.states[c.num_hidden_layers], (n - 1) * d..n * d),
            k.get(&w.flat, self.layout.norm.clone()),
            c.rms_norm_eps,
            k.get_mut(&mut s.picked_normed, 0..d),
            k.get_mut(&mut s.picked_inverse, 0..1),
        );
        k.linear(k.get(&s.picked_normed, 0..d), 1, &w.head, k.get_mut(&mut s.logits, 0..v), false);
        logits.resize(v, 0.0);
        k.download(k.get(&s.logits, 0..v), logits);
    }
}

/// Cosines and sines per position, with the roundings `transformers` makes: at far positions a different rounding of the
/// frequency is a different angle.
fn turn_table(theta: f64, dim: usize, positions: usize) -> Vec<f32> {
    let half = dim / 2;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| {
            let exponent = (2 * i) as f32 / dim as f32;
            1.0 / (f64::from(theta as f32).powf(f64::from(exponent)) as f32)
        })
        .collect();
    let mut table = Vec::with_capacity(positions * dim);
    for p in 0..positions {
        let angles = frequencies.iter().map(|f| f64::from(p as f32 * f));
        table.extend(angles.clone().map(|a| a.cos() as f32));
        table.extend(angles.map(|a| a.sin() as f32));
    }
    table
}
