//! Errors of this crate.

use std::path::PathBuf;

/// An error: what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An unknown name.
    #[error("unknown {what} `{name}`{}", hint(.nearest, .known))]
    Unknown {
        /// The kind of name ("environment", "opponent", …).
        what: &'static str,
        /// The requested name.
        name: String,
        /// The most similar known name, where one is close.
        nearest: Option<String>,
        /// All known names.
        known: Vec<String>,
    },
    /// An invalid value.
    #[error("{location}: {problem}")]
    Invalid {
        /// The faulty file, option or field.
        location: String,
        /// The problem and how to fix it.
        problem: String,
    },
    /// The files of an environment were not found.
    #[error("{data}: {problem}")]
    MissingData {
        /// The files.
        data: &'static str,
        /// Where they were expected.
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

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Unknown`] that points at the nearest of the `known` names.
    pub fn unknown<S: Into<String>>(what: &'static str, name: &str, known: impl IntoIterator<Item = S>) -> Self {
        let known: Vec<String> = known.into_iter().map(Into::into).collect();
        let nearest = nearest_name(name, known.iter().map(String::as_str)).map(str::to_owned);
        Error::Unknown { what, name: name.to_owned(), nearest, known }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(location: impl Into<String>, problem: impl Into<String>) -> Self {
        Error::Invalid { location: location.into(), problem: problem.into() }
    }
}

/// The known name with the smallest edit distance to `name`, if it is near enough to be suggested. Ignores case.
pub fn nearest_name<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&k.to_lowercase(), &name.to_lowercase()), k))
        .filter(|(distance, k)| *distance <= 1 + k.chars().count() / 4)
        .min()
        .map(|(_, k)| k)
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
    fn unknown_name_suggests_the_nearest() {
        let e = Error::unknown("opponent", "agressive", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `agressive`: did you mean `aggressive`?");
        let e = Error::unknown("opponent", "AGGRESSIVE", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `AGGRESSIVE`: did you mean `aggressive`?");
        let e = Error::unknown("opponent", "zzz", ["aggressive", "conservative"]);
        assert_eq!(e.to_string(), "unknown opponent `zzz`; known: aggressive, conservative");
    }
}
