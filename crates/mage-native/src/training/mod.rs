//! Trainers on CPU and GPU.
//!
//! The CPU trainer packs a batch into chunks and assigns them to a fixed number of lanes. Each lane accumulates its own
//! gradient in chunk order, and the lanes are summed in order at the end. Threads process whole lanes, so results do not
//! depend on the thread count. A model too large for one gradient buffer per lane has a single lane; threads then share
//! each kernel instead.

mod cuda_trainer;
#[cfg(test)]
mod lora_tests;
mod loss_stats;
mod state;
#[cfg(test)]
mod tests;
mod trainable_params;

use crate::cpu::{self, Cpu};
use crate::engine::{EngineContext, write_model};
use crate::model::PackedWorkspace;
use crate::model::batch;
use crate::weights::checkpoint::WeightDtype;
use crate::weights::lora;
use crate::weights::registry::DeviceWeights;
pub use cuda_trainer::CudaTrainer;
use loss_stats::LossStats;
use mage_engine::model::{AdamWParams, PackedChunk, ParamTensor};
use mage_engine::{
    Error, KlForm, Loss, LossReport, OptimStep, Reduction, Result, StepReport, TokenForest, Trainer, TrainerCaps,
    WeightVersion, WeightsName,
};
use rayon::prelude::*;
use state::{Checkpoint, SavedParams, TrainerState, digest};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
pub(crate) use trainable_params::TrainableParams;

/// Bound of the gradient buffers of all lanes in bytes, unless it allows fewer than [`MIN_LANES`].
const LANE_BYTES: usize = 8 << 20;
const MIN_LANES: usize = 4;
const MAX_LANES: usize = 16;
/// Models above this many parameters have a single lane.
const ONE_LANE_ABOVE: usize = 1 << 23;

/// The CPU trainer.
pub struct CpuTrainer {
    shared: Arc<EngineContext>,
    caps: TrainerCaps,
    params: TrainableParams,
    grads: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
    /// Gradient buffers by lane. A single lane accumulates into `grads` and its buffer stays empty.
    lanes: Vec<Vec<f32>>,
    /// Idle workspaces; as many exist as lanes ever ran at once.
    workspaces: Mutex<Vec<PackedWorkspace>>,
    state: TrainerState,
    /// Digest of an adapter's base weights, computed on first use.
    base_digest: OnceLock<String>,
    /// Whether a gradient has been accumulated since the last step.
    pending: bool,
}

impl CpuTrainer {
    pub(crate) fn new(shared: Arc<EngineContext>, params: TrainableParams) -> Self {
        let len = params.flat().len();
        let lanes = vec![Vec::new(); lane_count(shared.model.layout.len, len)];
        let caps = caps("native", &shared);
        let mut trainer = CpuTrainer {
            caps,
            params,
            grads: vec![0.0; len],
            exp_avg: vec![0.0; len],
            exp_avg_sq: vec![0.0; len],
            lanes,
            workspaces: Mutex::default(),
            state: TrainerState::default(),
            base_digest: OnceLock::new(),
            pending: false,
            shared,
        };
        trainer.publish_as(&WeightsName::default());
        trainer
    }

    fn publish_as(&mut self, name: &WeightsName) -> WeightVersion {
        let copy = self.shared.pool.install(|| self.params.snapshot(&self.shared.model));
        self.shared.registry.publish(name, Arc::new(DeviceWeights::Cpu(copy)))
    }

    /// The gradient accumulated since the last step: name, shape and values per trainable tensor.
    pub fn gradients(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.tensors().iter().map(|t| (&t.name[..], &t.shape[..], &self.grads[t.range.clone()]))
    }

    /// The current trainable parameters: name, shape and values per tensor.
    pub fn weights(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        self.tensors().iter().map(|t| (&t.name[..], &t.shape[..], &self.params.flat()[t.range.clone()]))
    }

