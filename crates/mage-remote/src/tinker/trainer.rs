//! How does training go on over a network?
//!
//! Requests carry sequence numbers, so that one sent twice is done once. The server's state is kept whenever weights are
//! published; what follows is remembered here, and done again on a server that comes back without it.

use super::{
    Backend, Calibration, TinkerSampler, TinkerServer,
    archive::unpack,
    batch::Batch,
    calibrate::calibrate,
    client::{Client, Done, Lost, Model},
    journal::{Entry, Gradient, SAME, apart},
    sampler::{Published, Release, read_scores},
    saved::{Saved, SavedRelease, copy_adapter},
};
use crate::{Fingerprint, VllmPool};
use mage_engine::{
    AdapterName, Error, Loss, LossReport, Objective, OptimStep, Reduction, Result, StepReport, TokenForest, Trainer,
    TrainerCaps, WeightVersion, WeightsId,
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::runtime::Runtime;

/// A server that forgets again while it is being fed is fed this often.
const FEEDINGS: u32 = 5;

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
    pub max_context: usize,
    /// Where adapters are put for samplers to read; they must see it under the same path.
    pub adapters: PathBuf,
    /// How far log-probabilities of published weights may be off.
    pub tolerance: f32,
    /// Whether to measure what the server divides by before training.
    pub calibrate: bool,
}

/// Trains on a server that speaks the Tinker protocol.
pub struct TinkerTrainer {
    settings: TinkerSettings,
    caps: TrainerCaps,
    client: Client,
    /// Where samples come from; the server itself without one.
    pool: Option<Arc<VllmPool>>,
    published: Arc<Published>,
    calibration: Option<Calibration>,
    state: Mutex<State>,
    /// Last: what runs on it must be gone before.
    runtime: Runtime,
}

/// What changes in the course of training.
struct State {
    /// `None` only while the server is being fed.
    model: Option<Model>,
    /// Where the server keeps the state before `journal`, and whether a checkpoint of ours relies on it.
    kept: Option<(String, bool)>,
    journal: Vec<Entry>,
    /// Whether a gradient waits for its step.
    pending: bool,
    steps: u64,
    skipped: u64,
    skipped_in_a_row: u32,
    versions: BTreeMap<AdapterName, WeightVersion>,
    /// Names on the server are used once.
    names: u64,
    tag: String,
}

