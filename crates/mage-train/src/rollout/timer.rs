//! Time accounting of a rollout by stage of its meta-episodes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Stage of a meta-episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutStage {
    /// Not started.
    Queued = 0,
    /// Environment, prompt and parsing.
    Environment = 1,
    /// Sampling of a response.
    Sampler = 2,
    /// Finished.
    Done = 3,
}

/// Tracks the stages of a batch of meta-episodes.
pub(crate) struct RolloutTimer {
    started: Instant,
    /// Nanoseconds in environments, over all threads.
    environment: AtomicU64,
    /// Nanoseconds from the start to the last change of stage, with the stage in the low two bits.
    entered: Vec<AtomicU64>,
}

impl RolloutTimer {
    pub(crate) fn new(count: usize) -> Self {
        let entered = (0..count).map(|_| AtomicU64::new(0)).collect();
        RolloutTimer { started: Instant::now(), environment: AtomicU64::new(0), entered }
    }

    /// Records that meta-episode `i` enters a stage.
    pub(crate) fn enter(&self, i: usize, stage: RolloutStage) {
        let now = self.started.elapsed().as_nanos() as u64 >> 2;
        let before = self.entered[i].swap(now << 2 | stage as u64, Ordering::Relaxed);
        if before & 3 == RolloutStage::Environment as u64 {
            self.environment.fetch_add((now - (before >> 2)) << 2, Ordering::Relaxed);
        }
    }

    /// Time in environments, summed over threads.
    pub(crate) fn environment(&self) -> Duration {
        Duration::from_nanos(self.environment.load(Ordering::Relaxed))
    }

    /// A status line: pending meta-episodes by stage, with the longest time in each.
    pub(crate) fn pending(&self) -> String {
        let now = self.started.elapsed();
        let all: Vec<u64> = self.entered.iter().map(|e| e.load(Ordering::Relaxed)).collect();
        let count = |stage: RolloutStage| all.iter().filter(|e| **e & 3 == stage as u64).count();
        let stages = [(RolloutStage::Environment, "in the environment"), (RolloutStage::Sampler, "in the sampler")];
        let stages = stages.map(|(stage, name)| {
            let since = all.iter().filter(|e| **e & 3 == stage as u64).min()?;
            let seconds = now.saturating_sub(Duration::from_nanos(since & !3)).as_secs_f64();
            Some(format!("{} {name} for up to {seconds:.0} s", count(stage)))
        });
        let pending = all.len() - count(RolloutStage::Done);
        let queued = Some(count(RolloutStage::Queued)).filter(|n| *n > 0).map(|n| format!("{n} queued"));
        let parts: Vec<String> = stages.into_iter().flatten().chain(queued).collect();
        format!("waiting for {pending} of {} meta-episodes: {}", all.len(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_meta_episodes_are_listed_by_stage() {
        let timer = RolloutTimer::new(4);
        assert_eq!(timer.pending(), "waiting for 4 of 4 meta-episodes: 4 queued");
        timer.enter(0, RolloutStage::Environment);
        timer.enter(1, RolloutStage::Environment);
        timer.enter(2, RolloutStage::Environment);
        timer.enter(1, RolloutStage::Sampler);
        timer.enter(2, RolloutStage::Done);
        assert_eq!(
            timer.pending(),
            "waiting for 3 of 4 meta-episodes: 1 in the environment for up to 0 s, 1 in the sampler for up to 0 s, 1 queued"
        );
    }

    #[test]
    fn only_the_environment_stage_is_timed() {
        let timer = RolloutTimer::new(1);
        timer.enter(0, RolloutStage::Sampler);
        std::thread::sleep(Duration::from_millis(30));
        timer.enter(0, RolloutStage::Environment);
        let before = timer.environment();
        std::thread::sleep(Duration::from_millis(30));
        timer.enter(0, RolloutStage::Sampler);
        assert_eq!(before, Duration::ZERO);
        assert!(timer.environment() >= Duration::from_millis(29));
    }
}
