//! Training session: the state shared by trainer and sampler, and its restoration on a server that lost it.
//!
//! The server state is saved whenever weights are published; later requests are in the replay log. If the server lost
//! the model, the saved state is loaded into a new model and the log replayed. Trainer or sampler may detect the loss.

use super::{
    TinkerSettings,
    client::{RemoteModel, TinkerClient, TinkerError, TinkerResult},
    publish::SamplerRegistry,
    replay_log::{ReplayEntry, ReplayMatch},
    stale_gradient,
};
use crate::{VllmPool, unique_tag::unique_tag};
use mage_engine::{Error, Hint, Result, WeightVersion, WeightsName};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Runtime;

/// Maximum consecutive restores.
pub(super) const MAX_RESTORES: u32 = 5;

/// A training session.
pub(super) struct TrainingSession {
    pub(super) settings: TinkerSettings,
    pub(super) client: TinkerClient,
    /// vLLM pool for sampling; without one, the training server samples.
    pub(super) pool: Option<Arc<VllmPool>>,
    pub(super) registry: Arc<SamplerRegistry>,
    state: Mutex<SessionState>,
    /// Last field: everything that runs on it must be dropped before.
    pub(super) runtime: Runtime,
}

/// Training state saved on the server.
pub(super) struct SavedServerState {
    /// Path on the server.
    pub(super) path: String,
    /// Whether a checkpoint refers to it.
    pub(super) in_checkpoint: bool,
    /// Local copy of its adapter, if downloaded for a pool.
    pub(super) adapter_dir: Option<PathBuf>,
}

/// Mutable state of a session.
pub(super) struct SessionState {
    /// `None` only during a restore.
    pub(super) model: Option<RemoteModel>,
    /// The saved state before `replay_log`.
    pub(super) saved: Option<SavedServerState>,
    pub(super) replay_log: Vec<ReplayEntry>,
    /// Whether a gradient is pending.
    pub(super) pending: bool,
    /// Whether the first step has verified that the model's slot had no stale gradient; see `stale_gradient`.
    pub(super) first_step_verified: bool,
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) consecutive_skips: u32,
    pub(super) versions: BTreeMap<WeightsName, WeightVersion>,
    /// Names on the server are used only once.
    pub(super) name_counter: u64,
    pub(super) tag: String,
}

impl SessionState {
    fn new(model: RemoteModel) -> Self {
        SessionState {
            model: Some(model),
            saved: None,
            replay_log: Vec::new(),
            pending: false,
            first_step_verified: false,
            steps: 0,
            skipped: 0,
            consecutive_skips: 0,
            versions: BTreeMap::new(),
            name_counter: 0,
            tag: unique_tag(),
        }
    }

    /// A name never used on the server.
    pub(super) fn unique_name(&mut self, what: &str) -> String {
        self.name_counter += 1;
        format!("{what}-{}-{}", self.tag, self.name_counter)
    }
}

