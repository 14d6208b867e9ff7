//! What can go wrong between an environment and a model.

use crate::RequestId;

/// Everything this crate refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment without templates.
    #[error("there are no prompts for environment `{env}`; add them to the prompt library")]
    NoPrompts {
        /// The environment.
        env: String,
    },
    /// A template that does not compile or render.
    #[error("prompt template {name}: {problem}")]
    Template {
        /// Which one.
        name: String,
        /// Why not.
        problem: String,
    },
    /// An answer to a call that is not open.
    #[error("call {got:?} is not open{}", .open.map(|c| format!("; call {c:?} is")).unwrap_or_default())]
    NotOpen {
        /// The call that was answered.
        got: RequestId,
        /// The call that waits for an answer.
        open: Option<RequestId>,
    },
    /// A line that is not a record.
    #[error("not an episode record: {problem}")]
    Record {
        /// Why not.
        problem: String,
    },
    /// Texts that could not be compared.
    #[error("comparing texts: {problem}")]
    Embeddings {
        /// Why not.
        problem: String,
    },
    /// Settings that cannot work.
    #[error("{place}: {problem}")]
    Config {
        /// Which setting.
        place: &'static str,
        /// What is wrong.
        problem: String,
    },
}

/// The result of everything fallible here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn template(env: &str, name: &str, e: &minijinja::Error) -> Self {
        let name = if env.is_empty() { name.to_owned() } else { format!("{env}/{name}") };
        Error::Template { name, problem: format!("{e:#}") }
    }
}
