//! [`Trainer`] over the Tinker protocol.
//!
//! Requests carry sequence numbers, so that a repeated request is executed once.

use super::{
    Calibration, TinkerBackend, TinkerSampler, TinkerServer,
    batch::TinkerBatch,
    calibration::calibrate,
    client::{RemoteModel, TinkerClient},
    replay_log::{GradientRequest, ReplayEntry},
    saved_state::{SavedState, SavedWeights, copy_adapter},
    session::{SavedServerState, SessionState, TrainingSession},
};
use crate::{Fingerprint, VllmPool};
use mage_engine::{
    Error, Hint, Loss, LossReport, Objective, OptimStep, Reduction, Result, StepReport, TokenForest, Trainer,
    TrainerCaps, WeightVersion, WeightsId, WeightsName,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

/// Settings of a [`TinkerTrainer`].
#[derive(Clone, Debug)]
pub struct TinkerSettings {
    /// Server.
    pub server: TinkerServer,
    /// Backend of the server.
    pub backend: TinkerBackend,
    /// Model name on the server.
    pub base_model: String,
    /// Base model named in saved adapters.
    pub adapter_base_name: String,
    /// LoRA rank.
    pub lora_rank: usize,
    /// Seed of the adapter's initialisation.
    pub seed: u32,
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Maximum tokens of a sequence.
    pub max_seq_len: usize,
    /// Directory of adapters; sampling servers must see it under the same path.
    pub adapter_dir: PathBuf,
    /// Tolerance of fingerprints.
    pub tolerance: f32,
    /// Whether to calibrate the loss reduction before training.
    pub calibrate: bool,
}

/// Trains on a Tinker server.
pub struct TinkerTrainer {
    caps: TrainerCaps,
    calibration: Option<Calibration>,
    session: Arc<TrainingSession>,
}

impl TinkerTrainer {
    /// Connects, calibrates, and creates an adapter on the server. With a pool, published weights are pushed to it.
    pub fn connect(settings: TinkerSettings, pool: Option<Arc<VllmPool>>) -> Result<Self> {
        let client = TinkerClient::new(&settings.server)?;
        if pool.is_some() && !settings.backend.can_download_adapters() {
            let reason = "its adapters cannot be downloaded";
            return Err(Error::unsupported("push adapters to a pool from this backend", reason)
                .with_hints(&[Hint::SampleOnTrainer]));
        }
        if let Some(warning) = client.http.security_warning() {
            client.http.status_log.log(warning);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tinker")
            .enable_all()
            .build()
            .map_err(|e| client.http.error(format!("cannot start the runtime: {e}")))?;
        let models = runtime.block_on(client.handshake())?;
        if !models.is_empty() && !models.contains(&settings.base_model) {
            let problem = format!("the server offers {}, not `{}`", models.join(", "), settings.base_model);
            return Err(client.http.error(problem).with_hints(&[Hint::SetBaseModel]));
        }
        let calibration = match settings.calibrate {
            true => Some(runtime.block_on(calibrate(
                &client,
                &settings.base_model,
                settings.lora_rank,
                settings.backend.reduction(),
                settings.vocab_size,
            ))?),
            false => None,
        };
        let caps = settings.backend.trainer_caps(settings.max_seq_len);
        let session = Arc::new(TrainingSession::new(settings, client, pool, runtime)?);
        Ok(TinkerTrainer { caps, calibration, session })
    }

    /// Result of the calibration.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// A sampler on the same server, for runs without a pool.
    pub fn sampler(&self) -> Result<TinkerSampler> {
        TinkerSampler::new(&self.session)
    }

    /// Fingerprint of the current weights.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let mut state = self.session.state();
        let tokens = Fingerprint::tokens(self.session.settings.vocab_size);
        let n = tokens.len();
        let mut train = mage_engine::PerToken { weights: vec![1.0; n], ..Default::default() };
        train.weights[0] = 0.0;
        let forest = TokenForest::from_sequences([(tokens, train)]);
        let loss = Loss::of(Objective::CrossEntropy);
        let batch = TinkerBatch::new(
            &forest,
            &loss,
            self.session.settings.vocab_size,
            self.session.settings.max_seq_len.max(n),
        )?;
        let logprobs = self.score(&mut state, &batch)?;
        Ok(Fingerprint(logprobs[0][1..].to_vec()))
    }

    /// Log-probs of a batch under the current weights, by segment.
    fn score(&self, state: &mut SessionState, batch: &TinkerBatch) -> Result<Vec<Vec<f32>>> {
        let (what, client) = ("forward", &self.session.client);
        self.session.with_finite_check(
            state,
            what,
            async |model| client.score(model, batch, what).await,
            |logprobs| batch.find_invalid_logprob(logprobs),
        )
    }
}

impl Trainer for TinkerTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        self.caps.check(loss)?;
        let batch = TinkerBatch::new(batch, loss, self.session.settings.vocab_size, self.caps.max_seq_len)?;
        let mut state = self.session.state();
        let reduction = self.caps.reduction;
        if state.pending && reduction == Reduction::SequenceMean {
            return Err(Error::unsupported(
                "accumulate gradients",
                "its loss is a mean over all sequences; use one batch per step",
            ));
        }
        let current = match batch.needs_current_logprobs(reduction) {
            true => Some(self.score(&mut state, &batch)?),
            false => None,
        };
        let data = batch.training_data(reduction, current.as_deref())?;
        let spec = batch.loss_spec(current.is_some());
        let gradient = GradientRequest { data, loss_fn: spec.loss_fn, config: spec.config };
        let (what, client) = ("forward_backward", &self.session.client);
        // If the server lost the model or returned invalid values, the replay log is restored without this request.
        let request = async |model: &RemoteModel| {
            let output = client.forward_backward(model, &gradient.request(&model.id, model.next_seq())).await?;
            let logprobs = output.field("logprobs").and_then(|all| Ok((batch.split_logprobs(all.clone())?, all)));
            logprobs.map_err(|e| client.http.error(format!("{what}: {e}")).into())
        };
        let (trained, all) = self
            .session
            .with_finite_check(&mut state, what, request, |(trained, _)| batch.find_invalid_logprob(trained))?;
        state.pending = true;
        state.replay_log.push(ReplayEntry::Gradient(gradient, all));
        Ok(batch.report(&trained))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        if step.max_grad_norm > 0.0 && !self.caps.grad_clipping {
            let reason = "the server's optimiser does not";
            return Err(Error::unsupported("clip gradients", reason).with_hints(&[Hint::DisableGradClipping]));
        }
        let mut state = self.session.state();
        if self.session.settings.backend.has_fixed_optimizer() && state.steps == 0 {
            let http = &self.session.client.http;
            let line = format!(
                "{} uses only the learning rate of requests: it must have been started with betas {} and {}, weight \
                 decay {} and a maximum gradient norm of {}",
                http.address(),
                step.beta1,
                step.beta2,
                step.weight_decay,
                step.max_grad_norm
            );
            http.status_log.log_with_hints(line, &[Hint::LaunchTrainer]);
        }
        let norm = self.session.with_restore(&mut state, async |model| {
            self.session.client.optim_step(model, model.next_seq(), step).await
        })?;
        let norm = self.session.verify_first_step(&mut state, step, norm)?;
        state.pending = false;
        if let Some(bad) = norm.filter(|n| !n.is_finite()) {
            // The server took the step nevertheless and its adapter is now invalid: restore the state before.
            while matches!(state.replay_log.last(), Some(ReplayEntry::Gradient(..))) {
                state.replay_log.pop();
            }
            let failure = format!("took a step with gradient norm {bad}, which made the adapter invalid");
            self.session.restore_model(&mut state, Some(&failure))?;
            state.skipped += 1;
            state.consecutive_skips += 1;
            if state.consecutive_skips >= step.max_nonfinite_steps.max(1) {
                return Err(Error::NonFinite {
                    tensor: "the gradient on the server".to_owned(),
                    value: bad as f32,
                    steps: state.consecutive_skips,
                });
            }
            let (skipped_steps, steps) = (state.skipped, state.steps);
            return Ok(StepReport { grad_norm: bad, skipped: Some("the adapter".to_owned()), skipped_steps, steps });
        }
        state.consecutive_skips = 0;
        state.steps += 1;
        self.session.registry.steps.fetch_add(1, Ordering::SeqCst);
        state.replay_log.push(ReplayEntry::Step(*step, norm));
        Ok(StepReport {
            grad_norm: norm.unwrap_or(f64::NAN),
            skipped: None,
            skipped_steps: state.skipped,
            steps: state.steps,
        })
    }

    fn publish(&mut self, name: &WeightsName) -> Result<WeightVersion> {
        let fingerprint = self.fingerprint()?;
        let mut state = self.session.state();
        self.session.save_state(&mut state)?;
        let version = WeightVersion(state.versions.get(name).map_or(0, |v| v.0 + 1));
        let weights = WeightsId { name: name.clone(), version };
        self.session.publish_weights(&mut state, &weights, &fingerprint)?;
        state.versions.insert(name.clone(), version);
        Ok(version)
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let mut state = self.session.state();
        let path = self.session.save_state(&mut state)?;
        if let Some(saved) = &mut state.saved {
            saved.in_checkpoint = true;
        }
        if self.session.settings.backend.can_download_adapters() {
            self.session.fetch_adapter(&mut state, dir)?;
        }
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let mut published = Vec::new();
        for (name, version) in &state.versions {
            let (dir_name, fingerprint) = match &self.session.pool {
                Some(pool) => match pool.newest_adapter(name) {
                    Some((from, fingerprint)) => {
                        let dir_name = format!("published-{}", published.len());
                        copy_adapter(&from, &folder.join(&dir_name))?;
                        (Some(dir_name), fingerprint)
                    }
                    None => continue,
                },
                None => (None, Fingerprint(Vec::new())),
            };
            published.push(SavedWeights { name: name.clone(), version: *version, folder: dir_name, fingerprint });
        }
        let saved = SavedState { state: path, steps: state.steps, skipped: state.skipped, published };
        saved.write(dir)
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let folder = dir.join("training_state");
        let file = folder.join("tinker.json");
        let saved = SavedState::read(dir)?;
        let mut state = self.session.state();
        state.replay_log.clear();
        state.saved = Some(SavedServerState { path: saved.state, in_checkpoint: true, adapter_dir: None });
        state.pending = false;
        (state.steps, state.skipped, state.consecutive_skips) = (saved.steps, saved.skipped, 0);
        self.session.registry.steps.fetch_add(1, Ordering::SeqCst);
        self.session.restore_model(&mut state, None)?;
        drop(state);
        let current = self.fingerprint()?;
        let mut state = self.session.state();
        for published in saved.published {
            let weights = WeightsId { name: published.name.clone(), version: published.version };
            match (&self.session.pool, published.folder) {
                (Some(pool), Some(dir_name))
                    if Path::new(&dir_name).file_name().is_some_and(|n| n == dir_name.as_str()) =>
                {
                    let dir =
                        self.session.settings.adapter_dir.join(format!("{weights}-{}", state.unique_name("adapter")));
                    copy_adapter(&folder.join(dir_name), &dir)?;
                    self.session.runtime.block_on(pool.push_adapter(&weights, &dir, &published.fingerprint))?;
                }
                (None, None) if published.name.as_str() == WeightsName::POLICY => {
                    self.session.publish_to_server(&mut state, &weights, &current)?;
                }
                // The server holds only the newest weights.
                (None, None) => {}
                _ => {
                    let reason = "the checkpoint was written with another sampler";
                    return Err(
                        Error::unsupported(format!("load {}", file.display()), reason).with_hints(&[Hint::KeepSampler])
                    );
                }
            }
            state.versions.insert(published.name, published.version);
        }
        Ok(())
    }

    fn release_checkpoint(&self, dir: &Path) {
        let Ok(saved) = SavedState::read(dir) else { return };
        let siblings = dir.parent().and_then(|p| std::fs::read_dir(p).ok()).into_iter().flatten().flatten();
        let others = siblings.map(|e| e.path()).filter(|p| p != dir).filter_map(|p| SavedState::read(&p).ok());
        // Checkpoints without a step in between refer to the same state.
        if others.into_iter().any(|other| other.state == saved.state) {
            return;
        }
        match &mut self.session.state().saved {
            Some(current) if current.path == saved.state => current.in_checkpoint = false,
            _ => self.session.runtime.block_on(self.session.client.delete_checkpoint(&saved.state)),
        }
    }
}

impl Drop for TinkerTrainer {
    /// Deletes what can no longer be requested. Unreachable servers are skipped after a short timeout.
    fn drop(&mut self) {
        let timeout = std::time::Duration::from_secs(2);
        let (model, saved, tag) = {
            let mut state = self.session.state();
            (state.model.take(), state.saved.take(), state.tag.clone())
        };
        let sampler_paths: Vec<String> = self.session.registry.weights().values().map(|r| r.path.clone()).collect();
        self.session.runtime.block_on(async {
            let states = saved.filter(|saved| !saved.in_checkpoint).map(|saved| saved.path);
            for path in states.into_iter().chain(sampler_paths) {
                let _ = tokio::time::timeout(timeout, self.session.client.delete_checkpoint(&path)).await;
            }
            if let Some(model) = model {
                // Frees its slot.
                let _ = tokio::time::timeout(timeout, self.session.client.unload_model(model)).await;
            }
            if let Some(pool) = &self.session.pool {
                let _ = tokio::time::timeout(timeout, pool.unload_all_adapters()).await;
            }
        });
        if let Some(pool) = &self.session.pool {
            self.session.remove_unused_adapters(pool, &tag);
        }
    }
}
