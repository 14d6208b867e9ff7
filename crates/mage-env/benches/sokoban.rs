//! What do Sokoban's parts cost?

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mage_env::{
    Env, ParsedAction, Seed,
    sokoban::{
        Board, Cost, Generator, Level, Move, Play, Rendering, RoomSettings, SokobanWorld, Solvable, TurnRules,
        WorldSettings, plan, solve,
    },
};
use rand::RngExt;
use std::hint::black_box;

/// A level of Boxoban's size, of our own making.
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
        let settings = RoomSettings { boxes, ..RoomSettings::default() };
        let mut generator = Generator::new(settings).expect("settings");
        group.bench_function(format!("{boxes} boxes"), |b| {
            b.iter(|| (0..100).for_each(|seed| drop(black_box(generator.room(seed).expect("room")))));
        });
    }
    group.finish();
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("sokoban step");
    for boxes in 1..=3 {
        let mut generator = Generator::new(RoomSettings { boxes, ..RoomSettings::default() }).expect("settings");
        let boards: Vec<_> =
            (0..100).map(|seed| Board::new(&generator.room(seed).expect("room").level).expect("board")).collect();
        let mut rng = Seed::new(1).rng();
        let moves: Vec<Move> = (0..20).map(|_| Move::ALL[rng.random_range(0..4)]).collect();
        group.throughput(Throughput::Elements(100 * moves.len() as u64));
        let mut solvable = Solvable::new(100);
        group.bench_function(format!("{boxes} boxes, with solvability of each room found anew"), |b| {
            b.iter(|| {
                for (board, start) in &boards {
                    solvable.clear();
                    let mut play = Play::new(board, *start);
                    for way in &moves {
                        black_box(play.step(board, Some(*way), u32::MAX, &mut solvable));
                    }
                }
            });
        });
    }
    group.finish();
}

fn turns(c: &mut Criterion) {
    let mut generator = Generator::new(RoomSettings::default()).expect("settings");
    let settings = WorldSettings {
        turns: TurnRules::Corrected,
        moves_per_turn: 3,
        max_steps: 30,
        search_depth: 100,
        render: Rendering::TextWithRowNumbers,
    };
    let mut world = SokobanWorld::new(&generator.room(1).expect("room").level, settings).expect("world");
    world.begin(0);
    let turn = ParsedAction::Act("right left up".to_owned());
    c.bench_function("sokoban turn of three moves, with both views", |b| {
        b.iter_batched(
            || (),
            |()| {
                world.begin(0);
                black_box(world.step(&turn))
            },
            BatchSize::SmallInput,
        );
    });
}

fn solver(c: &mut Criterion) {
    let (board, start) = Board::new(&Level::parse(LEVEL, "bench").expect("level")).expect("board");
    let mut group = c.benchmark_group("sokoban solve 10x10");
    group.sample_size(10);
    group.bench_function("fewest pushes", |b| b.iter(|| black_box(solve(&board, start, Cost::Pushes, 4_000_000))));
    group.bench_function("fewest moves", |b| b.iter(|| black_box(solve(&board, start, Cost::Moves, 4_000_000))));
    group.bench_function("solvable states, all of them", |b| {
        b.iter(|| black_box(Solvable::new(u32::MAX).check(&board, &start)));
    });
    group.finish();
    let mut generator = Generator::new(RoomSettings::default()).expect("settings");
    let (board, start) = Board::new(&generator.room(1).expect("room").level).expect("board");
    c.bench_function("sokoban plan 6x6", |b| b.iter(|| black_box(plan(&board, start))));
}

criterion_group!(benches, rooms, steps, turns, solver);
criterion_main!(benches);
