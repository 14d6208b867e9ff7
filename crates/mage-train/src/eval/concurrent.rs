//! Concurrent evaluation of a model.
//!
//! Up to `max_in_flight` meta-episodes run at once and are stored as they finish. With a memory that tasks share, they
//! run one at a time in the order of the task set, so that the memory of each depends on the earlier ones alone.

use super::{Evaluation, ModelAgent};
use crate::{Error, Result};
use mage_core::{MemoryScope, MetaEpisode, Next, Trajectory};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// Interval between checks of the stop flag.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Consecutive failures that end an evaluation, if they are at least as many as `max_in_flight`: the model is
/// unreachable.
const MAX_CONSECUTIVE_FAILURES: usize = 8;

impl Evaluation {
    /// Plays the tasks with these indices. `store` receives the finished trajectories, failures included.
    pub(super) fn play_concurrently(
        self: &Arc<Self>,
        agent: &ModelAgent,
        missing: &[usize],
        mut store: impl FnMut(&[Trajectory]) -> Result<()>,
    ) -> Result<()> {
        let max_in_flight = if self.shares_memory() { 1 } else { agent.max_in_flight.max(1) };
        let (mut failures, mut stored) = (0, 0);
        agent.runtime.block_on(async {
            let mut queue = missing.iter().copied();
            let mut running = JoinSet::new();
            let mut fill = |running: &mut JoinSet<_>| {
                while running.len() < max_in_flight
                    && let Some(index) = queue.next()
                {
                    let (evaluation, agent) = (Arc::clone(self), agent.clone());
                    running.spawn(async move { evaluation.play_with(&agent, index).await });
                }
            };
            loop {
                fill(&mut running);
                let first = match timeout(STOP_POLL_INTERVAL, running.join_next()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(first)) => Some(first),
                    Err(_) if self.stopped() => None,
                    Err(_) => continue,
                };
                let mut finished: Vec<Trajectory> = Vec::new();
                for joined in first.into_iter().chain(std::iter::from_fn(|| running.try_join_next())) {
                    finished.push(joined.map_err(|e| Error::Stopped(format!("an evaluation task failed: {e}")))??);
                }
                // New tasks start before the write to disk, unless the evaluation may have to end.
                if finished.iter().all(|r| r.error.is_none()) && !self.stopped() {
                    fill(&mut running);
                }
                store(&finished)?;
                stored += finished.len();
                if self.stopped() && stored < missing.len() {
                    return Err(Error::Interrupted);
                }
                for trajectory in &finished {
                    let Some(problem) = &trajectory.error else {
                        failures = 0;
                        continue;
                    };
                    failures += 1;
                    if self.shares_memory() {
                        return Err(Error::Stopped(format!(
                            "a task failed, and later tasks depend on its memory: {problem}"
                        )));
                    }
                    if failures >= max_in_flight.max(MAX_CONSECUTIVE_FAILURES) {
                        return Err(Error::Stopped(format!(
                            "{failures} consecutive tasks failed, the last with: {problem}"
                        )));
                    }
                }
            }
        })
    }

    fn shares_memory(&self) -> bool {
        self.memories.as_ref().is_some_and(|m| m.scope() == MemoryScope::Shared)
    }

    /// Plays one task. A failure is stored in the trajectory.
    async fn play_with(&self, agent: &ModelAgent, index: usize) -> Result<Trajectory> {
        let key = self.key(index, &self.task_set.tasks()[index]);
        let mut meta = self.meta_episode(index)?;
        loop {
            match meta.advance() {
                Ok(Next::Done(trajectory)) => return Ok(Trajectory { key, ..*trajectory }),
                Ok(Next::Request(request)) => {
                    let completion = agent.answerer.respond(&request).await.map_err(|e| e.to_string());
                    meta.submit(request.id, completion)?;
                }
                // The next step returns the trajectory with the error.
                Err(_) => {}
            }
        }
    }

    /// Restores shared memory to its state after a finished task by replaying the recorded completions.
    pub(super) fn replay(&self, index: usize, trajectory: &Trajectory) -> Result<()> {
        let changed =
            || Error::Stopped(format!("the trajectory of task {index} does not match its requests; use a new file"));
        let mut meta: MetaEpisode = self.meta_episode(index)?;
        let mut recorded = trajectory.requests.iter();
        loop {
            match meta.advance()? {
                Next::Done(_) => return Ok(()),
                Next::Request(request) => {
                    let record = recorded.next().filter(|r| r.messages == request.body.messages).ok_or_else(changed)?;
                    meta.submit(request.id, Ok(record.completion.clone()))?;
                }
            }
        }
    }

    /// Whether finished tasks must be replayed before the others are played.
    pub(super) fn needs_replay(&self) -> bool {
        self.shares_memory()
    }
}
