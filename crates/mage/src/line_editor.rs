//! Line editor of `mage play`.
//!
//! In environments with the moves up, down, left and right, an arrow key enters the word, and the line is complete after
//! the maximum number of words or on Enter. Elsewhere arrow keys have no effect.

use crossterm::{
    event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read},
    terminal::{disable_raw_mode, enable_raw_mode},
};
use std::io::{self, Write};

/// The line under edit.
pub(crate) struct InputLine {
    text: String,
    /// Number of words after which an arrow key completes the line; 0 without such moves.
    max_words: usize,
}

/// Effect of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyEffect {
    /// Text to print.
    Echo(String),
    /// No effect.
    Nothing,
    /// The line is complete.
    Line(String),
    /// The player quits.
    Quit,
}

impl InputLine {
    pub(crate) fn new(max_words: usize) -> Self {
        InputLine { text: String::new(), max_words }
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> KeyEffect {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Up | KeyCode::Down | KeyCode::Left | KeyCode::Right if self.max_words == 0 => KeyEffect::Nothing,
            KeyCode::Up => self.arrow("up"),
            KeyCode::Down => self.arrow("down"),
            KeyCode::Left => self.arrow("left"),
            KeyCode::Right => self.arrow("right"),
            KeyCode::Enter => KeyEffect::Line(std::mem::take(&mut self.text)),
            KeyCode::Char('c' | 'd') if control => KeyEffect::Quit,
            KeyCode::Char(c) if !control => {
                self.text.push(c);
                KeyEffect::Echo(c.to_string())
            }
            KeyCode::Backspace => match self.text.pop() {
                Some(_) => KeyEffect::Echo("\u{8} \u{8}".to_owned()),
                None => KeyEffect::Nothing,
            },
            _ => KeyEffect::Nothing,
        }
    }

    fn arrow(&mut self, word: &str) -> KeyEffect {
        let space = if self.text.is_empty() || self.text.ends_with(' ') { "" } else { " " };
        self.text.push_str(space);
        self.text.push_str(word);
        if self.text.split_whitespace().count() >= self.max_words {
            return KeyEffect::Line(std::mem::take(&mut self.text));
        }
        KeyEffect::Echo(format!("{space}{word}"))
    }
}

/// Reads a line from the terminal; `None` if the player quits. `max_words` is that of [`InputLine`].
pub(crate) fn read_line(max_words: usize) -> io::Result<Option<String>> {
    let _raw = RawMode::enter()?;
    let mut line = InputLine::new(max_words);
    let mut printed = 0;
    let mut stdout = anstream::stdout();
    loop {
        let Event::Key(key) = read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match line.key(key) {
            KeyEffect::Nothing => {}
            KeyEffect::Echo(text) => {
                write!(stdout, "{text}")?;
                stdout.flush()?;
                printed = line.text.len();
            }
            KeyEffect::Line(text) => {
                // The word that completed the line is not printed yet.
                write!(stdout, "{}\r\n", text.get(printed..).unwrap_or_default())?;
                return Ok(Some(text));
            }
            KeyEffect::Quit => {
                write!(stdout, "\r\n")?;
                return Ok(None);
            }
        }
    }
}

/// Raw mode of the terminal, until dropped.
struct RawMode;

impl RawMode {
    fn enter() -> io::Result<RawMode> {
        enable_raw_mode()?;
        Ok(RawMode)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(line: &mut InputLine, code: KeyCode) -> KeyEffect {
        line.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn arrow_keys_enter_words_up_to_the_limit() {
        let mut line = InputLine::new(3);
        assert_eq!(press(&mut line, KeyCode::Up), KeyEffect::Echo("up".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Left), KeyEffect::Echo(" left".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Right), KeyEffect::Line("up left right".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Down), KeyEffect::Echo("down".to_owned()), "a new line");
        assert_eq!(press(&mut line, KeyCode::Enter), KeyEffect::Line("down".to_owned()));
    }

    #[test]
    fn arrow_keys_have_no_effect_without_such_moves() {
        let mut line = InputLine::new(0);
        assert_eq!(press(&mut line, KeyCode::Char('b')), KeyEffect::Echo("b".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Up), KeyEffect::Nothing);
        assert_eq!(press(&mut line, KeyCode::Enter), KeyEffect::Line("b".to_owned()));
    }

    #[test]
    fn letters_are_entered_as_text() {
        let mut line = InputLine::new(3);
        for c in "qx".chars() {
            assert_eq!(press(&mut line, KeyCode::Char(c)), KeyEffect::Echo(c.to_string()));
        }
        assert_eq!(press(&mut line, KeyCode::Backspace), KeyEffect::Echo("\u{8} \u{8}".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Enter), KeyEffect::Line("q".to_owned()));
        assert_eq!(press(&mut line, KeyCode::Backspace), KeyEffect::Nothing);
        assert_eq!(line.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), KeyEffect::Quit);
    }
}
