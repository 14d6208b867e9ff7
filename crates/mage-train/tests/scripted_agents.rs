//! Evaluation of scripted agents of known strength: measured scores must agree with exact ones, with memory and
//! without.

use mage_core::{
    EpisodeConfig, MemoryMode, MetaEpisodeResult, MetricSummary, UnplayedEpisodes, prompt::PromptLibrary, summarise,
};
use mage_env::{
    EnvSpec, Population, Registry, Seed,
    kuhn::{Kuhn, KuhnSpec, equilibrium},
    solvers::{HistoryTree, Profile, ScoreObjective, expected_returns},
};
use mage_train::{TaskSet, eval::Evaluator, policy::NamedPolicy, rollout::MetaEpisodeBuilder, train::runtime};
use std::sync::Arc;

/// Four standard errors: one comparison in 16,000 would fail by chance, and the seeds are fixed.
const SIGMAS: f64 = 4.0;

fn results(
    policy: &str,
    memory: MemoryMode,
    population: &Population,
    episodes: u32,
    tasks: usize,
) -> Vec<MetaEpisodeResult> {
    let registry = Registry::builtin();
    let env_spec = registry.get("kuhn").unwrap();
    let prompts = PromptLibrary::builtin().get("kuhn").unwrap();
    let config = EpisodeConfig { memory, ..EpisodeConfig::compact(&env_spec.info(), episodes) };
    let evaluator = Arc::new(Evaluator {
        builder: MetaEpisodeBuilder::new(Arc::clone(env_spec), prompts, config),
        policy: NamedPolicy::scripted(&**env_spec, policy, population, "train", episodes).unwrap(),
        task_set: TaskSet::new(&**env_spec, population, "train", tasks, Seed::new(1)).unwrap(),
        seed: Seed::new(2),
        exact_max_states: 0,
        policy_must_not_fail: true,
        stop: Arc::default(),
    });
    let mut results = Vec::new();
    let runtime = runtime(2).unwrap();
    evaluator.run(runtime.handle(), |_, trajectory| results.extend(trajectory.result())).unwrap();
    assert_eq!(results.len(), tasks);
    results
}

/// Compares the mean score of each episode and seat with the exact value.
fn check(policy: &str, results: &[MetaEpisodeResult], exact: impl Fn(u8, usize) -> f64) {
    let episodes = results[0].episodes.len();
    for seat in 0..2 {
        for n in 0..episodes {
            let scores = results.iter().filter(|r| r.seat == seat).map(|r| r.episodes[n].score);
            let (count, sum, squares) = scores.fold((0.0, 0.0, 0.0), |(c, s, q), x| (c + 1.0, s + x, q + x * x));
            let mean = sum / count;
            let error = ((squares / count - mean * mean) / count).sqrt();
            let expected = exact(seat, n);
            assert!(
                (mean - expected).abs() < SIGMAS * error,
                "{policy}, seat {seat}, episode {}: measured {mean:.4} ± {error:.4}, exact {expected:.4}",
                n + 1
            );
        }
    }
}

fn population() -> Population {
    KuhnSpec::default().default_population()
}

#[test]
fn bayes_scores_its_exact_curve_and_without_memory_its_first_episode() {
    let population = population();
    let exact = [0, 1].map(|s| KuhnSpec::default().bayes(&population, "train", s, 3).unwrap());
    for (policy, objective) in [("bayes", ScoreObjective::Sum), ("bayes-last", ScoreObjective::Last)] {
        let curve = |seat: u8, n: usize| exact[usize::from(seat)].curve(objective).by_episode[n];
        check(policy, &results(policy, MemoryMode::ReflectionOnly, &population, 3, 12_000), curve);
        check(policy, &results(policy, MemoryMode::None, &population, 3, 6_000), |seat, _| curve(seat, 0));
    }
}

#[test]
fn bayes_adapts_to_a_switching_opponent() {
    let text = r#"
        env = "kuhn"
        [[opponent]]
        name = "weathercock"
        kind = "switching"
        between = ["conservative", "aggressive"]
        stay = 0.8
    "#;
    let population = Population::from_toml(text, "test").unwrap();
    let exact = [0, 1].map(|s| KuhnSpec::default().bayes(&population, "train", s, 4).unwrap());
    let curve = |seat: u8, n: usize| exact[usize::from(seat)].curve(ScoreObjective::Sum).by_episode[n];
    assert!(curve(0, 3) > exact[0].memoryless().last() + 0.02, "adaptation pays off");
    check("bayes", &results("bayes", MemoryMode::ReflectionOnly, &population, 4, 12_000), curve);
}

#[test]
fn best_response_nash_and_random_score_their_exact_values() {
    let population = population();
    let exact = [0, 1].map(|s| KuhnSpec::default().bayes(&population, "train", s, 2).unwrap());
    let informed = |seat: u8, n: usize| exact[usize::from(seat)].full_info().by_episode[n];
    for memory in [MemoryMode::ReflectionOnly, MemoryMode::None] {
        check("best-response", &results("best-response", memory, &population, 2, 8_000), informed);
    }

    let tree = HistoryTree::new(&Kuhn).unwrap();
    let kinds = mage_env::kuhn::opponent_kinds();
    let opponents = population.in_split("train").unwrap();
    let value = |agent: mage_env::Strategy<Kuhn>, seat: u8| {
        let against = |spec| {
            let other = Arc::clone(&kinds.build(spec).unwrap().phases()[0]);
            let mut seats = vec![Arc::clone(&agent), Arc::clone(&agent)];
            seats[usize::from(1 - seat)] = other;
            expected_returns(&Kuhn, &tree, &Profile(seats)).unwrap()[usize::from(seat)]
        };
        opponents.iter().map(|(share, spec)| share * against(spec)).sum::<f64>()
    };
    let nash = [0, 1].map(|s| value(Arc::new(equilibrium(10_000)), s));
    check("nash", &results("nash", MemoryMode::ReflectionOnly, &population, 2, 8_000), |s, _| nash[usize::from(s)]);
    let random = [0, 1].map(|s| value(Arc::new(mage_env::UniformOpponent), s));
    assert!((random[0] + random[1] + 0.5).abs() < 0.06, "uniform play costs about a quarter of a chip");
    check("random", &results("random", MemoryMode::None, &population, 2, 8_000), |s, _| random[usize::from(s)]);
}

#[test]
fn reported_intervals_contain_the_exact_values() {
    let population = population();
    let results = results("bayes", MemoryMode::ReflectionOnly, &population, 3, 12_000);
    let summary: MetricSummary =
        summarise(&results.into_iter().enumerate().collect::<Vec<_>>(), 3, UnplayedEpisodes::NotCounted);
    let report = KuhnSpec::default().oracles(&population, "train", 3).unwrap().unwrap();
    for (at, exact) in summary.overall.by_episode.iter().zip(&report.mean.sum.by_episode) {
        assert!(at.score.interval.unwrap().contains(*exact), "{at:?} {exact}");
    }
}
