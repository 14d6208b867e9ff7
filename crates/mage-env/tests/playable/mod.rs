//! Parses a problem and plays it. Shared by a test and a fuzz target.

use mage_env::alfworld::{HouseholdWorld, initial_observation, read_problem, solve};

/// Parses a text as a problem. An error must name the line; a parsed household must be playable, and the expert's plan must win.
pub(crate) fn read_and_play(text: &str) -> bool {
    let household = match read_problem(text, "Your task is to: fuzz.") {
        Ok(household) => household,
        Err(e) => {
            assert!(e.to_string().starts_with("pddl_problem"), "{e}");
            return false;
        }
    };
    let world = HouseholdWorld::new(&household);
    assert!(initial_observation(&world).ends_with("fuzz."));
    let mut state = world.start().clone();
    for step in 0..8 {
        let commands = world.admissible_commands(&state);
        let words: Vec<String> = commands.iter().map(|c| world.format_command(*c)).collect();
        assert!(
            words.is_sorted() && commands.iter().zip(&words).all(|(c, w)| world.parse_command(w) == Some(*c)),
            "{words:?}"
        );
        let (feedback, admissible) = world.step(&mut state, &words[step * 7 % words.len()]);
        assert!(admissible && !feedback.is_empty());
    }
    if let Some(plan) = solve(&world, &state) {
        plan.into_iter().for_each(|c| world.apply(&mut state, c));
        assert!(world.won(&state));
    }
    true
}
