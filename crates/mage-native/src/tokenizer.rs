//! Tokenizers for new models.
//!
//! [`chat_tokenizer`] trains byte-level BPE on text and adds chat control tokens. [`word_tokenizer`] has one token per word,
//! separated by spaces, for small models that use the compact form.

use mage_engine::{Error, Renderer, Result};
use serde_json::{Map, Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// Control tokens of a chat tokenizer, and whether they are special tokens.
const CHAT_CONTROL: [(&str, bool); 5] =
    [("<|endoftext|>", true), ("<|im_start|>", true), ("<|im_end|>", true), ("<think>", false), ("</think>", false)];

/// ChatML template in the style of Qwen3. Reasoning of earlier messages is left out; with thinking disabled, the assistant
/// message starts with an empty reasoning block.
const CHAT_TEMPLATE: &str = "\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and thoughts %}
            {%- set content = '<think>\\n' + thoughts + '\\n</think>\\n\\n' + content %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
";

/// Trains a byte-level BPE tokenizer of at most `size` tokens on `text`, with control tokens and a chat template.
pub fn chat_tokenizer(text: &str, size: usize) -> Result<Renderer> {
    let min_size = 256 + CHAT_CONTROL.len();
    if size < min_size {
        return Err(Error::invalid(
            "tokenizer size",
            format!("{size} is below {min_size}, the number of bytes and control tokens"),
        ));
    }
    let failed = |e: tokenizers::Error| Error::invalid("tokenizer", e.to_string());
    let mut tokenizer = Tokenizer::new(BPE::default());
    let bytes = || ByteLevel::new(false, false, true);
    tokenizer.with_pre_tokenizer(Some(bytes()));
    tokenizer.with_decoder(Some(bytes()));
    let mut trainer = TrainerWrapper::from(
        BpeTrainer::builder()
            .vocab_size(size - CHAT_CONTROL.len())
            .min_frequency(2)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build(),
    );
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    tokenizer.train(&mut trainer, lines.into_iter()).map_err(failed)?;
    for (word, special) in CHAT_CONTROL {
        let token = AddedToken::from(word, special).normalized(false);
        if special { tokenizer.add_special_tokens([token]) } else { tokenizer.add_tokens([token]) }.map_err(failed)?;
    }
    let json = tokenizer.to_string(false).map_err(failed)?;
    Renderer::new(&json, Some(CHAT_TEMPLATE), None, Some("<|im_end|>"))
}

/// Control tokens of a word tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordControlTokens {
    /// Starts a prompt.
    pub bos: String,
    /// Ends a prompt; the response follows.
    pub go: String,
    /// Ends a response.
    pub end: String,
    /// Replaces unknown words.
    pub unknown: String,
}

impl Default for WordControlTokens {
    fn default() -> Self {
        WordControlTokens { bos: "[BOS]".into(), go: "[GO]".into(), end: "[END]".into(), unknown: "[?]".into() }
    }
}

/// A tokenizer with one token per word, separated by spaces. Control tokens have the lowest ids, and encoding text never
/// yields one. The chat template is `bos`, all messages, then `go`.
pub fn word_tokenizer(words: &[String], control: &WordControlTokens) -> Result<Renderer> {
    let specials = [&control.bos, &control.go, &control.end];
    let mut vocabulary = Map::new();
    for word in specials.into_iter().chain([&control.unknown]).chain(words) {
        if word.is_empty() || word.chars().any(char::is_whitespace) {
            return Err(Error::invalid(
                "vocabulary",
                format!("`{word}` is not a word: it is empty or contains spaces"),
            ));
        }
        let id = vocabulary.len();
        if vocabulary.insert(word.clone(), id.into()).is_some() {
            return Err(Error::invalid("vocabulary", format!("duplicate word `{word}`")));
        }
    }
    let added: Vec<Value> = specials
        .iter()
        .enumerate()
        .map(|(id, word)| {
            json!({"id": id, "content": word, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": true})
        })
        .collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": control.unknown},
    });
    let template = format!(
        "{} {{% for message in messages %}}{{{{ message.content }}}} {{% endfor %}}{{% if add_generation_prompt %}}{}{{% endif %}}",
        control.bos, control.go
    );
    Renderer::new(&json.to_string(), Some(&template), Some(&control.bos), Some(&control.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_engine::{ChatMessage, Thinking};

    #[test]
    fn each_word_is_one_token() {
        let words: Vec<String> = ["J", "Q", "K", "BET", "PASS"].map(str::to_owned).to_vec();
        let r = word_tokenizer(&words, &WordControlTokens::default()).unwrap();
        assert_eq!(r.vocab_size(), 9);
        assert_eq!(r.encode("K BET x [GO]").unwrap(), [6, 7, 3, 3]);
        assert_eq!(r.encode_chat(&[ChatMessage::user("J PASS")], Thinking::Off, true).unwrap(), [0, 4, 8, 1]);
        assert_eq!(r.decode(&[6, 7, 2]).unwrap(), "K BET");
        assert!(word_tokenizer(&["a b".to_owned()], &WordControlTokens::default()).is_err());
        assert!(word_tokenizer(&["a".to_owned(), "a".to_owned()], &WordControlTokens::default()).is_err());
    }

    #[test]
    fn decoding_inverts_encoding() {
        let text = "The opponent bets. The opponent passes.\nYour card: the King.\n".repeat(40);
        let r = chat_tokenizer(&text, 300).unwrap();
        assert!(r.vocab_size() <= 300 && r.vocab_size() > 261, "{}", r.vocab_size());
        for sample in ["The opponent bets.\n", "Ünïcödé ♠ \u{1F0A1}", "  two  spaces "] {
            assert_eq!(r.decode(&r.encode(sample).unwrap()).unwrap(), sample);
        }
        assert!(r.encode("The opponent").unwrap().len() < 12);
        assert!(r.encode("<|im_end|></think>").unwrap().iter().all(|&t| !r.is_control(t)));
        assert!(chat_tokenizer(&text, 10).is_err());
        assert!(chat_tokenizer("", 300).is_ok(), "without text only the bytes remain");
    }

    #[test]
    fn chat_template_omits_reasoning_of_earlier_messages() {
        let r = chat_tokenizer("", 300).unwrap();
        let show = |messages: &[ChatMessage], thinking, open| {
            r.decode_all(&r.encode_chat(messages, thinking, open).unwrap()).unwrap()
        };
        let first =
            [ChatMessage::user("a"), ChatMessage::assistant("<think>\nhm\n</think>\n\nb"), ChatMessage::user("c")];
        assert_eq!(
            show(&first, Thinking::Off, true),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n\
             <|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        assert!(show(&first, Thinking::On, true).ends_with("<|im_start|>assistant\n"));
        assert!(show(&first[..2], Thinking::On, false).contains("<think>\nhm\n</think>\n\nb<|im_end|>"));
    }
}
