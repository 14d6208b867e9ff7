//! What can an engine refuse, and why?

use std::path::{Path, PathBuf};

/// Everything an engine refuses, each with what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something readable that does not make sense.
    #[error("{place}: {problem}")]
    Invalid {
        /// The file, request, tensor or field at fault.
        place: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A request for something this engine does not do.
    #[error("this engine cannot {what}: {hint}")]
    Unsupported {
        /// The ability that was asked for.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A file that could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Numbers that are no longer numbers, too many times in a row.
    #[error("{place} became {value} in {times} updates in a row: {hint}")]
    NotFinite {
        /// The first tensor found at fault.
        place: String,
        /// The value found.
        value: f32,
        /// How many updates in a row were lost.
        times: u32,
        /// What to try.
        hint: String,
    },
    /// The engine itself failed: a lost device, a broken connection, a full disk.
    #[error("{engine} failed: {reason}")]
    Engine {
        /// Which engine.
        engine: String,
        /// What happened.
        reason: String,
    },
}

/// The result of everything fallible here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { place: place.into(), problem: problem.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), hint: hint.into() }
    }

    /// An [`Error::File`] for reading; made to be used with `map_err`.
    pub fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Error::File { action: "read", path: path.to_owned(), source }
    }

    /// An [`Error::File`] for writing; made to be used with `map_err`.
    pub fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Error::File { action: "write", path: path.to_owned(), source }
    }
}

/// The first `max` characters of a text, without trailing white space. Error messages quote responses with it.
///
/// ```
/// assert_eq!(mage_engine::truncate_chars("grüße", 3), "grü");
/// ```
pub fn truncate_chars(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(at, _)| text[..at].trim_end())
}
