//! Error type of the crate.

use crate::RequestId;

/// Errors of prompts, memories, configuration and trajectories.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The prompt library has no templates for an environment.
    #[error("no prompt templates for environment `{env}`; add them to the prompt library")]
    NoPrompts {
        /// The environment.
        env: String,
    },
    /// A template that does not compile or render.
    #[error("prompt template {name}: {problem}")]
    Template {
        /// The template.
        name: String,
        /// The cause.
        problem: String,
    },
    /// A completion for a request that is not pending.
    #[error("request {got:?} is not pending{}", .pending.map(|r| format!("; {r:?} is")).unwrap_or_default())]
    NotPending {
        /// The request of the completion.
        got: RequestId,
        /// The request that is pending, if any.
        pending: Option<RequestId>,
    },
    /// A line that is not a trajectory.
    #[error("not a trajectory: {problem}")]
    InvalidTrajectory {
        /// The cause.
        problem: String,
    },
    /// Text similarity that could not be computed.
    #[error("cannot compute text similarity: {problem}")]
    Embeddings {
        /// The cause.
        problem: String,
        /// Whether every other request would fail the same way.
        rejected: bool,
    },
    /// An invalid configuration.
    #[error("{field}: {problem}")]
    Config {
        /// The field.
        field: &'static str,
        /// The cause.
        problem: String,
    },
}

/// Result of this crate's fallible functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn template(env: &str, name: &str, e: &minijinja::Error) -> Self {
        let name = if env.is_empty() { name.to_owned() } else { format!("{env}/{name}") };
        Error::Template { name, problem: format!("{e:#}") }
    }
}
