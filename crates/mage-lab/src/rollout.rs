//! How are thousands of meta-episodes played at once?
//!
//! Each is a task of its own that waits for nobody: it asks the sampler, which answers whoever is there in one batch, and
//! goes on with its environment on a pool of threads. What it does depends on its seed alone, so that the company it
//! keeps and the number of threads change nothing.

use crate::{
    Error, Result,
    speech::{Speech, call_seed},
};
use mage_core::{EpisodeRecord, MetaEpisode, Next, RecordKey, Settings, prompt::PromptSet};
use mage_engine::{AdapterName, Sampler, SamplingParams};
use mage_env::{EnvFactory, Hash, Seed, Task};
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinSet};

/// Plays meta-episodes with a model.
#[derive(Clone)]
pub struct Rollout {
    /// Makes the environments.
    pub factory: Arc<dyn EnvFactory>,
    /// What the agent is shown.
    pub prompts: Arc<PromptSet>,
    /// How meta-episodes are played.
    pub settings: Arc<Settings>,
    /// Turns calls into tokens.
    pub speech: Arc<Speech>,
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
pub struct Job {
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
    /// comes back with its error.
    pub fn run(
        &self,
        runtime: &Runtime,
        jobs: &[Job],
        mut each: impl FnMut(),
    ) -> Result<(Vec<EpisodeRecord>, RolloutTiming)> {
        let started = Instant::now();
        let busy = Arc::new(AtomicU64::new(0));
        let (mut tail_from, mut done) = (None, 0);
        let mut records: Vec<Option<EpisodeRecord>> = vec![None; jobs.len()];
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for (i, job) in jobs.iter().cloned().enumerate() {
                let (rollout, busy) = (self.clone(), Arc::clone(&busy));
                all.spawn(async move { (i, rollout.play_with_refills(job, &busy).await) });
            }
            while let Some(joined) = all.join_next().await {
                let (i, record) = joined.map_err(|e| Error::Stopped(format!("a meta-episode was lost: {e}")))?;
                records[i] = Some(record?);
                done += 1;
                each();
                if done * 10 >= jobs.len() * 9 {
                    tail_from.get_or_insert_with(Instant::now);
                }
            }
            Ok::<(), Error>(())
        })?;
        let timing = RolloutTiming {
            wall: started.elapsed(),
            environment: Duration::from_nanos(busy.load(Ordering::Relaxed)),
            tail: tail_from.map_or(Duration::ZERO, |t| t.elapsed()),
        };
        Ok((records.into_iter().flatten().collect(), timing))
    }

    async fn play_with_refills(&self, job: Job, busy: &AtomicU64) -> Result<EpisodeRecord> {
        let mut record = self.play(&job.task, job.seed, busy, |_, _| ()).await?;
        for again in 0..self.refills {
            if record.error.is_none() {
                break;
            }
            record = self.play(&job.task, job.seed.child("again").at(u64::from(again)), busy, |_, _| ()).await?;
        }
        Ok(record)
    }

    /// Plays one meta-episode; `look` sees every call before it is answered. What goes wrong in the environment is in
    /// the record; an engine that fails is an error.
    pub(crate) async fn play(
        &self,
        task: &Task,
        seed: Seed,
        busy: &AtomicU64,
        mut look: impl FnMut(&MetaEpisode, &mage_core::Call),
    ) -> Result<EpisodeRecord> {
        let clock = |from: Instant| busy.fetch_add(from.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let started = Instant::now();
        let env = guard(|| Ok(self.factory.build(task)?));
        let meta = env.and_then(|env| {
            let (prompts, settings) = (Arc::clone(&self.prompts), Arc::clone(&self.settings));
            Ok(MetaEpisode::new(task.clone(), env, prompts, settings, seed)?)
        });
        let mut meta = match meta {
            Ok(meta) => meta,
            Err(e) => return Ok(self.failed(task, seed, e.to_string())),
        };
        clock(started);
        loop {
            let started = Instant::now();
            let next = guard(|| Ok(meta.advance()?));
            let call = match next {
                Ok(Next::Done(record)) => {
                    clock(started);
                    return Ok(EpisodeRecord { key: self.key(task, seed), ..*record });
                }
                Ok(Next::Call(call)) => call,
                Err(e) => return Ok(self.failed(task, seed, e.to_string())),
            };
            look(&meta, &call);
            let mut request = self.speech.request(&call.request, &self.params, call_seed(&call))?;
            request.weights = self.weights.clone();
            let prompt = request.prompt.clone();
            clock(started);
            let sample = self.sampler.sample(request).await?;
            let started = Instant::now();
            let answer = self.speech.answer(prompt, sample, &self.label)?;
            if let Err(e) = guard(|| Ok(meta.answer(call.id, Ok(answer))?)) {
                return Ok(self.failed(task, seed, e.to_string()));
            }
            clock(started);
        }
    }

    fn key(&self, task: &Task, seed: Seed) -> RecordKey {
        RecordKey {
            panel: Hash::of(&[task.hash()]),
            task: task.hash(),
            method: Hash::of(&*self.settings),
            weights: self.label.clone(),
            seed,
        }
    }

    fn failed(&self, task: &Task, seed: Seed, error: String) -> EpisodeRecord {
        EpisodeRecord {
            key: self.key(task, seed),
            task: task.clone(),
            stopped_early: false,
            episodes: Vec::new(),
            calls: Vec::new(),
            error: Some(error),
        }
    }
}

/// An environment that panics has failed; it does not take the run with it.
fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Stopped(format!("the environment panicked: {}", text.unwrap_or("without a word"))))
    })
}
