//! Terminal output: results on stdout; progress, hints, warnings and errors on stderr. With `--json`, stdout has JSON
//! lines only.

use crate::{
    bar,
    text::{printable, stderr_width, stdout_width, wrap},
};
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressState};
use mage_train::run_dir::write_atomic;
use serde::Serialize;
use std::{
    fmt::Display,
    fs,
    io::{self, Write},
    path::Path,
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
    let text = display(text, stderr_width());
    let _ = bar::suspended(|| writeln!(anstream::stderr(), "{text}"));
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
        let text = display(text, stdout_width());
        bar::suspended(|| writeln!(anstream::stdout().lock(), "{text}"))?;
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
        // JSON may contain C1 control characters as they are; a terminal would obey them.
        let escape = |c: char| if matches!(c, '\u{7f}'..='\u{9f}') { format!("\\u{:04x}", c as u32) } else { c.into() };
        let text: String = serde_json::to_string(value)?.chars().map(escape).collect();
        let mut stdout = io::stdout().lock();
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

    /// Prints an error with its causes, unless its message contains them; with `--json` as an object with the exit code.
    pub(crate) fn error(&self, e: &anyhow::Error, code: u8) {
        let mut causes = e.chain().map(message);
        let mut text = causes.next().unwrap_or_default();
        for cause in causes {
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
        }
        match self.json {
            true => json_error(&text, code),
            false => write_stderr(format!("{} {text}", styled(BAD.bold(), "error:"))),
        }
    }

    /// Runs `work` with a spinner.
    pub(crate) fn spinner<T>(&self, label: &'static str, work: impl FnOnce() -> T) -> T {
        // The first use of a model shape on a GPU compiles kernels, which takes several seconds.
        let activity = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
            let text =
                if mage_native::is_compiling() { "compiling GPU kernels (cached for later runs)" } else { label };
            let _ = to.write_str(text);
        };
        let style = bar::style("{spinner} {activity} … {elapsed}").with_key("activity", activity);
        let spinner = bar::start(None, style, self.shows_progress());
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
        let bar = self.bar(total, "{msg} [{wide_bar}] {human_pos}/{human_len} {rate}, {left}");
        bar.with_message(label)
    }

    /// A progress bar with a message on a second line.
    pub(crate) fn progress_with_message(&self, total: u64, label: &str) -> ProgressBar {
        self.bar(total, &format!("{label} [{{wide_bar}}] {{human_pos}}/{{human_len}}\n{{wide_msg}}"))
    }

    fn bar(&self, total: u64, template: &str) -> ProgressBar {
        bar::start(Some(total), bar::style(template), self.shows_progress())
    }

    fn shows_progress(&self) -> bool {
        !self.quiet && !self.json
    }
}

/// Prints an error to stderr as a line of JSON.
pub(crate) fn json_error(text: &str, code: u8) {
    let text = anstream::adapter::strip_str(text).to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // One line, without control characters: JSON escapes all but those of C1.
    let _ = writeln!(io::stderr(), "{}", serde_json::json!({ "error": printable(text), "code": code }));
}

/// The message of an error; that of an engine ends with what to do.
pub(crate) fn message(e: &(dyn std::error::Error + 'static)) -> String {
    e.downcast_ref().map_or_else(|| e.to_string(), mage_train::explain)
}

/// Writes a file that the user named. A failure leaves the previous file, unless it is a device or a pipe.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = match fs::metadata(path) {
        Ok(file) if !file.is_file() => fs::write(path, bytes).map_err(anyhow::Error::new),
        // A link stays a link.
        Ok(_) => fs::canonicalize(path).map_err(anyhow::Error::new).and_then(|path| Ok(write_atomic(&path, bytes)?)),
        Err(_) => write_atomic(path, bytes).map_err(anyhow::Error::new),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Whether an error is a closed output pipe, which is not a failure.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}
