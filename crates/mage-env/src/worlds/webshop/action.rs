//! Action parsing.
//!
//! An action is `search[words]` or `click[name]`. The original matches `name[argument]` with a greedy pattern, so the last
//! opening bracket that can be closed counts. Names are exact; arguments are lower-cased.

/// A parsed action, which may not be available on the current page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShopAction {
    /// Search for these words.
    Search(String),
    /// Click this button, product or option value.
    Click(String),
}

/// Parses an action. The error is a message for the agent.
pub fn parse(text: &str) -> Result<ShopAction, &'static str> {
    match name_and_argument(text) {
        Some(("search", words)) => Ok(ShopAction::Search(words.to_lowercase())),
        Some(("click", name)) => Ok(ShopAction::Click(name.to_lowercase())),
        _ => Err("an action is search[words] or click[name]"),
    }
}

/// The text before and inside the brackets. Neither may be empty or contain a line break; both are as long as possible, the
/// name first.
fn name_and_argument(text: &str) -> Option<(&str, &str)> {
    let line = text.split('\n').next()?;
    line.rmatch_indices('[').find_map(|(at, _)| {
        let (name, rest) = (&line[..at], &line[at + 1..]);
        let end = rest.rfind(']').filter(|end| *end > 0)?;
        (!name.is_empty()).then(|| (name, &rest[..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_bracket_that_can_be_closed_counts() {
        let cases = [
            ("search[red shoes]", Some(("search", "red shoes"))),
            ("click[Buy Now] please", Some(("click", "Buy Now"))),
            ("search[a]b]", Some(("search", "a]b"))),
            ("search[a][b]", Some(("search[a]", "b"))),
            ("search[a[]", Some(("search", "a["))),
            ("search[]", None),
            ("search[]]", Some(("search", "]"))),
            ("[a]", None),
            ("[[a]", Some(("[", "a"))),
            ("search[a\nb]", None),
            ("buy", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(name_and_argument(text), expected, "{text:?}");
        }
    }

    #[test]
    fn names_are_exact_and_arguments_are_lower_cased() {
        assert_eq!(parse("search[RED]"), Ok(ShopAction::Search("red".to_owned())));
        assert_eq!(parse("click[B01]"), Ok(ShopAction::Click("b01".to_owned())));
        assert!(parse("Search[red]").is_err());
        assert!(parse("think[hmm]").unwrap_err().contains("search[words] or click[name]"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in any::<String>(), parts in prop::collection::vec(prop_oneof![Just("["), Just("]"), Just("search"), Just("click"), Just("ß"), Just("\n")], 0..9)) {
            let _ = parse(&text);
            let _ = parse(&parts.concat());
        }
    }
}
