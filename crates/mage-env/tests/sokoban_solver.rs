//! The Sokoban solver on generated rooms.

use mage_env::sokoban::{
    Generator, Move, MoveEffect, RoomConfig, SearchCost, SearchResult, SokobanBoard, SokobanLevel, SokobanState, plan,
    solve,
};
use std::collections::{HashSet, VecDeque};

/// State limit of one search.
const STATES: usize = 4_000_000;

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
