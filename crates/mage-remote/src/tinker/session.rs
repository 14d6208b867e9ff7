//! What do whoever trains and whoever samples have in common, and how does a server that forgot get it back?
//!
//! The server's state is kept whenever weights are published; what follows is remembered here, and done again on a server that
//! comes back without it. Either of the two may be the one who notices.

use super::{
    TinkerSettings,
    client::{Done, Lost, Model, TinkerClient},
    publish::Published,
    replay_log::{Again, Entry},
    stale_gradient,
};
use crate::{VllmPool, unique_tag::unique_tag};
use mage_engine::{AdapterName, Error, Result, WeightVersion};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::runtime::Runtime;

/// A server that forgets again while it is being fed is fed this often.
pub(super) const FEEDINGS: u32 = 5;

/// What they share.
pub(super) struct Shared {
    pub(super) settings: TinkerSettings,
    pub(super) client: TinkerClient,
    /// Where samples come from; the server itself without one.
    pub(super) pool: Option<Arc<VllmPool>>,
    pub(super) published: Arc<Published>,
    state: Mutex<State>,
    /// Last: what runs on it must be gone before.
    pub(super) runtime: Runtime,
}

/// A state that the server keeps.
pub(super) struct Kept {
    /// Where it keeps it.
    pub(super) path: String,
    /// Whether a checkpoint of ours relies on it.
    pub(super) relied_on: bool,
    /// Where its adapter lies on this machine, if it was fetched for a pool.
    pub(super) adapter: Option<PathBuf>,
}

/// What changes in the course of training.
pub(super) struct State {
    /// `None` only while the server is being fed.
    pub(super) model: Option<Model>,
    /// The state before `journal`.
    pub(super) kept: Option<Kept>,
    pub(super) journal: Vec<Entry>,
    /// Whether a gradient waits for its step.
    pub(super) pending: bool,
    /// Whether the model's place is known to hold no gradient of somebody else; see `place`.
    pub(super) alone: bool,
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) consecutive_skips: u32,
    pub(super) versions: BTreeMap<AdapterName, WeightVersion>,
    /// Names on the server are used once.
    pub(super) names: u64,
    pub(super) tag: String,
}

impl State {
    fn new(model: Model) -> Self {
        State {
            model: Some(model),
            kept: None,
            journal: Vec::new(),
            pending: false,
            alone: false,
            steps: 0,
            skipped: 0,
            consecutive_skips: 0,
            versions: BTreeMap::new(),
            names: 0,
            tag: unique_tag(),
        }
    }

    /// A name that the server has never heard.
    pub(super) fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}-{}-{}", self.tag, self.names)
    }
}

