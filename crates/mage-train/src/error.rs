//! What can go wrong when running things.

use std::path::PathBuf;

/// Everything this crate refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A store that another process writes.
    #[error("{} is being written by another process; wait for it, or choose another file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A damaged line in the middle of a store.
    #[error("{}, line {line}: {problem}; remove the line to go on without it", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A player that cannot play this.
    #[error("{problem}")]
    Player {
        /// Why not.
        problem: &'static str,
    },
    /// A recipe that cannot be read or cannot work.
    #[error("{place}: {problem}")]
    Recipe {
        /// The file or key.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A run directory that cannot be used as asked.
    #[error("{}: {problem}", path.display())]
    Run {
        /// The directory, or the file in it.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Training that had to stop.
    #[error("{0}")]
    Stopped(String),
    /// Somebody asked to stop; what was finished is kept.
    #[error("stopped as asked")]
    Interrupted,
    /// From an engine.
    #[error(transparent)]
    Engine(#[from] mage_engine::Error),
    /// From the environments.
    #[error(transparent)]
    Env(#[from] mage_env::Error),
    /// From the core.
    #[error(transparent)]
    Core(#[from] mage_core::Error),
}

/// The result of everything fallible here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A file that cannot be read or written.
    pub fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { path, source }
    }
}