impl TinkerTrainer {
    /// Connects, measures, and makes a new adapter on the server. With a pool, published weights are pushed there.
    pub fn connect(settings: TinkerSettings, pool: Option<Arc<VllmPool>>) -> Result<Self> {
        let client = Client::new(&settings.server)?;
        if pool.is_some() && !settings.backend.gives_adapters() {
            let hint =
                "its sampler weights are whole models; leave vllm.servers out and it samples by engines of its own";
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
        let model = runtime.block_on(fresh(&client, &settings))?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let state = State {
            model: Some(model),
            kept: None,
            journal: Vec::new(),
            pending: false,
            steps: 0,
            skipped: 0,
            skipped_in_a_row: 0,
            versions: BTreeMap::new(),
            names: 0,
            tag: format!("{:x}", nanos as u64 ^ u64::from(std::process::id()) << 40),
        };
        Ok(TinkerTrainer {
            caps: settings.backend.trainer_caps(settings.max_context),
            settings,
            client,
            pool,
            published: Arc::default(),
            calibration,
            state: Mutex::new(state),
            runtime,
        })
    }

    /// What was measured at the start.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// A sampler over the same server, for runs without a pool.
    pub fn sampler(&self) -> Result<TinkerSampler> {
        Ok(TinkerSampler {
            // Connections of its own: samples are asked for from another runtime.
            client: Client::new(&self.settings.server)?,
            published: Arc::clone(&self.published),
            backend: self.settings.backend,
            caps: self.settings.backend.sampler_caps(self.settings.max_context),
            vocabulary: self.settings.vocabulary,
            seq: AtomicU64::new(0),
        })
    }

    /// How likely the weights of now find the fixed sequence.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let mut state = self.state();
        let tokens = Fingerprint::tokens(self.settings.vocabulary);
        let n = tokens.len();
        let mut train = mage_engine::PerToken { weights: vec![1.0; n], ..Default::default() };
        train.weights[0] = 0.0;
        let forest = TokenForest::of_rows([(tokens, train)]);
        let loss = Loss::of(Objective::CrossEntropy);
        let batch = Batch::new(&forest, &loss, self.settings.vocabulary, self.settings.max_context.max(n))?;
        let rows = self.again(&mut state, async |model| self.client.score(model, &batch, "forward").await)?;
        Ok(Fingerprint(rows[0][1..].to_vec()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`; on a server that has forgotten, feeds it and does it again.
    fn again<T>(&self, state: &mut State, work: impl AsyncFn(&Model) -> Done<T>) -> Result<T> {
        for _ in 0..FEEDINGS {
            let model = state.model.as_ref().ok_or_else(|| self.client.wire.error("its model is lost"))?;
            match self.runtime.block_on(work(model)) {
                Ok(done) => return Ok(done),
                Err(Lost::Error(e)) => return Err(e),
                Err(Lost::Model(problem)) => self.feed(state, Some(&problem))?,
            }
        }
        Err(self.client.wire.error(format!("it forgot the model {FEEDINGS} times in a row")))
    }

    /// Gives the server a model in the state this trainer is in, and says so where there was a problem.
    fn feed(&self, state: &mut State, problem: Option<&str>) -> Result<()> {
        if let Some(problem) = problem {
            let from = if state.kept.is_some() { "its last kept state" } else { "the beginning" };
            let (address, todo) = (self.client.wire.address(), state.journal.len());
            self.client.wire.notices.say(format!(
                "{address} no longer has the model ({problem}); going on from {from} and doing {todo} requests again"
            ));
        }
        let old = state.model.take();
        let fed = self.runtime.block_on(async {
            if let Some(old) = old {
                self.client.unload(old).await;
            }
            let mut last = String::new();
            for _ in 0..FEEDINGS {
                match self.feed_once(state).await {
                    Ok(model) => return Ok(model),
                    Err(Lost::Error(e)) => return Err(e),
                    Err(Lost::Model(problem)) => last = problem,
                }
            }
            Err(self.client.wire.error(format!("it forgets the model while it is being fed: {last}")))
        })?;
        state.model = Some(fed);
        Ok(())
    }

    async fn feed_once(&self, state: &State) -> Done<Model> {
        let model = fresh(&self.client, &self.settings).await?;
        if let Some((path, _)) = &state.kept {
            self.client.load_state(&model, path).await?;
        }
        let differs = |what: &str, by: f64| -> Lost {
            let text = format!("{what} done again came out otherwise, by {by:.2e}; it does not have the state it kept");
            self.client.wire.error(text).into()
        };
        for entry in &state.journal {
            match entry {
                Entry::Gradient(gradient, before) => {
                    let output = self.client.forward_backward(&gradient.request(&model.id, model.next())).await?;
                    let rows = output.rows("logprobs").map_err(|e| self.client.wire.error(e))?;
                    let by = apart(&rows, before);
                    if by > SAME {
                        return Err(differs("a gradient", by));
                    }
                }
                Entry::Step(step, before) => {
                    let norm = self.client.optim_step(&model, model.next(), step).await?;
                    if let (Some(norm), Some(before)) = (norm, before) {
                        let by = (norm - before).abs() / before.abs().max(1e-12);
                        if by.is_nan() || by > SAME {
                            return Err(differs("a step", by));
                        }
                    }
                }
            }
        }
        Ok(model)
    }

    /// Has the server keep its state, if anything happened since it last did.
    fn keep(&self, state: &mut State) -> Result<String> {
        if let (Some((path, _)), true) = (&state.kept, state.journal.is_empty()) {
            return Ok(path.clone());
        }
        if state.pending {
            return Err(Error::invalid("save", "a gradient waits for its step; call optim_step first"));
        }
        let name = state.name("state");
        let path = self.again(state, async |model| self.client.save_state(model, &name).await)?;
        if let Some((old, false)) = state.kept.replace((path.clone(), false)) {
            self.runtime.block_on(self.client.forget(&old));
        }
        state.journal.clear();
        Ok(path)
    }

    /// Has the server pack the adapter of now, and unpacks it here.
    fn fetch(&self, state: &mut State, dir: &Path) -> Result<()> {
        let name = state.name("adapter");
        let (id, path) = self.again(state, async |model| {
            let path = self.client.save_for_sampler(model, &name).await?;
            Ok((model.id.clone(), path))
        })?;
        let packed = self.runtime.block_on(self.client.archive(&id, &name))?;
        unpack(&packed, dir, &self.settings.base_folder)?;
        self.runtime.block_on(self.client.forget(&path));
        Ok(())
    }

    /// Shows the weights of now to whoever samples.
    fn show(&self, state: &mut State, weights: &WeightsId, fingerprint: &Fingerprint) -> Result<()> {
        match &self.pool {
            Some(pool) => {
                let place = format!("{}-{}-{}", weights.name, weights.version.0, state.name("adapter"));
                let dir = self.settings.adapters.join(place);
                self.fetch(state, &dir)?;
                self.runtime.block_on(pool.push_adapter(weights, &dir, fingerprint))?;
                self.sweep(pool, &state.tag);
                Ok(())
            }
            None => self.show_here(state, weights, fingerprint),
        }
    }

    /// Removes folders of adapters that the pool has let go of.
    fn sweep(&self, pool: &VllmPool, tag: &str) {
        let wanted = pool.folders();
        let there = std::fs::read_dir(&self.settings.adapters).into_iter().flatten().flatten();
        let ours = there.filter(|e| e.file_name().to_string_lossy().contains(tag)).map(|e| e.path());
        for folder in ours.filter(|path| !wanted.contains(path)) {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    fn show_here(&self, state: &mut State, weights: &WeightsId, fingerprint: &Fingerprint) -> Result<()> {
        let name = state.name("sampler");
        let seq = state.names;
        let tokens = Fingerprint::tokens(self.settings.vocabulary);
        let (path, session) = self.again(state, async |model| {
            let path = self.client.save_for_sampler(model, &name).await?;
            let session = self.client.sampling_session(Client::session_of(model), seq, &path).await?;
            let body = json!({
                "num_samples": 1,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
                "sampling_params": {"max_tokens": 1, "seed": 0, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
                "sampling_session_id": session,
                "seq_id": 1,
                "prompt_logprobs": true,
                "topk_prompt_logprobs": 0,
                "type": "sample",
            });
            let response = self.client.sample(&body).await?;
            let all = read_scores(&response, tokens.len()).map_err(|e| self.client.wire.error(e))?;
            let theirs = Fingerprint(all[1..].to_vec());
            fingerprint.check(&theirs, self.settings.tolerance, self.client.wire.address(), &weights.to_string())?;
            Ok((path, session))
        })?;
        let steps = self.published.steps.load(Ordering::SeqCst);
        let release = Release { version: weights.version, path, session, steps };
        let old = {
            let mut releases = self.published.releases.lock().unwrap_or_else(PoisonError::into_inner);
            releases.insert(weights.name.clone(), release)
        };
        // A name means its newest weights here: nobody can ask for those before.
        if let Some(old) = old {
            self.runtime.block_on(self.client.forget(&old.path));
        }
        Ok(())
    }
}

impl State {
    /// A name that the server has never heard.
    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}-{}-{}", self.tag, self.names)
    }
}

impl Trainer for TinkerTrainer {
    fn caps(&self) -> &TrainerCaps {
        &self.caps
    }

    fn forward_backward(&mut self, batch: &TokenForest, loss: &Loss) -> Result<LossReport> {
        self.caps.check(loss)?;
        let batch = Batch::new(batch, loss, self.settings.vocabulary, self.caps.max_context)?;
        let mut state = self.state();
        let reduction = self.caps.reduction;
        if state.pending && reduction == Reduction::RowMean {
            return Err(Error::unsupported(
                "add two gradients before a step",
                "it divides by the number of rows of both; put them into one batch",
            ));
        }
        let own = match batch.needs_own_logprobs(reduction) {
            true => Some(self.again(&mut state, async |model| self.client.score(model, &batch, "forward").await)?),
            false => None,
        };
        let data = batch.trained(reduction, own.as_deref())?;
        let named = batch.named(own.is_some());
        let gradient = Gradient { data, loss_fn: named.loss_fn, config: named.config };
        // A server that forgot is fed the journal, which this is not yet part of.
        let rows = self.again(&mut state, async |model| {
            let output = self.client.forward_backward(&gradient.request(&model.id, model.next())).await?;
            output.rows("logprobs").map_err(|e| self.client.wire.error(format!("forward_backward: {e}")).into())
        })?;
        state.pending = true;
        let own = batch.segments(rows.clone()).map_err(|e| self.client.wire.error(format!("forward_backward: {e}")));
        state.journal.push(Entry::Gradient(gradient, rows));
        Ok(batch.report(&own?))
    }

    fn optim_step(&mut self, step: &OptimStep) -> Result<StepReport> {
        step.check()?;
        if step.clip_norm > 0.0 && !self.caps.clip_norm {
            return Err(Error::unsupported("clip gradients", "set optim.clip_norm = 0"));
        }
        let mut state = self.state();
        if self.settings.backend.has_own_optimiser() && state.steps == 0 {
            self.client.wire.notices.say(format!(
                "{} takes the learning rate from us and nothing else: it must have been started with betas {} and {}, weight decay {} \
                 and a clip norm of {}, as `mage launch` writes them",
                self.client.wire.address(), step.beta1, step.beta2, step.weight_decay, step.clip_norm
            ));
        }
        let norm = self.again(&mut state, async |model| self.client.optim_step(model, model.next(), step).await)?;
        state.pending = false;
        if let Some(bad) = norm.filter(|n| !n.is_finite()) {
            // The server has taken the step all the same: its numbers are ruined, and so it goes back to those before.
            while matches!(state.journal.last(), Some(Entry::Gradient(..))) {
                state.journal.pop();
            }
            self.feed(&mut state, Some(&format!("a gradient's norm was {bad}, and it took the step")))?;
            state.skipped += 1;
            state.skipped_in_a_row += 1;
            if state.skipped_in_a_row >= step.give_up_after.max(1) {
                return Err(Error::NotFinite {
                    place: "the gradient on the server".to_owned(),
                    value: bad as f32,
                    times: state.skipped_in_a_row,
                    hint: "lower the learning rate, or look for extreme advantages or log-probabilities".to_owned(),
                });
            }
            let (skipped_steps, steps) = (state.skipped, state.steps);
            return Ok(StepReport { grad_norm: bad, skipped: Some("the adapter".to_owned()), skipped_steps, steps });
        }
        state.skipped_in_a_row = 0;
        state.steps += 1;
        self.published.steps.fetch_add(1, Ordering::SeqCst);
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
        let mut state = self.state();
        self.keep(&mut state)?;
        let version = WeightVersion(state.versions.get(name).map_or(0, |v| v.0 + 1));
        let weights = WeightsId { name: name.clone(), version };
        self.show(&mut state, &weights, &fingerprint)?;
        state.versions.insert(name.clone(), version);
        Ok(version)
    }

    fn save(&self, dir: &Path) -> Result<()> {
        let mut state = self.state();
        let path = self.keep(&mut state)?;
        if let Some((_, relied_on)) = &mut state.kept {
            *relied_on = true;
        }
        if self.settings.backend.gives_adapters() {
            self.fetch(&mut state, dir)?;
        }
        let folder = dir.join("training_state");
        std::fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
        let mut published = Vec::new();
        for (name, version) in &state.versions {
            let (place, fingerprint) = match &self.pool {
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
        let mut state = self.state();
        state.journal.clear();
        state.kept = Some((saved.state, true));
        state.pending = false;
        (state.steps, state.skipped, state.skipped_in_a_row) = (saved.steps, saved.skipped, 0);
        self.published.steps.fetch_add(1, Ordering::SeqCst);
        self.feed(&mut state, None)?;
        drop(state);
        let now = self.fingerprint()?;
        let mut state = self.state();
        for release in saved.published {
            let weights = WeightsId { name: release.name.clone(), version: release.version };
            match (&self.pool, release.folder) {
                (Some(pool), Some(place)) if Path::new(&place).file_name().is_some_and(|n| n == place.as_str()) => {
                    let dir = self.settings.adapters.join(format!("{weights}-{}", state.name("adapter")));
                    copy_adapter(&folder.join(place), &dir)?;
                    self.runtime.block_on(pool.push_adapter(&weights, &dir, &release.fingerprint))?;
                }
                (None, None) if release.name.as_str() == AdapterName::POLICY => {
                    self.show_here(&mut state, &weights, &now)?;
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

    fn forget(&self, dir: &Path) {
        let Ok(saved) = Saved::read(dir) else { return };
        let beside = dir.parent().and_then(|p| std::fs::read_dir(p).ok()).into_iter().flatten().flatten();
        let others = beside.map(|e| e.path()).filter(|p| p != dir).filter_map(|p| Saved::read(&p).ok());
        // Checkpoints without a step in between stand for the same state.
        if others.into_iter().any(|other| other.state == saved.state) {
            return;
        }
        match &mut self.state().kept {
            Some((path, relied_on)) if *path == saved.state => *relied_on = false,
            _ => self.runtime.block_on(self.client.forget(&saved.state)),
        }
    }
}

impl Drop for TinkerTrainer {
    /// Puts away what nobody can ask for any more. Servers that are gone need no telling.
    fn drop(&mut self) {
        let patience = std::time::Duration::from_secs(2);
        let (model, kept, tag) = {
            let mut state = self.state();
            (state.model.take(), state.kept.take(), state.tag.clone())
        };
        let sampled: Vec<String> = {
            let releases = self.published.releases.lock().unwrap_or_else(PoisonError::into_inner);
            releases.values().map(|r| r.path.clone()).collect()
        };
        self.runtime.block_on(async {
            let states = kept.filter(|(_, relied_on)| !relied_on).map(|(path, _)| path);
            for path in states.into_iter().chain(sampled) {
                let _ = tokio::time::timeout(patience, self.client.forget(&path)).await;
            }
            if let Some(model) = model {
                // Its place is free for others at once.
                let _ = tokio::time::timeout(patience, self.client.unload(model)).await;
            }
            if let Some(pool) = &self.pool {
                let _ = tokio::time::timeout(patience, pool.withdraw()).await;
            }
        });
        if let Some(pool) = &self.pool {
            self.sweep(pool, &tag);
        }
    }
}

/// A new model on the server.
async fn fresh(client: &Client, s: &TinkerSettings) -> Result<Model> {
    match s.backend.adds_up_by_place() {
        true => client.create_model_in_clean_place(&s.base_model, s.rank, s.seed).await,
        false => client.create_model(&s.base_model, s.rank, s.seed).await,
    }
}
