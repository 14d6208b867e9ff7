//! Concurrent rollout of meta-episodes.
//!
//! Each meta-episode is an asynchronous task on a pool of threads. The sampler batches the pending requests of all of
//! them. A trajectory depends on its seed alone, not on the other meta-episodes or the number of threads.

mod timer;

use crate::{
    Error, Result,
    policy::codec::{PromptCodec, request_seed},
};
use mage_core::{EpisodeConfig, MetaEpisode, Next, Trajectory, TrajectoryKey, prompt::PromptSet};
use mage_engine::{Sampler, SamplingParams, WeightsName};
use mage_env::{Env, EnvSpec, Hash, Seed, Task};
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use timer::{RolloutStage, RolloutTimer};
use tokio::{runtime::Runtime, task::JoinSet};

/// Samples meta-episodes with a model.
#[derive(Clone)]
pub struct Rollout {
    /// Builds the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// Prompt templates.
    pub prompts: Arc<PromptSet>,
    /// Episode configuration.
    pub episode_config: Arc<EpisodeConfig>,
    /// Hash of the episode configuration, recorded with trajectories.
    pub method: Hash,
    /// Tokenisation.
    pub codec: Arc<PromptCodec>,
    /// Samples responses.
    pub sampler: Arc<dyn Sampler>,
    /// Sampling parameters.
    pub params: SamplingParams,
    /// Weights to sample from.
    pub weights: WeightsName,
    /// Name of the weights in trajectories.
    pub label: String,
    /// Retries of a meta-episode whose environment fails.
    pub retries: u32,
}

/// A meta-episode to sample.
#[derive(Clone, Debug)]
pub struct RolloutJob {
    /// The task.
    pub task: Task,
    /// Seed of sampling.
    pub seed: Seed,
}

/// Time of a rollout.
#[derive(Clone, Copy, Debug, Default)]
pub struct RolloutTiming {
    /// Wall-clock time.
    pub wall: Duration,
    /// Time in environments, prompts and parsing, summed over threads.
    pub environment: Duration,
    /// Time from the completion of 90 % of the meta-episodes to the last one, in which devices are partly idle.
    pub tail: Duration,
}

impl Rollout {
    /// Samples all jobs and returns their trajectories in order. A meta-episode whose environment fails is retried;
    /// after the last retry, its trajectory holds the error. `on_stall` receives a status line whenever no meta-episode
    /// finishes for `stall_timeout`.
    pub fn run(
        &self,
        runtime: &Runtime,
        jobs: &[RolloutJob],
        stall_timeout: Duration,
        mut on_stall: impl FnMut(String),
    ) -> Result<(Vec<Trajectory>, RolloutTiming)> {
        let started = Instant::now();
        let timer = Arc::new(RolloutTimer::new(jobs.len()));
        let (mut tail_from, mut done) = (None, 0);
        let mut trajectories: Vec<Option<Trajectory>> = vec![None; jobs.len()];
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for (i, job) in jobs.iter().cloned().enumerate() {
                let (rollout, timer) = (self.clone(), Arc::clone(&timer));
                all.spawn(async move { (i, rollout.play_with_retries(job, &timer, i).await) });
            }
            loop {
                let joined = match tokio::time::timeout(stall_timeout, all.join_next()).await {
                    Err(_) => {
                        on_stall(timer.pending());
                        continue;
                    }
                    Ok(None) => break,
                    Ok(Some(joined)) => joined,
                };
                let (i, trajectory) = joined.map_err(|e| Error::Stopped(format!("a rollout task failed: {e}")))?;
                trajectories[i] = Some(trajectory?);
                done += 1;
                if done * 10 >= jobs.len() * 9 {
                    tail_from.get_or_insert_with(Instant::now);
                }
            }
            Ok::<(), Error>(())
        })?;
        let timing = RolloutTiming {
            wall: started.elapsed(),
            environment: timer.environment(),
            tail: tail_from.map_or(Duration::ZERO, |t| t.elapsed()),
        };
        Ok((trajectories.into_iter().flatten().collect(), timing))
    }

    async fn play_with_retries(&self, job: RolloutJob, timer: &RolloutTimer, i: usize) -> Result<Trajectory> {
        let stage = |s| timer.enter(i, s);
        let mut trajectory = self.play(&job.task, job.seed, stage, |_, _| ()).await?;
        for retry in 0..self.retries {
            if trajectory.error.is_none() {
                break;
            }
            trajectory = self.play(&job.task, job.seed.child("retry").at(u64::from(retry)), stage, |_, _| ()).await?;
        }
        stage(RolloutStage::Done);
        Ok(trajectory)
    }

    /// Samples one meta-episode. `on_request` receives every request before it is sampled, `stage` every change of
    /// stage. A failure of the environment is stored in the trajectory; a failure of the engine is an error.
    pub(crate) async fn play(
        &self,
        task: &Task,
        seed: Seed,
        stage: impl Fn(RolloutStage),
        on_request: impl FnMut(&MetaEpisode, &mage_core::Request),
    ) -> Result<Trajectory> {
        stage(RolloutStage::Environment);
        match catch_panic(|| Ok(self.env_spec.build(task)?)) {
            Ok(env) => self.play_in(env, task, seed, stage, on_request).await,
            Err(e) => Ok(self.failed(task, seed, e.to_string())),
        }
    }

    /// Samples one meta-episode in a given environment.
    pub(crate) async fn play_in(
        &self,
        env: Box<dyn Env>,
        task: &Task,
        seed: Seed,
        stage: impl Fn(RolloutStage),
        mut on_request: impl FnMut(&MetaEpisode, &mage_core::Request),
    ) -> Result<Trajectory> {
        let (prompts, episode_config) = (Arc::clone(&self.prompts), Arc::clone(&self.episode_config));
        let mut meta = match catch_panic(|| {
            Ok(MetaEpisode::new(task.clone(), env, prompts, episode_config, seed)?.with_method_hash(self.method))
        }) {
            Ok(meta) => meta,
            Err(e) => return Ok(self.failed(task, seed, e.to_string())),
        };
        loop {
            let request = match catch_panic(|| Ok(meta.advance()?)) {
                Ok(Next::Done(mut trajectory)) => {
                    trajectory.key.weights.clone_from(&self.label);
                    return Ok(*trajectory);
                }
                Ok(Next::Request(request)) => request,
                Err(e) => return Ok(self.failed(task, seed, e.to_string())),
            };
            on_request(&meta, &request);
            let mut sample_request = self.codec.request(&request.body, &self.params, request_seed(&request))?;
            sample_request.weights = self.weights.clone();
            let prompt = sample_request.prompt.clone();
            stage(RolloutStage::Sampler);
            let sample = self.sampler.sample(sample_request).await?;
            stage(RolloutStage::Environment);
            let completion = self.codec.completion(prompt, sample, &self.label)?;
            if let Err(e) = catch_panic(|| Ok(meta.submit(request.id, Ok(completion))?)) {
                return Ok(self.failed(task, seed, e.to_string()));
            }
        }
    }

    fn key(&self, task: &Task, seed: Seed) -> TrajectoryKey {
        let task = task.hash();
        TrajectoryKey { task_set: Hash::of(&[task]), task, method: self.method, weights: self.label.clone(), seed }
    }

    fn failed(&self, task: &Task, seed: Seed, error: String) -> Trajectory {
        Trajectory {
            key: self.key(task, seed),
            task: task.clone(),
            stopped_early: false,
            episodes: Vec::new(),
            requests: Vec::new(),
            error: Some(error),
        }
    }
}

