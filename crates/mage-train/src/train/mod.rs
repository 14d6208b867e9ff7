//! The training loop: warm start, then updates of rollout, advantage estimation, optimisation and publication of
//! weights.
//!
//! The recipe alone determines the result. A process may be killed at any moment; [`Training::resume`] continues from
//! the last checkpoint and ends with the same bytes.

mod context;
mod env;
mod event;
pub mod health;
pub(crate) mod length_probe;
mod metrics;
mod resource_plan;
mod resume;
pub mod samples;
mod timing;
pub mod transcripts;
pub mod warmstart;
mod warmstart_run;

pub(crate) use context::TrainContext;
pub use context::runtime;
pub use env::{TrainEnv, eval_seed};
pub use event::{TrainEvent, TrainOutcome};
pub use resource_plan::{ResourcePlan, longest_sequence};
pub use resume::{Resumed, changed_since, recipe_hash};
pub use warmstart_run::warm_start;

use crate::{
    Error, Result,
    eval::{EvalResult, Evaluator},
    policy::{NamedPolicy, PolicyKind},
    recipe::Recipe,
    rollout::{RolloutJob, RolloutTiming},
    run_dir::{RunDir, RunInfo, TrainProgress},
    train::health::HealthCheck,
    train::samples::{TrainingSample, build_batch, build_samples, token_class},
    train::timing::UpdateTiming,
};
use mage_core::{MemoryMode, Trajectory};
use mage_engine::{Loss, ScoreRequest, WeightsName};
use mage_env::{EnvInfo, Seed, Task, solvers::OracleReport};
use metrics::{OptimReports, add_eval_metrics};
use rand::seq::SliceRandom;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
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

/// Number of episodes of completed meta-episodes.
fn played_episodes(trajectories: &[Trajectory]) -> u64 {
    trajectories.iter().filter(|t| t.error.is_none()).map(|t| t.episodes.len() as u64).sum()
}

/// Score ceilings on the evaluation split, if they are computable.
fn ceilings(recipe: &Recipe, env: &TrainEnv) -> Result<Option<OracleReport>> {
    Ok(env.env_spec.oracles(&env.population, &recipe.eval.split, recipe.eval.episodes)?)
}

impl Training {
    /// Starts a new run in the first of these directories that is empty or does not exist.
    pub fn create(
        recipe: Recipe,
        env: TrainEnv,
        dirs: impl IntoIterator<Item = PathBuf>,
        stop: Arc<AtomicU8>,
    ) -> Result<Self> {
        recipe.check()?;
        let env_info = env.env_spec.info();
        // An invalid recipe fails here, before anything is written.
        let context = TrainContext::new(&recipe, &env, &env_info)?;
        let ceilings = ceilings(&recipe, &env)?;
        let run_dir = RunDir::create_first(dirs, &recipe, &env.population)?;
        Self::assemble(recipe, env, context, ceilings, run_dir, TrainProgress::default(), stop)
    }

