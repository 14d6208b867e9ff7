//! The trainable parameters: the whole model, or a LoRA adapter on frozen base weights.

use crate::model::{Adapter, Qwen3Model, WeightSet, Weights};
use mage_engine::model::ParamTensor;
use std::sync::Arc;

/// The trainable parameters and, for an adapter, their frozen base.
pub(crate) enum TrainableParams {
    /// All parameters of the model.
    Full(Weights),
    /// An adapter on frozen base weights.
    Lora { base: Arc<Weights>, adapter: Adapter },
}

impl TrainableParams {
    /// The weights of a forward pass: base and optional adapter.
    pub(super) fn base_and_adapter(&self) -> (&Weights, Option<&Adapter>) {
        match self {
            TrainableParams::Full(weights) => (weights, None),
            TrainableParams::Lora { base, adapter } => (base, Some(adapter)),
        }
    }

    /// The flat buffer of trainable parameters.
    pub(super) fn flat(&self) -> &Vec<f32> {
        match self {
            TrainableParams::Full(weights) => &weights.flat,
            TrainableParams::Lora { adapter, .. } => &adapter.flat,
        }
    }

    /// The tensor layout and the mutable flat buffer. Call [`refresh`](Self::refresh) after a change.
    pub(super) fn params_mut<'a>(&'a mut self, model: &'a Qwen3Model) -> (&'a [ParamTensor], &'a mut Vec<f32>) {
        match self {
            TrainableParams::Full(weights) => (&model.layout.tensors, &mut weights.flat),
            TrainableParams::Lora { adapter, .. } => (&adapter.layout.tensors, &mut adapter.flat),
        }
    }

    /// The layout of the flat buffer.
    pub(super) fn tensors<'a>(&'a self, model: &'a Qwen3Model) -> &'a [ParamTensor] {
        match self {
            TrainableParams::Full(_) => &model.layout.tensors,
            TrainableParams::Lora { adapter, .. } => &adapter.layout.tensors,
        }
    }

    /// Repacks the GEMM operands from the flat buffer.
    pub(super) fn refresh(&mut self, model: &Qwen3Model) {
        match self {
            TrainableParams::Full(weights) => model.repack(weights),
            TrainableParams::Lora { adapter, .. } => model.repack_adapter(adapter),
        }
    }

    /// A copy of the current weights for publishing. With an adapter only the adapter is copied; the base is shared.
    pub(super) fn snapshot(&self, model: &Qwen3Model) -> WeightSet {
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
