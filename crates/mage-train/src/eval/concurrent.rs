//! How are many tasks played with a model at once?
//!
//! Each meta-episode waits for its own answers; as many are under way as the model was given. Finished ones are handed over
//! as they come. With a memory that all tasks share they are played one after the other instead, in the panel's order, so
//! that what each of them remembers depends on nothing else.

use super::{Evaluation, ModelAgent};
use crate::{Error, Result};
use mage_core::{MemoryScope, MetaEpisode, Next, Trajectory};
use std::{sync::Arc, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// How long nobody looks whether there is a wish to stop.
const LOOK_UP: Duration = Duration::from_millis(100);

/// So many failures in a row, and more than are under way, end an evaluation: the model is not there.
const HOPELESS: usize = 8;

impl Evaluation {
    /// Plays the tasks of these numbers; `keep` gets what has finished, failures included.
    pub(super) fn fly(
        self: &Arc<Self>,
        agent: &ModelAgent,
        missing: &[usize],
        mut keep: impl FnMut(&[Trajectory]) -> Result<()>,
    ) -> Result<()> {
        let in_flight = if self.shares_memory() { 1 } else { agent.in_flight.max(1) };
        let (mut failures, mut kept) = (0, 0);
        agent.runtime.block_on(async {
            let mut todo = missing.iter().copied();
            let mut all = JoinSet::new();
            let mut fill = |all: &mut JoinSet<_>| {
                while all.len() < in_flight
                    && let Some(index) = todo.next()
                {
                    let (evaluation, agent) = (Arc::clone(self), agent.clone());
                    all.spawn(async move { evaluation.play_with(&agent, index).await });
                }
            };
            loop {
                fill(&mut all);
                // Now and then one looks up, to see whether somebody asks to stop.
                let first = match timeout(LOOK_UP, all.join_next()).await {
                    Ok(None) => return Ok(()),
                    Ok(Some(first)) => Some(first),
                    Err(_) if self.stopped() => None,
                    Err(_) => continue,
                };
                let mut finished: Vec<Trajectory> = Vec::new();
                for joined in first.into_iter().chain(std::iter::from_fn(|| all.try_join_next())) {
                    finished.push(joined.map_err(|e| Error::Stopped(format!("a meta-episode was lost: {e}")))??);
                }
                // No seat stays empty while the disk is waited for, unless there may be reason to stop.
                if finished.iter().all(|r| r.error.is_none()) && !self.stopped() {
                    fill(&mut all);
                }
                keep(&finished)?;
                kept += finished.len();
                if self.stopped() && kept < missing.len() {
                    return Err(Error::Interrupted);
                }
                for record in &finished {
                    let Some(problem) = &record.error else {
                        failures = 0;
                        continue;
                    };
                    failures += 1;
                    if self.shares_memory() {
                        return Err(Error::Stopped(format!(
                            "a task could not be finished, and later ones would lack its memories: {problem}"
                        )));
                    }
                    if failures >= in_flight.max(HOPELESS) {
                        return Err(Error::Stopped(format!(
                            "{failures} tasks in a row failed, the last with: {problem}"
                        )));
                    }
                }
            }
        })
    }

    fn shares_memory(&self) -> bool {
        self.memories.as_ref().is_some_and(|m| m.scope() == MemoryScope::Shared)
    }

    /// Plays one task. What goes wrong on the way is in the record.
    async fn play_with(&self, agent: &ModelAgent, index: usize) -> Result<Trajectory> {
        let key = self.key(index, &self.panel.tasks()[index]);
        let mut meta = self.meta_episode(index)?;
        loop {
            match meta.advance() {
                Ok(Next::Done(record)) => return Ok(Trajectory { key, ..*record }),
                Ok(Next::Request(call)) => {
                    let answer = agent.answerer.answer(&call).await.map_err(|e| e.to_string());
                    meta.submit(call.id, answer)?;
                }
                // Its record, which says why, comes next.
                Err(_) => {}
            }
        }
    }

    /// Brings shared memories to where they were after a finished task, by answering as was answered then.
    pub(super) fn remember(&self, index: usize, record: &Trajectory) -> Result<()> {
        let changed = || Error::Stopped(format!("the record of task {index} no longer fits; play into a new file"));
        let mut meta: MetaEpisode = self.meta_episode(index)?;
        let mut answered = record.requests.iter();
        loop {
            match meta.advance()? {
                Next::Done(_) => return Ok(()),
                Next::Request(call) => {
                    let then = answered.next().filter(|c| c.messages == call.body.messages).ok_or_else(changed)?;
                    meta.submit(call.id, Ok(then.completion.clone()))?;
                }
            }
        }
    }

    /// Whether earlier tasks must be remembered before later ones are played.
    pub(super) fn needs_the_past(&self) -> bool {
        self.shares_memory()
    }
}
