//! The training loop: warm start, then updates of rollout, advantage estimation, optimisation and publication of
//! weights.
//!
//! The recipe alone determines the result. A process may be killed at any moment; [`Training::resume`] continues from
//! the last checkpoint and ends with the same bytes.

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
    train::samples::{TrainingSample, build_batch, build_samples, token_class},
};
use mage_core::{EpisodeConfig, MemoryMode, Trajectory, prompt::PromptSet};
use mage_engine::{Loss, SamplingParams, ScoreRequest, WeightsName};
use mage_env::{EnvInfo, EnvSpec, Population, Seed, solvers::OracleReport};
use mage_remote::StatusLog;
use metrics::{OptimReports, add_eval_metrics};
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

/// Name under which the reference policy is published.
const REFERENCE: &str = "reference";

/// Minimum interval between progress events of an evaluation.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The environment of a run and everything else that is not in its recipe.
pub struct TrainEnv {
    /// Builds the environments.
    pub env_spec: Arc<dyn EnvSpec>,
    /// Prompt templates.
    pub prompts: Arc<PromptSet>,
    /// Opponents and options.
    pub population: Population,
    /// Commit of this build, if known; recorded in the run directory.
    pub commit: Option<String>,
    /// Receives status messages of engines.
    pub status_log: StatusLog,
}

/// A training run.
pub struct Training {
    recipe: Recipe,
    env: TrainEnv,
    env_info: EnvInfo,
    run_dir: RunDir,
    context: TrainContext,
    runtime: Arc<Runtime>,
    progress: TrainProgress,
    health: HealthCheck,
    ceilings: Option<OracleReport>,
    /// 0: continue; 1: stop after the current step; 2: stop at once.
    stop: Arc<AtomicU8>,
    /// Batch of the next update, collected ahead with `rollout.overlap`.
    next_batch: Option<CollectedBatch>,
}

/// Trajectories of an update and the time that the rollout took.
type CollectedBatch = (Vec<Trajectory>, RolloutTiming);

/// The first error if every meta-episode of a batch failed.
fn error_if_all_failed(trajectories: &[Trajectory]) -> Option<&str> {
    let first = trajectories.first()?.error.as_deref()?;
    trajectories.iter().all(|t| t.error.is_some()).then_some(first)
}

/// Score ceilings on the evaluation split, if they are computable.
fn ceilings(recipe: &Recipe, env: &TrainEnv) -> Result<Option<OracleReport>> {
    Ok(env.env_spec.oracles(&env.population, &recipe.eval.split, recipe.eval.episodes)?)
}

impl Training {
    /// Starts a new run in an empty directory.
    pub fn create(recipe: Recipe, env: TrainEnv, dir: &Path, stop: Arc<AtomicU8>) -> Result<Self> {
        recipe.check()?;
        let env_info = env.env_spec.info();
        // An invalid recipe fails here, before anything is written.
        let context = TrainContext::new(&recipe, &env, &env_info)?;
        let ceilings = ceilings(&recipe, &env)?;
        let run_dir = RunDir::create(dir, &recipe, &env.population)?;
        Self::assemble(recipe, env, context, ceilings, run_dir, TrainProgress::default(), stop)
    }

