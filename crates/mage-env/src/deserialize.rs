//! Deserialisation of options with readable errors.
//!
//! Serde errors name Rust types (`u64`, `sequence`) and do not always name the option.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
    Err(match faulty {
        Some(key) => format!("`{key}`: {}", readable_error(&problem)),
        None => readable_error(&problem),
    })
}

/// Replaces Rust type names in a serde error by plain words.
pub(crate) fn readable_error(problem: &str) -> String {
    const WORDS: [(&str, &str); 22] = [
        (" as i128, expected any value", ", which is too large"),
        (" as u128, expected any value", ", which is too large"),
        ("expected u8", "expected a whole number from 0 to 255"),
        ("expected u16", "expected a whole number from 0 to 65535"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected usize", "expected a whole number of at least 0"),
        ("expected i32", "expected a whole number"),
        ("expected i64", "expected a whole number"),
        ("expected f32", "expected a number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a string", "expected a text"),
        ("expected a sequence", "expected a list"),
        ("expected a tuple of size", "expected a list of length"),
        ("expected an array of length", "expected a list of length"),
        ("expected a map", "expected a table"),
        ("invalid type: string", "it is the text"),
        ("invalid type: integer", "it is the number"),
        ("invalid value: integer", "it is the number"),
        ("invalid type: floating point", "it is the number"),
        ("invalid type: boolean", "it is"),
    ];
    const SHAPES: [(&str, &str); 3] = [
        ("invalid type: sequence", "it is a list"),
        ("invalid type: map", "it is a table"),
        ("invalid type: null", "it is nothing"),
    ];
    let mut message = problem.to_owned();
    for (serde_words, plain) in WORDS.into_iter().chain(SHAPES) {
        if let Some(at) = message.find(serde_words) {
            // Match whole words only.
            let ends = message[at + serde_words.len()..].chars().next().is_none_or(|c| !c.is_alphanumeric());
            if ends {
                message.replace_range(at..at + serde_words.len(), plain);
            }
        }
    }
    message
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
            (json!({"needed": true, "count": "x"}), "`count`: it is the text \"x\", expected a whole number from 0 to"),
            (json!({"needed": true, "count": -3}), "`count`: it is the number `-3`, expected a whole number from 0"),
            (json!({"needed": true, "share": [1]}), "`share`: it is a list, expected a number"),
            (json!({"needed": true, "cells": [[1]]}), "`cells`: invalid length 1, expected a list of length 2"),
            (json!({"needed": true, "cells": [[1, 700]]}), "`cells`: it is the number `700`, expected a whole number"),
            (json!({"needed": 1}), "`needed`: it is the number `1`, expected true or false"),
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
    fn longer_words_are_not_replaced() {
        assert_eq!(readable_error("expected u640"), "expected u640");
        assert_eq!(readable_error("no such thing"), "no such thing");
        let large = "invalid type: integer `99999999999999999999` as i128, expected any value";
        assert_eq!(readable_error(large), "it is the number `99999999999999999999`, which is too large");
    }
}
