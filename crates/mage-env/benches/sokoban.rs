//! Benchmarks of Sokoban: room generation, moves, actions and solvers.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mage_env::{
    Env, ParsedAction, Seed,
    sokoban::{
        Generator, Move, Rendering, RoomConfig, SearchCost, SokobanBoard, SokobanConfig, SokobanEnv, SokobanEpisode,
        SokobanLevel, SolvabilityChecker, StepRules, plan, solve,
    },
};
use rand::RngExt;
use std::hint::black_box;

/// A hand-made level of Boxoban's size.
const LEVEL: &str = "\
##########
#   #    #
# $ # .  #
#   ## # #
# #    . #
# # $$ ###
#   #    #
# . # $. #
#      @ #
##########
";

fn rooms(c: &mut Criterion) {
    let mut group = c.benchmark_group("sokoban room");
    group.throughput(Throughput::Elements(100));
    for boxes in 1..=3 {
        let config = RoomConfig { boxes, ..RoomConfig::default() };
        let mut generator = Generator::new(config).expect("config");
        group.bench_function(format!("{boxes} boxes"), |b| {
            b.iter(|| (0..100).for_each(|seed| drop(black_box(generator.room(seed).expect("room")))));
        });
    }
    group.finish();
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("sokoban step");
    for boxes in 1..=3 {
        let mut generator = Generator::new(RoomConfig { boxes, ..RoomConfig::default() }).expect("config");
        let boards: Vec<_> = (0..100)
            .map(|seed| SokobanBoard::new(&generator.room(seed).expect("room").level).expect("board"))
            .collect();
        let mut rng = Seed::new(1).rng();
        let moves: Vec<Move> = (0..20).map(|_| Move::ALL[rng.random_range(0..4)]).collect();
        group.throughput(Throughput::Elements(100 * moves.len() as u64));
        let mut solvable = SolvabilityChecker::new(100);
        group.bench_function(format!("{boxes} boxes, including the solvability table"), |b| {
            b.iter(|| {
                for (board, start) in &boards {
                    solvable.clear();
                    let mut play = SokobanEpisode::new(board, *start);
                    for direction in &moves {
                        black_box(play.step(board, Some(*direction), u32::MAX, &mut solvable));
                    }
                }
            });
        });
    }
    group.finish();
}

fn actions(c: &mut Criterion) {
    let mut generator = Generator::new(RoomConfig::default()).expect("config");
    let config = SokobanConfig {
        step_rules: StepRules::Corrected,
        moves_per_action: 3,
        max_steps: 30,
        search_depth: 100,
        render: Rendering::TextWithRowNumbers,
    };
    let mut env = SokobanEnv::new(&generator.room(1).expect("room").level, config).expect("env");
    env.reset(0);
    let action = ParsedAction::Act("right left up".to_owned());
    c.bench_function("sokoban action of three moves, with both observations", |b| {
        b.iter_batched(
            || (),
            |()| {
                env.reset(0);
                black_box(env.step(&action))
            },
            BatchSize::SmallInput,
        );
    });
}

fn solver(c: &mut Criterion) {
    let (board, start) = SokobanBoard::new(&SokobanLevel::parse(LEVEL, "bench").expect("level")).expect("board");
    let mut group = c.benchmark_group("sokoban solve 10x10");
    group.sample_size(10);
    group
        .bench_function("fewest pushes", |b| b.iter(|| black_box(solve(&board, start, SearchCost::Pushes, 4_000_000))));
    group.bench_function("fewest moves", |b| b.iter(|| black_box(solve(&board, start, SearchCost::Moves, 4_000_000))));
    group.bench_function("table of solvable states", |b| {
        b.iter(|| black_box(SolvabilityChecker::new(u32::MAX).check(&board, &start)));
    });
    group.finish();
    let mut generator = Generator::new(RoomConfig::default()).expect("config");
    let (board, start) = SokobanBoard::new(&generator.room(1).expect("room").level).expect("board");
    c.bench_function("sokoban plan 6x6", |b| b.iter(|| black_box(plan(&board, start))));
}

criterion_group!(benches, rooms, steps, actions, solver);
criterion_main!(benches);
