//! Concurrent rollout of meta-episodes.
//!
//! Each meta-episode is an asynchronous task on a pool of threads. The sampler batches the pending requests of all of
//! them. A trajectory depends on its seed alone, not on the other meta-episodes or the number of threads.

pub(crate) mod concurrent;
mod meta_episode;
mod timer;

pub(crate) use meta_episode::catch_panic;
pub use meta_episode::{MetaEpisodeBuilder, Observer, Played, run_meta_episode};
pub use timer::RolloutStage;

use crate::{Result, policy::ModelPolicy};
use concurrent::run_concurrently;
use mage_core::Trajectory;
use mage_env::{Seed, Task};
use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};
use timer::RolloutTimer;
use tokio::runtime::Runtime;

/// Samples meta-episodes with a model.
#[derive(Clone)]
pub struct Rollout {
    /// Builds the meta-episodes.
    pub builder: MetaEpisodeBuilder,
    /// The policy.
    pub policy: ModelPolicy,
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

/// Reports the stages of one meta-episode of a batch to its timer.
struct TimedMetaEpisode {
    timer: Arc<RolloutTimer>,
    index: usize,
}

impl Observer for TimedMetaEpisode {
    fn stage(&self, stage: RolloutStage) {
        self.timer.enter(self.index, stage);
    }
}

impl Rollout {
    /// Samples all jobs and returns their trajectories in order. A meta-episode that fails or panics is retried;
    /// after the last retry, its trajectory holds the error. A failure of the engine is an error. `on_stall` receives a
    /// status line whenever no meta-episode finishes for `stall_timeout`.
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
        let futures = jobs.iter().cloned().enumerate().map(|(index, job)| {
            let (rollout, observer) = (self.clone(), TimedMetaEpisode { timer: Arc::clone(&timer), index });
            async move { (index, rollout.play_with_retries(job, &observer).await) }
        });
        let on_finished = |finished: Vec<(usize, Result<Trajectory>)>| {
            if finished.is_empty() {
                on_stall(timer.pending());
            }
            for (index, trajectory) in finished {
                trajectories[index] = Some(trajectory?);
                done += 1;
                if done * 10 >= jobs.len() * 9 {
                    tail_from.get_or_insert_with(Instant::now);
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        runtime.block_on(run_concurrently(futures, jobs.len(), stall_timeout, |_| false, on_finished))?;
        let timing = RolloutTiming {
            wall: started.elapsed(),
            environment: timer.environment(),
            tail: tail_from.map_or(Duration::ZERO, |t| t.elapsed()),
        };
        Ok((trajectories.into_iter().flatten().collect(), timing))
    }

    async fn play_with_retries(&self, job: RolloutJob, observer: &TimedMetaEpisode) -> Result<Trajectory> {
        let mut attempt = 0;
        let trajectory = loop {
            let seed = if attempt == 0 { job.seed } else { job.seed.child("retry").at(attempt - 1) };
            let mut policy = self.policy.clone();
            let mut trajectory = self.builder.play(&job.task, seed, &mut policy, observer).await.into_result()?;
            trajectory.key.weights.clone_from(&self.policy.label);
            if trajectory.error.is_none() || attempt == u64::from(self.retries) {
                break trajectory;
            }
            attempt += 1;
        };
        observer.stage(RolloutStage::Done);
        Ok(trajectory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        recipe::Composer,
        train::{TrainContext, TrainEnv},
    };
    use mage_engine::SamplingParams;
    use mage_env::{
        Anchor, Env, EnvId, EnvInfo, EnvSpec, Observation, ParsedAction, Population, Registry, Result as EnvResult,
        Step,
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
        let rollout = context.rollout(SamplingParams::default(), "policy".to_owned(), 0);
        let task = env.population.sample_task("train", 2, Seed::new(1)).unwrap();
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
