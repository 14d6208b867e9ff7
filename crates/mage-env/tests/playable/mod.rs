//! Can whatever is read as a household be played? Shared by a test and a fuzz target.

use mage_env::alfworld::{World, opening, read_problem, solve};

/// Reads any text as a problem. An error names a line; a household can be played, and what the expert does wins.
pub(crate) fn read_and_play(text: &str) -> bool {
    let household = match read_problem(text, "Your task is to: fuzz.") {
        Ok(household) => household,
        Err(e) => {
            assert!(e.to_string().starts_with("pddl_problem"), "{e}");
            return false;
        }
    };
    let world = World::new(&household);
    assert!(opening(&world).ends_with("fuzz."));
    let mut state = world.start().clone();
    for turn in 0..8 {
        let offers = world.admissible(&state);
        let words: Vec<String> = offers.iter().map(|c| world.write(*c)).collect();
        assert!(words.is_sorted() && offers.iter().zip(&words).all(|(c, w)| world.read(w) == Some(*c)), "{words:?}");
        let (seen, allowed) = world.step(&mut state, &words[turn * 7 % words.len()]);
        assert!(allowed && !seen.is_empty());
    }
    if let Some(way) = solve(&world, &state) {
        way.into_iter().for_each(|c| world.apply(&mut state, c));
        assert!(world.won(&state));
    }
    true
}