/// Converts a panic of the environment into an error.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Stopped(format!("the environment panicked: {}", text.unwrap_or("no message"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        recipe::Composer,
        train::{TrainContext, TrainEnv},
    };
    use mage_env::{
        Anchor, EnvId, EnvInfo, Observation, ParsedAction, Population, Registry, Result as EnvResult, Step,
    };

    /// Kuhn poker with slow steps.
    struct SlowEnvSpec(Arc<dyn EnvSpec>);
    struct SlowEnv(Box<dyn Env>);

    impl EnvSpec for SlowEnvSpec {
        fn id(&self) -> EnvId {
            self.0.id()
        }
        fn info(&self) -> EnvInfo {
            self.0.info()
        }
        fn build(&self, task: &Task) -> EnvResult<Box<dyn Env>> {
            Ok(Box::new(SlowEnv(self.0.build(task)?)))
        }
        fn check(&self, population: &Population) -> EnvResult<()> {
            self.0.check(population)
        }
        fn default_population(&self) -> Population {
            self.0.default_population()
        }
    }

    impl Env for SlowEnv {
        fn reset(&mut self, episode: u32) -> Observation {
            self.0.reset(episode)
        }
        fn parse(&self, text: &str) -> ParsedAction {
            self.0.parse(text)
        }
        fn step(&mut self, action: &ParsedAction) -> Step {
            std::thread::sleep(Duration::from_millis(400));
            self.0.step(action)
        }
        fn legal(&self) -> Option<Vec<String>> {
            self.0.legal()
        }
        fn anchor(&self) -> Anchor {
            self.0.anchor()
        }
    }

    #[test]
    fn a_stall_in_the_environment_is_reported() {
        let registry = Registry::builtin();
        let env_spec: Arc<dyn EnvSpec> = Arc::new(SlowEnvSpec(Arc::clone(registry.get("kuhn").unwrap())));
        let mut composer = Composer::new();
        composer.add("kuhn").unwrap();
        composer.set("warmstart.expert=random").unwrap();
        composer.set("engine.device=cpu").unwrap();
        let recipe = composer.finish().unwrap();
        let prompts = mage_core::prompt::PromptLibrary::builtin().get("kuhn").unwrap();
        let env = TrainEnv {
            population: env_spec.default_population(),
            prompts,
            env_spec,
            commit: None,
            status_log: Default::default(),
        };
        let env_info = env.env_spec.info();
        let context = TrainContext::new(&recipe, &env, &env_info).unwrap();
        let episode_config = Arc::clone(&context.episode_config);
        let rollout = context.rollout(&env, episode_config, SamplingParams::default(), "policy".to_owned(), 0);
        let task = env.population.draw("train", 2, Seed::new(1)).unwrap();
        let jobs = [RolloutJob { task, seed: Seed::new(2) }];
        let runtime = crate::train::runtime(2).unwrap();
        let mut stalls = Vec::new();
        let (trajectories, timing) =
            rollout.run(&runtime, &jobs, Duration::from_millis(100), |text| stalls.push(text)).unwrap();
        assert!(trajectories[0].error.is_none());
        assert!(timing.environment >= Duration::from_millis(1200), "three episodes of at least one turn: {timing:?}");
        assert!(
            stalls.iter().any(|t| t.starts_with("waiting for 1 of 1 meta-episodes: 1 in the environment for up to"))
        );
    }
}
