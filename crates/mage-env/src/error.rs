//! What can be wrong with what a user asked for.

use std::path::PathBuf;

/// Everything this crate refuses, each with what, where and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that nothing is registered under.
    #[error("unknown {what} `{name}`{}", hint(.nearest, .known))]
    Unknown {
        /// The sort of thing that was looked up ("environment", "opponent", …).
        what: &'static str,
        /// The name asked for.
        name: String,
        /// The most similar known name, where one is close.
        nearest: Option<String>,
        /// All known names.
        known: Vec<String>,
    },
    /// Something readable that does not make sense.
    #[error("{place}: {problem}")]
    Invalid {
        /// File, option or field at fault.
        place: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A file that could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file that could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// The result of everything fallible here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Unknown`] that points at the nearest of the `known` names.
    pub fn unknown<S: Into<String>>(what: &'static str, name: &str, known: impl IntoIterator<Item = S>) -> Self {
        let known: Vec<String> = known.into_iter().map(Into::into).collect();
        let nearest = known
            .iter()
            .map(|k| (strsim::damerau_levenshtein(&k.to_lowercase(), &name.to_lowercase()), k))
            .filter(|(distance, k)| *distance <= 1 + k.chars().count() / 3)
            .min()
            .map(|(_, k)| k.clone());
        Error::Unknown { what, name: name.to_owned(), nearest, known }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { place: place.into(), problem: problem.into() }
    }
}

fn hint(nearest: &Option<String>, known: &[String]) -> String {
    match nearest {
        Some(n) => format!(": did you mean `{n}`?"),
        None if known.is_empty() => ": none are known".to_owned(),
        None => format!("; known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_point_at_the_nearest() {
        let e = Error::unknown("opponent", "agressive", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `agressive`: did you mean `aggressive`?");
        let e = Error::unknown("opponent", "AGGRESSIVE", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `AGGRESSIVE`: did you mean `aggressive`?");
        let e = Error::unknown("opponent", "zzz", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `zzz`; known: aggressive, conservative");
    }
}
