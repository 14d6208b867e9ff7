//! Tests of evaluation metrics with agents whose success probability is known.

use mage_core::{
    Ceiling, EpisodeConfig, Lexical, MemoryFactory, MemoryScope, MetaEpisodeResult, PromptMethod, UnplayedEpisodes,
    compare_paired, compare_to_ceiling, pass_at_k, summarise,
};
use mage_env::{EnvSpec, Seed};
use mage_train::{TaskSet, eval::Evaluator, rollout::MetaEpisodeBuilder, train::runtime};
use std::sync::Arc;
use tokio::runtime::Runtime;

const EPISODES: u32 = 10;

/// Evaluates an agent that wins with probability `p`; returns the results by task.
fn evaluate(
    runtime: &Runtime,
    p: f64,
    nonsense: f64,
    tasks: usize,
    early_stop: bool,
    seed: u64,
) -> Vec<(usize, MetaEpisodeResult)> {
    let env_spec = Arc::new(crate::coin::CoinSpec);
    let task_set = TaskSet::new(&*env_spec, &env_spec.default_population(), "in-domain", tasks, Seed::new(1)).unwrap();
    let config = EpisodeConfig { episodes: EPISODES, max_turns: 1, early_stop, ..EpisodeConfig::default() };
    let config = PromptMethod::React.configure(config);
    let (prompts, embeddings) = (crate::coin::prompts(), Arc::new(Lexical));
    let memories = MemoryFactory::new(
        PromptMethod::React,
        MemoryScope::MetaEpisode,
        embeddings,
        Arc::new(config.clone()),
        Arc::clone(&prompts),
    );
    let builder = MetaEpisodeBuilder::new(env_spec, prompts, config);
    let evaluator = Arc::new(Evaluator {
        builder: builder.with_memories(Arc::new(memories.unwrap())),
        task_set,
        policy: crate::coin::policy(p, nonsense),
        seed: Seed::new(seed),
        exact_max_states: 0,
        policy_must_not_fail: true,
        stop: Arc::default(),
    });
    let mut all = Vec::new();
    evaluator
        .run(runtime.handle(), |task, trajectory| {
            let usage = trajectory.requests.iter().map(|r| r.completion.token_usage().unwrap().prompt_tokens);
            assert_eq!(usage.sum::<u64>(), 10 * trajectory.requests.len() as u64);
            all.push((task, trajectory.result().unwrap()));
        })
        .unwrap();
    all.sort_by_key(|(i, _)| *i);
    all
}

/// Four standard errors of a rate with sample size `n`.
fn tolerance(p: f64, n: f64) -> f64 {
    4.0 * (p * (1.0 - p) / n).sqrt() + 1e-9
}

#[test]
fn metrics_match_the_known_probabilities() {
    let runtime = runtime(2).unwrap();
    let (tasks, p, nonsense) = (3000, 0.105, 0.2);
    for early_stop in [false, true] {
        let results = evaluate(&runtime, p, nonsense, tasks, early_stop, 5);
        let summary = summarise(&results, EPISODES, UnplayedEpisodes::NotCounted).overall;
        assert_eq!(summary.meta_episodes, tasks as u64);
        for at in &summary.by_episode {
            let expected = pass_at_k(p, at.k);
            let assert_close = |got: f64, expected: f64, n: f64| {
                assert!((got - expected).abs() < tolerance(expected, n), "k {}: {got} for {expected}", at.k);
            };
            assert_close(at.pass_at_k.rate.unwrap(), expected, tasks as f64);
            assert_eq!(at.pass_at_k.trials, tasks as u64, "tasks stopped after a win count as passed");
            // The win rate of the remaining tasks is unchanged.
            let played = at.won.trials as f64;
            assert_close(at.won.rate.unwrap(), p, played);
            assert_close(at.truncated.rate.unwrap(), nonsense, played);
            assert_close(at.lost.rate.unwrap(), 1.0 - p - nonsense, played);
            assert_close(at.invalid.rate.unwrap(), nonsense, played);
            let mean = p - (1.0 - p - nonsense);
            assert!((at.score.mean.unwrap() - mean).abs() < 4.0 * (1.0 / played).sqrt());
            let expected_players =
                if early_stop { tasks as f64 * (1.0 - p).powi(at.k as i32 - 1) } else { tasks as f64 };
            assert!((played - expected_players).abs() <= 4.0 * (tasks as f64).sqrt() / 2.0, "{played} played");
        }
        // 1 - 0.895^10.
        assert!((summary.by_episode[9].pass_at_k.rate.unwrap() - 0.670).abs() < 0.035);
    }
}

