//! Errors of training and evaluation.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file or run directory that another process writes.
    #[error("{} is locked by another process; wait for it to end, or choose another path", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A directory that is not empty, where a new run was to be created.
    #[error("{}: the directory is not empty; choose another one, or continue the run with --resume", path.display())]
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// A damaged line in a trajectory store.
    #[error("{}, line {line}: {problem}; remove the line to continue without it", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The problem.
        problem: String,
    },
    /// A scripted policy that cannot respond.
    #[error("{problem}")]
    ScriptedPolicy {
        /// The cause.
        problem: &'static str,
    },
    /// An invalid recipe.
    #[error("{location}: {problem}")]
    Recipe {
        /// The file or key.
        location: String,
        /// The problem.
        problem: String,
    },
    /// A run directory that cannot be used.
    #[error("{}: {problem}", path.display())]
    Run {
        /// The directory, or the file in it.
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// A panic of an environment, a scripted agent or another part of a meta-episode.
    #[error("the meta-episode panicked: {0}")]
    Panicked(String),
    /// A failure that stops the run.
    #[error("{0}")]
    Stopped(String),
    /// A requested stop; finished work is kept.
    #[error("stopped on request")]
    Interrupted,
    /// An error of an engine. The message states what to do and includes the error, which is therefore no `source`.
    #[error("{}", crate::explain(.0))]
    Engine(mage_engine::Error),
    /// An error of an environment.
    #[error(transparent)]
    Env(#[from] mage_env::Error),
    /// An error of `mage-core`.
    #[error(transparent)]
    Core(#[from] mage_core::Error),
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl From<mage_engine::Error> for Error {
    fn from(e: mage_engine::Error) -> Self {
        Error::Engine(e)
    }
}

impl Error {
    /// Whether a server refused a request and would refuse every other: wrong key, address or model.
    pub fn is_rejection(&self) -> bool {
        matches!(
            self,
            Error::Engine(mage_engine::Error::Rejected { .. })
                | Error::Core(mage_core::Error::Embeddings { rejected: true, .. })
        )
    }

    /// Converts an I/O error of a file.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }
}
