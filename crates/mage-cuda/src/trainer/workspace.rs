//! Activation and gradient buffers of a training pass.
//!
//! Buffers are allocated for the longest pass so far, rounded up, and reused. With recomputation one layer's activations
//! are kept instead of all. The memory plan of callers relies on
//! [`bytes_per_token`](super::ModelTrainer::bytes_per_token) and [`fixed_bytes`](super::ModelTrainer::fixed_bytes):
//! a buffer added here must be counted there.

use crate::attention::AttentionBuffers;
use crate::buffer::DeviceBuffer;
use crate::device::CudaDevice;
use crate::error::Result;
use crate::shape::ModelShape;
use std::sync::Arc;

/// Activations of a layer for its backward pass. Norm outputs and MLP activations are cheaper to recompute than to
/// store.
pub(super) struct GpuLayerActivations {
    pub(super) input_rstd: DeviceBuffer<f32>,
    pub(super) qkv: DeviceBuffer<u16>,
    pub(super) head_rstd: DeviceBuffer<f32>,
    pub(super) qk: DeviceBuffer<u16>,
    pub(super) attn_out: DeviceBuffer<u16>,
    pub(super) logsumexp: DeviceBuffer<f32>,
    pub(super) residual: DeviceBuffer<u16>,
    pub(super) post_attention_rstd: DeviceBuffer<f32>,
    pub(super) gate_up: DeviceBuffer<u16>,
}

impl GpuLayerActivations {
    /// Attention inputs and outputs of this many tokens.
    pub(super) fn attention_buffers(&self, num_tokens: usize) -> AttentionBuffers {
        let GpuLayerActivations { qk, qkv, attn_out, logsumexp, .. } = self;
        AttentionBuffers { num_tokens, qk: qk.at(0), qkv: qkv.at(0), out: attn_out.at(0), logsumexp: logsumexp.at(0) }
    }

    fn new(device: &Arc<CudaDevice>, c: &ModelShape, n: usize) -> Result<Self> {
        let bf16 = |width: usize| DeviceBuffer::<u16>::new(device, n * width);
        let fp32 = |width: usize| DeviceBuffer::<f32>::new(device, n * width);
        Ok(GpuLayerActivations {
            input_rstd: fp32(1)?,
            qkv: bf16(c.qkv_dim())?,
            head_rstd: fp32(c.num_heads + c.num_kv_heads)?,
            qk: bf16(c.qk_dim())?,
            attn_out: bf16(c.attn_out_dim())?,
            logsumexp: fp32(c.head_stats_stride())?,
            residual: bf16(c.hidden_size)?,
            post_attention_rstd: fp32(1)?,
            gate_up: bf16(2 * c.intermediate_size)?,
        })
    }
}

/// Buffers of a pass besides weights, reused by the next pass.
pub(super) struct TrainerWorkspace {
    device: Arc<CudaDevice>,
    /// Capacity in tokens.
    num_tokens: usize,
    /// The input of each layer, and the output of the last.
    pub(super) hidden: Vec<DeviceBuffer<u16>>,
    /// One per layer, or a single one with recomputation.
    pub(super) activations: Vec<GpuLayerActivations>,
    pub(super) normed: DeviceBuffer<u16>,
    pub(super) mlp_act: DeviceBuffer<u16>,
    pub(super) dhidden: DeviceBuffer<u16>,
    pub(super) dnormed: DeviceBuffer<u16>,
    pub(super) dgate_up: DeviceBuffer<u16>,
    pub(super) dmlp_act: DeviceBuffer<u16>,
    pub(super) dqkv: DeviceBuffer<u16>,
    pub(super) dqk: DeviceBuffer<u16>,
    pub(super) dattn_out: DeviceBuffer<u16>,
    pub(super) delta: DeviceBuffer<f32>,
    pub(super) partials: DeviceBuffer<f32>,
    pub(super) selected: DeviceBuffer<u16>,
    pub(super) selected_normed: DeviceBuffer<u16>,
    pub(super) selected_rstd: DeviceBuffer<f32>,
    pub(super) dselected: DeviceBuffer<u16>,
    pub(super) dselected_normed: DeviceBuffer<u16>,
    pub(super) logits: DeviceBuffer<f32>,
    pub(super) dlogits: DeviceBuffer<u16>,
    pub(super) token_stats: DeviceBuffer<[f32; 4]>,
    pub(super) logprob_grads: DeviceBuffer<[f32; 2]>,
    /// A output of the adapter, and its gradient.
    pub(super) lora_a_out: DeviceBuffer<u16>,
    pub(super) dlora_a_out: DeviceBuffer<u16>,
}

