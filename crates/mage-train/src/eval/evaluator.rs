//! The evaluator: plays every task of a task set with a policy.
//!
//! Up to `max_in_flight` meta-episodes run at once. Results depend on the seed alone. A failure or panic in one task is
//! recorded in its trajectory, and the others continue. Training, `mage eval` and sweeps use it.
//!
//! With a memory that tasks share, tasks run one at a time in the order of the task set, and the memory of each depends
//! on the finished ones before it. A failure of the policy ends the evaluation, and the next call repeats that task. A
//! task whose environment fails leaves no trace in the memory and is skipped; the next call plays it again, after all
//! tasks that have finished by then. Replay restores the memory in the order of the store, which is the order of play.

use super::{
    exact::{EnumeratedMetaEpisode, ExactExpectations},
    replay::ReplayPolicy,
    store::{TrajectoryStore, read_trajectories},
};
use crate::{
    Error, Result, TaskSet,
    policy::{NamedPolicy, PolicyKind},
    rollout::{MetaEpisodeBuilder, Played, catch_panic, concurrent::run_concurrently},
};
use mage_core::{MemoryScope, Trajectory, TrajectoryKey};
use mage_env::{Hash, Seed};
use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};
use tokio::runtime::Handle;

/// Interval between checks of the stop flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Consecutive failures of the policy that end an evaluation, if they are at least as many as run at once: the model is
/// unreachable.
const MAX_CONSECUTIVE_FAILURES: usize = 8;

/// Evaluates a policy on a task set.
pub struct Evaluator {
    /// Builds the meta-episodes.
    pub builder: MetaEpisodeBuilder,
    /// The policy.
    pub policy: NamedPolicy,
    /// The tasks.
    pub task_set: TaskSet,
    /// Seed of the agent.
    pub seed: Seed,
    /// Maximum game states for exact expectations; 0 disables them.
    pub exact_max_states: usize,
    /// Whether the first failure of the policy ends the evaluation. Otherwise failures are stored, and only consecutive
    /// ones end it.
    pub policy_must_not_fail: bool,
    /// A value other than 0 requests a stop: finished tasks are kept, running ones are dropped, and the evaluation ends
    /// with [`Error::Interrupted`].
    pub stop: Arc<AtomicU8>,
}

/// Seed of the agent in the `index`-th task.
pub fn agent_seed(seed: Seed, index: usize) -> Seed {
    seed.child("agent").at(index as u64)
}

/// A finished task: index, trajectory, and the error of the policy, if it failed.
type FinishedTask = (usize, Trajectory, Option<Error>);

/// Failures of the policy during one call.
#[derive(Default)]
struct FailureCount {
    /// Whether a task has finished without a failure.
    any_finished: bool,
    /// Failures since the last such task.
    consecutive: usize,
}

impl Evaluator {
    /// Plays the task set and passes each trajectory, with the index of its task, to `on_trajectory`.
    pub fn run(self: &Arc<Self>, runtime: &Handle, mut on_trajectory: impl FnMut(usize, Trajectory)) -> Result<()> {
        let all: Vec<usize> = (0..self.task_set.tasks().len()).collect();
        self.play_tasks(runtime, &all, |finished| {
            finished.into_iter().for_each(|(index, trajectory)| on_trajectory(index, trajectory));
            Ok(())
        })
    }

    /// Plays the tasks that the store has no result of and adds them; `on_trajectory` receives every addition. After an
    /// interruption, another call continues: finished tasks are not repeated, failed ones are retried.
    pub fn run_into(
        self: &Arc<Self>,
        runtime: &Handle,
        store: &mut TrajectoryStore,
        mut on_trajectory: impl FnMut(usize, Trajectory),
    ) -> Result<()> {
        let indices: HashMap<TrajectoryKey, usize> =
            (0..self.task_set.tasks().len()).map(|i| (self.key(i), i)).collect();
        let mut missing: Vec<usize> =
            indices.iter().filter(|(key, _)| !store.contains(key)).map(|(_, index)| *index).collect();
        missing.sort_unstable();
        if self.shares_memory() && missing.len() < indices.len() {
            for trajectory in read_trajectories(store.path())? {
                let trajectory = trajectory?;
                if let (Some(index), None) = (indices.get(&trajectory.key), &trajectory.error) {
                    self.replay(runtime, *index, trajectory)?;
                }
            }
        }
        self.play_tasks(runtime, &missing, |finished| {
            store.append(finished.iter().map(|(_, trajectory)| trajectory))?;
            finished.into_iter().for_each(|(index, trajectory)| on_trajectory(index, trajectory));
            Ok(())
        })
    }

    /// Identifier of the method in trajectories.
    pub fn method(&self) -> Hash {
        self.policy.method_hash(self.builder.method())
    }

    /// Key of the trajectory of the `index`-th task.
    pub fn key(&self, index: usize) -> TrajectoryKey {
        TrajectoryKey {
            task_set: self.task_set.hash(),
            task: self.task_set.tasks()[index].hash(),
            method: self.method(),
            weights: self.policy.id.clone(),
            seed: agent_seed(self.seed, index),
        }
    }

