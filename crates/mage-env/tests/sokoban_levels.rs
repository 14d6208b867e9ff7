//! Can Boxoban's levels be read and solved?

mod data;

use mage_env::sokoban::{
    Board, Cost, Generator, Level, Move, Moved, Play, RoomSettings, Solvable, State, Verdict, load_levels, plan, solve,
};
use std::{
    collections::{HashSet, VecDeque},
    path::Path,
};

/// Memory bound of one search, in states.
const STATES: usize = 4_000_000;

fn levels(folder: &Path, of: &str) -> Vec<Level> {
    load_levels(&folder.join(of)).unwrap()
}

/// Every `n`th level until there are `count`.
fn sample(levels: &[Level], count: usize) -> impl Iterator<Item = &Level> {
    levels.iter().step_by((levels.len() / count).max(1)).take(count)
}

/// Solves a level with the fewest pushes and plays the solution through.
fn solve_and_check(level: &Level) {
    let (board, start) = Board::new(level).unwrap();
    let Verdict::Solved(solution) = solve(&board, start, Cost::Pushes, STATES) else { panic!("not solved:\n{level}") };
    let mut play = Play::new(&board, start);
    let mut pushes = 0;
    for way in &solution.moves {
        let before = play.state.boxes;
        board.go(&mut play.state, *way);
        pushes += u32::from(play.state.boxes != before);
    }
    assert!(board.solved(&play.state), "the moves do not solve it:\n{level}");
    assert_eq!(pushes, solution.pushes);
}

#[test]
fn all_levels_load() {
    let Some(folder) = data::file("sokoban/boxoban") else { return };
    assert_eq!(levels(&folder, "hard").len(), 3332);
    assert_eq!(levels(&folder, "unfiltered/test").len(), 1000);
    assert_eq!(levels(&folder, "medium/valid").len(), 1000);
    let all = levels(&folder, "");
    assert_eq!(all.len(), 5332);
    for level in &all {
        let (board, _) = Board::new(level).unwrap();
        assert_eq!((level.rows(), level.cols(), board.boxes()), (10, 10, 4));
        assert_eq!(Level::parse(&level.to_string(), "again").unwrap(), *level);
    }
}

#[test]
fn five_hundred_levels_are_solved() {
    let Some(folder) = data::file("sokoban/boxoban") else { return };
    sample(&levels(&folder, "hard"), 100).for_each(solve_and_check);
    sample(&levels(&folder, "unfiltered/test"), 200).for_each(solve_and_check);
    sample(&levels(&folder, "medium/valid"), 200).for_each(solve_and_check);
}

#[test]
#[cfg_attr(not(feature = "long"), ignore = "five thousand levels; run with --features long")]
fn all_levels_are_solved() {
    let Some(folder) = data::file("sokoban/boxoban") else { return };
    levels(&folder, "").iter().for_each(solve_and_check);
}

/// The solver and the table of all solvable states look from opposite ends and must agree, dead ends included.
#[test]
fn solver_and_table_agree_along_random_walks() {
    let Some(folder) = data::file("sokoban/boxoban") else { return };
    let levels = levels(&folder, "unfiltered/test");
    let (mut open, mut dead) = (0, 0);
    for (i, level) in sample(&levels, 4).enumerate() {
        let (board, start) = Board::new(level).unwrap();
        let mut rng = mage_env::Seed::new(i as u64).rng();
        let mut solvable = Solvable::new(u32::MAX);
        let mut state = start;
        for _ in 0..120 {
            let way = Move::ALL[rand::RngExt::random_range(&mut rng, 0..4)];
            let before = state.boxes;
            board.go(&mut state, way);
            if state.boxes == before {
                continue;
            }
            let verdict = solve(&board, state, Cost::Pushes, STATES);
            let can = matches!(verdict, Verdict::Solved(_));
            assert!(can || verdict == Verdict::Impossible);
            assert_eq!(solvable.check(&board, &state), can);
            if can {
                open += 1;
            } else {
                dead += 1;
                state = start;
            }
        }
    }
    assert!(open > 10 && dead > 3, "{open} {dead}");
}

/// A* against searches that know nothing of estimates, dead squares or regions.
#[test]
fn solutions_are_the_shortest_there_are() {
    let settings = RoomSettings { max_solution: 60, min_solution: 1, boxes: 3, ..RoomSettings::default() };
    let mut generator = Generator::new(settings).unwrap();
    for seed in 0..300 {
        let room = generator.room(seed).unwrap();
        let (board, start) = Board::new(&room.level).unwrap();
        let solved = |cost| match solve(&board, start, cost, STATES) {
            Verdict::Solved(s) => s,
            other => panic!("{other:?}"),
        };
        assert_eq!(Some(solved(Cost::Moves).moves.len() as u32), room.solution, "seed {seed}");
        assert_eq!(solved(Cost::Pushes).pushes, fewest_pushes(&board, start), "seed {seed}");
    }
}

/// Breadth first where walking is free.
fn fewest_pushes(board: &Board, start: State) -> u32 {
    let mut done = HashSet::new();
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((s, pushes)) = queue.pop_front() {
        if board.solved(&s) {
            return pushes;
        }
        if !done.insert(s) {
            continue;
        }
        for way in Move::ALL {
            let mut next = s;
            match board.go(&mut next, way) {
                Moved::Nothing => {}
                Moved::Player => queue.push_front((next, pushes)),
                Moved::Box => queue.push_back((next, pushes + 1)),
            }
        }
    }
    panic!("no solution")
}

#[test]
fn fewest_moves_are_never_more_than_with_fewest_pushes() {
    let text = "##########\n#        #\n# $  .   #\n# ## ##  #\n#@  $  . #\n##########";
    let (board, start) = Board::new(&Level::parse(text, "t").unwrap()).unwrap();
    let solved = |cost| match solve(&board, start, cost, STATES) {
        Verdict::Solved(s) => s,
        other => panic!("{other:?}"),
    };
    let (pushes, moves) = (solved(Cost::Pushes), solved(Cost::Moves));
    assert!(pushes.pushes <= moves.pushes && moves.moves.len() <= pushes.moves.len());
    let exact = mage_env::sokoban::shortest_path(&board, start, 1000).unwrap();
    assert_eq!(moves.moves.len(), exact.len());
    assert_eq!(plan(&board, start).unwrap().len(), exact.len());
    assert_eq!(solve(&board, start, Cost::Pushes, 1), Verdict::GaveUp(1));
}
