//! Upper limits of counts, checked before anything of their size is allocated.

/// Episodes of a meta-episode.
pub const MAX_EPISODES: u32 = 1000;
/// Tasks of a task set, and meta-episodes of an update.
pub const MAX_TASKS: usize = 1_000_000;
/// Sampling seeds of an evaluation, and training seeds of a sweep.
pub const MAX_SEEDS: usize = 1000;
/// Episodes of an evaluation or of an update, whose results are in memory at once (about 300 bytes each).
pub const MAX_PLAYED_EPISODES: u64 = 10_000_000;
/// Cells of a sweep.
pub const MAX_CELLS: usize = 100_000;

/// The problem of an evaluation that is too large, if it is.
pub fn too_many_episodes(tasks: u64, seeds: u64, episodes: u64) -> Option<String> {
    let played = tasks.saturating_mul(seeds).saturating_mul(episodes);
    (played > MAX_PLAYED_EPISODES).then(|| {
        format!(
            "{tasks} tasks x {seeds} seeds x {episodes} episodes are more than {MAX_PLAYED_EPISODES} episodes; lower \
             one of them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_limited_without_overflow() {
        assert_eq!(too_many_episodes(1_000_000, 1, 10), None);
        let problem = too_many_episodes(1_000_000, 3, 10).unwrap();
        assert!(problem.starts_with("1000000 tasks x 3 seeds x 10 episodes are more than 10000000"), "{problem}");
        assert!(too_many_episodes(u64::MAX, 2, 2).is_some());
    }
}
