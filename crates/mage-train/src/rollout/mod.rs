//! How are thousands of meta-episodes played at once?
//!
//! Each is a task of its own that waits for nobody: it asks the sampler, which answers whoever is there in one batch, and
//! goes on with its environment on a pool of threads. What it does depends on its seed alone, so that the company it
//! keeps and the number of threads change nothing.

mod timer;

use crate::{
    Error, Result,
    policy::codec::{PromptCodec, call_seed},
};
use mage_core::{EpisodeConfig, MetaEpisode, Next, Trajectory, TrajectoryKey, prompt::PromptSet};
use mage_engine::{AdapterName, Sampler, SamplingParams};
use mage_env::{Env, EnvSpec, Hash, Seed, Task};
use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use timer::{RolloutStage, RolloutTimer};
use tokio::{runtime::Runtime, task::JoinSet};

/// Plays meta-episodes with a model.
#[derive(Clone)]
pub struct Rollout {
    /// Makes the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// What the agent is shown.
    pub prompts: Arc<PromptSet>,
    /// How meta-episodes are played.
    pub settings: Arc<EpisodeConfig>,
    /// The settings' hash, for the records.
    pub method: Hash,
    /// Turns calls into tokens.
    pub speech: Arc<PromptCodec>,
    /// Answers.
    pub sampler: Arc<dyn Sampler>,
    /// How answers are drawn.
    pub params: SamplingParams,
    /// The weights that answer.
    pub weights: AdapterName,
    /// What records call them.
    pub label: String,
    /// How often a meta-episode is tried again when its environment fails.
    pub refills: u32,
}

/// One meta-episode to play.
#[derive(Clone, Debug)]
pub struct RolloutJob {
    /// The task.
    pub task: Task,
    /// The agent's own luck.
    pub seed: Seed,
}

/// Where the time of a batch went.
#[derive(Clone, Copy, Debug, Default)]
pub struct RolloutTiming {
    /// From the first to the last meta-episode.
    pub wall: Duration,
    /// Spent in environments, prompts and parsing, summed over threads.
    pub environment: Duration,
    /// From the moment nine tenths had finished until the last one had: machines stand idle then.
    pub tail: Duration,
}