    fn assemble(
        recipe: Recipe,
        env: TrainEnv,
        context: TrainContext,
        ceilings: Option<OracleReport>,
        run_dir: RunDir,
        progress: TrainProgress,
        stop: Arc<AtomicU8>,
    ) -> Result<Self> {
        let runtime = Arc::new(runtime(recipe.engine.threads)?);
        let threads = runtime.metrics().num_workers();
        run_dir.write_info(&RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env.commit.clone(),
            seed: recipe.seed,
            engine: context.engines.trainer.caps().engine.clone(),
            device: context.engines.device.clone(),
            threads,
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            parameters: context.engines.parameters,
        })?;
        let health = HealthCheck::new(context.engines.trainer.caps());
        Ok(Training {
            recipe,
            env_info: env.env_spec.info(),
            env,
            run_dir,
            context,
            runtime,
            progress,
            health,
            ceilings,
            stop,
            next_batch: None,
        })
    }

    /// Whether a person can play against the policy.
    pub fn has_opponent_seat(&self) -> bool {
        self.env_info.seats > 1
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        self.run_dir.path()
    }

    /// Trains until the recipe is complete or a stop is requested.
    pub fn run(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<TrainOutcome> {
        let outcome = self.run_attempt(on_event);
        if let Err(e) = &outcome {
            self.run_dir.log_failure(e);
        }
        outcome
    }

    fn run_attempt(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<TrainOutcome> {
        let started = Instant::now();
        self.emit(
            TrainEvent::Started {
                run: self.run_dir.path().display().to_string(),
                parameters: self.context.engines.parameters,
                start_update: self.progress.update,
                updates: self.recipe.optim.updates,
                memoryless: self.ceilings.as_ref().map(|c| c.mean.memoryless.clone()),
                bayes_adaptive: self.ceilings.as_ref().map(|c| c.mean.sum.by_episode.clone()),
            },
            on_event,
        );
        if self.progress.metrics_bytes == 0 && self.progress.update == 0 && self.progress.before.is_none() {
            if !self.warm_start(on_event)? {
                return Ok(self.outcome(started, None, None));
            }
            let Some(before) = self.final_evaluation(true, on_event)? else {
                return Ok(self.outcome(started, None, None));
            };
            self.update_best(&before);
            self.progress.before = Some(before);
            self.save_checkpoint(on_event)?;
        }
        while self.progress.update < self.recipe.optim.updates {
            if self.stop.load(Ordering::Relaxed) > 0 {
                // A batch collected ahead was sampled with earlier weights: the run must then resume from the last
                // checkpoint.
                if self.next_batch.is_none() {
                    self.save_checkpoint(on_event)?;
                }
                return Ok(self.outcome(started, None, None));
            }
            self.update(on_event)?;
        }
        // The last checkpoint is saved: a resumed run continues here.
        let Some(after) = self.final_evaluation(true, on_event)? else {
            return Ok(self.outcome(started, None, None));
        };
        let Some(without_memory) = self.final_evaluation(false, on_event)? else {
            return Ok(self.outcome(started, None, None));
        };
        self.update_best(&after);
        self.write_best()?;
        let outcome = self.outcome(started, Some(after), Some(without_memory));
        self.run_dir.write_result(&outcome)?;
        Ok(outcome)
    }

    fn outcome(&self, started: Instant, after: Option<EvalResult>, without_memory: Option<EvalResult>) -> TrainOutcome {
        TrainOutcome {
            updates: self.progress.update,
            total_updates: self.recipe.optim.updates,
            unit: self.env_info.unit.clone(),
            before: self.progress.before.clone(),
            after,
            without_memory,
            ceilings: self.ceilings.clone(),
            best: self.progress.best,
            seconds: started.elapsed().as_secs_f64(),
        }
    }

    /// Logs an event, unless it only reports progress, and passes it on.
    fn emit(&mut self, event: TrainEvent, on_event: &mut dyn FnMut(TrainEvent)) {
        let progress_only =
            matches!(event, TrainEvent::Evaluating { .. } | TrainEvent::Warmstart { .. } | TrainEvent::Updated { .. });
        if !progress_only {
            self.run_dir.log(&serde_json::to_string(&event).unwrap_or_default());
        }
        on_event(event);
    }

    /// Warm start and first publication. `false` if a stop was requested; the next attempt then starts over.
    fn warm_start(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<bool> {
        let needed = self.recipe.model.path.is_empty() || !self.recipe.warmstart.transcripts.is_empty();
        let steps = if needed { self.recipe.warmstart.steps } else { 0 };
        if !self.context.run_warm_start(&self.recipe, steps, &self.stop, on_event)? {
            return Ok(false);
        }
        self.context.engines.trainer.publish(&WeightsName::new(REFERENCE))?;
        self.context.engines.trainer.publish(&WeightsName::default())?;
        Ok(true)
    }

    fn rollout(&self, episode_config: &Arc<EpisodeConfig>, params: SamplingParams) -> Rollout {
        let label = format!("policy@{}", self.progress.update);
        self.context.rollout(&self.env, Arc::clone(episode_config), params, label, self.recipe.rollout.retries)
    }

    /// Evaluates on the final task set, with or without memory. `None` if a stop was requested.
    fn final_evaluation(&mut self, memory: bool, on_event: &mut dyn FnMut(TrainEvent)) -> Result<Option<EvalResult>> {
        let stop = Arc::clone(&self.stop);
        self.evaluate(self.recipe.eval.final_tasks, memory, &|| stop.load(Ordering::Relaxed) > 0, on_event)
    }

    /// Evaluates on a task set of `tasks` tasks, with or without memory. `None` if `stop` returns true before the end.
    fn evaluate(
        &mut self,
        tasks: usize,
        memory: bool,
        stop: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<Option<EvalResult>> {
        let max_turns = self.env.env_spec.max_turns(&self.env.population, &self.recipe.eval.split)?;
        let mut episode_config = self.recipe.eval_episode_config(&EnvInfo { max_turns, ..self.env_info.clone() });
        if !memory {
            episode_config.memory = MemoryMode::None;
        }
        let seed = Seed::new(self.recipe.seed).child("evaluation");
        let task_set = TaskSet::new(&self.env.population, &self.recipe.eval.split, self.env_info.seats, tasks, seed)?;
        let evaluator = Evaluator {
            rollout: self.rollout(&Arc::new(episode_config), self.recipe.eval_sampling()),
            task_set,
            exact_max_states: self.recipe.exact_max_states(),
            seed,
        };
        let (mut done, mut reported) = (0, Instant::now());
        let result = evaluator.run(&self.runtime, stop, || {
            done += 1;
            if reported.elapsed() > PROGRESS_INTERVAL {
                reported = Instant::now();
                on_event(TrainEvent::Evaluating { done, tasks });
            }
        })?;
        if let Some(result) = &result {
            let update = self.progress.update;
            self.emit(TrainEvent::Evaluated { update, memory, result: result.clone() }, on_event);
        }
        Ok(result)
    }

    /// Records a new best score; whether it was one.
    fn update_best(&mut self, result: &EvalResult) -> bool {
        let score = result.score.last().map_or(f64::NEG_INFINITY, |e| e.mean);
        let improved = self.progress.best.is_none_or(|(_, best)| score > best);
        if improved {
            self.progress.best = Some((self.progress.update, score));
        }
        improved
    }

    fn write_best(&self) -> Result<()> {
        self.progress.best.map_or(Ok(()), |(update, score)| self.run_dir.write_best(update, score))
    }

    fn save_checkpoint(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<()> {
        let trainer = &self.context.engines.trainer;
        self.run_dir.checkpoint(&self.progress, |dir| Ok(trainer.save(dir)?))?;
        // Before the previous best checkpoint is removed.
        self.write_best()?;
        let best = self.progress.best.map(|(update, _)| update);
        self.run_dir.prune(self.recipe.checkpoint.keep, best, |removed| trainer.release_checkpoint(removed))?;
        let update = self.progress.update;
        self.emit(TrainEvent::Saved { update }, on_event);
        Ok(())
    }

    /// The meta-episodes of an update, group by group.
    fn rollout_jobs(&self, update: u64) -> Result<Vec<RolloutJob>> {
        let r = &self.recipe.rollout;
        let seed = Seed::new(self.recipe.seed).child("update").at(update);
        let mut jobs = Vec::with_capacity(r.groups * r.group_size);
        for g in 0..r.groups {
            let group = seed.child("group").at(g as u64);
            let tasks = self.env.population.draw_group(
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

    /// A closure that collects the batch of an update; it may run on any thread.
    fn batch_collector(
        &self,
        update: u64,
    ) -> Result<impl FnOnce(&mut dyn FnMut(String)) -> Result<CollectedBatch> + Send + use<>> {
        let rollout = self.rollout(&self.context.episode_config, self.recipe.sampling());
        let jobs = self.rollout_jobs(update)?;
        let runtime = Arc::clone(&self.runtime);
        let stall_timeout = Duration::try_from_secs_f64(self.recipe.health.stall_timeout).unwrap_or(Duration::MAX);
        Ok(move |on_stall: &mut dyn FnMut(String)| rollout.run(&runtime, &jobs, stall_timeout, on_stall))
    }

    /// One update: rollout, advantages, reference log-probabilities, optimiser steps, publication, evaluation,
    /// checkpoint.
    fn update(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<()> {
        let update = self.progress.update;
        let started = Instant::now();
        let next_batch = self.next_batch.take();
        let collected_ahead = next_batch.is_some();
        let (trajectories, rollout_timing) = match next_batch {
            Some(batch) => batch,
            None => self.batch_collector(update)?(&mut |text| self.emit(TrainEvent::Warning { text }, on_event))?,
        };
        if let Some(problem) = error_if_all_failed(&trajectories) {
            return Err(Error::Stopped(format!("all meta-episodes of update {} failed: {problem}", update + 1)));
        }

        let samples = build_samples(&trajectories, self.recipe.rollout.group_size, &self.recipe)?;
        let loss = self.recipe.loss(update);
        let scoring_started = Instant::now();
        let reference = self.reference_logprobs(&trajectories, &samples, &loss)?;
        let scoring_time = scoring_started.elapsed();

        let training_started = Instant::now();
        let reports = if self.may_collect_ahead(update + 1) {
            let collector = self.batch_collector(update + 1)?;
            std::thread::scope(|threads| {
                let (sender, stalls) = std::sync::mpsc::channel();
                let collecting = threads.spawn(move || collector(&mut |text| _ = sender.send(text)));
                let reports = self.optimize(update, &trajectories, &samples, &reference, &loss);
                // The channel closes when the thread ends.
                stalls.iter().for_each(|text| self.emit(TrainEvent::Warning { text }, on_event));
                let batch = collecting
                    .join()
                    .map_err(|_| Error::Stopped("the rollout of the next update panicked".to_owned()))?;
                self.next_batch = Some(batch?);
                reports
            })?
        } else {
            self.optimize(update, &trajectories, &samples, &reference, &loss)?
        };
        let training_time = training_started.elapsed();
        self.context.engines.trainer.publish(&WeightsName::default())?;
        self.progress.update = update + 1;
        self.progress.episodes += trajectories.iter().map(|t| t.episodes.len() as u64).sum::<u64>();

        let mut metrics = self.update_metrics(&trajectories, &reports);
        let evaluation_started = Instant::now();
        let last = self.progress.update == self.recipe.optim.updates;
        let due = |every: u64| every > 0 && self.progress.update.is_multiple_of(every);
        let evaluate = due(self.recipe.eval.every) && !last;
        let mut checkpoint = due(self.recipe.checkpoint.every) || last;
        if evaluate && let Some(result) = self.evaluate(self.recipe.eval.tasks, true, &|| false, on_event)? {
            // The best weights need a checkpoint, which a batch collected ahead forbids here.
            if checkpoint || self.next_batch.is_none() {
                checkpoint |= self.update_best(&result);
            }
            add_eval_metrics(&mut metrics, &result);
        }
        let evaluation_time = evaluation_started.elapsed();
        if self.recipe.trajectories.every > 0 && update.is_multiple_of(self.recipe.trajectories.every) {
            self.write_trajectories(update, &trajectories, &samples)?;
        }
        self.run_dir.append_metrics(self.progress.update, &metrics)?;
        let checkpoint_started = Instant::now();
        if checkpoint {
            self.save_checkpoint(on_event)?;
        }

        let seconds = |d: Duration| d.as_secs_f64();
        let threads = self.runtime.metrics().num_workers() as f64;
        let checkpoint_time = checkpoint_started.elapsed();
        let accounted = rollout_timing.wall + scoring_time + training_time + evaluation_time + checkpoint_time;
        let other = started.elapsed().saturating_sub(accounted);
        let timing = BTreeMap::from([
            ("update".to_owned(), self.progress.update as f64),
            ("total".to_owned(), seconds(started.elapsed())),
            ("rollout".to_owned(), seconds(rollout_timing.wall)),
            ("environment".to_owned(), seconds(rollout_timing.environment) / threads),
            ("rollout_tail".to_owned(), seconds(rollout_timing.tail)),
            ("reference".to_owned(), seconds(scoring_time)),
            ("train".to_owned(), seconds(training_time)),
            ("evaluate".to_owned(), seconds(evaluation_time)),
            ("checkpoint".to_owned(), seconds(checkpoint_time)),
            ("other".to_owned(), seconds(other)),
        ]);
        self.run_dir.append_timing(&timing)?;
        let health_metrics = self.health_metrics(&metrics, &trajectories, collected_ahead);
        let warnings = self.health.check(&self.recipe.health, &health_metrics);
        let update = self.progress.update;
        self.emit(TrainEvent::Updated { update, metrics, timing }, on_event);
        for text in warnings {
            self.emit(TrainEvent::Warning { text }, on_event);
        }
        Ok(())
    }

    /// Whether the batch of update `next` may be collected with the current weights. Not across a checkpoint: a batch
    /// collected after a checkpoint must not depend on weights from before it.
    fn may_collect_ahead(&self, next: u64) -> bool {
        self.recipe.rollout.overlap
            && next < self.recipe.optim.updates
            && !next.is_multiple_of(self.recipe.checkpoint.every)
    }

    /// Log-probabilities of the reference policy for the responses with a KL penalty, by trajectory and request.
    fn reference_logprobs(
        &self,
        trajectories: &[Trajectory],
        samples: &[TrainingSample],
        loss: &Loss,
    ) -> Result<HashMap<(usize, usize), Vec<f32>>> {
        let mut logprobs_by_request = HashMap::new();
        if !loss.needs_ref_logprobs() {
            return Ok(logprobs_by_request);
        }
        self.runtime.block_on(async {
            let mut scores = JoinSet::new();
            for sample in samples {
                let record = &trajectories[sample.trajectory].requests[sample.request];
                let penalised = loss.kl.iter().any(|t| t.class.is_none_or(|c| c == token_class(record)));
                let Some(tokens) = record.completion.tokens.as_ref().filter(|t| penalised && !t.response.is_empty())
                else {
                    continue;
                };
                let request = samples::mask_request(record, self.context.episode_config.play_tokens);
                let score = ScoreRequest {
                    weights: WeightsName::new(REFERENCE),
                    tokens: [&tokens.prompt[..], &tokens.response].concat(),
                    from: tokens.prompt.len(),
                    allowed: self.context.codec.masks(&request, &tokens.response)?,
                };
                let sampler = Arc::clone(&self.context.engines.sampler);
                let key = (sample.trajectory, sample.request);
                scores.spawn(async move { sampler.score(score).await.map(|s| (key, s.logprobs)) });
            }
            while let Some(joined) = scores.join_next().await {
                let (key, logprobs) = joined
                    .map_err(|e| Error::Stopped(format!("a scoring task of the reference policy failed: {e}")))??;
                logprobs_by_request.insert(key, logprobs);
            }
            Ok(logprobs_by_request)
        })
    }

    /// The optimiser steps of one update: for every epoch, shuffled minibatches of trajectories.
    fn optimize(
        &mut self,
        update: u64,
        trajectories: &[Trajectory],
        samples: &[TrainingSample],
        reference: &HashMap<(usize, usize), Vec<f32>>,
        loss: &Loss,
    ) -> Result<OptimReports> {
        let mut reports = OptimReports::default();
        for epoch in 0..self.recipe.optim.epochs {
            let mut order: Vec<usize> = (0..trajectories.len()).collect();
            let seed = Seed::new(self.recipe.seed).child("shuffle").at(update).at(u64::from(epoch));
            order.shuffle(&mut seed.rng());
            let mut minibatch_of = vec![0; trajectories.len()];
            for (position, trajectory) in order.into_iter().enumerate() {
                minibatch_of[trajectory] = position * self.recipe.optim.minibatches / trajectories.len();
            }
            for minibatch in 0..self.recipe.optim.minibatches {
                let selected: Vec<&TrainingSample> =
                    samples.iter().filter(|s| minibatch_of[s.trajectory] == minibatch).collect();
                if selected.is_empty() {
                    continue;
                }
                let batch = build_batch(
                    trajectories,
                    &selected,
                    reference,
                    loss.needs_ref_logprobs(),
                    &self.context.codec,
                    self.context.episode_config.play_tokens,
                    self.recipe.loss.aggregation,
                )?;
                let loss_report = self.context.engines.trainer.forward_backward(&batch, loss)?;
                let step = self.recipe.optim_step(self.progress.steps);
                let step_report = self.context.engines.trainer.optim_step(&step)?;
                self.progress.steps += 1;
                reports.push(loss_report, step_report, step.learning_rate);
            }
        }
        Ok(reports)
    }

    /// Writes the trajectories of the first groups with their training samples.
    fn write_trajectories(&self, update: u64, trajectories: &[Trajectory], samples: &[TrainingSample]) -> Result<()> {
        let groups = (self.recipe.rollout.groups as f64 * self.recipe.trajectories.fraction).ceil() as usize;
        let count = (groups * self.recipe.rollout.group_size).min(trajectories.len());
        let mut by_trajectory: Vec<Vec<serde_json::Value>> = vec![Vec::new(); count];
        for s in samples.iter().filter(|s| s.trajectory < count) {
            by_trajectory[s.trajectory].push(serde_json::json!({
                "request": s.request, "reward": s.reward, "return": s.return_to_go, "advantage": s.advantage,
            }));
        }
        let samples = by_trajectory.into_iter().map(serde_json::Value::from);
        self.run_dir.write_trajectories(update, trajectories[..count].iter().zip(samples))
    }
}
