//! The GPU trainer. Batches, losses, reports and files are those of the CPU trainer; parameters are in GPU memory.

use super::loss_stats::LossStats;
use super::state::{Checkpoint, SavedParams, TrainerState, digest};
use crate::engine::{EngineContext, write_model};
use crate::gpu::failed;
use crate::model::batch;
use crate::weights::checkpoint::WeightDtype;
use crate::weights::lora::{self, NativeAdapter};
use crate::weights::registry::{DeviceWeights, GpuWeights};
use mage_engine::model::{AdamWParams, LoraLayout, ParamTensor};
use mage_engine::{
    Loss, LossReport, OptimStep, Result, StepReport, TokenForest, Trainer, TrainerCaps, WeightVersion, WeightsName,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Trains a model or an adapter on a GPU.
pub struct CudaTrainer {
    shared: Arc<EngineContext>,
    caps: TrainerCaps,
    trainer: mage_cuda::ModelTrainer,
    /// Maximum number of tokens per pass.
    budget: usize,
    state: TrainerState,
    /// The adapter that is trained and the digest of the base weights; `None` trains the base weights.
    adapter: Option<(Arc<LoraLayout>, String)>,
    /// Whether gradients have accumulated since the last step.
    pending: bool,
}

impl CudaTrainer {
    pub(crate) fn new(shared: Arc<EngineContext>, flat: Vec<f32>, adapter: Option<NativeAdapter>) -> Result<Self> {
        let model = &shared.gpu_model()?.model;
        let lora_rank = adapter.as_ref().map_or(0, |a| a.size().max_group_rank);
        let (trainer, adapter) = match adapter {
            None => (mage_cuda::ModelTrainer::new(model, &flat).map_err(failed)?, None),
            Some(adapter) => {
                let base_weights = shared.publish_gpu_base(&flat)?;
                let base = &base_weights.cuda().base;
                let trainer = mage_cuda::ModelTrainer::with_adapter(model, base, &adapter.layout, &adapter.flat);
                (trainer.map_err(failed)?, Some((adapter.layout, digest(&flat))))
            }
        };
        drop(flat);
        let caps = super::caps("native on CUDA", &shared);
        let num_trainable = trainer.params().len();
        let budget = shared.gpu_model()?.plan_training(num_trainable, lora_rank, caps.max_seq_len, &shared.options)?;
        let mut this =
            CudaTrainer { caps, trainer, budget, state: TrainerState::default(), adapter, pending: false, shared };
        this.publish_as(&WeightsName::default())?;
        Ok(this)
    }

    fn publish_as(&mut self, name: &WeightsName) -> Result<WeightVersion> {
        let weights = match self.trainer.adapter_snapshot().map_err(failed)? {
            adapter @ Some(_) => GpuWeights { base: Arc::clone(self.trainer.weights()), adapter },
            None => GpuWeights { base: Arc::new(self.trainer.snapshot().map_err(failed)?), adapter: None },
        };
        Ok(self.shared.registry.publish(name, Arc::new(DeviceWeights::Cuda(weights))))
    }

    fn tensors(&self) -> &[ParamTensor] {
        self.adapter.as_ref().map_or(&self.shared.model.layout.tensors, |(layout, _)| &layout.tensors)
    }

    /// The trained parameters as a checkpoint describes them.
    fn saved(&self) -> SavedParams<'_> {
        match &self.adapter {
            None => SavedParams::Full,
            Some((layout, base)) => SavedParams::Lora { layout, base: base.clone() },
        }
    }

    /// The gradient accumulated since the last step: name and values of each tensor.
    pub fn gradients(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let grads = self.trainer.grads().to_vec().map_err(failed)?;
        Ok(self.tensors().iter().map(|t| (t.name.clone(), grads[t.range.clone()].to_vec())).collect())
    }

    /// Writes the trained parameters: a model folder that `transformers` loads unchanged, or an adapter folder for
    /// PEFT.
    pub fn save_model(&self, dir: &Path, format: WeightDtype) -> Result<()> {
        let flat = self.trainer.params().to_vec().map_err(failed)?;
        let EngineContext { model, renderer, source, .. } = &*self.shared;
        match &self.adapter {
            None => write_model(dir, &model.config, &flat, renderer.as_deref(), format),
            Some((layout, _)) => lora::peft::write(dir, layout, &flat, source.as_deref(), format),
        }
    }
}