/// Maximum number of logits in memory at a time.
const MAX_PASS_LOGITS: usize = 1 << 28;

/// Rows of logits in memory at a time.
pub(super) fn logit_rows(shape: &ModelShape) -> usize {
    shape.logit_rows(MAX_PASS_LOGITS) / 64 * 64
}

/// Elements of the partial sums of reductions over rows.
pub(super) fn partials(shape: &ModelShape) -> usize {
    super::PARTIALS * shape.hidden_size.max(2 * shape.head_dim)
}

impl TrainerWorkspace {
    pub(super) fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        let bf16 = || DeviceBuffer::<u16>::new(device, 0);
        let fp32 = || DeviceBuffer::<f32>::new(device, 0);
        Ok(TrainerWorkspace {
            device: Arc::clone(device),
            num_tokens: 0,
            hidden: Vec::new(),
            activations: Vec::new(),
            normed: bf16()?,
            mlp_act: bf16()?,
            dhidden: bf16()?,
            dnormed: bf16()?,
            dgate_up: bf16()?,
            dmlp_act: bf16()?,
            dqkv: bf16()?,
            dqk: bf16()?,
            dattn_out: bf16()?,
            delta: fp32()?,
            partials: fp32()?,
            selected: bf16()?,
            selected_normed: bf16()?,
            selected_rstd: fp32()?,
            dselected: bf16()?,
            dselected_normed: bf16()?,
            logits: fp32()?,
            dlogits: bf16()?,
            token_stats: DeviceBuffer::new(device, 0)?,
            logprob_grads: DeviceBuffer::new(device, 0)?,
            lora_a_out: bf16()?,
            dlora_a_out: bf16()?,
        })
    }

    /// Allocates buffers for `n` tokens, rounded up, `num_targets` targets, and a LoRA A output of `lora_rank` per
    /// token.
    pub(super) fn reserve(
        &mut self,
        c: &ModelShape,
        n: usize,
        num_targets: usize,
        lora_rank: usize,
        recompute: bool,
    ) -> Result<()> {
        let num_kept = if recompute { 1 } else { c.num_layers };
        if self.num_tokens < n || self.activations.len() < num_kept {
            // A longer pass may have run with recomputation, which stores one layer. With all layers stored, memory
            // does not suffice for that length, in any buffer.
            *self = TrainerWorkspace::new(&self.device)?;
            self.num_tokens = n.next_multiple_of(super::ModelTrainer::TOKEN_GRANULARITY);
            for _ in 0..=c.num_layers {
                self.hidden.push(DeviceBuffer::new(&self.device, self.num_tokens * c.hidden_size)?);
            }
            for _ in 0..num_kept {
                self.activations.push(GpuLayerActivations::new(&self.device, c, self.num_tokens)?);
            }
        }
        for (buffer, width) in [
            (&mut self.normed, c.hidden_size),
            (&mut self.mlp_act, c.intermediate_size),
            (&mut self.dhidden, c.hidden_size),
            (&mut self.dnormed, c.hidden_size),
            (&mut self.dgate_up, 2 * c.intermediate_size),
            (&mut self.dmlp_act, c.intermediate_size),
            (&mut self.dqkv, c.qkv_dim()),
            (&mut self.dqk, c.qk_dim()),
            (&mut self.dattn_out, c.attn_out_dim()),
            (&mut self.lora_a_out, lora_rank),
            (&mut self.dlora_a_out, lora_rank),
        ] {
            buffer.reserve(self.num_tokens * width)?;
        }
        self.delta.reserve(self.num_tokens * c.head_stats_stride())?;
        self.partials.reserve(partials(c))?;
        for buffer in [&mut self.selected, &mut self.selected_normed, &mut self.dselected, &mut self.dselected_normed] {
            buffer.reserve(num_targets * c.hidden_size)?;
        }
        self.selected_rstd.reserve(num_targets)?;
        let logit_rows = logit_rows(c).min(num_targets);
        self.logits.reserve(logit_rows * c.logits_stride())?;
        self.dlogits.reserve(logit_rows * c.logits_stride())?;
        self.token_stats.reserve(logit_rows)?;
        self.logprob_grads.reserve(logit_rows)
    }
}

