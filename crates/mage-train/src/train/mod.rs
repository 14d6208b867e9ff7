//! How does a policy learn to adapt?
//!
//! Warm start, then update after update: play groups of meta-episodes, work out what every answer was worth, take a few
//! optimiser steps, show the new weights to the sampler. Everything depends on the recipe alone: kill the process at any
//! moment and [`Training::resume`] ends with the same bytes.

mod context;
mod event;
pub mod health;
pub(crate) mod length_probe;
mod metrics;
mod resource_plan;
mod resume;
pub mod samples;
pub mod transcripts;
pub mod warmstart;
mod warmstart_run;

pub(crate) use context::TrainContext;
pub use context::runtime;
pub use event::{TrainEvent, TrainOutcome};
pub use resource_plan::{ResourcePlan, longest_sequence};
pub use resume::{Resumed, changed_since};
pub use warmstart_run::warm_start;

use crate::{
    Error, Result, TaskSet,
    eval::evaluator::{EvalResult, Evaluator},
    recipe::Recipe,
    rollout::{Rollout, RolloutJob, RolloutTiming},
    run_dir::{RunDir, RunInfo, TrainProgress},
    train::health::HealthCheck,
    train::samples::{TrainingSample, batch, build_samples, class},
};
use mage_core::{EpisodeConfig, MemoryMode, Trajectory, prompt::PromptSet};
use mage_engine::{AdapterName, Loss, SamplingParams, ScoreRequest};
use mage_env::{EnvInfo, EnvSpec, Population, Seed, solvers::OracleReport};
use mage_remote::StatusLog;
use metrics::{OptimReports, add_judgement};
use rand::seq::SliceRandom;
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, task::JoinSet};

/// The name the reference is published under.
const REFERENCE: &str = "reference";

/// What a run is about, beside its recipe.
pub struct TrainEnv {
    /// Makes the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// What agents are shown.
    pub prompts: Arc<PromptSet>,
    /// Whom they meet.
    pub population: Population,
    /// The commit this program was built from, where known; a run keeps it.
    pub commit: Option<String>,
    /// Who hears what engines elsewhere are waited for.
    pub notices: StatusLog,
}

/// A training run.
pub struct Training {
    recipe: Recipe,
    setting: TrainEnv,
    env_info: EnvInfo,
    run: RunDir,
    parts: TrainContext,
    runtime: Arc<Runtime>,
    progress: TrainProgress,
    watchdog: HealthCheck,
    ceilings: Option<OracleReport>,
    /// 0: go on; 1: stop after the current step; 2: at once.
    stop: Arc<AtomicU8>,
    /// A batch gathered ahead, with `rollout.overlap`.
    ahead: Option<CollectedBatch>,
}

/// What was wrong, where not one meta-episode could be played: then there is nothing to learn from, and nothing will be.
fn nothing_played(records: &[Trajectory]) -> Option<&str> {
    let first = records.first()?.error.as_deref()?;
    records.iter().all(|r| r.error.is_some()).then_some(first)
}

/// What the best could reach on the panel, where that can be worked out.
fn ceilings(recipe: &Recipe, setting: &TrainEnv) -> Result<Option<OracleReport>> {
    Ok(setting.env_spec.oracles(&setting.population, &recipe.eval.split, recipe.eval.episodes)?)
}

/// A batch of meta-episodes and what it took.
type CollectedBatch = (Vec<Trajectory>, RolloutTiming);

impl Training {
    /// A new run in an empty directory.
    pub fn create(recipe: Recipe, setting: TrainEnv, dir: &Path, stop: Arc<AtomicU8>) -> Result<Self> {
        recipe.check()?;
        let env_info = setting.env_spec.info();
        // Whatever is wrong with the recipe shows before anything is written.
        let parts = TrainContext::new(&recipe, &setting, &env_info)?;
        let ceilings = ceilings(&recipe, &setting)?;
        let run = RunDir::create(dir, &recipe, &setting.population)?;
        Self::assemble(recipe, setting, parts, ceilings, run, TrainProgress::default(), stop)
    }