impl Rollout {
    /// Plays all jobs; records come back in their order. A meta-episode whose environment fails is tried again, and then
    /// comes back with its error. Whenever none ends for as long as `patience`, `waiting` hears for what.
    pub fn run(
        &self,
        runtime: &Runtime,
        jobs: &[RolloutJob],
        patience: Duration,
        mut waiting: impl FnMut(String),
    ) -> Result<(Vec<Trajectory>, RolloutTiming)> {
        let started = Instant::now();
        let meter = Arc::new(RolloutTimer::new(jobs.len()));
        let (mut tail_from, mut done) = (None, 0);
        let mut records: Vec<Option<Trajectory>> = vec![None; jobs.len()];
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for (i, job) in jobs.iter().cloned().enumerate() {
                let (rollout, meter) = (self.clone(), Arc::clone(&meter));
                all.spawn(async move { (i, rollout.play_with_refills(job, &meter, i).await) });
            }
            loop {
                let joined = match tokio::time::timeout(patience, all.join_next()).await {
                    Err(_) => {
                        waiting(meter.waiting());
                        continue;
                    }
                    Ok(None) => break,
                    Ok(Some(joined)) => joined,
                };
                let (i, record) = joined.map_err(|e| Error::Stopped(format!("a meta-episode was lost: {e}")))?;
                records[i] = Some(record?);
                done += 1;
                if done * 10 >= jobs.len() * 9 {
                    tail_from.get_or_insert_with(Instant::now);
                }
            }
            Ok::<(), Error>(())
        })?;
        let timing = RolloutTiming {
            wall: started.elapsed(),
            environment: meter.environment(),
            tail: tail_from.map_or(Duration::ZERO, |t| t.elapsed()),
        };
        Ok((records.into_iter().flatten().collect(), timing))
    }

    async fn play_with_refills(&self, job: RolloutJob, meter: &RolloutTimer, i: usize) -> Result<Trajectory> {
        let stage = |s| meter.enter(i, s);
        let mut record = self.play(&job.task, job.seed, stage, |_, _| ()).await?;
        for again in 0..self.refills {
            if record.error.is_none() {
                break;
            }
            record = self.play(&job.task, job.seed.child("again").at(u64::from(again)), stage, |_, _| ()).await?;
        }
        stage(RolloutStage::Done);
        Ok(record)
    }

    /// Plays one meta-episode; `look` sees every call before it is answered, `stage` hears what it is at. What goes wrong in
    /// the environment is in the record; an engine that fails is an error.
    pub(crate) async fn play(
        &self,
        task: &Task,
        seed: Seed,
        stage: impl Fn(RolloutStage),
        look: impl FnMut(&MetaEpisode, &mage_core::Request),
    ) -> Result<Trajectory> {
        stage(RolloutStage::Environment);
        match guard(|| Ok(self.env_spec.build(task)?)) {
            Ok(env) => self.play_in(env, task, seed, stage, look).await,
            Err(e) => Ok(self.failed(task, seed, e.to_string())),
        }
    }

    /// The same in an environment that is there already.
    pub(crate) async fn play_in(
        &self,
        env: Box<dyn Env>,
        task: &Task,
        seed: Seed,
        stage: impl Fn(RolloutStage),
        mut look: impl FnMut(&MetaEpisode, &mage_core::Request),
    ) -> Result<Trajectory> {
        let (prompts, settings) = (Arc::clone(&self.prompts), Arc::clone(&self.settings));
        let mut meta = match guard(|| {
            Ok(MetaEpisode::new(task.clone(), env, prompts, settings, seed)?.with_method_hash(self.method))
        }) {
            Ok(meta) => meta,
            Err(e) => return Ok(self.failed(task, seed, e.to_string())),
        };
        loop {
            let call = match guard(|| Ok(meta.advance()?)) {
                Ok(Next::Done(mut record)) => {
                    record.key.weights.clone_from(&self.label);
                    return Ok(*record);
                }
                Ok(Next::Request(call)) => call,
                Err(e) => return Ok(self.failed(task, seed, e.to_string())),
            };
            look(&meta, &call);
            let mut request = self.speech.request(&call.body, &self.params, call_seed(&call))?;
            request.weights = self.weights.clone();
            let prompt = request.prompt.clone();
            stage(RolloutStage::Sampler);
            let sample = self.sampler.sample(request).await?;
            stage(RolloutStage::Environment);
            let answer = self.speech.answer(prompt, sample, &self.label)?;
            if let Err(e) = guard(|| Ok(meta.submit(call.id, Ok(answer))?)) {
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

/// An environment that panics has failed; it does not take the run with it.
pub(crate) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Stopped(format!("the environment panicked: {}", text.unwrap_or("without a word"))))
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

    /// Kuhn poker at a table where somebody thinks for long.
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
    fn a_slow_environment_is_named() {
        let registry = Registry::builtin();
        let env_spec: Arc<dyn EnvSpec> = Arc::new(SlowEnvSpec(Arc::clone(registry.get("kuhn").unwrap())));
        let mut composer = Composer::new();
        composer.add("kuhn").unwrap();
        composer.set("warmstart.expert=random").unwrap();
        composer.set("engine.device=cpu").unwrap();
        let recipe = composer.finish().unwrap();
        let prompts = mage_core::prompt::PromptLibrary::builtin().get("kuhn").unwrap();
        let setting = TrainEnv {
            population: env_spec.default_population(),
            prompts,
            env_spec,
            commit: None,
            notices: Default::default(),
        };
        let env_info = setting.env_spec.info();
        let parts = TrainContext::new(&recipe, &setting, &env_info).unwrap();
        let settings = Arc::clone(&parts.settings);
        let rollout = parts.rollout(&setting, settings, SamplingParams::default(), "policy".to_owned(), 0);
        let task = setting.population.draw("train", 2, Seed::new(1)).unwrap();
        let jobs = [RolloutJob { task, seed: Seed::new(2) }];
        let runtime = crate::train::runtime(2).unwrap();
        let mut heard = Vec::new();
        let (records, timing) =
            rollout.run(&runtime, &jobs, Duration::from_millis(100), |text| heard.push(text)).unwrap();
        assert!(records[0].error.is_none());
        assert!(timing.environment >= Duration::from_millis(1200), "three episodes of at least a turn: {timing:?}");
        assert!(heard.iter().any(|t| t.starts_with("waiting for 1 of 1 meta-episodes: 1 for their environment since")));
    }
}
