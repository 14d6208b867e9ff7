//! How does training go on over a network?
//!
//! Requests carry sequence numbers, so that one sent twice is done once.

use super::{
    Backend, Calibration, TinkerSampler, TinkerServer,
    batch::Batch,
    calibration::calibrate,
    client::{Model, TinkerClient},
    replay_log::{Entry, Gradient},
    saved_state::{Saved, SavedRelease, copy_adapter},
    session::{Kept, Shared, State},
};
use crate::{Fingerprint, VllmPool};
use mage_engine::{
    AdapterName, Error, Loss, LossReport, Objective, OptimStep, Reduction, Result, StepReport, TokenForest, Trainer,
    TrainerCaps, WeightVersion, WeightsId,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

/// What is trained, and where.
#[derive(Clone, Debug)]
pub struct TinkerSettings {
    /// The server.
    pub server: TinkerServer,
    /// What runs behind it.
    pub backend: Backend,
    /// The name it knows the model by.
    pub base_model: String,
    /// What adapters' folders should name as their model.
    pub base_folder: String,
    /// The adapter's rank.
    pub rank: usize,
    /// Where its first numbers come from.
    pub seed: u32,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens a row may have.
    pub max_seq_len: usize,
    /// Where adapters are put for samplers to read; they must see it under the same path.
    pub adapters: PathBuf,
    /// How far log-probabilities of published weights may be off.
    pub tolerance: f32,
    /// Whether to measure what the server divides by before training.
    pub calibrate: bool,
}

/// Trains on a server that speaks the Tinker protocol.
pub struct TinkerTrainer {
    caps: TrainerCaps,
    calibration: Option<Calibration>,
    shared: Arc<Shared>,
}

impl TinkerTrainer {
    /// Connects, measures, and makes a new adapter on the server. With a pool, published weights are pushed there.
    pub fn connect(settings: TinkerSettings, pool: Option<Arc<VllmPool>>) -> Result<Self> {
        let client = TinkerClient::new(&settings.server)?;
        if pool.is_some() && !settings.backend.gives_adapters() {
            let hint = "no adapters can be fetched from it; leave vllm.servers out, and it samples by itself";
            return Err(Error::unsupported("push adapters to a pool from this backend", hint));
        }
        if let Some(risk) = client.wire.risk() {
            client.wire.notices.say(risk);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tinker")
            .enable_all()
            .build()
            .map_err(|e| client.wire.error(format!("starting a thread: {e}")))?;
        let models = runtime.block_on(client.greet())?;
        if !models.is_empty() && !models.contains(&settings.base_model) {
            let problem = format!("it has {}, not `{}`: set tinker.base_model", models.join(", "), settings.base_model);
            return Err(client.wire.error(problem));
        }
        let calibration = match settings.calibrate {
            true => Some(runtime.block_on(calibrate(
                &client,
                &settings.base_model,
                settings.rank,
                settings.backend.reduction(),
                settings.vocabulary,
            ))?),
            false => None,
        };
        let caps = settings.backend.trainer_caps(settings.max_seq_len);
        let shared = Arc::new(Shared::new(settings, client, pool, runtime)?);
        Ok(TinkerTrainer { caps, calibration, shared })
    }

    /// What was measured at the start.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// A sampler over the same server, for runs without a pool.
    pub fn sampler(&self) -> Result<TinkerSampler> {
        TinkerSampler::new(&self.shared)
    }

    /// How likely the weights of now find the fixed sequence.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let mut state = self.shared.state();
        let tokens = Fingerprint::tokens(self.shared.settings.vocabulary);
        let n = tokens.len();
        let mut train = mage_engine::PerToken { weights: vec![1.0; n], ..Default::default() };
        train.weights[0] = 0.0;
        let forest = TokenForest::from_sequences([(tokens, train)]);
        let loss = Loss::of(Objective::CrossEntropy);
        let batch =
            Batch::new(&forest, &loss, self.shared.settings.vocabulary, self.shared.settings.max_seq_len.max(n))?;
        let rows = self.score(&mut state, &batch)?;
        Ok(Fingerprint(rows[0][1..].to_vec()))
    }

    /// How likely the weights of now find a batch, by segment.
    fn score(&self, state: &mut State, batch: &Batch) -> Result<Vec<Vec<f32>>> {
        let (what, client) = ("forward", &self.shared.client);
        self.shared.sound(state, what, async |model| client.score(model, batch, what).await, |rows| batch.unsound(rows))
    }
}

impl Trainer for TinkerTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        self.caps.check(loss)?;
        let batch = Batch::new(batch, loss, self.shared.settings.vocabulary, self.caps.max_seq_len)?;
        let mut state = self.shared.state();
        let reduction = self.caps.reduction;
        if state.pending && reduction == Reduction::SequenceMean {
            return Err(Error::unsupported(
                "add two gradients before a step",
                "it divides by the number of rows of both; put them into one batch",
            ));
        }
        let own = match batch.needs_own_logprobs(reduction) {
            true => Some(self.score(&mut state, &batch)?),
            false => None,
        };
        let data = batch.trained(reduction, own.as_deref())?;
        let named = batch.named(own.is_some());
        let gradient = Gradient { data, loss_fn: named.loss_fn, config: named.config };
        let (what, client) = ("forward_backward", &self.shared.client);
        // A server that forgot, or whose numbers are none, is fed the journal, which this is not yet part of.
        let ask = async |model: &Model| {
            let output = client.forward_backward(model, &gradient.request(&model.id, model.next())).await?;
            let rows = output.rows("logprobs").and_then(|rows| Ok((batch.segments(rows.clone())?, rows)));
            rows.map_err(|e| client.wire.error(format!("{what}: {e}")).into())
        };
        let (own, rows) = self.shared.sound(&mut state, what, ask, |(own, _)| batch.unsound(own))?;
        state.pending = true;
        state.journal.push(Entry::Gradient(gradient, rows));
        Ok(batch.report(&own))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        if step.max_grad_norm > 0.0 && !self.caps.grad_clipping {
            return Err(Error::unsupported("clip gradients", "set optim.max_grad_norm = 0"));
        }
        let mut state = self.shared.state();
        if self.shared.settings.backend.has_own_optimiser() && state.steps == 0 {
            self.shared.client.wire.notices.say(format!(
                "{} takes the learning rate from us and nothing else: it must have been started with betas {} and {}, weight decay {} \
                 and a clip norm of {}, as `mage launch` writes them",
                self.shared.client.wire.address(), step.beta1, step.beta2, step.weight_decay, step.max_grad_norm
            ));
        }
        let norm = self
            .shared
            .again(&mut state, async |model| self.shared.client.optim_step(model, model.next(), step).await)?;
        let norm = self.shared.alone(&mut state, step, norm)?;
        state.pending = false;
        if let Some(bad) = norm.filter(|n| !n.is_finite()) {
            // The server has taken the step all the same: its numbers are ruined, and so it goes back to those before.
            while matches!(state.journal.last(), Some(Entry::Gradient(..))) {
                state.journal.pop();
            }
            let did = format!("took a step although the gradient's norm was {bad}, which has ruined the adapter");
            self.shared.feed(&mut state, Some(&did))?;
            state.skipped += 1;
            state.consecutive_skips += 1;
            if state.consecutive_skips >= step.max_nonfinite_steps.max(1) {
                return Err(Error::NonFinite {
                    tensor: "the gradient on the server".to_owned(),
                    value: bad as f32,
                    steps: state.consecutive_skips,
                    hint: "lower the learning rate, or look for extreme advantages or log-probabilities".to_owned(),
                });
            }
            let (skipped_steps, steps) = (state.skipped, state.steps);
            return Ok(StepReport { grad_norm: bad, skipped: Some("the adapter".to_owned()), skipped_steps, steps });
        }
        state.consecutive_skips = 0;
        state.steps += 1;
        self.shared.published.steps.fetch_add(1, Ordering::SeqCst);
        state.journal.push(Entry::Step(*step, norm));
        Ok(StepReport {
            grad_norm: norm.unwrap_or(f64::NAN),
            skipped: None,
            skipped_steps: state.skipped,
            steps: state.steps,
        })
    }

    fn publish(&mut self, name: &AdapterName) -> Result<WeightVersion> {
        let fingerprint = self.fingerprint()?;
        let mut state = self.shared.state();
        self.shared.keep(&mut state)?;
        let version = WeightVersion(state.versions.get(name).map_or(0, |v| v.0 + 1));
        let weights = WeightsId { name: name.clone(), version };
        self.shared.show(&mut state, &weights, &fingerprint)?;
        state.versions.insert(name.clone(), version);
        Ok(version)
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let mut state = self.shared.state();
        let path = self.shared.keep(&mut state)?;
        if let Some(kept) = &mut state.kept {
            kept.relied_on = true;
        }
        if self.shared.settings.backend.gives_adapters() {
            self.shared.fetch(&mut state, dir)?;
        }
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let mut published = Vec::new();
        for (name, version) in &state.versions {
            let (place, fingerprint) = match &self.shared.pool {
                Some(pool) => match pool.newest_adapter(name) {
                    Some((from, fingerprint)) => {
                        let place = format!("published-{}", published.len());
                        copy_adapter(&from, &folder.join(&place))?;
                        (Some(place), fingerprint)
                    }
                    None => continue,
                },
                None => (None, Fingerprint(Vec::new())),
            };
            published.push(SavedRelease { name: name.clone(), version: *version, folder: place, fingerprint });
        }
        let saved = Saved { state: path, steps: state.steps, skipped: state.skipped, published };
        saved.write(dir)
    }

    fn load(&mut self, dir: &Path) -> Result<()> {
        let folder = dir.join("training_state");
        let file = folder.join("tinker.json");
        let saved = Saved::read(dir)?;
        let mut state = self.shared.state();
        state.journal.clear();
        state.kept = Some(Kept { path: saved.state, relied_on: true, adapter: None });
        state.pending = false;
        (state.steps, state.skipped, state.consecutive_skips) = (saved.steps, saved.skipped, 0);
        self.shared.published.steps.fetch_add(1, Ordering::SeqCst);
        self.shared.feed(&mut state, None)?;
        drop(state);
        let now = self.fingerprint()?;
        let mut state = self.shared.state();
        for release in saved.published {
            let weights = WeightsId { name: release.name.clone(), version: release.version };
            match (&self.shared.pool, release.folder) {
                (Some(pool), Some(place)) if Path::new(&place).file_name().is_some_and(|n| n == place.as_str()) => {
                    let dir = self.shared.settings.adapters.join(format!("{weights}-{}", state.name("adapter")));
                    copy_adapter(&folder.join(place), &dir)?;
                    self.shared.runtime.block_on(pool.push_adapter(&weights, &dir, &release.fingerprint))?;
                }
                (None, None) if release.name.as_str() == AdapterName::POLICY => {
                    self.shared.show_here(&mut state, &weights, &now)?;
                }
                // The server alone holds the newest weights only.
                (None, None) => {}
                _ => {
                    let problem = "it was written with another sampler; resume with the same vllm.servers or none";
                    return Err(Error::invalid(file.display().to_string(), problem));
                }
            }
            state.versions.insert(release.name, release.version);
        }
        Ok(())
    }

    fn release_checkpoint(&self, dir: &Path) {
        let Ok(saved) = Saved::read(dir) else { return };
        let beside = dir.parent().and_then(|p| std::fs::read_dir(p).ok()).into_iter().flatten().flatten();
        let others = beside.map(|e| e.path()).filter(|p| p != dir).filter_map(|p| Saved::read(&p).ok());
        // Checkpoints without a step in between stand for the same state.
        if others.into_iter().any(|other| other.state == saved.state) {
            return;
        }
        match &mut self.shared.state().kept {
            Some(kept) if kept.path == saved.state => kept.relied_on = false,
            _ => self.shared.runtime.block_on(self.shared.client.forget(&saved.state)),
        }
    }
}

impl Drop for TinkerTrainer {
    /// Puts away what nobody can ask for any more. Servers that are gone need no telling.
    fn drop(&mut self) {
        let patience = std::time::Duration::from_secs(2);
        let (model, kept, tag) = {
            let mut state = self.shared.state();
            (state.model.take(), state.kept.take(), state.tag.clone())
        };
        let sampled: Vec<String> = self.shared.published.releases().values().map(|r| r.path.clone()).collect();
        self.shared.runtime.block_on(async {
            let states = kept.filter(|kept| !kept.relied_on).map(|kept| kept.path);
            for path in states.into_iter().chain(sampled) {
                let _ = tokio::time::timeout(patience, self.shared.client.forget(&path)).await;
            }
            if let Some(model) = model {
                // Its place is free for others at once.
                let _ = tokio::time::timeout(patience, self.shared.client.unload(model)).await;
            }
            if let Some(pool) = &self.shared.pool {
                let _ = tokio::time::timeout(patience, pool.withdraw()).await;
            }
        });
        if let Some(pool) = &self.shared.pool {
            self.shared.sweep(pool, &tag);
        }
    }
}
