//! Mutated problems: each is rejected with a reason or can be played. The fuzz target `alfworld_game` checks the same for
//! arbitrary input.

use crate::playable::read_and_play;
use mage_env::{
    Rng, Seed,
    alfworld::{AlfworldGame, RoomSplit, generate, problem},
};
use rand::{RngExt, seq::IndexedRandom};

/// Mutates a text once: removes, duplicates or replaces a word or line, changes a character, or truncates the text.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return String::new();
    }
    let at = rng.random_range(0..lines.len());
    let other = lines.choose(rng).unwrap().clone();
    match rng.random_range(0..7) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, other),
        2 => lines[at] = other,
        3 => {
            let mut words: Vec<&str> = lines[at].split(' ').collect();
            let w = rng.random_range(0..words.len());
            words[w] = other.split(' ').next_back().unwrap();
            lines[at] = words.join(" ");
        }
        4 => {
            let words: Vec<&str> = lines[at].split(' ').collect();
            let lost = rng.random_range(0..words.len());
            lines[at] = words.iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, w)| format!("{w} ")).collect();
        }
        5 => {
            let mut letters: Vec<char> = lines[at].chars().collect();
            let letter = *['(', ')', '-', ';', '?', ' ', 'é', '\0'].choose(rng).unwrap();
            match letters.len() {
                0 => letters.push(letter),
                len => letters[rng.random_range(0..len)] = letter,
            }
            lines[at] = letters.into_iter().collect();
        }
        _ => lines.truncate(at),
    }
    lines.join("\n")
}

#[test]
fn every_mutated_problem_is_rejected_or_playable() {
    let (mut rejected, mut played) = (0, 0);
    for i in 0..60 {
        let original = problem(&generate(RoomSplit::Seen, &[], Seed::new(i)).household);
        assert!(read_and_play(&original));
        let mut rng = Seed::new(i).child("spoil").rng();
        for _ in 0..40 {
            let mut text = mutate(&original, &mut rng);
            for _ in 0..rng.random_range(0..3) {
                text = mutate(&text, &mut rng);
            }
            *if read_and_play(&text) { &mut played } else { &mut rejected } += 1;
        }
    }
    assert!(rejected > 500 && played > 100, "{rejected} rejected, {played} played");
}

#[test]
fn every_mutated_file_is_rejected_by_name() {
    let made = generate(RoomSplit::Seen, &[], Seed::new(1));
    let file = serde_json::json!({
        "pddl_domain": "(define (domain alfred))",
        "grammar": "grammar",
        "pddl_problem": problem(&made.household),
        "solvable": true,
        "walkthrough": made.walkthrough,
    });
    let original = file.to_string();
    let error = |bytes: &[u8]| AlfworldGame::read(bytes, "some/game.tw-pddl").unwrap_err().to_string();
    assert!(error(original.as_bytes()).starts_with("some/game.tw-pddl: pddl_domain: unknown rules"));
    let mut rng = Seed::new(2).rng();
    for _ in 0..300 {
        let mut bytes = original.clone().into_bytes();
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..3) {
            0 => bytes.truncate(at),
            1 => bytes[at] = rng.random(),
            _ => drop(bytes.drain(at..(at + 50).min(original.len()))),
        }
        assert!(error(&bytes).starts_with("some/game.tw-pddl: "));
    }
    for foreign in ["", "null", "[]", "{}", "{\"pddl_domain\": 1}", "PNG", "\u{feff}{}"] {
        assert!(error(foreign.as_bytes()).starts_with("some/game.tw-pddl: not a game.tw-pddl"), "{foreign}");
    }
}
