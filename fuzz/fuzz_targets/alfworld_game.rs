//! Whatever stands in a game file, reading it gives a game that can be played, or an error. The rules' hashes would keep a
//! fuzzer out, so the problem is also read on its own.

#![no_main]

#[path = "../../crates/mage-env/tests/playable/mod.rs"]
mod playable;

use libfuzzer_sys::fuzz_target;
use mage_env::alfworld::Game;

fuzz_target!(|bytes: &[u8]| {
    if let Err(e) = Game::read(bytes, "fuzz") {
        assert!(e.to_string().starts_with("fuzz: "), "{e}");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        playable::read_and_play(text);
    }
});