impl TrainingSession {
    /// Creates a session with a new adapter on the server.
    pub(super) fn new(
        settings: TinkerSettings,
        client: TinkerClient,
        pool: Option<Arc<VllmPool>>,
        runtime: Runtime,
    ) -> Result<Self> {
        let model = runtime.block_on(client.create_model(&settings.base_model, settings.lora_rank, settings.seed))?;
        let state = Mutex::new(SessionState::new(model));
        Ok(TrainingSession { settings, client, pool, registry: Arc::default(), state, runtime })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`; if the server lost the model, restores it and retries.
    pub(super) fn with_restore<T>(
        &self,
        state: &mut SessionState,
        work: impl AsyncFn(&RemoteModel) -> TinkerResult<T>,
    ) -> Result<T> {
        let mut first = None;
        for _ in 0..MAX_RESTORES {
            let model = state.model.as_ref().ok_or_else(|| self.client.http.error("the model is lost"))?;
            match self.runtime.block_on(work(model)) {
                Ok(done) => return Ok(done),
                Err(TinkerError::Other(e)) => return Err(e),
                Err(TinkerError::ModelLost(problem)) => {
                    self.restore_model(state, Some(&format!("lost the model ({problem})")))?;
                    first.get_or_insert(problem);
                }
            }
        }
        let first = first.unwrap_or_default();
        Err(self.client.http.error(format!("the server lost the model {MAX_RESTORES} times in a row: {first}")))
    }

    /// Runs `work` and checks its result with `find_invalid`. If it is invalid, neither the weights nor the gradient
    /// can be trusted: the server goes back to the saved state and the work is repeated once. A second failure ends
    /// training before any step.
    pub(super) fn with_finite_check<T>(
        &self,
        state: &mut SessionState,
        what: &str,
        work: impl AsyncFn(&RemoteModel) -> TinkerResult<T>,
        find_invalid: impl Fn(&T) -> Option<String>,
    ) -> Result<T> {
        let done = self.with_restore(state, &work)?;
        let Some(first) = find_invalid(&done) else { return Ok(done) };
        self.restore_model(state, Some(&format!("returned {first} for {what}, which was discarded")))?;
        let done = self.with_restore(state, &work)?;
        let Some(last) = find_invalid(&done) else { return Ok(done) };
        // Prevents a step with the invalid state.
        if let Some(model) = state.model.take() {
            self.runtime.block_on(self.client.unload_model(model));
        }
        let second = if first == last { "the same".to_owned() } else { last };
        let problem = format!(
            "{what}: {first}, and {second} again after restoring the last saved state. No step was taken with it and \
             checkpoints are unchanged"
        );
        Err(self.client.http.error(problem).with_hints(&[Hint::ResumeRun, Hint::LowerLearningRate]))
    }

    /// Gives the server a new model in the state of this session, and logs the server's failure, if any.
    pub(super) fn restore_model(&self, state: &mut SessionState, failure: Option<&str>) -> Result<()> {
        if let Some(failure) = failure {
            let from = if state.saved.is_some() { "its last saved state" } else { "the initial state" };
            let (address, replayed) = (self.client.http.address(), state.replay_log.len());
            self.client
                .http
                .status_log
                .log(format!("{address} {failure}; restoring {from} and replaying {replayed} requests"));
        }
        let old = state.model.take();
        let restored = self.runtime.block_on(async {
            if let Some(old) = old {
                self.client.unload_model(old).await;
            }
            let mut last = String::new();
            for retries_left in (0..MAX_RESTORES).rev() {
                match self.restore_once(state, retries_left > 0).await {
                    Ok(model) => return Ok(model),
                    Err(TinkerError::Other(e)) => return Err(e),
                    Err(TinkerError::ModelLost(problem)) => last = problem,
                }
            }
            Err(self.client.http.error(format!("the server loses the model during the restore: {last}")))
        })?;
        state.model = Some(restored);
        // A replayed step with an equal norm contains no stale gradient.
        state.first_step_verified = state.replay_log.iter().any(|entry| matches!(entry, ReplayEntry::Step(..)));
        Ok(())
    }

    async fn restore_once(&self, state: &SessionState, may_retry: bool) -> TinkerResult<RemoteModel> {
        let s = &self.settings;
        let model = self.client.create_model(&s.base_model, s.lora_rank, s.seed).await?;
        match self.replay(&model, state, may_retry).await {
            Ok(()) => Ok(model),
            Err(error) => {
                // Slots are few, and the next attempt needs one.
                self.client.unload_model(model).await;
                Err(error)
            }
        }
    }

    /// Loads the saved state into a new model and replays the log. With `may_retry`, a different first step or
    /// gradient, as caused by a stale gradient in the slot, causes another attempt.
    async fn replay(&self, model: &RemoteModel, state: &SessionState, may_retry: bool) -> TinkerResult<()> {
        if let Some(saved) = &state.saved {
            self.client.load_state(model, &saved.path).await?;
        }
        let reproducible = self.settings.backend.is_reproducible();
        let (mut close, address) = (None, self.client.http.address());
        let mut check_slot = may_retry && self.settings.backend.shares_gradient_slots();
        let mut compare = |what: &'static str, result: ReplayMatch| match result {
            ReplayMatch::Same => Ok(()),
            ReplayMatch::Close(by) => {
                close.get_or_insert((what, by));
                Ok(())
            }
            ReplayMatch::Different(by) => {
                let text = format!("replayed {what} differs by {by:.2e}; the server does not have the saved state");
                Err(self.client.http.error(text))
            }
        };
        for entry in &state.replay_log {
            match entry {
                ReplayEntry::Gradient(gradient, before) => {
                    let request = gradient.request(&model.id, model.next_seq());
                    let output = self.client.forward_backward(model, &request).await?;
                    let logprobs = output.field("logprobs").map_err(|e| self.client.http.error(e))?;
                    let result = ReplayMatch::of_logprobs(&logprobs, before, reproducible);
                    if let (true, ReplayMatch::Different(by)) = (check_slot, result) {
                        let problem = format!("a replayed gradient differs by {by:.2e}");
                        self.client.http.status_log.log(format!("{address}: {problem}; retrying"));
                        return Err(TinkerError::ModelLost(problem));
                    }
                    compare("gradient", result)?;
                }
                ReplayEntry::Step(step, before) => {
                    let norm = self.client.optim_step(model, model.next_seq(), step).await?;
                    if std::mem::take(&mut check_slot) && !stale_gradient::norms_agree(norm, *before) {
                        self.client.http.status_log.log(stale_gradient::mismatch_message(address, *before, norm));
                        return Err(TinkerError::ModelLost("its first step differs from the original".to_owned()));
                    }
                    if let (Some(norm), Some(before)) = (norm, before) {
                        compare("step", ReplayMatch::of_norms(norm, *before, reproducible))?;
                    }
                }
            }
        }
        if let Some((what, by)) = close {
            self.client.http.status_log.log(format!(
                "{}: a replayed {what} differs by {by:.1e}, as expected of an engine that is not reproducible",
                self.client.http.address()
            ));
        }
        Ok(())
    }

    /// Saves the server state if it changed since the last save.
    pub(super) fn save_state(&self, state: &mut SessionState) -> Result<String> {
        if let (Some(saved), true) = (&state.saved, state.replay_log.is_empty()) {
            return Ok(saved.path.clone());
        }
        if state.pending {
            return Err(Error::invalid("save", "a gradient is pending; call optim_step first"));
        }
        let name = state.unique_name("state");
        let path = self.with_restore(state, async |model| self.client.save_state(model, &name).await)?;
        let saved = SavedServerState { path: path.clone(), in_checkpoint: false, adapter_dir: None };
        if let Some(old) = state.saved.replace(saved).filter(|old| !old.in_checkpoint) {
            self.runtime.block_on(self.client.delete_checkpoint(&old.path));
        }
        state.replay_log.clear();
        Ok(path)
    }
}
