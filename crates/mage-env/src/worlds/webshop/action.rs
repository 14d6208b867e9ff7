//! What did the buyer want to do?
//!
//! `search[words]` or `click[name]`; the original reads `name[argument]` with a greedy pattern, so the last bracket that has
//! a partner counts. Names are exact, arguments are read in lower case.

/// An action as written, before it is known whether it can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Search for these words.
    Search(String),
    /// Click this.
    Click(String),
}

/// Reads an action, or says in words a buyer can learn from why there is none.
pub fn read(text: &str) -> Result<Action, &'static str> {
    match name_and_argument(text) {
        Some(("search", words)) => Ok(Action::Search(words.to_lowercase())),
        Some(("click", name)) => Ok(Action::Click(name.to_lowercase())),
        _ => Err("an action is search[words] or click[name]"),
    }
}

/// What stands before and inside the brackets: neither may be empty or hold a line break, and both are as long as can be,
/// the name first.
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
    fn the_last_bracket_with_a_partner_counts() {
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
    fn names_are_exact_and_arguments_lower_case() {
        assert_eq!(read("search[RED]"), Ok(Action::Search("red".to_owned())));
        assert_eq!(read("click[B01]"), Ok(Action::Click("b01".to_owned())));
        assert!(read("Search[red]").is_err());
        assert!(read("think[hmm]").unwrap_err().contains("search[words] or click[name]"));
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in any::<String>(), parts in prop::collection::vec(prop_oneof![Just("["), Just("]"), Just("search"), Just("click"), Just("ß"), Just("\n")], 0..9)) {
            let _ = read(&text);
            let _ = read(&parts.concat());
        }
    }
}
