//! Fuzz target: a chat template renders within its limits, or is refused with an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mage_engine::{ChatMessage, ChatRole, Renderer, Thinking};
use mage_native::{WordControlTokens, word_tokenizer};
use std::sync::LazyLock;

static TOKENIZER: LazyLock<String> = LazyLock::new(|| {
    let words = ["BET", "PASS"].map(str::to_owned);
    word_tokenizer(&words, &WordControlTokens::default()).unwrap().tokenizer_json().to_owned()
});

fuzz_target!(|source: &str| {
    let Ok(renderer) = Renderer::new(&TOKENIZER, Some(source), None, None) else { return };
    let message = |role, content: &str| ChatMessage { role, content: content.to_owned() };
    let messages = [message(ChatRole::System, "BET"), message(ChatRole::User, "BET PASS")];
    for thinking in [Thinking::Off, Thinking::On] {
        let _ = renderer.encode_chat(&messages, thinking, thinking == Thinking::Off);
    }
});
