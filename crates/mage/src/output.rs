//! How do we talk to people and to programs?
//!
//! Results go to stdout, everything else (progress, hints, errors) to stderr. With `--json`, stdout is JSON lines only.

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Headings.
pub(crate) const BOLD: Style = Style::new().bold();
/// Asides.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Good news.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Bad news.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// Text in a style; plain where colours are off.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Where output goes, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Says nothing at all but warnings: for a command that is a step of another.
    silent: bool,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Output { json, quiet, silent: false }
    }

    /// For a command that is a step of another: warnings alone get through.
    pub(crate) fn silent() -> Self {
        Output { json: false, quiet: true, silent: true }
    }

    /// A line of a result. A reader that has gone away is reported as an error, which ends the command quietly.
    pub(crate) fn line(&self, text: impl Display) -> anyhow::Result<()> {
        if self.silent {
            return Ok(());
        }
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{text}")?;
        Ok(())
    }

    /// Text without a line break, shown at once: a prompt for input.
    pub(crate) fn ask(&self, text: impl Display) -> anyhow::Result<()> {
        let mut stdout = anstream::stdout().lock();
        write!(stdout, "{text}")?;
        stdout.flush()?;
        Ok(())
    }

    /// A JSON object on a line of its own.
    pub(crate) fn object(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, value)?;
        writeln!(stdout)?;
        stdout.flush()?;
        Ok(())
    }

    /// A remark that is not a result.
    pub(crate) fn hint(&self, text: impl Display) {
        if !self.quiet && !self.json {
            let _ = writeln!(anstream::stderr(), "{}", styled(DIM, text));
        }
    }

    /// Something the user must know, however quiet we were told to be.
    pub(crate) fn warn(&self, text: impl Display) {
        let _ = writeln!(anstream::stderr(), "{} {text}", styled(BOLD, "note:"));
    }

    /// An error, with what led to it, unless it says so itself.
    pub(crate) fn error(&self, e: &anyhow::Error) {
        let mut text = e.to_string();
        for cause in e.chain().skip(1).map(ToString::to_string) {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        let _ = writeln!(anstream::stderr(), "{} {text}", styled(BAD.bold(), "error:"));
    }

    /// Does something that may take a while, with a sign of life.
    pub(crate) fn waiting<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let target = if self.quiet || self.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        // On a card, the first start of a shape of model compiles the kernels, which takes some seconds.
        let doing = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
            let now = if mage_native::is_compiling() { "compiling kernels for the card, this once" } else { what };
            let _ = to.write_str(now);
        };
        let style = ProgressStyle::with_template("{spinner} {doing} … {elapsed}").expect("the template is fixed");
        let spinner = ProgressBar::with_draw_target(None, target).with_style(style.with_key("doing", doing));
        spinner.enable_steady_tick(std::time::Duration::from_millis(120));
        let result = work();
        spinner.finish_and_clear();
        result
    }

    /// Starts an engine.
    pub(crate) fn starting<T>(&self, work: impl FnOnce() -> T) -> T {
        self.waiting("starting the engine", work)
    }

    /// A bar with rate and time left, on a terminal and unless told to be quiet.
    pub(crate) fn progress(&self, total: u64, what: &'static str) -> ProgressBar {
        let bar = self.bar(total, "{msg} [{bar:30}] {human_pos}/{human_len} {per_sec}, {eta} left");
        bar.with_message(what)
    }

    /// A bar whose rate and time left are its prefix, with its message under it, cut to the terminal's width.
    pub(crate) fn progress_with_words(&self, total: u64) -> ProgressBar {
        self.bar(total, "training [{bar:30}] {human_pos}/{human_len} {prefix}\n{wide_msg}")
    }

    fn bar(&self, total: u64, template: &str) -> ProgressBar {
        let target = if self.quiet || self.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template(template).expect("the template is fixed").progress_chars("=> ");
        ProgressBar::with_draw_target(Some(total), target).with_style(style)
    }
}

/// Whether the reader of our output went away, which is no failure of ours.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}