    fn assemble(
        recipe: Recipe,
        setting: TrainEnv,
        parts: TrainContext,
        ceilings: Option<OracleReport>,
        run: RunDir,
        progress: TrainProgress,
        stop: Arc<AtomicU8>,
    ) -> Result<Self> {
        let runtime = Arc::new(runtime(recipe.engine.threads)?);
        let threads = runtime.metrics().num_workers();
        run.about(&RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: setting.commit.clone(),
            seed: recipe.seed,
            engine: parts.engines.trainer.caps().engine.clone(),
            device: parts.engines.device.clone(),
            threads,
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            parameters: parts.engines.parameters,
        })?;
        let watchdog = HealthCheck::new(parts.engines.trainer.caps());
        Ok(Training {
            recipe,
            env_info: setting.env_spec.info(),
            setting,
            run,
            parts,
            runtime,
            progress,
            watchdog,
            ceilings,
            stop,
            ahead: None,
        })
    }

    /// Whether there is a seat opposite the policy for a guest.
    pub fn hosts(&self) -> bool {
        self.env_info.seats > 1
    }

    /// Where the run lives.
    pub fn path(&self) -> &Path {
        self.run.path()
    }

    /// Trains until the recipe is done or somebody asks to stop.
    pub fn run(&mut self, each: &mut dyn FnMut(TrainEvent)) -> Result<TrainOutcome> {
        let started = Instant::now();
        self.tell(
            TrainEvent::Started {
                run: self.run.path().display().to_string(),
                parameters: self.parts.engines.parameters,
                from: self.progress.update,
                updates: self.recipe.optim.updates,
                memoryless: self.ceilings.as_ref().map(|c| c.mean.memoryless.clone()),
                best_learner: self.ceilings.as_ref().map(|c| c.mean.sum.by_episode.clone()),
            },
            each,
        );
        if self.progress.metrics_bytes == 0 && self.progress.update == 0 && self.progress.before.is_none() {
            if !self.warm_up(each)? {
                return Ok(self.outcome(started, None, None));
            }
            let Some(before) = self.judge_unless_stopped(true, each)? else {
                return Ok(self.outcome(started, None, None));
            };
            self.note_best(&before);
            self.progress.before = Some(before);
            self.save(each)?;
        }
        while self.progress.update < self.recipe.optim.updates {
            if self.stop.load(Ordering::Relaxed) > 0 {
                // A batch gathered ahead belongs to weights from before: then the last checkpoint is where to go on.
                if self.ahead.is_none() {
                    self.save(each)?;
                }
                return Ok(self.outcome(started, None, None));
            }
            self.update(each)?;
        }
        // Everything is saved: whoever resumes comes here at once.
        let Some(after) = self.judge_unless_stopped(true, each)? else {
            return Ok(self.outcome(started, None, None));
        };
        let Some(blanked) = self.judge_unless_stopped(false, each)? else {
            return Ok(self.outcome(started, None, None));
        };
        self.note_best(&after);
        self.write_best()?;
        let outcome = self.outcome(started, Some(after), Some(blanked));
        self.run.result(&outcome)?;
        Ok(outcome)
    }

    fn outcome(&self, started: Instant, after: Option<EvalResult>, blanked: Option<EvalResult>) -> TrainOutcome {
        TrainOutcome {
            updates: self.progress.update,
            of: self.recipe.optim.updates,
            unit: self.env_info.unit.clone(),
            before: self.progress.before.clone(),
            after,
            blanked,
            ceilings: self.ceilings.clone(),
            best: self.progress.best,
            seconds: started.elapsed().as_secs_f64(),
        }
    }

    fn tell(&mut self, event: TrainEvent, each: &mut dyn FnMut(TrainEvent)) {
        if !matches!(event, TrainEvent::Evaluating { .. } | TrainEvent::Warmstart { .. } | TrainEvent::Updated { .. }) {
            self.run.log(&serde_json::to_string(&event).unwrap_or_default());
        }
        each(event);
    }

    /// Imitation; `false` when somebody asked to stop, in which case it starts over next time.
    fn warm_up(&mut self, each: &mut dyn FnMut(TrainEvent)) -> Result<bool> {
        let untaught = self.recipe.model.path.is_empty() || !self.recipe.warmstart.transcripts.is_empty();
        let (parts, steps) = (&mut self.parts, if untaught { self.recipe.warmstart.steps } else { 0 });
        if !parts.warm_up(&self.recipe, steps, &self.stop, each)? {
            return Ok(false);
        }
        self.parts.engines.trainer.publish(&AdapterName::new(REFERENCE))?;
        self.parts.engines.trainer.publish(&AdapterName::default())?;
        Ok(true)
    }

    fn rollout(&self, settings: &Arc<EpisodeConfig>, params: SamplingParams) -> Rollout {
        let label = format!("policy@{}", self.progress.update);
        self.parts.rollout(&self.setting, Arc::clone(settings), params, label, self.recipe.rollout.retries)
    }

    /// Plays the large panel, with or without memory; `None` when somebody asked to stop.
    fn judge_unless_stopped(&mut self, memory: bool, each: &mut dyn FnMut(TrainEvent)) -> Result<Option<EvalResult>> {
        let stop = Arc::clone(&self.stop);
        self.judge(self.recipe.eval.final_tasks, memory, &|| stop.load(Ordering::Relaxed) > 0, each)
    }

    /// Plays a panel, with or without memory; `None` when `stop` says so before the end.
    fn judge(
        &mut self,
        tasks: usize,
        memory: bool,
        stop: &dyn Fn() -> bool,
        each: &mut dyn FnMut(TrainEvent),
    ) -> Result<Option<EvalResult>> {
        let turns = self.setting.env_spec.max_turns(&self.setting.population, &self.recipe.eval.split)?;
        let mut settings = self.recipe.eval_settings(&EnvInfo { max_turns: turns, ..self.env_info.clone() });
        if !memory {
            settings.memory = MemoryMode::None;
        }
        let seed = Seed::new(self.recipe.seed).child("evaluation");
        let panel = TaskSet::new(&self.setting.population, &self.recipe.eval.split, self.env_info.seats, tasks, seed)?;
        let judge = Evaluator {
            rollout: self.rollout(&Arc::new(settings), self.recipe.eval_sampling()),
            panel,
            exact_max_states: self.recipe.exact_max_states(),
            seed,
        };
        let (mut done, mut told) = (0, Instant::now());
        let judged = judge.run(&self.runtime, stop, || {
            done += 1;
            if told.elapsed() > Duration::from_millis(200) {
                told = Instant::now();
                each(TrainEvent::Evaluating { done, of: tasks });
            }
        })?;
        if let Some(judgement) = &judged {
            let update = self.progress.update;
            self.tell(TrainEvent::Evaluated { update, memory, result: judgement.clone() }, each);
        }
        Ok(judged)
    }

    /// Whether this is the best so far.
    fn note_best(&mut self, judgement: &EvalResult) -> bool {
        let score = judgement.score.last().map_or(f64::NEG_INFINITY, |e| e.mean);
        let better = self.progress.best.is_none_or(|(_, best)| score > best);
        if better {
            self.progress.best = Some((self.progress.update, score));
        }
        better
    }

    fn write_best(&self) -> Result<()> {
        self.progress.best.map_or(Ok(()), |(update, score)| self.run.best(update, score))
    }

    fn save(&mut self, each: &mut dyn FnMut(TrainEvent)) -> Result<()> {
        let trainer = &self.parts.engines.trainer;
        self.run.checkpoint(&self.progress, |dir| Ok(trainer.save(dir)?))?;
        // Before the one that was best goes.
        self.write_best()?;
        let best = self.progress.best.map(|(update, _)| update);
        self.run.prune(self.recipe.checkpoint.keep, best, |gone| trainer.release_checkpoint(gone))?;
        let update = self.progress.update;
        self.tell(TrainEvent::Saved { update }, each);
        Ok(())
    }

    fn jobs(&self, update: u64) -> Result<Vec<RolloutJob>> {
        let r = &self.recipe.rollout;
        let seed = Seed::new(self.recipe.seed).child("update").at(update);
        let mut jobs = Vec::with_capacity(r.groups * r.group_size);
        for g in 0..r.groups {
            let group = seed.child("group").at(g as u64);
            let tasks = self.setting.population.draw_group(
                &self.recipe.env.split,
                self.env_info.seats,
                group,
                r.group_size,
                r.grouping,
            )?;
            for (m, task) in tasks.into_iter().enumerate() {
                jobs.push(RolloutJob { task, seed: group.child("agent").at(m as u64) });
            }
        }
        Ok(jobs)
    }

    /// The batch of an update, ready to be gathered on any thread.
    fn gathering(
        &self,
        update: u64,
    ) -> Result<impl FnOnce(&mut dyn FnMut(String)) -> Result<CollectedBatch> + Send + use<>> {
        let (rollout, jobs) = (self.rollout(&self.parts.settings, self.recipe.sampling()), self.jobs(update)?);
        let runtime = Arc::clone(&self.runtime);
        let patience = Duration::try_from_secs_f64(self.recipe.health.stall_timeout).unwrap_or(Duration::MAX);
        Ok(move |waiting: &mut dyn FnMut(String)| rollout.run(&runtime, &jobs, patience, waiting))
    }

    fn update(&mut self, each: &mut dyn FnMut(TrainEvent)) -> Result<()> {
        let update = self.progress.update;
        let started = Instant::now();
        let ahead = self.ahead.take();
        let gathered_ahead = ahead.is_some();
        let (records, rolled) = match ahead {
            Some(batch) => batch,
            None => self.gathering(update)?(&mut |text| self.tell(TrainEvent::Warning { text }, each))?,
        };
        if let Some(problem) = nothing_played(&records) {
            return Err(Error::Stopped(format!("no meta-episode of update {} could be played: {problem}", update + 1)));
        }
        let members = self.recipe.rollout.group_size;
        let lessons = build_samples(&records, members, &self.recipe)?;
        let loss = self.recipe.loss(update);
        let scoring = Instant::now();
        let reference = self.reference(&records, &lessons, &loss)?;
        let scored = scoring.elapsed();
        let training = Instant::now();
        let learned = if self.may_gather_ahead(update + 1) {
            let next = self.gathering(update + 1)?;
            std::thread::scope(|threads| {
                let (say, said) = std::sync::mpsc::channel();
                let next = threads.spawn(move || next(&mut |text| _ = say.send(text)));
                let learned = self.learn(update, &records, &lessons, &reference, &loss);
                // Ends when the thread does.
                said.iter().for_each(|text| self.tell(TrainEvent::Warning { text }, each));
                let gathered = next.join().map_err(|_| Error::Stopped("gathering ahead panicked".to_owned()))?;
                self.ahead = Some(gathered?);
                learned
            })?
        } else {
            self.learn(update, &records, &lessons, &reference, &loss)?
        };
        let trained = training.elapsed();
        self.parts.engines.trainer.publish(&AdapterName::default())?;
        self.progress.update = update + 1;
        self.progress.episodes += records.iter().map(|r| r.episodes.len() as u64).sum::<u64>();

        let mut metrics = self.measure(&records, &learned);
        let judged = Instant::now();
        let last = self.progress.update == self.recipe.optim.updates;
        let due = |every: u64| every > 0 && self.progress.update.is_multiple_of(every);
        let evaluate = due(self.recipe.eval.every) && !last;
        let mut checkpoint = due(self.recipe.checkpoint.every) || last;
        if evaluate && let Some(judgement) = self.judge(self.recipe.eval.tasks, true, &|| false, each)? {
            // The best is kept, so it must be there; a batch gathered ahead forbids a checkpoint here.
            if checkpoint || self.ahead.is_none() {
                checkpoint |= self.note_best(&judgement);
            }
            add_judgement(&mut metrics, &judgement);
        }
        let judging = judged.elapsed();
        if self.recipe.trajectories.every > 0 && update.is_multiple_of(self.recipe.trajectories.every) {
            self.write_trajectories(update, &records, &lessons)?;
        }
        self.run.metrics(self.progress.update, &metrics)?;
        let saving = Instant::now();
        if checkpoint {
            self.save(each)?;
        }
        let seconds = |d: Duration| d.as_secs_f64();
        let threads = self.runtime.metrics().num_workers() as f64;
        let saved = saving.elapsed();
        let other = started.elapsed().saturating_sub(rolled.wall + scored + trained + judging + saved);
        let timing = BTreeMap::from([
            ("update".to_owned(), self.progress.update as f64),
            ("total".to_owned(), seconds(started.elapsed())),
            ("rollout".to_owned(), seconds(rolled.wall)),
            ("environment".to_owned(), seconds(rolled.environment) / threads),
            ("idle".to_owned(), seconds(rolled.tail)),
            ("score".to_owned(), seconds(scored)),
            ("train".to_owned(), seconds(trained)),
            ("evaluate".to_owned(), seconds(judging)),
            ("checkpoint".to_owned(), seconds(saved)),
            ("other".to_owned(), seconds(other)),
        ]);
        self.run.timing(&timing)?;
        let texts = self.watchdog.check(&self.recipe.health, &self.signs(&metrics, &records, gathered_ahead));
        let update = self.progress.update;
        self.tell(TrainEvent::Updated { update, metrics, timing }, each);
        for text in texts {
            self.tell(TrainEvent::Warning { text }, each);
        }
        Ok(())
    }

    /// Whether the batch of update `next` may be gathered with the weights of now. Not across a checkpoint: what is gathered
    /// after one must not depend on weights from before it.
    fn may_gather_ahead(&self, next: u64) -> bool {
        self.recipe.rollout.overlap
            && next < self.recipe.optim.updates
            && !next.is_multiple_of(self.recipe.checkpoint.every)
    }

    /// The reference's log-probabilities of the answers whose divergence is charged.
    fn reference(
        &self,
        records: &[Trajectory],
        lessons: &[TrainingSample],
        loss: &Loss,
    ) -> Result<HashMap<(usize, usize), Vec<f32>>> {
        let mut out = HashMap::new();
        if !loss.needs_ref_logprobs() {
            return Ok(out);
        }
        self.runtime.block_on(async {
            let mut all = JoinSet::new();
            for lesson in lessons {
                let call = &records[lesson.record].requests[lesson.call];
                let charged = loss.kl.iter().any(|t| t.class.is_none_or(|c| c == class(call)));
                let Some(tokens) = call.completion.tokens.as_ref().filter(|t| charged && !t.response.is_empty()) else {
                    continue;
                };
                let request = samples::request_of(call, self.parts.settings.play_tokens);
                let score = ScoreRequest {
                    weights: AdapterName::new(REFERENCE),
                    tokens: [&tokens.prompt[..], &tokens.response].concat(),
                    from: tokens.prompt.len(),
                    allowed: self.parts.speech.masks(&request, &tokens.response)?,
                };
                let (sampler, place) = (Arc::clone(&self.parts.engines.sampler), (lesson.record, lesson.call));
                all.spawn(async move { sampler.score(score).await.map(|s| (place, s.logprobs)) });
            }
            while let Some(joined) = all.join_next().await {
                let (place, logprobs) = joined.map_err(|e| Error::Stopped(format!("a score was lost: {e}")))??;
                out.insert(place, logprobs);
            }
            Ok(out)
        })
    }

    /// The optimiser steps of one update.
    fn learn(
        &mut self,
        update: u64,
        records: &[Trajectory],
        lessons: &[TrainingSample],
        reference: &HashMap<(usize, usize), Vec<f32>>,
        loss: &Loss,
    ) -> Result<OptimReports> {
        let mut learned = OptimReports::default();
        for epoch in 0..self.recipe.optim.epochs {
            let mut order: Vec<usize> = (0..records.len()).collect();
            let seed = Seed::new(self.recipe.seed).child("shuffle").at(update).at(u64::from(epoch));
            order.shuffle(&mut seed.rng());
            let mut part_of = vec![0; records.len()];
            for (place, record) in order.into_iter().enumerate() {
                part_of[record] = place * self.recipe.optim.minibatches / records.len();
            }
            for part in 0..self.recipe.optim.minibatches {
                let chosen: Vec<&TrainingSample> = lessons.iter().filter(|l| part_of[l.record] == part).collect();
                if chosen.is_empty() {
                    continue;
                }
                let forest = batch(
                    records,
                    &chosen,
                    reference,
                    loss.needs_ref_logprobs(),
                    &self.parts.speech,
                    self.parts.settings.play_tokens,
                    self.recipe.loss.aggregation,
                )?;
                let report = self.parts.engines.trainer.forward_backward(&forest, loss)?;
                let step = self.recipe.optim_step(self.progress.steps);
                let taken = self.parts.engines.trainer.optim_step(&step)?;
                self.progress.steps += 1;
                learned.note(report, taken, step.learning_rate);
            }
        }
        Ok(learned)
    }

    fn write_trajectories(&self, update: u64, records: &[Trajectory], lessons: &[TrainingSample]) -> Result<()> {
        let members = self.recipe.rollout.group_size;
        let groups = (self.recipe.rollout.groups as f64 * self.recipe.trajectories.fraction).ceil() as usize;
        let kept = (groups * members).min(records.len());
        let mut learned: Vec<Vec<serde_json::Value>> = vec![Vec::new(); kept];
        for l in lessons.iter().filter(|l| l.record < kept) {
            learned[l.record].push(serde_json::json!({
                "call": l.call, "reward": l.reward, "return": l.return_to_go, "advantage": l.advantage,
            }));
        }
        self.run.episodes(update, records[..kept].iter().zip(learned.into_iter().map(serde_json::Value::from)))
    }
}
