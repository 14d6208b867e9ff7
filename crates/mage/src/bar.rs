//! Progress bars on stderr, and output around them: other output suspends the bar, which would otherwise leave stale
//! lines.

use crate::{
    table::{duration, significant},
    text::stderr_width,
};
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike, WeakProgressBar};
use std::{
    fmt::Write,
    io,
    sync::{Mutex, PoisonError},
};

/// Displayed bars; only the last one is drawn to. A sweep has one around those of its cells.
static ACTIVE: Mutex<Vec<WeakProgressBar>> = Mutex::new(Vec::new());

/// Columns that a bar leaves free at the right edge. The terminal echoes `^C` there; on a full line the echo would start
/// another line, which the bar does not clear.
const MARGIN: u16 = 3;

/// Runs `print` while no bar is displayed.
pub(crate) fn suspended<T>(print: impl FnOnce() -> T) -> T {
    let bar = {
        let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        active.retain(|bar| bar.upgrade().is_some());
        active.last().and_then(WeakProgressBar::upgrade)
    };
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// A bar that is displayed on a terminal if `visible`.
pub(crate) fn start(total: Option<u64>, style: ProgressStyle, visible: bool) -> ProgressBar {
    let stderr = Term::stderr();
    let displayed = visible && stderr.is_term();
    let target = match displayed {
        true => ProgressDrawTarget::term_like(Box::new(NarrowTerm(stderr))),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(total, target).with_style(style);
    if displayed {
        ACTIVE.lock().unwrap_or_else(PoisonError::into_inner).push(bar.downgrade());
    }
    bar
}

/// A style with the keys `rate` (steps per second) and `left` (remaining time).
pub(crate) fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is valid").progress_chars("=> ");
    style
        .with_key("rate", |state: &ProgressState, to: &mut dyn Write| {
            let _ = write!(to, "{}/s", significant(state.per_sec()));
        })
        .with_key("left", |state: &ProgressState, to: &mut dyn Write| {
            let _ = write!(to, "{} left", duration(state.eta().as_secs_f64()));
        })
}

/// Columns that a line of a bar can have.
pub(crate) fn columns() -> usize {
    stderr_width().unwrap_or(80) - usize::from(MARGIN)
}

/// Stderr without the columns of [`MARGIN`].
#[derive(Debug)]
struct NarrowTerm(Term);

impl TermLike for NarrowTerm {
    fn width(&self) -> u16 {
        TermLike::width(&self.0).saturating_sub(MARGIN).max(1)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.0)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_up(n)
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_down(n)
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_right(n)
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.0.move_cursor_left(n)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}