/// Joins adjacent ranges with the same weight decay. Only tensors with more than one dimension decay.
fn decay_ranges(tensors: &[ParamTensor]) -> Vec<(Range<usize>, bool)> {
    let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
    for t in tensors {
        let decays = t.shape.len() > 1;
        match ranges.last_mut() {
            Some((range, last)) if *last == decays && range.end == t.range.start => range.end = t.range.end,
            _ => ranges.push((t.range.clone(), decays)),
        }
    }
    ranges
}

impl Trainer for CudaTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        batch.check(loss, self.shared.model.config.vocab_size, self.caps.max_seq_len)?;
        let (chunks, count) = batch::chunks(batch, self.budget);
        let mut total = LossStats::default();
        self.pending = true;
        for chunk in &chunks {
            let mut stats = LossStats::default();
            let record = |p: usize, predicted| stats.record(&chunk.predictions[p], predicted, loss);
            // A sequence longer than a pass is a chunk of its own and runs with recomputation, which gives the same
            // bits.
            let recompute = self.shared.options.recompute || chunk.tokens.len() > self.budget;
            self.trainer.forward_backward(chunk, recompute, record).map_err(failed)?;
            total.add(stats);
        }
        Ok(total.report(count))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        let norm = self.trainer.grad_sum_of_squares(0..self.trainer.params().len()).map_err(failed)?.sqrt();
        self.pending = false;
        if !norm.is_finite() {
            // Searched only now, because the gradient must be downloaded.
            let grads = self.trainer.grads().to_vec().map_err(failed)?;
            self.trainer.zero_grads().map_err(failed)?;
            let first_non_finite = grads.iter().position(|g| !g.is_finite());
            // The squares of large finite values may overflow, too.
            let at = first_non_finite
                .or_else(|| (0..grads.len()).max_by(|a, b| grads[*a].abs().total_cmp(&grads[*b].abs())))
                .unwrap_or(0);
            let tensors = self.tensors();
            let tensor = tensors.iter().find(|t| t.range.contains(&at)).unwrap_or(&tensors[0]).clone();
            return self.state.skip(step, &tensor, grads[at], norm);
        }
        let params = self.state.advance(step, norm);
        for (range, decays) in decay_ranges(self.tensors()) {
            let weight_decay = if decays { step.weight_decay } else { 0.0 };
            self.trainer.adamw(range, &AdamWParams { weight_decay, ..params }).map_err(failed)?;
        }
        self.trainer.synchronize().map_err(failed)?;
        Ok(StepReport { grad_norm: norm, skipped: None, skipped_steps: self.state.skipped, steps: self.state.steps })
    }

    fn publish(&mut self, name: &WeightsName) -> Result<WeightVersion> {
        self.publish_as(name)
    }

    fn save(&self, dir: &Path) -> Result<()> {
        super::check_no_pending(self.pending)?;
        self.save_model(dir, WeightDtype::F32)?;
        let (exp_avg, exp_avg_sq) = self.trainer.moments();
        let (exp_avg, exp_avg_sq) = (exp_avg.to_vec().map_err(failed)?, exp_avg_sq.to_vec().map_err(failed)?);
        self.saved().write(dir, self.tensors(), (&exp_avg, &exp_avg_sq), &self.state, &self.shared)
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let Checkpoint { state, flat, exp_avg, exp_avg_sq, published } =
            self.saved().read(dir, self.tensors(), &self.shared)?;
        self.trainer.restore(&flat, &exp_avg, &exp_avg_sq).map_err(failed)?;
        self.pending = false;
        self.state = state;
        self.shared.registry.replace(published);
        Ok(())
    }
}
