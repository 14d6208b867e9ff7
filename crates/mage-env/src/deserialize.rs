//! Deserialisation of options with readable errors.
//!
//! Serde errors name Rust types (`u64`, `sequence`) and do not always name the option.

use crate::nearest_name;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt;

/// Reads options into a struct. The error names the faulty option.
pub(crate) fn from_map<T: DeserializeOwned>(options: Map<String, Value>) -> Result<T, String> {
    let error_of = |options: Map<String, Value>| serde_json::from_value::<T>(Value::Object(options)).err();
    let problem = match serde_json::from_value(Value::Object(options.clone())) {
        Ok(read) => return Ok(read),
        Err(e) => e.to_string(),
    };
    let names_option = ["unknown field", "missing field", "duplicate field"].iter().any(|s| problem.starts_with(s));
    // The option whose removal changes or removes the error.
    let faulty = options.keys().filter(|_| !names_option).find(|key| {
        let mut others = options.clone();
        others.remove(*key);
        error_of(others).is_none_or(|e| e.to_string() != problem)
    });
    Err(match (faulty, Mismatch::parse(&problem)) {
        (Some(key), Some(mismatch)) => format!("`{key}` {mismatch}"),
        (Some(key), None) => format!("`{key}`: {}", readable_error(&problem)),
        (None, _) => readable_error(&problem),
    })
}

/// A value of the wrong type or size, as a serde error describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// What it must be, and what it is if the error says so.
    Wrong { expected: String, found: Option<String> },
    /// A number beyond all types, if the error names it.
    TooLarge(Option<String>),
}

impl Mismatch {
    /// `None` for other errors.
    pub(crate) fn parse(problem: &str) -> Option<Self> {
        match problem {
            "wanted string or table" => return Some(Mismatch::Wrong { expected: "a text".to_owned(), found: None }),
            "integer number overflowed" | "floating-point number overflowed" => return Some(Mismatch::TooLarge(None)),
            _ => {}
        }
        let (kind, rest) = problem.split_once(' ')?;
        let (what, rest) = rest.split_once(' ')?;
        let (found, expected) = rest.rsplit_once(", expected ")?;
        // A position in the text follows in some errors.
        let expected = expected.split(" at line ").next().unwrap_or(expected);
        let found = match (kind, what) {
            ("invalid", "type:" | "value:") => match wide_integer(found) {
                Some(number) => return Some(Mismatch::TooLarge(Some(number.to_owned()))),
                None => plain_value(found),
            },
            ("invalid", "length") => found.to_owned(),
            ("unknown", "variant") => {
                let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
                let nearest = nearest_name(found.trim_matches('`'), known);
                let hint = nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
                format!("{found}{hint}")
            }
            _ => return None,
        };
        Some(Mismatch::Wrong { expected: plain_type(expected), found: Some(found) })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Wrong { expected, found: Some(found) } => write!(f, "must be {expected}, not {found}"),
            Mismatch::Wrong { expected, found: None } => write!(f, "must be {expected}"),
            Mismatch::TooLarge(Some(number)) => write!(f, "is too large: {number}"),
            Mismatch::TooLarge(None) => write!(f, "is too large"),
        }
    }
}

/// The key that a serde error calls unknown, and a suggestion.
pub(crate) fn unknown_key(problem: &str) -> Option<(String, String)> {
    let mut names = problem.strip_prefix("unknown field `")?.split('`').step_by(2);
    let name = names.next()?;
    let known: Vec<&str> = names.collect();
    let suggestion = match nearest_name(name, known.iter().copied()) {
        Some(nearest) => format!(": did you mean `{nearest}`?"),
        None if known.is_empty() => String::new(),
        None => format!("; known: {}", known.join(", ")),
    };
    Some((name.to_owned(), suggestion))
}

/// A serde error in plain words instead of Rust type names.
pub(crate) fn readable_error(problem: &str) -> String {
    match Mismatch::parse(problem) {
        Some(mismatch) => format!("a value {mismatch}"),
        None => problem.to_owned(),
    }
}

