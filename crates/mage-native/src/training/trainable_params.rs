//! What learns: the model's own numbers, or an adapter beside them?

use crate::cpu::Cpu;
use crate::model::param_layout::ParamTensor;
use crate::model::{Adapter, Qwen3Model, WeightSet, Weights};
use std::sync::Arc;

/// What a trainer changes, and what it stands on.
pub(crate) enum TrainableParams {
    /// All of the model.
    Full(Weights<Cpu>),
    /// An adapter; the model below it stays as it is.
    Lora { base: Arc<Weights<Cpu>>, adapter: Adapter<Cpu> },
}

impl TrainableParams {
    /// The weights a pass runs over, and the adapter it carries.
    pub(super) fn base_and_adapter(&self) -> (&Weights<Cpu>, Option<&Adapter<Cpu>>) {
        match self {
            TrainableParams::Full(weights) => (weights, None),
            TrainableParams::Lora { base, adapter } => (base, Some(adapter)),
        }
    }

    /// The numbers that learn.
    pub(super) fn flat(&self) -> &Vec<f32> {
        match self {
            TrainableParams::Full(weights) => &weights.flat,
            TrainableParams::Lora { adapter, .. } => &adapter.flat,
        }
    }

    /// The same, to be changed, with the place of each tensor in them; [`refresh`](Self::refresh) must follow a change.
    pub(super) fn params_mut<'a>(&'a mut self, model: &'a Qwen3Model<Cpu>) -> (&'a [ParamTensor], &'a mut Vec<f32>) {
        match self {
            TrainableParams::Full(weights) => (&model.layout.tensors, &mut weights.flat),
            TrainableParams::Lora { adapter, .. } => (&adapter.layout.tensors, &mut adapter.flat),
        }
    }

    /// Where each tensor is in them.
    pub(super) fn tensors<'a>(&'a self, model: &'a Qwen3Model<Cpu>) -> &'a [ParamTensor] {
        match self {
            TrainableParams::Full(_) => &model.layout.tensors,
            TrainableParams::Lora { adapter, .. } => &adapter.layout.tensors,
        }
    }

    /// Brings everything made from the numbers up to date with them.
    pub(super) fn refresh(&mut self, model: &Qwen3Model<Cpu>) {
        match self {
            TrainableParams::Full(weights) => model.repack(weights),
            TrainableParams::Lora { adapter, .. } => model.repack_adapter(adapter),
        }
    }

    /// The weights of now, for others to keep. Of an adapter's, only the adapter is copied.
    pub(super) fn snapshot(&self, model: &Qwen3Model<Cpu>) -> WeightSet<Cpu> {
        match self {
            TrainableParams::Full(weights) => {
                WeightSet { base: Arc::new(model.weights(weights.flat.clone())), adapter: None }
            }
            TrainableParams::Lora { base, adapter } => {
                let copy = model.adapter(Arc::clone(&adapter.layout), adapter.flat.clone());
                WeightSet { base: Arc::clone(base), adapter: Some(Arc::new(copy)) }
            }
        }
    }
}
