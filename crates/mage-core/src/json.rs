//! Lenient parser for JSON in completions.
//!
//! Models wrap JSON in code fences and sentences, use other quotation marks, leave trailing commas and write Python's
//! `True`. The parser accepts all of these. It rejects truncated objects.

use crate::parse;
use serde_json::{Map, Number, Value};

/// Maximum nesting depth.
const MAX_DEPTH: usize = 32;

/// The last object of a completion after its thinking, or the reason why there is none.
pub(crate) fn last_object(completion: &str) -> Result<Map<String, Value>, String> {
    let text = parse::strip_thinking(completion).map_err(|e| e.explain("json"))?;
    let mut at = 0;
    let mut last = None;
    while let Some(start) = text[at..].find('{').map(|i| at + i) {
        let mut reader = JsonReader { text, at: start, depth: 0 };
        match reader.value() {
            Some(Value::Object(map)) => {
                last = Some(map);
                at = reader.at; // skips nested objects
            }
            _ => at = start + 1,
        }
    }
    last.ok_or_else(|| "the answer has no complete JSON object".to_owned())
}

/// A list of strings: an array of strings, or one comma-separated string.
pub(crate) fn string_list(value: Option<&Value>) -> Vec<String> {
    let clean = |text: &str| Some(text.trim().to_owned()).filter(|t| !t.is_empty());
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(|v| v.as_str().and_then(clean)).collect(),
        Some(Value::String(text)) => text.split(',').filter_map(clean).collect(),
        _ => Vec::new(),
    }
}

/// A list of integers: an array of numbers, numeric strings or bracketed numeric strings.
pub(crate) fn integer_list(value: Option<&Value>) -> Vec<u32> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(integer).collect()
}

/// An integer: a number, a numeric string or a bracketed numeric string.
pub(crate) fn integer(value: &Value) -> Option<u32> {
    match value {
        Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
        Value::String(text) => text.trim().trim_matches(['[', ']']).trim().parse().ok(),
        _ => None,
    }
}

/// Whether a value is `true` or a string that means it.
pub(crate) fn is_true(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(b)) => *b,
        Some(Value::String(text)) => matches!(text.trim().to_lowercase().as_str(), "true" | "yes"),
        _ => false,
    }
}

