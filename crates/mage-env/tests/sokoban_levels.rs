//! Boxoban levels: loading, solving, and agreement of the solvers.

mod data;

use mage_env::sokoban::{
    Generator, Move, MoveEffect, RoomConfig, SearchCost, SearchResult, SokobanBoard, SokobanEpisode, SokobanLevel,
    SokobanState, SolvabilityChecker, load_levels, plan, solve,
};
use std::{
    collections::{HashSet, VecDeque},
    path::Path,
};

/// State limit of one search.
const STATES: usize = 4_000_000;

fn levels(folder: &Path, subset: &str) -> Vec<SokobanLevel> {
    load_levels(&folder.join(subset)).unwrap()
}

/// `count` levels sampled at even spacing.
fn sample(levels: &[SokobanLevel], count: usize) -> impl Iterator<Item = &SokobanLevel> {
    levels.iter().step_by((levels.len() / count).max(1)).take(count)
}

/// Solves a level with the fewest pushes and replays the solution.
fn solve_and_check(level: &SokobanLevel) {
    let (board, start) = SokobanBoard::new(level).unwrap();
    let SearchResult::Solved(solution) = solve(&board, start, SearchCost::Pushes, STATES) else {
        panic!("not solved:\n{level}")
    };
    let mut play = SokobanEpisode::new(&board, start);
    let mut pushes = 0;
    for direction in &solution.moves {
        let before = play.state.boxes;
        board.apply(&mut play.state, *direction);
        pushes += u32::from(play.state.boxes != before);
    }
    assert!(board.is_solved(&play.state), "the moves do not solve the level:\n{level}");
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
        let (board, _) = SokobanBoard::new(level).unwrap();
        assert_eq!((level.rows(), level.cols(), board.boxes()), (10, 10, 4));
        assert_eq!(SokobanLevel::parse(&level.to_string(), "again").unwrap(), *level);
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

/// Forward search and retrograde table must agree, deadlocks included.
#[test]
fn solver_and_table_agree_along_random_walks() {
    let Some(folder) = data::file("sokoban/boxoban") else { return };
    let levels = levels(&folder, "unfiltered/test");
    let (mut open, mut dead) = (0, 0);
    for (i, level) in sample(&levels, 4).enumerate() {
        let (board, start) = SokobanBoard::new(level).unwrap();
        let mut rng = mage_env::Seed::new(i as u64).rng();
        let mut solvable = SolvabilityChecker::new(u32::MAX);
        let mut state = start;
        for _ in 0..120 {
            let direction = Move::ALL[rand::RngExt::random_range(&mut rng, 0..4)];
            let before = state.boxes;
            board.apply(&mut state, direction);
            if state.boxes == before {
                continue;
            }
            let verdict = solve(&board, state, SearchCost::Pushes, STATES);
            let can_solve = matches!(verdict, SearchResult::Solved(_));
            assert!(can_solve || verdict == SearchResult::Unsolvable);
            assert_eq!(solvable.check(&board, &state), can_solve);
            if can_solve {
                open += 1;
            } else {
                dead += 1;
                state = start;
            }
        }
    }
    assert!(open > 10 && dead > 3, "{open} {dead}");
}

/// Compares A* with searches that use no heuristic, deadlock detection or player regions.
#[test]
fn solutions_are_optimal() {
    let config = RoomConfig { max_solution: 60, min_solution: 1, boxes: 3, ..RoomConfig::default() };
    let mut generator = Generator::new(config).unwrap();
    for seed in 0..300 {
        let room = generator.room(seed).unwrap();
        let (board, start) = SokobanBoard::new(&room.level).unwrap();
        let solved = |cost| match solve(&board, start, cost, STATES) {
            SearchResult::Solved(s) => s,
            other => panic!("{other:?}"),
        };
        assert_eq!(Some(solved(SearchCost::Moves).moves.len() as u32), room.solution, "seed {seed}");
        assert_eq!(solved(SearchCost::Pushes).pushes, fewest_pushes(&board, start), "seed {seed}");
    }
}

/// 0-1 breadth-first search in which only pushes cost.
fn fewest_pushes(board: &SokobanBoard, start: SokobanState) -> u32 {
    let mut done = HashSet::new();
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((s, pushes)) = queue.pop_front() {
        if board.is_solved(&s) {
            return pushes;
        }
        if !done.insert(s) {
            continue;
        }
        for direction in Move::ALL {
            let mut next = s;
            match board.apply(&mut next, direction) {
                MoveEffect::Blocked => {}
                MoveEffect::Walked => queue.push_front((next, pushes)),
                MoveEffect::Pushed => queue.push_back((next, pushes + 1)),
            }
        }
    }
    panic!("no solution")
}

#[test]
fn each_cost_is_minimised() {
    let text = "##########\n#        #\n# $  .   #\n# ## ##  #\n#@  $  . #\n##########";
    let (board, start) = SokobanBoard::new(&SokobanLevel::parse(text, "t").unwrap()).unwrap();
    let solved = |cost| match solve(&board, start, cost, STATES) {
        SearchResult::Solved(s) => s,
        other => panic!("{other:?}"),
    };
    let (pushes, moves) = (solved(SearchCost::Pushes), solved(SearchCost::Moves));
    assert!(pushes.pushes <= moves.pushes && moves.moves.len() <= pushes.moves.len());
    let exact = mage_env::sokoban::shortest_path(&board, start, 1000).unwrap();
    assert_eq!(moves.moves.len(), exact.len());
    assert_eq!(plan(&board, start).unwrap().len(), exact.len());
    assert_eq!(solve(&board, start, SearchCost::Pushes, 1), SearchResult::StateLimit(1));
}
