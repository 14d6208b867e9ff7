//! PDDL tokenizer.
//!
//! It tracks its position, so that every error names a line. Its input is lower-cased, as in the original's parser.

use crate::{Error, Result};

/// A token of PDDL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PddlToken<'t> {
    Open,
    Close,
    Word(&'t str),
}

impl std::fmt::Display for PddlToken<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PddlToken::Open => f.write_str("`(`"),
            PddlToken::Close => f.write_str("`)`"),
            PddlToken::Word(w) => write!(f, "`{w}`"),
        }
    }
}

/// Iterator over the tokens of a text.
#[derive(Clone)]
pub(super) struct PddlTokens<'t> {
    text: &'t str,
    at: usize,
    /// Start of the last token.
    last: usize,
}

impl<'t> PddlTokens<'t> {
    /// Tokenizes a text, which must be lower-case.
    pub(super) fn new(text: &'t str) -> Self {
        PddlTokens { text, at: 0, last: 0 }
    }

    /// The next token, skipping comments; `None` at the end.
    pub(super) fn next(&mut self) -> Option<PddlToken<'t>> {
        let bytes = self.text.as_bytes();
        loop {
            match *bytes.get(self.at)? {
                b';' => {
                    self.at += bytes[self.at..].iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - self.at);
                }
                b if b.is_ascii_whitespace() => self.at += 1,
                _ => break,
            }
        }
        self.last = self.at;
        let token = match bytes[self.at] {
            b'(' => PddlToken::Open,
            b')' => PddlToken::Close,
            _ => {
                let ends = |b: &u8| matches!(b, b'(' | b')' | b';') || b.is_ascii_whitespace();
                let len = bytes[self.at..].iter().position(ends).unwrap_or(bytes.len() - self.at);
                self.at += len;
                return Some(PddlToken::Word(&self.text[self.last..self.at]));
            }
        };
        self.at += 1;
        Some(token)
    }

    /// The next token; an error at the end.
    pub(super) fn require(&mut self, expected: &str) -> Result<PddlToken<'t>> {
        let token = self.next();
        token.ok_or_else(|| {
            self.last = self.text.len();
            self.error(format!("expected {expected}, but the text ends; the file may be truncated"))
        })
    }

    /// The next token; an error if it is not a word.
    pub(super) fn expect_word(&mut self, expected: &str) -> Result<&'t str> {
        match self.require(expected)? {
            PddlToken::Word(w) => Ok(w),
            other => Err(self.error(format!("expected {expected}, found {other}"))),
        }
    }

    /// The next token; an error if it differs from `expected`.
    pub(super) fn expect(&mut self, expected: PddlToken<'_>) -> Result<()> {
        let text = expected.to_string();
        match self.require(&text)? {
            token if token == expected => Ok(()),
            other => Err(self.error(format!("expected {text}, found {other}"))),
        }
    }

    /// An error at the last token.
    pub(super) fn error(&self, problem: impl Into<String>) -> Error {
        let line = 1 + self.text.as_bytes()[..self.last].iter().filter(|b| **b == b'\n').count();
        Error::invalid(format!("pddl_problem, line {line}"), problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_skip_comments_and_track_their_line() {
        let mut t = PddlTokens::new("(a ; no (b)\n  c)d");
        let all: Vec<_> = std::iter::from_fn(|| t.next()).collect();
        assert_eq!(
            all,
            [PddlToken::Open, PddlToken::Word("a"), PddlToken::Word("c"), PddlToken::Close, PddlToken::Word("d")]
        );
        assert_eq!(t.error("x").to_string(), "pddl_problem, line 2: x");
        assert!(t.require("more").unwrap_err().to_string().contains("truncated"));
    }
}
