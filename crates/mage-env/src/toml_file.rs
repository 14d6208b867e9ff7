//! TOML files with errors that name the line and the key in plain words.

use crate::deserialize::{Mismatch, readable_error, unknown_key};
use serde::de::{DeserializeOwned, IntoDeserializer};
use std::{fmt, ops::Range};
use toml::{
    Spanned,
    de::{DeTable, DeValue, Error},
};

/// Why a text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlError {
    /// Line, from 1.
    pub line: usize,
    /// Dotted key; list indices count from 1. `None` if the text is not TOML, or for the whole document.
    pub key: Option<String>,
    /// The problem, with the key.
    pub problem: String,
}

impl fmt::Display for TomlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for TomlError {}

/// Reads a value from TOML.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     #[allow(dead_code)]
///     updates: u64,
/// }
///
/// let error = mage_env::from_toml::<Settings>("# Settings\nupdates = \"five\"").err().unwrap();
/// assert_eq!(error.to_string(), "line 2: `updates` must be a whole number of at least 0, not the text \"five\"");
/// ```
pub fn from_toml<T: DeserializeOwned>(text: &str) -> Result<T, TomlError> {
    toml::from_str(text).map_err(|e| describe::<T>(text, &e))
}

/// The line of a byte, from 1.
pub fn line_at(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|b| *b == b'\n').count()
}

fn describe<T: DeserializeOwned>(text: &str, error: &Error) -> TomlError {
    let span = error.span().unwrap_or(0..0);
    let line = line_at(text, span.start);
    let Ok(document) = DeTable::parse(text) else {
        let source = text.lines().nth(line - 1).unwrap_or_default().trim();
        return TomlError { line, key: None, problem: format!("{}, in `{source}`", error.message()) };
    };
    let root = Spanned::new(document.span(), DeValue::Table(document.into_inner()));
    let mut path = find(&root, &span).unwrap_or_default();
    // Serde loses the position within tables that it buffers (flattened or tagged ones).
    while let Some(key) = faulty_entry::<T>(&root, &path, error.message()) {
        path.push(key);
    }
    let line = match position(&root, &path) {
        Some(found) if !path.is_empty() => line_at(text, found.start),
        _ => line,
    };
    let key = path.join(".");
    let message = error.message();
    let problem = match (Mismatch::parse(message), unknown_key(message)) {
        (Some(mismatch), _) if !key.is_empty() => format!("`{key}` {mismatch}"),
        (_, Some((_, suggestion))) if !key.is_empty() => format!("unknown key `{key}`{suggestion}"),
        _ if key.is_empty() => readable_error(message),
        _ => format!("`{key}`: {}", readable_error(message)),
    };
    TomlError { line, key: Some(key).filter(|k| !k.is_empty()), problem }
}

/// The entries of a table or list, with their keys.
fn entries<'v, 'i>(value: &'v DeValue<'i>) -> Vec<(String, Range<usize>, &'v Spanned<DeValue<'i>>)> {
    match value {
        DeValue::Table(table) => table.iter().map(|(k, v)| (k.get_ref().to_string(), k.span(), v)).collect(),
        DeValue::Array(list) => list.iter().zip(1..).map(|(v, i): (_, u32)| (i.to_string(), v.span(), v)).collect(),
        _ => Vec::new(),
    }
}

/// The path of the innermost key or value with this span.
fn find(value: &Spanned<DeValue<'_>>, span: &Range<usize>) -> Option<Vec<String>> {
    for (key, key_span, entry) in entries(value.get_ref()) {
        if let Some(mut path) = find(entry, span) {
            path.insert(0, key);
            return Some(path);
        }
        if key_span == *span {
            return Some(vec![key]);
        }
    }
    (value.span() == *span).then(Vec::new)
}

/// The span of the key at a path, in lists of the value.
fn position(root: &Spanned<DeValue<'_>>, path: &[String]) -> Option<Range<usize>> {
    let (mut value, mut at) = (root, root.span());
    for key in path {
        let (_, span, entry) = entries(value.get_ref()).into_iter().find(|(k, ..)| k == key)?;
        (value, at) = (entry, span);
    }
    Some(at)
}

/// The key of the entry at fault in the table at `path`: the one that the error names, or the one with the value in the
/// error, without which the document has no error or another one.
fn faulty_entry<T: DeserializeOwned>(root: &Spanned<DeValue<'_>>, path: &[String], message: &str) -> Option<String> {
    let mut value = root;
    for key in path {
        value = entries(value.get_ref()).into_iter().find(|(k, ..)| k == key)?.2;
    }
    let DeValue::Table(table) = value.get_ref() else { return None };
    if let Some((name, _)) = unknown_key(message) {
        return table.keys().map(|k| k.get_ref().to_string()).find(|key| *key == name);
    }
    let suspects = table.iter().filter(|(_, v)| is_in_message(v.get_ref(), message));
    let suspects: Vec<String> = suspects.map(|(k, _)| k.get_ref().to_string()).collect();
    let is_fault = |key: &&String| {
        let outcome = T::deserialize(without(root, path, key).into_deserializer());
        outcome.err().is_none_or(|e: Error| {
            let missing = e.message().strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
            e.message() != message && missing.is_none_or(|name| name == key.as_str())
        })
    };
    suspects.iter().find(is_fault).cloned()
}

