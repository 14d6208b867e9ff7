//! Boxoban levels: loading, solving, and agreement of the solvers.

use mage_env::sokoban::{
    Move, SearchCost, SearchResult, SokobanBoard, SokobanEpisode, SokobanLevel, SolvabilityChecker, load_levels, solve,
};
use mage_testing::data_path;
use std::path::Path;

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

pub(crate) fn all_levels_load() {
    let folder = data_path("sokoban/boxoban");
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

pub(crate) fn five_hundred_levels_are_solved() {
    let folder = data_path("sokoban/boxoban");
    sample(&levels(&folder, "hard"), 100).for_each(solve_and_check);
    sample(&levels(&folder, "unfiltered/test"), 200).for_each(solve_and_check);
    sample(&levels(&folder, "medium/valid"), 200).for_each(solve_and_check);
}

pub(crate) fn all_levels_are_solved() {
    let folder = data_path("sokoban/boxoban");
    levels(&folder, "").iter().for_each(solve_and_check);
}

/// Forward search and retrograde table must agree, deadlocks included.
pub(crate) fn solver_and_table_agree_along_random_walks() {
    let folder = data_path("sokoban/boxoban");
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
