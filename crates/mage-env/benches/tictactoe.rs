//! Benchmarks of Tic-Tac-Toe: rules, tree search and solvers.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mage_env::{
    CurrentPlayer, Game, Opponent, Registry, Seed, sample_uniform,
    solvers::mcts::SearchTree,
    tictactoe::{Board, Perfect, TicTacToe, TicTacToeBestResponse, paper_mcts},
};
use std::hint::black_box;

fn rules(c: &mut Criterion) {
    let mut rng = Seed::new(1).rng();
    c.bench_function("tictactoe random game", |b| {
        b.iter(|| {
            let mut state = TicTacToe.initial(&mut rng);
            while TicTacToe.current_player(&state) != CurrentPlayer::Terminal {
                let action = sample_uniform(&TicTacToe.legal(&state), &mut rng);
                TicTacToe.apply(&mut state, action);
            }
            black_box(TicTacToe.returns(&state))
        });
    });
    c.bench_function("tictactoe perfect move", |b| {
        b.iter(|| black_box(Perfect::default().act(&TicTacToe, &Board::default(), 0, &mut rng)));
    });
}

fn tree_search(c: &mut Criterion) {
    let mut group = c.benchmark_group("tictactoe tree search, first move");
    for simulations in [10, 100, 1_000] {
        let mut rng = Seed::new(2).rng();
        let mut tree = SearchTree::default();
        group.throughput(Throughput::Elements(u64::from(simulations)));
        group.bench_function(format!("{simulations} playouts"), |b| {
            b.iter(|| {
                black_box(paper_mcts(simulations).choose(&TicTacToe, &Board::default(), &mut tree, &mut rng));
            });
        });
    }
    group.finish();
}

fn oracles(c: &mut Criterion) {
    c.bench_function("tictactoe best answer to a random player", |b| {
        b.iter(|| {
            black_box(
                TicTacToeBestResponse::against(&mage_env::UniformOpponent, 0).expect("it has action probabilities"),
            )
        });
    });
    let registry = Registry::builtin();
    let env_spec = registry.get("tictactoe").expect("built in");
    let population = env_spec.default_population();
    let mut group = c.benchmark_group("tictactoe ceilings");
    group.sample_size(10);
    group.bench_function("blind-line, three episodes", |b| {
        b.iter(|| black_box(env_spec.oracles(&population, "train", 3).expect("exact")));
    });
    group.finish();
}

criterion_group!(benches, rules, tree_search, oracles);
criterion_main!(benches);
