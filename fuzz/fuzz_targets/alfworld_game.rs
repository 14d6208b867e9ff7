//! Fuzz target: reading an ALFWorld game file yields a playable game or an error.
//!
//! The file contains hashes of the rules, which a fuzzer cannot guess, so the PDDL problem is also read separately.

#![no_main]

#[path = "../../crates/mage-env/tests/playable/mod.rs"]
mod playable;

use libfuzzer_sys::fuzz_target;
use mage_env::alfworld::AlfworldGame;

fuzz_target!(|bytes: &[u8]| {
    if let Err(e) = AlfworldGame::read(bytes, "fuzz") {
        assert!(e.to_string().starts_with("fuzz: "), "{e}");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        playable::read_and_play(text);
    }
});
