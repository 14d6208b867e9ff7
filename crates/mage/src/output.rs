//! Terminal output: results on stdout; progress, hints, warnings and errors on stderr. With `--json`, stdout has JSON
//! lines only.

use crate::text::{printable, stderr_width, stdout_width, wrap};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;
use std::{
    fmt::Display,
    io::{self, Write},
};

/// Style of headings.
pub(crate) const BOLD: Style = Style::new().bold();
/// Style of secondary text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Style of success.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of failure.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();

/// Text in a style. Colour codes are removed on output if colours are off.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Text as a terminal of this width displays it: without control characters, wrapped at words.
fn display(text: impl Display, width: Option<usize>) -> String {
    let text = printable(&text.to_string());
    width.map_or_else(|| text.clone(), |width| wrap(&text, width))
}

/// Prints a line to stderr. Failures are ignored: there is no other place to report them.
pub(crate) fn write_stderr(text: impl Display) {
    let _ = writeln!(anstream::stderr(), "{}", display(text, stderr_width()));
}

/// Output mode of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Suppresses everything but warnings.
    silent: bool,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        Output { json, quiet, silent: false }
    }

    /// Prints warnings only, for a command that runs as part of another.
    pub(crate) fn silent() -> Self {
        Output { json: false, quiet: true, silent: true }
    }

    /// Prints a line of a result. A closed pipe is an error, which ends the command silently.
    pub(crate) fn line(&self, text: impl Display) -> anyhow::Result<()> {
        if self.silent {
            return Ok(());
        }
        let mut stdout = anstream::stdout().lock();
        writeln!(stdout, "{}", display(text, stdout_width()))?;
        Ok(())
    }

    /// Prints text without a line break and flushes it.
    pub(crate) fn print(&self, text: impl Display) -> anyhow::Result<()> {
        let mut stdout = anstream::stdout().lock();
        write!(stdout, "{}", printable(&text.to_string()))?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints a value as one line of JSON.
    pub(crate) fn object(&self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        // JSON may contain C1 control characters as they are; a terminal would obey them.
        let escape = |c: char| if matches!(c, '\u{7f}'..='\u{9f}') { format!("\\u{:04x}", c as u32) } else { c.into() };
        let text: String = serde_json::to_string(value)?.chars().map(escape).collect();
        writeln!(stdout, "{text}")?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints a remark to stderr, unless quiet.
    pub(crate) fn hint(&self, text: impl Display) {
        if !self.quiet && !self.json {
            write_stderr(styled(DIM, text));
        }
    }

    /// Prints a warning to stderr, even if quiet.
    pub(crate) fn warn(&self, text: impl Display) {
        write_stderr(format!("{} {text}", styled(BOLD, "warning:")));
    }

    /// Prints an error with its causes, unless its message contains them.
    pub(crate) fn error(&self, e: &anyhow::Error) {
        let mut causes = e.chain().map(message);
        let mut text = causes.next().unwrap_or_default();
        for cause in causes {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        write_stderr(format!("{} {text}", styled(BAD.bold(), "error:")));
    }

    /// Runs `work` with a spinner.
    pub(crate) fn spinner<T>(&self, label: &'static str, work: impl FnOnce() -> T) -> T {
        let target = if self.quiet || self.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        // The first use of a model shape on a GPU compiles kernels, which takes several seconds.
        let activity = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
            let text =
                if mage_native::is_compiling() { "compiling GPU kernels (cached for later runs)" } else { label };
            let _ = to.write_str(text);
        };
        let style = ProgressStyle::with_template("{spinner} {activity} … {elapsed}").expect("the template is valid");
        let spinner = ProgressBar::with_draw_target(None, target).with_style(style.with_key("activity", activity));
        spinner.enable_steady_tick(std::time::Duration::from_millis(120));
        let result = work();
        spinner.finish_and_clear();
        result
    }

    /// Runs `work`, which starts an engine, with a spinner.
    pub(crate) fn engine_spinner<T>(&self, work: impl FnOnce() -> T) -> T {
        self.spinner("starting the engine", work)
    }

    /// A progress bar with rate and remaining time; hidden if quiet or not on a terminal.
    pub(crate) fn progress(&self, total: u64, label: &'static str) -> ProgressBar {
        let bar = self.bar(total, "{msg} [{bar:30}] {human_pos}/{human_len} {per_sec}, {eta} left");
        bar.with_message(label)
    }

    /// A progress bar with a caller-defined suffix (the prefix of the bar), and a message on a second line.
    pub(crate) fn progress_with_message(&self, total: u64, label: &str) -> ProgressBar {
        self.bar(total, &format!("{label} [{{bar:20}}] {{human_pos}}/{{human_len}} {{prefix}}\n{{wide_msg}}"))
    }

    fn bar(&self, total: u64, template: &str) -> ProgressBar {
        let target = if self.quiet || self.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template(template).expect("the template is valid").progress_chars("=> ");
        ProgressBar::with_draw_target(Some(total), target).with_style(style)
    }
}

/// The message of an error; that of an engine ends with what to do.
pub(crate) fn message(e: &(dyn std::error::Error + 'static)) -> String {
    e.downcast_ref().map_or_else(|| e.to_string(), mage_train::explain)
}

/// Whether an error is a closed output pipe, which is not a failure.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}