struct JsonReader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl JsonReader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn consume(&mut self, c: char) -> bool {
        self.skip_space();
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn value(&mut self) -> Option<Value> {
        self.skip_space();
        match self.peek()? {
            '{' => self.nested(Self::map),
            '[' => self.nested(Self::list),
            '"' | '\'' | '“' => self.quoted().map(Value::String),
            _ => self.word(),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Value>) -> Option<Value> {
        self.depth += 1;
        let value = if self.depth <= MAX_DEPTH { read(self) } else { None };
        self.depth -= 1;
        value
    }

    fn map(&mut self) -> Option<Value> {
        self.consume('{');
        let mut map = Map::new();
        loop {
            if self.consume('}') {
                return Some(Value::Object(map));
            }
            let key = match self.peek()? {
                '"' | '\'' | '“' => self.quoted()?,
                _ => self.bare_key()?,
            };
            if !self.consume(':') {
                return None;
            }
            let value = self.value()?;
            map.insert(key, value);
            if !self.consume(',') && !self.peek_is('}') {
                return None;
            }
        }
    }

    fn list(&mut self) -> Option<Value> {
        self.consume('[');
        let mut items = Vec::new();
        loop {
            if self.consume(']') {
                return Some(Value::Array(items));
            }
            items.push(self.value()?);
            if !self.consume(',') && !self.peek_is(']') {
                return None;
            }
        }
    }

    fn peek_is(&mut self, c: char) -> bool {
        self.skip_space();
        self.peek() == Some(c)
    }

    fn bare_key(&mut self) -> Option<String> {
        let length = self.rest().find(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|n| *n > 0)?;
        let key = self.rest()[..length].to_owned();
        self.at += length;
        Some(key)
    }

    /// A string in any quotation marks; it may contain unescaped line breaks.
    fn quoted(&mut self) -> Option<String> {
        let open = self.peek()?;
        let close = if open == '“' { '”' } else { open };
        self.at += open.len_utf8();
        let mut text = String::new();
        loop {
            let c = self.peek()?;
            self.at += c.len_utf8();
            match c {
                c if c == close => return Some(text),
                '\\' => text.push(self.escaped()?),
                c => text.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'u' => {
                let first = self.hex()?;
                match first {
                    // A surrogate pair, or an unpaired surrogate.
                    0xd800..0xdc00 if self.rest().starts_with("\\u") => {
                        self.at += 2;
                        let second = self.hex()?;
                        let low = second.checked_sub(0xdc00).filter(|l| *l < 0x400);
                        low.and_then(|l| char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + l)).unwrap_or('\u{fffd}')
                    }
                    code => char::from_u32(code).unwrap_or('\u{fffd}'),
                }
            }
            c => c,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest().get(..4)?;
        let code = u32::from_str_radix(digits, 16).ok()?;
        self.at += 4;
        Some(code)
    }

    /// A number or a literal.
    fn word(&mut self) -> Option<Value> {
        let length = self.rest().find(|c: char| !(c.is_alphanumeric() || "+-._".contains(c)))?;
        let value = match &self.rest()[..length] {
            "true" | "True" => Value::Bool(true),
            "false" | "False" => Value::Bool(false),
            "null" | "None" => Value::Null,
            word => match word.parse::<i64>() {
                Ok(whole) => Value::from(whole),
                Err(_) => Value::Number(Number::from_f64(word.parse().ok()?)?),
            },
        };
        self.at += length;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn common_deviations_from_json_are_accepted() {
        let cases = [
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("```json\n{\"a\": [1, 2.5, -3e2]}\n```", json!({"a": [1, 2.5, -300.0]})),
            ("Sure! {'a': 'it\\'s', b: None, c: True,}", json!({"a": "it's", "b": null, "c": true})),
            ("<think>{\"a\": 1}</think> {\"a\": 2}", json!({"a": 2})),
            ("first {\"a\": 1} no, {\"a\": {\"b\": []}} done", json!({"a": {"b": []}})),
            ("{\"a\": \"two\nlines \\u00e9 \\ud83d\\ude00 \\ud83d\"}", json!({"a": "two\nlines é 😀 \u{fffd}"})),
            ("{“a”: “b”}", json!({"a": "b"})),
            ("set {x} and then {\"a\": 1}", json!({"a": 1})),
            (
                "Here you are:\n```json\n{'keywords': ['queen', 'fold',], \"evolve\": True}\n```",
                json!({"keywords": ["queen", "fold"], "evolve": true}),
            ),
            ("{\"a\": 1} and {broken", json!({"a": 1})),
        ];
        for (text, expected) in cases {
            assert_eq!(Value::Object(last_object(text).expect(text)), expected, "{text}");
        }
        for text in ["", "no", "[1, 2]", "{\"a\": ", "{\"a\" 1}", "{a: b}", "<think>{\"a\": 1}", "{\"a\": 1 \"b\": 2}"]
        {
            assert!(last_object(text).is_err(), "{text}");
        }
        assert!(last_object("{\"keywords\": [\"que").is_err());
        assert!(last_object(&"{\"a\":".repeat(5000)).is_err(), "depth is limited");
    }

    #[test]
    fn lists_accept_arrays_and_comma_separated_strings() {
        let read =
            last_object(r#"{"a": ["x", " ", 3, "y "], "b": "x, y,", "n": [1, "2", "[3]", -4, "z"], "y": "Yes"}"#)
                .unwrap();
        assert_eq!(string_list(read.get("a")), ["x", "y"]);
        assert_eq!(string_list(read.get("b")), ["x", "y"]);
        assert!(string_list(read.get("c")).is_empty());
        assert_eq!(integer_list(read.get("n")), [1, 2, 3]);
        assert!(is_true(read.get("y")) && !is_true(read.get("a")) && !is_true(None));
    }

    proptest! {
        #[test]
        fn valid_json_is_parsed_exactly(words in prop::collection::vec(any::<String>(), 0..4), n in any::<i64>()) {
            let value = json!({"words": words, "n": n, "inner": {"empty": {}, "no": null}});
            prop_assert_eq!(Value::Object(last_object(&value.to_string()).unwrap()), value);
        }

        #[test]
        fn arbitrary_fragments_never_panic(parts in prop::collection::vec(
            prop_oneof![Just("{"), Just("}"), Just("["), Just("]"), Just("\""), Just("'"), Just(":"), Just(","), Just("\\u"), Just("é"), Just("a"), Just("1"), Just("</think>")], 0..20)) {
            let _ = last_object(&parts.concat());
        }
    }
}
