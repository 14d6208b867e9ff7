//! Benchmarks of Kuhn poker: rules, text environment and solvers. Run with `cargo bench -p mage-env --bench kuhn`.
#![allow(missing_docs, reason = "criterion's macros generate undocumented items")]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mage_env::{
    CurrentPlayer, Deal, Env, EnvSpec, Game, ParsedAction, Population, Rng, Seed,
    kuhn::{Kuhn, KuhnSpec},
    sample_action, sample_uniform,
    solvers::{BayesAdaptiveSolver, Candidate, Cfr, HistoryTree},
};
use std::hint::black_box;

/// Plays a hand at random and returns its number of actions.
fn playout(rng: &mut Rng) -> u64 {
    let mut state = Kuhn.initial(rng);
    let mut steps = 0;
    loop {
        let action = match Kuhn.current_player(&state) {
            CurrentPlayer::Terminal => break,
            CurrentPlayer::Chance => sample_action(&Kuhn.chance(&state), rng),
            CurrentPlayer::Player(_) => sample_uniform(&Kuhn.legal(&state), rng),
        };
        Kuhn.apply(&mut state, action);
        steps += 1;
    }
    black_box(Kuhn.returns(&state));
    steps
}

/// Plays an episode in the text environment and returns the number of agent actions.
fn episode(env: &mut dyn Env, n: u32, pass: bool) -> u64 {
    black_box(env.reset(n));
    let action = ParsedAction::Act((if pass { "PASS" } else { "BET" }).to_owned());
    let mut steps = 0;
    while env.legal().is_some_and(|l| !l.is_empty()) {
        black_box(env.step(&action));
        steps += 1;
    }
    steps
}

fn rules(c: &mut Criterion) {
    const HANDS: u64 = 1000;
    let mut group = c.benchmark_group("kuhn");
    let steps = |seed: Seed| {
        let mut rng = seed.rng();
        (0..HANDS).map(|_| playout(&mut rng)).sum::<u64>()
    };
    group.throughput(Throughput::Elements(steps(Seed::new(1))));
    group.bench_function("random playouts, steps", |b| b.iter(|| black_box(steps(Seed::new(1)))));

    let env_spec = KuhnSpec::default();
    let task =
        env_spec.default_population().sample_task("train", 2, Seed::new(1)).expect("the default population has one");
    let mut env = env_spec.build(&task).expect("the task builds");
    let mut turns = || (0..HANDS as u32).map(|n| episode(env.as_mut(), n % 10, n % 2 == 0)).sum::<u64>();
    group.throughput(Throughput::Elements(turns()));
    group.bench_function("table with texts, agent's steps", |b| b.iter(|| black_box(turns())));
    group.finish();
}

fn oracles(c: &mut Criterion) {
    let mut group = c.benchmark_group("kuhn oracles");
    group.sample_size(20);
    let tree = HistoryTree::new(&Kuhn).expect("Kuhn is small");
    group.bench_function("CFR, 1000 iterations", |b| {
        b.iter_batched_ref(|| Cfr::new(&tree), |cfr| cfr.run(1000), BatchSize::SmallInput);
    });
    let env_spec = KuhnSpec::default();
    let population = env_spec.default_population();
    let candidates = Candidate::of_split(&population, "train", &env_spec.opponents).expect("the split exists");
    for seat in 0..2 {
        group.bench_function(format!("Bayes-adaptive optimum, 10 episodes, seat {seat}"), |b| {
            b.iter(|| black_box(BayesAdaptiveSolver::new(&Kuhn, seat, Deal::Fresh, &candidates, 10).expect("small")));
        });
    }
    // Too many beliefs for an exact solution: bounds are tightened over several tolerances.
    let switching = r#"
        env = "kuhn"
        [[opponent]]
        name = "switcher"
        kind = "switching"
        between = ["conservative", "aggressive", "intermediate"]
        stay = 0.8
    "#;
    let population = Population::from_toml(switching, "bench").expect("the population reads");
    group.sample_size(10);
    group.bench_function("switching opponent, 10 episodes, seat 0", |b| {
        b.iter(|| black_box(env_spec.bayes(&population, "train", 0, 10).expect("bounded")));
    });
    group.finish();
}

criterion_group!(benches, rules, oracles);
criterion_main!(benches);
