//! Fuzz target: reading a Sokoban level file yields levels that can be written, played and rendered, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_env::sokoban::{Move, Rendering, SokobanBoard, SokobanLevel, compact, parse_compact, render};

fuzz_target!(|text: &str| {
    let Ok(levels) = SokobanLevel::parse_all(text, "fuzz") else { return };
    assert!(!levels.is_empty());
    for level in levels {
        assert_eq!(SokobanLevel::parse(&level.to_string(), "again").as_ref().ok(), Some(&level));
        let (board, start) = SokobanBoard::new(&level).unwrap();
        assert!(!board.is_solved(&start));
        let (again, same) = parse_compact(&compact(&board, &start)).unwrap();
        assert_eq!((same.boxes, same.player, again.boxes()), (start.boxes, start.player, board.boxes()));
        let mut state = start;
        for direction in [Move::Left, Move::Up, Move::Right, Move::Right, Move::Down] {
            board.apply(&mut state, direction);
            assert_eq!(state.boxes.count_ones(), board.boxes());
        }
        let mut out = String::new();
        render(&board, &state, Rendering::TextWithRowNumbers, &mut out);
        assert_eq!(out.lines().count(), level.rows());
    }
});
