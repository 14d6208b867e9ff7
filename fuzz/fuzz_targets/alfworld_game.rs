//! Parsing any game file returns a playable game or an error. Since a fuzzer cannot produce the rules' hashes, the problem is
//! also parsed on its own.

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