    fn assemble(
        recipe: Recipe,
        env: TrainEnv,
        context: TrainContext,
        ceilings: Option<OracleReport>,
        run_dir: RunDir,
        mut progress: TrainProgress,
        stop: Arc<AtomicU8>,
    ) -> Result<Self> {
        let hash = recipe_hash(&recipe, &env.population);
        progress.recipe = Some(hash);
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
            recipe: hash,
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
        // The last checkpoint is saved: a resumed run continues here, after a process that may have been killed while
        // it removed the previous ones.
        self.prune()?;
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

    /// Name of the current weights in trajectories.
    fn weights_label(&self) -> String {
        format!("policy@{}", self.progress.update)
    }

    /// An evaluation before the first or after the last update. `None` if a stop was requested.
    fn final_evaluation(&mut self, memory: bool, on_event: &mut dyn FnMut(TrainEvent)) -> Result<Option<EvalResult>> {
        self.evaluate(self.recipe.eval.final_tasks, memory, Arc::clone(&self.stop), on_event)
    }

    /// Evaluates on a task set of `tasks` tasks, with or without memory. `None` if `stop` requests a stop before the
    /// end.
    fn evaluate(
        &mut self,
        tasks: usize,
        memory: bool,
        stop: Arc<AtomicU8>,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<Option<EvalResult>> {
        let (recipe, env) = (&self.recipe, &self.env);
        let mut config = env.eval_episode_config(recipe, &recipe.eval.split, recipe.eval.episodes)?;
        if !memory {
            config.memory = MemoryMode::None;
        }
        let label = self.weights_label();
        let evaluator = Arc::new(Evaluator {
            builder: env.meta_episodes(config),
            policy: NamedPolicy {
                name: label.clone(),
                id: label.clone(),
                decoding: None,
                max_in_flight: tasks,
                kind: PolicyKind::Model(self.context.policy(recipe.eval_sampling(), label)),
                counter: Arc::default(),
            },
            task_set: env.eval_task_set(recipe, tasks)?,
            seed: eval_seed(recipe.seed),
            exact_max_states: recipe.eval.exact_max_states,
            policy_must_not_fail: true,
            stop,
        });
        let (mut trajectories, mut reported) = (BTreeMap::new(), Instant::now());
        let outcome = evaluator.run(self.runtime.handle(), |index, trajectory| {
            trajectories.insert(index, trajectory);
            if reported.elapsed() > PROGRESS_INTERVAL {
                reported = Instant::now();
                on_event(TrainEvent::Evaluating { done: trajectories.len(), tasks });
            }
        });
        match outcome {
            Err(Error::Interrupted) => return Ok(None),
            outcome => outcome?,
        }
        let result = EvalResult::new(trajectories.iter().map(|(i, t)| (*i, t)), recipe.eval.episodes);
        let update = self.progress.update;
        self.emit(TrainEvent::Evaluated { update, memory, result: result.clone() }, on_event);
        Ok(Some(result))
    }

    /// Records a new best score; whether it was one.
    fn update_best(&mut self, result: &EvalResult) -> bool {
        let score = result.score.last().and_then(|e| e.mean).unwrap_or(f64::NEG_INFINITY);
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
        self.prune()?;
        let update = self.progress.update;
        self.emit(TrainEvent::Saved { update }, on_event);
        Ok(())
    }

    /// Removes the checkpoints that the recipe does not keep.
    fn prune(&self) -> Result<()> {
        let (trainer, best) = (&self.context.engines.trainer, self.progress.best.map(|(update, _)| update));
        self.run_dir.prune(self.recipe.checkpoint.keep, best, |removed| trainer.release_checkpoint(removed))
    }

    /// The meta-episodes of an update, group by group. A finite set of start states is used up before one repeats.
    fn rollout_jobs(&self, update: u64) -> Result<Vec<RolloutJob>> {
        let (r, split, seats) = (&self.recipe.rollout, &self.recipe.env.split, self.env_info.seats);
        let seed = Seed::new(self.recipe.seed);
        let group_seed = |g: usize| seed.child("update").at(update).child("group").at(g as u64);
        let population = &self.env.population;
        let mut groups: Vec<Vec<Task>> = (0..r.groups)
            .map(|g| Ok(population.sample_group(split, seats, group_seed(g), r.group_size, r.grouping)?))
            .collect::<Result<_>>()?;
        let mut starts: Vec<Task> = groups.iter().filter_map(|group| group.first().cloned()).collect();
        let first = update * r.groups as u64;
        self.env.env_spec.assign_without_replacement(&mut starts, first, seed.child("deal"))?;
        let mut jobs = Vec::with_capacity(r.groups * r.group_size);
        for (g, (group, start)) in groups.iter_mut().zip(starts).enumerate() {
            for (m, task) in group.drain(..).enumerate() {
                let seed = group_seed(g).child("agent").at(m as u64);
                jobs.push(RolloutJob { task: Task { options: start.options.clone(), ..task }, seed });
            }
        }
        Ok(jobs)
    }

    /// A closure that collects the batch of an update; it may run on any thread.
    fn batch_collector(
        &self,
        update: u64,
    ) -> Result<impl FnOnce(&mut dyn FnMut(String)) -> Result<CollectedBatch> + Send + use<>> {
        let rollout = self.context.rollout(self.recipe.sampling(), self.weights_label(), self.recipe.rollout.retries);
        let jobs = self.rollout_jobs(update)?;
        let runtime = Arc::clone(&self.runtime);
        let stall_timeout = Duration::try_from_secs_f64(self.recipe.health.stall_timeout).unwrap_or(Duration::MAX);
        Ok(move |on_stall: &mut dyn FnMut(String)| rollout.run(&runtime, &jobs, stall_timeout, on_stall))
    }

    /// One update: rollout, advantages, reference log-probabilities, optimiser steps, publication, evaluation,
    /// checkpoint.
    fn update(&mut self, on_event: &mut dyn FnMut(TrainEvent)) -> Result<()> {
        let update = self.progress.update;
        let mut timing = UpdateTiming::start();
        let collected_ahead = self.next_batch.is_some();

        let (trajectories, rollout_timing) = self.collect(update, on_event)?;
        let samples = build_samples(&trajectories, self.recipe.rollout.group_size, &self.recipe)?;
        let loss = self.recipe.loss(update);
        let reference = timing.measure("reference", || self.reference_logprobs(&trajectories, &samples, &loss))?;
        let reports = timing.measure("train", || {
            self.optimize_and_collect_ahead(update, &trajectories, &samples, &reference, &loss, on_event)
        })?;
        self.context.engines.trainer.publish(&WeightsName::default())?;

        self.progress.update = update + 1;
        self.progress.episodes += played_episodes(&trajectories);
        let mut metrics = self.update_metrics(&trajectories, &reports);
        let improved = timing.measure("evaluate", || self.evaluate_if_due(&mut metrics, on_event))?;
        if self.recipe.trajectories.every > 0 && update.is_multiple_of(self.recipe.trajectories.every) {
            self.write_trajectories(update, &trajectories, &samples)?;
        }
        self.run_dir.append_metrics(self.progress.update, &metrics)?;
        if improved || self.checkpoint_is_due() {
            timing.measure("checkpoint", || self.save_checkpoint(on_event))?;
        }

        let timing = timing.finish(self.progress.update, &rollout_timing, self.runtime.metrics().num_workers());
        self.run_dir.append_timing(&timing)?;
        let health_metrics = self.health_metrics(&metrics, &trajectories, collected_ahead);
        let warnings = self.health.check(&self.recipe.health, &health_metrics);
        self.emit(TrainEvent::Updated { update: self.progress.update, metrics, timing }, on_event);
        for text in warnings {
            self.emit(TrainEvent::Warning { text }, on_event);
        }
        Ok(())
    }

    /// The batch of an update: collected ahead, or now.
    fn collect(&mut self, update: u64, on_event: &mut dyn FnMut(TrainEvent)) -> Result<CollectedBatch> {
        let batch = match self.next_batch.take() {
            Some(batch) => batch,
            None => self.batch_collector(update)?(&mut |text| self.emit(TrainEvent::Warning { text }, on_event))?,
        };
        match error_if_all_failed(&batch.0) {
            Some(problem) => {
                Err(Error::Stopped(format!("all meta-episodes of update {} failed: {problem}", update + 1)))
            }
            None => Ok(batch),
        }
    }

    /// The optimiser steps of an update. With `rollout.overlap`, the batch of the next update is collected meanwhile.
    fn optimize_and_collect_ahead(
        &mut self,
        update: u64,
        trajectories: &[Trajectory],
        samples: &[TrainingSample],
        reference: &HashMap<(usize, usize), Vec<f32>>,
        loss: &Loss,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<OptimReports> {
        if !self.may_collect_ahead(update + 1) {
            return self.optimize(update, trajectories, samples, reference, loss);
        }
        let collector = self.batch_collector(update + 1)?;
        std::thread::scope(|threads| {
            let (sender, stalls) = std::sync::mpsc::channel();
            let collecting = threads.spawn(move || collector(&mut |text| _ = sender.send(text)));
            let reports = self.optimize(update, trajectories, samples, reference, loss);
            // The channel closes when the thread ends.
            stalls.iter().for_each(|text| self.emit(TrainEvent::Warning { text }, on_event));
            let batch =
                collecting.join().map_err(|_| Error::Stopped("the rollout of the next update panicked".to_owned()))?;
            self.next_batch = Some(batch?);
            reports
        })
    }

    /// Evaluates every `eval.every` updates and adds the metrics. Whether the policy is the best so far and can be
    /// saved now.
    fn evaluate_if_due(
        &mut self,
        metrics: &mut BTreeMap<String, f64>,
        on_event: &mut dyn FnMut(TrainEvent),
    ) -> Result<bool> {
        // After the last update, the final evaluation follows.
        if !self.is_due(self.recipe.eval.every) || self.is_complete() {
            return Ok(false);
        }
        let Some(result) = self.evaluate(self.recipe.eval.tasks, true, Arc::default(), on_event)? else {
            return Ok(false);
        };
        add_eval_metrics(metrics, &result);
        // The best weights need a checkpoint, which a batch collected ahead forbids here.
        let can_save = self.checkpoint_is_due() || self.next_batch.is_none();
        Ok(can_save && self.update_best(&result))
    }

    fn is_due(&self, every: u64) -> bool {
        every > 0 && self.progress.update.is_multiple_of(every)
    }

    fn is_complete(&self) -> bool {
        self.progress.update == self.recipe.optim.updates
    }

    fn checkpoint_is_due(&self) -> bool {
        self.is_due(self.recipe.checkpoint.every) || self.is_complete()
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
                let request = samples::mask_request(record, self.context.episode_config().play_tokens);
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
                    self.context.episode_config().play_tokens,
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
