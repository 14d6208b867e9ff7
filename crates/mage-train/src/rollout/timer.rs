//! What is everybody in flight at, and since when?
//!
//! Adds up the time spent outside the sampler, and can say what is being waited for.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// What a meta-episode is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RolloutStage {
    /// Its turn has not come yet.
    Queued = 0,
    /// Environment, prompt and parsing.
    Environment = 1,
    /// The model's answer.
    Sampler = 2,
    /// Nothing any more.
    Done = 3,
}

/// The stages of a batch.
pub(crate) struct RolloutTimer {
    started: Instant,
    /// Nanoseconds in environments, over all threads.
    environment: AtomicU64,
    /// Nanoseconds since the start at which the stage was entered, and the stage in the last two bits.
    entered: Vec<AtomicU64>,
}

impl RolloutTimer {
    pub(crate) fn new(count: usize) -> Self {
        let entered = (0..count).map(|_| AtomicU64::new(0)).collect();
        RolloutTimer { started: Instant::now(), environment: AtomicU64::new(0), entered }
    }

    /// Meta-episode `i` turns to something else.
    pub(crate) fn enter(&self, i: usize, stage: RolloutStage) {
        let now = self.started.elapsed().as_nanos() as u64 >> 2;
        let before = self.entered[i].swap(now << 2 | stage as u64, Ordering::Relaxed);
        if before & 3 == RolloutStage::Environment as u64 {
            self.environment.fetch_add((now - (before >> 2)) << 2, Ordering::Relaxed);
        }
    }

    /// Time spent in environments, summed over threads.
    pub(crate) fn environment(&self) -> Duration {
        Duration::from_nanos(self.environment.load(Ordering::Relaxed))
    }

    /// Who is waited for, and since when.
    pub(crate) fn waiting(&self) -> String {
        let now = self.started.elapsed();
        let all: Vec<u64> = self.entered.iter().map(|e| e.load(Ordering::Relaxed)).collect();
        let count = |stage: RolloutStage| all.iter().filter(|e| **e & 3 == stage as u64).count();
        let parts = [(RolloutStage::Environment, "their environment"), (RolloutStage::Sampler, "the model")].map(
            |(stage, what)| {
                let since = all.iter().filter(|e| **e & 3 == stage as u64).min()?;
                let seconds = now.saturating_sub(Duration::from_nanos(since & !3)).as_secs_f64();
                Some(format!("{} for {what} since {seconds:.0} s", count(stage)))
            },
        );
        let open = all.len() - count(RolloutStage::Done);
        let queued = Some(count(RolloutStage::Queued)).filter(|n| *n > 0).map(|n| format!("{n} for a thread"));
        let parts: Vec<String> = parts.into_iter().flatten().chain(queued).collect();
        format!("waiting for {open} of {} meta-episodes: {}", all.len(), parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_who_is_waited_for() {
        let meter = RolloutTimer::new(4);
        assert_eq!(meter.waiting(), "waiting for 4 of 4 meta-episodes: 4 for a thread");
        meter.enter(0, RolloutStage::Environment);
        meter.enter(1, RolloutStage::Environment);
        meter.enter(2, RolloutStage::Environment);
        meter.enter(1, RolloutStage::Sampler);
        meter.enter(2, RolloutStage::Done);
        assert_eq!(
            meter.waiting(),
            "waiting for 3 of 4 meta-episodes: 1 for their environment since 0 s, 1 for the model since 0 s, 1 for a thread"
        );
    }

    #[test]
    fn only_environments_count() {
        let meter = RolloutTimer::new(1);
        meter.enter(0, RolloutStage::Sampler);
        std::thread::sleep(Duration::from_millis(30));
        meter.enter(0, RolloutStage::Environment);
        let before = meter.environment();
        std::thread::sleep(Duration::from_millis(30));
        meter.enter(0, RolloutStage::Sampler);
        assert_eq!(before, Duration::ZERO);
        assert!(meter.environment() >= Duration::from_millis(29));
    }
}
