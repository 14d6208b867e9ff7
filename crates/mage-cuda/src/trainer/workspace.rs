//! What does a pass keep on the card?

use crate::attention::Attending;
use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::Result;
use crate::shape::ModelShape;
use std::sync::Arc;

/// What a layer remembers for its way back. Norms and gated numbers are cheaper to compute again than to keep.
pub(super) struct Acts {
    pub(super) inverse1: DeviceBuffer<f32>,
    pub(super) qkv: DeviceBuffer<u16>,
    pub(super) head_inverse: DeviceBuffer<f32>,
    pub(super) qk: DeviceBuffer<u16>,
    pub(super) attended: DeviceBuffer<u16>,
    pub(super) log_sums: DeviceBuffer<f32>,
    pub(super) middle: DeviceBuffer<u16>,
    pub(super) inverse2: DeviceBuffer<f32>,
    pub(super) gate_up: DeviceBuffer<u16>,
}

impl Acts {
    /// Of so many rows, what attention reads and writes.
    pub(super) fn attending(&self, rows: usize) -> Attending {
        let Acts { qk, qkv, attended, log_sums, .. } = self;
        Attending { rows, qk: qk.at(0), qkv: qkv.at(0), out: attended.at(0), log_sums: log_sums.at(0) }
    }

    fn new(card: &Arc<CudaDevice>, c: &ModelShape, n: usize) -> Result<Self> {
        let half = |width: usize| DeviceBuffer::<u16>::new(card, n * width);
        let wide = |width: usize| DeviceBuffer::<f32>::new(card, n * width);
        Ok(Acts {
            inverse1: wide(1)?,
            qkv: half(c.qkv_dim())?,
            head_inverse: wide(c.num_heads + c.num_kv_heads)?,
            qk: half(c.qk_dim())?,
            attended: half(c.attn_out_dim())?,
            log_sums: wide(c.head_stats_stride())?,
            middle: half(c.hidden_size)?,
            inverse2: wide(1)?,
            gate_up: half(2 * c.intermediate_size)?,
        })
    }
}

/// Everything a pass needs besides weights, kept from one to the next.
pub(super) struct Space {
    card: Arc<CudaDevice>,
    /// Tokens there is room for.
    rows: usize,
    /// The input of each layer, and the output of the last.
    pub(super) states: Vec<DeviceBuffer<u16>>,
    /// One per layer, or a single one where layers are computed again.
    pub(super) acts: Vec<Acts>,
    pub(super) normed: DeviceBuffer<u16>,
    pub(super) gated: DeviceBuffer<u16>,
    pub(super) dstate: DeviceBuffer<u16>,
    pub(super) dnormed: DeviceBuffer<u16>,
    pub(super) dgate_up: DeviceBuffer<u16>,
    pub(super) dgated: DeviceBuffer<u16>,
    pub(super) dqkv: DeviceBuffer<u16>,
    pub(super) dqk: DeviceBuffer<u16>,
    pub(super) dattended: DeviceBuffer<u16>,
    pub(super) delta: DeviceBuffer<f32>,
    pub(super) partials: DeviceBuffer<f32>,
    pub(super) picked: DeviceBuffer<u16>,
    pub(super) picked_normed: DeviceBuffer<u16>,
    pub(super) picked_inverse: DeviceBuffer<f32>,
    pub(super) dpicked: DeviceBuffer<u16>,
    pub(super) dpicked_normed: DeviceBuffer<u16>,
    pub(super) logits: DeviceBuffer<f32>,
    pub(super) dlogits: DeviceBuffer<u16>,
    pub(super) choices: DeviceBuffer<[f32; 4]>,
    pub(super) slopes: DeviceBuffer<[f32; 2]>,
    /// An adapter's thin rows, and the gradient by them.
    pub(super) low: DeviceBuffer<u16>,
    pub(super) dlow: DeviceBuffer<u16>,
}

/// Logits that exist at a time, in numbers.
const LOGITS: usize = 1 << 28;

/// Rows of logits that exist at a time.
pub(super) fn logit_rows(shape: &ModelShape) -> usize {
    (LOGITS / shape.logits_stride()).clamp(64, 4096) / 64 * 64
}

/// Numbers that blocks leave when they sum over rows.
pub(super) fn partials(shape: &ModelShape) -> usize {
    super::PARTIALS * shape.hidden_size.max(2 * shape.head_dim)
}

impl Space {
    pub(super) fn new(card: &Arc<CudaDevice>) -> Result<Self> {
        let half = || DeviceBuffer::<u16>::new(card, 0);
        let wide = || DeviceBuffer::<f32>::new(card, 0);
        Ok(Space {
            card: Arc::clone(card),
            rows: 0,
            states: Vec::new(),
            acts: Vec::new(),
            normed: half()?,
            gated: half()?,
            dstate: half()?,
            dnormed: half()?,
            dgate_up: half()?,
            dgated: half()?,
            dqkv: half()?,
            dqk: half()?,
            dattended: half()?,
            delta: wide()?,
            partials: wide()?,
            picked: half()?,
            picked_normed: half()?,
            picked_inverse: wide()?,
            dpicked: half()?,
            dpicked_normed: half()?,
            logits: wide()?,
            dlogits: half()?,
            choices: DeviceBuffer::new(card, 0)?,
            slopes: DeviceBuffer::new(card, 0)?,
            low: half()?,
            dlow: half()?,
        })
    }

