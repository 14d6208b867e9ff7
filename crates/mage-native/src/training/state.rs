//! Checkpoints of a trainer, for exact resume.
//!
//! A checkpoint is a model directory that `transformers` loads, or an adapter directory for PEFT, with a subdirectory
//! `training_state/`: counters (`state.json`), moments (`optimizer.safetensors`) and every published version, since
//! samplers continue with them. The format does not depend on the device. A checkpoint is read and checked completely
//! before the trainer changes; that of another model, adapter shape or base model is refused.

use crate::engine::EngineContext;
use crate::model::Qwen3Model;
use crate::weights::atomic_write::replace_text;
use crate::weights::checkpoint::{self, CONFIG_SOURCE, WeightDtype};
use crate::weights::hf_config::Config;
use crate::weights::lora::{self, NativeAdapter};
use crate::weights::registry::{DeviceWeights, PublishedWeights};
use mage_engine::model::{AdamWParams, LoraLayout, ParamTensor};
use mage_engine::{Error, OptimStep, Result, StepReport, WeightVersion, WeightsName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Trainer state besides weights and moments: `training_state/state.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrainerState {
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) consecutive_skips: u32,
    /// Digest of the base weights of an adapter in training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) base: Option<String>,
    pub(super) published: Vec<PublishedState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedState {
    pub(super) name: WeightsName,
    pub(super) version: WeightVersion,
    /// The file, or the directory of an adapter; `None` for the base model without adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
}

impl TrainerState {
    /// Counts a step that is skipped because of a non-finite gradient. Too many consecutive ones are an error.
    pub(super) fn skip(&mut self, step: &OptimStep, tensor: &ParamTensor, value: f32, norm: f64) -> Result<StepReport> {
        self.skipped += 1;
        self.consecutive_skips += 1;
        if self.consecutive_skips >= step.max_nonfinite_steps.max(1) {
            return Err(Error::NonFinite {
                tensor: format!("the gradient of `{}`", tensor.name),
                value,
                steps: self.consecutive_skips,
            });
        }
        let skipped = Some(tensor.name.clone());
        Ok(StepReport { grad_norm: norm, skipped, skipped_steps: self.skipped, steps: self.steps })
    }

    /// Counts a step and returns its AdamW parameters. Weight decay is set per tensor by the caller.
    pub(super) fn advance(&mut self, step: &OptimStep, norm: f64) -> AdamWParams {
        self.consecutive_skips = 0;
        self.steps += 1;
        let t = self.steps as f64;
        let clip = f64::from(step.max_grad_norm);
        AdamWParams {
            learning_rate: step.learning_rate,
            beta1: step.beta1,
            beta2: step.beta2,
            epsilon: step.epsilon,
            weight_decay: 0.0,
            grad_scale: if clip > 0.0 { (clip / (norm + 1e-6)).min(1.0) as f32 } else { 1.0 },
            correction1: (1.0 - f64::from(step.beta1).powf(t)) as f32,
            correction2: (1.0 - f64::from(step.beta2).powf(t)) as f32,
        }
    }

    /// Reads a saved state.
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
        serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))
    }

    fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::invalid("state", e.to_string()))?;
        replace_text(path, &(text + "\n"))
    }
}

/// Reads the first and second moments.
fn read_moments(folder: &Path, tensors: &[ParamTensor], len: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let shifted = |prefix: &str, by: usize| {
        tensors
            .iter()
            .map(move |t| ParamTensor {
                name: format!("{prefix}{}", t.name),
                shape: t.shape.clone(),
                range: t.range.start + by..t.range.end + by,
            })
            .collect::<Vec<_>>()
    };
    let both = [shifted("exp_avg.", 0), shifted("exp_avg_sq.", len)].concat();
    let mut exp_avg = checkpoint::read_tensors(&[folder.join("optimizer.safetensors")], &both, &[], CONFIG_SOURCE)?;
    let exp_avg_sq = exp_avg.split_off(len);
    Ok((exp_avg, exp_avg_sq))
}

fn write_moments(folder: &Path, tensors: &[ParamTensor], exp_avg: &[f32], exp_avg_sq: &[f32]) -> Result<()> {
    let moments = [("exp_avg.", exp_avg), ("exp_avg_sq.", exp_avg_sq)];
    checkpoint::write_tensors(&folder.join("optimizer.safetensors"), &moments, tensors, WeightDtype::F32)
}

/// A checkpoint of a trainer in memory.
pub(super) struct Checkpoint {
    pub(super) state: TrainerState,
    pub(super) flat: Vec<f32>,
    pub(super) exp_avg: Vec<f32>,
    pub(super) exp_avg_sq: Vec<f32>,
    pub(super) published: BTreeMap<WeightsName, PublishedWeights>,
}

/// The kind of trainable parameters in a checkpoint: a whole model, or an adapter whose base weights have this digest.
pub(super) enum SavedParams<'a> {
    Full,
    Lora { layout: &'a LoraLayout, base: String },
}

impl SavedParams<'_> {
    fn base(&self) -> Option<String> {
        match self {
            SavedParams::Full => None,
            SavedParams::Lora { base, .. } => Some(base.clone()),
        }
    }

    /// Reads the trained parameters from a checkpoint. Fails if it was written for another model or adapter shape.
    fn read_params(&self, dir: &Path, state: &TrainerState, model: &Qwen3Model) -> Result<Vec<f32>> {
        let wrong = |problem: String| Err(Error::invalid(dir.display().to_string(), problem));
        match (self, NativeAdapter::is_in(dir)) {
            (SavedParams::Full, false) => {
                if Config::read(&dir.join("config.json"))? != model.config {
                    return wrong("its config.json differs from this model's configuration".to_owned());
                }
                checkpoint::read_folder(dir, &model.layout.tensors, &[])
            }
            (SavedParams::Lora { layout, base }, true) => {
                if state.base.as_ref() != Some(base) {
                    return wrong("its adapter was trained on another base model".to_owned());
                }
                let saved = NativeAdapter::open(dir, &model.config)?;
                if *saved.lora() != layout.lora {
                    return wrong(format!("its adapter is {:?}, this one {:?}", saved.lora(), layout.lora));
                }
                Ok(saved.flat)
            }
            (SavedParams::Full, true) => wrong("it is the checkpoint of an adapter, not of a full model".to_owned()),
            (SavedParams::Lora { .. }, false) => {
                wrong("it is the checkpoint of a full model, not of an adapter".to_owned())
            }
        }
    }

    /// Writes `training_state/` in a checkpoint: moments, counters and every published version.
    pub(super) fn write(
        &self,
        dir: &Path,
        tensors: &[ParamTensor],
        (exp_avg, exp_avg_sq): (&[f32], &[f32]),
        state: &TrainerState,
        shared: &EngineContext,
    ) -> Result<()> {
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        write_moments(&folder, tensors, exp_avg, exp_avg_sq)?;
        let mut state = TrainerState { base: self.base(), published: Vec::new(), ..state.clone() };
        for (i, (name, published)) in shared.registry.all().into_iter().enumerate() {
            let flat = match (self, published.weights.adapter_params()?) {
                (_, Some(adapter)) => Some(adapter),
                (SavedParams::Lora { .. }, None) => None,
                (SavedParams::Full, None) => Some(published.weights.base_params()?),
            };
            let file = flat.map(|flat| self.write_published(&folder, i, shared, &flat)).transpose()?;
            state.published.push(PublishedState { name, version: published.version, file });
        }
        state.write(&folder.join("state.json"))
    }

    /// Reads a whole checkpoint, so that a trainer changes only if all of it is valid.
    pub(super) fn read(&self, dir: &Path, tensors: &[ParamTensor], shared: &EngineContext) -> Result<Checkpoint> {
        let folder = dir.join("training_state");
        let state = TrainerState::read(&folder.join("state.json"))?;
        let flat = self.read_params(dir, &state, &shared.model)?;
        let (exp_avg, exp_avg_sq) = read_moments(&folder, tensors, flat.len())?;
        let mut published = BTreeMap::new();
        for p in &state.published {
            let weights = Arc::new(read_published(shared, &folder, p)?);
            published.insert(p.name.clone(), PublishedWeights { version: p.version, weights });
        }
        let state = TrainerState { published: Vec::new(), base: None, ..state };
        Ok(Checkpoint { state, flat, exp_avg, exp_avg_sq, published })
    }

    /// Writes the `i`-th published version and returns its file name.
    fn write_published(&self, folder: &Path, i: usize, shared: &EngineContext, flat: &[f32]) -> Result<String> {
        let format = WeightDtype::F32;
        match self {
            SavedParams::Lora { layout, .. } => {
                let file = format!("published-{i}");
                lora::peft::write(&folder.join(&file), layout, flat, shared.source.as_deref(), format)?;
                Ok(file)
            }
            SavedParams::Full => {
                let file = format!("published-{i}.safetensors");
                let tensors = &shared.model.layout.tensors;
                checkpoint::write_tensors(&folder.join(&file), &[("", flat)], tensors, format)?;
                Ok(file)
            }
        }
    }
}

/// BLAKE3 digest of base weights.
pub(super) fn digest(flat: &[f32]) -> String {
    const PIECE: usize = 1 << 16;
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; 4 * PIECE]);
    for part in flat.chunks(PIECE) {
        for (to, x) in bytes.chunks_exact_mut(4).zip(part) {
            to.copy_from_slice(&x.to_le_bytes());
        }
        hasher.update(&bytes[..4 * part.len()]);
    }
    hasher.finalize().to_hex().to_string()
}

/// The path of a file directly in `folder`; refuses paths that lead elsewhere.
fn child_path(folder: &Path, file: &str) -> Result<PathBuf> {
    if Path::new(file).file_name().is_none_or(|n| n != file) {
        return Err(Error::invalid(folder.display().to_string(), format!("`{file}` is not a plain file name")));
    }
    Ok(folder.join(file))
}

/// Reads weights that were published when the state was saved.
fn read_published(shared: &EngineContext, folder: &Path, p: &PublishedState) -> Result<DeviceWeights> {
    let (model, base) = (&shared.model, shared.frozen_base());
    let weights = match &p.file {
        None => base,
        Some(file) if base.is_some() => {
            let saved = NativeAdapter::open(&child_path(folder, file)?, &model.config)?;
            shared.adapter_on_base(&saved.layout, &saved.flat)?
        }
        Some(file) => {
            let path = child_path(folder, file)?;
            let flat = checkpoint::read_tensors(&[path], &model.layout.tensors, &[], CONFIG_SOURCE)?;
            Some(shared.load(flat)?)
        }
    };
    weights.ok_or_else(|| {
        let problem = "the state refers to the base weights of an adapter, but this trainer has no adapter";
        Error::invalid(format!("weights `{}`", p.name), problem)
    })
}
