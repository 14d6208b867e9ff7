//! What is the shortest way to solve a room, exactly as the reference finds it?

use super::board::{Board, Move, Moved, State};
use std::collections::HashSet;

/// The shortest solution of at most `most` moves. Among several, the first in the order up, down, left, right, compared
/// move by move: breadth first, as in the reference. For rooms; levels with more states need [`solve`](super::solve).
pub fn shortest_path(board: &Board, from: State, most: u32) -> Option<Vec<Move>> {
    let mut states = vec![(from, 0_u32, None::<Move>)];
    let mut seen = HashSet::from([from]);
    let (mut level_end, mut depth) = (1, 0);
    let mut i = 0;
    while i < states.len() {
        if i == level_end {
            depth += 1;
            level_end = states.len();
        }
        let (s, _, _) = states[i];
        if board.solved(&s) {
            return Some(trace(&states, i));
        }
        if depth < most {
            for way in Move::ALL {
                let mut next = s;
                if board.go(&mut next, way) != Moved::Nothing && seen.insert(next) {
                    states.push((next, i as u32, Some(way)));
                }
            }
        }
        i += 1;
    }
    None
}

fn trace(states: &[(State, u32, Option<Move>)], end: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut at = end;
    while let (_, parent, Some(way)) = states[at] {
        moves.push(way);
        at = parent as usize;
    }
    moves.reverse();
    moves
}