    /// Makes room for a pass over `n` tokens, rounded up, with so many predictions, and so many thin numbers of a token.
    pub(super) fn reserve(
        &mut self,
        c: &ModelShape,
        n: usize,
        predictions: usize,
        thin: usize,
        recompute: bool,
    ) -> Result<()> {
        let kept = if recompute { 1 } else { c.num_layers };
        if self.rows < n || self.acts.len() < kept {
            // A row that was longer than all others was computed again, a single layer being kept: now that all are, there is
            // no room for as many rows, nor for anything else of that length.
            *self = Space::new(&self.card)?;
            self.rows = n.next_multiple_of(super::ModelTrainer::TOKEN_GRANULARITY);
            for _ in 0..=c.num_layers {
                self.states.push(DeviceBuffer::new(&self.card, self.rows * c.hidden_size)?);
            }
            for _ in 0..kept {
                self.acts.push(Acts::new(&self.card, c, self.rows)?);
            }
        }
        for (buffer, width) in [
            (&mut self.normed, c.hidden_size),
            (&mut self.gated, c.intermediate_size),
            (&mut self.dstate, c.hidden_size),
            (&mut self.dnormed, c.hidden_size),
            (&mut self.dgate_up, 2 * c.intermediate_size),
            (&mut self.dgated, c.intermediate_size),
            (&mut self.dqkv, c.qkv_dim()),
            (&mut self.dqk, c.qk_dim()),
            (&mut self.dattended, c.attn_out_dim()),
            (&mut self.low, thin),
            (&mut self.dlow, thin),
        ] {
            buffer.reserve(self.rows * width)?;
        }
        self.delta.reserve(self.rows * c.head_stats_stride())?;
        self.partials.reserve(partials(c))?;
        for buffer in [&mut self.picked, &mut self.picked_normed, &mut self.dpicked, &mut self.dpicked_normed] {
            buffer.reserve(predictions * c.hidden_size)?;
        }
        self.picked_inverse.reserve(predictions)?;
        let rows = logit_rows(c).min(predictions);
        self.logits.reserve(rows * c.logits_stride())?;
        self.dlogits.reserve(rows * c.logits_stride())?;
        self.choices.reserve(rows)?;
        self.slopes.reserve(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pod;
    use crate::device::tests::card_or_skip;
    use crate::trainer::ModelTrainer;

    fn bytes<T: Pod>(buffer: &DeviceBuffer<T>) -> usize {
        buffer.len() * size_of::<T>()
    }

    impl Acts {
        fn taken(&self) -> usize {
            let Acts { inverse1, qkv, head_inverse, qk, attended, log_sums, middle, inverse2, gate_up } = self;
            let wide = [inverse1, head_inverse, log_sums, inverse2].map(bytes);
            let half = [qkv, qk, attended, middle, gate_up].map(bytes);
            wide.iter().chain(&half).sum()
        }
    }

    impl Space {
        /// Every buffer by its name, so that none can be forgotten.
        fn taken(&self) -> usize {
            #[rustfmt::skip]
            let Space {
                card: _, rows: _, states, acts, normed, gated, dstate, dnormed, dgate_up, dgated, dqkv, dqk, dattended, delta,
                partials, picked, picked_normed, picked_inverse, dpicked, dpicked_normed, logits, dlogits, choices, slopes,
                low, dlow,
            } = self;
            let half = [
                normed,
                gated,
                dstate,
                dnormed,
                dgate_up,
                dgated,
                dqkv,
                dqk,
                dattended,
                picked,
                picked_normed,
                dpicked,
                dpicked_normed,
                dlogits,
                low,
                dlow,
            ];
            let wide = [delta, partials, picked_inverse, logits];
            let kept = states.iter().map(bytes).chain(acts.iter().map(Acts::taken));
            let parts = half.map(bytes).into_iter().chain(wide.map(bytes)).chain([bytes(choices), bytes(slopes)]);
            kept.chain(parts).sum()
        }
    }

    #[test]
    fn a_pass_takes_what_was_foretold() {
        let Some(card) = card_or_skip("no pass took memory") else { return };
        let shapes = [(128, 16, 8, 1024, 0), (16, 4, 2, 64, 24), (24, 2, 1, 48, 8), (64, 3, 3, 136, 0)];
        for (head_dim, num_heads, num_kv_heads, hidden_size, thin) in shapes {
            let (vocab_size, intermediate_size, num_layers, rms_norm_eps) = (151_936, 3 * hidden_size, 3, 1e-6);
            let shape = ModelShape {
                vocab_size,
                hidden_size,
                intermediate_size,
                num_layers,
                num_heads,
                num_kv_heads,
                head_dim,
                rms_norm_eps,
            };
            let foretold = |rows: usize, recompute| {
                rows * ModelTrainer::bytes_per_token(&shape, thin, recompute) + ModelTrainer::fixed_bytes(&shape)
            };
            for recompute in [false, true] {
                let mut space = Space::new(&card).unwrap();
                let mut pass = |tokens: usize, predictions: usize, recompute: bool| {
                    space.reserve(&shape, tokens, predictions, thin, recompute).unwrap();
                    space.taken()
                };
                assert!(pass(700, 30, recompute) < foretold(768, recompute));
                assert_eq!(pass(2048, 2048, recompute), foretold(2048, recompute), "{shape:?}, {recompute}");
                // A smaller one takes no more.
                assert_eq!(pass(2000, 2000, recompute), foretold(2048, recompute));
                // A long row, of which less is remembered, leaves nothing of its length behind.
                assert_eq!(pass(6144, 6144, true), foretold(6144, true));
                if !recompute {
                    assert_eq!(pass(2048, 2048, false), foretold(2048, false));
                }
            }
        }
    }
}