impl Shared {
    /// A new adapter on the server, and all that goes with it.
    pub(super) fn new(
        settings: TinkerSettings,
        client: TinkerClient,
        pool: Option<Arc<VllmPool>>,
        runtime: Runtime,
    ) -> Result<Self> {
        let model = runtime.block_on(client.create_model(&settings.base_model, settings.rank, settings.seed))?;
        let state = Mutex::new(State::new(model));
        Ok(Shared { settings, client, pool, published: Arc::default(), state, runtime })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`; on a server that has forgotten, feeds it and does it again.
    pub(super) fn again<T>(&self, state: &mut State, work: impl AsyncFn(&Model) -> Done<T>) -> Result<T> {
        let mut first = None;
        for _ in 0..FEEDINGS {
            let model = state.model.as_ref().ok_or_else(|| self.client.wire.error("its model is lost"))?;
            match self.runtime.block_on(work(model)) {
                Ok(done) => return Ok(done),
                Err(Lost::Error(e)) => return Err(e),
                Err(Lost::Model(problem)) => {
                    self.feed(state, Some(&format!("no longer has the model ({problem})")))?;
                    first.get_or_insert(problem);
                }
            }
        }
        let first = first.unwrap_or_default();
        Err(self.client.wire.error(format!("it forgot the model {FEEDINGS} times in a row: {first}")))
    }

    /// Does `work`, whose numbers `unsound` looks at. Where they are none, neither the weights nor a gradient made from them can be
    /// trusted: the server goes back to what it kept, and does the work once more. A second time ends it, before any step.
    pub(super) fn sound<T>(
        &self,
        state: &mut State,
        what: &str,
        work: impl AsyncFn(&Model) -> Done<T>,
        unsound: impl Fn(&T) -> Option<String>,
    ) -> Result<T> {
        let done = self.again(state, &work)?;
        let Some(first) = unsound(&done) else { return Ok(done) };
        self.feed(state, Some(&format!("answered {what} with {first}, and no step was taken with it")))?;
        let done = self.again(state, &work)?;
        let Some(last) = unsound(&done) else { return Ok(done) };
        // Nobody takes a step with what it holds now.
        if let Some(model) = state.model.take() {
            self.runtime.block_on(self.client.unload(model));
        }
        let again = if first == last { "the same".to_owned() } else { last };
        Err(self.client.wire.error(format!(
            "{what}: {first}, and {again} after going back to its last kept state and doing it once more. No step was taken \
             with it, and checkpoints are as they were: go on from the last one (`mage train --resume RUN`). If it comes \
             again, lower optim.learning_rate, or look for extreme advantages and log-probabilities in that row"
        )))
    }

    /// Gives the server a model in the state this trainer is in, and says so where the server did something.
    pub(super) fn feed(&self, state: &mut State, what_it_did: Option<&str>) -> Result<()> {
        if let Some(did) = what_it_did {
            let from = if state.kept.is_some() { "its last kept state" } else { "the beginning" };
            let (address, todo) = (self.client.wire.address(), state.journal.len());
            self.client
                .wire
                .notices
                .say(format!("{address} {did}; going on from {from} and doing {todo} requests again"));
        }
        let old = state.model.take();
        let fed = self.runtime.block_on(async {
            if let Some(old) = old {
                self.client.unload(old).await;
            }
            let mut last = String::new();
            for left in (0..FEEDINGS).rev() {
                match self.feed_once(state, left > 0).await {
                    Ok(model) => return Ok(model),
                    Err(Lost::Error(e)) => return Err(e),
                    Err(Lost::Model(problem)) => last = problem,
                }
            }
            Err(self.client.wire.error(format!("it forgets the model while it is being fed: {last}")))
        })?;
        state.model = Some(fed);
        // A step that came out as it did had no more in it than it did.
        state.alone = state.journal.iter().any(|entry| matches!(entry, Entry::Step(..)));
        Ok(())
    }

    async fn feed_once(&self, state: &State, may_try_again: bool) -> Done<Model> {
        let s = &self.settings;
        let model = self.client.create_model(&s.base_model, s.rank, s.seed).await?;
        match self.do_again(&model, state, may_try_again).await {
            Ok(()) => Ok(model),
            Err(lost) => {
                // Places are few, and the next attempt needs one.
                self.client.unload(model).await;
                Err(lost)
            }
        }
    }

    /// Puts the kept state into a new model, and does what came after once more. Where it may be tried again, a first step that
    /// came out otherwise, as where somebody left a gradient in the model's place, is a reason to, and so is its gradient.
    async fn do_again(&self, model: &Model, state: &State, may_try_again: bool) -> Done<()> {
        if let Some(kept) = &state.kept {
            self.client.load_state(model, &kept.path).await?;
        }
        let reproducible = self.settings.backend.is_reproducible();
        let (mut near, address) = (None, self.client.wire.address());
        let mut wary = may_try_again && self.settings.backend.adds_up_by_place();
        let mut compare = |what: &'static str, again: Again| match again {
            Again::Same => Ok(()),
            Again::Near(by) => {
                near.get_or_insert((what, by));
                Ok(())
            }
            Again::Other(by) => {
                let text =
                    format!("{what} done again came out otherwise, by {by:.2e}; it does not have the state it kept");
                Err(self.client.wire.error(text))
            }
        };
        for entry in &state.journal {
            match entry {
                Entry::Gradient(gradient, before) => {
                    let request = gradient.request(&model.id, model.next());
                    let output = self.client.forward_backward(model, &request).await?;
                    let rows = output.rows("logprobs").map_err(|e| self.client.wire.error(e))?;
                    let again = Again::from_sequences(&rows, before, reproducible);
                    if let (true, Again::Other(by)) = (wary, again) {
                        let problem = format!("a gradient done again came out otherwise, by {by:.2e}");
                        self.client.wire.notices.say(format!("{address}: {problem}; asking once more"));
                        return Err(Lost::Model(problem));
                    }
                    compare("a gradient", again)?;
                }
                Entry::Step(step, before) => {
                    let norm = self.client.optim_step(model, model.next(), step).await?;
                    if std::mem::take(&mut wary) && !stale_gradient::agree(norm, *before) {
                        self.client.wire.notices.say(stale_gradient::suspicion(address, *before, norm));
                        return Err(Lost::Model("its first step was not what it had been".to_owned()));
                    }
                    if let (Some(norm), Some(before)) = (norm, before) {
                        compare("a step", Again::of_norms(norm, *before, reproducible))?;
                    }
                }
            }
        }
        if let Some((what, by)) = near {
            self.client.wire.notices.say(format!(
                "{}: {what} done again came out otherwise by {by:.1e}, as it may on an engine that is not reproducible",
                self.client.wire.address()
            ));
        }
        Ok(())
    }

    /// Has the server keep its state, if anything happened since it last did.
    pub(super) fn keep(&self, state: &mut State) -> Result<String> {
        if let (Some(kept), true) = (&state.kept, state.journal.is_empty()) {
            return Ok(kept.path.clone());
        }
        if state.pending {
            return Err(Error::invalid("save", "a gradient waits for its step; call optim_step first"));
        }
        let name = state.name("state");
        let path = self.again(state, async |model| self.client.save_state(model, &name).await)?;
        let kept = Kept { path: path.clone(), relied_on: false, adapter: None };
        if let Some(old) = state.kept.replace(kept).filter(|old| !old.relied_on) {
            self.runtime.block_on(self.client.forget(&old.path));
        }
        state.journal.clear();
        Ok(path)
    }
}
