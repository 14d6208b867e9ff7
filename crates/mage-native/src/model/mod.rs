//! Qwen3 on the CPU, forward and backward. Equivalent to the implementation in `transformers`.

mod backward;
pub(crate) mod batch;
mod forward;
mod kv_cache;
mod lm_head;
mod lora;
mod paged_forward;
mod param_layout;
mod workspace;

pub(crate) use lora::{Adapter, LoraSegment};
pub(crate) use paged_forward::{PagedBatch, PagedWorkspace};
pub(crate) use workspace::PackedWorkspace;

use crate::cpu::{Cpu, PackedMatrix};
use crate::weights::hf_config::Config;
use mage_engine::model::ParamLayout;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The model architecture, without weights.
pub(crate) struct Qwen3Model {
    pub(crate) config: Config,
    pub(crate) layout: ParamLayout,
    pub(crate) cpu: Cpu,
    /// The table of the rotary embedding for the positions used so far.
    cos_sin: Mutex<Arc<Vec<f32>>>,
}

/// Model weights: the flat parameter buffer and packed GEMM operands.
pub(crate) struct Weights {
    pub(crate) flat: Vec<f32>,
    layers: Vec<PackedLayer>,
    lm_head: PackedMatrix,
}

/// Base weights with an optional LoRA adapter.
pub(crate) struct WeightSet {
    pub(crate) base: Arc<Weights>,
    pub(crate) adapter: Option<Arc<Adapter>>,
}

struct PackedLayer {
    qkv_proj: PackedMatrix,
    o_proj: PackedMatrix,
    gate_up_proj: PackedMatrix,
    down_proj: PackedMatrix,
}

impl Weights {
    fn param(&self, range: &Range<usize>) -> &[f32] {
        &self.flat[range.clone()]
    }
}

impl Qwen3Model {
    pub(crate) fn new(config: Config) -> Self {
        let layout = config.param_layout();
        Qwen3Model { config, layout, cpu: Cpu::new(), cos_sin: Mutex::default() }
    }

    /// Packs weights from a flat parameter buffer.
    pub(crate) fn weights(&self, flat: Vec<f32>) -> Weights {
        let (c, heads) = (&self.config, self.config.heads());
        let (d, f) = (c.hidden_size, c.intermediate_size);
        let pack =
            |range: &Range<usize>, outputs: usize, inputs: usize| self.cpu.pack(&flat[range.clone()], outputs, inputs);
        let layers = self
            .layout
            .layers
            .iter()
            .map(|l| PackedLayer {
                qkv_proj: pack(&l.qkv_proj, heads.qkv(), d),
                o_proj: pack(&l.o_proj, d, heads.out()),
                gate_up_proj: pack(&l.gate_up_proj, 2 * f, d),
                down_proj: pack(&l.down_proj, d, f),
            })
            .collect();
        let lm_head = pack(&self.layout.lm_head, c.vocab_size, d);
        Weights { flat, layers, lm_head }
    }

    /// Repacks the GEMM operands after a change of the flat buffer.
    pub(crate) fn repack(&self, weights: &mut Weights) {
        let Weights { flat, layers, lm_head } = weights;
        let repack = |range: &Range<usize>, packed: &mut PackedMatrix| self.cpu.repack(&flat[range.clone()], packed);
        for (packed, at) in layers.iter_mut().zip(&self.layout.layers) {
            repack(&at.qkv_proj, &mut packed.qkv_proj);
            repack(&at.o_proj, &mut packed.o_proj);
            repack(&at.gate_up_proj, &mut packed.gate_up_proj);
            repack(&at.down_proj, &mut packed.down_proj);
        }
        repack(&self.layout.lm_head, lm_head);
    }

    /// The table of the rotary embedding for at least this many positions.
    fn cos_sin(&self, positions: usize) -> Arc<Vec<f32>> {
        let mut table = self.cos_sin.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() < positions * self.config.head_dim {
            let positions = positions.next_power_of_two().max(64);
            *table = Arc::new(rope_table(self.config.rope_theta, self.config.head_dim, positions));
        }
        Arc::clone(&table)
    }

    /// Bytes of activations per token.
    pub(crate) fn bytes_per_token(&self) -> usize {
        let (c, heads) = (&self.config, self.config.heads());
        let values = 4 * c.hidden_size + heads.qkv() + heads.qk() + heads.out() + 3 * c.intermediate_size;
        4 * c.num_hidden_layers * values
    }
}

/// Cosines and sines per position, rounded as in `transformers`: at large positions a different rounding of the frequency gives
/// a different angle.
pub(crate) fn rope_table(theta: f64, dim: usize, positions: usize) -> Vec<f32> {
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
