//! Whatever stands in a game file, reading it gives a game that can be played, or an error. The rules' hashes would keep a
//! fuzzer out, so the problem is also read on its own.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_env::alfworld::{Game, World, opening, read_problem, solve};

fuzz_target!(|bytes: &[u8]| {
    let _ = Game::read(bytes, "fuzz");
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(household) = read_problem(text, "Your task is to: fuzz.") else { return };
    let world = World::new(&household);
    assert!(opening(&world).ends_with("fuzz."));
    let mut state = world.start().clone();
    for turn in 0..8 {
        let offers = world.admissible(&state);
        let words: Vec<String> = offers.iter().map(|c| world.write(*c)).collect();
        assert!(words.is_sorted() && offers.iter().zip(&words).all(|(c, w)| world.read(w) == Some(*c)));
        let (seen, allowed) = world.step(&mut state, &words[turn * 7 % words.len()]);
        assert!(allowed && !seen.is_empty());
    }
    if let Some(way) = solve(&world, &state) {
        way.into_iter().for_each(|c| world.apply(&mut state, c));
        assert!(world.won(&state));
    }
});
