//! Parsing of completions.
//!
//! [`last_tag`] returns the text between tags or the reason why there is none. It ignores thinking, and the *last*
//! complete pair counts, so that a tag mentioned while reasoning is not taken for the answer.
//!
//! ```
//! use mage_core::parse::{ParseError, last_tag};
//! let answer = "<think>maybe <action>PASS</action>?</think> I raise. <action> BET </action>";
//! assert_eq!(last_tag(answer, "action"), Ok("BET"));
//! assert_eq!(last_tag("BET", "action"), Err(ParseError::NoTag));
//! ```

use std::fmt;

/// Why a completion could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The completion ended inside the thinking.
    StillThinking,
    /// The tag does not occur.
    NoTag,
    /// The tag is opened but not closed.
    NotClosed,
    /// There is nothing between the tags.
    Empty,
}

impl ParseError {
    /// The reason as text for the model; prompts quote it.
    pub fn explain(self, tag: &str) -> String {
        match self {
            ParseError::StillThinking => "the answer ended before the thinking did".to_owned(),
            ParseError::NoTag => format!("the answer has no <{tag}>…</{tag}>"),
            ParseError::NotClosed => format!("<{tag}> is not closed by </{tag}>"),
            ParseError::Empty => format!("there is nothing between <{tag}> and </{tag}>"),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain("tag"))
    }
}

const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";

/// The text after the thinking.
pub(crate) fn strip_thinking(text: &str) -> Result<&str, ParseError> {
    let after = text.rfind(THINK_CLOSE).map_or(text, |at| &text[at + THINK_CLOSE.len()..]);
    if after.contains(THINK_OPEN) { Err(ParseError::StillThinking) } else { Ok(after) }
}

/// The trimmed text between the last complete pair of `<tag>` and `</tag>` after the thinking.
pub fn last_tag<'t>(text: &'t str, tag: &str) -> Result<&'t str, ParseError> {
    let text = strip_thinking(text)?;
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let before_last_close = text.rfind(&close).map_or("", |at| &text[..at + close.len()]);
    let Some(start) = before_last_close.rfind(&open) else {
        return Err(if text.contains(&open) { ParseError::NotClosed } else { ParseError::NoTag });
    };
    let inner = &before_last_close[start + open.len()..];
    match inner.find(&close).map_or(inner, |end| &inner[..end]).trim() {
        "" => Err(ParseError::Empty),
        inner => Ok(inner),
    }
}

/// The first `max` characters of the text, without trailing white space.
pub fn truncate(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(at, _)| text[..at].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn last_pair_after_thinking_is_used() {
        let cases = [
            ("<action>BET</action>", Ok("BET")),
            ("<action>PASS</action> no: <action>BET</action>", Ok("BET")),
            ("<think><action>PASS</action></think><action>BET</action>", Ok("BET")),
            ("reasoning</think>\n<action>\nBET\n</action>\n", Ok("BET")),
            ("<action>PASS <action>BET</action>", Ok("BET")),
            ("<action>BET</action> </action>", Ok("BET")),
            ("<action>BET</action> or <action>PASS", Ok("BET")),
            ("<think>I will <action>BET</action>", Err(ParseError::StillThinking)),
            ("<think>a</think><think>maybe <action>BET</action>", Err(ParseError::StillThinking)),
            ("Well. <think>maybe <action>BET</action>", Err(ParseError::StillThinking)),
            ("<think>x</think> BET", Err(ParseError::NoTag)),
            ("<action>BET", Err(ParseError::NotClosed)),
            ("</action><action>", Err(ParseError::NotClosed)),
            ("<action> \n</action>", Err(ParseError::Empty)),
            ("", Err(ParseError::NoTag)),
        ];
        for (text, expected) in cases {
            assert_eq!(last_tag(text, "action"), expected, "{text:?}");
        }
    }

    #[test]
    fn truncate_keeps_characters_whole() {
        assert_eq!(truncate("grüße", 3), "grü");
        assert_eq!(truncate("ab", 3), "ab");
        assert_eq!(truncate("ab c", 3), "ab");
        assert_eq!(truncate("é", 0), "");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>(), max in 0_usize..40) {
            let _ = last_tag(&text, "action");
            prop_assert!(truncate(&text, max).chars().count() <= max);
        }

        #[test]
        fn fragments_of_tags_never_panic(parts in prop::collection::vec(
            prop_oneof![Just("<think>"), Just("</think>"), Just("<action>"), Just("</action>"), Just("ß"), Just("BET"), Just("<"), Just("action>")], 0..12)) {
            let text = parts.concat();
            if let Ok(found) = last_tag(&text, "action") {
                prop_assert!(!found.is_empty() && !found.contains("<action>"));
                let after = strip_thinking(&text).unwrap();
                prop_assert!(after.contains(found));
            }
        }

        #[test]
        fn well_formed_answer_is_parsed_after_any_prefix(noise in "[^<]{0,40}", inner in "[a-zA-Z(,0-9 ]{1,20}") {
            prop_assume!(!inner.trim().is_empty());
            let text = format!("<think>{noise}<action>x</action></think>{noise}<action>{inner}</action>");
            prop_assert_eq!(last_tag(&text, "action"), Ok(inner.trim()));
        }
    }
}
