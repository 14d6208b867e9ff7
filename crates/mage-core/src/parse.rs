//! What did the model mean?
//!
//! Reading an answer never fails: it gives what stood between the tags, or says why nothing can be read. Thinking is left
//! out first and the *last* complete pair counts, so that a tag mentioned while reasoning is not mistaken for the
//! answer.
//!
//! ```
//! use mage_core::parse::{ParseError, last_tag};
//! let answer = "<think>maybe <action>PASS</action>?</think> I raise. <action> BET </action>";
//! assert_eq!(last_tag(answer, "action"), Ok("BET"));
//! assert_eq!(last_tag("BET", "action"), Err(ParseError::NoTag));
//! ```

use std::fmt;

/// Why nothing can be read from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// The model was still thinking when its answer ended.
    StillThinking,
    /// The tag does not occur.
    NoTag,
    /// The tag was opened but never closed.
    NotClosed,
    /// There is nothing between the tags.
    Empty,
}

impl ParseError {
    /// In words a model can learn from.
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

/// The answer without the thinking before it.
pub fn strip_thinking(text: &str) -> Result<&str, ParseError> {
    let after = text.rfind(THINK_CLOSE).map_or(text, |at| &text[at + THINK_CLOSE.len()..]);
    if after.contains(THINK_OPEN) { Err(ParseError::StillThinking) } else { Ok(after) }
}

/// What stands between the last complete pair of `<tag>` and `</tag>` after thinking has ended, without outer white
/// space.
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

/// The text cut to at most `max` characters, never within one.
pub fn truncate(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(at, _)| text[..at].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_pair_after_thinking_counts() {
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
    fn cutting_respects_characters() {
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
        fn a_well_formed_answer_is_read_whatever_came_before(noise in "[^<]{0,40}", inner in "[a-zA-Z(,0-9 ]{1,20}") {
            prop_assume!(!inner.trim().is_empty());
            let text = format!("<think>{noise}<action>x</action></think>{noise}<action>{inner}</action>");
            prop_assert_eq!(last_tag(&text, "action"), Ok(inner.trim()));
        }
    }
}