    /// Writes the trainable parameters: a model directory that `transformers` loads unchanged, or an adapter directory for
    /// PEFT.
    pub fn save_model(&self, dir: &Path, format: WeightDtype) -> Result<()> {
        let EngineContext { model, renderer, source, .. } = &*self.shared;
        match &self.params {
            TrainableParams::Full(weights) => {
                write_model(dir, &model.config, &weights.flat, renderer.as_deref(), format)
            }
            TrainableParams::Lora { adapter, .. } => {
                lora::peft::write(dir, &adapter.layout, &adapter.flat, source.as_deref(), format)
            }
        }
    }

    fn tensors(&self) -> &[ParamTensor] {
        self.params.tensors(&self.shared.model)
    }

    /// The trained parameters as a checkpoint describes them.
    fn saved(&self) -> SavedParams<'_> {
        match &self.params {
            TrainableParams::Full(_) => SavedParams::Full,
            TrainableParams::Lora { base, adapter } => {
                let base = self.base_digest.get_or_init(|| digest(&base.flat)).clone();
                SavedParams::Lora { layout: &adapter.layout, base }
            }
        }
    }
}

/// Refuses to save while gradients have accumulated: a checkpoint does not contain them.
fn check_no_pending(pending: bool) -> Result<()> {
    match pending {
        true => Err(Error::invalid("save", "gradients have accumulated; call optim_step first")),
        false => Ok(()),
    }
}

/// Capabilities of the native trainers on every device.
fn caps(engine: &str, shared: &EngineContext) -> TrainerCaps {
    TrainerCaps {
        engine: engine.to_owned(),
        cross_entropy: true,
        importance_sampling: true,
        ppo: true,
        dual_clip: true,
        cispo: true,
        entropy: true,
        kl: vec![KlForm::K1, KlForm::K2, KlForm::K3],
        masks: true,
        grad_clipping: true,
        reduction: Reduction::TokenSum,
        max_seq_len: shared.model.config.max_position_embeddings,
    }
}

/// Number of lanes: a power of two, so that common thread counts share them evenly. `trainable` of the parameters have a
/// gradient.
fn lane_count(parameters: usize, trainable: usize) -> usize {
    if parameters > ONE_LANE_ABOVE {
        return 1;
    }
    let max_lanes = (LANE_BYTES / (4 * trainable)).clamp(MIN_LANES, MAX_LANES);
    1 << max_lanes.ilog2()
}

/// Assigns each chunk to the lane with the fewest tokens so far. Depends only on the chunks.
fn assign_chunks(chunks: &[PackedChunk], lanes: usize) -> Vec<Vec<usize>> {
    let mut assignment = vec![(0_usize, Vec::new()); lanes];
    for (i, chunk) in chunks.iter().enumerate() {
        let assigned = assignment.iter_mut().min_by_key(|(tokens, _)| *tokens);
        if let Some((tokens, assigned)) = assigned {
            *tokens += chunk.tokens.len();
            assigned.push(i);
        }
    }
    assignment.into_iter().map(|(_, assigned)| assigned).filter(|h| !h.is_empty()).collect()
}

