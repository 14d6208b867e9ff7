//! Execution of one meta-episode: the only code that drives a [`MetaEpisode`].

use super::timer::RolloutStage;
use crate::{Error, Result, policy::Policy};
use futures_util::FutureExt;
use mage_core::{
    EpisodeConfig, MemoryFactory, MetaEpisode, Next, Request, Trajectory, TrajectoryKey, prompt::PromptSet,
};
use mage_env::{Env, EnvSpec, Hash, Seed, Task};
use std::{panic::AssertUnwindSafe, sync::Arc};

/// Receives the progress of a meta-episode.
pub trait Observer: Sync {
    /// The meta-episode enters a stage.
    fn stage(&self, _stage: RolloutStage) {}

    /// The policy is about to receive a request.
    fn request(&self, _meta: &MetaEpisode, _request: &Request) {}

    /// The meta-episode has processed the completion of a request: after a play request, the environment has taken the
    /// action.
    fn submitted(&self, _meta: &MetaEpisode, _request: &Request) {}
}

impl Observer for () {}

/// A meta-episode that has ended. A failure is recorded in [`Trajectory::error`].
pub struct Played {
    /// The trajectory.
    pub trajectory: Trajectory,
    /// The error of the policy or of its memory, if it caused the failure. Otherwise the environment failed, or
    /// something panicked.
    pub policy_error: Option<Error>,
}

impl Played {
    /// The trajectory; an error if the policy failed. A failure of the environment or a panic stays in the trajectory.
    pub fn into_result(self) -> Result<Trajectory> {
        self.policy_error.map_or(Ok(self.trajectory), Err)
    }
}

/// Runs a meta-episode to its end. A failure or panic of the environment, the policy or the observer ends it.
pub async fn run_meta_episode(mut meta: MetaEpisode, policy: &mut dyn Policy, observer: &dyn Observer) -> Played {
    let mut policy_failed = false;
    let error = match catch_panic(drive(&mut meta, policy, observer, &mut policy_failed)).await {
        Ok(trajectory) => return Played { trajectory, policy_error: None },
        Err(e) => e,
    };
    // Embeddings belong to the memory, and the memory to the policy.
    policy_failed |= matches!(error, Error::Core(mage_core::Error::Embeddings { .. }));
    Played { trajectory: meta.fail(error.to_string()), policy_error: policy_failed.then_some(error) }
}

/// Drives a meta-episode to its end. Sets `policy_failed` before it returns an error of the policy.
async fn drive(
    meta: &mut MetaEpisode,
    policy: &mut dyn Policy,
    observer: &dyn Observer,
    policy_failed: &mut bool,
) -> Result<Trajectory> {
    loop {
        let request = match meta.advance()? {
            Next::Done(trajectory) => return Ok(*trajectory),
            Next::Request(request) => request,
        };
        observer.request(meta, &request);
        let response = policy.respond(&request, meta);
        observer.stage(RolloutStage::Sampler);
        let completion = response.await.inspect_err(|_| *policy_failed = true)?;
        observer.stage(RolloutStage::Environment);
        meta.submit(request.id, Ok(completion))?;
        observer.submitted(meta, &request);
    }
}

/// Builds and plays meta-episodes of one environment with one episode configuration.
#[derive(Clone)]
pub struct MetaEpisodeBuilder {
    env_spec: Arc<dyn EnvSpec>,
    prompts: Arc<PromptSet>,
    config: Arc<EpisodeConfig>,
    /// Memory implementation; `None` uses the memory mode of the configuration.
    memories: Option<Arc<MemoryFactory>>,
    method: Hash,
}

impl MetaEpisodeBuilder {
    /// Meta-episodes with the memory mode of the configuration.
    pub fn new(env_spec: Arc<dyn EnvSpec>, prompts: Arc<PromptSet>, config: EpisodeConfig) -> Self {
        let method = Hash::of(&config);
        MetaEpisodeBuilder { env_spec, prompts, config: Arc::new(config), memories: None, method }
    }

    /// Replaces the memory by that of a prompt method.
    #[must_use]
    pub fn with_memories(self, memories: Arc<MemoryFactory>) -> Self {
        MetaEpisodeBuilder { method: memories.method_hash(), memories: Some(memories), ..self }
    }

    /// The episode configuration.
    pub fn config(&self) -> &Arc<EpisodeConfig> {
        &self.config
    }

    /// The memory of a prompt method, if there is one.
    pub fn memories(&self) -> Option<&Arc<MemoryFactory>> {
        self.memories.as_ref()
    }

    /// Identifier of the prompt method in trajectories.
    pub fn method(&self) -> Hash {
        self.method
    }

    /// Plays one meta-episode. `seed` determines the agent's randomness; the task has a seed of its own.
    pub async fn play(&self, task: &Task, seed: Seed, policy: &mut dyn Policy, observer: &dyn Observer) -> Played {
        observer.stage(RolloutStage::Environment);
        let meta = catch_panic(async { self.build(self.env_spec.build(task)?, task, seed) }).await;
        self.run(meta, task, seed, policy, observer).await
    }

    /// Plays one meta-episode in a given environment.
    pub async fn play_in(
        &self,
        env: Box<dyn Env>,
        task: &Task,
        seed: Seed,
        policy: &mut dyn Policy,
        observer: &dyn Observer,
    ) -> Played {
        let meta = catch_panic(async { self.build(env, task, seed) }).await;
        self.run(meta, task, seed, policy, observer).await
    }

    async fn run(
        &self,
        meta: Result<MetaEpisode>,
        task: &Task,
        seed: Seed,
        policy: &mut dyn Policy,
        observer: &dyn Observer,
    ) -> Played {
        match meta {
            Ok(meta) => run_meta_episode(meta, policy, observer).await,
            Err(e) => Played { trajectory: self.failed(task, seed, e.to_string()), policy_error: None },
        }
    }

    fn build(&self, env: Box<dyn Env>, task: &Task, seed: Seed) -> Result<MetaEpisode> {
        let (task, prompts, config) = (task.clone(), Arc::clone(&self.prompts), Arc::clone(&self.config));
        let meta = match &self.memories {
            None => MetaEpisode::new(task, env, prompts, config, seed)?,
            Some(memories) => MetaEpisode::with_memory(task, env, prompts, config, memories.make(), seed)?,
        };
        Ok(meta.with_method_hash(self.method))
    }

    /// The trajectory of a meta-episode that could not start.
    pub(crate) fn failed(&self, task: &Task, seed: Seed, error: String) -> Trajectory {
        let hash = task.hash();
        let key = TrajectoryKey {
            task_set: Hash::of(&[hash]),
            task: hash,
            method: self.method,
            weights: String::new(),
            seed,
        };
        Trajectory {
            key,
            task: task.clone(),
            stopped_early: false,
            episodes: Vec::new(),
            requests: Vec::new(),
            error: Some(error),
        }
    }
}

/// Converts a panic into an error: a failure in one meta-episode must not end the others.
pub(crate) async fn catch_panic<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Panicked(text.unwrap_or("no message").to_owned()))
    })
}
