//! Breadth-first search for the shortest solution, with the reference's tie-breaking.

use super::board::{Move, MoveEffect, SokobanBoard, SokobanState};
use std::collections::HashSet;

/// The shortest solution of at most `max_moves` moves. Ties are broken by the order up, down, left, right, compared move
/// by move, as in the reference. For small rooms; larger levels need [`solve`](super::solve).
pub fn shortest_path(board: &SokobanBoard, from: SokobanState, max_moves: u32) -> Option<Vec<Move>> {
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
        if board.is_solved(&s) {
            return Some(trace(&states, i));
        }
        if depth < max_moves {
            for direction in Move::ALL {
                let mut next = s;
                if board.apply(&mut next, direction) != MoveEffect::Blocked && seen.insert(next) {
                    states.push((next, i as u32, Some(direction)));
                }
            }
        }
        i += 1;
    }
    None
}

fn trace(states: &[(SokobanState, u32, Option<Move>)], end: usize) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut at = end;
    while let (_, parent, Some(direction)) = states[at] {
        moves.push(direction);
        at = parent as usize;
    }
    moves.reverse();
    moves
}