#[test]
fn unplayed_not_won_counts_episodes_after_a_win_as_not_won() {
    let runtime = runtime(2).unwrap();
    let results = evaluate(&runtime, 0.5, 0.0, 2000, true, 6);
    let summary = summarise(&results, EPISODES, UnplayedEpisodes::NotWon).overall;
    for at in &summary.by_episode {
        let expected = 0.5_f64.powi(at.k as i32);
        assert!((at.won.rate.unwrap() - expected).abs() < tolerance(expected, 2000.0), "k {}", at.k);
    }
}

#[test]
fn intervals_have_the_nominal_coverage() {
    let runtime = runtime(2).unwrap();
    let (runs, tasks, p) = (300, 80, 0.3);
    // Win rate of episode 1, Pass@3, score of episode 2; pooled over two seeds: win rate and Pass@3; difference of two
    // agents: win rate.
    let mut covered = [0_u32; 6];
    let (mut rejected, mut found) = (0, 0);
    for run in 0..runs {
        let first = evaluate(&runtime, p, 0.0, tasks, false, 10 * run);
        let second = evaluate(&runtime, p, 0.0, tasks, false, 10 * run + 1);
        let better = evaluate(&runtime, 0.6, 0.0, tasks, false, 10 * run + 2);
        let slice = summarise(&first, 3, UnplayedEpisodes::NotCounted).overall.by_episode;
        let both = [&first[..], &second].concat();
        let pooled = summarise(&both, 3, UnplayedEpisodes::NotCounted).overall.by_episode;
        let comparison = compare_paired(&better, &first, 1).remove(0);
        let hits = [
            slice[0].won.interval.contains(p),
            slice[2].pass_at_k.interval.contains(pass_at_k(p, 3)),
            slice[1].score.interval.unwrap().contains(2.0 * p - 1.0),
            pooled[0].won.interval.contains(p),
            pooled[2].pass_at_k.interval.contains(pass_at_k(p, 3)),
            comparison.won.difference.interval.unwrap().contains(0.6 - p),
        ];
        for (count, hit) in covered.iter_mut().zip(hits) {
            *count += u32::from(hit);
        }
        rejected += u32::from(compare_paired(&first, &second, 1)[0].won.p_value < 0.05);
        found += u32::from(comparison.won.p_value < 0.05);
    }
    // 95 % of 300 are 285; four standard errors are 15.
    for (metric, count) in covered.into_iter().enumerate() {
        assert!((270..=300).contains(&count), "interval {metric} covered {count} of {runs}");
    }
    assert!(rejected <= 30, "equal agents differ in {rejected} of {runs} runs; an exact test rejects at most 5 %");
    assert!(found >= 270, "low power for 0.6 and 0.3 over 80 tasks: {found}");
}

#[test]
fn gap_closed_and_regret_match_the_known_score() {
    let runtime = runtime(2).unwrap();
    let results = evaluate(&runtime, 0.8, 0.0, 3000, false, 7);
    // A score of 0.6 between -1 (never wins) and 1 (always wins).
    let ceiling = Ceiling { memoryless: vec![-1.0; EPISODES as usize], adaptive: vec![1.0; EPISODES as usize] };
    let relative = compare_to_ceiling(&results, &ceiling);
    for at in &relative.by_episode {
        assert!((at.gap_fraction.unwrap().mean.unwrap() - 0.8).abs() < 0.03);
        assert!((at.regret.mean.unwrap() - 0.4).abs() < 0.06);
    }
    assert!((relative.total_regret.mean.unwrap() - 4.0).abs() < 0.2);
}
