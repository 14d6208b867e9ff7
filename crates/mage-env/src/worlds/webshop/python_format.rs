//! Python's formatting of numbers, strings and dictionaries.
//!
//! Pages contain prices, scores and chosen options as Python formats them, and options of synthetic goals are compared as
//! printed pairs.

use std::fmt::Write;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// `str(x)` of a float: the shortest digits that round-trip, with `.0` for integral values.
pub(super) fn float(x: f64) -> String {
    let magnitude = x.abs();
    if x == 0.0 || !x.is_finite() || (1e-4..1e16).contains(&magnitude) {
        return format!("{x:?}");
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// `repr(text)`.
pub(super) fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\0'..='\x7f' => false,
        _ => !matches!(c.general_category_group(), GeneralCategoryGroup::Other | GeneralCategoryGroup::Separator),
    }
}

/// `json.dumps` of a dictionary of strings, with default separators and non-ASCII characters escaped.
pub(super) fn json<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::from("{");
    for (i, (key, value)) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        json_text(key, &mut out);
        out.push_str(": ");
        json_text(value, &mut out);
    }
    out.push('}');
    out
}

fn json_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Jinja's `tojson`: JSON with HTML special characters escaped.
pub(super) fn html_safe(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026").replace('\'', "\\u0027")
}

/// `round(x)`: ties round to even.
pub(super) fn round(x: f64) -> i64 {
    x.round_ties_even() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_equal_str() {
        let cases = [
            (100.0, "100.0"),
            (109.99, "109.99"),
            (0.1, "0.1"),
            (5.0 / 7.0, "0.7142857142857143"),
            (0.0, "0.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn strings_equal_repr() {
        assert_eq!(repr("navy blue"), "'navy blue'");
        assert_eq!(repr("18''x18''"), "\"18''x18''\"");
        assert_eq!(repr("5'9\" \\"), "'5\\'9\" \\\\'");
        assert_eq!(repr("a\u{a0}b\u{200b}\n\u{1}é"), "'a\\xa0b\\u200b\\n\\x01é'");
    }

    #[test]
    fn dictionaries_equal_json_dumps_and_tojson() {
        let text = json([("color", "a & b's \"x\""), ("größe", "😀")]);
        assert_eq!(text, r#"{"color": "a & b's \"x\"", "gr\u00f6\u00dfe": "\ud83d\ude00"}"#);
        assert_eq!(html_safe(&json([("c", "a & b's <x>")])), r#"{"c": "a \u0026 b\u0027s \u003cx\u003e"}"#);
    }

    #[test]
    fn ties_round_to_even() {
        assert_eq!([round(84.5), round(85.5), round(85.4)], [84, 86, 85]);
    }
}