#[cfg(test)]
#[warn(dead_code)]
pub(crate) mod tests {
    use super::*;
    use crate::buffer::Pod;
    use crate::trainer::ModelTrainer;

    fn buffer_bytes<T: Pod>(buffer: &DeviceBuffer<T>) -> usize {
        buffer.len() * size_of::<T>()
    }

    impl GpuLayerActivations {
        fn bytes(&self) -> usize {
            let GpuLayerActivations {
                input_rstd,
                qkv,
                head_rstd,
                qk,
                attn_out,
                logsumexp,
                residual,
                post_attention_rstd,
                gate_up,
            } = self;
            let fp32 = [input_rstd, head_rstd, logsumexp, post_attention_rstd].map(buffer_bytes);
            let bf16 = [qkv, qk, attn_out, residual, gate_up].map(buffer_bytes);
            fp32.iter().chain(&bf16).sum()
        }
    }

    impl TrainerWorkspace {
        /// Destructured by field, so that none can be forgotten.
        fn bytes(&self) -> usize {
            #[rustfmt::skip]
            let TrainerWorkspace {
                device: _, num_tokens: _, hidden, activations, normed, mlp_act, dhidden, dnormed, dgate_up, dmlp_act, dqkv, dqk, dattn_out, delta,
                partials, selected, selected_normed, selected_rstd, dselected, dselected_normed, logits, dlogits, token_stats, logprob_grads,
                lora_a_out, dlora_a_out,
            } = self;
            let bf16 = [
                normed,
                mlp_act,
                dhidden,
                dnormed,
                dgate_up,
                dmlp_act,
                dqkv,
                dqk,
                dattn_out,
                selected,
                selected_normed,
                dselected,
                dselected_normed,
                dlogits,
                lora_a_out,
                dlora_a_out,
            ];
            let fp32 = [delta, partials, selected_rstd, logits];
            let kept = hidden.iter().map(buffer_bytes).chain(activations.iter().map(GpuLayerActivations::bytes));
            let parts = bf16
                .map(buffer_bytes)
                .into_iter()
                .chain(fp32.map(buffer_bytes))
                .chain([buffer_bytes(token_stats), buffer_bytes(logprob_grads)]);
            kept.chain(parts).sum()
        }
    }

    pub(crate) fn a_pass_allocates_the_predicted_number_of_bytes() {
        let device = crate::device::tests::device();
        let shapes = [(128, 16, 8, 1024, 0), (16, 4, 2, 64, 24), (24, 2, 1, 48, 8), (64, 3, 3, 136, 0)];
        for (head_dim, num_heads, num_kv_heads, hidden_size, lora_rank) in shapes {
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
            let predicted = |num_tokens: usize, recompute| {
                num_tokens * ModelTrainer::bytes_per_token(&shape, lora_rank, recompute)
                    + ModelTrainer::fixed_bytes(&shape)
            };
            for recompute in [false, true] {
                let mut workspace = TrainerWorkspace::new(&device).unwrap();
                let mut pass = |tokens: usize, num_targets: usize, recompute: bool| {
                    workspace.reserve(&shape, tokens, num_targets, lora_rank, recompute).unwrap();
                    workspace.bytes()
                };
                assert!(pass(700, 30, recompute) < predicted(768, recompute));
                assert_eq!(pass(2048, 2048, recompute), predicted(2048, recompute), "{shape:?}, {recompute}");
                // A smaller pass allocates no more.
                assert_eq!(pass(2000, 2000, recompute), predicted(2048, recompute));
                // A long pass with recomputation leaves no buffers of its length.
                assert_eq!(pass(6144, 6144, true), predicted(6144, true));
                if !recompute {
                    assert_eq!(pass(2048, 2048, false), predicted(2048, false));
                }
            }
        }
    }
}
