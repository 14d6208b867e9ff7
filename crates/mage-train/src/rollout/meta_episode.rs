//! Execution of one meta-episode: the only code that drives a [`MetaEpisode`].

use super::timer::RolloutStage;
use crate::{Error, Result, policy::Policy};
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
    /// The error of the policy or of its memory, if it caused the failure. Otherwise the environment failed.
    pub policy_error: Option<Error>,
}

impl Played {
    /// The trajectory; an error if the policy failed. A failure of the environment stays in the trajectory.
    pub fn into_result(self) -> Result<Trajectory> {
        self.policy_error.map_or(Ok(self.trajectory), Err)
    }
}

/// Runs a meta-episode to its end. A failure or panic of the environment and a failure of the policy end it.
pub async fn run_meta_episode(mut meta: MetaEpisode, policy: &mut dyn Policy, observer: &dyn Observer) -> Played {
    loop {
        let request = match catch_panic(|| Ok(meta.advance()?)) {
            Ok(Next::Done(trajectory)) => return Played { trajectory: *trajectory, policy_error: None },
            Ok(Next::Request(request)) => request,
            Err(e) => return failed(meta, e),
        };
        observer.request(&meta, &request);
        let response = catch_panic(|| Ok(policy.respond(&request, &meta)));
        let completion = match response {
            Ok(response) => {
                observer.stage(RolloutStage::Sampler);
                let completion = response.await;
                observer.stage(RolloutStage::Environment);
                completion
            }
            Err(e) => Err(e),
        };
        let completion = match completion {
            Ok(completion) => completion,
            Err(e) => return Played { trajectory: meta.fail(e.to_string()), policy_error: Some(e) },
        };
        if let Err(e) = catch_panic(|| Ok(meta.submit(request.id, Ok(completion))?)) {
            return failed(meta, e);
        }
        observer.submitted(&meta, &request);
    }
}

/// Ends a meta-episode after an error of the environment or of the memory, which belongs to the policy.
fn failed(mut meta: MetaEpisode, error: Error) -> Played {
    let trajectory = meta.fail(error.to_string());
    let is_memory_error = matches!(error, Error::Core(mage_core::Error::Embeddings { .. }));
    Played { trajectory, policy_error: is_memory_error.then_some(error) }
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
        match catch_panic(|| Ok(self.env_spec.build(task)?)) {
            Ok(env) => self.play_in(env, task, seed, policy, observer).await,
            Err(e) => Played { trajectory: self.failed(task, seed, e.to_string()), policy_error: None },
        }
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
        match self.build(env, task, seed) {
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
    fn failed(&self, task: &Task, seed: Seed, error: String) -> Trajectory {
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

/// Converts a panic of the environment or of a scripted agent into an error.
fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Stopped(format!("the environment or the scripted agent panicked: {}", text.unwrap_or("no message"))))
    })
}