    /// Plays the tasks with these indices. `store` receives the finished trajectories, failures included: those of
    /// policies without a model in the order of the task set, others as they finish.
    fn play_tasks(
        self: &Arc<Self>,
        runtime: &Handle,
        tasks: &[usize],
        mut store: impl FnMut(Vec<(usize, Trajectory)>) -> Result<()>,
    ) -> Result<()> {
        let max_in_flight = if self.shares_memory() { 1 } else { self.policy.max_in_flight.max(1) };
        let exact = Arc::new(ExactExpectations::new(&self.policy.kind, self.builder.config(), self.exact_max_states));
        let jobs = tasks.iter().map(|index| {
            let (evaluator, exact, index) = (Arc::clone(self), Arc::clone(&exact), *index);
            async move { evaluator.play(index, (*exact).as_ref()).await }
        });
        let in_order = matches!(self.policy.kind, PolicyKind::Random | PolicyKind::Scripted(_));
        let (mut order, mut waiting) = (tasks.iter().peekable(), BTreeMap::new());
        let (mut failures, mut stored) = (FailureCount::default(), 0);
        let on_finished = |finished: Vec<FinishedTask>| {
            let mut outcome = Ok(ControlFlow::Continue(()));
            let mut ready = Vec::new();
            for (index, trajectory, policy_error) in finished {
                if let Err(e) = self.check_failures(&trajectory, policy_error, max_in_flight, &mut failures) {
                    outcome = outcome.and(Err(e));
                }
                match in_order {
                    true => _ = waiting.insert(index, trajectory),
                    false => ready.push((index, trajectory)),
                }
            }
            while let Some(next) = order.peek().filter(|_| in_order)
                && let Some(trajectory) = waiting.remove(*next)
            {
                ready.push((**next, trajectory));
                order.next();
            }
            stored += ready.len();
            if !ready.is_empty() {
                store(ready)?;
            }
            if outcome.is_ok() && self.stopped() && stored < tasks.len() {
                return Err(Error::Interrupted);
            }
            outcome
        };
        let hold = |(_, trajectory, _): &FinishedTask| self.stopped() || trajectory.error.is_some();
        runtime.block_on(run_concurrently(jobs, max_in_flight, STOP_POLL_INTERVAL, hold, on_finished))
    }

    /// The error that ends the evaluation after a task, if any.
    fn check_failures(
        &self,
        trajectory: &Trajectory,
        policy_error: Option<Error>,
        max_in_flight: usize,
        failures: &mut FailureCount,
    ) -> Result<()> {
        let Some(problem) = &trajectory.error else {
            *failures = FailureCount { any_finished: true, consecutive: 0 };
            return Ok(());
        };
        let Some(error) = policy_error else { return Ok(()) };
        if self.shares_memory() {
            let text = format!("the policy failed, and later tasks depend on the memory of this one: {problem}");
            return Err(Error::Stopped(text));
        }
        // If the first requests of all are refused, so are all others.
        if self.policy_must_not_fail || (error.is_rejection() && !failures.any_finished) {
            return Err(error);
        }
        failures.consecutive += 1;
        if failures.consecutive >= max_in_flight.max(MAX_CONSECUTIVE_FAILURES) {
            let text = format!("{} consecutive tasks failed, the last with: {problem}", failures.consecutive);
            return Err(Error::Stopped(text));
        }
        Ok(())
    }

    /// Plays one task. A failure or panic is stored in the trajectory and leaves no trace in a shared memory.
    async fn play(&self, index: usize, exact: Option<&ExactExpectations>) -> FinishedTask {
        let (task, key) = (&self.task_set.tasks()[index], self.key(index));
        let memories = self.builder.memories();
        let memory = memories.and_then(|m| m.shared_memory());
        let played = catch_panic(async {
            let mut policy = self.policy.start(self.builder.config(), task, key.seed)?;
            let enumerated = EnumeratedMetaEpisode::new(exact);
            let mut played = self.builder.play(task, key.seed, &mut *policy, &enumerated).await;
            if let Some(exact) = exact {
                exact.add_to(&mut played.trajectory, enumerated).await?;
            }
            Ok(played)
        });
        let Played { mut trajectory, policy_error } = played.await.unwrap_or_else(|e| {
            let trajectory = self.builder.failed(task, key.seed, e.to_string());
            Played { trajectory, policy_error: (!matches!(e, Error::Panicked(_))).then_some(e) }
        });
        if let (Some(_), Some(memories), Some(memory)) = (&trajectory.error, memories, memory) {
            memories.restore(memory);
        }
        trajectory.key = key;
        (index, trajectory, policy_error)
    }

    fn shares_memory(&self) -> bool {
        self.builder.memories().is_some_and(|m| m.scope() == MemoryScope::Shared)
    }

    /// Restores shared memory to its state after a finished task by replaying the recorded completions.
    fn replay(&self, runtime: &Handle, index: usize, recorded: Trajectory) -> Result<()> {
        let (task, seed) = (&self.task_set.tasks()[index], agent_seed(self.seed, index));
        let mut policy = ReplayPolicy::new(recorded);
        let played = runtime.block_on(self.builder.play(task, seed, &mut policy, &()));
        match played.trajectory.error {
            Some(problem) => Err(Error::Stopped(format!("task {index} cannot be replayed: {problem}"))),
            None => Ok(()),
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) > 0
    }
}
