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
    #[error("this engine cannot {what}: {reason}")]
    Unsupported {
        /// The missing feature, as a verb phrase.
        what: String,
        /// Why, or the alternative.
        reason: String,
        /// What the user can do.
        hints: &'static [Hint],
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
    #[error("{tensor} was {value} in {steps} consecutive steps")]
    NonFinite {
        /// The first non-finite tensor.
        tensor: String,
        /// The value found.
        value: f32,
        /// Consecutive steps skipped.
        steps: u32,
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
        /// What the user can do.
        hints: &'static [Hint],
    },
}

/// What the user can do about an error or a status line. Engines know no options of the application, which words it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Use the CPU.
    UseCpu,
    /// Look at what the application reports about this machine.
    DiagnoseMachine,
    /// Train an adapter instead of all parameters.
    TrainAdapter,
    /// Disable action masks.
    DisableActionMasks,
    /// Disable gradient clipping.
    DisableGradClipping,
    /// Lower the learning rate, or look for extreme advantages or log-probs.
    LowerLearningRate,
    /// Resume the run from its last checkpoint.
    ResumeRun,
    /// Set the API key of the server.
    SetApiKey,
    /// Check the address.
    CheckAddress,
    /// Check the address of the training server.
    CheckTrainerAddress,
    /// The address is that of a training server: set it as such.
    SetTrainerAddress,
    /// The address is that of a sampling server: add it to the pool.
    AddToPool,
    /// Set the model's name on the training server.
    SetBaseModel,
    /// Set the backend of the training server.
    SetBackend,
    /// Start the training server with settings that the application writes.
    LaunchTrainer,
    /// Sample on a pool of sampling servers.
    SampleOnPool,
    /// Sample on the training server.
    SampleOnTrainer,
    /// Resume with the sampling servers of the checkpoint.
    KeepSampler,
    /// Set a directory of adapters that all machines see.
    ShareAdapterDir,
    /// Increase the timeout of sampling requests.
    IncreaseRequestTimeout,
}

/// Result of engine operations.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an [`Error::Invalid`].
    pub fn invalid(subject: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { subject: subject.into(), problem: problem.into() }
    }

    /// Creates an [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Unsupported { what: what.into(), reason: reason.into(), hints: &[] }
    }

    /// Creates an [`Error::Engine`].
    pub fn engine(engine: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Engine { engine: engine.into(), reason: reason.into(), hints: &[] }
    }

    /// Sets the hints of [`Error::Unsupported`] and [`Error::Engine`]; other errors have none, or always the same.
    pub fn with_hints(mut self, new: &'static [Hint]) -> Self {
        if let Error::Unsupported { hints, .. } | Error::Engine { hints, .. } = &mut self {
            *hints = new;
        }
        self
    }

    /// What the user can do.
    pub fn hints(&self) -> &'static [Hint] {
        match self {
            Error::Unsupported { hints, .. } | Error::Engine { hints, .. } => hints,
            Error::NonFinite { .. } => &[Hint::LowerLearningRate],
            _ => &[],
        }
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