impl Trainer for CpuTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        batch.check(loss, self.shared.model.config.vocab_size, self.caps.max_seq_len)?;
        let (chunks, count) = batch::chunks(batch, self.shared.chunk_tokens());
        let EngineContext { model, pool, options, .. } = &*self.shared;
        let (params, len, recompute) = (self.params.base_and_adapter(), self.grads.len(), options.recompute);
        let workspaces = &self.workspaces;
        // Processes a lane's chunks in order, in the most recently used workspace, which is still in cache.
        let work = |cpu: &Cpu, assigned: &[usize], grads: &mut [f32]| {
            let free = workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut workspace = free.unwrap_or_default();
            let stats: Vec<(usize, LossStats)> = assigned
                .iter()
                .map(|&i| {
                    let (chunk, mut stats) = (&chunks[i], LossStats::default());
                    model.forward_backward(cpu, params, chunk, &mut workspace, grads, recompute, |p, predicted| {
                        stats.record(&chunk.predictions[p], predicted, loss)
                    });
                    (i, stats)
                })
                .collect();
            workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
            stats
        };
        let mut total = LossStats::default();
        if self.lanes.len() == 1 {
            let (all, grads): (Vec<usize>, _) = ((0..chunks.len()).collect(), &mut self.grads);
            for (_, stats) in pool.install(|| work(&model.cpu, &all, grads)) {
                total.add(stats);
            }
        } else {
            let assignment = assign_chunks(&chunks, self.lanes.len());
            // With more threads than lanes, the kernels use the remaining threads.
            let cpu =
                if pool.current_num_threads() > assignment.len() { model.cpu } else { model.cpu.single_threaded() };
            let lanes = &mut self.lanes[..assignment.len()];
            let mut stats: Vec<(usize, LossStats)> = pool.install(|| {
                let each = lanes.par_iter_mut().zip(&assignment).with_max_len(1);
                each.flat_map_iter(|(grads, assigned)| {
                    grads.clear();
                    grads.resize(len, 0.0);
                    work(&cpu, assigned, grads)
                })
                .collect()
            });
            stats.sort_by_key(|(i, _)| *i);
            for (_, stats) in stats {
                total.add(stats);
            }
            let lanes = &*lanes;
            pool.install(|| {
                const PIECE: usize = 1 << 14;
                self.grads.par_chunks_mut(PIECE).enumerate().for_each(|(i, sum)| {
                    for lane in lanes {
                        cpu::add(&lane[i * PIECE..][..sum.len()], sum);
                    }
                });
            });
        }
        self.pending = true;
        Ok(total.report(count))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        let shared = Arc::clone(&self.shared);
        let cpu = &shared.model.cpu;
        let (tensors, flat) = self.params.params_mut(&shared.model);
        let squares: Vec<f64> =
            shared.pool.install(|| tensors.iter().map(|t| cpu.sum_of_squares(&self.grads[t.range.clone()])).collect());
        let norm = squares.iter().sum::<f64>().sqrt();
        if let Some(bad) = squares.iter().position(|s| !s.is_finite()) {
            let tensor = &tensors[bad];
            let value = self.grads[tensor.range.clone()].iter().copied().find(|g| !g.is_finite()).unwrap_or(f32::NAN);
            self.grads.fill(0.0);
            self.pending = false;
            return self.state.skip(step, tensor, value, norm);
        }
        let set = self.state.advance(step, norm);
        shared.pool.install(|| {
            for tensor in tensors {
                let weight_decay = if tensor.shape.len() > 1 { step.weight_decay } else { 0.0 };
                let at = || tensor.range.clone();
                cpu.adamw(
                    AdamWParams { weight_decay, ..set },
                    &mut flat[at()],
                    &self.grads[at()],
                    &mut self.exp_avg[at()],
                    &mut self.exp_avg_sq[at()],
                );
            }
        });
        self.grads.fill(0.0);
        self.pending = false;
        shared.pool.install(|| self.params.refresh(&shared.model));
        Ok(StepReport { grad_norm: norm, skipped: None, skipped_steps: self.state.skipped, steps: self.state.steps })
    }

    fn publish(&mut self, name: &WeightsName) -> Result<WeightVersion> {
        Ok(self.publish_as(name))
    }

    fn save(&self, dir: &Path) -> Result<()> {
        check_no_pending(self.pending)?;
        self.save_model(dir, WeightDtype::F32)?;
        self.saved().write(dir, self.tensors(), (&self.exp_avg, &self.exp_avg_sq), &self.state, &self.shared)
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let Checkpoint { state, flat, exp_avg, exp_avg_sq, published } =
            self.saved().read(dir, self.tensors(), &self.shared)?;
        (self.exp_avg, self.exp_avg_sq) = (exp_avg, exp_avg_sq);
        let shared = Arc::clone(&self.shared);
        *self.params.params_mut(&shared.model).1 = flat;
        shared.pool.install(|| self.params.refresh(&shared.model));
        self.grads.fill(0.0);
        self.pending = false;
        self.state = state;
        shared.registry.replace(published);
        Ok(())
    }
}
