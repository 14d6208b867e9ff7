//! What stands in a PDDL text, and where?
//!
//! A reader of tokens that knows its place, so that every complaint can name a line. Identifiers are lower-cased, as the
//! original's parser does.

use crate::{Error, Result};

/// A token of PDDL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Open,
    Close,
    Word(&'t str),
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Open => f.write_str("`(`"),
            Token::Close => f.write_str("`)`"),
            Token::Word(w) => write!(f, "`{w}`"),
        }
    }
}

/// Reads tokens one after the other.
#[derive(Clone)]
pub(super) struct Tokens<'t> {
    text: &'t str,
    at: usize,
    /// Where the last token began.
    last: usize,
}

impl<'t> Tokens<'t> {
    /// Of a text that is lower-case already.
    pub(super) fn new(text: &'t str) -> Self {
        Tokens { text, at: 0, last: 0 }
    }

    /// The next token, comments left out; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Token<'t>> {
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
            b'(' => Token::Open,
            b')' => Token::Close,
            _ => {
                let ends = |b: &u8| matches!(b, b'(' | b')' | b';') || b.is_ascii_whitespace();
                let len = bytes[self.at..].iter().position(ends).unwrap_or(bytes.len() - self.at);
                self.at += len;
                return Some(Token::Word(&self.text[self.last..self.at]));
            }
        };
        self.at += 1;
        Some(token)
    }

    /// The next token, of which there must be one.
    pub(super) fn some(&mut self, wanted: &str) -> Result<Token<'t>> {
        let token = self.next();
        token.ok_or_else(|| {
            self.last = self.text.len();
            self.wrong(format!("the text ends where {wanted} should be; is the file cut off?"))
        })
    }

    /// The next token, which must be a word.
    pub(super) fn word(&mut self, wanted: &str) -> Result<&'t str> {
        match self.some(wanted)? {
            Token::Word(w) => Ok(w),
            other => Err(self.wrong(format!("{other} stands where {wanted} should be"))),
        }
    }

    /// The next token, which must be this one.
    pub(super) fn expect(&mut self, wanted: Token<'_>) -> Result<()> {
        let text = wanted.to_string();
        match self.some(&text)? {
            token if token == wanted => Ok(()),
            other => Err(self.wrong(format!("{other} stands where {text} should be"))),
        }
    }

    /// An error at the last token.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> Error {
        let line = 1 + self.text.as_bytes()[..self.last].iter().filter(|b| **b == b'\n').count();
        Error::invalid(format!("pddl_problem, line {line}"), problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_skip_comments_and_know_their_line() {
        let mut t = Tokens::new("(a ; no (b)\n  c)d");
        let all: Vec<_> = std::iter::from_fn(|| t.next()).collect();
        assert_eq!(all, [Token::Open, Token::Word("a"), Token::Word("c"), Token::Close, Token::Word("d")]);
        assert_eq!(t.wrong("x").to_string(), "pddl_problem, line 2: x");
        assert!(t.some("more").unwrap_err().to_string().contains("cut off"));
    }
}