/// Whether a serde error describes this value or a part of it.
fn is_in_message(value: &DeValue<'_>, message: &str) -> bool {
    match value {
        DeValue::String(text) => {
            message.contains(&format!("string {text:?}")) || message.contains(&format!("variant `{text}`"))
        }
        DeValue::Integer(n) => {
            message.contains(&format!("integer `{}`", n.as_str().trim_start_matches('+').replace('_', "")))
        }
        DeValue::Float(_) => message.contains("floating point `"),
        DeValue::Boolean(b) => message.contains(&format!("boolean `{b}`")),
        DeValue::Datetime(_) => message.contains("map"),
        DeValue::Array(list) => {
            message.contains("sequence")
                || message.contains("length")
                || list.iter().any(|v| is_in_message(v.get_ref(), message))
        }
        DeValue::Table(table) => message.contains("map") || table.values().any(|v| is_in_message(v.get_ref(), message)),
    }
}

/// The document without an entry of the table at `path`.
fn without<'i>(root: &Spanned<DeValue<'i>>, path: &[String], removed: &str) -> Spanned<DeValue<'i>> {
    let mut rest = root.clone();
    let mut value = Some(&mut rest);
    for key in path {
        value = value.and_then(|v| match v.get_mut() {
            DeValue::Table(t) => t.iter_mut().find(|(k, _)| k.get_ref() == key).map(|(_, v)| v),
            DeValue::Array(list) => key.parse::<usize>().ok().and_then(|i| list.get_mut(i.checked_sub(1)?)),
            _ => None,
        });
    }
    if let Some(DeValue::Table(table)) = value.map(Spanned::get_mut) {
        let key = table.keys().find(|k| k.get_ref() == removed).cloned();
        key.map(|key| table.remove(&key));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Document {
        #[serde(default)]
        count: u32,
        #[serde(default)]
        names: Vec<String>,
        #[serde(default)]
        part: Part,
        #[serde(default)]
        member: Vec<Member>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[allow(dead_code)]
    struct Part {
        size: u64,
        on: bool,
        shape: Shape,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Shape {
        #[default]
        Round,
        Flat,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Member {
        name: String,
        #[serde(flatten)]
        kind: Kind,
        #[serde(flatten)]
        rest: BTreeMap<String, serde_json::Value>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[allow(dead_code)]
    enum Kind {
        Fast { speed: f64 },
    }

    #[test]
    fn errors_name_line_and_key() {
        let member =
            "[[member]]\nname = \"a\"\nkind = \"fast\"\nspeed = 1\n\n[[member]]\nname = \"b\"\nkind = \"fast\"\n";
        for (text, expected) in [
            ("\ncount = \"x\"", "line 2: `count` must be a whole number from 0 to 4294967295, not the text \"x\""),
            ("count = 1.5", "line 1: `count` must be a whole number from 0 to 4294967295, not the number 1.5"),
            ("[part]\nsize = -1", "line 2: `part.size` must be a whole number of at least 0, not the number -1"),
            ("part.size = 99999999999999999999", "line 1: `part.size` is too large: 99999999999999999999"),
            ("part.size = 1e400", "line 1: `part.size` is too large"),
            ("[part]\nsize = 99999999999999999999999999999999999999999999", "line 2: `part.size` is too large"),
            ("names = [\n \"a\",\n 5]", "line 3: `names.2` must be a text, not the number 5"),
            ("part = 3", "line 1: `part` must be a table, not the number 3"),
            ("part = { size = 1, on = 1 }", "line 1: `part.on` must be true or false, not the number 1"),
            (
                "[part]\nshape = \"rund\"",
                "line 2: `part.shape` must be `round` or `flat`, not `rund`; did you mean `round`?",
            ),
            ("[part]\nshape = 5", "line 2: `part.shape` must be a text"),
            ("[part]\n\nsiz = 1", "line 3: unknown key `part.siz`: did you mean `size`?"),
            (&format!("{member}speed = \"x\""), "line 9: `member.2.speed` must be a number, not the text \"x\""),
            (member, "line 6: `member.2`: missing field `speed`"),
            ("[part]\nsize = ", "line 2: string values must be quoted, expected literal string, in `size =`"),
            ("count = 1\ncount = 2", "line 2: duplicate key, in `count = 2`"),
        ] {
            let error = from_toml::<Document>(text).unwrap_err();
            assert_eq!(error.to_string(), expected, "{text}");
        }
        assert_eq!(from_toml::<Document>("count = 3").unwrap().count, 3);
    }
}
