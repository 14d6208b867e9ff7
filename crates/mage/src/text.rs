//! Text for terminals: wrapping at words, and removal of control characters.

use crossterm::terminal;
use std::{
    io::{self, IsTerminal},
    path::Path,
};
use textwrap::{Options, WordSplitter, core::display_width};

/// The control sequences that [`styled`](crate::output::styled) writes. Text from elsewhere cannot do more with them.
const STYLES: [&str; 6] = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"];

/// Narrowest terminal that text is fitted to. Some terminals report a width of 0.
const MIN_WIDTH: usize = 20;

/// Columns of the terminal of stdout; `None` for files and pipes, whose lines are not wrapped.
pub(crate) fn stdout_width() -> Option<usize> {
    io::stdout().is_terminal().then(columns).flatten()
}

/// Columns of the terminal of stderr.
pub(crate) fn stderr_width() -> Option<usize> {
    io::stderr().is_terminal().then(columns).flatten()
}

fn columns() -> Option<usize> {
    terminal::size().ok().map(|(columns, _)| usize::from(columns)).filter(|columns| *columns >= MIN_WIDTH)
}

/// Wraps lines that are wider than `width` at words. Continuation lines have the indentation of their first line.
pub(crate) fn wrap(text: &str, width: usize) -> String {
    let line = |line: &str| {
        if display_width(line) <= width {
            return line.to_owned();
        }
        let indent = " ".repeat(line.len() - line.trim_start_matches(' ').len());
        let options = Options::new(width)
            .initial_indent(&indent)
            .subsequent_indent(&indent)
            .break_words(false)
            .word_splitter(WordSplitter::NoHyphenation);
        textwrap::fill(line.trim_start_matches(' '), options)
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Replaces control characters, which could change the title, the colours or the contents of a terminal, and characters
/// that reorder or break lines. Line breaks, tabs and the sequences of our own styles are kept.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(style) = STYLES.iter().find(|style| rest.starts_with(**style)) {
            out.push_str(style);
            rest = &rest[style.len()..];
            continue;
        }
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let foreign = c.is_control() && !matches!(c, '\n' | '\t') || reorders;
        out.push(if foreign { char::REPLACEMENT_CHARACTER } else { c });
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// Quotes a path for a shell.
pub(crate) fn shell_quote(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Shortens a text to `width` columns: from the left if its end identifies it, otherwise from the right.
pub(crate) fn shorten(text: &str, width: usize, from_left: bool) -> String {
    let length = text.chars().count();
    let kept = width.saturating_sub(1);
    match from_left {
        _ if length <= width => text.to_owned(),
        true => format!("…{}", text.chars().skip(length - kept).collect::<String>()),
        false => format!("{}…", text.chars().take(kept).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{BAD, BOLD, DIM, GOOD, styled};

    #[test]
    fn long_lines_are_wrapped_at_words_with_their_indentation() {
        let text = "short\n  a line that is longer than twenty columns\nanunbreakableword-thatislongerthantwenty";
        let wrapped = wrap(text, 20);
        assert_eq!(
            wrapped,
            "short\n  a line that is\n  longer than twenty\n  columns\nanunbreakableword-thatislongerthantwenty"
        );
        let bold = styled(BOLD, "two words");
        assert_eq!(wrap(&bold, 9), bold, "escape sequences have no width");
    }

    #[test]
    fn control_characters_are_replaced_and_own_styles_kept() {
        for style in [BOLD, DIM, GOOD, BAD] {
            let text = styled(style, "text\twith\nlines");
            assert_eq!(printable(&text), text);
        }
        let bold_red = styled(BAD.bold(), "error:");
        assert!(!printable(&bold_red).contains(char::REPLACEMENT_CHARACTER), "{bold_red:?}");
        let title = printable("ro\u{1b}]0;pwn\u{7}d \u{9b}31m \u{7f}\r\0");
        assert!(title.chars().all(|c| !c.is_control()), "{title:?}");
        assert_eq!(printable("ro\u{1b}]0;x"), "ro\u{fffd}]0;x");
        assert_eq!(printable("a\u{202e}b\u{2028}c\u{2069}"), "a\u{fffd}b\u{fffd}c\u{fffd}");
    }

    #[test]
    fn texts_are_shortened_on_the_given_side() {
        assert_eq!(shorten("runs/kuhn-1", 7, true), "…kuhn-1");
        assert_eq!(shorten("runs/kuhn-1", 7, false), "runs/k…");
        assert_eq!(shorten("kuhn", 7, false), "kuhn");
    }
}