/// An integer beyond 64 bits, as serde describes it.
fn wide_integer(found: &str) -> Option<&str> {
    let number = found.strip_prefix("integer `")?;
    number.strip_suffix("` as i128").or_else(|| number.strip_suffix("` as u128"))
}

fn plain_type(expected: &str) -> String {
    let plain = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "string" | "str" => "a text",
        "a sequence" => "a list",
        "a map" => "a table",
        _ if expected.starts_with("struct ") => "a table",
        _ => {
            let list = ["a tuple of size ", "an array of length "].iter().find_map(|s| expected.strip_prefix(s));
            let choices = expected.strip_prefix("one of ").map(|all| format!("one of {all}"));
            return list.map(|n| format!("a list of length {n}")).or(choices).unwrap_or_else(|| expected.to_owned());
        }
    };
    plain.to_owned()
}

fn plain_value(found: &str) -> String {
    let within = |prefix: &str| found.strip_prefix(prefix).map(|v| v.trim_matches('`').to_owned());
    let number = within("integer ").or_else(|| within("floating point ")).map(|n| format!("the number {n}"));
    let text = || found.strip_prefix("string ").map(|text| format!("the text {text}"));
    number.or_else(text).or_else(|| within("boolean ")).unwrap_or_else(|| {
        match found {
            "sequence" => "a list",
            "map" => "a table",
            "null" | "unit value" => "nothing",
            other => other,
        }
        .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        #[serde(default)]
        count: u32,
        #[serde(default)]
        share: f64,
        #[serde(default)]
        cells: Vec<(u8, u8)>,
        needed: bool,
    }

    fn problem(settings: Value) -> String {
        let Value::Object(map) = settings else { panic!("an object") };
        from_map::<Settings>(map).unwrap_err()
    }

    #[test]
    fn errors_name_the_option_and_plain_types() {
        for (settings, expected) in [
            (
                json!({"needed": true, "count": "x"}),
                "`count` must be a whole number from 0 to 4294967295, not the text \"x\"",
            ),
            (
                json!({"needed": true, "count": -3}),
                "`count` must be a whole number from 0 to 4294967295, not the number -3",
            ),
            (json!({"needed": true, "share": [1]}), "`share` must be a number, not a list"),
            (json!({"needed": true, "cells": [[1]]}), "`cells` must be a list of length 2, not 1"),
            (
                json!({"needed": true, "cells": [[1, 700]]}),
                "`cells` must be a whole number from 0 to 255, not the number 700",
            ),
            (json!({"needed": 1}), "`needed` must be true or false, not the number 1"),
            (json!({}), "missing field `needed`"),
            (json!({"needed": true, "cuont": 1}), "unknown field `cuont`"),
        ] {
            let message = problem(settings);
            assert!(message.starts_with(expected), "{message}");
        }
        let Value::Object(good) = json!({"needed": true, "share": 0.5, "count": 2}) else { panic!("an object") };
        let read: Settings = from_map(good).unwrap();
        assert_eq!((read.count, read.share, read.cells.len(), read.needed), (2, 0.5, 0, true));
    }

    #[test]
    fn other_words_are_kept() {
        assert_eq!(readable_error("expected u640"), "expected u640");
        assert_eq!(readable_error("no such thing"), "no such thing");
        let large = "invalid type: integer `99999999999999999999` as i128, expected any value";
        assert_eq!(readable_error(large), "a value is too large: 99999999999999999999");
        let text = "invalid type: string \"a, expected b\", expected u8 at line 3 column 4";
        assert_eq!(
            readable_error(text),
            "a value must be a whole number from 0 to 255, not the text \"a, expected b\""
        );
        let (name, hint) = unknown_key("unknown field `siz`, expected one of `size`, `on`").unwrap();
        assert_eq!((name.as_str(), hint.as_str()), ("siz", ": did you mean `size`?"));
    }
}
