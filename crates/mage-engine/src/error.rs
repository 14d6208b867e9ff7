//! Error type of engines.

use std::path::{Path, PathBuf};

/// An engine error: what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid input.
    #[error("{subject}: {problem}")]
    Invalid {
        /// The invalid file, request, tensor or field.
        subject: String,
        /// What is wrong and what is expected.
        problem: String,
    },
    /// A feature that this engine does not have.
    #[error("this engine cannot {what}: {hint}")]
    Unsupported {
        /// The missing feature, as a verb phrase.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A file that could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Non-finite values in too many consecutive optimiser steps.
    #[error("{tensor} was {value} in {steps} consecutive steps: {hint}")]
    NonFinite {
        /// The first non-finite tensor.
        tensor: String,
        /// The value found.
        value: f32,
        /// Consecutive steps skipped.
        steps: u32,
        /// What to try.
        hint: String,
    },
    /// A server that refuses the request and would refuse every other: wrong key, address or model.
    #[error("{engine} failed: {reason}")]
    Rejected {
        /// Address of the server.
        engine: String,
        /// HTTP status.
        status: u16,
        /// Status and the server's text.
        reason: String,
    },
    /// A failure of the engine: lost device, broken connection, full disk.
    #[error("{engine} failed: {reason}")]
    Engine {
        /// Engine name.
        engine: String,
        /// Cause.
        reason: String,
    },
}

/// Result of engine operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an [`Error::Invalid`].
    pub fn invalid(subject: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { subject: subject.into(), problem: problem.into() }
    }

    /// Creates an [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), hint: hint.into() }
    }

    /// Creates an [`Error::File`] for reading, for use with `map_err`.
    pub fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Error::File { action: "read", path: path.to_owned(), source }
    }

    /// Creates an [`Error::File`] for writing, for use with `map_err`.
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
