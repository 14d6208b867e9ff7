//! Saving and restoring of trainer state, for exact resume.

use super::{CpuTrainer, TrainableParams};
use crate::cpu::AdamW;
use crate::engine::EngineContext;
use crate::model::param_layout::ParamTensor;
use crate::model::{Qwen3Model, WeightSet};
use crate::weights::atomic_write::replace_text;
use crate::weights::checkpoint::{self, CONFIG_SOURCE, WeightDtype};
use crate::weights::hf_config::Config;
use crate::weights::lora::{self, LoraLayout, NativeAdapter};
use crate::weights::registry::{DeviceWeights, PublishedWeights};
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
    pub(super) fn advance(&mut self, step: &OptimStep, norm: f64) -> AdamW {
        self.consecutive_skips = 0;
        self.steps += 1;
        let t = self.steps as f64;
        let clip = f64::from(step.max_grad_norm);
        AdamW {
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
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::read(path))?;
        serde_json::from_str(&text).map_err(|e| Error::invalid(path.display().to_string(), e.to_string()))
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::invalid("state", e.to_string()))?;
        replace_text(path, &(text + "\n"))
    }
}

/// Reads the first and second moments.
pub(super) fn read_moments(folder: &Path, tensors: &[ParamTensor], len: usize) -> Result<(Vec<f32>, Vec<f32>)> {
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

pub(super) fn write_moments(folder: &Path, tensors: &[ParamTensor], exp_avg: &[f32], exp_avg_sq: &[f32]) -> Result<()> {
    let moments = [("exp_avg.", exp_avg), ("exp_avg_sq.", exp_avg_sq)];
    checkpoint::write_tensors(&folder.join("optimizer.safetensors"), &moments, tensors, WeightDtype::F32)
}

/// The kind of trainable parameters in a checkpoint: a whole model, or an adapter whose base weights have this digest.
pub(super) enum SavedParams<'a> {
    Full,
    Lora { layout: &'a LoraLayout, base: String },
}

impl SavedParams<'_> {
    pub(super) fn base(&self) -> Option<String> {
        match self {
            SavedParams::Full => None,
            SavedParams::Lora { base, .. } => Some(base.clone()),
        }
    }

    /// Reads the trained parameters from a checkpoint. Fails if it was written for another model or adapter shape.
    pub(super) fn read(&self, dir: &Path, state: &TrainerState, model: &Qwen3Model) -> Result<Vec<f32>> {
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

    /// Writes the `i`-th published version and returns its file name.
    pub(super) fn write_published(
        &self,
        folder: &Path,
        i: usize,
        shared: &EngineContext,
        flat: &[f32],
    ) -> Result<String> {
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

impl CpuTrainer {
    /// Writes the trainable parameters as a directory that `transformers` or PEFT loads, with a subdirectory
    /// `training_state/`: moments, counters and every published version.
    pub(super) fn write_state(&self, dir: &Path) -> Result<()> {
        if self.pending {
            return Err(Error::invalid("save", "gradients have accumulated; call optim_step first"));
        }
        self.save_model(dir, WeightDtype::F32)?;
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        write_moments(&folder, self.tensors(), &self.exp_avg, &self.exp_avg_sq)?;
        let saved = self.saved();
        let mut state = TrainerState { base: saved.base(), published: Vec::new(), ..self.state.clone() };
        for (i, (name, published)) in self.shared.registry.all().into_iter().enumerate() {
            let WeightSet { base, adapter } = published.weights.cpu();
            let flat = match (&saved, adapter) {
                (_, Some(adapter)) => Some(&adapter.flat),
                (SavedParams::Lora { .. }, None) => None,
                (SavedParams::Full, None) => Some(&base.flat),
            };
            let file = flat.map(|flat| saved.write_published(&folder, i, &self.shared, flat)).transpose()?;
            state.published.push(PublishedState { name, version: published.version, file });
        }
        state.write(&folder.join("state.json"))
    }

    pub(super) fn read_state(&mut self, dir: &Path) -> Result<()> {
        let folder = dir.join("training_state");
        let state = TrainerState::read(&folder.join("state.json"))?;
        // Read everything before modifying anything.
        let flat = self.saved().read(dir, &state, &self.shared.model)?;
        let (exp_avg, exp_avg_sq) = read_moments(&folder, self.tensors(), flat.len())?;
        let mut published = BTreeMap::new();
        for p in &state.published {
            let weights = read_published(&self.shared, &folder, p)?;
            published.insert(
                p.name.clone(),
                PublishedWeights { version: p.version, weights: Arc::new(DeviceWeights::Cpu(weights)) },
            );
        }
        self.exp_avg = exp_avg;
        self.exp_avg_sq = exp_avg_sq;
        let shared = Arc::clone(&self.shared);
        *self.params.params_mut(&shared.model).1 = flat;
        shared.pool.install(|| self.params.refresh(&shared.model));
        self.grads.fill(0.0);
        self.pending = false;
        self.state = TrainerState { published: Vec::new(), base: None, ..state };
        self.shared.registry.replace(published);
        Ok(())
    }

    /// The kind of trainable parameters, for a checkpoint.
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

/// The path of a file directly in `folder`; refuses paths that lead elsewhere.
pub(super) fn child_path(folder: &Path, file: &str) -> Result<PathBuf> {
    if Path::new(file).file_name().is_none_or(|n| n != file) {
        return Err(Error::invalid(folder.display().to_string(), format!("`{file}` is not a plain file name")));
    }
    Ok(folder.join(file))
}

fn read_published(shared: &EngineContext, folder: &Path, p: &PublishedState) -> Result<WeightSet> {
    let model = &shared.model;
    let Some(file) = &p.file else {
        let base = shared.base.get().ok_or_else(|| {
            Error::invalid(
                format!("weights `{}`", p.name),
                "the state refers to the base weights of an adapter, but this trainer has no adapter",
            )
        })?;
        return Ok(WeightSet { base: Arc::clone(base), adapter: None });
    };
    let path = child_path(folder, file)?;
    match shared.base.get() {
        Some(base) => {
            let saved = NativeAdapter::open(&path, &model.config)?;
            let adapter = shared.pool.install(|| model.adapter(saved.layout, saved.flat));
            Ok(WeightSet { base: Arc::clone(base), adapter: Some(Arc::new(adapter)) })
        }
        None => {
            let flat = checkpoint::read_tensors(&[path], &model.layout.tensors, &[], CONFIG_SOURCE)?;
            let base = Arc::new(shared.pool.install(|| model.weights(flat)));
            Ok(WeightSet { base, adapter: None })
        }
    }
}
