//! What learns: the model's own numbers, or an adapter beside them?

use crate::cpu::Cpu;
use crate::model::param_layout::Tensor;
use crate::model::{Adapter, Model, WeightSet, Weights};
use std::sync::Arc;

/// What a trainer changes, and what it stands on.
pub(crate) enum TrainableParams {
    /// All of the model.
    Whole(Weights<Cpu>),
    /// An adapter; the model below it stays as it is.
    Adapter { base: Arc<Weights<Cpu>>, adapter: Adapter<Cpu> },
}

impl TrainableParams {
    /// The weights a pass runs over, and the adapter it carries.
    pub(super) fn parts(&self) -> (&Weights<Cpu>, Option<&Adapter<Cpu>>) {
        match self {
            TrainableParams::Whole(weights) => (weights, None),
            TrainableParams::Adapter { base, adapter } => (base, Some(adapter)),
        }
    }

    /// The numbers that learn.
    pub(super) fn flat(&self) -> &Vec<f32> {
        match self {
            TrainableParams::Whole(weights) => &weights.flat,
            TrainableParams::Adapter { adapter, .. } => &adapter.flat,
        }
    }

    /// The same, to be changed, with the place of each tensor in them; [`refresh`](Self::refresh) must follow a change.
    pub(super) fn params_mut<'a>(&'a mut self, model: &'a Model<Cpu>) -> (&'a [Tensor], &'a mut Vec<f32>) {
        match self {
            TrainableParams::Whole(weights) => (&model.layout.tensors, &mut weights.flat),
            TrainableParams::Adapter { adapter, .. } => (&adapter.layout.tensors, &mut adapter.flat),
        }
    }

    /// Where each tensor is in them.
    pub(super) fn tensors<'a>(&'a self, model: &'a Model<Cpu>) -> &'a [Tensor] {
        match self {
            TrainableParams::Whole(_) => &model.layout.tensors,
            TrainableParams::Adapter { adapter, .. } => &adapter.layout.tensors,
        }
    }

    /// Brings everything made from the numbers up to date with them.
    pub(super) fn refresh(&mut self, model: &Model<Cpu>) {
        match self {
            TrainableParams::Whole(weights) => model.repack(weights),
            TrainableParams::Adapter { adapter, .. } => model.repack_adapter(adapter),
        }
    }

    /// The weights of now, for others to keep. Of an adapter's, only the adapter is copied.
    pub(super) fn snapshot(&self, model: &Model<Cpu>) -> WeightSet<Cpu> {
        match self {
            TrainableParams::Whole(weights) => {
                WeightSet { base: Arc::new(model.weights(weights.flat.clone())), adapter: None }
            }
            TrainableParams::Adapter { base, adapter } => {
                let copy = model.adapter(Arc::clone(&adapter.layout), adapter.flat.clone());
                WeightSet { base: Arc::clone(base), adapter: Some(Arc::new(copy)) }
            }
        }
    }
}
