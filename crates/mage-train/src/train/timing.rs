//! Time of the phases of an update, as written to `timing.jsonl`.

use crate::rollout::RolloutTiming;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Phases that are measured here; the rollout measures itself.
const PHASES: [&str; 4] = ["reference", "train", "evaluate", "checkpoint"];

/// Measures the phases of an update.
pub(super) struct UpdateTiming {
    started: Instant,
    phases: BTreeMap<&'static str, Duration>,
}

impl UpdateTiming {
    pub(super) fn start() -> Self {
        UpdateTiming { started: Instant::now(), phases: PHASES.map(|name| (name, Duration::ZERO)).into() }
    }

    /// Runs one phase and records its time.
    pub(super) fn measure<T>(&mut self, phase: &'static str, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = work();
        *self.phases.entry(phase).or_default() += started.elapsed();
        result
    }

    /// Seconds by phase. `threads` is the number of threads that ran environments.
    pub(super) fn finish(self, update: u64, rollout: &RolloutTiming, threads: usize) -> BTreeMap<String, f64> {
        let total = self.started.elapsed();
        let accounted = rollout.wall + self.phases.values().sum::<Duration>();
        let mut timing = BTreeMap::from([
            ("update".to_owned(), update as f64),
            ("total".to_owned(), total.as_secs_f64()),
            ("rollout".to_owned(), rollout.wall.as_secs_f64()),
            ("environment".to_owned(), rollout.environment.as_secs_f64() / threads as f64),
            ("rollout_tail".to_owned(), rollout.tail.as_secs_f64()),
            ("other".to_owned(), total.saturating_sub(accounted).as_secs_f64()),
        ]);
        timing.extend(self.phases.into_iter().map(|(name, time)| (name.to_owned(), time.as_secs_f64())));
        timing
    }
}
