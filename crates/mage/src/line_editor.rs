//! What was typed, key by key?
//!
//! Where moves go up, down, left and right, the arrow keys write these words: a turn is typed with a few arrows, and sent
//! when it is full or with Enter. Everything else is an ordinary line.

use crossterm::{
    event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read},
    terminal::{disable_raw_mode, enable_raw_mode},
};
use std::io::{self, Write};

/// A line being typed.
pub(crate) struct Line {
    text: String,
    /// Words after which a line of arrows is full.
    full: usize,
}

/// What a key made of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Print this and go on.
    Echo(String),
    /// Nothing to see.
    Nothing,
    /// The line is complete.
    Line(String),
    /// The player leaves.
    Leave,
}

impl Line {
    pub(crate) fn new(full: usize) -> Self {
        Line { text: String::new(), full }
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Typed {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Up => self.arrow("up"),
            KeyCode::Down => self.arrow("down"),
            KeyCode::Left => self.arrow("left"),
            KeyCode::Right => self.arrow("right"),
            KeyCode::Enter => Typed::Line(std::mem::take(&mut self.text)),
            KeyCode::Char('c' | 'd') if control => Typed::Leave,
            KeyCode::Char(c) if !control => {
                self.text.push(c);
                Typed::Echo(c.to_string())
            }
            KeyCode::Backspace => match self.text.pop() {
                Some(_) => Typed::Echo("\u{8} \u{8}".to_owned()),
                None => Typed::Nothing,
            },
            _ => Typed::Nothing,
        }
    }

    fn arrow(&mut self, word: &str) -> Typed {
        let space = if self.text.is_empty() || self.text.ends_with(' ') { "" } else { " " };
        self.text.push_str(space);
        self.text.push_str(word);
        if self.text.split_whitespace().count() >= self.full {
            return Typed::Line(std::mem::take(&mut self.text));
        }
        Typed::Echo(format!("{space}{word}"))
    }
}

/// Reads a line from the terminal, arrow keys included; `None` when the player leaves.
pub(crate) fn read_line(full: usize) -> io::Result<Option<String>> {
    let _raw = Raw::enter()?;
    let mut line = Line::new(full);
    let mut shown = 0;
    let mut stdout = anstream::stdout();
    loop {
        let Event::Key(key) = read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match line.key(key) {
            Typed::Nothing => {}
            Typed::Echo(text) => {
                write!(stdout, "{text}")?;
                stdout.flush()?;
                shown = line.text.len();
            }
            Typed::Line(text) => {
                // The word that filled the line was not shown yet.
                write!(stdout, "{}\r\n", text.get(shown..).unwrap_or_default())?;
                return Ok(Some(text));
            }
            Typed::Leave => {
                write!(stdout, "\r\n")?;
                return Ok(None);
            }
        }
    }
}

/// Single keys instead of lines, as long as it lives.
struct Raw;

impl Raw {
    fn enter() -> io::Result<Raw> {
        enable_raw_mode()?;
        Ok(Raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(line: &mut Line, code: KeyCode) -> Typed {
        line.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn arrows_fill_a_turn() {
        let mut line = Line::new(3);
        assert_eq!(press(&mut line, KeyCode::Up), Typed::Echo("up".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Left), Typed::Echo(" left".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Right), Typed::Line("up left right".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Down), Typed::Echo("down".to_owned()), "a new line");
        assert_eq!(press(&mut line, KeyCode::Enter), Typed::Line("down".to_owned()));
    }

    #[test]
    fn letters_make_an_ordinary_line() {
        let mut line = Line::new(3);
        for c in "qx".chars() {
            assert_eq!(press(&mut line, KeyCode::Char(c)), Typed::Echo(c.to_string()));
        }
        assert_eq!(press(&mut line, KeyCode::Backspace), Typed::Echo("\u{8} \u{8}".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Enter), Typed::Line("q".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Backspace), Typed::Nothing);
        assert_eq!(line.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Typed::Leave);
    }
}
